/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "pg/pg_read.h"
#include "pg/pg_rows.h"

static const struct pg_col cols[] = {
    {"name", PG_COL_TEXT},
    {"n", PG_COL_INT4},
    {"bytes", PG_COL_INT8},
    {"avg", PG_COL_NUMERIC},
};

static struct pgread open_message(struct pgbuf *b, char want)
{
    struct slice body;
    size_t size;
    char type;

    assert_false(b->failed);
    assert_int_equal(pgread_message(pgbuf_slice(b), 10000, &type, &body, &size),
                     1);
    assert_int_equal(size, b->n);
    assert_int_equal(type, want);
    return pgread_of(body);
}

static void description(void **state)
{
    static const uint32_t oids[] = {25, 23, 20, 1700};
    static const int16_t sizes[] = {-1, 4, 8, -1};
    struct pgbuf b;
    struct pgread r;

    pgbuf_init(&b, 1000);
    pg_put_row_description(&b, cols, ARRAY_SIZE(cols));
    r = open_message(&b, 'T');
    assert_int_equal(pgread_u16(&r), 4);
    for (int i = 0; i < 4; i++) {
        assert_true(slice_is(pgread_cstr(&r), cols[i].name));
        assert_int_equal(pgread_u32(&r), 0);
        assert_int_equal(pgread_u16(&r), 0);
        assert_int_equal(pgread_u32(&r), oids[i]);
        assert_int_equal((int16_t)pgread_u16(&r), sizes[i]);
        assert_int_equal(pgread_i32(&r), -1);
        assert_int_equal(pgread_u16(&r), 0);
    }
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static struct slice value(struct pgread *r)
{
    int32_t n = pgread_i32(r);

    return n < 0 ? (struct slice){0} : pgread_bytes(r, (size_t)n);
}

static void row(void **state)
{
    struct pgbuf b;
    struct pgread r;
    size_t at;

    pgbuf_init(&b, 1000);
    at = pg_row_begin(&b, 7);
    pg_row_text(&b, "a");
    pg_row_text(&b, NULL);
    pg_row_text(&b, "");
    pg_row_i64(&b, INT64_MIN);
    pg_row_slice(&b, slice_of("x\0y", 3));
    pg_row_printf(&b, "%d.%03d", 1, 5);
    pg_row_null(&b);
    pg_row_end(&b, at);
    r = open_message(&b, 'D');
    assert_int_equal(pgread_u16(&r), 7);
    assert_true(slice_is(value(&r), "a"));
    assert_null(value(&r).p);
    assert_int_equal(value(&r).n, 0);
    assert_true(slice_is(value(&r), "-9223372036854775808"));
    assert_int_equal(value(&r).n, 3);
    assert_true(slice_is(value(&r), "1.005"));
    assert_null(value(&r).p);
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static void long_text_is_cut(void **state)
{
    struct pgbuf b;
    struct pgread r;
    size_t at;

    pgbuf_init(&b, 10000);
    at = pg_row_begin(&b, 1);
    pg_row_printf(&b, "%5000d", 1);
    pg_row_end(&b, at);
    r = open_message(&b, 'D');
    pgread_u16(&r);
    assert_int_equal(value(&r).n, 1023);
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static void no_columns(void **state)
{
    struct pgbuf b;

    pgbuf_init(&b, 100);
    pg_put_row_description(&b, NULL, 0);
    assert_int_equal(b.n, 7);
    assert_memory_equal(b.p, "T\0\0\0\6\0\0", 7);
    pgbuf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(description),
        cmocka_unit_test(row),
        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(no_columns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
