/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Runs worlds: a few shards, made-up clients and servers, random schedules.
 * What must hold, besides what driver.c (replies) and backend.c (transactions,
 * unnamed statements) look at:
 *   - no budget is exceeded, and all of it is given back at the end
 *   - nobody waits while a server of its pool is idle, or while one may be
 *     opened and none is on its way, once all messages are handled
 *   - demand counters are what is waiting
 *   - a cancel reaches only the client that asked for it
 *   - everybody is served in the end, nothing is left in memory */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "pool/impl.h"

enum {
    SHARDS_HERE = 3,
    DBS_HERE = 3,
    SETTLE_ROUNDS = 2000,
    PATIENCE_STEPS = 200000, /* ten times that where sessions are waited for */
    DRAIN_STEPS = 1000000,
};

/* A backend and its connection. */
struct listener_side {
    struct list node;
    struct conn *k;
    struct backend b;
    bool was_cut; /* by chance: killed */
    uint32_t cancel_delay;
    int cancel_target; /* mark of the client whose CancelRequest led to it */
};

/* A CancelRequest of a client. */
struct request {
    struct list node;
    struct conn *k;
    int mark;
};

static struct {
    struct shared *shared;
    int n_shards, n_dbs;
    struct shard *shard[SHARDS_HERE];
    struct loop *loop[SHARDS_HERE];
    struct list backends, drivers, requests;
    int n_drivers, last_mark, max_clients;
    int pool_size, max_db, max_user, reserve, max_prepared;
    enum conf_pool_mode mode;
    unsigned kill_rate;        /* in 100000 */
    unsigned chaos, canceling; /* percent of the clients */
    uint64_t step;
    uint64_t n_messages, n_clients, n_kills, n_cancels, n_hits, n_lent;
} w;

/* Over all runs, which are processes of their own: shared with them. */
static struct totals {
    uint64_t runs, messages, clients, kills, cancels, hits, lent;
} * totals;

/* ------------------------------------------------------------- configuration
 */

static struct conf *make_conf(void)
{
    char path[] = "/tmp/pgbraid-sim-XXXXXX";
    static const char *const modes[] = {"transaction", "session", "statement"};
    struct conf *conf;
    struct err e;
    int fd = mkstemp(path);
    must(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fprintf(f, "[databases]\n");
    for (int i = 0; i < w.n_dbs; i++)
        fprintf(f, "d%d = host=/sim port=5432 user=%s\n", i,
                i < 2 ? "u0" : "u1");
    fprintf(f, "[pgbouncer]\nlisten_port=6432\nauth_type=any\n");
    uint32_t dice = rnd(100);
    w.mode = dice < 80   ? CONF_POOL_TRANSACTION
             : dice < 90 ? CONF_POOL_SESSION
                         : CONF_POOL_STATEMENT;
    fprintf(f, "pool_mode=%s\n",
            modes[w.mode == CONF_POOL_TRANSACTION ? 0
                  : w.mode == CONF_POOL_SESSION   ? 1
                                                  : 2]);
    w.pool_size = 1 + (int)rnd(3);
    w.max_prepared = chance(70) ? 1 + (int)rnd(3) : 100;
    w.reserve = chance(20) ? 1 : 0;
    w.max_db = chance(20) ? 1 + (int)rnd(3) : 0;
    w.max_user = chance(20) ? 1 + (int)rnd(3) : 0;
    fprintf(f, "default_pool_size=%d\nmax_prepared_statements=%d\n",
            w.pool_size, w.max_prepared);
    fprintf(f, "reserve_pool_size=%d\nreserve_pool_timeout=1\n", w.reserve);
    fprintf(f, "max_db_connections=%d\nmax_user_connections=%d\n", w.max_db,
            w.max_user);
    fprintf(f, "min_pool_size=%d\n", chance(20) ? 1 : 0);
    fprintf(f, "query_wait_timeout=0\nquery_wait_notify=0\n");
    fprintf(f, "client_login_timeout=0\nserver_login_retry=1\n");
    fprintf(f, "server_connect_timeout=%d\n", 15);
    fprintf(f, "server_lifetime=%d\n", chance(30) ? 1 : 3600);
    fprintf(f, "server_idle_timeout=%d\n", chance(30) ? 1 : 600);
    fprintf(f, "server_check_delay=%d\n", chance(30) ? 0 : 30);
    if (chance(30))
        fprintf(f, "server_check_query=select 1\n");
    if (w.mode != CONF_POOL_SESSION && chance(20))
        fprintf(f, "server_reset_query_always=1\n");
    fprintf(f, "server_reset_query=DISCARD ALL\n");
    fprintf(f, "server_round_robin=%d\n", chance(50));
    fprintf(f, "log_connections=0\nlog_disconnections=%d\n", sim_verbose);
    fprintf(f, "log_pooler_errors=%d\n", sim_verbose);
    fprintf(f, "max_client_conn=10000\n");
    fclose(f);
    if (conf_load(path, &conf, &e))
        sim_fail("configuration: %s", e.text);
    unlink(path);
    return conf;
}

/* ------------------------------------------------------------------- backends
 */

static void on_connect(struct conn *k)
{
    struct listener_side *s = mem_new(sizeof *s);
    s->k = k;
    backend_init(&s->b, true);
    s->b.checks = true;
    s->b.flushes_early = chance(30);
    list_init(&s->node);
    list_push_back(&w.backends, &s->node);
    if (w.kill_rate && chance(2))
        k->refused = true;
}

static void backend_end(struct listener_side *s)
{
    conn_release(s->k);
    list_remove(&s->node);
    backend_free(&s->b);
    free(s);
}

static bool is_wanted(int mark)
{
    list_for(n, &w.requests) if (list_entry(n, struct request, node)->mark ==
                                 mark) return true;
    return false;
}

/* Gone, perhaps without Terminate: the pooler cancels what it left behind. */
static bool has_left(int mark)
{
    list_for(n, &w.drivers)
    {
        const struct driver *d = list_entry(n, struct driver, node);
        if (d->mark == mark && !d->is_done)
            return false;
    }
    return true;
}

/* The signal arrives; PostgreSQL closes the connection afterwards. */
static void deliver_cancel(struct listener_side *s)
{
    if (s->cancel_delay-- > 0)
        return;
    list_for(n, &w.backends)
    {
        struct listener_side *to = list_entry(n, struct listener_side, node);
        if (to->b.is_cancel || to->b.pid != s->b.pid || to == s)
            continue;
        /* What a client that left was running is canceled as well. */
        if (to->b.owner && !conn_is_closed(to->k) && !is_wanted(to->b.owner) &&
            !has_left(to->b.owner))
            sim_fail("a cancel reached client %d, which did not ask for it",
                     to->b.owner);
        w.n_hits += to->b.is_sleeping;
        backend_wake(&to->b, true);
    }
    backend_end(s);
}

static void kill_backend(struct listener_side *s)
{
    w.n_kills++;
    if (chance(50)) {
        s->k->peer_reset = true;
    } else {
        /* What it said may be cut off anywhere. */
        size_t keep = rnd((uint32_t)s->k->in.n + 1);
        s->k->in.n = keep;
    }
    backend_end(s);
}

static void backend_step(struct listener_side *s)
{
    struct conn *k = s->k;
    if (s->b.is_cancel) {
        deliver_cancel(s);
        return;
    }
    if (w.kill_rate && rnd(100000) < w.kill_rate) {
        kill_backend(s);
        return;
    }
    size_t n = k->wire.n;
    if (n && chance(60)) {
        if (chance(50))
            n = 1 + rnd((uint32_t)MIN(n, (size_t)3000));
        char *copy = mem_new(n);
        memcpy(copy, k->wire.p, n);
        bytes_drop(&k->wire, n);
        backend_feed(&s->b, copy, n);
        free(copy);
    }
    if (s->b.is_sleeping && chance(2))
        backend_wake(&s->b, false);
    if (s->b.is_cancel) {
        s->cancel_delay = rnd(60);
        return;
    }
    if (s->b.out.n) {
        conn_send(k, s->b.out.p, s->b.out.n);
        s->b.out.n = 0;
    }
    if (s->b.is_ended || (conn_is_closed(k) && !k->wire.n))
        backend_end(s);
}

/* -------------------------------------------------------------------- clients
 */

static void add_driver(void)
{
    struct conn *k = conn_accept();
    struct addr peer;
    char db[16];
    struct driver_rules rules = {
        .has_transactions = w.mode != CONF_POOL_STATEMENT,
        .has_statements = true,
        .may_be_cut = w.kill_rate > 0,
    };
    enum driver_kind kind = chance(w.chaos)       ? DRIVER_CHAOS
                            : chance(w.canceling) ? DRIVER_CANCEL
                                                  : DRIVER_STRICT;
    must(addr_parse_ip(slice_str("10.0.0.1"), 5000, &peer));
    snprintf(db, sizeof db, "d%u", rnd((uint32_t)w.n_dbs));
    struct driver *d = driver_new(kind, ++w.last_mark, db, &rules, k);
    d->progress_step = w.step;
    list_init(&d->node);
    list_push_back(&w.drivers, &d->node);
    w.n_drivers++;
    w.n_clients++;
    int i = (int)rnd((uint32_t)w.n_shards);
    sim_loop_tick(w.loop[i]);
    shard_accept(w.shard[i], k->fd, &peer);
}

static void send_cancel(struct driver *d)
{
    struct request *r = mem_new(sizeof *r);
    struct addr peer;
    struct bytes b = {0};
    char head[8];
    r->k = conn_accept();
    r->mark = d->mark;
    list_init(&r->node);
    list_push_back(&w.requests, &r->node);
    pg_set_u32(head, 16);
    pg_set_u32(head + 4, PG_CANCEL_REQUEST_CODE);
    bytes_add(&b, head, 8);
    bytes_add(&b, d->key, 8);
    must(addr_parse_ip(slice_str("10.0.0.1"), 5000, &peer));
    shard_accept(w.shard[rnd((uint32_t)w.n_shards)], r->k->fd, &peer);
    conn_send(r->k, b.p, b.n);
    bytes_free(&b);
    w.n_cancels++;
}

static const struct listener_side *side_of(const struct server *s)
{
    list_for(n, &w.backends)
    {
        const struct listener_side *l =
            list_entry(n, struct listener_side, node);
        if (l->b.pid == s->pid && !l->b.is_cancel)
            return l;
    }
    return NULL;
}

static void describe_client(const struct driver *d)
{
    const struct stream *st = d->k ? conn_stream(d->k) : NULL;
    if (!st) {
        fprintf(stderr, "gone\n");
        return;
    }
    const struct client *c = st->owner;
    fprintf(
        stderr,
        "client: shard %d, waits %lld us, state %d, stalled %d, holds %u, "
        "pending %zu, paused %d, "
        "waits to be delivered %zu\n",
        c->shard->index,
        (long long)(c->state == CLIENT_WAITING ? sim_now_us - c->wait_us : 0),
        c->state, c->is_stalled, c->in.n, st->pending, st->is_paused,
        d->k->in.n);
    const struct server *s = c->server;
    if (!s)
        return;
    const struct track_entry *e = pg_track_front(&s->track);
    fprintf(stderr,
            "server: state %d, job %d, tx %c, track %u (front kind %d flags "
            "%d), barriers %u, skipping %d, copy %d, unsynced %d, unflushed "
            "%d, unnamed of %llu seq %u/%u sure %d epoch %u/%u\n",
            s->state, s->job, s->track.tx, s->track.count, e ? e->kind : -1,
            e ? e->flags : 0, s->track.n_barriers, s->track.is_skipping,
            s->track.in_copy_in, s->track.has_unsynced, s->has_unflushed,
            (unsigned long long)s->unnamed_of, s->unnamed_seq, c->unnamed_seq,
            s->is_unnamed_sure, s->unnamed_epoch, s->track.epoch);
    const struct listener_side *l = side_of(s);
    if (l)
        fprintf(stderr,
                "backend: pending %zu, wire %zu, unread %zu, for the pooler "
                "%zu, held %zu, paused %d, tiny %d/%d, sleeps %d, copy %d: "
                "%s\n",
                s->stream->pending, l->k->wire.n, l->b.in.n, l->k->in.n,
                l->b.held.n, s->stream->is_paused, l->k->tiny, d->k->tiny,
                l->b.is_sleeping, l->b.in_copy, l->b.what);
}

static void describe_pools(void)
{
    fprintf(stderr, "pool_size %d, reserve %d, max_db %d, max_user %d\n",
            w.pool_size, w.reserve, w.max_db, w.max_user);
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        fprintf(stderr, "%s/%s: %d servers, demand %d;", r->db->name,
                r->user->name, r->n_servers, r->demand);
        for (int i = 0; i < w.n_shards; i++) {
            const struct pool *p = r->pool[i];
            if (p)
                fprintf(stderr,
                        " shard %d: waiting %d, active %d, idle %d, login %d, "
                        "used %d, tested %d, canceled %d;",
                        i, p->n_waiting, p->n_servers[SERVER_ACTIVE],
                        p->n_servers[SERVER_IDLE], p->n_servers[SERVER_LOGIN],
                        p->n_servers[SERVER_USED], p->n_servers[SERVER_TESTED],
                        p->n_servers[SERVER_CANCELED]);
        }
        fputc('\n', stderr);
    }
    list_for(n, &w.drivers)
    {
        const struct driver *d = list_entry(n, struct driver, node);
        fprintf(stderr,
                "client %d kind %d got %llu of %llu, to send %zu, "
                "batches %d, since %llu: ",
                d->mark, d->kind, (unsigned long long)d->n_got,
                (unsigned long long)d->direct.n_flushed, d->send.n,
                d->batches_left,
                (unsigned long long)(w.step - d->progress_step));
        describe_client(d);
    }
}

static void driver_end(struct driver *d)
{
    w.n_messages += d->n_messages;
    w.n_drivers--;
    list_remove(&d->node);
    driver_free(d);
}

static void drivers_step(void)
{
    list_for_safe(n, &w.drivers)
    {
        struct driver *d = list_entry(n, struct driver, node);
        driver_step(d, w.step);
        if (d->kind == DRIVER_CANCEL && d->is_in && !d->is_done &&
            d->n_asked > d->n_answered && chance(3))
            send_cancel(d);
        bool is_stuck = driver_is_stuck(
            d, w.step,
            PATIENCE_STEPS * (w.mode == CONF_POOL_SESSION ? 10u : 1u));
        if (is_stuck)
            describe_pools();
        if (is_stuck)
            sim_fail("client %d is stuck (kind %d, got %llu of %llu, "
                     "expects %zu bytes, asked %d answered %d): %s",
                     d->mark, d->kind, (unsigned long long)d->n_got,
                     (unsigned long long)d->direct.n_flushed, d->expected.n,
                     d->n_asked, d->n_answered, d->direct.what);
        if (d->is_done)
            driver_end(d);
    }
    list_for_safe(m, &w.requests)
    {
        struct request *r = list_entry(m, struct request, node);
        if (!conn_is_closed(r->k))
            continue;
        conn_release(r->k);
        list_remove(&r->node);
        free(r);
    }
}

/* ----------------------------------------------------------------- invariants
 */

struct sums {
    int servers, idle, coming, waiting;
};

static struct sums sums_of(const struct pool_rec *rec)
{
    struct sums x = {0};
    for (int i = 0; i < w.n_shards; i++) {
        const struct pool *p = rec->pool[i];
        if (!p)
            continue;
        x.servers += pool_count_servers(p);
        x.idle += p->n_servers[SERVER_IDLE] + p->n_servers[SERVER_USED];
        x.coming += p->n_servers[SERVER_LOGIN] + p->n_servers[SERVER_TESTED];
        x.waiting += p->n_waiting;
    }
    return x;
}

/* The pooler knows of all that is prepared there. (After an error it may
 * believe in more than there is, and closes that before it is used.) */
static void check_statements(const struct server *s)
{
    const struct listener_side *l = side_of(s);
    const struct backend *b = l ? &l->b : NULL;
    unsigned n = 0;
    if (!b || w.mode == CONF_POOL_SESSION)
        return;
    for (const struct backend_stmt *k = b->stmts; k; k = k->next)
        n += !strncmp(k->name, "PGBRAID_", 8);
    if (n > s->n_stmts)
        sim_fail("%u statements are on a server, the pooler knows %u: %s", n,
                 s->n_stmts, b->what);
    if (b->tx != 'I')
        sim_fail("an idle server is in a transaction");
    if (b->unnamed && b->unnamed->owner && !s->unnamed_of)
        sim_fail("an idle server has an unnamed statement that the pooler does "
                 "not know of: %s",
                 b->what);
}

static void check_server(const struct server *s)
{
    if (s->client && s->client->server != s)
        sim_fail("a link is not mutual");
    if (s->state != SERVER_IDLE && s->state != SERVER_USED)
        return;
    if (s->client || s->job || !pg_track_is_idle(&s->track) || s->in.n ||
        s->body_left || s->n_cancels)
        sim_fail("a server that is not clean is idle");
    check_statements(s);
}

/* Holds at any time. */
static void check_always(void)
{
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        if (w.pool_size + w.reserve < r->n_servers)
            sim_fail("pool of %d has %d servers", w.pool_size, r->n_servers);
        if (w.max_db && r->db->n_servers > w.max_db)
            sim_fail("max_db_connections %d: %d", w.max_db, r->db->n_servers);
        if (w.max_user && r->user->n_servers > w.max_user)
            sim_fail("max_user_connections %d: %d", w.max_user,
                     r->user->n_servers);
        for (int i = 0; i < w.n_shards; i++) {
            struct pool *p = r->pool[i];
            for (int k = 0; p && k < SERVER_CLOSED; k++)
                list_for(n, &p->servers[k])
                    check_server(list_entry(n, struct server, node));
        }
    }
}

static bool is_backing_off(const struct pool_rec *r)
{
    return atomic_load((_Atomic int64_t *)(uintptr_t)&r->failed_us) != 0;
}

/* The claim of a pool that cannot use it ends by itself; who stood back looks
 * again at the next tick. */
static bool is_claimed(const struct limit_claim *c, const struct pool_rec *r)
{
    enum { TICKS_US = 200 * 1000 };
    return c->since_us && c->pool != r &&
           sim_now_us - c->seen_us < CLAIM_TTL_US + TICKS_US;
}

static bool may_open(const struct pool_rec *r)
{
    return !is_claimed(&r->db->claim, r) && !is_claimed(&r->user->claim, r) &&
           r->n_servers < w.pool_size && !is_backing_off(r) &&
           (!w.max_db || r->db->n_servers < w.max_db) &&
           (!w.max_user || r->user->n_servers < w.max_user);
}

/* Once nothing is under way between the workers. */
static void settle(void)
{
    bool may_fail = sim_detach_may_fail, worked = true;
    sim_detach_may_fail = false;
    for (int k = 0; worked; k++) {
        worked = false;
        if (k == SETTLE_ROUNDS)
            sim_fail("the workers do not come to rest");
        for (int i = 0; i < w.n_shards; i++) {
            sim_loop_tick(w.loop[i]);
            worked = sim_loop_work(w.loop[i], false) || worked;
            sim_loop_end_turn(w.loop[i]);
        }
    }
    sim_detach_may_fail = may_fail;
}

static void check_settled(void)
{
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next) {
        struct sums x = sums_of(r);
        int demand = 0;
        if (x.servers != r->n_servers)
            sim_fail("%d servers, %d counted", x.servers, r->n_servers);
        for (int i = 0; i < w.n_shards; i++) {
            int mine = r->pool[i] ? r->pool[i]->n_waiting : 0;
            if (r->slot[i].demand != mine)
                sim_fail("shard %d: demand %d, %d wait", i, r->slot[i].demand,
                         mine);
            demand += r->slot[i].demand;
        }
        if (demand != r->demand)
            sim_fail("demand %d is not the sum %d", r->demand, demand);
        if (x.waiting && (x.idle || (!x.coming && may_open(r))))
            describe_pools();
        if (x.waiting && x.idle)
            sim_fail("%d wait while %d servers are idle", x.waiting, x.idle);
        if (x.waiting && !x.coming && may_open(r))
            sim_fail("%d wait, %d of %d servers, none is on its way", x.waiting,
                     r->n_servers, w.pool_size);
    }
}

/* ------------------------------------------------------------------ the world
 */

static void world_new(void)
{
    memset(&w, 0, sizeof w);
    list_init(&w.backends);
    list_init(&w.drivers);
    list_init(&w.requests);
    conn_on_connect = on_connect;
    w.n_shards = chance(40) ? 1 : 2 + (int)rnd(2);
    w.n_dbs = 1 + (int)rnd(DBS_HERE);
    w.max_clients = 1 + (int)rnd(12);
    w.kill_rate = chance(30) ? 20 : 0;
    w.chaos = chance(40) ? 30 : 0;
    w.canceling = chance(30) ? 40 : 0;
    sim_detach_may_fail = chance(30);
    sim_writes_may_fail = w.kill_rate > 0;
    struct conf *conf = make_conf();
    w.shared = shared_new(conf, w.n_shards);
    for (int i = 0; i < w.n_shards; i++) {
        struct err e;
        must(!shard_new(&w.shard[i], w.shared, i, NULL, &e));
        w.loop[i] = sim_loop_new();
        must(!shard_start(w.shard[i], w.loop[i], &e));
    }
}

static void turn(int i)
{
    struct conn *at_hand[512];
    size_t n = 0;
    sim_loop_tick(w.loop[i]);
    list_for(k, &conns) if (n < ARRAY_SIZE(at_hand)) at_hand[n++] =
        list_entry(k, struct conn, node);
    for (size_t k = 0; k < n; k++)
        if (chance(60))
            (void)conn_step(at_hand[k], w.loop[i]);
    if (chance(80))
        (void)sim_loop_work(w.loop[i], chance(90));
    sim_loop_end_turn(w.loop[i]);
}

static void world_step(bool may_grow)
{
    w.step++;
    sim_now_us += rnd(600);
    if (rnd(3000) == 0)
        sim_now_us += 700000;
    turn((int)rnd((uint32_t)w.n_shards));
    list_for_safe(n, &w.backends)
    {
        struct listener_side *s = list_entry(n, struct listener_side, node);
        if (chance(50))
            backend_step(s);
    }
    drivers_step();
    if (may_grow && w.n_drivers < w.max_clients && chance(10))
        add_driver();
    conns_sweep();
    check_always();
    if (w.step % 64 == 0) {
        settle();
        check_settled();
    }
}

/* All clients have left: nothing may be in use, nothing reserved. */
static void world_check_empty(void)
{
    settle();
    check_settled();
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next)
        if (r->demand)
            sim_fail("demand %d is left", r->demand);
}

static void world_free(void)
{
    size_t count, bytes;
    settle(); /* a server on its way between workers would be lost */
    for (int i = 0; i < w.n_shards; i++) {
        w.n_lent += w.shard[i]->n_lent;
        shard_stop(w.shard[i]);
    }
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next)
        if (r->n_servers || r->db->n_servers || r->user->n_servers)
            sim_fail("%d servers are counted after the end", r->n_servers);
    for (int i = 0; i < w.n_shards; i++) {
        sim_loop_end_turn(w.loop[i]);
        shard_free(w.shard[i]);
        sim_loop_free(w.loop[i]);
    }
    if (w.shared->n_clients)
        sim_fail("%d clients are counted after the end", w.shared->n_clients);
    shared_free(w.shared);
    statement_totals(&count, &bytes);
    if (count)
        sim_fail("%zu statements are left", count);
    list_for_safe(n, &w.backends)
        backend_end(list_entry(n, struct listener_side, node));
    list_for_safe(m, &w.requests)
    {
        struct request *r = list_entry(m, struct request, node);
        conn_release(r->k);
        list_remove(&r->node);
        free(r);
    }
    list_for_safe(d, &w.drivers) driver_end(list_entry(d, struct driver, node));
    conns_sweep();
    must(list_empty(&conns));
}

static void run(uint64_t seed, int steps)
{
    sim_srand(seed);
    world_new();
    for (int i = 0; i < steps; i++)
        world_step(true);
    /* Some worlds end in the middle of everything. */
    if (chance(80)) {
        for (int i = 0; w.n_drivers || w.shared->n_clients; i++) {
            if (i == DRAIN_STEPS * (w.mode == CONF_POOL_SESSION ? 10 : 1))
                sim_fail("%d clients do not come to an end", w.n_drivers);
            world_step(false);
        }
        world_check_empty();
    }
    world_free();
    totals->runs++;
    totals->messages += w.n_messages;
    totals->clients += w.n_clients;
    totals->kills += w.n_kills;
    totals->cancels += w.n_cancels;
    totals->hits += w.n_hits;
    totals->lent += w.n_lent;
}

/* In a child, so that what a run leaves behind cannot change the next one. */
static bool run_apart(uint64_t seed, int steps)
{
    int status;
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        run(seed, steps);
        exit(0);
    }
    must(waitpid(pid, &status, 0) == pid);
    if (status == 0)
        return true;
    fprintf(stderr, "failed: --seed %llu --runs 1\n", (unsigned long long)seed);
    return false;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 's'},
        {"runs", required_argument, NULL, 'r'},
        {"steps", required_argument, NULL, 'n'},
        {"verbose", no_argument, NULL, 'v'},
        {0},
    };
    uint64_t seed = (uint64_t)time(NULL) * 1000, runs = UINT64_MAX;
    time_t end = time(NULL) + 10;
    int steps = 6000, c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 't')
            end = time(NULL) + atoi(optarg);
        else if (c == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (c == 'r')
            runs = strtoull(optarg, NULL, 10);
        else if (c == 'n')
            steps = atoi(optarg);
        else if (c == 'v')
            sim_verbose = true;
        else
            return 2;
    }
    totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(totals != MAP_FAILED);
    bool ok = true;
    for (uint64_t i = 0;
         ok && i < runs && (runs != UINT64_MAX || time(NULL) < end); i++)
        ok = run_apart(seed + i, steps);
    printf("%llu runs from seed %llu: %llu clients, %llu requests, %llu kills, "
           "%llu cancels of which %llu hit, %llu servers lent\n",
           (unsigned long long)totals->runs, (unsigned long long)seed,
           (unsigned long long)totals->clients,
           (unsigned long long)totals->messages,
           (unsigned long long)totals->kills,
           (unsigned long long)totals->cancels,
           (unsigned long long)totals->hits, (unsigned long long)totals->lent);
    return ok ? 0 : 1;
}
