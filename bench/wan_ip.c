/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "bench/wan_ip.h"

#include <string.h>

enum {
    IP4_MIN = 20,
    IP6_SIZE = 40,
    TCP_MIN = 20,
    TCP_CHECKSUM_AT = 16,
    OPTION_END = 0,
    OPTION_NOP = 1,
    OPTION_MPTCP = 30,
};

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

/* Where the transport header begins; 0 when there is none to be seen, as in
 * all but the first fragment. */
static size_t find_transport(const uint8_t *p, size_t n, uint8_t *protocol)
{
    if (n >= IP4_MIN && p[0] >> 4 == 4) {
        size_t size = (size_t)(p[0] & 15) * 4;
        *protocol = p[9];
        return size >= IP4_MIN && (get16(p + 6) & 0x1fff) == 0 ? size : 0;
    }
    if (n >= IP6_SIZE && p[0] >> 4 == 6) {
        *protocol = p[6];
        return IP6_SIZE;
    }
    return 0;
}

void wan_flow_of(const uint8_t *p, size_t n, struct wan_flow_key *out)
{
    *out = (struct wan_flow_key){0};
    size_t at = find_transport(p, n, &out->protocol);
    if (n >= IP4_MIN && p[0] >> 4 == 4) {
        out->version = 4;
        memcpy(out->source, p + 12, 4);
        memcpy(out->target, p + 16, 4);
    } else if (n >= IP6_SIZE && p[0] >> 4 == 6) {
        out->version = 6;
        memcpy(out->source, p + 8, 16);
        memcpy(out->target, p + 24, 16);
    }
    bool has_ports =
        out->protocol == IPPROTO_TCP || out->protocol == IPPROTO_UDP;
    if (at && has_ports && n >= at + 4) {
        out->source_port = get16(p + at);
        out->target_port = get16(p + at + 2);
    }
}

bool wan_flow_touches(const struct wan_flow_key *k, const struct addr *at)
{
    bool is_v4 = at->sa.sa_family == AF_INET;
    const void *ip = is_v4 ? (const void *)&at->in.sin_addr
                           : (const void *)&at->in6.sin6_addr;
    size_t n = is_v4 ? 4 : 16;
    int port = addr_port(at);
    if (k->version != (is_v4 ? 4 : 6))
        return false;
    return (!memcmp(k->source, ip, n) && (!port || port == k->source_port)) ||
           (!memcmp(k->target, ip, n) && (!port || port == k->target_port));
}

/* The checksum after one byte of what it covers has changed (RFC 1624). */
static void mend_checksum(uint8_t *sum, bool is_high, uint8_t old, uint8_t new)
{
    uint32_t from = is_high ? (uint32_t)old << 8 : old;
    uint32_t to = is_high ? (uint32_t) new << 8 : new;
    uint32_t s = (uint32_t)(uint16_t)~get16(sum) + (uint16_t)~from + to;
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    s = ~s & 0xffff;
    sum[0] = (uint8_t)(s >> 8);
    sum[1] = (uint8_t)s;
}

bool wan_strip_mptcp(uint8_t *p, size_t n)
{
    uint8_t protocol = 0;
    size_t tcp = find_transport(p, n, &protocol);
    if (!tcp || protocol != IPPROTO_TCP || n < tcp + TCP_MIN)
        return false;
    size_t end = tcp + (size_t)(p[tcp + 12] >> 4) * 4;
    size_t at = tcp + TCP_MIN;
    bool has_any = false;
    end = MIN(end, n);
    while (at < end && p[at] != OPTION_END) {
        if (p[at] == OPTION_NOP) {
            at++;
            continue;
        }
        size_t size = at + 1 < end ? p[at + 1] : 0;
        if (size < 2 || at + size > end)
            break;
        if (p[at] == OPTION_MPTCP) {
            has_any = true;
            for (size_t i = at; i < at + size; i++) {
                mend_checksum(p + tcp + TCP_CHECKSUM_AT, (i - tcp) % 2 == 0,
                              p[i], OPTION_NOP);
                p[i] = OPTION_NOP;
            }
        }
        at += size;
    }
    return has_any;
}
