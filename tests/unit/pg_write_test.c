/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "pg/pg_write.h"

enum { MAX = 4096 };

static void expect(struct pgbuf *b, const char *bytes, size_t n)
{
    assert_false(b->failed);
    assert_int_equal(b->n, n);
    assert_memory_equal(b->p, bytes, n);
    pgbuf_reset(b);
}

/* EXPECT(b, "literal with \0"): the literal's own last zero is not meant. */
#define EXPECT(b, s) expect((b), (s), sizeof(s) - 1)

static struct slice str(const char *s)
{
    return slice_str(s);
}

static void put_numbers(void **state)
{
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pgbuf_put_u8(&b, 0xfe);
    pgbuf_put_u16(&b, 0x0102);
    pgbuf_put_u32(&b, 0x03040506);
    pgbuf_put_bytes(&b, "xyz", 3);
    pgbuf_put_bytes(&b, NULL, 0);
    pgbuf_put_cstr(&b, "");
    pgbuf_put_string(&b, (struct slice){0});
    EXPECT(&b, "\xfe\1\2\3\4\5\6xyz\0\0");
    pgbuf_fini(&b);
}

static void grow_to_the_cap_and_not_beyond(void **state)
{
    static const size_t caps[] = {1, 255, 256, 257, 1000, 4096, 5000};

    for (size_t c = 0; c < ARRAY_SIZE(caps); c++) {
        struct pgbuf b;

        pgbuf_init(&b, caps[c]);
        for (size_t i = 0; i < caps[c]; i++)
            pgbuf_put_u8(&b, (uint8_t)i);
        assert_false(b.failed);
        assert_int_equal(b.n, caps[c]);
        assert_true(b.cap <= caps[c]);
        for (size_t i = 0; i < caps[c]; i++)
            assert_int_equal((uint8_t)b.p[i], (uint8_t)i);
        pgbuf_put_u8(&b, 1);
        assert_true(b.failed);
        assert_int_equal(b.n, caps[c]);
        pgbuf_fini(&b);
    }
}

static void failure_is_sticky(void **state)
{
    struct pgbuf b;
    size_t at, n;

    pgbuf_init(&b, 10);
    pgbuf_put_bytes(&b, "123456", 6);
    pgbuf_put_u32(&b, 1);
    pgbuf_put_u32(&b, 1);
    assert_true(b.failed);
    pgbuf_reset(&b);
    pgbuf_put_bytes(&b, "12345678901", 11);
    pgbuf_put_u8(&b, 1);
    assert_true(b.failed);
    assert_int_equal(b.n, 0);
    at = pgbuf_begin(&b, 'X');
    assert_int_equal(pgbuf_end(&b, at), 0);
    assert_null(pgbuf_take(&b, &n));
    assert_int_equal(n, 0);
    assert_false(b.failed);
    pgbuf_put_u8(&b, 'x');
    EXPECT(&b, "x");
    pgbuf_fini(&b);
}

static void take_gives_the_bytes_away(void **state)
{
    struct pgbuf b;
    size_t n;
    char *p;

    pgbuf_init(&b, MAX);
    assert_null(pgbuf_take(&b, &n));
    pg_put_sync(&b);
    p = pgbuf_take(&b, &n);
    assert_int_equal(n, 5);
    assert_memory_equal(p, "S\0\0\0\4", 5);
    assert_null(b.p);
    assert_int_equal(b.max, MAX);
    pg_put_flush(&b);
    EXPECT(&b, "H\0\0\0\4");
    pgbuf_fini(&b);
    free(p);
}

static void wipe_leaves_zeros(void **state)
{
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_password(&b, str("secret"));
    pgbuf_wipe(&b);
    assert_int_equal(b.n, 0);
    for (size_t i = 0; i < 12; i++)
        assert_int_equal(b.p[i], 0);
    pgbuf_fini(&b);
}

static void zero_inside_a_string_fails(void **state)
{
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_parameter_status(&b, str("a"), slice_of("b\0c", 3));
    assert_true(b.failed);
    pgbuf_fini(&b);
}

static void begin_and_end_frame_a_message(void **state)
{
    struct pgbuf b;
    size_t at;

    pgbuf_init(&b, MAX);
    pg_put_sync(&b);
    at = pgbuf_begin(&b, 'Q');
    pgbuf_put_cstr(&b, "x");
    assert_int_equal(pgbuf_end(&b, at), 6);
    pg_put_terminate(&b);
    EXPECT(&b, "S\0\0\0\4Q\0\0\0\6x\0X\0\0\0\4");
    pgbuf_fini(&b);
}

static void backend_errors(void **state)
{
    struct pg_error_text t = {"ERROR", "42601", "m", "d", "h"};
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_error(&b, "FATAL", "08P01", "no");
    EXPECT(&b, "E\0\0\0\x1e"
               "SFATAL\0VFATAL\0C08P01\0Mno\0\0");
    pg_put_error_full(&b, &t);
    EXPECT(&b, "E\0\0\0\x23"
               "SERROR\0VERROR\0C42601\0Mm\0Dd\0Hh\0\0");
    pg_put_notice(&b, "NOTICE", "00000", "n");
    EXPECT(&b, "N\0\0\0\x1f"
               "SNOTICE\0VNOTICE\0C00000\0Mn\0\0");
    t.detail = NULL;
    pg_put_notice_full(&b, &t);
    EXPECT(&b, "N\0\0\0\x20"
               "SERROR\0VERROR\0C42601\0Mm\0Hh\0\0");
    pg_put_error_v2(&b, "FATAL", "old");
    EXPECT(&b, "EFATAL:  old\n\0");
    pgbuf_fini(&b);
}

static void backend_login(void **state)
{
    struct slice unknown[] = {str("_pq_.a"), str("_pq_.b")};
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_auth(&b, PG_AUTH_OK);
    EXPECT(&b, "R\0\0\0\x08\0\0\0\0");
    pg_put_auth_data(&b, PG_AUTH_MD5, slice_of("salt", 4));
    EXPECT(&b, "R\0\0\0\x0c\0\0\0\5salt");
    pg_put_parameter_status(&b, str("a"), str(""));
    EXPECT(&b, "S\0\0\0\7a\0\0");
    pg_put_backend_key_data(&b, 7, "keykey", 6);
    EXPECT(&b, "K\0\0\0\x0e\0\0\0\7keykey");
    pg_put_ready(&b, PG_TX_IDLE);
    EXPECT(&b, "Z\0\0\0\5I");
    pg_put_negotiate_version(&b, 2, unknown, 2);
    EXPECT(&b, "v\0\0\0\x1a\0\3\0\2\0\0\0\2_pq_.a\0_pq_.b\0");
    pg_put_negotiate_version(&b, 0, NULL, 0);
    EXPECT(&b, "v\0\0\0\x0c\0\3\0\0\0\0\0\0");
    pgbuf_fini(&b);
}

static void backend_results(void **state)
{
    static const uint32_t oids[] = {25, 23};
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_command_complete(&b, "SHOW");
    EXPECT(&b, "C\0\0\0\x09SHOW\0");
    pg_put_parameter_description(&b, oids, 2);
    EXPECT(&b, "t\0\0\0\x0e\0\2\0\0\0\x19\0\0\0\x17");
    pg_put_empty(&b, PG_MSG_PARSE_COMPLETE);
    EXPECT(&b, "1\0\0\0\4");
    pgbuf_fini(&b);
}

static void frontend_first_packets(void **state)
{
    struct pg_pair pairs[] = {
        {str("user"), str("bo")},
        {{0}, str("left out")},
        {str("a"), str("")},
    };
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_startup(&b, 2, pairs, 3);
    EXPECT(&b, "\0\0\0\x14\0\3\0\2user\0bo\0a\0\0\0");
    pg_put_cancel_request(&b, 1, "abcd", 4);
    EXPECT(&b, "\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\1"
               "abcd");
    pg_put_ssl_request(&b);
    EXPECT(&b, "\0\0\0\x08\x04\xd2\x16\x2f");
    pg_put_gssenc_request(&b);
    EXPECT(&b, "\0\0\0\x08\x04\xd2\x16\x30");
    pg_put_password(&b, str("pw"));
    EXPECT(&b, "p\0\0\0\7pw\0");
    pg_put_sasl_initial(&b, "M", str("data"));
    EXPECT(&b, "p\0\0\0\x0eM\0\0\0\0\4data");
    pg_put_sasl_response(&b, str("data"));
    EXPECT(&b, "p\0\0\0\x08"
               "data");
    pgbuf_fini(&b);
}

static void frontend_queries(void **state)
{
    static const uint32_t oids[] = {25};
    struct slice values[] = {str("v"), {NULL, 0}, {"", 0}};
    struct pgbuf b;

    pgbuf_init(&b, MAX);
    pg_put_query(&b, str("q"));
    EXPECT(&b, "Q\0\0\0\6q\0");
    pg_put_parse(&b, str("s"), str("q"), oids, 1);
    EXPECT(&b, "P\0\0\0\x0es\0q\0\0\1\0\0\0\x19");
    pg_put_bind(&b, str("p"), str("s"), values, 3);
    EXPECT(&b, "B\0\0\0\x1bp\0s\0\0\0\0\3\0\0\0\1v\xff\xff\xff\xff"
               "\0\0\0\0\0\0");
    pg_put_execute(&b, str(""), 5);
    EXPECT(&b, "E\0\0\0\x09\0\0\0\0\5");
    pg_put_describe(&b, PG_TARGET_STATEMENT, str("s"));
    EXPECT(&b, "D\0\0\0\7Ss\0");
    pg_put_close(&b, PG_TARGET_PORTAL, str(""));
    EXPECT(&b, "C\0\0\0\6P\0");
    pg_put_copy_fail(&b, "no");
    EXPECT(&b, "f\0\0\0\7no\0");
    pgbuf_fini(&b);
}

static void too_many_of_a_list_fails(void **state)
{
    struct pgbuf b;
    uint32_t *oids = calloc(65536, sizeof(*oids));

    assert_non_null(oids);
    pgbuf_init(&b, 1 << 20);
    pg_put_parse(&b, str(""), str(""), oids, 65535);
    assert_false(b.failed);
    pg_put_parse(&b, str(""), str(""), oids, 65536);
    assert_true(b.failed);
    pgbuf_fini(&b);
    free(oids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_numbers),
        cmocka_unit_test(grow_to_the_cap_and_not_beyond),
        cmocka_unit_test(failure_is_sticky),
        cmocka_unit_test(take_gives_the_bytes_away),
        cmocka_unit_test(wipe_leaves_zeros),
        cmocka_unit_test(zero_inside_a_string_fails),
        cmocka_unit_test(begin_and_end_frame_a_message),
        cmocka_unit_test(backend_errors),
        cmocka_unit_test(backend_login),
        cmocka_unit_test(backend_results),
        cmocka_unit_test(frontend_first_packets),
        cmocka_unit_test(frontend_queries),
        cmocka_unit_test(too_many_of_a_list_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
