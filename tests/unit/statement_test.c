/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The registry of statements: one object a text, numbers that never come again,
 * which texts may drop others, a worker's cache, and threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "pool/statement.h"

static struct statement *get(const char *text)
{
    /* Text, zero byte, no types. */
    char body[300];
    size_t n = strlen(text) + 1;
    memcpy(body, text, n);
    body[n] = body[n + 1] = 0;
    return statement_get(slice_of(body, n + 2));
}

static void assert_total(size_t expected)
{
    size_t count, bytes;
    statement_totals(&count, &bytes);
    assert_int_equal(count, expected);
    assert_true((bytes == 0) == (expected == 0));
}

static void test_one_object_a_text(void **state)
{
    struct statement *a = get("select 1"), *b = get("select 1");
    struct statement *c = get("select 2");
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_true(a->id != c->id && a->id && c->id);
    assert_total(2);
    statement_unref(a);
    assert_total(2);
    statement_unref(b);
    statement_unref(c);
    statement_unref(NULL);
    assert_null(statement_ref(NULL));
    assert_total(0);
}

static void test_types_are_part_of_it(void **state)
{
    static const char int4[] = "select $1\0\0\1\0\0\0\x17";
    static const char text[] = "select $1\0\0\1\0\0\0\x19";
    struct statement *a = statement_get(slice_of(int4, sizeof int4 - 1));
    struct statement *b = statement_get(slice_of(text, sizeof text - 1));
    assert_ptr_not_equal(a, b);
    assert_int_equal(a->body_n, sizeof int4 - 1);
    assert_memory_equal(b->body, text, b->body_n);
    statement_unref(a);
    statement_unref(b);
}

static void test_numbers_never_come_again(void **state)
{
    struct statement *a = get("select 1");
    uint32_t id = a->id;
    statement_unref(a);
    a = get("select 1");
    assert_true(a->id > id);
    statement_unref(a);
}

static void test_barriers(void **state)
{
    static const struct {
        const char *text;
        bool is_barrier;
    } t[] = {
        {"DEALLOCATE ALL", true},
        {"deallocate x", true},
        {"DISCARD ALL", true},
        {"discard plans", true},
        {" \t\n;; DeAllocate all", true},
        {"-- note\nDISCARD ALL", true},
        {"/* a /* nested */ b */discard all", true},
        {"/**/-- x\n/* */ DISCARD ALL", true},
        {"select 'DISCARD ALL'", false},
        {"-- DISCARD ALL", false},
        {"/* DISCARD ALL */ select 1", false},
        {"/* never closed DISCARD ALL", false},
        {"/* a /* b */ DISCARD ALL", false},
        {"", false},
        {"/", false},
        {"/*", false},
        {"-", false},
        {"--", false},
        {"DEALLOCAT", false},
        {"discar", false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(t); i++) {
        struct statement *s = get(t[i].text);
        if (s->is_barrier != t[i].is_barrier)
            fail_msg("%s", t[i].text);
        statement_unref(s);
    }
}

static void test_many(void **state)
{
    enum { MANY = 5000 };
    struct statement **s = mem_new_array(MANY, sizeof(void *));
    char text[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(text, sizeof text, "select %d", i);
        s[i] = get(text);
    }
    assert_total(MANY);
    for (int i = 0; i < MANY; i++) {
        snprintf(text, sizeof text, "select %d", i);
        assert_ptr_equal(get(text), s[i]);
        statement_unref(s[i]);
    }
    for (int i = MANY - 1; i >= 0; i--)
        statement_unref(s[i]);
    assert_total(0);
    free(s);
}

static void test_cache(void **state)
{
    struct statement_cache *c = mem_new(sizeof *c);
    char *big = mem_new(STATEMENT_CACHE_BODY_MAX + 10);
    struct slice one = slice_of("select 1\0\0\0", 11);
    struct statement *a = statement_cache_get(c, one);
    struct statement *b = statement_cache_get(c, one);
    assert_ptr_equal(a, b);
    statement_unref(a);
    statement_unref(b);
    assert_total(1); /* the cache keeps it */
    memset(big, 'x', STATEMENT_CACHE_BODY_MAX + 5);
    a = statement_cache_get(c, slice_of(big, STATEMENT_CACHE_BODY_MAX + 10));
    statement_unref(a);
    assert_total(1); /* too long for the cache */
    /* More texts than slots: old ones make room. */
    for (int i = 0; i < 5 * STATEMENT_CACHE_SLOTS; i++) {
        char text[32];
        int n = snprintf(text, sizeof text - 2, "select %d", i) + 3;
        text[n - 1] = text[n - 2] = 0;
        statement_unref(statement_cache_get(c, slice_of(text, (size_t)n)));
    }
    size_t count, bytes;
    statement_totals(&count, &bytes);
    assert_true(count <= STATEMENT_CACHE_SLOTS);
    statement_cache_fini(c);
    statement_cache_fini(c);
    assert_total(0);
    free(c);
    free(big);
}

static void *use_them(void *arg)
{
    struct statement_cache *c = mem_new(sizeof *c);
    for (int i = 0; i < 20000; i++) {
        char text[32];
        int n = snprintf(text, sizeof text - 2, "select %d", i % 7) + 3;
        text[n - 1] = text[n - 2] = 0;
        struct slice body = slice_of(text, (size_t)n);
        struct statement *a =
            i % 3 ? statement_get(body) : statement_cache_get(c, body);
        struct statement *b = statement_ref(a);
        must(a->body_n == body.n && !memcmp(a->body, body.p, body.n));
        statement_unref(a);
        statement_unref(b);
        if (i % 100 == 0)
            statement_cache_fini(c);
    }
    statement_cache_fini(c);
    free(c);
    return NULL;
}

static void test_threads(void **state)
{
    pthread_t t[4];
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        assert_int_equal(pthread_create(&t[i], NULL, use_them, NULL), 0);
    for (size_t i = 0; i < ARRAY_SIZE(t); i++)
        pthread_join(t[i], NULL);
    assert_total(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_object_a_text),
        cmocka_unit_test(test_types_are_part_of_it),
        cmocka_unit_test(test_numbers_never_come_again),
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
