/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One local connection and the stream that carries it on: bytes pass through,
 * and each side is read only as fast as the other takes them. The tunnel itself
 * answers SSLRequest and GSSENCRequest with N (they are for one hop), and says
 * why when there is no way to the pooler. Belongs to one loop's thread. */
#ifndef EDGE_TUNNEL_H
#define EDGE_TUNNEL_H

#include "edge/upstream.h"

struct tunnel;

/* All tunnels of an edge. */
struct tunnels {
    struct loop *loop;
    struct upstream *up;
    struct list all;
    int n;
    uint64_t total;
};

void tunnels_init(struct tunnels *t, struct loop *loop, struct upstream *up);

/* Takes an accepted descriptor. */
void tunnel_accept(struct tunnels *t, int fd, bool is_unix);

/* Closes all, with a word to each that has not begun. */
void tunnels_close(struct tunnels *t);

#endif
