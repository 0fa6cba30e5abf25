/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A few QUIC connections to one place, and who wants a stream of them: the
 * tunnels of an edge, the servers of a pool. Belongs to one loop's thread. */
#ifndef NET_QUIC_HUB_H
#define NET_QUIC_HUB_H

#include "net/quic.h"
#include "net/resolve.h"

struct quic_hub;

struct quic_hub_params {
    struct loop *loop;
    struct quic_host *quic;
    struct quic_tls *tls; /* a reference of the hub's own is taken */
    struct resolver *resolver;
    const char *host; /* a name or a number; copied */
    int port;
    const char *log_prefix; /* of log lines: "edge"; a constant */
    int connections, streams_per_connection;
    enum quic_congestion congestion;
    bool is_lazy; /* connects when it is asked; else at once, and again */
    /* Nothing comes through by UDP, and there is no connection: before the
     * askers are told. And a connection stands. NULL: nobody wants to know. */
    void (*on_unreachable)(void *arg);
    void (*on_up)(void *arg);
    void (*on_drain)(void *arg); /* a connection gets no new sessions */
    void *arg;
};

/* Embedded by the asker, who sets the callbacks and the deadline. Exactly one
 * of the two is called, from the loop, unless the question is taken back. */
struct quic_ask {
    struct list node;
    int64_t deadline_us;
    /* The new owner sets itself by stream_set_owner(). */
    void (*on_stream)(struct quic_ask *a, struct stream *s);
    void (*on_fail)(struct quic_ask *a, const struct err *e);
};

struct quic_hub *quic_hub_new(const struct quic_hub_params *p);

/* Closes the connections; nobody may be asking any more. */
void quic_hub_free(struct quic_hub *h); /* NULL is fine */

/* For connections and sessions to come. */
void quic_hub_set_limits(struct quic_hub *h, int connections,
                         int streams_per_connection,
                         enum quic_congestion congestion);

void quic_hub_ask(struct quic_hub *h, struct quic_ask *a);
void quic_hub_take_back(struct quic_ask *a);

/* Neither a session nor anybody who asks for one. */
bool quic_hub_is_idle(const struct quic_hub *h);

/* "quic://host:port", for people. */
const char *quic_hub_text(const struct quic_hub *h);

#endif
