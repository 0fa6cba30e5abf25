/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "pool/balance.h"

enum { BUSY = 600, WORKERS_MAX = 64 };

static void expect(struct balance_plan got, int to, int give)
{
    assert_int_equal(got.to, to);
    if (to >= 0)
        assert_int_equal(got.give, give);
}

#define PLAN(self, ...)                                                        \
    balance_plan((const int[]){__VA_ARGS__},                                   \
                 sizeof((const int[]){__VA_ARGS__}) / sizeof(int), self, BUSY)

static void alone(void **state)
{
    expect(PLAN(0, 1000), -1, 0);
    expect(PLAN(0, 0), -1, 0);
}

static void busy_ones_give_away(void **state)
{
    expect(PLAN(0, 900, 100), 1, 200);
    expect(PLAN(1, 900, 100), -1, 0);
    expect(PLAN(2, 300, 50, 700, 60), 1, 162);
    expect(PLAN(0, 900, 700), -1, 0); /* hardly any difference */
    expect(PLAN(0, 599, 0), -1, 0);
}

static void little_work_gathers(void **state)
{
    expect(PLAN(1, 100, 150), 0, 150);
    expect(PLAN(0, 100, 150), -1, 0); /* towards lower numbers only */
    expect(PLAN(1, 390, 20), -1, 0);  /* there is no room */
    expect(PLAN(2, 390, 20, 20), 1, 20);
    expect(PLAN(1, 0, 250), -1, 0); /* enough to stay */
}

/* Whatever the loads are at first, moves end: from second to second every
 * worker does as its plan says, and after a while none has anything to do. */
static void settle(unsigned seed)
{
    int load[WORKERS_MAX], n;

    srand(seed);
    n = 2 + rand() % (WORKERS_MAX - 1);
    for (int i = 0; i < n; i++)
        load[i] = rand() % 4 ? rand() % 200 : rand() % 1000;
    for (int second = 0; second < 400; second++) {
        int moves = 0;

        for (int i = 0; i < n; i++) {
            struct balance_plan plan = balance_plan(load, n, i, BUSY);

            if (plan.to < 0 || plan.give == 0)
                continue;
            assert_int_not_equal(plan.to, i);
            assert_true(plan.give <= load[i]);
            assert_true(load[plan.to] + plan.give <= load[i] ||
                        load[plan.to] + plan.give <= BUSY);
            load[plan.to] += plan.give;
            load[i] -= plan.give;
            moves++;
        }
        if (moves == 0)
            return;
    }
    fail_msg("seed %u: moves without end", seed);
}

static void moves_end(void **state)
{
    for (unsigned seed = 1; seed <= 2000; seed++)
        settle(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone),
        cmocka_unit_test(busy_ones_give_away),
        cmocka_unit_test(little_work_gathers),
        cmocka_unit_test(moves_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
