/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A TUN device in a network namespace: what is written to its descriptor
 * arrives there, what is sent there is read from it, packet by packet. */
#ifndef BENCH_WAN_TUN_H
#define BENCH_WAN_TUN_H

#include <net/if.h>

#include "base/err.h"
#include "net/addr.h"

enum { WAN_ADDRS_MAX = 32, WAN_NAMESPACE_MAX = 256 };

struct wan_side {
    char namespace[WAN_NAMESPACE_MAX]; /* a path */
    char device[IFNAMSIZ];
    struct addr at[WAN_ADDRS_MAX];
    int prefix[WAN_ADDRS_MAX];
    int n;
};

/* NAMESPACE,DEVICE,ADDRESS/BITS[,ADDRESS/BITS...]; the namespace is a name of
 * `ip netns`, a path, or pid:N. */
NODISCARD int wan_side_parse(struct wan_side *s, const char *text,
                             struct err *e);

/* Makes the device, with its addresses, and brings it and lo up. The calling
 * thread comes back to its own namespace. */
NODISCARD int wan_tun_open(const struct wan_side *s, int mtu, int *fd,
                           struct err *e);

#endif
