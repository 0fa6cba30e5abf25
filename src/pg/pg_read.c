/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "pg/pg_read.h"

#include "base/err.h"

/* The next n bytes, or NULL and `bad`. Once bad, always bad. */
static const char *take(struct pgread *r, size_t n)
{
    const char *p = r->p;

    if (unlikely(r->bad || n > pgread_left(r))) {
        r->bad = true;
        return NULL;
    }
    if (n > 0)
        r->p += n;
    return p;
}

uint8_t pgread_u8(struct pgread *r)
{
    const char *p = take(r, 1);

    return p ? (uint8_t)*p : 0;
}

uint16_t pgread_u16(struct pgread *r)
{
    const char *p = take(r, 2);

    return p ? pg_get_u16(p) : 0;
}

uint32_t pgread_u32(struct pgread *r)
{
    const char *p = take(r, 4);

    return p ? pg_get_u32(p) : 0;
}

int32_t pgread_i32(struct pgread *r)
{
    return (int32_t)pgread_u32(r);
}

struct slice pgread_bytes(struct pgread *r, size_t n)
{
    const char *p = take(r, n);

    return p ? slice_of(p, n) : (struct slice){0};
}

struct slice pgread_cstr(struct pgread *r)
{
    size_t left = pgread_left(r);
    const char *end = left > 0 && !r->bad ? memchr(r->p, 0, left) : NULL;
    struct slice s;

    if (!end) {
        r->bad = true;
        return (struct slice){0};
    }
    s = slice_of(r->p, (size_t)(end - r->p));
    r->p = end + 1;
    return s;
}

struct slice pgread_rest(struct pgread *r)
{
    return pgread_bytes(r, pgread_left(r));
}

int pgread_message(struct slice buf, size_t max, char *type, struct slice *body,
                   size_t *size)
{
    uint32_t len;

    *size = 0;
    if (buf.n < PG_HEADER_SIZE)
        return 0;
    len = pg_get_u32(buf.p + 1);
    if (len < 4 || len > max)
        return ERR_PROTO;
    *size = (size_t)len + 1;
    if (buf.n < *size)
        return 0;
    *type = buf.p[0];
    *body = slice_of(buf.p + PG_HEADER_SIZE, len - 4);
    return 1;
}
