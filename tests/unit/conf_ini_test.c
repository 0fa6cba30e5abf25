/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* conf/ini and conf/connstr: syntax, quoting, includes, places of mistakes. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "conf/connstr.h"
#include "conf/ini.h"

struct seen {
    char text[4096]; /* section|key|value|file:line; for each key */
    char errors[4096];
    bool collect;
    const char *(*file)(const char *path);
};

static int on_section(void *arg, struct slice name, struct err *e)
{
    if (slice_is(name, "bad"))
        return err_set(e, ERR_CONF, "bad section");
    return 0;
}

static int on_key(void *arg, const struct ini_place *at, struct slice section,
                  struct slice key, struct slice value, struct err *e)
{
    struct seen *s = arg;
    size_t n = strlen(s->text);

    if (slice_is(key, "wrong"))
        return err_set(e, ERR_CONF, "wrong key");
    snprintf(s->text + n, sizeof(s->text) - n,
             SLICE_FMT "|" SLICE_FMT "|" SLICE_FMT "|%s:%d;",
             SLICE_ARG(section), SLICE_ARG(key), SLICE_ARG(value), at->file,
             at->line);
    return 0;
}

static int read_file(void *arg, const char *path, char **text, size_t *n,
                     struct err *e)
{
    struct seen *s = arg;
    const char *found = s->file ? s->file(path) : NULL;

    if (!found)
        return err_set(e, ERR_CONF, "no file %s", path);
    *text = mem_strdup(found);
    *n = strlen(found);
    return 0;
}

static int on_error(void *arg, const struct err *e)
{
    struct seen *s = arg;
    size_t n = strlen(s->errors);

    snprintf(s->errors + n, sizeof(s->errors) - n, "%s;", e->text);
    return s->collect ? 0 : e->code;
}

static const struct ini_ops ops = {on_section, on_key, read_file, on_error};

static int parse(struct seen *s, const char *text)
{
    struct err e;

    return ini_parse(slice_str(text), "f", &ops, s, &e);
}

static void parses(const char *text, const char *expected)
{
    struct seen s = {0};

    assert_int_equal(parse(&s, text), 0);
    assert_string_equal(s.text, expected);
}

static void fails(const char *text, const char *expected)
{
    struct seen s = {0};

    assert_true(parse(&s, text) < 0);
    assert_string_equal(s.errors, expected);
}

static void test_lines(void **state)
{
    parses("", "");
    parses("; c\n# c\n\n  \t\n", "");
    parses("[a]\nk=v\n", "a|k|v|f:2;");
    parses("[a]\n  k\t = \t v w \r\n", "a|k|v w|f:2;");
    parses("[a]\nk=", "a|k||f:2;");
    parses("[a]\nk = v ; not a comment # either", "a|k|v ; not a comment # "
                                                  "either|f:2;");
    parses("[a] ; comment\nk.-_*9=1", "a|k.-_*9|1|f:2;");
    parses("[a] k=1\n[b]\nl=2", "a|k|1|f:1;b|l|2|f:3;");
    parses("\xEF\xBB\xBF[a]\nk=1", "a|k|1|f:2;");
    parses("[a]\n*= host=x", "a|*|host=x|f:2;");
}

static void test_quoted_names(void **state)
{
    parses("[a]\n'my db' = 1", "a|my db|1|f:2;");
    parses("[a]\n\"my db\" = 1", "a|my db|1|f:2;");
    parses("[a]\n\"a\"\"b\"=1", "a|a\"b|1|f:2;");
    parses("[a]\n'a\"b'=1", "a|a\"b|1|f:2;");
    fails("[a]\n''=1", "f:2: empty name;");
    fails("[a]\n'x=1", "f:2: name has no closing ';");
    fails("[a]\n\"x\"\"=1", "f:2: name has no closing \";");
}

static void test_mistakes(void **state)
{
    fails("k=1", "f:1: \"k\" stands before the first [section];");
    fails("\n[a\n", "f:2: section has no closing ];");
    fails("[a]\nk 1\n", "f:2: expected = after \"k\";");
    fails("[a]\n=1\n", "f:2: expected key = value; a name with other "
                       "characters than letters, digits and _.-* goes in "
                       "quotes;");
    fails("[a]\n\n\nwrong=1\n", "f:4: wrong key;");
    fails("[bad]\n", "f:1: bad section;");
}

static void test_collects(void **state)
{
    struct seen s = {.collect = true};

    assert_int_equal(parse(&s, "[a]\nwrong=1\nk=2\n[bad]\noops\n"), 0);
    assert_string_equal(s.errors, "f:2: wrong key;f:4: bad section;"
                                  "f:5: expected = after \"oops\";");
    assert_string_equal(s.text, "a|k|2|f:3;");
}

static void test_nul(void **state)
{
    static const char text[] = "[a]\nk=a\0b\n";
    struct seen s = {0};
    struct err e;

    assert_true(ini_parse(slice_of(text, sizeof(text) - 1), "f", &ops, &s, &e) <
                0);
    assert_string_equal(e.text, "f:2: the line holds a NUL byte");
}

static const char *files(const char *path)
{
    if (strcmp(path, "one") == 0)
        return "k1=1\n[b]\nk2=2\n";
    if (strcmp(path, "with blank") == 0)
        return "k3=3\n";
    if (strcmp(path, "loop") == 0)
        return "%include loop\n%include loop\n";
    if (strcmp(path, "broken") == 0)
        return "x=1\nwrong=1\n";
    return NULL;
}

static void test_include(void **state)
{
    struct seen s = {.file = files};

    assert_int_equal(
        parse(&s, "[a]\n%include one\n%include\twith blank  \r\nk=4"), 0);
    assert_string_equal(s.text, "a|k1|1|one:1;b|k2|2|one:3;"
                                "b|k3|3|with blank:1;b|k|4|f:4;");
}

static void include_fails(const char *text, const char *expected)
{
    struct seen s = {.file = files};

    assert_true(parse(&s, text) < 0);
    assert_string_equal(s.errors, expected);
}

static void test_include_mistakes(void **state)
{
    struct seen s = {.file = files, .collect = true};

    include_fails("\n%include none\n", "f:2: no file none;");
    include_fails("%include \n", "f:1: %include needs the name of a file;");
    include_fails("[a]\n%include broken\n", "broken:2: wrong key;");
    include_fails("%include loop", "loop:1: %include deeper than 10 files;");
    /* With collecting, a loop ends too. */
    assert_int_equal(parse(&s, "%include loop"), 0);
}

/* connstr */

static void pairs(const char *text, const char *expected)
{
    char buf[256], got[512] = "";
    struct connstr c;
    struct slice k, v;
    struct err e = {0};
    int rc;

    connstr_init(&c, slice_str(text), buf);
    while ((rc = connstr_next(&c, &k, &v, &e)) > 0) {
        assert_int_equal(v.p[v.n], '\0');
        snprintf(got + strlen(got), sizeof(got) - strlen(got),
                 SLICE_FMT "|" SLICE_FMT ";", SLICE_ARG(k), SLICE_ARG(v));
    }
    assert_string_equal(rc < 0 ? e.text : got, expected);
}

static void test_connstr(void **state)
{
    pairs("", "");
    pairs("host=a port=1", "host|a;port|1;");
    pairs("  host = a\tport= 1 ", "host|a;port|1;");
    pairs("password='a''b c'", "password|a'b c;");
    pairs("password=' = '  x=y", "password| = ;x|y;");
    pairs("a=b'c''d e=f", "a|b'c''d;e|f;");
    pairs("a='b'c=d", "a|b;c|d;");
    pairs("a=x=y", "a|x=y;");
}

static void test_connstr_mistakes(void **state)
{
    pairs("host", "expected key=value");
    pairs("=x", "expected key=value");
    pairs("password=top secret",
          "expected key=value after the value of password; a value that holds "
          "a blank goes in single quotes");
    pairs("password='top secret", "the value of password has no closing quote");
    pairs("password='", "the value of password has no closing quote");
    pairs("user= ", "user has no value; leave the key out instead");
    pairs("user='' x=y", "user has no value; leave the key out instead");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_quoted_names),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_collects),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_include),
        cmocka_unit_test(test_include_mistakes),
        cmocka_unit_test(test_connstr),
        cmocka_unit_test(test_connstr_mistakes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
