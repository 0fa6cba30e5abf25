/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "edge/upstream.h"

#include <stdlib.h>

#include "base/log.h"

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

int upstream_new(struct upstream **out, struct loop *loop,
                 const struct upstream_options *o, struct err *e)
{
    struct upstream *u = mem_new(sizeof *u);
    struct resolver_options ro = {.max_ttl_us = 15 * 1000000,
                                  .nxdomain_ttl_us = 1000000};
    u->loop = loop;
    u->o = *o;
    list_init(&u->dials);
    target_text(&o->target, u->text, sizeof u->text);
    int rc = resolver_new(&u->resolver, loop, &ro, e);
    if (rc == 0 && o->target.kind == TARGET_QUIC)
        rc = load_quic(u, e);
    if (rc == 0 && (o->target.kind == TARGET_TLS || o->fallback_tls))
        rc = load_tls(u, e);
    if (rc) {
        upstream_free(u);
        return rc;
    }
    if (u->quic)
        u->hub = hub_new(u);
    *out = u;
    return 0;
}

void upstream_free(struct upstream *u)
{
    if (!u)
        return;
    dial_stop_all(u);
    if (u->hub)
        hub_free(u->hub);
    quic_host_free(u->quic);
    quic_tls_unref(u->quic_tls);
    tls_ctx_unref(u->tls);
    if (u->resolver)
        resolver_free(u->resolver);
    free(u);
}

void upstream_ask(struct upstream *u, struct upstream_ask *a)
{
    list_init(&a->node);
    a->up = u;
    a->dial = NULL;
    a->deadline_us = loop_now_us(u->loop) + u->o.wait_us;
    if (u->hub && !u->has_fallen_back)
        hub_ask(u->hub, a);
    else
        dial_start(u, a);
}

void upstream_take_back(struct upstream_ask *a)
{
    if (a->dial)
        dial_take_back(a);
    else
        hub_take_back(a);
}

/* --- addresses --------------------------------------------------------------
 */

static void on_resolved(void *arg, const struct addr *at, size_t n,
                        const struct err *e)
{
    struct lookup *l = arg;
    struct addr with_port[16];
    l->question = NULL;
    n = MIN(n, ARRAY_SIZE(with_port));
    for (size_t i = 0; i < n; i++) {
        with_port[i] = at[i];
        addr_set_port(&with_port[i], l->up->o.target.port);
    }
    l->cb(l, with_port, n, e);
}

static void on_number(struct task *t)
{
    struct lookup *l = container_of(t, struct lookup, task);
    l->cb(l, &l->number, 1, NULL);
}

void lookup_start(struct lookup *l, struct upstream *u)
{
    const struct target *t = &u->o.target;
    l->up = u;
    l->question = NULL;
    l->task.run = on_number;
    list_init(&l->task.node);
    if (addr_parse_ip(slice_str(t->host), t->port, &l->number))
        loop_defer(u->loop, &l->task);
    else
        l->question = resolve_start(u->resolver, t->host, on_resolved, l);
}

void lookup_stop(struct lookup *l)
{
    if (!l->up)
        return;
    if (l->question)
        resolve_cancel(l->question);
    l->question = NULL;
    loop_cancel(&l->task);
}
