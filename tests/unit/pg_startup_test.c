/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
/* After what cmocka.h needs. */
#include <cmocka.h>

#include "pg/pg_startup.h"
#include "pg/pg_write.h"

static const char layout_text[] =
    "invalid startup packet layout: expected terminator as last byte";

/* A packet of a version and a body, in an exact heap block, so that a read
 * beyond it is seen. */
struct packet {
    char *p;
    size_t n;
};

static struct packet make(uint32_t code, const char *body, size_t n)
{
    struct packet k = {malloc(8 + n), 8 + n};

    assert_non_null(k.p);
    pg_set_u32(k.p, (uint32_t)k.n);
    pg_set_u32(k.p + 4, code);
    if (n > 0)
        memcpy(k.p + 8, body, n);
    return k;
}

static int parse(struct packet k, struct pg_startup *s, struct err *e)
{
    *e = (struct err){0};
    return pg_startup_parse(slice_of(k.p, k.n), s, e);
}

static void accept_body(const char *body, size_t n, struct pg_startup *s,
                        struct packet *k)
{
    struct err e;

    *k = make(PG_PROTOCOL_3_0, body, n);
    assert_int_equal(pg_startup_need(k->p, k->n), k->n);
    assert_int_equal(parse(*k, s, &e), 0);
    assert_int_equal(s->kind, PG_STARTUP_SESSION);
}

static void refuse(uint32_t version, const char *body, size_t n,
                   const char *sqlstate, const char *text)
{
    struct packet k = make(version, body, n);
    struct pg_startup s;
    struct err e;

    assert_true(parse(k, &s, &e) < 0);
    assert_string_equal(s.sqlstate, sqlstate);
    assert_string_equal(e.text, text);
    assert_true(pg_startup_parse(slice_of(k.p, k.n), &s, NULL) < 0);
    free(k.p);
}

/* A literal as a body: its own last zero is not part of it. */
#define ACCEPT(body, s, k) accept_body((body), sizeof(body) - 1, (s), (k))
#define REFUSE(version, body, sqlstate, text)                                  \
    refuse((version), (body), sizeof(body) - 1, (sqlstate), (text))

static void length_word(void **state)
{
    assert_int_equal(pg_startup_need("", 0), 0);
    assert_int_equal(pg_startup_need("\0\0\0", 3), 0);
    assert_int_equal(pg_startup_need("\0\0\0\x08", 4), 8);
    assert_int_equal(pg_startup_need("\0\0\0\x07", 4), ERR_PROTO);
    assert_int_equal(pg_startup_need("\0\0\0\0", 4), ERR_PROTO);
    assert_int_equal(pg_startup_need("\0\0\x27\x14", 4), PG_STARTUP_MAX);
    assert_int_equal(pg_startup_need("\0\0\x27\x15", 4), ERR_PROTO);
    assert_int_equal(pg_startup_need("\xff\xff\xff\xff", 4), ERR_PROTO);
    assert_int_equal(pg_startup_need("\x80\0\0\x08", 4), ERR_PROTO);
    assert_int_equal(pg_startup_need("GET / HTTP", 10), ERR_PROTO);
}

static void tls_is_told_by_its_first_byte(void **state)
{
    assert_true(pg_startup_is_tls("\x16\3\1", 3));
    assert_false(pg_startup_is_tls("\0\0\0\x08", 4));
    assert_false(pg_startup_is_tls("\x16", 0));
}

static void all_parameters(void **state)
{
    static const char body[] = "user\0bo\0database\0db\0options\0-c a=b\0"
                               "application_name\0psql\0_pq_.x\0"
                               "1\0client_encoding\0UTF8\0";
    static const char *const names[] = {"user",    "database",
                                        "options", "application_name",
                                        "_pq_.x",  "client_encoding"};
    struct pg_startup s;
    struct packet k;
    struct slice name, value;
    size_t at = 0, i = 0;

    accept_body(body, sizeof(body), &s, &k);
    assert_true(slice_is(s.user, "bo"));
    assert_true(slice_is(s.database, "db"));
    assert_true(slice_is(s.options, "-c a=b"));
    assert_true(slice_is(s.application_name, "psql"));
    assert_int_equal(s.replication, PG_REPLICATION_OFF);
    assert_int_equal(s.n_extensions, 1);
    assert_int_equal(s.major, 3);
    assert_int_equal(s.minor, 0);
    while (pg_startup_next(&s, &at, &name, &value)) {
        assert_true(i < ARRAY_SIZE(names));
        assert_true(slice_is(name, names[i]));
        assert_int_equal(pg_startup_is_extension(name), i == 4);
        i++;
    }
    assert_int_equal(i, ARRAY_SIZE(names));
    assert_true(slice_is(value, "UTF8"));
    free(k.p);
}

static void database_falls_back_to_the_user(void **state)
{
    struct pg_startup s;
    struct packet k;

    ACCEPT("user\0bo\0\0", &s, &k);
    assert_true(slice_is(s.database, "bo"));
    assert_null(s.options.p);
    free(k.p);
    ACCEPT("database\0\0user\0bo\0\0", &s, &k);
    assert_true(slice_is(s.database, "bo"));
    free(k.p);
}

static void last_of_a_name_counts(void **state)
{
    struct pg_startup s;
    struct packet k;

    ACCEPT("user\0a\0user\0b\0database\0c\0database\0d\0\0", &s, &k);
    assert_true(slice_is(s.user, "b"));
    assert_true(slice_is(s.database, "d"));
    free(k.p);
}

static void long_names_are_cut(void **state)
{
    char body[200] = "user";
    struct pg_startup s;
    struct packet k;

    memset(body + 5, 'u', 64);
    accept_body(body, 5 + 64 + 2, &s, &k);
    assert_int_equal(s.user.n, 63);
    assert_int_equal(s.database.n, 63);
    free(k.p);
}

static void replication_values(void **state)
{
    static const struct {
        const char *value;
        int want; /* -1: refused */
    } rows[] = {
        {"database", PG_REPLICATION_LOGICAL},
        {"true", PG_REPLICATION_PHYSICAL},
        {"TRUE", PG_REPLICATION_PHYSICAL},
        {"t", PG_REPLICATION_PHYSICAL},
        {"yes", PG_REPLICATION_PHYSICAL},
        {"on", PG_REPLICATION_PHYSICAL},
        {"1", PG_REPLICATION_PHYSICAL},
        {"false", PG_REPLICATION_OFF},
        {"n", PG_REPLICATION_OFF},
        {"of", PG_REPLICATION_OFF},
        {"0", PG_REPLICATION_OFF},
        {"o", -1},
        {"", -1},
        {"DATABASE", -1},
        {"truex", -1},
        {"2", -1},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct pg_pair pairs[] = {
            {slice_str("user"), slice_str("bo")},
            {slice_str("replication"), slice_str(rows[i].value)},
        };
        struct pg_startup s;
        struct pgbuf b;
        struct err e;
        int rc;

        pgbuf_init(&b, 1000);
        pg_put_startup(&b, 2, pairs, 2);
        rc = pg_startup_parse(pgbuf_slice(&b), &s, &e);
        if (rows[i].want >= 0) {
            assert_int_equal(rc, 0);
            assert_int_equal((int)s.replication, rows[i].want);
        } else {
            assert_true(rc < 0);
            assert_string_equal(s.sqlstate, "22023");
            assert_non_null(s.hint);
            assert_non_null(strstr(e.text, "invalid value for parameter "
                                           "\"replication\": \""));
        }
        pgbuf_fini(&b);
    }
}

static void broken_layouts(void **state)
{
    const uint32_t v = PG_PROTOCOL_3_0;

    REFUSE(v, "", "08P01", layout_text);
    REFUSE(v, "user\0bo\0", "08P01", layout_text);
    REFUSE(v, "user\0bo", "08P01", layout_text);
    REFUSE(v, "user\0", "08P01", layout_text);
    REFUSE(v, "user", "08P01", layout_text);
    REFUSE(v, "user\0bo\0\0x", "08P01", layout_text);
    REFUSE(v, "user\0bo\0\0\0", "08P01", layout_text);
    REFUSE(v, "\0\0", "08P01", layout_text);
    REFUSE(v, "\xff\xff\xff", "08P01", layout_text);
}

static void no_user(void **state)
{
    static const char text[] =
        "no PostgreSQL user name specified in startup packet";

    REFUSE(PG_PROTOCOL_3_0, "\0", "28000", text);
    REFUSE(PG_PROTOCOL_3_0, "user\0\0\0", "28000", text);
    REFUSE(PG_PROTOCOL_3_2, "database\0x\0\0", "28000", text);
    REFUSE(PG_PROTOCOL_3_0, "USER\0x\0\0", "28000", text);
}

static void other_versions(void **state)
{
    REFUSE(PG_VERSION(2, 0), "", "0A000",
           "unsupported frontend protocol 2.0: server supports 3.0 to 3.2");
    REFUSE(PG_VERSION(4, 1), "user\0a\0\0", "0A000",
           "unsupported frontend protocol 4.1: server supports 3.0 to 3.2");
    REFUSE(PG_VERSION(0, 0), "", "0A000",
           "unsupported frontend protocol 0.0: server supports 3.0 to 3.2");
    REFUSE(PG_VERSION(1234, 5681), "", "0A000",
           "unsupported frontend protocol 1234.5681: server supports 3.0 to "
           "3.2");
}

static void encryption_requests(void **state)
{
    struct packet k = make(PG_SSL_REQUEST_CODE, NULL, 0);
    struct pg_startup s;
    struct err e;

    assert_int_equal(pg_startup_need(k.p, k.n), 8);
    assert_int_equal(parse(k, &s, &e), 0);
    assert_int_equal(s.kind, PG_STARTUP_SSL);
    assert_int_equal(pg_startup_set_unsupported(&s, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "unsupported frontend protocol 1234.5679: "
                                "server supports 3.0 to 3.2");
    assert_string_equal(s.sqlstate, "0A000");
    free(k.p);
    /* PostgreSQL does not look at what follows the code. */
    k = make(PG_GSSENC_REQUEST_CODE, "xyz", 3);
    assert_int_equal(parse(k, &s, &e), 0);
    assert_int_equal(s.kind, PG_STARTUP_GSSENC);
    free(k.p);
}

static void cancel_requests(void **state)
{
    char body[4 + PG_CANCEL_KEY_MAX + 1] = "\0\0\1\2";

    memset(body + 4, 'k', sizeof(body) - 4);
    for (size_t n = 0; n <= sizeof(body); n++) {
        struct packet k = make(PG_CANCEL_REQUEST_CODE, body, n);
        struct pg_startup s;
        struct err e;
        int rc = parse(k, &s, &e);

        assert_int_equal(s.kind, PG_STARTUP_CANCEL);
        if (n >= 8 && n <= 4 + PG_CANCEL_KEY_MAX) {
            assert_int_equal(rc, 0);
            assert_int_equal(s.cancel_pid, 0x0102);
            assert_int_equal(s.cancel_key.n, n - 4);
            assert_memory_equal(s.cancel_key.p, body + 4, n - 4);
        } else {
            assert_int_equal(rc, ERR_PROTO);
            assert_string_equal(
                e.text, n < 4 ? "invalid length of cancel request packet"
                              : "invalid length of cancel key in cancel "
                                "request packet");
        }
        free(k.p);
    }
}

static void negotiation(void **state)
{
    static const struct {
        unsigned asked, newest;
        bool extension;
        unsigned minor;
        bool must;
    } rows[] = {
        {0, 2, false, 0, false},  {1, 2, false, 1, false},
        {2, 2, false, 2, false},  {3, 2, false, 2, true},
        {9999, 2, true, 2, true}, {65535, 2, false, 2, true},
        {0, 2, true, 0, true},    {2, 2, true, 2, true},
        {2, 0, false, 0, true},   {1, 0, false, 0, true},
        {0, 0, false, 0, false},  {9999, 0, false, 0, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct pg_pair pairs[] = {
            {slice_str("user"), slice_str("bo")},
            {slice_str(rows[i].extension ? "_pq_.test_protocol_negotiation"
                                         : ""),
             slice_str("")},
        };
        struct pg_startup s;
        struct pgbuf b;

        pgbuf_init(&b, 1000);
        pg_put_startup(&b, rows[i].asked, pairs, 2);
        assert_int_equal(pg_startup_parse(pgbuf_slice(&b), &s, NULL), 0);
        assert_int_equal(pg_startup_minor(&s, rows[i].newest), rows[i].minor);
        assert_int_equal(pg_startup_must_negotiate(&s, rows[i].newest),
                         rows[i].must);
        pgbuf_fini(&b);
    }
}

/* Of a valid packet every shorter one, its length word put right, is refused;
 * with the length word as it was, too. */
static void every_truncation_is_refused(void **state)
{
    static const char body[] = "user\0bo\0database\0db\0options\0-c a=b\0";
    struct pg_startup s;
    struct err e;

    for (size_t n = 0; n < sizeof(body); n++) {
        struct packet k = make(PG_PROTOCOL_3_0, body, n);

        assert_true(parse(k, &s, &e) < 0);
        assert_string_equal(e.text, layout_text);
        pg_set_u32(k.p, 8 + sizeof(body));
        assert_int_equal(parse(k, &s, &e), ERR_PROTO);
        assert_string_equal(e.text, "invalid length of startup packet");
        free(k.p);
    }
    for (size_t n = 0; n < 8; n++) {
        struct packet k = make(PG_PROTOCOL_3_0, NULL, 0);

        k.n = n;
        assert_int_equal(parse(k, &s, &e), ERR_PROTO);
        free(k.p);
    }
}

static void largest_packet(void **state)
{
    size_t n = PG_STARTUP_MAX - 8;
    char *body = calloc(1, n + 1);
    struct pg_startup s;
    struct packet k;

    assert_non_null(body);
    memcpy(body, "user\0bo\0options", 15);
    memset(body + 16, 'o', n - 16 - 2);
    accept_body(body, n, &s, &k);
    assert_int_equal(s.options.n, n - 18);
    free(k.p);
    refuse(PG_PROTOCOL_3_0, body, n + 1, "08P01",
           "invalid length of startup packet");
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(length_word),
        cmocka_unit_test(tls_is_told_by_its_first_byte),
        cmocka_unit_test(all_parameters),
        cmocka_unit_test(database_falls_back_to_the_user),
        cmocka_unit_test(last_of_a_name_counts),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(replication_values),
        cmocka_unit_test(broken_layouts),
        cmocka_unit_test(no_user),
        cmocka_unit_test(other_versions),
        cmocka_unit_test(encryption_requests),
        cmocka_unit_test(cancel_requests),
        cmocka_unit_test(negotiation),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(largest_packet),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
