/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "edge/target.h"

static void good(const char *url, enum target_kind kind, const char *host,
                 int port, const char *text)
{
    struct target t;
    struct err e;
    char buf[TARGET_TEXT_MAX];
    assert_int_equal(target_parse(slice_str(url), &t, &e), 0);
    assert_int_equal(t.kind, kind);
    assert_string_equal(t.host, host);
    assert_int_equal(t.port, port);
    target_text(&t, buf, sizeof buf);
    assert_string_equal(buf, text);
}

static void test_good(void **state)
{
    good("quic://db", TARGET_QUIC, "db", 6432, "quic://db:6432");
    good("quic://db:7000/", TARGET_QUIC, "db", 7000, "quic://db:7000");
    good("tls://10.0.0.1:1", TARGET_TLS, "10.0.0.1", 1, "tls://10.0.0.1:1");
    good("tcp://[::1]", TARGET_TCP, "::1", 6432, "tcp://[::1]:6432");
    good("mptcp://db:1", TARGET_TCP, "db", 1, "mptcp://db:1");
    good("mptcps://[::1]", TARGET_TLS, "::1", 6432, "mptcps://[::1]:6432");
    good("tcp://[fe80::1]:65535", TARGET_TCP, "fe80::1", 65535,
         "tcp://[fe80::1]:65535");
}

static void test_bad(void **state)
{
    static const char *const urls[] = {
        "",          "db:6432",     "http://db",   "quic://",
        "quic://:1", "quic://db:0", "quic://db:x", "quic://db:65536",
        "quic:/db",  "quic://[::1", "quic://[]:1", "quic://[::1]x",
        "mptcp://",  "mptcpx://db", "quic://db:",  "quic://db:1:2",
    };
    struct target t;
    struct err e;
    for (size_t i = 0; i < ARRAY_SIZE(urls); i++)
        if (target_parse(slice_str(urls[i]), &t, &e) == 0)
            fail_msg("\"%s\" was taken", urls[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
