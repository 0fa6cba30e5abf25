/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "pg/pg_error.h"
#include "pg/pg_write.h"

static const char whole[] = "SFEHLER\0VERROR\0C42P01\0Mtext\0Ddet\0Hhint\0"
                            "P15\0Fparse.c\0L1\0Rf\0";

#define BODY(s) slice_of((s), sizeof(s) - 1)

static void all_fields(void **state)
{
    struct pg_error x;

    assert_true(pg_error_parse(slice_of(whole, sizeof(whole)), &x));
    assert_true(slice_is(x.severity, "ERROR"));
    assert_true(slice_is(x.code, "42P01"));
    assert_true(slice_is(x.message, "text"));
    assert_true(slice_is(x.detail, "det"));
    assert_true(slice_is(x.hint, "hint"));
    assert_false(pg_error_is_fatal(&x));
    assert_true(pg_error_has_code(&x, "42P01"));
    assert_false(pg_error_has_code(&x, "42P0"));
}

static void old_server_without_v(void **state)
{
    struct pg_error x;

    assert_true(pg_error_parse(BODY("SFATAL\0C57P01\0Mbye\0\0"), &x));
    assert_true(pg_error_is_fatal(&x));
    assert_null(x.detail.p);
    assert_true(pg_error_parse(BODY("VPANIC\0SPANIK\0\0"), &x));
    assert_true(slice_is(x.severity, "PANIC"));
    assert_true(pg_error_is_fatal(&x));
}

static void no_fields(void **state)
{
    struct pg_error x;

    assert_true(pg_error_parse(BODY("\0"), &x));
    assert_false(pg_error_is_fatal(&x));
    assert_false(pg_error_has_code(&x, "42P01"));
    assert_false(pg_error_parse((struct slice){0}, &x));
}

static void every_truncation_is_refused(void **state)
{
    struct pg_error x;

    for (size_t n = 0; n < sizeof(whole); n++)
        assert_false(pg_error_parse(slice_of(whole, n), &x));
    assert_false(pg_error_parse(BODY("SERROR\0\0x"), &x));
}

static void fields_before_the_break_are_kept(void **state)
{
    struct pg_error x;

    assert_false(pg_error_parse(BODY("SERROR\0C42601\0Mcut of"), &x));
    assert_true(slice_is(x.severity, "ERROR"));
    assert_true(slice_is(x.code, "42601"));
    assert_null(x.message.p);
}

static void reads_what_is_built(void **state)
{
    struct pg_error_text t = {"FATAL", "28P01", "m", "d", "h"};
    struct pgbuf b;
    struct pg_error x;

    pgbuf_init(&b, 1000);
    pg_put_error_full(&b, &t);
    assert_true(pg_error_parse(slice_of(b.p + 5, b.n - 5), &x));
    assert_true(pg_error_is_fatal(&x));
    assert_true(slice_is(x.detail, "d"));
    assert_true(slice_is(x.hint, "h"));
    pgbuf_fini(&b);
}

static void text_is_one_line_and_cut(void **state)
{
    struct pg_error x;
    char buf[64];

    assert_true(
        pg_error_parse(BODY("VERROR\0C22012\0Ma\nb\x1b[c\x7f\0\0"), &x));
    assert_string_equal(pg_error_text(&x, buf, sizeof(buf)),
                        "ERROR 22012: a b [c ");
    assert_string_equal(pg_error_text(&x, buf, 9), "ERROR 22");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_fields),
        cmocka_unit_test(old_server_without_v),
        cmocka_unit_test(no_fields),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(fields_before_the_break_are_kept),
        cmocka_unit_test(reads_what_is_built),
        cmocka_unit_test(text_is_one_line_and_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
