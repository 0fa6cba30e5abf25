/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/secret_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct secret_cache *cache;

static void put(const char *database, const char *user, int64_t now,
                const char *text)
{
    struct auth_secret s;
    assert_int_equal(auth_secret_parse(slice_str(text), &s), 0);
    secret_cache_put(cache, slice_str(database), slice_str(user), now, &s);
    auth_secret_fini(&s);
}

static bool has(const char *database, const char *user, int64_t not_before,
                const char *text)
{
    struct auth_secret s = {0};
    bool hit = secret_cache_find(cache, slice_str(database), slice_str(user),
                                 not_before, &s);
    if (hit && !slice_is(auth_secret_text(&s), text))
        fail_msg("another secret");
    auth_secret_fini(&s);
    return hit;
}

static int set_up(void **state)
{
    cache = secret_cache_new(3);
    return 0;
}

static int tear_down(void **state)
{
    secret_cache_free(cache);
    return 0;
}

static void holds_for_its_database_and_time(void **state)
{
    put("a", "bob", 100, "one");
    put("b", "bob", 100, "two");
    put("ab", "ob", 100, "three");
    assert_true(has("a", "bob", 100, "one"));
    assert_true(has("b", "bob", 50, "two"));
    assert_true(has("ab", "ob", 50, "three"));
    assert_false(has("a", "alice", 0, ""));
    put("a", "bob", 200, "new");
    assert_true(has("a", "bob", 200, "new"));
    assert_false(has("a", "bob", 201, ""));
    assert_false(has("a", "bob", 0, "")); /* too old is gone */
}

static void the_oldest_makes_room(void **state)
{
    put("d", "u1", 1, "x");
    put("d", "u2", 2, "x");
    put("d", "u3", 3, "x");
    put("d", "u1", 4, "x"); /* the newest now */
    put("d", "u4", 5, "x");
    assert_false(has("d", "u2", 0, ""));
    assert_true(has("d", "u1", 0, "x"));
    assert_true(has("d", "u3", 0, "x"));
    assert_true(has("d", "u4", 0, "x"));
}

static void forgets(void **state)
{
    put("d", "u1", 1, "x");
    put("d", "u2", 1, "x");
    secret_cache_drop(cache, slice_str("d"), slice_str("u1"));
    secret_cache_drop(cache, slice_str("d"), slice_str("nobody"));
    assert_false(has("d", "u1", 0, ""));
    assert_true(has("d", "u2", 0, "x"));
    secret_cache_clear(cache);
    assert_false(has("d", "u2", 0, ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(holds_for_its_database_and_time, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_oldest_makes_room, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(forgets, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
