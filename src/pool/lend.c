/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Between workers: idle servers that move to where a client waits, places of
 * the budget that are made free for another pool, and waking those who wait.
 *
 * The rule: no client waits while any worker holds an idle server of its pool.
 * A worker publishes its idle servers before it looks at the others' demand
 * (pool_give_server()); a waiter publishes its demand before it looks at the
 * others' idle servers (lend_ask()). Both are sequentially consistent, so at
 * least one of them sees the other. A unit of demand is taken by the worker
 * that sends a server for it, so that one waiter does not draw several.
 *
 * Order of service: a local waiter goes first unless another worker's first
 * waiter has waited longer by more than tolerance(); moving  a server costs
 * more than a query, so exact order is not worth it. */
#include <stdlib.h>

#include "pool/handover.h"
#include "pool/impl.h"

enum {
    TOLERANCE_US = 3000,
    TOLERANCE_MAX_US = 20 * 1000,
    /* A server that cannot move is closed here and opened there, which costs a
     * login: only for one who has waited for long. */
    STUCK_TOLERANCE_US = 1000 * 1000,
    STUCK_UNUSED_US = 50 * 1000,
};

enum lend_kind {
    LEND_ASK,    /* give from's waiters what is idle */
    LEND_SERVER, /* here is one */
    LEND_WAKE,   /* look at your waiters again */
    LEND_EVICT,  /* close an idle server of this database or user */
};

struct lend_message {
    struct message m;
    struct shard *to;
    enum lend_kind kind;
    int from, hops;
    struct pool_rec *rec;
    struct server *server;
    enum budget_verdict why;
};

static void handle(struct message *m, void *loop_data);

static void post(struct shard *to, struct lend_message body)
{
    struct loop *loop = shard_loop_now(to);
    if (!loop)
        return;
    struct lend_message *m = mem_new(sizeof *m);
    *m = body;
    m->m.handle = handle;
    m->to = to;
    mailbox_send(loop, &m->m);
}

/* The other worker, or behind them the other process (an upgrade), whose first
 * waiter of this pool has waited longest and has demand left; -1 without one.
 */
static int longest_waiting(const struct pool *p, int64_t *since)
{
    int n = p->shard->shared->n_shards + GEN_COUNT, best = -1;
    *since = INT64_MAX;
    for (int i = 0; i < n; i++) {
        struct pool_slot *slot = &p->rec->slot[i];
        if (i == p->shard->index || atomic_load(&slot->demand) <= 0)
            continue;
        int64_t us =
            atomic_load_explicit(&slot->oldest_us, memory_order_relaxed);
        if (us && us < *since) {
            *since = us;
            best = i;
        }
    }
    return best;
}

/* Half as long again, and a little: under load all wait, and chance alone puts
 * the workers' queues further apart than a few milliseconds. A server that did
 * move stays, so that the shares of the workers settle. */
static int64_t tolerance(const struct pool *p, int64_t own)
{
    return MIN(TOLERANCE_US + (shard_now(p->shard) - own) / 2,
               TOLERANCE_MAX_US);
}

static int64_t own_oldest(const struct pool *p)
{
    if (list_empty(&p->waiting))
        return INT64_MAX;
    return container_of(p->waiting.next, const struct client, node_pool)
        ->wait_us;
}

/* Whether s is to be closed, so that a worker opens its own. While the budget
 * has room that one need not wait for it. */
static bool is_worth_closing(const struct pool *p, int64_t since)
{
    int64_t own = own_oldest(p);
    if (pool_has_room(p))
        return false;
    if (own != INT64_MAX)
        return own - since > STUCK_TOLERANCE_US;
    return shard_now(p->shard) - since > STUCK_UNUSED_US;
}

/* True when s is gone, to the worker or for good. */
static bool move_server(struct server *s, int to)
{
    struct pool *p = s->pool;
    struct shard *sh = p->shard;
    if (!demand_take(p->rec, to))
        return false;
    if (to >= sh->shared->n_shards) {
        if (handover_lend(s, (enum generation)(to - sh->shared->n_shards)))
            return true;
        demand_add(p->rec, to, 1);
        if (s->stream->kind == STREAM_TCP || s->stream->kind == STREAM_UNIX)
            return false; /* in a moment */
        server_close(s, "idle here, wanted by a process that it cannot move "
                        "to");
        return true;
    }
    if (stream_detach(s->stream)) {
        /* Its place is given up instead, and the asker opens its own. */
        demand_add(p->rec, to, 1);
        server_close(s, "idle here, wanted by a worker that it cannot move to");
        return true;
    }
    server_set_state(s, SERVER_CLOSED); /* out of this pool's lists */
    pool_publish(p);
    s->pool = NULL;
    sh->n_lent++;
    post(sh->shared->shard[to], (struct lend_message){.kind = LEND_SERVER,
                                                      .from = sh->index,
                                                      .rec = p->rec,
                                                      .server = s});
    return true;
}

bool lend_if_wanted(struct server *s)
{
    struct pool *p = s->pool;
    int64_t since;
    if ((p->shard->shared->n_shards == 1 &&
         !handover_is_on(p->shard->shared)) ||
        atomic_load(&p->rec->demand) <= p->n_waiting || s->is_replication)
        return false;
    int to = longest_waiting(p, &since);
    if (to < 0)
        return false;
    int64_t own = own_oldest(p);
    if (!pool_can_lend(p))
        return is_worth_closing(p, since) && move_server(s, to);
    if (own != INT64_MAX && own - since <= tolerance(p, own))
        return false;
    return move_server(s, to);
}

bool lend_ask(struct pool *p)
{
    struct shared *shared = p->shard->shared;
    bool asked = false;
    for (int i = 0; i < shared->n_shards; i++) {
        if (i == p->shard->index || atomic_load(&p->rec->slot[i].idle) <= 0)
            continue;
        post(shared->shard[i], (struct lend_message){.kind = LEND_ASK,
                                                     .from = p->shard->index,
                                                     .rec = p->rec});
        asked = true;
    }
    return asked;
}

/* Nothing was left when the question arrived: whoever asked looks again, so
 * that it opens a server if it may. */
static void answer_ask(struct shard *sh, const struct lend_message *m)
{
    struct pool *p = m->rec->pool[sh->index];
    bool lent = false;
    if (p && !pool_can_lend(p) && !pool_has_room(p)) {
        pool_dispatch_later(p); /* and each tick: lend_if_wanted() decides */
        return;
    }
    while (p && p->n_servers[SERVER_IDLE] > 0 && !pool_is_paused(p)) {
        struct server *s = list_entry(list_last(&p->servers[SERVER_IDLE]),
                                      struct server, node);
        if (s->is_replication || !move_server(s, m->from))
            break;
        lent = true;
    }
    if (!lent)
        post(sh->shared->shard[m->from],
             (struct lend_message){
                 .kind = LEND_WAKE, .from = sh->index, .rec = m->rec});
}

static void receive_server(struct shard *sh, const struct lend_message *m)
{
    struct server *s = m->server;
    struct pool *p = pool_get(sh, m->rec->db, m->rec->user);
    sh->n_borrowed++;
    s->pool = p;
    s->state = SERVER_STATES; /* none yet */
    list_init(&s->node);
    stream_attach(s->stream, sh->loop);
    server_set_state(s, SERVER_IDLE);
    demand_add(p->rec, sh->index, 1); /* what the sender had taken */
    pool_publish(p);
    pool_dispatch(p);
}

static void wake(struct shard *sh, const struct lend_message *m)
{
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        if (m->rec && p->rec != m->rec)
            continue;
        if (atomic_load(&p->rec->welcome))
            list_for_safe(w, &p->login_waiting)
                client_login_welcome(list_entry(w, struct client, node_pool));
        if (p->n_waiting || p->n_login_waiting)
            pool_dispatch_later(p);
    }
}

void lend_wake_all(struct shard *sh)
{
    for (int i = 0; i < sh->shared->n_shards; i++)
        if (i != sh->index)
            post(sh->shared->shard[i],
                 (struct lend_message){.kind = LEND_WAKE, .from = sh->index});
}

/* ---------------------------------------------------------------- eviction */

/* The idle server of another pool that counts against the same limit and has
 * been idle longest, on this worker. */
static struct server *oldest_idle(struct shard *sh, struct pool_rec *rec,
                                  enum budget_verdict why)
{
    struct server *oldest = NULL;
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        bool counts = why == BUDGET_DB_FULL ? p->rec->db == rec->db
                                            : p->rec->user == rec->user;
        if (p->rec == rec || !counts || p->n_waiting)
            continue;
        static const enum server_state states[] = {SERVER_IDLE, SERVER_USED};
        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
            list_for(k, &p->servers[states[i]])
            {
                struct server *s = list_entry(k, struct server, node);
                if (!oldest || s->request_us < oldest->request_us)
                    oldest = s;
            }
    }
    return oldest;
}

bool lend_evict_here(struct shard *sh, struct pool_rec *rec,
                     enum budget_verdict why)
{
    struct server *s = oldest_idle(sh, rec, why);
    if (!s)
        return false;
    server_close(s, "evicted");
    return true;
}

static void pass_evict(struct shard *sh, const struct lend_message *m)
{
    int next = (sh->index + 1) % sh->shared->n_shards;
    if (m->hops <= 1 || next == m->from)
        return;
    struct lend_message on = *m;
    on.hops--;
    post(sh->shared->shard[next], on);
}

bool lend_evict(struct pool *p, enum budget_verdict why)
{
    struct shard *sh = p->shard;
    if (lend_evict_here(sh, p->rec, why))
        return true;
    int64_t now = shard_now(sh);
    if (sh->shared->n_shards == 1 || now - p->evict_asked_us < 50000)
        return false;
    p->evict_asked_us = now;
    pass_evict(sh, &(struct lend_message){.kind = LEND_EVICT,
                                          .from = sh->index,
                                          .hops = sh->shared->n_shards,
                                          .rec = p->rec,
                                          .why = why});
    return false;
}

/* Closing wakes all who wait, the asker among them. */
static void answer_evict(struct shard *sh, const struct lend_message *m)
{
    if (!lend_evict_here(sh, m->rec, m->why))
        pass_evict(sh, m);
}

static void handle(struct message *message, void *loop_data)
{
    struct lend_message *m = container_of(message, struct lend_message, m);
    switch (m->kind) {
    case LEND_ASK:
        answer_ask(m->to, m);
        break;
    case LEND_SERVER:
        receive_server(m->to, m);
        break;
    case LEND_WAKE:
        wake(m->to, m);
        break;
    case LEND_EVICT:
        answer_evict(m->to, m);
        break;
    }
    free(m);
}
