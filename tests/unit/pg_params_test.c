/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Sets of settings: equal ones are one object, differences as SQL, and threads
 * that make and drop the same sets. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "pg/pg_params.h"
#include "pg/pg_write.h"

static const struct pg_params *with(const struct pg_params *p, const char *name,
                                    const char *value)
{
    return pg_params_with(p, slice_str(name), slice_str(value));
}

static void assert_value(const struct pg_params *p, const char *name,
                         const char *value)
{
    struct slice v = pg_params_get(p, slice_str(name));
    assert_non_null(v.p);
    assert_true(slice_is(v, value));
}

static void test_equal_sets_are_one(void **state)
{
    const struct pg_params *a =
        with(with(pg_params_empty(), "TimeZone", "UTC"), "DateStyle", "ISO");
    const struct pg_params *b =
        with(with(pg_params_empty(), "TimeZone", "GMT"), "DateStyle", "ISO");
    assert_ptr_not_equal(a, b);
    b = with(b, "timezone", "UTC"); /* names compare without case */
    assert_ptr_equal(a, b);
    assert_int_equal(pg_params_count(a), 2);
    pg_params_unref(b);
    assert_value(a, "TIMEZONE", "UTC");
    pg_params_unref(a);
}

static void test_same_value_is_same_object(void **state)
{
    const struct pg_params *a = with(pg_params_empty(), "a", "1");
    assert_ptr_equal(with(a, "A", "1"), a);
    assert_null(pg_params_get(a, slice_str("b")).p);
    pg_params_unref(a);
    pg_params_unref(NULL);
}

/* Bytes that would run together without their ends: "a"="bc" and "ab"="c". */
static void test_boundaries_count(void **state)
{
    const struct pg_params *a = with(pg_params_empty(), "a", "bc");
    const struct pg_params *b = with(pg_params_empty(), "ab", "c");
    assert_ptr_not_equal(a, b);
    pg_params_unref(a);
    a = with(pg_params_empty(), "a", "");
    assert_value(a, "a", "");
    pg_params_unref(a);
    pg_params_unref(b);
}

static void test_limits(void **state)
{
    char name[PG_NAME_MAX + 2], *value = mem_new(PG_PARAM_VALUE_MAX + 2);
    const struct pg_params *p = pg_params_empty();
    memset(value, 'v', PG_PARAM_VALUE_MAX + 1);
    p = with(p, "long", value);
    assert_int_equal(pg_params_count(p), 0);
    value[PG_PARAM_VALUE_MAX] = 0;
    p = with(p, "long", value);
    assert_int_equal(pg_params_count(p), 1);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    p = with(p, name, "x");
    assert_int_equal(pg_params_count(p), 1);
    for (int i = 1; i < PG_PARAMS_MAX + 5; i++) {
        snprintf(name, sizeof name, "n%d", i);
        p = with(p, name, "x");
    }
    assert_int_equal(pg_params_count(p), PG_PARAMS_MAX);
    p = with(p, "n3", "changed"); /* a full set can still change */
    assert_value(p, "n3", "changed");
    pg_params_unref(p);
    free(value);
}

static void test_put_all(void **state)
{
    static const char bytes[] = "S\0\0\0\x08"
                                "a\0"
                                "1\0"
                                "S\0\0\0\x07"
                                "b\0\0";
    struct pgbuf b;
    pgbuf_init(&b, 1000);
    const struct pg_params *p =
        with(with(pg_params_empty(), "a", "1"), "b", "");
    pg_params_put_all(p, &b);
    assert_int_equal(b.n, sizeof bytes - 1);
    assert_memory_equal(b.p, bytes, b.n);
    pgbuf_fini(&b);
    pg_params_unref(p);
}

static bool all(void *arg, struct slice name)
{
    return true;
}

static bool standard(void *arg, struct slice name)
{
    ++*(int *)arg;
    return pg_params_is_standard(name);
}

static void assert_diff(const char *name, const char *value, const char *sql)
{
    struct pgbuf b;
    pgbuf_init(&b, 1000);
    const struct pg_params *have = pg_params_empty();
    const struct pg_params *want = with(pg_params_empty(), name, value);
    assert_int_equal(pg_params_put_diff(want, have, all, NULL, &b), 1);
    pgbuf_put_u8(&b, 0);
    assert_string_equal(b.p, sql);
    pgbuf_fini(&b);
    pg_params_unref(want);
    pg_params_unref(have);
}

static void test_diff_is_safe_sql(void **state)
{
    assert_diff("application_name", "x", "SET \"application_name\" TO 'x';");
    assert_diff("application_name", "it's; DROP--",
                "SET \"application_name\" TO 'it''s; DROP--';");
    assert_diff("a", "\\'; x", "SET \"a\" TO E'\\\\''; x';");
    assert_diff("a", "", "SET \"a\" TO '';");
    assert_diff("my.guc", "1", "SET \"my\".\"guc\" TO '1';");
    assert_diff("a\"; b", "1", "SET \"a\"\"; b\" TO '1';");
    assert_diff("search_path", "\"$user\", 'a'",
                "SELECT pg_catalog.set_config('search_path', "
                "'\"$user\", ''a''', false);");
}

/* The second byte of a character in SJIS may be a backslash, and the server
 * may have another encoding. */
static void test_diff_of_other_encodings(void **state)
{
    struct pgbuf b;
    pgbuf_init(&b, 1000);
    const struct pg_params *have =
        with(pg_params_empty(), "client_encoding", "UTF8");
    const struct pg_params *want =
        with(with(pg_params_empty(), "client_encoding", "SJIS"), "my.label",
             "\x83\x5c'; DROP--");
    assert_int_equal(pg_params_put_diff(want, have, all, NULL, &b), 2);
    pgbuf_put_u8(&b, 0);
    assert_string_equal(b.p,
                        "SET \"client_encoding\" TO 'SJIS';"
                        "SELECT pg_catalog.set_config('my.label', "
                        "pg_catalog.convert_from(pg_catalog.decode("
                        "'835c273b2044524f502d2d', 'hex'), 'SJIS'), false);");
    pgbuf_fini(&b);
    pg_params_unref(want);
    pg_params_unref(have);
    assert_diff("search_path", "\xc3\xa4",
                "SELECT pg_catalog.set_config('search_path', "
                "pg_catalog.convert_from(pg_catalog.decode('c3a4', 'hex'), "
                "'SQL_ASCII'), false);");
}

static void test_diff_is_what_differs(void **state)
{
    struct pgbuf b;
    int asked = 0;
    pgbuf_init(&b, 1000);
    const struct pg_params *have = with(
        with(with(pg_params_empty(), "TimeZone", "UTC"), "DateStyle", "ISO"),
        "server_version", "16");
    const struct pg_params *want = with(
        with(with(pg_params_empty(), "timezone", "UTC"), "DateStyle", "SQL"),
        "server_version", "17");
    assert_int_equal(pg_params_put_diff(want, have, standard, &asked, &b), 1);
    assert_int_equal(asked, 2); /* only where they differ */
    pgbuf_put_u8(&b, 0);
    assert_string_equal(b.p, "SET \"DateStyle\" TO 'SQL';");
    pgbuf_reset(&b);
    assert_int_equal(pg_params_put_diff(have, have, all, NULL, &b), 0);
    assert_int_equal(b.n, 0);
    pgbuf_fini(&b);
    pg_params_unref(want);
    pg_params_unref(have);
}

/* The last reference of a set goes while another thread finds it. */
static void *make_and_drop(void *arg)
{
    char value[16];
    for (int i = 0; i < 20000; i++) {
        snprintf(value, sizeof value, "%d", i % 3);
        const struct pg_params *p = with(pg_params_empty(), "k", value);
        const struct pg_params *q = pg_params_ref(p);
        must(slice_is(pg_params_get(q, slice_str("k")), value));
        pg_params_unref(p);
        pg_params_unref(q);
    }
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t t[4];
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, make_and_drop, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        pthread_join(t[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_sets_are_one),
        cmocka_unit_test(test_same_value_is_same_object),
        cmocka_unit_test(test_boundaries_count),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_put_all),
        cmocka_unit_test(test_diff_is_safe_sql),
        cmocka_unit_test(test_diff_of_other_encodings),
        cmocka_unit_test(test_diff_is_what_differs),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
