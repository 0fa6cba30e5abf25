/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Sessions and servers that go to another process: the newer one while this
 * one leaves (an upgrade), or back to the older one, whose sessions that cannot
 * move still need servers. What goes is packed on its worker's thread, travels
 * as a parcel to the main thread, which owns the links (main/generation.h), and
 * is unpacked on a worker's thread of the other process. Places of the budget
 * go with the servers, or on their own; see shared.h. */
#ifndef POOL_HANDOVER_H
#define POOL_HANDOVER_H

#include <stdatomic.h>

#include "loop/loop.h"
#include "pool/shared.h"
#include "pool/statement.h"

enum handover_kind {
    HANDOVER_CLIENT,
    HANDOVER_SERVER,
    HANDOVER_PLACE,       /* a server was closed: its pool */
    HANDOVER_CANCEL,      /* a key that nobody here has */
    HANDOVER_CANCEL_DONE, /* the answer to the other's HANDOVER_CANCEL */
};

/* On its way to the main thread, whose it is then: handover_parcel_free(). */
struct handover_parcel {
    struct message m;
    enum generation to;
    enum handover_kind kind;
    int fd; /* -1: none */
    char *body;
    size_t n;
    struct statement **statements; /* that body names; references */
    int n_statements;
    /* HANDOVER_CANCEL: who asks, for cancel_answered() */
    void *note;
    /* HANDOVER_CANCEL_DONE */
    uint64_t token;
    bool was_found;
};
void handover_parcel_free(struct handover_parcel *p);
/* A copy in one block, so that an end at any moment frees it; takes the body.
 */
struct handover_parcel *handover_parcel_new(const struct handover_parcel *from);

/* One a process; made by main before the workers start. */
struct handover {
    struct loop *loop;
    void (*on_parcel)(struct message *m, void *loop_data);
    atomic_bool has[GEN_COUNT]; /* there is such a process */
    struct statement_table *names[GEN_COUNT];
};
struct handover *handover_new(struct loop *loop,
                              void (*on_parcel)(struct message *m, void *data));
void handover_free(struct handover *h);

static inline bool handover_is_on(const struct shared *s)
{
    return s->handover && (atomic_load_explicit(&s->handover->has[GEN_OLDER],
                                                memory_order_relaxed) ||
                           atomic_load_explicit(&s->handover->has[GEN_NEWER],
                                                memory_order_relaxed));
}

/* The place of a server that was closed goes to the newer process. */
void handover_send_place(struct shared *s, struct pool_rec *p);

/* --- on a worker's thread --------------------------------------------------
 */

struct shard;

/* From now on whatever can go goes. */
void shard_leave(struct shard *sh);
void shard_stay(struct shard *sh); /* the newer process is gone */

struct leave_count {
    int clients, consoles, servers;
};

/* Lets go of what can go now, counts (adds to *out) what is left. */
void shard_leave_now(struct shard *sh, struct leave_count *out);

/* Unpack; the descriptor is taken. A server's place was counted by the caller
 * (budget_receive()). */
void shard_receive_client(struct shard *sh, enum generation from,
                          struct slice body, int fd);
void shard_receive_server(struct shard *sh, enum generation from,
                          struct slice body, int fd);

/* Looks at its part of this pool again. */
void shard_wake_pool(struct shard *sh, struct pool_rec *rec);
void shard_wake_all(struct shard *sh);

/* Closes the oldest idle server that counts against the same limit. */
bool shard_evict(struct shard *sh, struct pool_rec *rec,
                 enum budget_verdict why);

/* What has been counted since the last time, by pool; adds to a pool. */
struct pool_stats;
void shard_take_stats(struct shard *sh,
                      void (*each)(void *arg, struct pool_rec *rec,
                                   const struct pool_stats *s),
                      void *arg);
void shard_add_stats(struct shard *sh, struct pool_rec *rec,
                     const struct pool_stats *s);

/* A cancel request of the other process, by its token. */
void shard_cancel_for(struct shard *sh, enum generation from, uint64_t token,
                      const uint8_t *key, size_t n);
/* What became of one that went there. Any thread; takes the note. */
void cancel_answered(struct shared *s, void *note, bool was_found);
size_t cancel_note_key(const void *note, const uint8_t **key);

/* --- any thread ------------------------------------------------------------
 */

struct pgbuf;
struct pgread;
void handover_put_text(struct pgbuf *b, struct slice s);
struct slice handover_get_text(struct pgread *r);
void handover_put_i64(struct pgbuf *b, int64_t v);
int64_t handover_get_i64(struct pgread *r);
void handover_put_params(struct pgbuf *b, const struct pg_params *p);
const struct pg_params *handover_get_params(struct pgread *r);
void handover_put_pool(struct pgbuf *b, const struct pool_rec *rec);
struct pool_rec *handover_get_pool(struct pgread *r, struct shared *s);
/* What is known for logging in to servers as this user. */
void handover_put_user(struct pgbuf *b, struct user_rec *u);
void handover_get_user(struct pgread *r, struct shared *s);
struct budget_limits handover_limits(const struct conf *c,
                                     const struct pool_rec *rec);

#endif
