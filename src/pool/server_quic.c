/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/server_quic.h"

#include <stdlib.h>

#include "base/log.h"
#include "pool/impl.h"

/* One place, and how its certificate is looked at. */
struct way {
    struct list node; /* in shard.quic_ways */
    struct shard *shard;
    struct quic_hub *hub;
    char *host;
    int port;
    enum conf_sslmode mode;
    char *ca_file, *cert_file, *key_file; /* NULL: none */
    bool is_retired;                      /* goes when it is unused */
};

static char *copy(const char *s)
{
    return s ? mem_strdup(s) : NULL;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static bool is_for(const struct way *w, const struct conf *c,
                   const struct conf_db *db, const char *host, int port)
{
    return !w->is_retired && w->port == port && !strcmp(w->host, host) &&
           w->mode == conf_server_sslmode(c, db) &&
           same(w->ca_file, conf_server_ca_file(c, db)) &&
           same(w->cert_file, conf_server_cert_file(c, db)) &&
           same(w->key_file, conf_server_key_file(c, db));
}

/* --- the peer goes away -----------------------------------------------------
 */

static void leave(struct server *s)
{
    if (!s->stream || s->stream->kind != STREAM_QUIC || s->login ||
        !quic_stream_is_draining(s->stream))
        return;
    s->needs_close = true;
    if (s->state == SERVER_IDLE || s->state == SERVER_USED)
        server_close(s, "the pooler behind takes no new sessions");
}

/* Servers on a connection that is drained go as soon as they are free, or the
 * other side would wait for them. */
static void on_drain(void *arg)
{
    struct way *w = arg;
    list_for(n, &w->shard->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        for (int i = 0; i < SERVER_CLOSED; i++)
            list_for_safe(k, &p->servers[i])
                leave(list_entry(k, struct server, node));
    }
}

/* --- making them ------------------------------------------------------------
 */

static int open_host(struct shard *sh, struct err *e)
{
    return sh->quic_out ? 0 : quic_host_new(&sh->quic_out, sh->loop, e);
}

static struct way *way_new(struct shard *sh, const struct conf_db *db,
                           const char *host, int port)
{
    const struct conf *c = sh->conf;
    struct way *w = mem_new(sizeof *w);
    w->shard = sh;
    w->host = mem_strdup(host);
    w->port = port;
    w->mode = conf_server_sslmode(c, db);
    w->ca_file = copy(conf_server_ca_file(c, db));
    w->cert_file = copy(conf_server_cert_file(c, db));
    w->key_file = copy(conf_server_key_file(c, db));
    list_init(&w->node);
    return w;
}

static void way_free(struct way *w)
{
    list_remove(&w->node);
    quic_hub_free(w->hub);
    free(w->host);
    free(w->ca_file);
    free(w->cert_file);
    free(w->key_file);
    free(w);
}

static int open_hub(struct way *w, struct err *e)
{
    struct shard *sh = w->shard;
    struct quic_tls *tls;
    struct quic_tls_params t = {
        .prefix = "server_tls",
        .ca_file = w->ca_file,
        .cert_file = w->cert_file,
        .key_file = w->key_file,
        .no_verify = w->mode < CONF_SSL_VERIFY_CA,
        .no_name = w->mode < CONF_SSL_VERIFY_FULL,
    };
    int rc = quic_tls_new_client(&tls, &t, e);
    if (rc)
        return rc;
    struct quic_hub_params p = {
        .loop = sh->loop,
        .quic = sh->quic_out,
        .tls = tls,
        .resolver = sh->resolver,
        .host = w->host,
        .port = w->port,
        .log_prefix = "server",
        .connections = sh->conf->quic_connections,
        .streams_per_connection = sh->conf->quic_streams_per_connection,
        .congestion = (enum quic_congestion)sh->conf->quic_congestion_control,
        .is_lazy = true,
        .on_drain = on_drain,
        .arg = w,
    };
    w->hub = quic_hub_new(&p);
    quic_tls_unref(tls);
    return 0;
}

int server_quic_hub(struct shard *sh, const struct conf_db *db,
                    const char *host, int port, struct quic_hub **out,
                    struct err *e)
{
    list_for(n, &sh->quic_ways)
    {
        struct way *w = list_entry(n, struct way, node);
        if (is_for(w, sh->conf, db, host, port)) {
            *out = w->hub;
            return 0;
        }
    }
    int rc = open_host(sh, e);
    if (rc)
        return rc;
    struct way *w = way_new(sh, db, host, port);
    rc = open_hub(w, e);
    if (rc) {
        way_free(w);
        return rc;
    }
    list_push_back(&sh->quic_ways, &w->node);
    *out = w->hub;
    return 0;
}

/* --- configuration ----------------------------------------------------------
 */

static bool leads_to(const struct way *w, const struct conf *c,
                     const struct conf_db *db)
{
    if (!db || db->transport != CONF_TRANSPORT_QUIC)
        return false;
    for (int i = 0; i < db->n_hosts; i++)
        if (db->hosts[i].host &&
            is_for(w, c, db, db->hosts[i].host, db->hosts[i].port))
            return true;
    return false;
}

static bool is_wanted(const struct way *w, const struct conf *c)
{
    bool found = leads_to(w, c, conf_fallback_db(c));
    for (int i = 0; i < conf_db_count(c) && !found; i++)
        found = leads_to(w, c, conf_db_at(c, i));
    return found;
}

void server_quic_set_conf(struct shard *sh, bool is_anew)
{
    const struct conf *c = sh->conf;
    list_for(n, &sh->quic_ways)
    {
        struct way *w = list_entry(n, struct way, node);
        quic_hub_set_limits(w->hub, c->quic_connections,
                            c->quic_streams_per_connection,
                            (enum quic_congestion)c->quic_congestion_control);
        w->is_retired = w->is_retired || is_anew || !is_wanted(w, c);
    }
}

void server_quic_sweep(struct shard *sh)
{
    list_for_safe(n, &sh->quic_ways)
    {
        struct way *w = list_entry(n, struct way, node);
        if (w->is_retired && quic_hub_is_idle(w->hub))
            way_free(w);
    }
}

void server_quic_stop(struct shard *sh)
{
    while (!list_empty(&sh->quic_ways))
        way_free(list_entry(list_first(&sh->quic_ways), struct way, node));
    quic_host_free(sh->quic_out);
    sh->quic_out = NULL;
}
