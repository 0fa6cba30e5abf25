/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The way to the pooler: gives a stream to whoever asks for one. Over QUIC
 * that is a stream of one of a few connections (net/quic_hub.h), else a
 * connection of its own (dial.c). Belongs to one loop's thread. */
#ifndef EDGE_UPSTREAM_H
#define EDGE_UPSTREAM_H

#include "edge/target.h"
#include "net/lookup.h"
#include "net/quic_hub.h"
#include "net/stream.h"
#include "net/tls_conf.h"

struct upstream;

struct upstream_options {
    struct target target;
    /* Files; NULL: none. "system" or none vouches for servers by the system's
     * store. */
    const char *ca_file, *cert_file, *key_file;
    bool no_verify;
    bool fallback_tls;  /* where UDP does not get through */
    bool mptcp_require; /* else target.mptcp goes on with TCP */
    int mptcp_subflows; /* to open ourselves on each connection */
    int connections, streams_per_connection;
    int64_t wait_us; /* for a stream; then the asker is told why not */
};

/* Embedded by the asker. Exactly one of the two is called, from the loop,
 * unless the question is taken back. */
struct upstream_ask {
    struct quic_ask quic;
    struct upstream *up;
    struct dial *dial; /* dial.c: its connection being made */
    int64_t deadline_us;
    void (*on_stream)(struct upstream_ask *a, struct stream *s);
    void (*on_fail)(struct upstream_ask *a, const struct err *e);
};

NODISCARD int upstream_new(struct upstream **out, struct loop *loop,
                           const struct upstream_options *o, struct err *e);
void upstream_free(struct upstream *u); /* NULL is fine */

/* The callbacks were set before. */
void upstream_ask(struct upstream *u, struct upstream_ask *a);
void upstream_take_back(struct upstream_ask *a);

/* --- between the files of it ---------------------------------------------- */

struct upstream {
    struct loop *loop;
    struct upstream_options o;
    char text[TARGET_TEXT_MAX];
    struct resolver *resolver;
    struct quic_host *quic;
    struct quic_tls *quic_tls;
    struct tls_ctx *tls;
    struct quic_hub *hub;
    struct list dials;
    bool has_fallen_back;          /* sessions go over TLS for now */
    struct mptcp_pm *path_manager; /* NULL without mptcp_subflows */
    int seen_mptcp, seen_subflows; /* what was last logged; -1: nothing */
};

/* multipath.c: what mptcp of the target asks for. */
NODISCARD int upstream_load_mptcp(struct upstream *u, struct err *e);

/* Of a connection that was just opened: refuses it where Multipath TCP is
 * required, and tells of a change. */
NODISCARD int upstream_check_mptcp(struct upstream *u, int fd, struct err *e);

void dial_start(struct upstream *u, struct upstream_ask *a);
void dial_take_back(struct upstream_ask *a);
void dial_stop_all(struct upstream *u);

#endif
