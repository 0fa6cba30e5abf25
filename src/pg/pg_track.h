/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a server connection still owes: a queue of the requests sent and not
 * answered, kept in step with the replies. It tells when the server is idle
 * outside a transaction with nothing outstanding, where a reply that we make
 * ourselves belongs, and which requests the server skips after an error.
 * Pure; belongs to the thread of its server.
 *
 * Facts of the protocol it rests on (PostgreSQL docs, "Message Flow"):
 *  - Query and FunctionCall end with ReadyForQuery, whatever happens.
 *  - Parse, Bind, Describe, Execute, Close have one closing reply each; on
 *    error the server skips everything up to the next Sync.
 *  - While it reads COPY data the server ignores Flush and Sync; CopyData,
 *    CopyDone and CopyFail outside COPY are ignored as well. */
#ifndef PG_PG_TRACK_H
#define PG_PG_TRACK_H

#include "base/err.h"

enum track_kind {
    TRACK_QUERY,
    TRACK_FUNCTION,
    TRACK_SYNC,
    TRACK_PARSE,
    TRACK_BIND,
    TRACK_DESCRIBE,
    TRACK_EXECUTE,
    TRACK_CLOSE,
    TRACK_COPY_END, /* CopyDone or CopyFail sent before COPY was reported */
};

enum track_flag {
    TRACK_VIRTUAL = 1, /* not sent: the reply is ours to make */
    TRACK_OURS = 2,    /* not the client's: the reply is swallowed */
    TRACK_BARRIER = 4, /* may drop all prepared statements: later messages
                        * that name one wait for it */
    TRACK_UNNAMED = 8, /* the caller's: changes the unnamed statement */
    TRACK_DUP = 16,    /* the caller's: Parse of a name that is taken */
};

struct track_entry {
    uint8_t kind;    /* enum track_kind */
    uint8_t flags;   /* enum track_flag */
    uint16_t serial; /* set by push: tells it from others of its epoch */
    uint32_t epoch;  /* set by push: number of Syncs sent before */
    void *tag;       /* the caller's, like extra */
    void *extra;
};

enum {
    TRACK_INLINE = 8,
    TRACK_MAX = 1 << 18, /* entries; the caller stops reading before */
};

struct pg_track {
    struct track_entry *ring; /* inline_ring or heap */
    uint32_t head, count, cap;
    uint32_t epoch;                 /* Syncs (and Queries) pushed so far */
    uint16_t serial;                /* of the latest entry */
    uint32_t n_barriers;            /* entries with TRACK_BARRIER */
    uint32_t skip_left, skip_total; /* between has_failed and its skips */
    uint32_t found; /* meanwhile, by pg_track_find(); 0: not looked for */
    uint32_t n_copy_syncs; /* Syncs sent while the server reads COPY data */
    char tx;               /* PG_TX_... of the last ReadyForQuery */
    bool in_copy_in;       /* the server reads COPY data */
    bool is_skipping;      /* after an error, until a Sync is sent */
    bool has_unsynced;     /* extended messages since the last Sync or Query */
    bool has_failed;       /* ErrorResponse since the last ReadyForQuery */
    bool is_lost;          /* no longer known what belongs to what */
    struct track_entry inline_ring[TRACK_INLINE];
};

void pg_track_init(struct pg_track *t);
void pg_track_fini(struct pg_track *t);

/* Whether pg_track_pop_local() has something to take. */
static inline bool pg_track_has_local(const struct pg_track *t)
{
    if (!t->count)
        return false;
    const struct track_entry *e = &t->ring[t->head];
    return (e->flags & TRACK_VIRTUAL) || e->kind == TRACK_COPY_END;
}

/* Records a request about to be sent. False when the server will not answer it
 * (it is skipping, or ignores it during COPY): send it all the same, but expect
 * nothing. */
bool pg_track_push(struct pg_track *t, struct track_entry e);

/* Takes one entry from the front that needs no server: a virtual one, which the
 * caller answers now, or an end of COPY, which it ignores. False when the front
 * is real or there is none. To be called until false before each reply that is
 * not asynchronous, after each one, and when the client asks for Flush. */
bool pg_track_pop_local(struct pg_track *t, struct track_entry *out);

struct track_reply {
    bool has_entry;  /* entry was answered: taken off the queue */
    bool has_failed; /* ... by an ErrorResponse; call pg_track_skip() */
    struct track_entry entry;
};

/* Takes note of a reply by its type; status is the byte of ReadyForQuery.
 * ERR_PROTO when the reply fits nothing that was asked. */
NODISCARD int pg_track_reply(struct pg_track *t, char type, char status,
                             struct track_reply *out);

/* After has_failed: hands out the requests that the server skips, the newest
 * first, until false. */
bool pg_track_skip(struct pg_track *t, struct track_entry *out);

/* The oldest entry with these flags, and none of those, among the ones that are
 * not being skipped; NULL without one. Good until the next call. Amid the
 * skips of an error it is looked for once, so it must be the same each time. */
struct track_entry *pg_track_find(struct pg_track *t, unsigned flags,
                                  unsigned without);

/* Everything answered, outside a transaction, nothing half done. */
static inline bool pg_track_is_idle(const struct pg_track *t)
{
    return t->count == 0 && t->tx == 'I' && !t->in_copy_in && !t->is_skipping &&
           !t->has_unsynced && !t->is_lost;
}

/* Hands out all entries, the newest first, until false; for tearing down. */
bool pg_track_drain(struct pg_track *t, struct track_entry *out);

/* The front entry, NULL when there is none. */
const struct track_entry *pg_track_front(const struct pg_track *t);

#endif
