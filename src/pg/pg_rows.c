/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "pg/pg_rows.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* pg_type.oid and pg_type.typlen, by enum pg_col_type. */
static const struct {
    uint32_t oid;
    int16_t size;
} types[] = {
    [PG_COL_TEXT] = {PG_OID_TEXT, -1},
    [PG_COL_INT4] = {PG_OID_INT4, 4},
    [PG_COL_INT8] = {PG_OID_INT8, 8},
    [PG_COL_NUMERIC] = {PG_OID_NUMERIC, -1},
    [PG_COL_BYTEA] = {PG_OID_BYTEA, -1},
};

void pg_put_row_description(struct pgbuf *b, const struct pg_col *cols,
                            size_t n)
{
    size_t at = pgbuf_begin(b, PG_MSG_ROW_DESCRIPTION);

    must(n <= PG_COLS_MAX);
    pgbuf_put_u16(b, (uint16_t)n);
    for (size_t i = 0; i < n; i++) {
        pgbuf_put_cstr(b, cols[i].name);
        pgbuf_put_u32(b, 0); /* of no table */
        pgbuf_put_u16(b, 0); /* and no attribute */
        pgbuf_put_u32(b, types[cols[i].type].oid);
        pgbuf_put_u16(b, (uint16_t)types[cols[i].type].size);
        pgbuf_put_u32(b, UINT32_MAX); /* no type modifier: -1 */
        pgbuf_put_u16(b, 0);          /* text format */
    }
    pgbuf_end(b, at);
}

size_t pg_row_begin(struct pgbuf *b, size_t n_cols)
{
    size_t at = pgbuf_begin(b, PG_MSG_DATA_ROW);

    must(n_cols <= PG_COLS_MAX);
    pgbuf_put_u16(b, (uint16_t)n_cols);
    return at;
}

void pg_row_null(struct pgbuf *b)
{
    pgbuf_put_u32(b, UINT32_MAX);
}

void pg_row_text(struct pgbuf *b, const char *s)
{
    if (s)
        pg_row_slice(b, slice_str(s));
    else
        pg_row_null(b);
}

void pg_row_slice(struct pgbuf *b, struct slice s)
{
    if (s.n > PG_LARGE_MESSAGE_LIMIT) {
        b->failed = true;
        return;
    }
    pgbuf_put_u32(b, (uint32_t)s.n);
    pgbuf_put_bytes(b, s.p, s.n);
}

void pg_row_i64(struct pgbuf *b, int64_t v)
{
    pg_row_printf(b, "%" PRId64, v);
}

void pg_row_printf(struct pgbuf *b, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        n = 0;
    pg_row_slice(b, slice_of(text, MIN((size_t)n, sizeof(text) - 1)));
}

void pg_row_end(struct pgbuf *b, size_t at)
{
    pgbuf_end(b, at);
}
