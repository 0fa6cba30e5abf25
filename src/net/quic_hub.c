/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A few QUIC connections to one pooler, and the sessions on them. A new session
 * goes to the connection with the fewest; when all have their number another
 * one is opened; when there may be no more of them it waits. A connection that
 * cannot be had is tried again, later and later; who waits meanwhile is told at
 * once why, unless another connection may still come to the rescue. One that
 * the pooler drains gets no more sessions and is closed with its last. */
#include "net/quic_hub.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/rand.h"
#include "net/lookup.h"

enum {
    BACKOFF_FIRST_US = 100 * 1000,
    BACKOFF_MAX_US = 10 * 1000000,
    TICK_US = 250 * 1000,
    IDLE_TIMEOUT_US = 60 * 1000000,
    HANDSHAKE_TIMEOUT_US = 5 * 1000000,
    LINKS_MAX = 2048,
    TEXT_MAX = 300,
};

enum link_state {
    LINK_LOOKUP,  /* for the address */
    LINK_CONNECT, /* shaking hands */
    LINK_UP,
    LINK_LEAVING, /* drained by the peer */
    LINK_STATES,
};

struct link {
    struct list node;
    struct quic_hub *hub;
    enum link_state state;
    struct quic_conn *conn;
    struct lookup lookup;
    struct addr at[LOOKUP_MAX];
    size_t n_at, next_at; /* addresses, the one to be tried next */
};

struct quic_hub {
    struct quic_hub_params p;
    char *host;
    char text[TEXT_MAX];
    struct list asks;  /* the oldest first */
    struct list links; /* struct link */
    int n[LINK_STATES];
    struct timer tick;
    int64_t retry_us; /* no new attempt before */
    int64_t backoff_us;
    struct quic_memory memory;
    struct err last; /* why there is no connection; "": the last one came */
    struct task serve;
};

static void try_connect(struct link *l);
static void on_addresses(struct lookup *lookup, const struct addr *at, size_t n,
                         const struct err *e);

static int64_t now_of(const struct quic_hub *h)
{
    return loop_now_us(h->p.loop);
}

static void set_state(struct link *l, enum link_state state)
{
    l->hub->n[l->state]--;
    l->hub->n[state]++;
    l->state = state;
}

static void end_link(struct link *l)
{
    struct quic_hub *h = l->hub;
    lookup_stop(&l->lookup);
    if (l->conn)
        quic_conn_close(l->conn, QUIC_CODE_NONE);
    h->n[l->state]--;
    list_remove(&l->node);
    loop_free_later(h->p.loop, l);
}

/* --- who gets what ----------------------------------------------------------
 */

static struct link *best(struct quic_hub *h)
{
    struct link *found = NULL;
    list_for(n, &h->links)
    {
        struct link *l = list_entry(n, struct link, node);
        if (l->state != LINK_UP || quic_conn_room(l->conn) == 0 ||
            quic_conn_streams(l->conn) >= h->p.streams_per_connection)
            continue;
        if (!found ||
            quic_conn_streams(l->conn) < quic_conn_streams(found->conn))
            found = l;
    }
    return found;
}

static bool give_stream(struct quic_hub *h, struct quic_ask *a)
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

static struct quic_ask *first_ask(struct quic_hub *h)
{
    return list_entry(list_first(&h->asks), struct quic_ask, node);
}

static void fail_all(struct quic_hub *h)
{
    struct list now, *n;
    if (list_empty(&h->asks))
        return;
    /* Who asks again meanwhile waits for the next attempt. */
    now = h->asks;
    now.next->prev = now.prev->next = &now;
    list_init(&h->asks);
    while ((n = list_first(&now))) {
        struct quic_ask *a = list_entry(n, struct quic_ask, node);
        list_remove(n);
        a->on_fail(a, &h->last);
    }
}

static void open_link(struct quic_hub *h)
{
    struct link *l = mem_new(sizeof *l);
    l->hub = h;
    l->state = LINK_LOOKUP;
    h->n[LINK_LOOKUP]++;
    l->lookup.cb = on_addresses;
    list_init(&l->node);
    list_push_back(&h->links, &l->node);
    lookup_start(&l->lookup, h->p.loop, h->p.resolver, h->host, h->p.port);
}

/* As many as those who ask would fill; one, where the last attempt failed or
 * there has been none. */
static int n_wanted(const struct quic_hub *h)
{
    int n = 0;
    if (h->n[LINK_UP] == 0)
        return 1;
    for (const struct list *i = h->asks.next; i != &h->asks; i = i->next)
        n++;
    return n / h->p.streams_per_connection + 1;
}

static void open_more(struct quic_hub *h)
{
    int busy = h->n[LINK_LOOKUP] + h->n[LINK_CONNECT];
    int room = h->p.connections - busy - h->n[LINK_UP];
    int wanted = n_wanted(h) - busy;
    if (now_of(h) < h->retry_us ||
        busy + h->n[LINK_UP] + h->n[LINK_LEAVING] > LINKS_MAX)
        return;
    for (int i = 0; i < MIN(room, wanted); i++)
        open_link(h);
}

static void set_tick(struct quic_hub *h)
{
    if (!timer_is_set(&h->tick))
        timer_set(h->p.loop, &h->tick, now_of(h) + TICK_US);
}

static void serve(struct quic_hub *h)
{
    while (!list_empty(&h->asks) && give_stream(h, first_ask(h)))
        ;
    if (!list_empty(&h->asks)) {
        open_more(h);
        set_tick(h);
    }
}

static void on_serve(struct task *t)
{
    serve(container_of(t, struct quic_hub, serve));
}

static void serve_later(struct quic_hub *h)
{
    loop_defer(h->p.loop, &h->serve);
}

static void expire_asks(struct quic_hub *h)
{
    struct err e;
    while (!list_empty(&h->asks)) {
        struct quic_ask *a = first_ask(h);
        if (a->deadline_us > now_of(h))
            return;
        list_remove(&a->node);
        if (h->n[LINK_UP] > 0)
            (void)err_set(&e, ERR_LIMIT,
                          "all %d connections to %s carry %d sessions already "
                          "(quic_connections, quic_streams_per_connection) or "
                          "as many as that side takes",
                          h->n[LINK_UP], h->text, h->p.streams_per_connection);
        else
            (void)err_set(&e, ERR_TIMEOUT, "no connection to %s in time%s%s",
                          h->text, h->last.text[0] ? ": " : "", h->last.text);
        a->on_fail(a, &e);
    }
}

static void on_tick(struct timer *t)
{
    struct quic_hub *h = container_of(t, struct quic_hub, tick);
    bool is_kept_ready = !h->p.is_lazy && h->n[LINK_UP] == 0;
    expire_asks(h);
    serve(h);
    if (!is_kept_ready)
        return;
    open_more(h);
    set_tick(h);
}

/* --- connections ------------------------------------------------------------
 */

static void grow_backoff(struct quic_hub *h)
{
    uint8_t jitter;
    rand_bytes(&jitter, 1);
    h->retry_us = now_of(h) + h->backoff_us + h->backoff_us * jitter / 1024;
    h->backoff_us = MIN(h->backoff_us * 2, (int64_t)BACKOFF_MAX_US);
}

/* UDP does not get through: that is silence or a closed port. A bad certificate
 * is no reason to go another way. */
static bool is_unreachable(const struct err *e)
{
    return e->code == ERR_TIMEOUT || e->code == ERR_CONNECT;
}

static void no_connection(struct link *l, const struct err *e)
{
    struct quic_hub *h = l->hub;
    struct err was = h->last;
    end_link(l);
    h->last = *e;
    (void)err_wrap(&h->last, "%s", h->text);
    if (strcmp(was.text, h->last.text) != 0)
        log_warning("%s: %s", h->p.log_prefix, h->last.text);
    grow_backoff(h);
    if (h->n[LINK_UP] == 0) {
        if (is_unreachable(e) && h->p.on_unreachable)
            h->p.on_unreachable(h->p.arg);
        fail_all(h);
    }
    set_tick(h);
}

static void on_up(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    struct quic_hub *h = l->hub;
    set_state(l, LINK_UP);
    h->backoff_us = BACKOFF_FIRST_US;
    h->retry_us = 0;
    h->last = (struct err){0};
    log_info("%s: connected to %s", h->p.log_prefix, h->text);
    if (h->p.on_up)
        h->p.on_up(h->p.arg);
    serve_later(h);
}

static void on_down(struct quic_conn *c, const struct err *e)
{
    struct link *l = quic_conn_owner(c);
    struct quic_hub *h = l->hub;
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
    end_link(l);
    log_warning("%s: connection to %s lost: %s", h->p.log_prefix, h->text,
                e->text);
    set_tick(h);
    serve_later(h);
}

static void close_if_left(struct link *l)
{
    if (l->state == LINK_LEAVING && quic_conn_streams(l->conn) == 0)
        end_link(l);
}

static void on_drain(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    struct quic_hub *h = l->hub;
    log_info("%s: %s takes no new sessions on a connection that has %d",
             h->p.log_prefix, h->text, quic_conn_streams(c));
    set_state(l, LINK_LEAVING);
    if (h->p.on_drain)
        h->p.on_drain(h->p.arg);
    close_if_left(l);
    set_tick(h);
}

static void on_room(struct quic_conn *c)
{
    struct link *l = quic_conn_owner(c);
    struct quic_hub *h = l->hub;
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
    struct quic_hub *h = l->hub;
    struct err e;
    struct quic_connect_params p = {
        .tls = h->p.tls,
        .host = h->host,
        .is_tunnel = true,
        .congestion = h->p.congestion,
        .memory = &h->memory,
        .idle_timeout_us = IDLE_TIMEOUT_US,
        .handshake_timeout_us = HANDSHAKE_TIMEOUT_US,
    };
    int rc = ERR_CONNECT;
    set_state(l, LINK_CONNECT);
    while (rc && l->next_at < l->n_at)
        rc = quic_connect(&l->conn, h->p.quic, &l->at[l->next_at++], &p,
                          &handler, l, &e);
    if (rc)
        no_connection(l, &e);
}

static void on_addresses(struct lookup *lookup, const struct addr *at, size_t n,
                         const struct err *e)
{
    struct link *l = container_of(lookup, struct link, lookup);
    l->n_at = n;
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

void quic_hub_ask(struct quic_hub *h, struct quic_ask *a)
{
    list_init(&a->node);
    list_push_back(&h->asks, &a->node);
    serve_later(h);
}

void quic_hub_take_back(struct quic_ask *a)
{
    list_remove(&a->node);
}

bool quic_hub_is_idle(const struct quic_hub *h)
{
    if (!list_empty(&h->asks))
        return false;
    for (const struct list *n = h->links.next; n != &h->links; n = n->next) {
        const struct link *l = container_of(n, const struct link, node);
        if (l->conn && quic_conn_streams(l->conn) > 0)
            return false;
    }
    return true;
}

const char *quic_hub_text(const struct quic_hub *h)
{
    return h->text;
}

void quic_hub_set_limits(struct quic_hub *h, int connections,
                         int streams_per_connection,
                         enum quic_congestion congestion)
{
    h->p.congestion = congestion;
    h->p.connections = connections;
    h->p.streams_per_connection = streams_per_connection;
}

struct quic_hub *quic_hub_new(const struct quic_hub_params *p)
{
    struct quic_hub *h = mem_new(sizeof *h);
    bool is_v6 = strchr(p->host, ':') != NULL;
    h->p = *p;
    h->p.tls = quic_tls_ref(p->tls);
    h->p.host = h->host = mem_strdup(p->host);
    snprintf(h->text, sizeof h->text, "quic://%s%s%s:%d", is_v6 ? "[" : "",
             h->host, is_v6 ? "]" : "", p->port);
    h->backoff_us = BACKOFF_FIRST_US;
    h->tick.on_fire = on_tick;
    h->serve.run = on_serve;
    list_init(&h->serve.node);
    list_init(&h->asks);
    list_init(&h->links);
    if (!p->is_lazy) {
        open_more(h); /* so that the first session finds one */
        set_tick(h);
    }
    return h;
}

void quic_hub_free(struct quic_hub *h)
{
    if (!h)
        return;
    must(list_empty(&h->asks));
    while (!list_empty(&h->links))
        end_link(list_entry(list_first(&h->links), struct link, node));
    timer_clear(h->p.loop, &h->tick);
    loop_cancel(&h->serve);
    quic_memory_clear(&h->memory);
    quic_tls_unref(h->p.tls);
    free(h->host);
    free(h);
}
