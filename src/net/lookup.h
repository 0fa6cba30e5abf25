/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The addresses of one place to connect to, given as a name or a number, with
 * its port in them. Embedded by the asker; its thread only. */
#ifndef NET_LOOKUP_H
#define NET_LOOKUP_H

#include "net/resolve.h"

enum { LOOKUP_MAX = 16 };

struct lookup {
    struct resolve *question;
    struct task task; /* for a number */
    struct addr number;
    int port;
    bool is_started;
    /* From the loop: the addresses, or n == 0 and the cause. */
    void (*cb)(struct lookup *l, const struct addr *at, size_t n,
               const struct err *e);
};

/* cb was set before. */
void lookup_start(struct lookup *l, struct loop *loop, struct resolver *r,
                  const char *host, int port);

/* No callback follows; also for one that was never started. */
void lookup_stop(struct lookup *l);

#endif
