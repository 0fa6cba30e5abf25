/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "bench/load_hist.h"

static struct hist h;

static int set_up(void **state)
{
    hist_reset(&h);
    return 0;
}

static void test_empty(void **state)
{
    assert_int_equal(hist_part(&h, 0.5), 0);
    assert_true(hist_mean(&h) == 0);
}

static void test_every_size_is_told_to_three_percent(void **state)
{
    for (int64_t us = 0; us < INT64_C(1) << 36; us += us / 7 + 1) {
        hist_reset(&h);
        hist_add(&h, us);
        hist_add(&h, INT64_C(1) << 40); /* so that max does not hide it */
        int64_t got = hist_part(&h, 0.5);
        assert_true(llabs(got - us) * 32 <= us);
    }
}

static void test_parts_of_many(void **state)
{
    for (int i = 1; i <= 1000; i++)
        hist_add(&h, i * 1000);
    assert_in_range(hist_part(&h, 0.5), 485000, 515000);
    assert_in_range(hist_part(&h, 0.99), 960000, 1000000);
    assert_int_equal(hist_part(&h, 1), 1000000);
    assert_int_equal(h.max_us, 1000000);
    assert_true(hist_mean(&h) == 500500);
}

static void test_merge(void **state)
{
    static struct hist other;
    hist_reset(&other);
    hist_add(&h, 10);
    hist_add(&other, 20);
    hist_add(&other, 30);
    hist_merge(&h, &other);
    assert_int_equal(h.n, 3);
    assert_int_equal(hist_part(&h, 0.5), 20);
    assert_int_equal(h.max_us, 30);
    assert_true(hist_mean(&h) == 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_empty, set_up),
        cmocka_unit_test_setup(test_every_size_is_told_to_three_percent,
                               set_up),
        cmocka_unit_test_setup(test_parts_of_many, set_up),
        cmocka_unit_test_setup(test_merge, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
