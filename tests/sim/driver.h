/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A made-up client: sends random requests, and knows from a backend model of
 * its own, byte for byte, what must come back. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "backend.h"

enum driver_kind {
    DRIVER_STRICT, /* every reply must be as from its own server */
    DRIVER_CHAOS,  /* leaves anywhere, breaks the protocol */
    DRIVER_CANCEL, /* sleeps and is canceled */
};

struct driver {
    struct list node;
    enum driver_kind kind;
    int mark;
    char database[16];
    struct conn *k;
    struct backend direct;
    struct bytes send, expected, got;
    uint64_t n_got;     /* bytes after the login */
    uint64_t due_until; /* of them asked for by Sync, Flush ... */
    bool is_in;         /* the login is over */
    bool may_be_cut;    /* the pooler may end it with an error */
    bool has_transactions, has_statements, is_leaving, is_done;
    bool is_wild; /* it sent nonsense: whatever comes back */
    bool waits;
    bool is_synced; /* the last request was Sync, Query or FunctionCall */
    uint8_t key[8];
    int batches_left;
    int n_asked, n_answered; /* DRIVER_CANCEL: queries */
    int leave_after;         /* DRIVER_CHAOS: bytes; -1: no */
    uint64_t progress_step;
    uint64_t n_messages;
};

/* What a configuration allows. */
struct driver_rules {
    bool has_transactions, has_statements, may_be_cut;
};

struct driver *driver_new(enum driver_kind kind, int mark, const char *database,
                          const struct driver_rules *rules, struct conn *k);
void driver_free(struct driver *d);

/* Reads and writes a little. */
void driver_step(struct driver *d, uint64_t step);
/* Nothing came for so many steps, though it waits for something. */
bool driver_is_stuck(const struct driver *d, uint64_t step, uint64_t patience);

#endif
