/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Who gets which server. Waiting is first come first served; an idle server
 * goes to the client that has waited longest, on whichever worker (lend.c).
 * Assigning happens in pool_dispatch(), which runs from the loop, so that no
 * object is handed on from inside its own callbacks. */
#include <stdlib.h>

#include "base/log.h"
#include "pool/handover.h"
#include "pool/impl.h"

enum {
    OPEN_AT_ONCE = 32, /* connections a pool starts in one go */
};

/* ------------------------------------------------------------- the object */

void pool_refresh(struct pool *p)
{
    const struct conf *conf = p->shard->conf;
    struct slice db = slice_str(p->rec->db->name);
    p->cdb = conf_find_db(conf, db);
    if (!p->cdb)
        p->cdb = conf_fallback_db(conf);
    tls_ctx_unref(p->tls);
    p->tls = NULL;
    p->cuser = conf_find_user(conf, slice_str(p->rec->user->name));
    p->mode = conf_pool_mode(conf, p->cdb, p->cuser);
    p->tracks_statements =
        p->mode != CONF_POOL_SESSION && conf->max_prepared_statements > 0;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

int pool_server_tls(struct pool *p, struct tls_ctx **out, struct err *e)
{
    const struct conf *conf = p->shard->conf;
    enum conf_sslmode mode = conf_server_sslmode(conf, p->cdb);
    struct tls_params params = {
        .prefix = "server_tls",
        .mode = (enum tls_mode)mode,
        .key_file = conf_server_key_file(conf, p->cdb),
        .cert_file = conf_server_cert_file(conf, p->cdb),
        .ca_file = conf_server_ca_file(conf, p->cdb),
        .protocols = conf->server_tls_protocols,
        .ciphers = conf->server_tls_ciphers,
        .tls13_ciphers = conf->server_tls13_ciphers,
    };
    *out = p->shard->server_tls;
    if (*out && mode == conf->server_tls_sslmode &&
        same_text(params.key_file, conf->server_tls_key_file) &&
        same_text(params.cert_file, conf->server_tls_cert_file) &&
        same_text(params.ca_file, conf->server_tls_ca_file))
        return 0;
    int rc = p->tls ? 0 : tls_ctx_new_client(&p->tls, &params, e);
    *out = p->tls;
    return rc;
}

static void run_dispatch(struct task *t)
{
    pool_dispatch(container_of(t, struct pool, dispatch));
}

struct pool *pool_get(struct shard *sh, struct db_rec *db,
                      struct user_rec *user)
{
    struct pool_rec *rec = shared_pool(sh->shared, db, user);
    struct pool *p = rec->pool[sh->index];
    if (p)
        return p;
    p = mem_new(sizeof *p);
    p->rec = rec;
    p->shard = sh;
    p->latency = &db->latency[sh->index];
    for (int i = 0; i < SERVER_STATES; i++)
        list_init(&p->servers[i]);
    list_init(&p->waiting);
    list_init(&p->login_waiting);
    list_init(&p->cancels);
    list_init(&p->dispatch.node);
    p->dispatch.run = run_dispatch;
    list_push_back(&sh->pools, &p->node);
    rec->pool[sh->index] = p;
    atomic_fetch_add(&db->n_pools, 1);
    pool_refresh(p);
    return p;
}

bool pool_is_unused(const struct pool *p)
{
    return !p->n_clients && !p->n_waiting && !p->n_login_waiting &&
           pool_count_servers(p) == 0 && list_empty(&p->cancels) &&
           p->rec->n_servers == 0;
}

void pool_free(struct pool *p)
{
    loop_cancel(&p->dispatch);
    list_remove(&p->node);
    pool_stats_add(&p->rec->db->gone[p->shard->index], &p->stats);
    p->rec->pool[p->shard->index] = NULL;
    atomic_fetch_sub(&p->rec->db->n_pools, 1);
    tls_ctx_unref(p->tls);
    free(p);
}

unsigned pool_epoch(const struct pool *p)
{
    return atomic_load_explicit(&p->shard->shared->server_epoch,
                                memory_order_relaxed) +
           atomic_load_explicit(&p->rec->db->server_epoch,
                                memory_order_relaxed);
}

bool pool_is_paused(const struct pool *p)
{
    return atomic_load_explicit(&p->rec->db->is_paused, memory_order_relaxed) ||
           atomic_load_explicit(&p->shard->shared->is_paused,
                                memory_order_relaxed);
}

int pool_count_servers(const struct pool *p)
{
    int n = 0;
    for (int i = 0; i < SERVER_CLOSED; i++)
        n += p->n_servers[i];
    return n;
}

/* Tells the other workers what there is. The store orders itself before the
 * next look at their demand (sequentially consistent both), as a waiter's
 * demand before its look at the idle counts: one of the two sees the other. */
void pool_publish(struct pool *p)
{
    struct pool_slot *slot = &p->rec->slot[p->shard->index];
    if (p->shard->shared->n_shards > 1 || handover_is_on(p->shard->shared))
        atomic_store(&slot->idle, p->n_servers[SERVER_IDLE]);
}

static void publish_oldest(struct pool *p)
{
    struct pool_slot *slot = &p->rec->slot[p->shard->index];
    struct list *first = list_first(&p->waiting);
    int64_t us =
        first ? list_entry(first, struct client, node_pool)->wait_us : 0;
    atomic_store_explicit(&slot->oldest_us, us, memory_order_relaxed);
}

/* -------------------------------------------------------------- assigning */

static struct server *first_idle(struct pool *p)
{
    struct list *l = &p->servers[SERVER_IDLE];
    struct list *n =
        p->shard->conf->server_round_robin ? list_last(l) : list_first(l);
    return n ? list_entry(n, struct server, node) : NULL;
}

static bool is_settable(void *arg, struct slice name)
{
    const struct conf *conf = arg;
    return pg_params_is_standard(name) || conf_tracks_parameter(conf, name);
}

/* The server takes the client's settings on, if they differ. */
static void start_settings(struct client *c, struct server *s)
{
    struct pgbuf *sql = &c->shard->text;
    if (c->params == s->params)
        return;
    pgbuf_reset(sql);
    if (pg_params_put_diff(c->params, s->params, is_settable, c->shard->conf,
                           sql) == 0)
        return;
    server_run_job(s, JOB_SET, pgbuf_slice(sql));
}

/* True when c may go on at once. */
static bool assign(struct client *c, struct server *s)
{
    link_attach(c, s);
    pool_publish(s->pool);
    if (c->state == CLIENT_LOGIN) {
        client_login_query_start(c);
        return false;
    }
    start_settings(c, s);
    return s->job == JOB_NONE;
}

static void start_waiting(struct client *c)
{
    struct pool *p = c->pool;
    c->wait_us = shard_now(c->shard);
    c->is_notified = false;
    list_push_back(&p->waiting, &c->node_pool);
    p->n_waiting++;
    if (c->state != CLIENT_LOGIN)
        client_set_state(c, CLIENT_WAITING);
    if (p->n_waiting == 1)
        publish_oldest(p);
    demand_add(p->rec, p->shard->index, 1);
}

static void end_waiting(struct client *c)
{
    struct pool *p = c->pool;
    list_remove(&c->node_pool);
    p->n_waiting--;
    demand_add(p->rec, p->shard->index, -1);
    publish_oldest(p);
    if (budget_end_claim(p->shard->shared, p->rec, c->wait_us))
        pool_budget_freed(p->shard);
    int64_t waited_us = shard_now(c->shard) - c->wait_us;
    p->stats.wait_time_us += (uint64_t)waited_us;
    latency_add(&p->latency->wait, waited_us);
    c->shard->longest_wait_us = MAX(c->shard->longest_wait_us, waited_us);
    if (c->state == CLIENT_WAITING)
        client_set_state(c, CLIENT_IDLE);
}

void pool_stop_waiting(struct client *c)
{
    if (list_is_linked(&c->node_pool))
        end_waiting(c);
}

/* After a failure one attempt is made every server_login_retry. */
static bool must_back_off(const struct pool *p)
{
    int64_t failed = atomic_load(&p->rec->failed_us);
    if (!failed)
        return false;
    return p->n_servers[SERVER_LOGIN] > 0 ||
           shard_now(p->shard) - failed < p->shard->conf->server_login_retry_us;
}

/* While servers cannot be had and there is none, a client is told why instead
 * of being kept, up to the next attempt: who comes then waits for it. */
static bool fail_fast(struct client *c)
{
    struct pool *p = c->pool;
    char state[6], text[FAIL_TEXT_MAX];
    if (p->rec->n_servers > 0 || !must_back_off(p) ||
        !pool_rec_failure(p->rec, state, text, sizeof text))
        return false;
    client_close(c, "08P01",
                 "server login has been failing, cached error: %s "
                 "(server_login_retry)",
                 text);
    return true;
}

bool pool_want_server(struct client *c)
{
    struct pool *p = c->pool;
    if (!pool_is_paused(p) && list_empty(&p->waiting)) {
        struct server *s = first_idle(p);
        if (s)
            return assign(c, s);
        if (c->state != CLIENT_LOGIN && fail_fast(c))
            return false;
    }
    start_waiting(c);
    pool_dispatch_later(p);
    return false;
}

static void serve_first(struct pool *p, struct server *s)
{
    struct client *c =
        list_entry(list_first(&p->waiting), struct client, node_pool);
    end_waiting(c);
    if (assign(c, s))
        client_go_on(c);
}

/* ---------------------------------------------------------------- opening */

/* Since when the first client waits here; 0: none does. */
static int64_t first_wait(const struct pool *p)
{
    if (list_empty(&p->waiting))
        return 0;
    return container_of(p->waiting.next, const struct client, node_pool)
        ->wait_us;
}

struct budget_limits pool_limits(const struct pool *p, bool with_reserve)
{
    const struct conf *conf = p->shard->conf;
    struct budget_limits l = {
        .since_us = first_wait(p),
        .now_us = shard_now(p->shard),
        .pool_size = conf_pool_size(conf, p->cdb, p->cuser),
        .max_db = conf_max_db_connections(conf, p->cdb),
        .max_user = conf_max_user_connections(conf, p->cuser),
    };
    if (with_reserve && l.pool_size > 0)
        l.pool_size += conf_reserve_pool_size(conf, p->cdb, p->cuser);
    return l;
}

bool pool_can_lend(const struct pool *p)
{
    return !p->cdb || p->cdb->transport != CONF_TRANSPORT_QUIC;
}

bool pool_has_room(const struct pool *p)
{
    struct shared *shared = p->shard->shared;
    struct budget_limits l = pool_limits(p, false);
    return (l.pool_size <= 0 ||
            atomic_load(&p->rec->n_servers) < l.pool_size) &&
           (l.max_db <= 0 || budget_db_count(shared, p->rec->db) < l.max_db) &&
           (l.max_user <= 0 ||
            budget_user_count(shared, p->rec->user) < l.max_user);
}

static bool may_use_reserve(const struct pool *p)
{
    const struct conf *conf = p->shard->conf;
    const struct list *first = p->waiting.next;
    if (list_empty(&p->waiting) || conf->reserve_pool_timeout_us <= 0 ||
        conf_reserve_pool_size(conf, p->cdb, p->cuser) <= 0)
        return false;
    const struct client *c =
        container_of(first, const struct client, node_pool);
    return shard_now(p->shard) - c->wait_us >= conf->reserve_pool_timeout_us;
}

static bool open_one(struct pool *p)
{
    struct budget_limits l = pool_limits(p, false);
    enum budget_verdict v = BUDGET_POOL_FULL;
    if (l.pool_size <= 0 || atomic_load(&p->rec->n_servers) < l.pool_size)
        v = budget_take(p->shard->shared, p->rec, &l);
    bool is_reserve = v == BUDGET_POOL_FULL && may_use_reserve(p);
    if (is_reserve) {
        l = pool_limits(p, true);
        v = budget_take(p->shard->shared, p->rec, &l);
        if (v == BUDGET_OK)
            log_info("pool %s/%s: taking a connection from the reserve pool",
                     p->rec->db->name, p->rec->user->name);
    }
    if ((v == BUDGET_DB_FULL || v == BUDGET_USER_FULL) && lend_evict(p, v))
        v = budget_take(p->shard->shared, p->rec, &l);
    if (v != BUDGET_OK)
        return false;
    server_open(p, NULL);
    return true;
}

/* A server that was idle for long is tested before it is used. */
static void test_used(struct pool *p, int n)
{
    const char *sql = conf_server_check_query(p->shard->conf);
    while (n-- > 0 && p->n_servers[SERVER_USED] > 0) {
        struct server *s = list_entry(list_first(&p->servers[SERVER_USED]),
                                      struct server, node);
        if (!sql) {
            server_set_state(s, SERVER_IDLE);
            continue;
        }
        server_set_state(s, SERVER_TESTED);
        server_run_job(s, JOB_CHECK, slice_str(sql));
    }
}

/* A login waits for the pool's first server, and none is on its way: servers
 * that replicate, and logins for them, are of no help. */
static bool lacks_first_server(struct pool *p)
{
    if (p->rec->n_servers > p->rec->n_replicating)
        return false;
    list_for(n, &p->login_waiting)
    {
        if (!list_entry(n, struct client, node_pool)->replication)
            return true;
    }
    return false;
}

static void find_more(struct pool *p)
{
    int on_the_way = p->n_servers[SERVER_LOGIN] + p->n_servers[SERVER_TESTED];
    int missing = p->n_waiting - on_the_way;
    if (lacks_first_server(p))
        missing = MAX(missing, 1);
    if (missing > 0 && p->n_servers[SERVER_USED] > 0) {
        int n = MIN(missing, p->n_servers[SERVER_USED]);
        test_used(p, n);
        missing -= n;
    }
    missing = MIN(missing, (int)OPEN_AT_ONCE);
    if (atomic_load(&p->rec->failed_us))
        missing = MIN(missing, 1);
    while (missing-- > 0 && !must_back_off(p) && open_one(p))
        ;
}

void pool_dispatch(struct pool *p)
{
    if (pool_is_paused(p) || p->shard->is_suspended)
        return;
    for (;;) {
        struct server *s = first_idle(p);
        if (!s)
            break;
        if (lend_if_wanted(s))
            continue;
        if (list_empty(&p->waiting))
            break;
        serve_first(p, s);
    }
    if (!p->n_waiting && !p->n_login_waiting)
        return;
    if (pool_can_lend(p)) {
        if (p->n_waiting && lend_ask(p))
            return;
        find_more(p);
    } else {
        find_more(p);
        if (p->n_waiting > p->n_servers[SERVER_LOGIN] && !pool_has_room(p))
            (void)lend_ask(p);
    }
    if (p->n_servers[SERVER_IDLE] > 0 && p->n_waiting)
        pool_dispatch_later(p); /* the check is off: they are ready */
}

void pool_dispatch_later(struct pool *p)
{
    loop_defer(p->shard->loop, &p->dispatch);
}

void pool_budget_freed(struct shard *sh)
{
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        if (p->n_waiting || p->n_login_waiting)
            pool_dispatch_later(p);
    }
    lend_wake_all(sh);
}

/* ---------------------------------------------------------------- release */

static bool is_too_old(const struct server *s)
{
    int64_t life = conf_server_lifetime_us(s->pool->shard->conf, s->pool->cdb);
    return life > 0 ? shard_now(s->pool->shard) - s->connect_us >= life
                    : s->was_used; /* 0: good for one use */
}

static bool wants_reset(const struct server *s)
{
    const struct conf *conf = s->pool->shard->conf;
    return s->needs_reset && conf->server_reset_query &&
           *conf->server_reset_query;
}

void pool_give_server(struct server *s)
{
    struct pool *p = s->pool;
    must(!s->client && pg_track_is_idle(&s->track) && s->job == JOB_NONE);
    if (s->n_cancels) {
        server_set_state(s, SERVER_CANCELED);
        return;
    }
    if (s->is_other_user) {
        server_close(s, "session authorization was changed");
        return;
    }
    if (s->needs_close || s->epoch != pool_epoch(p)) {
        server_close(s, "close_needed");
        return;
    }
    if (is_too_old(s)) {
        server_close(s, "server lifetime over");
        return;
    }
    if (wants_reset(s)) {
        server_set_state(s, SERVER_TESTED);
        server_run_job(s, JOB_RESET,
                       slice_str(p->shard->conf->server_reset_query));
        return;
    }
    s->needs_reset = false;
    if (pool_is_paused(p)) {
        server_close(s, "paused");
        return;
    }
    if (budget_is_claimed(p->shard->shared, p->rec, first_wait(p),
                          shard_now(p->shard))) {
        server_close(s, "its place is another pool's turn");
        return;
    }
    server_set_state(s, SERVER_IDLE);
    pool_publish(p);
    if (p->n_waiting || atomic_load(&p->rec->demand) > 0)
        pool_dispatch_later(p);
    if (unlikely(p->shard->is_leaving))
        loop_defer(p->shard->loop, &p->shard->balance.task);
}

/* ------------------------------------------------------------ login waiters */

void pool_server_failed(struct pool *p, const char *sqlstate, const char *text)
{
    pool_rec_set_failed(p->rec, shard_now(p->shard), sqlstate, text);
    list_for_safe(n, &p->login_waiting)
    {
        struct client *c = list_entry(n, struct client, node_pool);
        if (!c->replication)
            client_login_refuse(c, sqlstate, text);
    }
    /* A login that waits for auth_query cannot wait either. */
    list_for_safe(w, &p->waiting)
    {
        struct client *c = list_entry(w, struct client, node_pool);
        if (c->state == CLIENT_LOGIN && p->rec->n_servers == 0)
            client_login_refuse(c, sqlstate, text);
    }
}

void pool_server_came(struct pool *p, const struct pg_params *welcome)
{
    const struct pg_params *none = NULL;
    if (atomic_load(&p->rec->failed_us)) {
        pool_rec_set_working(p->rec);
        pool_budget_freed(p->shard); /* nobody needs to hold back now */
    }
    if (!atomic_load(&p->rec->welcome)) {
        pg_params_ref(welcome);
        if (!atomic_compare_exchange_strong(&p->rec->welcome, &none, welcome))
            pg_params_unref(welcome);
        lend_wake_all(p->shard);
    }
    list_for_safe(n, &p->login_waiting)
        client_login_welcome(list_entry(n, struct client, node_pool));
}
