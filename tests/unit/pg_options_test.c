/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "pg/pg_options.h"

static const char refused_text[] =
    "invalid command-line argument for server process: ";

/* Writes the options down as "name=value;" and "-letter:argument;", then "!"
 * and the error's text when they are refused. The input and the buffer are
 * exact heap blocks, so that a step beyond them is seen. */
static void read_options(const char *in, char *out, size_t cap)
{
    size_t n = strlen(in), used = 0;
    char *copy = malloc(n + !n), *buf = malloc(n + !n);
    struct pg_options o;
    struct pg_option x;
    struct err e;
    int rc;

    assert_non_null(copy);
    assert_non_null(buf);
    memcpy(copy, in, n);
    pg_options_init(&o, slice_of(copy, n), buf);
    out[0] = 0;
    while ((rc = pg_options_next(&o, &x, &e)) == 0 && x.kind != PG_OPTION_END) {
        bool set = x.kind == PG_OPTION_SETTING;

        used += (size_t)snprintf(out + used, cap - used, "%s%.*s%c%.*s;",
                                 set ? "" : "-", SLICE_ARG(x.name),
                                 set ? '=' : ':', SLICE_ARG(x.value));
        assert_true(used < cap);
    }
    if (rc < 0) {
        assert_int_equal(rc, ERR_SYNTAX);
        assert_int_equal(e.code, ERR_SYNTAX);
        snprintf(out + used, cap - used, "!%s", e.text);
    } else {
        assert_int_equal(pg_options_next(&o, &x, &e), 0);
        assert_int_equal(x.kind, PG_OPTION_END);
    }
    free(copy);
    free(buf);
}

static void expect(const char *in, const char *want)
{
    char got[1000];

    read_options(in, got, sizeof(got));
    assert_string_equal(got, want);
}

static void expect_refused(const char *in, const char *before, const char *word)
{
    char want[1000];

    snprintf(want, sizeof(want), "%s!%s%s", before, refused_text, word);
    expect(in, want);
}

static void settings(void **state)
{
    expect("", "");
    expect("  \t\n ", "");
    expect("-c a=b", "a=b;");
    expect("-ca=b", "a=b;");
    expect("--a=b", "a=b;");
    expect(" -c a=b  --c-d=e -cf=g ", "a=b;c_d=e;f=g;");
    expect("-c a=", "a=;");
    expect("-c a=b=c-d", "a=b=c-d;");
    expect("-c =x", "=x;");
    expect("-c\n\va=b", "a=b;");
}

static void escapes(void **state)
{
    expect("-c a=b\\ c", "a=b c;");
    expect("-c a=b\\\\c", "a=b\\c;");
    expect("-c a=\\b", "a=b;");
    expect("-c a=b\\", "a=b;");
    expect("-c\\ a=b", " a=b;");
    expect("-c a=\\\n", "a=\n;");
    expect("-c search_path=x,\\ y", "search_path=x, y;");
}

static void other_switches(void **state)
{
    expect("-e", "-e:;");
    expect("-S 1000", "-S:1000;");
    expect("-S1000", "-S:1000;");
    expect("-eFP", "-e:;-F:;-P:;");
    expect("-esc a=b -fn", "-e:;-s:;a=b;-f:n;");
    expect("-ec a=b", "-e:;a=b;");
    expect("-e --", "-e:;");
}

static void refused(void **state)
{
    expect_refused("foo", "", "foo");
    expect_refused("-", "", "-");
    expect_refused("\\", "", "");
    expect_refused("-c", "", "-c");
    expect_refused("-c a=b foo", "a=b;", "foo");
    expect_refused("-Q", "", "-Q");
    expect_refused("-eQ", "-e:;", "-eQ");
    expect_refused("-c a=b -S", "a=b;", "-S");
    expect_refused("-- -c", "", "-c");
    expect("-c a", "!-c a requires a value");
    expect("--a-b", "!--a-b requires a value");
    expect("-c --", "!-c -- requires a value");
}

static void every_truncation_ends(void **state)
{
    static const char whole[] = "-c a=b\\ c --d-e=f -eS 1 -c\\";
    char in[sizeof(whole)], got[1000];

    for (size_t n = 0; n < sizeof(whole); n++) {
        memcpy(in, whole, n);
        in[n] = 0;
        read_options(in, got, sizeof(got));
    }
}

static void zero_bytes_do_no_harm(void **state)
{
    char buf[8];
    struct pg_options o;
    struct pg_option x;

    pg_options_init(&o, slice_of("-\0a", 3), buf);
    assert_int_equal(pg_options_next(&o, &x, NULL), ERR_SYNTAX);
    pg_options_init(&o, (struct slice){0}, buf);
    assert_int_equal(pg_options_next(&o, &x, NULL), 0);
    assert_int_equal(x.kind, PG_OPTION_END);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings),
        cmocka_unit_test(escapes),
        cmocka_unit_test(other_switches),
        cmocka_unit_test(refused),
        cmocka_unit_test(every_truncation_ends),
        cmocka_unit_test(zero_bytes_do_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
