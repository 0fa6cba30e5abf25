/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "admin/syntax.h"

static struct syntax x;

static int parse(const char *text)
{
    return syntax_parse(slice_str(text), &x);
}

static void is_command(const char *text, const char *verb, const char *arg)
{
    assert_int_equal(parse(text), 0);
    assert_int_equal(x.kind, SYNTAX_COMMAND);
    assert_string_equal(x.verb, verb);
    assert_int_equal(x.has_arg, arg != NULL);
    assert_string_equal(x.arg, arg ? arg : "");
}

static void is_set(const char *text, const char *key, const char *value)
{
    assert_int_equal(parse(text), 0);
    assert_int_equal(x.kind, SYNTAX_SET);
    assert_string_equal(x.arg, key);
    assert_string_equal(x.value, value);
}

static void commands(void **state)
{
    is_command("RELOAD", "RELOAD", NULL);
    is_command("reload;", "reload", NULL);
    is_command(" \t\r\n Reload \n ; ", "Reload", NULL);
    is_command("show pools", "show", "pools");
    is_command("SHOW\n\tPOOLS;", "SHOW", "POOLS");
    is_command("show pools;;", "show", "pools");
    is_command("kill_client 12", "kill_client", "12");
    is_command("pause my-db.example", "pause", "my-db.example");
    is_command("pause \"a \"\"b\"\";\"", "pause", "a \"b\";");
    is_command("pause \"\"", "pause", "");
    is_command("\"show\" pools", "show", "pools");
    is_command("set", "set", NULL);
}

static void comments(void **state)
{
    is_command("-- hello\nshow pools -- bye", "show", "pools");
    is_command("/* a /* b */ c */ show/**/pools/* x */;", "show", "pools");
    is_command("show pools--x", "show", "pools");
    assert_int_equal(parse("/* open"), ERR_SYNTAX);
    assert_int_equal(parse("show pools /* open"), ERR_SYNTAX);
    assert_int_equal(parse("/* a /* b */"), ERR_SYNTAX);
}

static void empty(void **state)
{
    const char *const texts[] = {"", ";", " ; ;\n", "-- x", "/* */;--"};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        assert_int_equal(parse(texts[i]), 0);
        assert_int_equal(x.kind, SYNTAX_EMPTY);
    }
}

static void sets(void **state)
{
    is_set("set a=b", "a", "b");
    is_set("SET a = b;", "a", "b");
    is_set("set a to b", "a", "b");
    is_set("set a TO 'it''s; fine'", "a", "it's; fine");
    is_set("set a to'x'", "a", "x");
    is_set("set a=''", "a", "");
    is_set("set \"a\" = \"b c\"", "a", "b c");
    is_set("set a = -1.5", "a", "-1.5");
    is_set("set a = /tmp/x", "a", "/tmp/x");
    is_set("set /* k */ a /* v */ = /* ! */ 1 -- end", "a", "1");
}

static void mistakes(void **state)
{
    const char *const texts[] = {
        "show pools; show stats",
        "show pools stats",
        "; show pools",
        "show\"pools\"",
        "show 'pools'",
        "pause \"open",
        "set a",
        "set a b",
        "set a =",
        "set = b",
        "set \"\" = b",
        "set a = 'open",
        "set a = b c",
        "set a tob",
        "set a to",
        "!",
        "select 1, 2",
        "\x80",
    };

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        assert_int_equal(parse(texts[i]), ERR_SYNTAX);
    assert_int_equal(syntax_parse(slice_of("a\0b", 3), &x), ERR_SYNTAX);
    assert_int_equal(syntax_parse(slice_of("\"a\0b\"", 5), &x), ERR_SYNTAX);
}

static void too_long(void **state)
{
    char text[3000];

    memset(text, 'a', sizeof(text));
    assert_int_equal(syntax_parse(slice_of(text, SYNTAX_VERB_MAX - 1), &x), 0);
    assert_int_equal(strlen(x.verb), SYNTAX_VERB_MAX - 1);
    assert_int_equal(syntax_parse(slice_of(text, SYNTAX_VERB_MAX), &x),
                     ERR_TOO_LARGE);
    memcpy(text, "pause ", 6);
    assert_int_equal(syntax_parse(slice_of(text, 6 + SYNTAX_ARG_MAX - 1), &x),
                     0);
    assert_int_equal(syntax_parse(slice_of(text, 6 + SYNTAX_ARG_MAX), &x),
                     ERR_TOO_LARGE);
    memcpy(text, "pause \"", 7);
    text[7 + SYNTAX_ARG_MAX - 1] = '"';
    assert_int_equal(syntax_parse(slice_of(text, 7 + SYNTAX_ARG_MAX), &x), 0);
    assert_int_equal(strlen(x.arg), SYNTAX_ARG_MAX - 1);
    memcpy(text, "set k = '", 9);
    text[9 + SYNTAX_VALUE_MAX] = '\'';
    assert_int_equal(syntax_parse(slice_of(text, 10 + SYNTAX_VALUE_MAX), &x),
                     ERR_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands), cmocka_unit_test(comments),
        cmocka_unit_test(empty),    cmocka_unit_test(sets),
        cmocka_unit_test(mistakes), cmocka_unit_test(too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
