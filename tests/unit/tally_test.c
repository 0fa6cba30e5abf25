/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "pool/tally.h"

static const struct tally_end *find(const struct tally *t, const char *state)
{
    for (int i = 0; i < TALLY_ENDS_MAX; i++)
        if (!strcmp(t->ends[i].sqlstate, state))
            return &t->ends[i];
    return NULL;
}

static void test_ends(void **state)
{
    struct tally a = {0}, sum = {0};
    tally_end(&a, "28P01", true);
    tally_end(&a, "28P01", false);
    tally_end(&a, "08P01", true);
    a.cancel_requests = 3;
    tally_add(&sum, &a);
    tally_add(&sum, &a);
    assert_int_equal(find(&sum, "28P01")->logins, 2);
    assert_int_equal(find(&sum, "28P01")->sessions, 2);
    assert_int_equal(find(&sum, "08P01")->logins, 2);
    assert_int_equal(sum.cancel_requests, 6);
}

/* A server's own SQLSTATEs are passed on: there may be any number of them. */
static void test_too_many(void **state)
{
    struct tally t = {0}, sum = {0};
    char name[16];
    uint64_t n = 0;
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "%05d", i);
        tally_end(&t, name, true);
    }
    tally_add(&sum, &t);
    assert_int_equal(find(&sum, "00000")->logins, 1);
    for (int i = 0; i < TALLY_ENDS_MAX; i++)
        n += sum.ends[i].logins;
    assert_int_equal(n, 200);
    assert_int_equal(find(&sum, "other")->logins, 200 - TALLY_ENDS_MAX + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
