/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "edge/upstream.h"

#include <stdlib.h>

#include "base/log.h"
#include "net/mptcp_pm.h"

static int load_quic(struct upstream *u, struct err *e)
{
    const struct upstream_options *o = &u->o;
    struct quic_tls_params p = {
        .prefix = "edge",
        .ca_file = o->ca_file,
        .cert_file = o->cert_file,
        .key_file = o->key_file,
        .no_verify = o->no_verify,
    };
    int rc = quic_tls_new_client(&u->quic_tls, &p, e);
    return rc ? rc : quic_host_new(&u->quic, u->loop, e);
}

static int load_tls(struct upstream *u, struct err *e)
{
    const struct upstream_options *o = &u->o;
    struct tls_params p = {
        .prefix = "edge",
        .mode = o->no_verify ? TLS_MODE_REQUIRE : TLS_MODE_VERIFY_FULL,
        .ca_file = o->no_verify ? NULL : o->ca_file,
        .cert_file = o->cert_file,
        .key_file = o->key_file,
    };
    return tls_ctx_new_client(&u->tls, &p, e);
}

/* UDP does not get through. The hub goes on trying. */
static void fall_back(void *arg)
{
    struct upstream *u = arg;
    if (!u->o.fallback_tls || u->has_fallen_back)
        return;
    u->has_fallen_back = true;
    log_warning("edge: sessions go over TLS to %s:%d until QUIC works",
                u->o.target.host, u->o.target.port);
}

static void come_back(void *arg)
{
    struct upstream *u = arg;
    u->has_fallen_back = false;
}

static void make_hub(struct upstream *u)
{
    struct quic_hub_params p = {
        .loop = u->loop,
        .quic = u->quic,
        .tls = u->quic_tls,
        .resolver = u->resolver,
        .host = u->o.target.host,
        .port = u->o.target.port,
        .log_prefix = "edge",
        .connections = u->o.connections,
        .streams_per_connection = u->o.streams_per_connection,
        .on_unreachable = fall_back,
        .on_up = come_back,
        .arg = u,
    };
    u->hub = quic_hub_new(&p);
}

int upstream_new(struct upstream **out, struct loop *loop,
                 const struct upstream_options *o, struct err *e)
{
    struct upstream *u = mem_new(sizeof *u);
    struct resolver_options ro = {.max_ttl_us = 15 * 1000000,
                                  .nxdomain_ttl_us = 1000000};
    u->loop = loop;
    u->o = *o;
    u->seen_mptcp = u->seen_subflows = -1;
    list_init(&u->dials);
    target_text(&o->target, u->text, sizeof u->text);
    int rc = resolver_new(&u->resolver, loop, &ro, e);
    if (rc == 0 && o->target.kind == TARGET_QUIC)
        rc = load_quic(u, e);
    if (rc == 0 && (o->target.kind == TARGET_TLS || o->fallback_tls))
        rc = load_tls(u, e);
    if (rc == 0)
        rc = upstream_load_mptcp(u, e);
    if (rc) {
        upstream_free(u);
        return rc;
    }
    if (u->quic)
        make_hub(u);
    *out = u;
    return 0;
}

void upstream_free(struct upstream *u)
{
    if (!u)
        return;
    dial_stop_all(u);
    quic_hub_free(u->hub);
    quic_host_free(u->quic);
    quic_tls_unref(u->quic_tls);
    tls_ctx_unref(u->tls);
    mptcp_pm_free(u->path_manager);
    if (u->resolver)
        resolver_free(u->resolver);
    free(u);
}

static void on_stream(struct quic_ask *q, struct stream *s)
{
    struct upstream_ask *a = container_of(q, struct upstream_ask, quic);
    a->on_stream(a, s);
}

static void on_fail(struct quic_ask *q, const struct err *e)
{
    struct upstream_ask *a = container_of(q, struct upstream_ask, quic);
    if (a->up->has_fallen_back)
        dial_start(a->up, a);
    else
        a->on_fail(a, e);
}

void upstream_ask(struct upstream *u, struct upstream_ask *a)
{
    a->up = u;
    a->dial = NULL;
    a->deadline_us = loop_now_us(u->loop) + u->o.wait_us;
    a->quic.deadline_us = a->deadline_us;
    a->quic.on_stream = on_stream;
    a->quic.on_fail = on_fail;
    if (u->hub && !u->has_fallen_back)
        quic_hub_ask(u->hub, &a->quic);
    else
        dial_start(u, a);
}

void upstream_take_back(struct upstream_ask *a)
{
    if (a->dial)
        dial_take_back(a);
    else
        quic_hub_take_back(&a->quic);
}
