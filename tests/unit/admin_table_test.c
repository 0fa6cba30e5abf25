/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "admin/table.h"
#include "pg/pg_read.h"

static struct pgread open_message(struct pgbuf *b, char want)
{
    struct slice body;
    size_t size;
    char type;

    assert_false(b->failed);
    assert_int_equal(pgread_message(pgbuf_slice(b), 10000, &type, &body, &size),
                     1);
    assert_int_equal(type, want);
    return pgread_of(body);
}

static void every_table_has_columns(void **state)
{
    size_t n;

    assert_null(table_columns(TABLE_NONE, &n));
    assert_int_equal(n, 0);
    for (int id = TABLE_NONE + 1; id < TABLE_COUNT; id++) {
        const struct pg_col *cols = table_columns(id, &n);

        assert_true(n > 0);
        for (size_t i = 0; i < n; i++)
            assert_non_null(cols[i].name);
    }
}

static void some_columns(void **state)
{
    const struct pg_col *cols;
    size_t n;

    cols = table_columns(TABLE_POOLS, &n);
    assert_int_equal(n, 17);
    assert_string_equal(cols[0].name, "database");
    assert_string_equal(cols[16].name, "load_balance_hosts");
    cols = table_columns(TABLE_CONNECTIONS, &n);
    assert_int_equal(n, 24);
    assert_string_equal(cols[20].name, "id");
    assert_string_equal(cols[23].name, "quic_stream");
    cols = table_columns(TABLE_STATS, &n);
    assert_int_equal(n, 25);
    assert_int_equal(cols[1].type, PG_COL_NUMERIC);
    cols = table_columns(TABLE_TIMEZONE, &n);
    assert_int_equal(n, 1);
    assert_string_equal(cols[0].name, "timezone");
}

static void description(void **state)
{
    struct pgbuf b;
    struct pgread r;

    pgbuf_init(&b, 10000);
    table_describe(&b, TABLE_LISTS, 2);
    r = open_message(&b, 'T');
    assert_int_equal(pgread_u16(&r), 2);
    for (int i = 0; i < 2; i++) {
        (void)pgread_cstr(&r);
        (void)pgread_bytes(&r, 16);
        assert_int_equal(pgread_u16(&r), i);
    }
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static struct slice value(struct pgread *r)
{
    int32_t n = pgread_i32(r);

    return n < 0 ? slice_of(NULL, 0) : pgread_bytes(r, (size_t)n);
}

static void put_worker(struct pgbuf *b, table_formats formats)
{
    struct table t;

    table_init(&t, b, TABLE_WORKERS, formats);
    table_row(&t);
    table_int(&t, -1);
    table_int(&t, INT64_MAX);
    table_int(&t, INT64_MIN);
    table_int(&t, 7);
    table_null(&t);
    for (int i = 0; i < 18; i++)
        table_int(&t, INT64_C(0x123456789a));
    table_row_end(&t);
}

static void text(void **state)
{
    struct pgbuf b;
    struct pgread r;

    pgbuf_init(&b, 10000);
    put_worker(&b, 0);
    r = open_message(&b, 'D');
    assert_int_equal(pgread_u16(&r), 23);
    assert_true(slice_is(value(&r), "-1"));
    assert_true(slice_is(value(&r), "2147483647"));
    assert_true(slice_is(value(&r), "-2147483648"));
    assert_true(slice_is(value(&r), "7"));
    assert_null(value(&r).p);
    for (int i = 0; i < 18; i++)
        assert_true(slice_is(value(&r), "78187493530"));
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static void binary(void **state)
{
    struct pgbuf b;
    struct pgread r;

    pgbuf_init(&b, 10000);
    put_worker(&b, UINT64_MAX);
    r = open_message(&b, 'D');
    assert_int_equal(pgread_u16(&r), 23);
    assert_true(slice_eq(value(&r), slice_of("\xff\xff\xff\xff", 4)));
    assert_true(slice_eq(value(&r), slice_of("\x7f\xff\xff\xff", 4)));
    assert_true(slice_eq(value(&r), slice_of("\x80\0\0\0", 4)));
    assert_true(slice_eq(value(&r), slice_of("\0\0\0\x07", 4)));
    assert_null(value(&r).p);
    for (int i = 0; i < 18; i++)
        assert_true(
            slice_eq(value(&r), slice_of("\0\0\0\x12\x34\x56\x78\x9a", 8)));
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static void is_numeric(int64_t v, const void *want, size_t n)
{
    struct pgbuf b;
    struct pgread r;
    struct table t;

    pgbuf_init(&b, 10000);
    table_init(&t, &b, TABLE_TOTALS, 3);
    table_row(&t);
    table_text(&t, "x");
    table_int(&t, v);
    table_row_end(&t);
    r = open_message(&b, 'D');
    assert_int_equal(pgread_u16(&r), 2);
    assert_true(slice_is(value(&r), "x"));
    assert_true(slice_eq(value(&r), slice_of(want, n)));
    assert_true(pgread_done(&r));
    pgbuf_fini(&b);
}

static void binary_numeric(void **state)
{
    is_numeric(0, "\0\0\0\0\0\0\0\0", 8);
    is_numeric(-5, "\0\0\0\0\0\0\0\0", 8);
    is_numeric(7, "\0\x01\0\0\0\0\0\0\0\x07", 10);
    is_numeric(10000, "\0\x02\0\x01\0\0\0\0\0\x01\0\0", 12);
    is_numeric(12345678, "\0\x02\0\x01\0\0\0\0\x04\xd2\x16\x2e", 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_has_columns),
        cmocka_unit_test(some_columns),
        cmocka_unit_test(description),
        cmocka_unit_test(text),
        cmocka_unit_test(binary),
        cmocka_unit_test(binary_numeric),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
