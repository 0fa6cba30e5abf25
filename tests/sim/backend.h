/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A model of one PostgreSQL session: the messages of protocol 3, implicit and
 * explicit transactions, prepared statements, portals, COPY, reported settings.
 * Bytes in, bytes out. Its SQL is a handful of words (backend.c).
 *
 * Texts and parameters may carry a marker "c<number>" of the client they are
 * from; a model notices when a transaction or a Bind mixes two. */
#ifndef SIM_BACKEND_H
#define SIM_BACKEND_H

#include "sim.h"

enum { N_SETTINGS = 3 };

struct text {
    size_t n;
    char p[200];
};

struct backend_stmt {
    struct backend_stmt *next;
    char name[64];
    struct text sql;
    int owner; /* marker of its text; 0: none */
};

struct backend_portal {
    struct backend_portal *next;
    char name[64];
    struct text sql, arg;
    int at; /* rows sent */
    bool is_done;
};

struct backend {
    struct bytes in, held, out; /* held: written, not flushed */
    bool in_startup;
    bool is_ended;    /* said FATAL, or Terminate came */
    bool is_cancel;   /* a CancelRequest came */
    bool is_sleeping; /* until backend_wake() */
    bool flushes_early;
    uint32_t pid;
    uint8_t key[4];
    char database[64];
    char tx; /* 'I', 'T', 'E' */
    bool is_skipping, in_extended, in_implicit;
    bool in_copy, copy_is_simple;
    int copy_rows;
    struct text rest;  /* of a Query behind COPY or SLEEP */
    bool has_executed; /* in this batch: a pipeline */
    struct backend_stmt *stmts, *unnamed;
    struct backend_portal *portals;
    struct text setting[N_SETTINGS], saved[N_SETTINGS], told[N_SETTINGS];
    int owner;   /* marker of who runs the transaction; 0: nobody */
    bool checks; /* markers */
    uint64_t n_messages;
    uint64_t n_said, n_flushed; /* bytes */
    char what[160];             /* the last messages, for failures */
};

void backend_init(struct backend *b, bool in_startup);
void backend_free(struct backend *b);
void backend_feed(struct backend *b, const void *p, size_t n);
/* Ends a SLEEP; canceled: with an error. */
void backend_wake(struct backend *b, bool canceled);
bool backend_has_stmt(const struct backend *b, const char *name);

#endif
