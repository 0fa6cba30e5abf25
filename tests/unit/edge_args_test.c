/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The command line of an edge, and its file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "main/edge_args.h"

enum { WORDS_MAX = 16 };

static struct edge_args args;
static struct err err;

static int parse(const char *line)
{
    static char buf[512];
    char *argv[WORDS_MAX + 1] = {NULL};
    int argc = 0;
    char *rest = buf, *word;
    edge_args_free(&args);
    assert_true(strlen(line) < sizeof buf);
    strcpy(buf, line);
    while ((word = strsep(&rest, " ")) && argc < WORDS_MAX)
        if (*word)
            argv[argc++] = word;
    err = (struct err){0};
    return edge_args_parse(&args, argc, argv, &err);
}

static int parse_file(const char *text, const char *more)
{
    char path[] = "/tmp/edge_args_test.XXXXXX", line[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(line, sizeof line, "edge %s %s", more, path);
    int rc = parse(line);
    unlink(path);
    return rc;
}

static void refused(int rc, const char *why)
{
    assert_true(rc < 0);
    if (!strstr(err.text, why))
        fail_msg("\"%s\" says nothing of \"%s\"", err.text, why);
}

static void test_command_line(void **state)
{
    assert_int_equal(parse("edge --listen /x --to quic://a:1"), 0);
    assert_int_equal(args.n, 1);
    assert_string_equal(args.edge[0].o.listen, "/x");
    assert_string_equal(args.edge[0].o.up.target.host, "a");
    assert_int_equal(args.edge[0].o.port, 6432);
    assert_int_equal(args.edge[0].o.up.connections, 4);
    assert_int_equal(args.edge[0].o.up.streams_per_connection, 100);
    assert_int_equal(parse("edge --listen=1 --to=tcp://a --quic-connections 7 "
                           "--quic_streams_per_connection=8 --insecure"),
                     0);
    assert_int_equal(args.edge[0].o.up.connections, 7);
    assert_int_equal(args.edge[0].o.up.streams_per_connection, 8);
    assert_true(args.edge[0].o.up.no_verify);
    refused(parse("edge --listen /x"), "--to is missing");
    refused(parse("edge --to quic://a"), "--listen is missing");
    refused(parse("edge --listen 1 --to quic://a --wait 0"), "from 1 to");
    refused(parse("edge --listen 1 --to quic://a --cert x"), "belong together");
    refused(parse("edge --listen 1 --to quic://a --mptcp on"), "QUIC");
    refused(parse("edge --nonsense"), "unknown option");
    assert_int_equal(parse("run --to quic://a -- psql -c x"), 0);
    assert_string_equal(args.command[0], "psql");
    refused(parse("run --to quic://a"), "no command");
}

static void test_one_in_a_file(void **state)
{
    static const char text[] = "[edge]\nlisten = /x\nto = quic://a\n"
                               "quic_connections = 3\ninsecure = 1\n";
    assert_int_equal(parse_file(text, ""), 0);
    assert_int_equal(args.n, 1);
    assert_int_equal(args.edge[0].o.up.connections, 3);
    assert_true(args.edge[0].o.up.no_verify);
    /* The command line counts more. */
    assert_int_equal(parse_file(text, "--quic-connections=5"), 0);
    assert_int_equal(args.edge[0].o.up.connections, 5);
    refused(parse_file("[edge]\nlisten = /x\nto = http://a\n", ""), ":3:");
    refused(parse_file("[edge]\nnonsense = 1\n", ""), "unknown key");
    refused(parse_file("[pgbouncer]\n", ""), "section [pgbouncer]");
    refused(parse_file("[edge]\ninsecure = yes\n", ""), "0 or 1");
}

static void test_several_in_a_file(void **state)
{
    static const char text[] = "[edge a]\nlisten = /a\n"
                               "[edge]\nto = quic://all\nwait = 3\n"
                               "insecure = 1\n"
                               "[edge b]\nlisten = /b\nto = tcp://b:5\n"
                               "insecure = 0\n";
    assert_int_equal(parse_file(text, ""), 0);
    assert_int_equal(args.n, 2);
    assert_string_equal(args.edge[0].name, "a");
    assert_string_equal(args.edge[0].o.listen, "/a");
    assert_string_equal(args.edge[0].o.up.target.host, "all");
    assert_true(args.edge[0].o.up.no_verify);
    assert_string_equal(args.edge[1].o.listen, "/b");
    assert_string_equal(args.edge[1].o.up.target.host, "b");
    assert_false(args.edge[1].o.up.no_verify);
    assert_int_equal(args.edge[1].o.up.wait_us, 3000000);
    refused(parse_file("[edge]\nto = quic://x\n[edge a]\nport = 1\n", ""),
            "[edge a]: --listen");
    refused(parse_file("[edge ]\n", ""), "edge");
}

static int clean_up(void **state)
{
    edge_args_free(&args);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_one_in_a_file),
        cmocka_unit_test(test_several_in_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
