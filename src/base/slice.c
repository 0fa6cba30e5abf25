/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/slice.h"

#include <strings.h>

bool slice_eq_nocase(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || strncasecmp(a.p, b.p, a.n) == 0);
}

bool slice_is_nocase(struct slice a, const char *s)
{
    return slice_eq_nocase(a, slice_str(s));
}

bool slice_copy(struct slice s, char *dst, size_t cap)
{
    size_t n = MIN(s.n, cap - 1);
    if (n) /* p may be NULL then */
        memcpy(dst, s.p, n);
    dst[n] = 0;
    return n == s.n;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

struct slice slice_trim(struct slice s)
{
    while (s.n && is_blank(s.p[0]))
        s.p++, s.n--;
    while (s.n && is_blank(s.p[s.n - 1]))
        s.n--;
    return s;
}

bool slice_to_i64(struct slice s, int64_t *out)
{
    bool neg = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+'))
        s.p++, s.n--;
    if (!s.n)
        return false;
    int64_t v = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, s.p[i] - '0', &v))
            return false;
    }
    if (!neg && v == INT64_MIN)
        return false;
    *out = neg ? v : -v;
    return true;
}
