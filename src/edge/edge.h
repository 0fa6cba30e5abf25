/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* An edge in tunnel mode: a local place for drivers to connect to, and a pooler
 * behind it. It needs no credentials: logins are end to end. Belongs to one
 * loop's thread. */
#ifndef EDGE_EDGE_H
#define EDGE_EDGE_H

#include "edge/upstream.h"

struct edge;

struct edge_options {
    /* A folder, in which .s.PGSQL.PORT is made, open to our account only; or
     * a port, or address:port, of a TCP listener: localhost without address. */
    const char *listen;
    int port; /* in the folder's socket name, or where listen has none */
    bool listen_mptcp; /* of a TCP listener */
    struct upstream_options up;
};

NODISCARD int edge_open(struct edge **out, struct loop *loop,
                        const struct edge_options *o, struct err *e);
void edge_log(const struct edge *d);

/* Closes the listeners and the sessions. */
void edge_close(struct edge *d); /* NULL is fine */

#endif
