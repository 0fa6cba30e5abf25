/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What must hold. A round is over when each worker has handled its messages and
 * tasks once: so a message delay is a round. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

enum {
    /* The question, the server, and the look at who waits. */
    ROUNDS_MAX = 4,
    TOLERANCE_US = 20 * 1000, /* at most, as in lend.c */
    TICKS_US = 200 * 1000,    /* until who waits looks again */
    OVERTAKEN_MAX = 20,
    OVERTAKEN_BY_OTHERS_MAX = 20,
};

/* ------------------------------------------------------------------ budget */

/* The widest that any worker has had. */
static struct budget_limits limits_of(const struct pool_rec *r)
{
    struct budget_limits max = {0};
    struct slice db = slice_str(r->db->name), user = slice_str(r->user->name);
    for (int i = 0; i < w.n_confs; i++) {
        const struct conf *c = w.conf[i];
        if (!w.conf_may[i])
            continue;
        const struct conf_db *cdb = conf_find_db(c, db);
        const struct conf_user *cuser = conf_find_user(c, user);
        int size = conf_pool_size(c, cdb, cuser) +
                   conf_reserve_pool_size(c, cdb, cuser);
        int max_db = conf_max_db_connections(c, cdb);
        int max_user = conf_max_user_connections(c, cuser);
        max.pool_size = MAX(max.pool_size, size);
        max.max_db = MAX(max.max_db, max_db ? max_db : INT32_MAX);
        max.max_user = MAX(max.max_user, max_user ? max_user : INT32_MAX);
    }
    return max;
}

/* By the connections themselves: what is open is counted, and only that. */
static void check_budget(void)
{
    int open = 0, counted = 0;
    list_for(n, &conns)
    {
        const struct stream *st = conn_stream(list_entry(n, struct conn, node));
        open += st && st->handler == &server_handler;
    }
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        struct budget_limits l = limits_of(r);
        counted += r->n_servers;
        if (r->n_servers > l.pool_size)
            sim_fail("pool %s/%s of %d has %d servers", r->db->name,
                     r->user->name, l.pool_size, r->n_servers);
        if (r->db->n_servers > l.max_db)
            sim_fail("max_db_connections %d: %d", l.max_db, r->db->n_servers);
        if (r->user->n_servers > l.max_user)
            sim_fail("max_user_connections %d: %d", l.max_user,
                     r->user->n_servers);
    }
    if (open != counted)
        sim_fail("%d servers are open, %d are counted", open, counted);
}

/* ---------------------------------------------------- waiters, idle servers */

static bool is_paused(const struct pool_rec *r)
{
    return w.shared->is_paused || r->db->is_paused;
}

static void look_at_client(struct peer_client *d)
{
    const struct stream *st = conn_stream(d->k);
    const struct client *c = st ? st->owner : NULL;
    if (!c || c->state != CLIENT_WAITING || is_paused(c->pool->rec)) {
        bool is_active = c && c->state == CLIENT_ACTIVE;
        if (is_active && !d->was_active)
            check_assigned(d);
        d->was_active = is_active;
        d->seen_wait_us = 0;
        d->overtaken = d->overtaken_by_others = 0;
        return;
    }
    d->was_active = false;
    d->seen_rec = c->pool->rec;
    if (d->seen_wait_us == c->wait_us)
        return;
    d->seen_wait_us = c->wait_us;
    d->since_round = w.round;
    d->overtaken = d->overtaken_by_others = 0;
}

static void look_at_server(struct peer_server *s)
{
    const struct stream *st = conn_stream(s->k);
    const struct server *k =
        st && st->handler == &server_handler ? st->owner : NULL;
    bool is_idle = k && k->state == SERVER_IDLE && k->pool;
    if (!is_idle || is_paused(k->pool->rec))
        s->idle_round = 0;
    else if (!s->idle_round)
        s->idle_round = w.round;
}

/* A waiter and an idle server of one pool, both for so many rounds. */
static void check_pair(const struct peer_client *d)
{
    if (!d->seen_wait_us)
        return;
    list_for(n, &w.servers)
    {
        struct peer_server *s = list_entry(n, struct peer_server, node);
        if (!s->idle_round)
            continue;
        const struct server *k = conn_stream(s->k)->owner;
        if (k->pool->rec != d->seen_rec)
            continue;
        uint64_t rounds = w.round - MAX(d->since_round, s->idle_round);
        model_totals->most_rounds = MAX(model_totals->most_rounds, rounds);
        if (rounds > ROUNDS_MAX)
            sim_fail("client %d waits on shard %d while a server of its pool "
                     "is idle on shard %d, since %llu rounds",
                     d->mark,
                     ((struct client *)conn_stream(d->k)->owner)->shard->index,
                     k->pool->shard->index, (unsigned long long)rounds);
    }
}

/* ------------------------------------------------------------------ justice */

static bool share_a_limit(const struct pool_rec *a, const struct pool_rec *b)
{
    struct budget_limits l = limits_of(a);
    return (a->db == b->db && l.max_db < INT32_MAX) ||
           (a->user == b->user && l.max_user < INT32_MAX);
}

/* It has no server, though it could have one. */
static bool is_kept_out(const struct pool_rec *r)
{
    return r->n_servers == 0 &&
           !atomic_load((_Atomic int64_t *)(uintptr_t)&r->failed_us);
}

/* d got a server: who has waited longer? */
void check_assigned(struct peer_client *d)
{
    const struct client *c = conn_stream(d->k)->owner;
    struct pool_rec *rec = c->pool->rec;
    int64_t since = d->seen_wait_us ? d->seen_wait_us : sim_now_us;
    list_for(n, &w.clients)
    {
        struct peer_client *e = list_entry(n, struct peer_client, node);
        if (e == d || !e->seen_wait_us)
            continue;
        if (e->seen_rec == rec && e->seen_wait_us + TOLERANCE_US < since)
            e->overtaken++;
        else if (e->seen_rec != rec && share_a_limit(e->seen_rec, rec) &&
                 is_kept_out(e->seen_rec) &&
                 e->seen_wait_us + CLAIM_WAIT_US + TICKS_US < since)
            e->overtaken_by_others++;
        model_totals->most_overtaken =
            MAX(model_totals->most_overtaken, e->overtaken);
        model_totals->most_overtaken_by_others =
            MAX(model_totals->most_overtaken_by_others, e->overtaken_by_others);
        if (e->overtaken > OVERTAKEN_MAX)
            sim_fail("client %d starves: %u who came later were served",
                     e->mark, e->overtaken);
        if (e->overtaken_by_others > OVERTAKEN_BY_OTHERS_MAX)
            sim_fail("client %d starves: %u of other pools who came later "
                     "were served",
                     e->mark, e->overtaken_by_others);
    }
}

void check_step(void)
{
    check_budget();
    list_for(n, &w.clients)
        look_at_client(list_entry(n, struct peer_client, node));
    list_for(m, &w.servers)
        look_at_server(list_entry(m, struct peer_server, node));
    list_for(k, &w.clients) check_pair(list_entry(k, struct peer_client, node));
}

/* ------------------------------------------------------------ when all rests
 */

struct sums {
    int servers, idle, coming, waiting;
};

static struct sums sums_of(const struct pool_rec *r)
{
    struct sums x = {0};
    for (int i = 0; i < w.n_shards; i++) {
        const struct pool *p = r->pool[i];
        if (!p)
            continue;
        x.servers += pool_count_servers(p);
        x.idle += p->n_servers[SERVER_IDLE];
        x.coming += p->n_servers[SERVER_LOGIN] + p->n_servers[SERVER_TESTED];
        x.waiting += p->n_waiting;
    }
    return x;
}

/* The claim of a pool that cannot use it ends by itself; who stood back looks
 * again at the next tick. */
static bool is_claimed(const struct limit_claim *c, const struct pool_rec *r)
{
    return c->since_us && c->pool != r &&
           sim_now_us - c->seen_us < CLAIM_TTL_US + TICKS_US;
}

static bool may_open(struct pool_rec *r)
{
    const struct conf *c = w.conf[w.conf_at];
    const struct conf_db *cdb = conf_find_db(c, slice_str(r->db->name));
    const struct conf_user *cuser = conf_find_user(c, slice_str(r->user->name));
    int max_db = conf_max_db_connections(c, cdb);
    int max_user = conf_max_user_connections(c, cuser);
    return r->n_servers < conf_pool_size(c, cdb, cuser) &&
           !atomic_load(&r->failed_us) && !is_claimed(&r->db->claim, r) &&
           !is_claimed(&r->user->claim, r) &&
           (!max_db || r->db->n_servers < max_db) &&
           (!max_user || r->user->n_servers < max_user);
}

static void check_demand(const struct pool_rec *r)
{
    int demand = 0;
    for (int i = 0; i < w.n_shards; i++) {
        int mine = r->pool[i] ? r->pool[i]->n_waiting : 0;
        if (r->slot[i].demand != mine)
            sim_fail("shard %d: demand %d, %d wait", i, r->slot[i].demand,
                     mine);
        demand += mine;
    }
    if (demand != r->demand)
        sim_fail("demand %d is not the sum %d", r->demand, demand);
}

/* All messages have come: those who were on their way as well. */
static void check_killed(void)
{
    list_for(n, &w.clients)
    {
        struct peer_client *d = list_entry(n, struct peer_client, node);
        if (d->killed_by && d->killed_by <= w.kills_done && conn_stream(d->k))
            sim_fail("client %d outlives a KILL of its database", d->mark);
    }
}

void check_settled(void)
{
    check_killed();
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        struct sums x = sums_of(r);
        if (x.servers != r->n_servers)
            sim_fail("%d servers, %d counted", x.servers, r->n_servers);
        check_demand(r);
        if (is_paused(r) || !x.waiting)
            continue;
        if (x.idle)
            sim_fail("%d wait while %d servers are idle", x.waiting, x.idle);
        if (!x.coming && may_open(r))
            sim_fail("%d wait in %s/%s with %d servers, none is on its way, "
                     "and one may be opened",
                     x.waiting, r->db->name, r->user->name, r->n_servers);
    }
}

void describe(void)
{
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        fprintf(stderr,
                "%s/%s: %d servers, demand %d, db %d, user %d:", r->db->name,
                r->user->name, r->n_servers, r->demand, r->db->n_servers,
                r->user->n_servers);
        for (int i = 0; i < w.n_shards; i++) {
            const struct pool *p = r->pool[i];
            if (p)
                fprintf(stderr,
                        " [%d] waiting %d active %d idle %d login %d tested "
                        "%d canceled %d",
                        i, p->n_waiting, p->n_servers[SERVER_ACTIVE],
                        p->n_servers[SERVER_IDLE], p->n_servers[SERVER_LOGIN],
                        p->n_servers[SERVER_TESTED],
                        p->n_servers[SERVER_CANCELED]);
        }
        fputc('\n', stderr);
    }
}
