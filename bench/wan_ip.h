/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What the WAN emulator has to know of IP packets. Pure; any bytes will do. */
#ifndef BENCH_WAN_IP_H
#define BENCH_WAN_IP_H

#include "net/addr.h"

/* Compared as bytes: all of it is set. Ports are 0 where there are none, and
 * everything is 0 for what is no IP packet. */
struct wan_flow_key {
    uint8_t version, protocol;
    uint16_t source_port, target_port; /* host order */
    uint16_t zero;
    uint8_t source[16], target[16];
};

void wan_flow_of(const uint8_t *p, size_t n, struct wan_flow_key *out);

/* Whether either end is this address, and its port unless that is 0. */
bool wan_flow_touches(const struct wan_flow_key *k, const struct addr *at);

/* Overwrites the MPTCP options of a TCP segment (RFC 8684) as some middleboxes
 * do, and mends the checksum; true when there were any. */
bool wan_strip_mptcp(uint8_t *p, size_t n);

#endif
