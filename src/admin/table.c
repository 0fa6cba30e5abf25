/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/table.h"

/* A table is a row without a name and then its columns. */
static const struct pg_col columns[] = {
#define TABLE(id) {NULL, PG_COL_TEXT},
#define COL(type, name) {name, PG_COL_##type},
#include "admin/column.def"
#undef TABLE
#undef COL
};

const struct pg_col *table_columns(enum table_id id, size_t *n)
{
    size_t at = 0, end;

    *n = 0;
    if (id == TABLE_NONE)
        return NULL;
    for (int left = id;; at++) {
        if (!columns[at].name && --left == 0)
            break;
    }
    at++;
    for (end = at; end < ARRAY_SIZE(columns) && columns[end].name;)
        end++;
    *n = end - at;
    must(*n <= TABLE_COLS_MAX);
    return columns + at;
}

static bool is_binary(table_formats formats, size_t col)
{
    return formats >> col & 1;
}

/* The formats stand at the end of each column's part, behind its name and 16
 * bytes. */
static void set_formats(char *message, size_t n, table_formats formats)
{
    char *p = message + PG_HEADER_SIZE + 2;

    for (size_t i = 0; i < n; i++) {
        p += strlen(p) + 1 + 16;
        pg_set_u16(p, is_binary(formats, i));
        p += 2;
    }
}

void table_describe(struct pgbuf *out, enum table_id id, table_formats formats)
{
    size_t n, at = out->n;
    const struct pg_col *cols = table_columns(id, &n);

    pg_put_row_description(out, cols, n);
    if (formats && !out->failed)
        set_formats(out->p + at, n, formats);
}

void table_init(struct table *t, struct pgbuf *out, enum table_id id,
                table_formats formats)
{
    memset(t, 0, sizeof(*t));
    t->out = out;
    t->cols = table_columns(id, &t->n);
    t->formats = formats;
}

void table_row(struct table *t)
{
    t->at = 0;
    t->row = pg_row_begin(t->out, t->n);
}

void table_row_end(struct table *t)
{
    must(t->at == t->n);
    pg_row_end(t->out, t->row);
}

void table_null(struct table *t)
{
    must(t->at < t->n);
    t->at++;
    pg_row_null(t->out);
}

void table_slice(struct table *t, struct slice s)
{
    must(t->at < t->n && t->cols[t->at].type == PG_COL_TEXT);
    t->at++;
    pg_row_slice(t->out, s);
}

void table_text(struct table *t, const char *s)
{
    if (s)
        table_slice(t, slice_str(s));
    else
        table_null(t);
}

/* PostgreSQL's numeric: number of digits to the base 10000, weight of the
 * first, sign, digits behind the point, then the digits. */
static void put_binary_numeric(struct pgbuf *b, uint64_t v)
{
    uint16_t digits[5];
    uint16_t n = 0;

    for (; v; v /= 10000)
        digits[n++] = (uint16_t)(v % 10000);
    pgbuf_put_u32(b, 8 + 2u * n);
    pgbuf_put_u16(b, n);
    pgbuf_put_u16(b, n ? n - 1 : 0);
    pgbuf_put_u16(b, 0);
    pgbuf_put_u16(b, 0);
    while (n > 0)
        pgbuf_put_u16(b, digits[--n]);
}

static void put_binary(struct pgbuf *b, enum pg_col_type type, int64_t v)
{
    switch (type) {
    case PG_COL_INT4:
        pgbuf_put_u32(b, 4);
        pgbuf_put_u32(b, (uint32_t)v);
        break;
    case PG_COL_INT8:
        pgbuf_put_u32(b, 8);
        pgbuf_put_u32(b, (uint32_t)((uint64_t)v >> 32));
        pgbuf_put_u32(b, (uint32_t)v);
        break;
    case PG_COL_NUMERIC:
        put_binary_numeric(b, (uint64_t)v);
        break;
    case PG_COL_BYTEA:
    case PG_COL_TEXT:
        pg_row_i64(b, v);
        break;
    }
}

void table_int(struct table *t, int64_t v)
{
    enum pg_col_type type;

    must(t->at < t->n);
    type = t->cols[t->at].type;
    if (type == PG_COL_INT4)
        v = MAX(MIN(v, INT32_MAX), INT32_MIN);
    if (type == PG_COL_NUMERIC)
        v = MAX(v, 0);
    if (is_binary(t->formats, t->at++))
        put_binary(t->out, type, v);
    else
        pg_row_i64(t->out, v);
}
