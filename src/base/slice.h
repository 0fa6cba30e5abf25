/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Pointer and length: bytes that somebody else owns. Any thread. */
#ifndef BASE_SLICE_H
#define BASE_SLICE_H

#include <string.h>

#include "base/base.h"

struct slice {
    const char *p;
    size_t n;
};

#define SLICE_FMT "%.*s"
#define SLICE_ARG(s) (int)MIN((s).n, (size_t)1024), (s).p

static inline struct slice slice_of(const void *p, size_t n)
{
    return (struct slice){p, n};
}

static inline struct slice slice_str(const char *s)
{
    return (struct slice){s, strlen(s)};
}

static inline bool slice_eq(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool slice_is(struct slice a, const char *s)
{
    return slice_eq(a, slice_str(s));
}

/* ASCII case folded. */
bool slice_eq_nocase(struct slice a, struct slice b);
bool slice_is_nocase(struct slice a, const char *s);

/* Copies s into dst as a string, cut to cap - 1 bytes; false when it was cut.
 */
bool slice_copy(struct slice s, char *dst, size_t cap);

/* Without the blanks (space, tab, CR, LF) at both ends. */
struct slice slice_trim(struct slice s);

/* Decimal, optional sign, nothing else; false when it is not one or is out of
 * the range of int64_t. */
bool slice_to_i64(struct slice s, int64_t *out);

#endif
