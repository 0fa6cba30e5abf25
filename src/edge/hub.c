/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A few QUIC connections to one pooler, and the sessions on them. A new session
 * goes to the connection with the fewest; when all have their number another
 * one is opened; when there may be no more of them it waits. A connection that
 * cannot be had is tried again, later and later; who waits meanwhile is told at
 * once why, unless another connection may still come to the rescue. One that
 * the pooler drains gets no more sessions and is closed with its last. */
#include <stdlib.h>

#include "base/log.h"
#include "base/rand.h"
#include "edge/upstream.h"

enum {
    BACKOFF_FIRST_US = 100 * 1000,
    BACKOFF_MAX_US = 10 * 1000000,
    ROUNDS_UNTIL_FALLBACK = 1,
    FALLBACK_US = 60 * 1000000, /* then QUIC is tried again */
    TICK_US = 250 * 1000,
    IDLE_TIMEOUT_US = 60 * 1000000,
    HANDSHAKE_TIMEOUT_US = 5 * 1000000,
    LINKS_MAX = 1024,
};

enum link_state {
    LINK_EMPTY,   /* not wanted now, or waits to be tried again */
    LINK_LOOKUP,  /* for the address */
    LINK_CONNECT, /* shaking hands */
    LINK_UP,
    LINK_LEAVING, /* drained by the peer */
};

struct link {
    struct hub *hub;
    enum link_state state;
    struct quic_conn *conn;
    struct lookup lookup;
    struct addr at[16];
    size_t n_at, next_at; /* addresses, the one to be tried next */
};

struct hub {
    struct upstream *up;
    struct list asks; /* the oldest first */
    struct link *links;
    int n_links; /* room for them: twice as many, for those that leave */
    struct timer tick;
    int64_t retry_us; /* no new attempt before */
    int64_t backoff_us;
    int64_t fallback_until_us;
    struct quic_memory memory;
    struct err last; /* why there is no connection */
    struct task serve;
};

static void try_connect(struct link *l);

static int64_t now_of(const struct hub *h)
{
    return loop_now_us(h->up->loop);
}

static int count(const struct hub *h, enum link_state state)
{
    int n = 0;
    for (int i = 0; i < h->n_links; i++)
        n += h->links[i].state == state;
    return n;
}

/* --- who gets what ----------------------------------------------------------
 */

static struct link *best(struct hub *h)
{
    struct link *found = NULL;
    for (int i = 0; i < h->n_links; i++) {
        struct link *l = &h->links[i];
        if (l->state != LINK_UP || quic_conn_room(l->conn) == 0 ||
            quic_conn_streams(l->conn) >= h->up->o.streams_per_connection)
            continue;
        if (!found ||
            quic_conn_streams(l->conn) < quic_conn_streams(found->conn))
            found = l;
    }
    return found;
}

static bool give_stream(struct hub *h, struct upstream_ask *a)
{
    static const struct stream_handler none = {.on_open = NULL};
    struct link *l = best(h);
    struct stream *s = l ? quic_open_stream(l->conn, &none, NULL) : NULL;
    if (!s)
        return false;
    list_remove(&a->node);
    a->on_stream(a, s);
    return true;
}

static void fail_all(struct hub *h)
{
    while (!list_empty(&h->asks)) {
        struct upstream_ask *a =
            list_entry(list_first(&h->asks), struct upstream_ask, node);
        list_remove(&a->node);
        if (h->up->has_fallen_back)
            dial_start(h->up, a);
        else
            a->on_fail(a, &h->last);
    }
}

static void open_another(struct hub *h)
{
    int busy = count(h, LINK_LOOKUP) + count(h, LINK_CONNECT);
    int all = busy + count(h, LINK_UP);
    if (busy || all >= h->up->o.connections || now_of(h) < h->retry_us)
        return;
    for (int i = 0; i < h->n_links; i++)
        if (h->links[i].state == LINK_EMPTY) {
            h->links[i].state = LINK_LOOKUP;
            lookup_start(&h->links[i].lookup, h->up);
            return;
        }
}

static void set_tick(struct hub *h)
{
    if (!timer_is_set(&h->tick))
        timer_set(h->up->loop, &h->tick, now_of(h) + TICK_US);
}

static void serve(struct hub *h)
{
    while (!list_empty(&h->asks)) {
        struct upstream_ask *a =
            list_entry(list_first(&h->asks), struct upstream_ask, node);
        if (!give_stream(h, a))
            break;
    }
    if (!list_empty(&h->asks)) {
        open_another(h);
        set_tick(h);
    }
}

static void on_serve(struct task *t)
{
    serve(container_of(t, struct hub, serve));
}

static void serve_later(struct hub *h)
{
    loop_defer(h->up->loop, &h->serve);
}

static void expire_asks(struct hub *h)
{
    struct err e;
    while (!list_empty(&h->asks)) {
        struct upstream_ask *a =
            list_entry(list_first(&h->asks), struct upstream_ask, node);
        if (a->deadline_us > now_of(h))
            return;
        list_remove(&a->node);
        if (count(h, LINK_UP) > 0)
            (void)err_set(&e, ERR_LIMIT,
                          "all %d connections to %s carry %d sessions already",
                          count(h, LINK_UP), h->up->text,
                          h->up->o.streams_per_connection);
        else
            (void)err_set(&e, ERR_TIMEOUT, "no connection to %s in time%s%s",
                          h->up->text, h->last.text[0] ? ": " : "",
                          h->last.text);
        a->on_fail(a, &e);
    }
}

static void on_tick(struct timer *t)
{
    struct hub *h = container_of(t, struct hub, tick);
    if (h->up->has_fallen_back && now_of(h) >= h->fallback_until_us) {
        h->up->has_fallen_back = false;
        h->retry_us = 0;
    }
    expire_asks(h);
    serve(h);
    if (count(h, LINK_UP) == 0 && !h->up->has_fallen_back)
        open_another(h); /* kept ready for the next session */
    if (count(h, LINK_UP) == 0 || h->up->has_fallen_back)
        set_tick(h);
}

/* --- connections ------------------------------------------------------------
 */

static void grow_backoff(struct hub *h)
{
    uint8_t jitter;
    rand_bytes(&jitter, 1);
    h->retry_us = now_of(h) + h->backoff_us + h->backoff_us * jitter / 1024;
    h->backoff_us = MIN(h->backoff_us * 2, (int64_t)BACKOFF_MAX_US);
}

static void fall_back(struct hub *h)
{
    if (!h->up->o.fallback_tls || h->up->has_fallen_back)
        return;
    h->up->has_fallen_back = true;
    h->fallback_until_us = now_of(h) + FALLBACK_US;
    log_warning("edge: sessions go over TLS to %s:%d until QUIC works",
                h->up->o.target.host, h->up->o.target.port);
}

static void no_connection(struct link *l, const struct err *e)
{
    struct hub *h = l->hub;
    char text[ERR_TEXT_MAX];
    slice_copy(slice_str(e->text), text, sizeof text);
    l->state = LINK_EMPTY;
    l->conn = NULL;
    (void)err_set(&h->last, e->code, "%s: %s", h->up->text, text);
    log_warning("edge: %s", h->last.text);
    grow_backoff(h);
    if (count(h, LINK_UP) == 0) {
        /* UDP does not get through: that is silence or a closed port. A bad
         * certificate is no reason to go another way. */
        if (e->code == ERR_TIMEOUT || e->code == ERR_CONNECT)
            fall_back(h);
        fail_all(h);
    }
    set_tick(h);
}

static void on_up(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    struct hub *h = l->hub;
    l->state = LINK_UP;
    h->backoff_us = BACKOFF_FIRST_US;
    h->retry_us = 0;
    log_info("edge: connected to %s", h->up->text);
    serve_later(h);
}

static void on_down(struct quic_conn *c, const struct err *e)
{
    struct link *l = quic_conn_owner(c);
    struct hub *h = l->hub;
    bool was_up = l->state >= LINK_UP;
    l->conn = NULL;
    if (!was_up && l->next_at < l->n_at && e->code != ERR_TLS) {
        try_connect(l);
        return;
    }
    if (!was_up) {
        no_connection(l, e);
        return;
    }
    l->state = LINK_EMPTY;
    log_warning("edge: connection to %s lost: %s", h->up->text, e->text);
    set_tick(h);
    serve_later(h);
}

static void close_if_left(struct link *l)
{
    if (l->state != LINK_LEAVING || quic_conn_streams(l->conn) > 0)
        return;
    quic_conn_close(l->conn, QUIC_CODE_NONE);
    l->conn = NULL;
    l->state = LINK_EMPTY;
}

static void on_drain(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    log_info("edge: %s takes no new sessions on a connection that has %d",
             l->hub->up->text, quic_conn_streams(c));
    l->state = LINK_LEAVING;
    close_if_left(l);
    set_tick(l->hub);
}

static void on_room(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    struct hub *h = l->hub;
    close_if_left(l);
    if (!list_empty(&h->asks))
        serve_later(h);
}

static const struct quic_conn_handler handler = {
    .on_up = on_up,
    .on_down = on_down,
    .on_drain = on_drain,
    .on_room = on_room,
};

static void try_connect(struct link *l)
{
    struct hub *h = l->hub;
    struct err e;
    struct quic_connect_params p = {
        .tls = h->up->quic_tls,
        .host = h->up->o.target.host,
        .is_tunnel = true,
        .memory = &h->memory,
        .idle_timeout_us = IDLE_TIMEOUT_US,
        .handshake_timeout_us = HANDSHAKE_TIMEOUT_US,
    };
    int rc = ERR_CONNECT;
    l->state = LINK_CONNECT;
    while (rc && l->next_at < l->n_at)
        rc = quic_connect(&l->conn, h->up->quic, &l->at[l->next_at++], &p,
                          &handler, l, &e);
    if (rc)
        no_connection(l, &e);
}

static void on_addresses(struct lookup *lookup, const struct addr *at, size_t n,
                         const struct err *e)
{
    struct link *l = container_of(lookup, struct link, lookup);
    l->n_at = MIN(n, ARRAY_SIZE(l->at));
    l->next_at = 0;
    if (n == 0) {
        no_connection(l, e);
        return;
    }
    memcpy(l->at, at, l->n_at * sizeof *at);
    try_connect(l);
}

/* --- life -------------------------------------------------------------------
 */

void hub_ask(struct hub *h, struct upstream_ask *a)
{
    list_push_back(&h->asks, &a->node);
    serve_later(h);
}

void hub_take_back(struct upstream_ask *a)
{
    list_remove(&a->node);
}

struct hub *hub_new(struct upstream *u)
{
    struct hub *h = mem_new(sizeof *h);
    h->up = u;
    h->n_links = MIN(u->o.connections * 2, (int)LINKS_MAX);
    h->links = mem_new_array((size_t)h->n_links, sizeof *h->links);
    h->backoff_us = BACKOFF_FIRST_US;
    h->tick.on_fire = on_tick;
    h->serve.run = on_serve;
    list_init(&h->serve.node);
    list_init(&h->asks);
    for (int i = 0; i < h->n_links; i++) {
        h->links[i].hub = h;
        h->links[i].lookup.cb = on_addresses;
    }
    open_another(h); /* so that the first session finds one */
    set_tick(h);
    return h;
}

void hub_free(struct hub *h)
{
    for (int i = 0; i < h->n_links; i++) {
        struct link *l = &h->links[i];
        if (l->state == LINK_LOOKUP)
            lookup_stop(&l->lookup);
        if (l->conn)
            quic_conn_close(l->conn, QUIC_CODE_NONE);
    }
    timer_clear(h->up->loop, &h->tick);
    loop_cancel(&h->serve);
    quic_memory_clear(&h->memory);
    free(h->links);
    free(h);
}
