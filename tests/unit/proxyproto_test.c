/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "net/proxyproto.h"

static struct proxyproto got;
static struct err e;

static int parse(const void *p, size_t n)
{
    e.text[0] = 0;
    return proxyproto_parse(slice_of(p, n), &got, &e);
}

static void good_line(const char *text, const char *peer)
{
    char where[ADDR_TEXT_MAX] = "none";
    size_t n = strlen(text);

    assert_int_equal(parse(text, n), n);
    if (got.has_peer)
        addr_text(&got.peer, where, sizeof where);
    assert_string_equal(where, peer);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(parse(text, i), 0);
}

static void bad_line(const char *text)
{
    assert_true(parse(text, strlen(text)) < 0);
    assert_true(e.text[0] != 0);
}

static void lines(void **state)
{
    good_line("PROXY TCP4 192.0.2.1 192.0.2.9 56324 443\r\n",
              "192.0.2.1:56324");
    good_line("PROXY TCP6 2001:db8::1 ::1 1 0\r\n", "[2001:db8::1]:1");
    good_line("PROXY TCP6 ::ffff:192.0.2.1 ::1 65535 80\r\n",
              "192.0.2.1:65535");
    good_line("PROXY UNKNOWN\r\n", "none");
    good_line("PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\n", "none");
    assert_int_equal(parse("PROXY UNKNOWN\r\nmore", 19), 15);
}

static void bad_lines(void **state)
{
    char longer[PROXYPROTO_V1_MAX + 1];

    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9 56324\r\n");
    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9 56324 443 1\r\n");
    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9 65536 443\r\n");
    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9 -1 443\r\n");
    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9  443\r\n");
    bad_line("PROXY TCP4 192.0.2.1  192.0.2.9 1 443\r\n");
    bad_line("PROXY TCP4 ::1 ::1 1 443\r\n");
    bad_line("PROXY TCP6 192.0.2.1 192.0.2.9 1 443\r\n");
    bad_line("PROXY TCP5 192.0.2.1 192.0.2.9 1 443\r\n");
    bad_line("PROXY TCP4 192.0.2.1 192.0.2.9 1 443\n");
    bad_line("PROXY \r\n");
    bad_line("PROXY \n");
    bad_line("PROXX");
    bad_line("x");
    bad_line("\r\nx");
    memset(longer, 'x', sizeof longer);
    memcpy(longer, "PROXY UNKNOWN ", 14);
    assert_int_equal(parse(longer, PROXYPROTO_V1_MAX - 1), 0);
    assert_true(parse(longer, PROXYPROTO_V1_MAX) < 0);
    assert_true(parse("PROXY TCP4 1.2.3.4\0 192.0.2.9 1 443\r\n", 38) < 0);
}

/* --- version 2 ------------------------------------------------------------ */

static size_t binary(uint8_t *out, uint8_t command, uint8_t kind,
                     const void *body, size_t n, size_t said)
{
    memcpy(out, "\r\n\r\n\0\r\nQUIT\n", 12);
    out[12] = command;
    out[13] = kind;
    out[14] = (uint8_t)(said >> 8);
    out[15] = (uint8_t)said;
    memcpy(out + 16, body, n);
    return 16 + n;
}

static const uint8_t v4[] = {192, 0, 2, 1, 192, 0, 2, 9, 0x1, 0x2, 0x1, 0xbb};

static void binaries(void **state)
{
    uint8_t b[64], v6[36] = {[0] = 0x20, 0x01, [15] = 1, [33] = 5};
    char where[ADDR_TEXT_MAX];
    size_t n = binary(b, 0x21, 0x11, v4, sizeof v4, sizeof v4);

    for (size_t i = 0; i < n; i++)
        assert_int_equal(parse(b, i), 0);
    assert_int_equal(parse(b, n), n);
    assert_true(got.has_peer);
    addr_text(&got.peer, where, sizeof where);
    assert_string_equal(where, "192.0.2.1:258");

    n = binary(b, 0x21, 0x21, v6, sizeof v6, sizeof v6);
    assert_int_equal(parse(b, n), n);
    addr_text(&got.peer, where, sizeof where);
    assert_string_equal(where, "[2001::1]:5");

    n = binary(b, 0x20, 0x00, "", 0, 0);
    assert_int_equal(parse(b, n), n);
    assert_false(got.has_peer);
    n = binary(b, 0x20, 0x11, v4, sizeof v4, sizeof v4);
    assert_int_equal(parse(b, n), n);
    assert_false(got.has_peer);
    n = binary(b, 0x21, 0x00, "tlvs", 4, 4);
    assert_int_equal(parse(b, n), n);
    assert_false(got.has_peer);
    n = binary(b, 0x21, 0x31, "", 0, 0);
    assert_int_equal(parse(b, n), n);
    assert_false(got.has_peer);
}

static void bad_binaries(void **state)
{
    uint8_t b[64];

    assert_true(parse(b, binary(b, 0x21, 0x11, v4, 11, 11)) < 0);
    assert_true(parse(b, binary(b, 0x21, 0x21, v4, 12, 12)) < 0);
    assert_true(parse(b, binary(b, 0x21, 0x12, v4, 12, 12)) < 0);
    assert_true(parse(b, binary(b, 0x22, 0x11, v4, 12, 12)) < 0);
    assert_true(parse(b, binary(b, 0x11, 0x11, v4, 12, 12)) < 0);
    assert_true(parse(b, binary(b, 0x21, 0x11, v4, 12, 60000)) < 0);
    assert_int_equal(parse(b, binary(b, 0x21, 0x11, v4, 12, 13)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(binaries),
        cmocka_unit_test(bad_binaries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
