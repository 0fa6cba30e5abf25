/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/quic_listeners.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "main/addresses.h"
#include "net/quic.h"
#include "pool/shared.h"

_Static_assert((int)QUIC_CONGESTION_BBR == (int)CONF_CONGESTION_BBR,
               "quic_congestion and conf_congestion have the same order");

enum { HANDSHAKE_TIMEOUT_US = 10 * 1000000 };

/* Of one worker; its thread's from the start on. */
struct on_worker {
    struct quic_host *host;
    struct quic_listener *at[ADDRESSES_MAX]; /* NULL: closed */
};

struct quic_listeners {
    int n_workers, n;
    int *fds;   /* [address * n_workers + worker]; -1: the listener's */
    int *known; /* the same, after that, too */
    struct addr where[ADDRESSES_MAX];
    struct quic_group *group[ADDRESSES_MAX];
    struct on_worker *worker;
    struct team *team;
    struct quic_shared *shared;
    struct quic_tls *tls;
    struct quic_limits limits;
};

/* --- settings ---------------------------------------------------------------
 */

static bool is_set(const char *s)
{
    return s && *s;
}

static const char *or_else(const char *a, const char *b)
{
    return is_set(a) ? a : b;
}

static int load_tls(struct quic_listeners *q, const struct conf *c,
                    struct quic_tls **out, struct err *e)
{
    bool is_shared =
        !is_set(c->quic_tls_cert_file) && is_set(c->client_tls_cert_file);
    struct quic_tls_params p = {
        .prefix = is_shared ? "client_tls" : "quic_tls",
        .ca_prefix = is_set(c->quic_tls_ca_file) ? "quic_tls" : "client_tls",
        .cert_file = or_else(c->quic_tls_cert_file, c->client_tls_cert_file),
        .key_file = or_else(c->quic_tls_key_file, c->client_tls_key_file),
        .ca_file = or_else(c->quic_tls_ca_file, c->client_tls_ca_file),
        .require_cert = c->client_tls_sslmode >= CONF_SSL_VERIFY_CA,
    };
    return quic_tls_new_server(out, q->shared, &p, e);
}

static int load_secrets(struct quic_listeners *q, const struct conf *c,
                        struct err *e)
{
    const char *key = or_else(c->quic_tls_key_file, c->client_tls_key_file);
    int rc = quic_shared_new(&q->shared, key, e);
    if (rc)
        return err_wrap(e, "%s",
                        is_set(c->quic_tls_key_file) ? "quic_tls_key_file"
                                                     : "client_tls_key_file");
    return load_tls(q, c, &q->tls, e);
}

static struct quic_limits limits_of(const struct conf *c)
{
    return (struct quic_limits){
        .congestion = (enum quic_congestion)c->quic_congestion_control,
        .windows =
            {
                .stream = (uint64_t)c->quic_stream_window,
                .stream_max = (uint64_t)c->quic_max_stream_window,
                .conn = (uint64_t)c->quic_connection_window,
                .conn_max = (uint64_t)c->quic_max_connection_window,
            },
        .max_streams = c->quic_max_streams,
        .max_conns_per_host = c->quic_max_connections_per_address,
        .retry_above = c->quic_retry_threshold,
        .idle_timeout_us = c->quic_idle_timeout_us,
        .handshake_timeout_us = HANDSHAKE_TIMEOUT_US,
    };
}

/* --- opening ----------------------------------------------------------------
 */

/* How many of the sockets that are given are for this address; those of the
 * workers are put in their places. */
static int find_given(struct given *g, const struct addr *at,
                      struct given_socket **out, int n_workers)
{
    struct addr a;
    int n = 0;
    for (int i = 0; g && i < g->n; i++) {
        struct given_socket *k = &g->at[i];
        if (k->fd < 0 || k->kind != GIVEN_UDP || addr_of_self(k->fd, &a) ||
            !addr_eq(&a, at))
            continue;
        n++;
        if (k->worker >= 0 && k->worker < n_workers)
            out[k->worker] = k;
    }
    return n;
}

/* 1: they are taken; 0: there are none. */
static int take_given(struct quic_listeners *q, struct given *g,
                      const struct addr *at, int *fds, struct err *e)
{
    struct given_socket *k[SHARDS_MAX] = {NULL};
    int n = find_given(g, at, k, q->n_workers), found = 0;
    if (n == 0)
        return 0;
    for (int i = 0; i < q->n_workers; i++)
        found += k[i] != NULL;
    if (n != q->n_workers || found != n)
        return err_set(e, ERR_CONF,
                       "quic_listen_addr: with QUIC the number of workers "
                       "cannot change in an upgrade (%d before, %d now); set "
                       "workers = %d, or restart",
                       n, q->n_workers, n);
    for (int i = 0; i < n; i++) {
        fds[i] = k[i]->fd;
        k[i]->fd = -1;
    }
    return 1;
}

static int open_at(struct quic_listeners *q, const struct conf *c,
                   struct given *given, const struct addr *at, struct err *e)
{
    int *fds = q->fds + q->n * q->n_workers;
    int rc = take_given(q, given, at, fds, e);
    if (rc == 0)
        rc = quic_sockets_open(fds, q->n_workers, c->so_reuseport, at, e);
    if (rc < 0)
        return rc;
    memcpy(q->known + q->n * q->n_workers, fds,
           (size_t)q->n_workers * sizeof *fds);
    return 0;
}

static int open_sockets(struct quic_listeners *q, const struct conf *c,
                        struct given *given, struct err *e)
{
    struct addresses as;
    int port = c->quic_listen_port ? c->quic_listen_port : c->listen_port;
    int rc =
        addresses_find(&as, "quic_listen_addr", &c->quic_listen_addr, port, e);
    for (int i = 0; i < as.n && rc == 0; i++) {
        rc = open_at(q, c, given, &as.at[i], e);
        if (rc && as.is_optional[i]) {
            log_warning("%s; going on without IPv6", e->text);
            rc = 0;
        } else if (rc == 0) {
            q->group[q->n] =
                quic_group_new(q->shared, q->n_workers, c->so_reuseport);
            q->where[q->n++] = as.at[i];
        }
    }
    return rc;
}

int quic_listeners_open(struct quic_listeners **out, const struct conf *c,
                        int n_workers, struct given *given, struct err *e)
{
    *out = NULL;
    if (c->quic_listen_addr.n == 0)
        return 0;
    struct quic_listeners *q = mem_new(sizeof *q);
    q->n_workers = n_workers;
    q->fds = mem_new_array((size_t)n_workers * ADDRESSES_MAX, sizeof *q->fds);
    q->known = mem_new_array((size_t)n_workers * ADDRESSES_MAX, sizeof *q->fds);
    q->worker = mem_new_array((size_t)n_workers, sizeof *q->worker);
    q->limits = limits_of(c);
    int rc = load_secrets(q, c, e);
    if (rc == 0)
        rc = open_sockets(q, c, given, e);
    if (rc) {
        quic_listeners_free(q);
        return rc;
    }
    *out = q;
    return 0;
}

int quic_listeners_check(const struct conf *c, struct err *e)
{
    struct quic_listeners q = {.n_workers = 0};
    if (c->quic_listen_addr.n == 0)
        return 0;
    int rc = load_secrets(&q, c, e);
    quic_tls_unref(q.tls);
    quic_shared_free(q.shared);
    return rc;
}

void quic_listeners_log(const struct quic_listeners *q)
{
    char where[ADDR_TEXT_MAX];
    for (int i = 0; q && i < q->n; i++) {
        addr_text(&q->where[i], where, sizeof where);
        log_info("listening on %s for QUIC (%s)", where, quic_version());
    }
}

/* --- on the workers ---------------------------------------------------------
 */

static bool on_stream(void *arg, struct stream *s, const struct addr *peer)
{
    return shard_accept_stream(arg, s, peer) != NULL;
}

static void start_on(struct shard *sh, void *arg)
{
    struct quic_listeners *q = arg;
    int w = shard_index(sh);
    struct on_worker *on = &q->worker[w];
    struct err e;
    if (quic_host_new(&on->host, shard_loop(sh), &e)) {
        log_error("worker %d: %s", w, e.text);
        return;
    }
    shard_set_quic(sh, on->host);
    for (int i = 0; i < q->n; i++) {
        struct quic_listener_params p = {
            .fd = q->fds[i * q->n_workers + w],
            .worker = w,
            .n_workers = q->n_workers,
            .group = q->group[i],
            .shared = q->shared,
            .tls = q->tls,
            .limits = q->limits,
            .on_stream = on_stream,
            .arg = sh,
        };
        q->fds[i * q->n_workers + w] = -1;
        if (quic_listener_new(&on->at[i], on->host, &p, &e))
            log_error("worker %d: %s", w, e.text);
    }
}

void quic_listeners_start(struct quic_listeners *q, struct team *team)
{
    if (!q)
        return;
    q->team = team;
    for (int i = 0; i < q->n; i++)
        for (int w = 0; w < q->n_workers; w++)
            quic_group_set_loop(q->group[i], w,
                                shard_loop(team_shard(team, w)));
    for (int i = 0; i < q->n_workers; i++)
        team_run_on(team, i, start_on, q);
}

struct settings {
    struct quic_listeners *q;
    struct quic_tls *tls;
    struct quic_limits limits;
};

static void set_on(struct shard *sh, void *arg)
{
    struct settings *s = arg;
    for (int i = 0; i < s->q->n; i++) {
        struct quic_listener *l = s->q->worker[shard_index(sh)].at[i];
        if (l)
            quic_listener_set(l, s->tls, &s->limits);
    }
    quic_tls_unref(s->tls);
    free(s);
}

int quic_listeners_reload(struct quic_listeners *q, const struct conf *c,
                          struct err *e)
{
    struct quic_tls *tls;
    if (!q)
        return 0;
    int rc = load_tls(q, c, &tls, e);
    if (rc)
        return rc;
    quic_tls_unref(q->tls);
    q->tls = tls;
    for (int i = 0; i < q->n_workers; i++) {
        struct settings *s = mem_new(sizeof *s);
        *s = (struct settings){q, quic_tls_ref(tls), limits_of(c)};
        team_run_on(q->team, i, set_on, s);
    }
    return 0;
}

void quic_listeners_give(const struct quic_listeners *q, struct given *out)
{
    for (int i = 0; q && i < q->n * q->n_workers; i++) {
        int fd = fcntl(q->known[i], F_DUPFD_CLOEXEC, 0);
        if (fd < 0 || out->n == GIVEN_MAX)
            return;
        out->at[out->n++] = (struct given_socket){
            .fd = fd, .kind = GIVEN_UDP, .worker = i % q->n_workers};
    }
}

static void give_away_on(struct shard *sh, void *arg)
{
    struct quic_listeners *q = arg;
    for (int i = 0; i < q->n; i++) {
        struct quic_listener *l = q->worker[shard_index(sh)].at[i];
        if (l)
            quic_listener_give_away(l, true);
    }
}

static void take_back_on(struct shard *sh, void *arg)
{
    struct quic_listeners *q = arg;
    for (int i = 0; i < q->n; i++) {
        struct quic_listener *l = q->worker[shard_index(sh)].at[i];
        if (l)
            quic_listener_give_away(l, false);
    }
}

void quic_listeners_give_away(struct quic_listeners *q, bool is_given_away)
{
    for (int i = 0; q && i < q->n_workers; i++)
        team_run_on(q->team, i, is_given_away ? give_away_on : take_back_on, q);
}

static void drain_on(struct shard *sh, void *arg)
{
    struct quic_listeners *q = arg;
    for (int i = 0; i < q->n; i++) {
        struct quic_listener *l = q->worker[shard_index(sh)].at[i];
        if (l)
            quic_listener_drain(l);
    }
}

void quic_listeners_drain(struct quic_listeners *q)
{
    for (int i = 0; q && i < q->n_workers; i++)
        team_run_on(q->team, i, drain_on, q);
}

/* The sessions first, so that each hears why it ends. */
void quic_listeners_close_on(struct quic_listeners *q, struct shard *sh)
{
    if (!q)
        return;
    struct on_worker *on = &q->worker[shard_index(sh)];
    if (!on->host)
        return;
    shard_close_streams(sh);
    shard_set_quic(sh, NULL);
    quic_host_free(on->host);
    *on = (struct on_worker){.host = NULL};
}

void quic_listeners_free(struct quic_listeners *q)
{
    if (!q)
        return;
    for (int i = 0; i < q->n * q->n_workers; i++)
        if (q->fds[i] >= 0)
            close(q->fds[i]);
    for (int i = 0; i < q->n; i++)
        quic_group_free(q->group[i]);
    quic_tls_unref(q->tls);
    quic_shared_free(q->shared);
    free(q->fds);
    free(q->known);
    free(q->worker);
    free(q);
}
