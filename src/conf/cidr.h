/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A range of IP addresses: "10.1.0.0/16", "2001:db8::/32", "192.0.2.7". Pure;
 * any thread. */
#ifndef CONF_CIDR_H
#define CONF_CIDR_H

#include "base/slice.h"

struct cidr {
    uint8_t n; /* bytes of an address: 4 or 16 */
    uint8_t bits;
    uint8_t base[16];
};

/* Bits of the address behind the mask do not matter. */
NODISCARD bool cidr_parse(struct slice text, struct cidr *out);

/* ip has n bytes, the first byte first; an IPv4 address must not be a mapped
 * one. */
bool cidr_has(const struct cidr *c, const uint8_t *ip, size_t n);

#endif
