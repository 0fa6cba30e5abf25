/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Result sets in text format, for the console: RowDescription, then a DataRow
 * per row. Writes into a pgbuf; see pg_write.h for failure. */
#ifndef PG_PG_ROWS_H
#define PG_PG_ROWS_H

#include "pg/pg_write.h"

enum pg_col_type {
    PG_COL_TEXT,
    PG_COL_INT4,
    PG_COL_INT8,
    PG_COL_NUMERIC,
    PG_COL_BYTEA, /* nulls only */
};

struct pg_col {
    const char *name;
    enum pg_col_type type;
};

enum { PG_COLS_MAX = 1600 }; /* as PostgreSQL's */

void pg_put_row_description(struct pgbuf *b, const struct pg_col *cols,
                            size_t n);

/* A row: begin, one value per column, end. */
size_t pg_row_begin(struct pgbuf *b, size_t n_cols);
void pg_row_null(struct pgbuf *b);
void pg_row_text(struct pgbuf *b, const char *s); /* NULL: a null */
void pg_row_slice(struct pgbuf *b, struct slice s);
void pg_row_i64(struct pgbuf *b, int64_t v);
void pg_row_printf(struct pgbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void pg_row_end(struct pgbuf *b, size_t at);

#endif
