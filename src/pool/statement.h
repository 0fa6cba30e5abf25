/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The registry of prepared statements: full texts with their parameter types,
 * each once in the process. A statement's identity is its number; the hash only
 * finds it. Any thread; lookups take a lock, so a worker keeps a small cache in
 * front (statement_cache). */
#ifndef POOL_STATEMENT_H
#define POOL_STATEMENT_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/slice.h"

/* What a statement is called on servers: this and its number. */
#define SERVER_PREFIX "PGBRAID_"

enum { SERVER_STMT_NAME_MAX = 24 };

struct statement {
    uint32_t id; /* never used again, never 0 */
    _Atomic unsigned refs;
    /* Raised when servers must prepare it anew ("cached plan must not change
     * result type"). */
    _Atomic uint32_t generation;
    bool is_barrier; /* DEALLOCATE or DISCARD: may drop other statements */
    bool may_begin;  /* BEGIN or START TRANSACTION */
    uint8_t name_n;
    char name[SERVER_STMT_NAME_MAX]; /* its name on servers */
    uint64_t hash;
    struct statement *next; /* in the registry's bucket */
    size_t body_n;
    char body[]; /* of Parse, behind the name: text, 0, types */
};

/* Bytes that all texts together may take, and what is held of messages that are
 * still arriving; statement_max_bytes. */
void statement_set_max(size_t bytes);

/* What was held of an unfinished message has become `now` bytes. False when
 * that is too much; it is counted all the same. */
NODISCARD bool statement_hold(size_t was, size_t now);

/* Finds or adds the statement with this body; returns a reference. NULL when
 * there is no memory, or no room within the maximum. */
struct statement *statement_get(struct slice body);
struct statement *statement_ref(struct statement *s);
void statement_unref(struct statement *s); /* NULL is fine */

/* --- over an upgrade ------------------------------------------------------
 *
 * Servers go from process to process with what is prepared on them under names
 * made of these numbers, so a number must mean the same text in all of them: a
 * new process counts on from beyond those that the old one may still give. */

/* What another process calls its statements; NULL: nothing yet. */
struct statement_table;
struct statement_table *statement_table_new(void);
void statement_table_free(struct statement_table *t);

/* Takes note of a text under the other process's number, and under the same
 * number here if that is free. */
void statement_import(struct statement_table *t, uint32_t id,
                      struct slice body);
/* A reference; NULL when that number was not imported. */
struct statement *statement_imported(struct statement_table *t, uint32_t id);

/* The number that the next process is to count on from (0: there is none, then
 * names cannot be kept); ours stay below it from now on, or go beyond
 * STATEMENT_ID_LOCAL. */
#define STATEMENT_ID_LOCAL 0x80000000u
uint32_t statement_leave(void);
void statement_come_back(void); /* the next process is gone */
void statement_count_from(uint32_t id);

/* For SHOW MEM. */
void statement_totals(size_t *count, size_t *bytes);

/* Cache of one worker: statement_get() without the lock for texts seen lately.
 * Holds references. */
enum { STATEMENT_CACHE_SLOTS = 1024, STATEMENT_CACHE_BODY_MAX = 8192 };

struct statement_cache {
    struct statement *slot[STATEMENT_CACHE_SLOTS];
};

struct statement *statement_cache_get(struct statement_cache *c,
                                      struct slice body);
void statement_cache_fini(struct statement_cache *c);

#endif
