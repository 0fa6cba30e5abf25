/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pool/latency.h"

static unsigned slow_bucket(int64_t us)
{
    unsigned i = 0;
    while (us > latency_bounds_us[i])
        i++;
    return i;
}

static void test_bucket(void **state)
{
    for (int64_t us = -5; us < 300000; us++)
        assert_int_equal(latency_bucket(us), slow_bucket(us));
    for (int i = 0; i < LATENCY_BOUNDS; i++)
        for (int d = -1; d <= 1; d++) {
            int64_t us = latency_bounds_us[i] + d;
            assert_int_equal(latency_bucket(us), slow_bucket(us));
        }
    for (int bit = 0; bit < 63; bit++)
        for (int d = -1; d <= 1; d++) {
            int64_t us = ((int64_t)1 << bit) + d;
            assert_int_equal(latency_bucket(us), slow_bucket(us));
        }
    assert_int_equal(latency_bucket(INT64_MAX), LATENCY_BOUNDS);
    assert_int_equal(latency_bucket(INT64_MIN), 0);
}

static void test_bounds_ascend(void **state)
{
    for (int i = 1; i < LATENCY_BUCKETS; i++)
        assert_true(latency_bounds_us[i - 1] < latency_bounds_us[i]);
}

static void test_sum(void **state)
{
    struct latency a = {0}, b = {0};
    struct latency_sum sum = {0};
    latency_add(&a, 100);
    latency_add(&a, 101);
    latency_add(&b, 70 * 1000000);
    latency_add(&b, -1); /* a clock that went back */
    latency_collect(&sum, &a);
    latency_collect(&sum, &b);
    assert_int_equal(sum.n[0], 2);
    assert_int_equal(sum.n[1], 1);
    assert_int_equal(sum.n[LATENCY_BOUNDS], 1);
    assert_int_equal(sum.sum_us, 70000201);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bucket),
        cmocka_unit_test(test_bounds_ascend),
        cmocka_unit_test(test_sum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
