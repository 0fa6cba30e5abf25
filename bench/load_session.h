/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One session of bench/load: gets a stream, logs in, carries one query at a
 * time. Belongs to the loop's thread; load.c owns them all and is told by the
 * load_on_...() functions at the end of this file. */
#ifndef BENCH_LOAD_SESSION_H
#define BENCH_LOAD_SESSION_H

#include "auth/auth_server.h"
#include "bench/load_options.h"
#include "edge/upstream.h"

enum session_state {
    SESSION_CLOSED,
    SESSION_ASKING,    /* for a stream */
    SESSION_LOGIN,     /* up to the first ReadyForQuery */
    SESSION_PREPARING, /* Parse of all statements */
    SESSION_IDLE,
    SESSION_BUSY,
    SESSION_WAITING, /* broken; opened again by load.c */
};

/* What all sessions share. */
struct session_env {
    const struct load_options *o;
    struct loop *loop;
    struct upstream *up; /* NULL: a Unix socket */
    struct auth_cache *cache;
    struct pgbuf out;
};

struct session {
    struct list node; /* load.c: its list of idle or of broken ones */
    struct session_env *env;
    enum session_state state;
    bool is_bulk;
    bool has_failed; /* the server said ERROR to the query under way */
    int statement;   /* under way */
    int64_t arrival_us, open_us;
    struct upstream_ask ask;
    struct stream *stream;
    struct auth_server *auth;
    /* A reply is walked message by message; the body of a few is kept. */
    uint32_t skip; /* bytes of the current message still to come */
    uint32_t head_n, body_n;
    char head[PG_HEADER_SIZE];
    char *body;
    uint64_t bytes; /* received, of a bulk session */
};

void session_init(struct session *s, struct session_env *env);
void session_open(struct session *s);
/* From IDLE. */
void session_query(struct session *s, int64_t arrival_us);
/* Says goodbye; no callback follows. */
void session_close(struct session *s);

/* --- in load.c ------------------------------------------------------------ */

/* Logged in and IDLE. */
void load_on_ready(struct session *s);
/* The whole of a query is answered; s is IDLE again. */
void load_on_done(struct session *s);
/* Refused or broken; was: what it was doing. The session is WAITING. */
void load_on_broken(struct session *s, enum session_state was, const char *why);
/* The server's words, for the first few. */
void load_on_error(struct session *s, const char *text);

#endif
