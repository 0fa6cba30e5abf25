/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Clients move between workers, so that what the kernel's hash made of their
 * ports does not pin the load. Once a second each worker publishes how much of
 * a processor its thread used and looks at the others (balance_plan()). Clients
 * that have been active lately are marked, and each moves when it is next
 * without a server and has nothing outstanding: with its socket, settings and
 * statements, which are the process's or its own. Its key is taken out of this
 * worker's table and put into the other's; a cancel request that finds nobody
 * goes round the workers once more if anybody has moved meanwhile.
 *
 * A client that is being moved belongs to the message. Only plain sockets move:
 * TLS and QUIC streams stay where they are. */
#include "pool/balance.h"

#include <stdlib.h>

#include "pg/pg_startup.h"
#include "pool/impl.h"

enum {
    SECOND_US = 1000000,
    FULL = 1000, /* a whole processor */
};

/* ------------------------------------------------------------------ policy */

static struct balance_plan spread(const int *load, int n, int self, int busy)
{
    struct balance_plan plan = {.to = -1};
    int least = INT32_MAX;
    for (int i = 0; i < n; i++)
        if (i != self && load[i] < least) {
            least = load[i];
            plan.to = i;
        }
    if (plan.to >= 0 && load[self] - least < busy / 2)
        plan.to = -1;
    plan.give = plan.to < 0 ? 0 : (load[self] - least) / 4;
    return plan;
}

static struct balance_plan gather(const int *load, int self, int busy)
{
    for (int i = 0; i < self; i++)
        if (load[i] + load[self] <= busy * 2 / 3)
            return (struct balance_plan){.to = i, .give = load[self]};
    return (struct balance_plan){.to = -1};
}

struct balance_plan balance_plan(const int *load, int n, int self, int busy)
{
    if (load[self] >= busy)
        return spread(load, n, self, busy);
    if (load[self] <= busy / 3)
        return gather(load, self, busy);
    return (struct balance_plan){.to = -1};
}

/* ------------------------------------------------------------------ moving */

struct move {
    struct message m;
    struct shard *to;
    struct client *client;
    struct pool_rec *rec;
};

static bool is_movable(const struct client *c)
{
    return (c->stream->kind == STREAM_TCP || c->stream->kind == STREAM_UNIX) &&
           c->replication == PG_REPLICATION_OFF && c->pool && !c->login &&
           c->pool->mode != CONF_POOL_SESSION;
}

static bool is_at_boundary(const struct client *c)
{
    return c->state == CLIENT_IDLE && !c->in.n && !c->body_left &&
           !c->is_stalled && !c->is_skipping && !c->wants_close &&
           !list_is_linked(&c->node_pool);
}

static void arrive(struct message *message, void *loop_data)
{
    struct move *m = container_of(message, struct move, m);
    struct client *c = m->client;
    struct shard *sh = m->to;
    client_enter(c, sh);
    c->pool = pool_get(sh, m->rec->db, m->rec->user);
    c->pool->n_clients++;
    sh->n_moved_in++;
    stream_attach(c->stream, sh->loop);
    cancel_register(c);
    free(m);
    if (sh->is_draining)
        client_close(c, "57P01", "server shutting down");
    else if (kill_meets(c))
        client_close(c, "08P01", "admin forced disconnect");
    else
        client_update_flow(c);
}

/* False: it stays. */
static bool move(struct client *c, int to)
{
    struct shard *sh = c->shard;
    struct shard *other = sh->shared->shard[to];
    struct loop *loop = shard_loop_now(other);
    if (!loop || stream_detach(c->stream))
        return false;
    struct move *m = mem_new(sizeof *m);
    m->m.handle = arrive;
    m->to = other;
    m->client = c;
    m->rec = c->pool->rec;
    cancel_unregister(c);
    client_leave(c);
    c->pool->n_clients--;
    c->pool = NULL;
    sh->n_moved_out++;
    atomic_store(&sh->shared->last_move_us, shard_now(sh));
    mailbox_send(loop, &m->m);
    return true;
}

/* -------------------------------------------------------------- who moves */

void balance_forget(struct client *c)
{
    struct balance *b = &c->shard->balance;
    c->is_chosen = false;
    for (int i = 0; i < b->n_chosen; i++)
        if (b->chosen[i] == c) {
            b->chosen[i] = b->chosen[--b->n_chosen];
            return;
        }
}

void balance_forget_all(struct shard *sh)
{
    struct balance *b = &sh->balance;
    for (int i = 0; i < b->n_chosen; i++)
        b->chosen[i]->is_chosen = false;
    b->n_chosen = 0;
}

/* Moves those of the chosen that can go now. A task, since a stream is not
 * detached from inside its callbacks. */
static void run_moves(struct task *t)
{
    struct balance *b = container_of(t, struct balance, task);
    struct shard *sh = container_of(b, struct shard, balance);
    if (sh->is_leaving) {
        handover_run(sh);
        return;
    }
    bool may = !sh->is_draining && !sh->is_suspended &&
               !atomic_load(&sh->shared->is_shutting_down);
    for (int i = b->n_chosen - 1; i >= 0 && may; i--) {
        struct client *c = b->chosen[i];
        if (!is_at_boundary(c))
            continue;
        balance_forget(c);
        (void)move(c, b->to); /* or it stays until the next choice */
    }
}

void balance_client_idle(struct client *c)
{
    c->shard->has_ready_client = true;
    loop_defer(c->shard->loop, &c->shard->balance.task);
}

static bool was_active(const struct client *c, int64_t now)
{
    return (c->state == CLIENT_IDLE || c->state == CLIENT_ACTIVE ||
            c->state == CLIENT_WAITING) &&
           now - c->request_us < SECOND_US && is_movable(c);
}

/* Marks as many of the active clients as make up the plan's part of our load.
 */
static void choose(struct shard *sh, const struct balance_plan *plan, int own)
{
    struct balance *b = &sh->balance;
    int64_t now = shard_now(sh);
    int n_active = 0, want, busy = sh->conf->worker_balance_at * FULL / 100;
    list_for(n, &sh->clients) n_active +=
        was_active(list_entry(n, struct client, node_all), now);
    want = (int)((int64_t)n_active * plan->give / MAX(own, 1));
    if (own >= busy)
        want = MIN(want, n_active / 2); /* a single one only moves the load */
    want = MIN(want, (int)BALANCE_MOVES_MAX);
    b->to = plan->to;
    for (struct list *n = sh->clients.next; n != &sh->clients && want > 0;
         n = n->next) {
        struct client *c = list_entry(n, struct client, node_all);
        if (!was_active(c, now))
            continue;
        c->is_chosen = true;
        b->chosen[b->n_chosen++] = c;
        want--;
    }
    if (b->n_chosen)
        loop_defer(sh->loop, &b->task);
}

/* ----------------------------------------------------------- once a second */

/* What was promised to us shows in our own figures after a while. */
static int measure(struct shard *sh)
{
    struct balance *b = &sh->balance;
    struct worker_load *w = &sh->shared->load[sh->index];
    int64_t cpu = b->cpu_clock(), now = shard_now(sh);
    int64_t wall = MAX(now - b->wall_us, (int64_t)1);
    int64_t used = (cpu - b->cpu_us) * FULL / wall;
    int load = atomic_load_explicit(&w->used, memory_order_relaxed);
    b->cpu_us = cpu;
    b->wall_us = now;
    load = (load + (int)MIN(used, (int64_t)FULL)) / 2;
    atomic_store_explicit(&w->used, load, memory_order_relaxed);
    int promised = atomic_load(&w->promised);
    atomic_fetch_sub(&w->promised, promised - promised / 2);
    return load;
}

static int load_of(const struct shared *s, int i)
{
    const struct worker_load *w = &s->load[i];
    return atomic_load_explicit(&w->used, memory_order_relaxed) +
           atomic_load_explicit(&w->promised, memory_order_relaxed);
}

/* Others may have had the same idea in this moment: the first ones do it. */
static bool promise(struct shared *s, const struct balance_plan *plan,
                    int limit)
{
    struct worker_load *w = &s->load[plan->to];
    int before = atomic_fetch_add(&w->promised, plan->give);
    if (atomic_load(&w->used) + before + plan->give <= limit)
        return true;
    atomic_fetch_sub(&w->promised, plan->give);
    return false;
}

void balance_tick(struct shard *sh)
{
    struct balance *b = &sh->balance;
    struct shared *s = sh->shared;
    int load[SHARDS_MAX], busy = sh->conf->worker_balance_at * FULL / 100;
    if (!b->cpu_clock)
        return;
    if (!sh->is_leaving)
        balance_forget_all(sh);
    int own = measure(sh);
    if (s->n_shards == 1 || !sh->conf->worker_balance || sh->is_draining ||
        sh->is_leaving)
        return;
    for (int i = 0; i < s->n_shards; i++)
        load[i] = load_of(s, i);
    load[sh->index] = own;
    struct balance_plan plan = balance_plan(load, s->n_shards, sh->index, busy);
    int limit = own >= busy ? own - plan.give : busy;
    if (plan.to >= 0 && plan.give > 0 && promise(s, &plan, limit))
        choose(sh, &plan, own);
}

void balance_start(struct shard *sh)
{
    struct balance *b = &sh->balance;
    b->task.run = run_moves;
    list_init(&b->task.node);
    b->wall_us = shard_now(sh);
    if (b->cpu_clock)
        b->cpu_us = b->cpu_clock();
}

void balance_stop(struct shard *sh)
{
    balance_forget_all(sh);
    loop_cancel(&sh->balance.task);
}

void shard_set_cpu_clock(struct shard *sh, int64_t (*cpu_clock)(void))
{
    sh->balance.cpu_clock = cpu_clock;
}
