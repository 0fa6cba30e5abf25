/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A connection of its own for a session, over TCP or TLS:
 *
 *   look-up, connect, and for TLS: SSLRequest, 'S', handshake
 *
 * Each address is tried in turn until one can be connected to. */
#include <stdlib.h>

#include "edge/upstream.h"
#include "net/tls.h"
#include "pg/pg_write.h"

struct dial {
    struct list node; /* in upstream.dials */
    struct upstream *up;
    struct upstream_ask *ask;
    struct lookup lookup;
    struct addr at[16];
    size_t n_at, next_at;
    struct stream *s;
    bool has_asked; /* SSLRequest is out */
    bool is_secured;
    struct timer timer;
};

static bool wants_tls(const struct dial *d)
{
    return d->up->o.target.kind != TARGET_TCP;
}

static void end(struct dial *d)
{
    lookup_stop(&d->lookup);
    timer_clear(d->up->loop, &d->timer);
    list_remove(&d->node);
    d->ask->dial = NULL;
    loop_free_later(d->up->loop, d);
}

static void fail(struct dial *d, const struct err *e)
{
    struct upstream_ask *a = d->ask;
    struct err why = *e;
    if (d->s)
        stream_close(d->s);
    (void)err_wrap(&why, "%s", d->up->text);
    end(d);
    a->on_fail(a, &why);
}

static void succeed(struct dial *d)
{
    struct upstream_ask *a = d->ask;
    struct stream *s = d->s;
    end(d);
    a->on_stream(a, s);
}

static void try_next(struct dial *d, const struct err *last);

static void on_open(struct stream *s)
{
    struct dial *d = s->owner;
    struct pgbuf b;
    struct err e;
    if (!d->is_secured && upstream_check_mptcp(d->up, stream_fd(s), &e)) {
        fail(d, &e);
        return;
    }
    if (!wants_tls(d) || d->is_secured) {
        succeed(d);
        return;
    }
    pgbuf_init(&b, 64);
    pg_put_ssl_request(&b);
    d->has_asked = true;
    (void)stream_write(s, b.p, b.n);
    pgbuf_fini(&b);
}

static void on_data(struct stream *s, const char *p, size_t n);

static void on_eof(struct stream *s)
{
    struct err e;
    (void)err_set(&e, ERR_CLOSED, "the peer closed the connection");
    fail(s->owner, &e);
}

static void on_error(struct stream *s, const struct err *e)
{
    struct dial *d = s->owner;
    if (d->has_asked) {
        fail(d, e);
        return;
    }
    stream_close(s);
    d->s = NULL;
    try_next(d, e);
}

static const struct stream_handler handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_error = on_error,
};

static void on_data(struct stream *s, const char *p, size_t n)
{
    struct dial *d = s->owner;
    struct err e;
    if (!d->has_asked || d->is_secured || n != 1 || *p != 'S') {
        (void)err_set(&e, ERR_TLS,
                      n == 1 && *p == 'N' ? "the peer has no TLS"
                                          : "unexpected answer to SSLRequest");
        fail(d, &e);
        return;
    }
    d->is_secured = true;
    d->s = tls_connect(s, d->up->tls, d->up->o.target.host, TLS_ALPN_POSTGRESQL,
                       &handler, d);
}

static void try_next(struct dial *d, const struct err *last)
{
    const struct sock_options o = {.keepalive = true,
                                   .mptcp = d->up->o.target.mptcp};
    struct err e = *last;
    while (!d->s && d->next_at < d->n_at)
        d->s = sock_connect(d->up->loop, &d->at[d->next_at++], &o, &handler, d,
                            &e);
    if (!d->s)
        fail(d, &e);
}

static void on_addresses(struct lookup *l, const struct addr *at, size_t n,
                         const struct err *e)
{
    struct dial *d = container_of(l, struct dial, lookup);
    struct err none = {0};
    d->n_at = MIN(n, ARRAY_SIZE(d->at));
    if (n)
        memcpy(d->at, at, d->n_at * sizeof *at);
    try_next(d, e ? e : &none);
}

static void on_time(struct timer *t)
{
    struct err e;
    (void)err_set(&e, ERR_TIMEOUT, "no connection in time");
    fail(container_of(t, struct dial, timer), &e);
}

void dial_start(struct upstream *u, struct upstream_ask *a)
{
    struct dial *d = mem_new(sizeof *d);
    d->up = u;
    d->ask = a;
    a->dial = d;
    d->lookup.cb = on_addresses;
    d->timer.on_fire = on_time;
    list_init(&d->node);
    list_push_back(&u->dials, &d->node);
    timer_set(u->loop, &d->timer, a->deadline_us);
    lookup_start(&d->lookup, u->loop, u->resolver, u->o.target.host,
                 u->o.target.port);
}

void dial_take_back(struct upstream_ask *a)
{
    struct dial *d = a->dial;
    if (d->s)
        stream_close(d->s);
    end(d);
}

void dial_stop_all(struct upstream *u)
{
    while (!list_empty(&u->dials))
        dial_take_back(
            list_entry(list_first(&u->dials), struct dial, node)->ask);
}
