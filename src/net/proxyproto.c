/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/proxyproto.h"

#include <arpa/inet.h>

static const char v1_start[] = "PROXY ";
static const char v2_start[] = "\r\n\r\n\0\r\nQUIT\n";

enum {
    V1_START_SIZE = sizeof v1_start - 1,
    V2_START_SIZE = sizeof v2_start - 1,
    V2_HEAD_SIZE = 16,
    IP4_SIZE = 12, /* two addresses, two ports */
    IP6_SIZE = 36,
};

/* --------------------------------------------------------------- version 1 */

/* Up to the next blank, which is dropped; the last word reaches to the end. */
static struct slice next_word(struct slice *rest)
{
    const char *blank = rest->n ? memchr(rest->p, ' ', rest->n) : NULL;
    size_t n = blank ? (size_t)(blank - rest->p) : rest->n;
    struct slice word = slice_of(rest->p, n);
    size_t skip = blank ? n + 1 : n;
    *rest = slice_of(rest->p + skip, rest->n - skip);
    return word;
}

static bool read_port(struct slice word, int *port)
{
    *port = 0;
    if (word.n < 1 || word.n > 5)
        return false;
    for (size_t i = 0; i < word.n; i++) {
        if (word.p[i] < '0' || word.p[i] > '9')
            return false;
        *port = *port * 10 + (word.p[i] - '0');
    }
    return *port <= UINT16_MAX;
}

static bool read_address(int family, struct slice word, struct addr *out)
{
    char text[INET6_ADDRSTRLEN];
    memset(out, 0, sizeof *out);
    if (!slice_copy(word, text, sizeof text) || memchr(word.p, 0, word.n))
        return false;
    out->sa.sa_family = (sa_family_t)family;
    out->len = family == AF_INET ? sizeof out->in : (socklen_t)sizeof out->in6;
    return inet_pton(family, text,
                     family == AF_INET ? (void *)&out->in.sin_addr
                                       : (void *)&out->in6.sin6_addr) == 1;
}

/* "TCP4 SOURCE DESTINATION SOURCE_PORT DESTINATION_PORT", or "UNKNOWN ...". */
static bool read_line(struct slice line, struct proxyproto *out)
{
    struct slice kind = next_word(&line);
    struct addr self;
    int port, self_port;
    if (slice_is(kind, "UNKNOWN"))
        return true;
    bool is_v4 = slice_is(kind, "TCP4");
    int family = is_v4 ? AF_INET : AF_INET6;
    if (!is_v4 && !slice_is(kind, "TCP6"))
        return false;
    if (!read_address(family, next_word(&line), &out->peer) ||
        !read_address(family, next_word(&line), &self) ||
        !read_port(next_word(&line), &port) ||
        !read_port(next_word(&line), &self_port) || line.n)
        return false;
    addr_set_port(&out->peer, port);
    out->has_peer = true;
    return true;
}

static int parse_v1(struct slice in, struct proxyproto *out, struct err *e)
{
    size_t n = MIN(in.n, (size_t)PROXYPROTO_V1_MAX);
    const char *end = memchr(in.p, '\n', n);
    if (!end && n < PROXYPROTO_V1_MAX)
        return 0;
    if (!end || end[-1] != '\r' ||
        !read_line(slice_of(in.p + V1_START_SIZE,
                            (size_t)(end - 1 - in.p) - V1_START_SIZE),
                   out))
        return err_set(e, ERR_PROTO, "malformed PROXY line");
    return (int)(end + 1 - in.p);
}

/* --------------------------------------------------------------- version 2 */

enum {
    V2_LOCAL = 0x20, /* version in the upper half */
    V2_PROXY = 0x21,
    V2_UNSPEC = 0x00,
    V2_TCP4 = 0x11,
    V2_TCP6 = 0x21,
    V2_UNIX = 0x31,
};

static bool read_body(uint8_t kind, struct slice body, struct proxyproto *out)
{
    struct addr *a = &out->peer;
    switch (kind) {
    case V2_TCP4:
        if (body.n < IP4_SIZE)
            return false;
        a->len = sizeof a->in;
        a->in.sin_family = AF_INET;
        memcpy(&a->in.sin_addr, body.p, 4);
        memcpy(&a->in.sin_port, body.p + 8, 2);
        out->has_peer = true;
        return true;
    case V2_TCP6:
        if (body.n < IP6_SIZE)
            return false;
        a->len = sizeof a->in6;
        a->in6.sin6_family = AF_INET6;
        memcpy(&a->in6.sin6_addr, body.p, 16);
        memcpy(&a->in6.sin6_port, body.p + 32, 2);
        out->has_peer = true;
        return true;
    case V2_UNSPEC:
    case V2_UNIX: /* a client of the balancer's own machine: no address */
        return true;
    default:
        return false;
    }
}

static int parse_v2(struct slice in, struct proxyproto *out, struct err *e)
{
    const uint8_t *p = (const uint8_t *)in.p;
    if (in.n < V2_HEAD_SIZE)
        return 0;
    size_t size = V2_HEAD_SIZE + (size_t)(p[14] << 8 | p[15]);
    if (p[12] != V2_LOCAL && p[12] != V2_PROXY)
        return err_set(e, ERR_PROTO,
                       "PROXY header of an unknown version or command (0x%02x)",
                       p[12]);
    if (size > PROXYPROTO_V2_MAX)
        return err_set(e, ERR_PROTO, "PROXY header of %zu bytes; at most %d",
                       size, PROXYPROTO_V2_MAX);
    if (in.n < size)
        return 0;
    if (p[12] == V2_PROXY &&
        !read_body(p[13], slice_of(in.p + V2_HEAD_SIZE, size - V2_HEAD_SIZE),
                   out))
        return err_set(e, ERR_PROTO, "malformed PROXY header (family 0x%02x)",
                       p[13]);
    return (int)size;
}

/* -------------------------------------------------------------------- both */

static bool may_begin(struct slice in, const char *start, size_t n)
{
    return !memcmp(in.p, start, MIN(in.n, n));
}

int proxyproto_parse(struct slice in, struct proxyproto *out, struct err *e)
{
    memset(out, 0, sizeof *out);
    if (in.n == 0)
        return 0;
    int rc = 0;
    if (may_begin(in, v2_start, V2_START_SIZE))
        rc = in.n < V2_START_SIZE ? 0 : parse_v2(in, out, e);
    else if (may_begin(in, v1_start, V1_START_SIZE))
        rc = in.n < V1_START_SIZE ? 0 : parse_v1(in, out, e);
    else
        return err_set(e, ERR_PROTO, "no PROXY header");
    if (rc > 0 && out->has_peer)
        addr_unmap(&out->peer);
    return rc;
}
