/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The console's result sets: their columns (column.def), and rows in the
 * format that the client asked for, column by column. One thread at a time. */
#ifndef ADMIN_TABLE_H
#define ADMIN_TABLE_H

#include "pg/pg_rows.h"

enum table_id {
    TABLE_NONE,
#define TABLE(id) TABLE_##id,
#define COL(type, name)
#include "admin/column.def"
#undef TABLE
#undef COL
    TABLE_COUNT
};

enum { TABLE_COLS_MAX = 64 }; /* bits of table_formats */

/* A bit per column: set when it is sent in binary. */
typedef uint64_t table_formats;

/* *n is 0 for TABLE_NONE. */
const struct pg_col *table_columns(enum table_id id, size_t *n);

void table_describe(struct pgbuf *out, enum table_id id, table_formats formats);

struct table {
    struct pgbuf *out;
    const struct pg_col *cols;
    size_t n, at; /* columns, the next one's index */
    size_t row;   /* where the DataRow begins */
    table_formats formats;
};

void table_init(struct table *t, struct pgbuf *out, enum table_id id,
                table_formats formats);

/* A row is one value per column between these two. */
void table_row(struct table *t);
void table_row_end(struct table *t);

void table_null(struct table *t);
void table_text(struct table *t, const char *s); /* NULL: a null */
void table_slice(struct table *t, struct slice s);

/* Of a text column: in decimal. An int4 is cut to its range; a numeric may not
 * be negative. */
void table_int(struct table *t, int64_t v);

#endif
