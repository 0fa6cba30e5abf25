/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conf/cidr.h"

static bool has(const char *range, const char *ip)
{
    struct cidr c;
    uint8_t at[16];
    bool is_v6 = strchr(ip, ':') != NULL;

    assert_true(cidr_parse(slice_str(range), &c));
    assert_int_equal(inet_pton(is_v6 ? AF_INET6 : AF_INET, ip, at), 1);
    return cidr_has(&c, at, is_v6 ? 16 : 4);
}

static void ranges(void **state)
{
    static const char *const bad[] = {"",          "x",         "10.0.0.0/33",
                                      "10.0.0/8",  "::1/129",   "10.0.0.0/-1",
                                      "10.0.0.0/", "10.0.0.0/x"};
    struct cidr c;

    assert_true(has("10.0.0.5", "10.0.0.5"));
    assert_false(has("10.0.0.5", "10.0.0.4"));
    assert_true(has("10.1.2.0/23", "10.1.3.255"));
    assert_false(has("10.1.2.0/23", "10.1.4.0"));
    assert_true(has("10.1.2.3/8", "10.255.0.1"));
    assert_true(has("0.0.0.0/0", "203.0.113.1"));
    assert_false(has("0.0.0.0/0", "::1"));
    assert_true(has("::/0", "::1"));
    assert_true(has("2001:db8::/33", "2001:db8:7fff::1"));
    assert_false(has("2001:db8::/33", "2001:db8:8000::1"));
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(cidr_parse(slice_str(bad[i]), &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
