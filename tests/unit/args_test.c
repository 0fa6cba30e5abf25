/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The command line. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "main/args.h"

enum { WORDS_MAX = 16 };

static int parse(struct args *a, struct err *e, const char *line)
{
    static char buf[256];
    char *argv[WORDS_MAX + 1] = {(char[]){"pgbraid"}};
    int argc = 1;
    char *rest = buf, *word;
    assert_true(strlen(line) < sizeof buf);
    strcpy(buf, line);
    while ((word = strsep(&rest, " ")) && argc < WORDS_MAX)
        if (*word)
            argv[argc++] = word;
    return args_parse(a, argc, argv, e);
}

static void test_good(void **state)
{
    struct args a;
    struct err e;
    assert_int_equal(parse(&a, &e, "x.ini"), 0);
    assert_int_equal(a.mode, ARGS_RUN);
    assert_string_equal(a.file, "x.ini");
    assert_null(a.user);
    assert_false(a.is_daemon || a.is_quiet);

    assert_int_equal(parse(&a, &e, "-dqvv -u postgres x.ini -v"), 0);
    assert_true(a.is_daemon && a.is_quiet);
    assert_int_equal(a.verbose, 3);
    assert_string_equal(a.user, "postgres");

    assert_int_equal(parse(&a, &e, "--daemon --quiet --user=me y.ini"), 0);
    assert_true(a.is_daemon && a.is_quiet);
    assert_string_equal(a.user, "me");

    assert_int_equal(parse(&a, &e, "--check x.ini"), 0);
    assert_int_equal(a.mode, ARGS_CHECK);
    assert_int_equal(parse(&a, &e, "x.ini --check"), 0);
    assert_int_equal(a.mode, ARGS_CHECK);
    assert_int_equal(parse(&a, &e, "--upgrade x.ini"), 0);
    assert_int_equal(a.mode, ARGS_UPGRADE);
    assert_int_equal(parse(&a, &e, "-dR x.ini"), 0);
    assert_int_equal(a.mode, ARGS_REBOOT);
    assert_int_equal(parse(&a, &e, "-- -x.ini"), 0);
    assert_string_equal(a.file, "-x.ini");
}

static void test_no_file_needed(void **state)
{
    struct args a;
    struct err e;
    assert_int_equal(parse(&a, &e, "-h"), 0);
    assert_int_equal(a.mode, ARGS_HELP);
    assert_int_equal(parse(&a, &e, "-d --version"), 0);
    assert_int_equal(a.mode, ARGS_VERSION);
}

static void refuses(const char *line, const char *why)
{
    struct args a;
    struct err e;
    assert_int_not_equal(parse(&a, &e, line), 0);
    if (!strstr(e.text, why))
        fail_msg("%s: \"%s\" does not contain \"%s\"", line, e.text, why);
}

static void test_bad(void **state)
{
    refuses("", "no configuration file");
    refuses("-d", "no configuration file");
    refuses("--check", "no configuration file");
    refuses("a.ini b.ini", "\"b.ini\"");
    refuses("-x a.ini", "unknown option \"-x\"");
    refuses("-dx a.ini", "unknown option \"-x\"");
    refuses("--frob a.ini", "unknown option \"--frob\"");
    refuses("--daemon=1 a.ini", "--daemon=1");
    refuses("a.ini -u", "--user needs");
    refuses("a.ini --user", "--user needs");
}

/* A terminal of 80 by 24 shows all of it, and the prompt behind. */
static void test_help_fits(void **state)
{
    int lines = 0;
    size_t longest = 0;
    for (const char *p = args_help; *p; lines++) {
        size_t n = strcspn(p, "\n");
        longest = n > longest ? n : longest;
        p += n + 1;
    }
    assert_true(lines <= 23);
    assert_true(longest < 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_no_file_needed),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_help_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
