/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <unistd.h>

#include "net/addr.h"

static const char *text_of(const struct addr *a)
{
    static char buf[ADDR_TEXT_MAX];
    addr_text(a, buf, sizeof buf);
    return buf;
}

static void parses_and_prints(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"127.0.0.1", "127.0.0.1:5432"},
        {"0.0.0.0", "0.0.0.0:5432"},
        {"::", "[::]:5432"},
        {"::1", "[::1]:5432"},
        {"[::1]", "[::1]:5432"},
        {"2001:DB8:0:0::1", "[2001:db8::1]:5432"},
        {"fe80::1%1", "[fe80::1%1]:5432"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct addr a;
        assert_true(addr_parse_ip(slice_str(rows[i].in), 5432, &a));
        assert_string_equal(text_of(&a), rows[i].out);
        assert_int_equal(addr_port(&a), 5432);
    }
}

static void refuses_what_is_no_number(void **state)
{
    static const char *const rows[] = {
        "",     "localhost",   "127.0.0",    "127.0.0.1.2",
        "[::1", "[127.0.0.1]", "::1]",       "1.2.3.4:5432",
        "::g",  "[]",          "[",          "fe80::1%nosuchif",
        "*",    "256.1.1.1",   " 127.0.0.1", "12345::",
        "::1%", "::1%-1",      "/tmp",       "@x",
    };
    struct addr a;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_false(addr_parse_ip(slice_str(rows[i]), 1, &a));
    assert_false(addr_parse_ip(slice_of("127.0.0.1\0x", 11), 1, &a));
    char longer[300];
    memset(longer, ':', sizeof longer);
    assert_false(addr_parse_ip(slice_of(longer, sizeof longer), 1, &a));
}

static void makes_unix_paths(void **state)
{
    struct addr a, b;
    struct err e;
    assert_int_equal(addr_unix(slice_str("/tmp"), 6432, &a, &e), 0);
    assert_string_equal(a.un.sun_path, "/tmp/.s.PGSQL.6432");
    assert_string_equal(text_of(&a), "unix:/tmp/.s.PGSQL.6432");
    assert_true(addr_is_unix(&a));
    assert_int_equal(addr_port(&a), 0);

    assert_int_equal(addr_unix(slice_str("@pg"), 1, &b, &e), 0);
    assert_int_equal(b.un.sun_path[0], 0);
    assert_string_equal(text_of(&b), "unix:@pg/.s.PGSQL.1");
    assert_int_equal(b.len, offsetof(struct sockaddr_un, sun_path) +
                                strlen("@pg/.s.PGSQL.1"));
    assert_false(addr_eq(&a, &b));
    assert_true(addr_eq(&a, &a));
}

static void unix_path_has_a_limit(void **state)
{
    char dir[200];
    struct addr a;
    struct err e;
    size_t room = sizeof a.un.sun_path - 1 - strlen("/.s.PGSQL.6432");
    memset(dir, 'x', sizeof dir);
    dir[0] = '/';
    assert_int_equal(addr_unix(slice_of(dir, room), 6432, &a, &e), 0);
    assert_int_equal(addr_unix(slice_of(dir, room + 1), 6432, &a, &e),
                     ERR_CONF);
    assert_non_null(strstr(e.text, "too long"));
}

static void unmaps(void **state)
{
    struct addr a, b;
    assert_true(addr_parse_ip(slice_str("::ffff:10.1.2.3"), 99, &a));
    assert_true(addr_parse_ip(slice_str("10.1.2.3"), 99, &b));
    assert_false(addr_eq(&a, &b));
    addr_unmap(&a);
    assert_true(addr_eq(&a, &b));
    assert_string_equal(text_of(&a), "10.1.2.3:99");
    addr_unmap(&a);
    assert_true(addr_eq(&a, &b));
}

static void compares(void **state)
{
    struct addr a, b, c;
    assert_true(addr_parse_ip(slice_str("10.1.2.3"), 1, &a));
    assert_true(addr_parse_ip(slice_str("10.1.2.3"), 2, &b));
    assert_true(addr_parse_ip(slice_str("10.1.2.4"), 1, &c));
    assert_false(addr_eq(&a, &b));
    assert_true(addr_same_host(&a, &b));
    assert_true(addr_host_hash(&a) == addr_host_hash(&b));
    assert_false(addr_same_host(&a, &c));
    assert_true(addr_host_hash(&a) != addr_host_hash(&c));
    addr_set_port(&b, 1);
    assert_true(addr_eq(&a, &b));
}

static void names_of_sockets(void **state)
{
    int fd[2];
    struct addr a;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(addr_of_peer(fd[0], &a), 0);
    assert_true(addr_is_unix(&a));
    assert_string_equal(text_of(&a), "unix");
    assert_int_equal(addr_of_self(fd[0], &a), 0);
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(addr_of_peer(fd[0], &a), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_and_prints),
        cmocka_unit_test(refuses_what_is_no_number),
        cmocka_unit_test(makes_unix_paths),
        cmocka_unit_test(unix_path_has_a_limit),
        cmocka_unit_test(unmaps),
        cmocka_unit_test(compares),
        cmocka_unit_test(names_of_sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
