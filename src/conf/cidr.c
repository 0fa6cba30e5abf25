/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "conf/cidr.h"

#include <arpa/inet.h>

bool cidr_parse(struct slice text, struct cidr *out)
{
    char word[INET6_ADDRSTRLEN];
    const char *slash = text.n ? memchr(text.p, '/', text.n) : NULL;
    struct slice ip =
        slice_of(text.p, slash ? (size_t)(slash - text.p) : text.n);
    int64_t bits, max;
    memset(out, 0, sizeof *out);
    if (!slice_copy(ip, word, sizeof word))
        return false;
    if (inet_pton(AF_INET, word, out->base) == 1)
        out->n = 4;
    else if (inet_pton(AF_INET6, word, out->base) == 1)
        out->n = 16;
    else
        return false;
    max = bits = 8 * out->n;
    if (slash &&
        (!slice_to_i64(slice_of(slash + 1, text.n - ip.n - 1), &bits) ||
         bits < 0 || bits > max))
        return false;
    out->bits = (uint8_t)bits;
    return true;
}

bool cidr_has(const struct cidr *c, const uint8_t *ip, size_t n)
{
    size_t whole = c->bits / 8;
    unsigned rest = c->bits % 8;
    if (n != c->n || memcmp(ip, c->base, whole) != 0)
        return false;
    return !rest || !((ip[whole] ^ c->base[whole]) >> (8 - rest));
}
