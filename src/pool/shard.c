/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A worker's part of the pooler: made, configured, looked at, taken down. */
#include "pool/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "auth/auth_server.h"
#include "base/log.h"
#include "net/mptcp_pm.h"
#include "net/tls.h"
#include "pg/pg_startup.h"
#include "pool/impl.h"
#include "pool/server_quic.h"
#include "pool/shard_dns.h"
#include "pool/suspend.h"

enum {
    AUTH_CACHE_MAX = 1024,
    TEXT_MAX = 64 << 20,
    BETWEEN_COMMANDS_US = 1000 * 1000, /* of a program that replicates */
};

int shard_new(struct shard **out, struct shared *shared, int index,
              const struct console_ops *console, struct err *e)
{
    struct shard *sh = mem_new(sizeof *sh);
    sh->index = index;
    sh->shared = shared;
    sh->console = console;
    sh->conf = shared_conf(shared);
    statement_set_max((size_t)sh->conf->statement_max_bytes);
    list_init(&sh->pools);
    list_init(&sh->clients);
    list_init(&sh->logins);
    list_init(&sh->peers);
    list_init(&sh->quic_ways);
    pgbuf_init(&sh->text, TEXT_MAX);
    sh->auth_cache = auth_cache_new(AUTH_CACHE_MAX);
    shared->shard[index] = sh;
    *out = sh;
    return 0;
}

static struct resolver_options resolver_options_of(struct shard *sh)
{
    const struct conf *conf = sh->conf;
    return (struct resolver_options){
        .max_ttl_us = conf->dns_max_ttl_us,
        .nxdomain_ttl_us = conf->dns_nxdomain_ttl_us,
        .zone_check_us = conf->dns_zone_check_period_us,
        .on_gone = shard_address_gone,
        .arg = sh,
        .resolv_conf = conf->resolv_conf,
    };
}

int shard_start(struct shard *sh, struct loop *loop, struct err *e)
{
    struct resolver_options o = resolver_options_of(sh);
    sh->loop = loop;
    int rc = resolver_new(&sh->resolver, loop, &o, e);
    if (rc)
        return rc;
    shard_open_path_manager(sh);
    janitor_start(sh);
    /* Databases with a forced user keep their minimum from the start. */
    for (int i = 0; i < conf_db_count(sh->conf); i++) {
        const struct conf_db *db = conf_db_at(sh->conf, i);
        if (db->user && conf_min_pool_size(sh->conf, db) > 0)
            (void)pool_get(sh, shared_db(sh->shared, slice_str(db->name)),
                           shared_user(sh->shared, slice_str(db->user)));
    }
    atomic_store_explicit(&sh->loop_shown, loop, memory_order_release);
    return 0;
}

static bool is_of(const struct pool *p, const char *db)
{
    return !db || !strcmp(p->rec->db->name, db);
}

static void close_servers(struct pool *p, const char *why)
{
    for (int i = 0; i < SERVER_CLOSED; i++)
        list_for_safe(n, &p->servers[i])
            server_close(list_entry(n, struct server, node), "%s", why);
}

void shard_stop(struct shard *sh)
{
    struct list *n;
    janitor_stop(sh);
    atomic_store_explicit(&sh->loop_shown, NULL, memory_order_release);
    while ((n = list_first(&sh->clients))) {
        struct client *c = list_entry(n, struct client, node_all);
        client_close(c, "57P01", "server shutting down");
    }
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        cancel_stop(p);
        close_servers(p, "shutdown");
        loop_cancel(&p->dispatch);
    }
    peers_stop(sh);
    server_quic_stop(sh);
    resolver_free(sh->resolver);
    sh->resolver = NULL;
}

void shard_free(struct shard *sh)
{
    struct list *n;
    shared_stop_helpers(sh->shared);
    while ((n = list_first(&sh->pools))) {
        pool_free(list_entry(n, struct pool, node));
    }
    mptcp_pm_free(sh->path_manager);
    statement_cache_fini(&sh->statements);
    auth_cache_free(sh->auth_cache);
    tls_ctx_unref(sh->client_tls);
    tls_ctx_unref(sh->server_tls);
    pgbuf_fini(&sh->text);
    conf_unref(sh->conf);
    free(sh);
}

bool shard_enter_host(struct shard *sh, const struct addr *peer,
                      struct host_count **host)
{
    int max = sh->conf->max_connections_per_address;
    char text[ADDR_TEXT_MAX];
    if (limits_host_enter(sh->shared, peer, max, host))
        return true;
    sh->tally.refused_by_address++;
    addr_text(peer, text, sizeof text);
    log_warning("%s: too many connections that have not logged in "
                "(max_connections_per_address = %d)",
                text, max);
    return false;
}

struct sock_options shard_sock_options(const struct conf *conf)
{
    return (struct sock_options){
        .keepalive = conf->tcp_keepalive,
        .keepidle_s = conf->tcp_keepidle,
        .keepintvl_s = conf->tcp_keepintvl,
        .keepcnt = conf->tcp_keepcnt,
        .user_timeout_ms = conf->tcp_user_timeout,
        .buffer_bytes = conf->tcp_socket_buffer,
    };
}

void shard_accept(struct shard *sh, int fd, const struct addr *peer)
{
    struct sock_options o = shard_sock_options(sh->conf);
    struct host_count *host;
    struct client *c;
    const uint8_t *ip;
    size_t ip_n = addr_ip(peer, &ip);
    if (!addr_is_unix(peer))
        sock_set_options(fd, &o);
    if (conf_is_proxy(sh->conf, ip, ip_n)) {
        c = client_accept(sh, fd, peer, NULL);
        if (c)
            client_login_expect_proxy(c);
        return;
    }
    if (shard_enter_host(sh, peer, &host))
        (void)client_accept(sh, fd, peer, host); /* it closes fd itself */
    else
        close(fd);
}

struct client *shard_accept_stream(struct shard *sh, struct stream *st,
                                   const struct addr *peer)
{
    struct host_count *host;
    return shard_enter_host(sh, peer, &host)
               ? client_accept_stream(sh, st, host)
               : NULL;
}

void shard_set_quic(struct shard *sh, struct quic_host *host)
{
    sh->quic = host;
}

struct quic_host *shard_quic(const struct shard *sh)
{
    return sh->quic;
}

struct quic_host *shard_quic_out(const struct shard *sh)
{
    return sh->quic_out;
}

void shard_close_streams(struct shard *sh)
{
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        if (c->stream->kind == STREAM_QUIC)
            client_close(c, "57P01", "server shutting down");
    }
}

/* -------------------------------------------------------------- configuration
 */

/* Servers that the new configuration would make otherwise go once free. */
static void mark_changed(struct pool *p, const struct conf_db *old,
                         bool tls_changed)
{
    bool same =
        old && p->cdb && conf_db_same_server(old, p->cdb) && !tls_changed;
    if (same)
        return;
    for (int i = 0; i < SERVER_CLOSED; i++)
        list_for(n, &p->servers[i]) list_entry(n, struct server, node)
            ->needs_close = true;
}

void shard_set_conf(struct shard *sh, struct conf *conf,
                    struct tls_ctx *client_tls, struct tls_ctx *server_tls)
{
    struct conf *old = sh->conf;
    struct err e;
    bool tls_changed = !conf_same_server_tls(old, conf);
    /* Files are read again with each new context; without one, nobody knows. */
    bool is_anew = !server_tls || server_tls != sh->server_tls;
    sh->conf = conf;
    statement_set_max((size_t)conf->statement_max_bytes);
    tls_ctx_unref(sh->client_tls);
    tls_ctx_unref(sh->server_tls);
    sh->client_tls = client_tls;
    sh->server_tls = server_tls;
    if (sh->loop)
        shard_open_path_manager(sh);
    server_quic_set_conf(sh, is_anew);
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        const struct conf_db *was = p->cdb;
        pool_refresh(p);
        mark_changed(p, was, tls_changed);
        if (p->n_waiting || p->n_login_waiting)
            pool_dispatch_later(p);
    }
    if (sh->resolver) {
        struct resolver_options o = resolver_options_of(sh);
        if (resolver_reconfigure(sh->resolver, &o, &e))
            log_error("resolver: %s", e.text);
    }
    conf_unref(old);
}

struct loop *shard_loop(const struct shard *sh)
{
    return sh->loop;
}

struct shared *shard_shared(const struct shard *sh)
{
    return sh->shared;
}

const struct conf *shard_conf(const struct shard *sh)
{
    return sh->conf;
}

int shard_index(const struct shard *sh)
{
    return sh->index;
}

/* ------------------------------------------------------------------- commands
 */

void shard_resume_all(struct shard *sh)
{
    shard_end_suspend(sh);
    list_for(n, &sh->pools)
        pool_dispatch_later(list_entry(n, struct pool, node));
}

void shard_drain_servers(struct shard *sh, const char *db)
{
    static const enum server_state idle[] = {SERVER_IDLE, SERVER_USED};
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        if (!is_of(p, db))
            continue;
        for (size_t i = 0; i < ARRAY_SIZE(idle); i++)
            list_for_safe(s, &p->servers[idle[i]])
                server_close(list_entry(s, struct server, node), "paused");
    }
}

/* One that streams, which never ends by itself, or that has had nothing to do
 * for a while. A base backup is work that ends: some commands, and the client's
 * reading of what came. */
static bool is_endless(const struct server *s)
{
    const struct client *c = s->client;
    if (!s->is_replication || !c)
        return false;
    return s->track.in_copy_in ||
           (!s->track.count && !stream_pending(c->stream) &&
            shard_now(c->shard) - c->request_us > BETWEEN_COMMANDS_US);
}

/* Servers that nobody waits for: PAUSE, a shutdown. */
static int count_endless(const struct pool *p)
{
    int n = 0;
    const struct list *active = &p->servers[SERVER_ACTIVE];
    for (const struct list *i = active->next; i != active; i = i->next)
        n += is_endless(container_of(i, const struct server, node));
    return n;
}

int shard_busy_servers(const struct shard *sh, const char *db)
{
    int busy = 0;
    for (struct list *n = sh->pools.next; n != &sh->pools; n = n->next) {
        const struct pool *p = list_entry(n, struct pool, node);
        if (is_of(p, db))
            busy += pool_count_servers(p) - count_endless(p);
    }
    return busy;
}

void shard_reconnect(struct shard *sh, const char *db)
{
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        if (!is_of(p, db))
            continue;
        for (int i = 0; i < SERVER_CLOSED; i++)
            list_for(s, &p->servers[i]) list_entry(s, struct server, node)
                ->needs_close = true;
    }
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        list_for_safe(s, &p->servers[SERVER_IDLE])
        {
            struct server *k = list_entry(s, struct server, node);
            if (k->needs_close)
                server_close(k, "close_needed");
        }
        list_for_safe(u, &p->servers[SERVER_USED])
        {
            struct server *k = list_entry(u, struct server, node);
            if (k->needs_close)
                server_close(k, "close_needed");
        }
    }
}

void shard_kill(struct shard *sh, const char *db)
{
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        bool is_session = c->state >= CLIENT_IDLE && c->state <= CLIENT_ACTIVE;
        if (is_session && (!db || !strcmp(c->db->name, db)))
            client_close(c, "08P01", "admin forced disconnect");
    }
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        if (is_of(p, db))
            close_servers(p, "admin forced disconnect");
    }
}

bool shard_kill_client(struct shard *sh, uint64_t id)
{
    struct client *c = shard_find_client(sh, id);
    if (!c)
        return false;
    client_close(c, "08P01", "admin forced disconnect");
    return true;
}

struct client *shard_find_client(struct shard *sh, uint64_t id)
{
    struct client *c = sh->ids[id % ID_BUCKETS];
    while (c && c->id != id)
        c = c->next_id;
    return c;
}

void shard_drain_clients(struct shard *sh)
{
    sh->is_draining = true;
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        if (c->state == CLIENT_IDLE || c->state == CLIENT_WAITING)
            client_close(c, "57P01", "server shutting down");
    }
}

int shard_count_to_leave(const struct shard *sh)
{
    int n = sh->n_clients;
    for (struct list *i = sh->pools.next; i != &sh->pools; i = i->next)
        n -= count_endless(list_entry(i, struct pool, node));
    return n;
}

int shard_count_servers(const struct shard *sh)
{
    int n = 0;
    for (struct list *i = sh->pools.next; i != &sh->pools; i = i->next)
        n += pool_count_servers(list_entry(i, struct pool, node));
    return n;
}

/* ---------------------------------------------------------------------- views
 */

static int64_t wait_in_front(const struct shard *sh, const struct list *waiting)
{
    const struct list *first = waiting->next;
    if (list_empty(waiting))
        return 0;
    return shard_now(sh) -
           container_of(first, const struct client, node_pool)->wait_us;
}

/* Of the clients that want a server, or the settings of one; 0 when none
 * waits. */
static int64_t longest_wait(const struct pool *p)
{
    return MAX(wait_in_front(p->shard, &p->waiting),
               wait_in_front(p->shard, &p->login_waiting));
}

void shard_each_pool(struct shard *sh, pool_view_cb cb, void *arg)
{
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        struct pool_view v = {
            .database = p->rec->db->name,
            .user = p->rec->user->name,
            .rec = p->rec,
            .mode = p->mode,
            .cdb = p->cdb,
            .cl_active = p->n_clients - p->n_waiting,
            .cl_waiting = p->n_waiting + p->n_login_waiting,
            .sv_active = p->n_servers[SERVER_ACTIVE],
            .sv_being_canceled = p->n_servers[SERVER_CANCELED],
            .sv_idle = p->n_servers[SERVER_IDLE],
            .sv_used = p->n_servers[SERVER_USED],
            .sv_tested = p->n_servers[SERVER_TESTED],
            .sv_login = p->n_servers[SERVER_LOGIN],
            .maxwait_us = longest_wait(p),
            .stats = p->stats,
        };
        cancel_count(p, &v.cl_active_cancel, &v.cl_waiting_cancel);
        v.sv_active_cancel = v.cl_active_cancel;
        cb(arg, &v);
    }
}

static void view_tls(const struct stream *st, char buf[TLS_TEXT_MAX])
{
    const struct tls_info *tls = st ? stream_tls(st) : NULL;
    buf[0] = 0;
    if (tls)
        tls_text(tls, buf);
}

static void view_application(const struct pg_params *params,
                             struct conn_view *v)
{
    v->application_name[0] = 0;
    if (!params)
        return;
    struct slice name = pg_params_get(params, slice_str("application_name"));
    if (name.p)
        slice_copy(name, v->application_name, sizeof v->application_name);
}

static const char *replication_name(uint8_t kind)
{
    return kind == PG_REPLICATION_PHYSICAL  ? "physical"
           : kind == PG_REPLICATION_LOGICAL ? "logical"
                                            : "none";
}

static const char *client_state_name(const struct client *c)
{
    switch ((enum client_state)c->state) {
    case CLIENT_WAITING:
        return "waiting";
    case CLIENT_CANCEL:
        return "active_cancel_req";
    case CLIENT_IDLE:
        return "idle";
    case CLIENT_LOGIN:
        return list_is_linked(&c->node_pool) ? "waiting" : "login";
    default:
        return "active";
    }
}

void shard_each_client(struct shard *sh, conn_view_cb cb, void *arg)
{
    char tls[TLS_TEXT_MAX];
    int64_t now = shard_now(sh);
    list_for(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        struct conn_view v = {
            .is_client = true,
            .user = c->user ? c->user->name : client_login_user(c),
            .database = c->db ? c->db->name : client_login_database(c),
            .state = client_state_name(c),
            .replication = replication_name(c->replication),
            .stream = c->stream,
            .connect_age_us = now - c->connect_us,
            .request_age_us = now - c->request_us,
            .wait_us = list_is_linked(&c->node_pool) && c->wait_us
                           ? now - c->wait_us
                           : 0,
            .ptr = c,
            .link = c->server,
            .tls = tls,
            .prepared_statements = prepared_count_client(c),
            .id = c->id,
            .backend_pid = c->server ? c->server->pid : 0,
            .may_use_mptcp = sh->conf->listen_mptcp,
        };
        view_tls(c->stream, tls);
        view_application(c->params, &v);
        cb(arg, &v);
    }
}

void shard_each_server(struct shard *sh, conn_view_cb cb, void *arg)
{
    char tls[TLS_TEXT_MAX];
    int64_t now = shard_now(sh);
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        for (int i = 0; i < SERVER_CLOSED; i++)
            list_for(n, &p->servers[i])
            {
                struct server *s = list_entry(n, struct server, node);
                struct conn_view v = {
                    .user = p->rec->user->name,
                    .database = p->rec->db->name,
                    .state = server_state_name(s),
                    .replication = replication_name(
                        s->client ? s->client->replication : 0),
                    .stream = s->stream,
                    .connect_age_us = now - s->connect_us,
                    .request_age_us = now - s->request_us,
                    .close_needed = s->needs_close,
                    .ptr = s,
                    .link = s->client,
                    .remote_pid = s->pid,
                    .tls = tls,
                    .prepared_statements = (int)s->n_stmts,
                    .id = s->id,
                    .backend_pid = s->pid,
                    .may_use_mptcp = server_wants_mptcp(s),
                };
                view_tls(s->stream, tls);
                view_application(s->params, &v);
                cb(arg, &v);
            }
    }
}

static size_t count_buffers(const struct pool *p)
{
    size_t bytes = 0;
    for (int i = 0; i < SERVER_CLOSED; i++)
        for (const struct list *n = p->servers[i].next; n != &p->servers[i];
             n = n->next) {
            const struct server *s = container_of(n, const struct server, node);
            bytes += s->in.cap + (s->stream ? stream_pending(s->stream) : 0);
        }
    return bytes;
}

const struct tally *shard_tally(const struct shard *sh)
{
    return &sh->tally;
}

void shard_get_counts(struct shard *sh, struct shard_counts *out)
{
    *out = (struct shard_counts){
        .lent = sh->n_lent,
        .longest_wait_us = sh->longest_wait_us,
        .borrowed = sh->n_borrowed,
        .moved_in = sh->n_moved_in,
        .moved_out = sh->n_moved_out,
        .load_permille = atomic_load(&sh->shared->load[sh->index].used),
        .cpu_us = sh->balance.cpu_clock ? sh->balance.cpu_clock() : 0,
        .client_size = sizeof(struct client),
        .server_size = sizeof(struct server),
        .pool_size = sizeof(struct pool),
        .spare_bytes = bufq_pool_size(loop_pool(sh->loop)),
    };
    list_for(n, &sh->clients)
    {
        const struct client *c = list_entry(n, struct client, node_all);
        out->clients++;
        out->login_clients += c->state == CLIENT_LOGIN;
        out->used_clients += c->state != CLIENT_LOGIN;
        out->buffer_bytes += c->in.cap + stream_pending(c->stream);
    }
    list_for(m, &sh->pools)
    {
        const struct pool *p = list_entry(m, struct pool, node);
        out->pools++;
        out->xacts += p->stats.xact_count;
        out->servers += pool_count_servers(p);
        out->buffer_bytes += count_buffers(p);
        out->maxwait_us = MAX(out->maxwait_us, longest_wait(p));
    }
    if (sh->resolver) {
        out->dns_names = resolver_n_cached(sh->resolver);
        out->dns_zones = resolver_n_zones(sh->resolver);
        out->dns_pending = resolver_n_waiting(sh->resolver);
    }
}
