/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The line of statistics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "admin/stats.h"

static void put_line(char *buf, size_t cap, const struct pool_stats *now,
                     const struct pool_stats *before, int64_t span_us)
{
    struct pool_stats avg;
    stats_between(now, before, span_us, &avg);
    stats_put_line(&avg, buf, cap);
}

static void test_rates_and_means(void **state)
{
    char line[512];
    struct pool_stats before = {.xact_count = 100, .xact_time_us = 5000};
    struct pool_stats now = {
        .xact_count = 300,
        .query_count = 400,
        .server_assignment_count = 10,
        .received = 2000,
        .sent = 4000,
        .xact_time_us = 25000,
        .query_time_us = 8000,
        .wait_time_us = 70,
        .client_parse_count = 2,
        .server_parse_count = 4,
        .bind_count = 6,
        .client_login_count = 8,
    };
    put_line(line, sizeof line, &now, &before, 2000000);
    assert_string_equal(line, "stats: 100 xacts/s, 200 queries/s, 1 client "
                              "parses/s, 2 server parses/s, 3 binds/s, 4 "
                              "client logins/s, in 1000 B/s, out 2000 B/s, "
                              "xact 100 us, query 20 us, wait 7 us");
}

/* Nothing happened, in no time; then a pool went and took its totals along. */
static void test_nothing(void **state)
{
    static const char none[] =
        "stats: 0 xacts/s, 0 queries/s, 0 client parses/s, 0 server parses/s, "
        "0 binds/s, 0 client logins/s, in 0 B/s, out 0 B/s, xact 0 us, "
        "query 0 us, wait 0 us";
    char line[512];
    struct pool_stats zero = {0}, some = {.xact_count = 7, .sent = 9};
    put_line(line, sizeof line, &zero, &zero, 0);
    assert_string_equal(line, none);
    put_line(line, sizeof line, &zero, &some, 1000000);
    assert_string_equal(line, none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates_and_means),
        cmocka_unit_test(test_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
