/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What bench/load is asked to do, and the statements that it sends. Read once
 * at start, then only read. */
#ifndef BENCH_LOAD_OPTIONS_H
#define BENCH_LOAD_OPTIONS_H

#include "edge/target.h"
#include "net/addr.h"
#include "pg/pg_write.h"

enum load_mode { LOAD_SIMPLE, LOAD_EXTENDED, LOAD_PREPARED };

enum { LOAD_PARAMS_MAX = 16, LOAD_STATEMENTS_MAX = 32 };

/* SQL with numbers drawn at random where {LOW-HIGH} stood. */
struct load_statement {
    int n_params;
    int64_t low[LOAD_PARAMS_MAX], high[LOAD_PARAMS_MAX];
    char *piece[LOAD_PARAMS_MAX + 1]; /* the text around them */
    char *numbered;                   /* with $1, $2 ... in their place */
};

struct load_options {
    struct target to;
    bool is_unix;
    struct addr unix_at;
    const char *ca_file, *user, *dbname, *password;
    bool no_verify;
    int connections, streams; /* QUIC: connections, sessions of each */

    int sessions, open_at_once;
    double rate, rate_end; /* arrivals per second; 0: closed loop */
    bool is_fixed;         /* evenly spaced, not Poisson */
    int burst;             /* arrivals at the start, all at once */
    double warmup_s, duration_s, drain_s;
    int max_queue;
    uint64_t seed;

    enum load_mode mode;
    int n_statements;
    struct load_statement statement[LOAD_STATEMENTS_MAX];
    bool new_session; /* each query in a session of its own */
    int bulk;         /* more sessions that repeat bulk_sql */
    const char *bulk_sql;

    bool hold; /* open, one query each, wait for the end of stdin */
    const char *csv_file;
    bool json;
};

/* Ends the process on --help and on a mistake. */
void load_options_parse(struct load_options *o, int argc, char **argv);
void load_options_free(struct load_options *o);

/* Uniform in [0, 1); not for secrets. */
double load_random(void);

/* The message or messages of one statement, up to the point where an answer
 * comes. */
void load_put_statement(struct pgbuf *b, const struct load_options *o, int i);
/* Parse and Sync of all statements, for LOAD_PREPARED. */
void load_put_prepare(struct pgbuf *b, const struct load_options *o);

#endif
