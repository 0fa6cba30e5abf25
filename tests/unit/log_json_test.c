/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/log_json.h"

static void expect(const char *text, const char *want)
{
    const struct log_json_line line = {
        .wall_us = 1796000000123456,
        .level = "LOG",
        .pid = 42,
        .text = text,
    };
    char out[8192];
    size_t n = log_json_put(out, sizeof out, &line);
    out[n] = 0;
    assert_string_equal(out, want);
}

#define HEAD                                                                   \
    "{\"timestamp\":\"2026-11-30T00:53:20.123+00:00\",\"pid\":42,"             \
    "\"error_severity\":\"LOG\""

static void test_plain(void **state)
{
    expect("process up", HEAD ",\"message\":\"process up\"}\n");
    expect("", HEAD ",\"message\":\"\"}\n");
    expect("C-", HEAD ",\"message\":\"C-\"}\n");
}

static void test_any_bytes(void **state)
{
    expect("a\"b\\c\001\xc3\xbc\xff\xed\xa0\x80",
           HEAD ",\"message\":\"a\\\"b\\\\c\\u0001\xc3\xbc\\\\xff\\\\xed"
                "\\\\xa0\\\\x80\"}\n");
}

static const char *tagged(char kind, const char *db, const char *user,
                          const char *at)
{
    static char text[LOG_TAG_MAX + 64];
    char tag[LOG_TAG_MAX];
    snprintf(text, sizeof text, "%s goes on",
             log_tag_make(tag, kind, (void *)0x10, db, user, at));
    return text;
}

static void test_tags(void **state)
{
    expect(tagged('C', "app", "al\"ice", "10.0.0.5:6432"),
           HEAD ",\"client\":\"0x10\",\"dbname\":\"app\",\"user\":"
                "\"al\\\"ice\",\"remote_host\":\"10.0.0.5\",\"remote_port\":"
                "6432,\"message\":\"goes on\"}\n");
    expect(tagged('S', "a/b@c: d", "u", "[::1]:5432"),
           HEAD ",\"server\":\"0x10\",\"dbname\":\"a/b@c: d\",\"user\":\"u\","
                "\"remote_host\":\"::1\",\"remote_port\":5432,\"message\":"
                "\"goes on\"}\n");
    expect(tagged('C', "app", "u", "unix(17):6432"),
           HEAD ",\"client\":\"0x10\",\"dbname\":\"app\",\"user\":\"u\","
                "\"remote_host\":\"unix(17):6432\",\"message\":\"goes on\"}"
                "\n");
    expect(tagged('S', "app", "u", ""),
           HEAD ",\"server\":\"0x10\",\"dbname\":\"app\",\"user\":\"u\","
                "\"message\":\"goes on\"}\n");
}

/* Names that look like the marks, or are long. */
static void test_hostile_names(void **state)
{
    char db[1000];
    struct log_tag t;
    memset(db, 'd', sizeof db - 1);
    db[sizeof db - 1] = 0;
    assert_true(log_tag_split(tagged('C', db, "\037\037u\037", "x:1"), &t));
    assert_int_equal(t.database.n, 110);
    assert_true(slice_is(t.user, "  u "));
    assert_true(slice_is(t.address, "x:1"));
    assert_true(slice_is(t.message, "goes on"));
}

static void test_most_bytes(void **state)
{
    static char text[2048], out[2048 * LOG_JSON_PER_BYTE + LOG_JSON_HEAD];
    memset(text, 1, sizeof text - 1);
    const struct log_json_line line = {.level = "WARNING", .text = text};
    assert_true(log_json_put(out, sizeof out, &line) > 6 * 2047);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_tags),       cmocka_unit_test(test_hostile_names),
        cmocka_unit_test(test_most_bytes),
    };
    setenv("TZ", "UTC", 1);
    tzset();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
