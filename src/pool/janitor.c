/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What happens by time alone. One timer a worker looks at the heads of lists
 * that are in order of time, and at the servers; idle clients are walked only
 * where client_idle_timeout is set, once a second. */
#include "base/log.h"
#include "pool/impl.h"
#include "pool/server_quic.h"

enum {
    TICK_US = 100 * 1000,
    SLOW_TICK_US = 1000 * 1000,
    /* What a client asked for that then went away without Terminate is carried
     * on for so long, then cancelled, then given up with its server: it must
     * not keep a place in the pool from those who are there. */
    LEFT_CANCEL_US = 2 * 1000 * 1000,
    LEFT_DROP_US = 12 * 1000 * 1000,
    NEVER_WORKED_US = 5 * 1000 * 1000,
};

static bool is_over(int64_t limit_us, int64_t since_us, int64_t now_us)
{
    return limit_us > 0 && since_us > 0 && now_us - since_us >= limit_us;
}

/* ----------------------------------------------------------------- waiting */

static void notify(struct client *c)
{
    struct pgbuf *b = &c->shard->text;
    c->is_notified = true;
    pgbuf_reset(b);
    pg_put_notice(b, "NOTICE", "00000",
                  "No server connection available in the pool, client being "
                  "queued");
    (void)stream_write(c->stream, b->p, b->n);
}

static void check_waiting(struct pool *p)
{
    const struct conf *conf = p->shard->conf;
    int64_t now = shard_now(p->shard);
    int64_t limit = conf_query_wait_timeout_us(conf, p->cdb, p->cuser);
    list_for_safe(n, &p->waiting)
    {
        struct client *c = list_entry(n, struct client, node_pool);
        if (!is_over(limit, c->wait_us, now))
            break;
        client_close(c, "08P01", "query_wait_timeout");
    }
    list_for(m, &p->waiting)
    {
        struct client *c = list_entry(m, struct client, node_pool);
        if (!is_over(conf->query_wait_notify_us, c->wait_us, now))
            break;
        if (!c->is_notified && c->state == CLIENT_WAITING)
            notify(c);
    }
    bool has_to_lend = p->n_servers[SERVER_IDLE] > 0 &&
                       atomic_load(&p->rec->demand) > p->n_waiting;
    if (p->n_waiting || p->n_login_waiting || has_to_lend)
        pool_dispatch_later(p);
}

/* A pool whose settings another worker's login has brought, or that cannot get
 * servers at all. */
static void check_login_waiting(struct pool *p)
{
    char state[6], text[FAIL_TEXT_MAX];
    bool welcome = atomic_load(&p->rec->welcome) != NULL;
    bool failed = p->rec->n_servers <= p->rec->n_replicating &&
                  pool_rec_failure(p->rec, state, text, sizeof text);
    list_for_safe(n, &p->login_waiting)
    {
        struct client *c = list_entry(n, struct client, node_pool);
        if (welcome || c->replication)
            client_login_welcome(c);
        else if (failed)
            client_login_refuse(c, state, text);
    }
}

/* ----------------------------------------------------------------- servers */

/* RECONNECT, or a reload that changed where it should be connected. */
static bool is_to_go(const struct server *s)
{
    return s->needs_close || s->epoch != pool_epoch(s->pool);
}

/* Although somebody uses it: replication would never end by itself, and
 * server_fast_close does not wait for the end of a session. */
static bool must_go_now(const struct server *s)
{
    if (s->is_replication)
        return true;
    return s->pool->shard->conf->server_fast_close &&
           s->pool->mode == CONF_POOL_SESSION && !s->track.count &&
           s->track.tx == PG_TX_IDLE && s->job == JOB_NONE;
}

static void check_active(struct server *s, int64_t now)
{
    const struct conf *conf = s->pool->shard->conf;
    struct client *c = s->client;
    const struct conf_user *u = s->pool->cuser;
    if (is_to_go(s) && must_go_now(s)) {
        server_close(s, "database configuration changed");
        return;
    }
    if (!c || s->is_replication || s->job == JOB_AUTH)
        return;
    if (c->wants_close && is_over(LEFT_DROP_US, c->left_us, now)) {
        client_drop(c, "client left, and its query does not end");
        return;
    }
    if (c->wants_close && is_over(LEFT_CANCEL_US, c->left_us, now))
        cancel_left(c);
    if (s->track.count &&
        is_over(conf_query_timeout_us(conf, u), c->query_us, now))
        server_close(s, "query timeout");
    else if (!s->track.count && s->track.tx != PG_TX_IDLE &&
             is_over(conf_idle_transaction_timeout_us(conf, u), c->request_us,
                     now))
        server_close(s, "idle transaction timeout");
    else if (is_over(conf_transaction_timeout_us(conf, u), c->xact_us, now))
        server_close(s, "transaction timeout");
}

static void check_idle(struct server *s, int64_t now)
{
    struct pool *p = s->pool;
    const struct conf *conf = p->shard->conf;
    int min = conf_min_pool_size(conf, p->cdb);
    if (is_to_go(s))
        server_close(s, "close_needed");
    else if (is_over(conf_server_lifetime_us(conf, p->cdb), s->connect_us, now))
        server_close(s, "server lifetime over");
    else if (is_over(conf->server_idle_timeout_us, s->request_us, now) &&
             p->rec->n_servers > min)
        server_close(s, "server idle timeout");
    else if (s->state == SERVER_IDLE && conf_server_check_query(conf) &&
             is_over(conf->server_check_delay_us, s->request_us, now)) {
        server_set_state(s, SERVER_USED);
        pool_publish(p);
    }
}

static void check_servers(struct pool *p)
{
    int64_t now = shard_now(p->shard);
    int64_t connect = p->shard->conf->server_connect_timeout_us;
    list_for_safe(a, &p->servers[SERVER_ACTIVE])
        check_active(list_entry(a, struct server, node), now);
    list_for_safe(i, &p->servers[SERVER_IDLE])
        check_idle(list_entry(i, struct server, node), now);
    list_for_safe(u, &p->servers[SERVER_USED])
        check_idle(list_entry(u, struct server, node), now);
    list_for_safe(l, &p->servers[SERVER_LOGIN])
    {
        struct server *s = list_entry(l, struct server, node);
        if (is_over(connect, s->connect_us, now))
            server_login_fail(s, "08P01", "connect timeout");
    }
    list_for_safe(t, &p->servers[SERVER_TESTED])
    {
        struct server *s = list_entry(t, struct server, node);
        if (s->job == JOB_CHECK && is_over(connect, s->request_us, now))
            server_close(s, "check query timeout");
    }
}

static void watch_subflows(struct pool *p)
{
    static const enum server_state open[] = {SERVER_ACTIVE, SERVER_IDLE,
                                             SERVER_USED};
    if (!p->shard->path_manager)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(open); i++)
        list_for(n, &p->servers[open[i]])
            server_watch_subflows(list_entry(n, struct server, node));
}

/* min_pool_size holds while somebody uses the pool, or its user is forced. */
static void keep_minimum(struct pool *p)
{
    const struct conf *conf = p->shard->conf;
    int min = p->cdb ? conf_min_pool_size(conf, p->cdb) : 0;
    struct budget_limits l;
    if (min <= 0 || p->rec->n_servers >= min || pool_is_paused(p) ||
        (!p->n_clients && !(p->cdb && p->cdb->user)) ||
        p->n_servers[SERVER_LOGIN])
        return;
    int64_t failed = atomic_load(&p->rec->failed_us);
    if (failed && shard_now(p->shard) - failed < conf->server_login_retry_us)
        return;
    l = pool_limits(p, false);
    l.pool_size = l.pool_size > 0 ? MIN(l.pool_size, min) : min;
    if (budget_take(p->shard->shared, p->rec, &l) == BUDGET_OK)
        server_open(p, NULL);
}

/* ------------------------------------------------------------ unused pools */

/* How long the pool may be without anybody; 0: for ever. */
static int64_t unused_limit_us(const struct pool *p)
{
    const struct conf *conf = p->shard->conf;
    int64_t limit = conf->pool_idle_timeout_us;
    bool is_auto = !p->cdb || p->cdb->is_auto;
    if (is_auto && conf->autodb_idle_timeout_us > 0)
        limit = limit > 0 ? MIN(limit, conf->autodb_idle_timeout_us)
                          : conf->autodb_idle_timeout_us;
    /* No server ever came: perhaps there is no such database, and whoever may
     * name one can name many. */
    if (is_auto && !atomic_load(&p->rec->welcome))
        limit = NEVER_WORKED_US;
    return limit;
}

static void forget_unused(struct shard *sh)
{
    int64_t now = shard_now(sh);
    list_for_safe(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        if (!pool_is_unused(p))
            p->unused_us = 0;
        else if (!p->unused_us)
            p->unused_us = now;
        else if (is_over(unused_limit_us(p), p->unused_us, now))
            pool_free(p);
    }
}

/* ----------------------------------------------------------------- clients */

static void check_idle_clients(struct shard *sh)
{
    int64_t now = shard_now(sh);
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        bool is_idle = c->state == CLIENT_IDLE ||
                       (c->state == CLIENT_ACTIVE && c->server &&
                        pg_track_is_idle(&c->server->track));
        if (is_idle && c->pool &&
            is_over(conf_client_idle_timeout_us(sh->conf, c->pool->cuser),
                    c->request_us, now))
            client_close(c, "08P01", "client_idle_timeout");
    }
}

static bool has_idle_timeout(const struct shard *sh)
{
    if (sh->conf->client_idle_timeout_us > 0)
        return true;
    for (int i = 0; i < conf_user_count(sh->conf); i++)
        if (conf_client_idle_timeout_us(sh->conf, conf_user_at(sh->conf, i)) >
            0)
            return true;
    return false;
}

static void tick(struct timer *t)
{
    struct shard *sh = container_of(t, struct shard, tick);
    int64_t now = shard_now(sh);
    client_login_expire(sh);
    list_for_safe(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        check_servers(p);
        watch_subflows(p);
        check_waiting(p);
        check_login_waiting(p);
        keep_minimum(p);
        cancel_expire(p);
    }
    peers_expire(sh);
    if (now - sh->slow_tick_us >= SLOW_TICK_US) {
        sh->slow_tick_us = now;
        balance_tick(sh);
        forget_unused(sh);
        server_quic_sweep(sh);
        if (sh->index == 0 && now - sh->sweep_us >= SHARED_SWEEP_US) {
            sh->sweep_us = now;
            shared_forget_unused(sh->shared, sh->conf);
        }
        if (has_idle_timeout(sh))
            check_idle_clients(sh);
    }
    timer_set(sh->loop, &sh->tick, now + TICK_US);
}

void janitor_start(struct shard *sh)
{
    sh->tick.on_fire = tick;
    balance_start(sh);
    timer_set(sh->loop, &sh->tick, shard_now(sh) + TICK_US);
}

void janitor_stop(struct shard *sh)
{
    timer_clear(sh->loop, &sh->tick);
    balance_stop(sh);
}
