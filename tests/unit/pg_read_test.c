/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "base/err.h"
#include "pg/pg_read.h"

static const char body[] = "\xfe\1\2\3\4\5\6\xff\xff\xff\xff"
                           "abc\0xy\0\0rest";

/* Reads the body above from its first n bytes. */
static bool read_all(size_t n)
{
    struct pgread r = pgread_of(slice_of(body, n));

    pgread_u8(&r);
    pgread_u16(&r);
    pgread_u32(&r);
    pgread_i32(&r);
    pgread_cstr(&r);
    pgread_bytes(&r, 2);
    pgread_u8(&r);
    pgread_cstr(&r);
    pgread_bytes(&r, 4);
    return pgread_done(&r);
}

static void reads_what_was_written(void **state)
{
    struct pgread r = pgread_of(slice_of(body, sizeof(body) - 1));

    assert_int_equal(pgread_left(&r), sizeof(body) - 1);
    assert_int_equal(pgread_u8(&r), 0xfe);
    assert_int_equal(pgread_u16(&r), 0x0102);
    assert_int_equal(pgread_u32(&r), 0x03040506);
    assert_int_equal(pgread_i32(&r), -1);
    assert_true(slice_is(pgread_cstr(&r), "abc"));
    assert_true(slice_is(pgread_bytes(&r, 2), "xy"));
    assert_int_equal(pgread_u8(&r), 0);
    assert_true(slice_is(pgread_cstr(&r), ""));
    assert_false(pgread_done(&r));
    assert_true(slice_is(pgread_rest(&r), "rest"));
    assert_true(pgread_done(&r));
    assert_int_equal(pgread_rest(&r).n, 0);
    assert_true(pgread_done(&r));
}

static void every_truncation_is_bad(void **state)
{
    for (size_t n = 0; n < sizeof(body) - 1; n++)
        assert_false(read_all(n));
    assert_true(read_all(sizeof(body) - 1));
    assert_false(read_all(sizeof(body)));
}

static void bad_stays_bad_and_yields_zeros(void **state)
{
    struct pgread r = pgread_of(slice_of("\1\2\3", 3));

    assert_int_equal(pgread_u32(&r), 0);
    assert_true(r.bad);
    assert_int_equal(pgread_u8(&r), 0);
    assert_int_equal(pgread_u16(&r), 0);
    assert_int_equal(pgread_bytes(&r, 1).n, 0);
    assert_null(pgread_cstr(&r).p);
    assert_int_equal(pgread_rest(&r).n, 0);
    assert_false(pgread_done(&r));
}

static void huge_counts_are_bad(void **state)
{
    struct pgread r = pgread_of(slice_of("abc", 3));

    assert_null(pgread_bytes(&r, SIZE_MAX).p);
    assert_true(r.bad);
}

static void empty_body(void **state)
{
    struct pgread r = pgread_of((struct slice){0});

    assert_true(pgread_done(&r));
    assert_int_equal(pgread_bytes(&r, 0).n, 0);
    assert_int_equal(pgread_rest(&r).n, 0);
    assert_true(pgread_done(&r));
    pgread_cstr(&r);
    assert_true(r.bad);
}

static void message_is_split_off(void **state)
{
    static const char wire[] = "Q\0\0\0\6x\0S\0\0\0\4";
    struct slice out;
    size_t size;
    char type;

    for (size_t n = 0; n < 7; n++) {
        assert_int_equal(
            pgread_message(slice_of(wire, n), 100, &type, &out, &size), 0);
        assert_int_equal(size, n < 5 ? 0 : 7);
    }
    assert_int_equal(
        pgread_message(slice_of(wire, sizeof(wire) - 1), 6, &type, &out, &size),
        1);
    assert_int_equal(type, 'Q');
    assert_int_equal(size, 7);
    assert_int_equal(out.n, 2);
    assert_memory_equal(out.p, "x", 2);
    assert_int_equal(
        pgread_message(slice_of(wire + 7, 5), 6, &type, &out, &size), 1);
    assert_int_equal(type, 'S');
    assert_int_equal(out.n, 0);
}

static void message_with_a_bad_length(void **state)
{
    struct slice out;
    size_t size;
    char type;

    assert_int_equal(
        pgread_message(slice_of("Q\0\0\0\3", 5), 100, &type, &out, &size),
        ERR_PROTO);
    assert_int_equal(
        pgread_message(slice_of("Q\0\0\0\x65", 5), 100, &type, &out, &size),
        ERR_PROTO);
    assert_int_equal(pgread_message(slice_of("Q\xff\xff\xff\xff", 5),
                                    PG_LARGE_MESSAGE_LIMIT, &type, &out, &size),
                     ERR_PROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written),
        cmocka_unit_test(every_truncation_is_bad),
        cmocka_unit_test(bad_stays_bad_and_yields_zeros),
        cmocka_unit_test(huge_counts_are_bad),
        cmocka_unit_test(empty_body),
        cmocka_unit_test(message_is_split_off),
        cmocka_unit_test(message_with_a_bad_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
