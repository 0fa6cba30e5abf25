/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/utf8.h"

static void test_char(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"a", 1},
        {"\x7f", 1},
        {"\xc3\xbc", 2},
        {"\xdf\xbf", 2},
        {"\xe0\xa0\x80", 3},
        {"\xed\x9f\xbf", 3},
        {"\xef\xbf\xbf", 3},
        {"\xf0\x90\x80\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\x80", 0},             /* the middle of one */
        {"\xbf", 0},             /* the same */
        {"\xc0\xaf", 0},         /* longer than need be */
        {"\xc1\xbf", 0},         /* the same */
        {"\xe0\x9f\xbf", 0},     /* the same */
        {"\xf0\x8f\xbf\xbf", 0}, /* the same */
        {"\xed\xa0\x80", 0},     /* a surrogate */
        {"\xf4\x90\x80\x80", 0}, /* beyond the last */
        {"\xf5\x80\x80\x80", 0}, /* the same */
        {"\xff", 0},
        {"\xc3", 0},     /* cut off */
        {"\xe2\x82", 0}, /* the same */
        {"\xe2\x82z", 0},
        {"\xf0\x9f\x98", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        assert_int_equal(utf8_char(cases[i].bytes, strlen(cases[i].bytes)),
                         cases[i].n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_char)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
