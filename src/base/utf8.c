/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/utf8.h"

#include <stdint.h>

/* RFC 3629, section 4: by the first byte, how long, and what the second may
 * be. */
static size_t length_of(unsigned char first, unsigned char *low,
                        unsigned char *high)
{
    *low = 0x80;
    *high = 0xbf;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef) {
        if (first == 0xe0)
            *low = 0xa0;
        if (first == 0xed)
            *high = 0x9f;
        return 3;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if (first == 0xf0)
            *low = 0x90;
        if (first == 0xf4)
            *high = 0x8f;
        return 4;
    }
    return 0;
}

size_t utf8_char(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    unsigned char low, high;
    if (u[0] < 0x80)
        return 1;
    size_t len = length_of(u[0], &low, &high);
    if (!len || len > n || u[1] < low || u[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((u[i] & 0xc0) != 0x80)
            return 0;
    return len;
}
