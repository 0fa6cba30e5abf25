/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/userdb.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct userdb *parse(const char *text)
{
    struct userdb *db;
    struct err e = {0};
    if (userdb_parse(slice_str(text), "users", &db, &e) < 0)
        fail_msg("%s", e.text);
    return db;
}

static void assert_plain(const struct userdb *db, const char *name,
                         const char *secret)
{
    const struct auth_user *u = userdb_find(db, slice_str(name));
    assert_non_null(u);
    assert_true(slice_is(u->name, name));
    assert_int_equal(u->secret.kind,
                     *secret ? AUTH_SECRET_PLAIN : AUTH_SECRET_NONE);
    assert_true(slice_is(auth_secret_text(&u->secret), secret));
}

static void reads_names_and_secrets(void **state)
{
    struct userdb *db = parse("; comment \"x\" \"y\"\n"
                              "\"alice\" \"secret\"\r\n"
                              "\n  \t\"bob\"\t\"\" ignored \"tail\"\n"
                              "\"q\"\"uote\" \"a\"\"b\"\n"
                              "\"none\":\"tight\"\n"
                              ";\n"
                              "\"m\" \"md5c8f61e1bb4b5a5c3a9a5d3b2a1a0f0e0\"\n"
                              "\"last\" \"two\nlines\"");
    assert_int_equal(userdb_count(db), 6);
    assert_plain(db, "alice", "secret");
    assert_plain(db, "bob", "");
    assert_plain(db, "q\"uote", "a\"b");
    assert_plain(db, "none", "tight");
    assert_plain(db, "last", "two\nlines");
    assert_int_equal(userdb_find(db, slice_str("m"))->secret.kind,
                     AUTH_SECRET_MD5);
    assert_null(userdb_find(db, slice_str("Alice")));
    assert_null(userdb_find(db, slice_str("x")));
    userdb_free(db);
}

static void keeps_order_and_the_last_secret(void **state)
{
    struct userdb *db = parse("\"b\" \"1\"\n\"a\" \"2\"\n\"b\" \"3\"\n");
    const struct auth_user *u = userdb_next(db, NULL);
    assert_true(slice_is(u->name, "b"));
    assert_plain(db, "b", "3");
    u = userdb_next(db, u);
    assert_true(slice_is(u->name, "a"));
    assert_null(userdb_next(db, u));
    userdb_free(db);
}

static void empty_and_absent_are_fine(void **state)
{
    struct userdb *db = parse("");
    assert_int_equal(userdb_count(db), 0);
    assert_null(userdb_next(db, NULL));
    assert_null(userdb_find(db, slice_str("")));
    userdb_free(db);
    assert_null(userdb_find(NULL, slice_str("x")));
    assert_null(userdb_next(NULL, NULL));
    assert_int_equal(userdb_count(NULL), 0);
    userdb_free(NULL);
}

static void assert_error(struct slice text, const char *where)
{
    struct userdb *db;
    struct err e = {0};
    assert_int_equal(userdb_parse(text, "users", &db, &e), ERR_CONF);
    assert_null(db);
    if (strncmp(e.text, where, strlen(where)) != 0)
        fail_msg("%s: expected %s", e.text, where);
    assert_null(strstr(e.text, "hunter2"));
}

static void errors_name_the_line(void **state)
{
    assert_error(slice_str("\"a\" \"hunter2\"\nbob \"hunter2\"\n"),
                 "users:2: ");
    assert_error(slice_str("# no comment\n"), "users:1: ");
    assert_error(slice_str("\n\n\"a\n\nhunter2"), "users:3: a quote");
    assert_error(slice_str("\"a\" \"x\"\n\"b\"\n\"hunter2\" \"y\"\n"),
                 "users:2: the password is missing");
    assert_error(slice_str("\"a\" \"hunter2"), "users:1: a quote");
    assert_error(slice_str("\"a\" \"hunter2\"\""), "users:1: a quote");
    assert_error(slice_str("\"a\nb\" \"c\"\nx"), "users:3: ");
    assert_error(slice_of("\"a\" \"\0\"", 7), "users: has a zero byte");
}

/* A file of one user with name and password of these lengths. */
static char *make_file(size_t name, size_t password)
{
    char *s = malloc(name + password + 8), *p = s;
    *p++ = '"';
    memset(p, 'n', name);
    p += name;
    memcpy(p, "\" \"", 3);
    p += 3;
    memset(p, 'p', password);
    p += password;
    memcpy(p, "\"", 2);
    return s;
}

static void lengths_are_capped(void **state)
{
    char *text = make_file(AUTH_USER_NAME_MAX, AUTH_SECRET_TEXT_MAX);
    struct userdb *db = parse(text);
    assert_int_equal(userdb_next(db, NULL)->secret.text_n,
                     AUTH_SECRET_TEXT_MAX);
    userdb_free(db);
    free(text);
    text = make_file(AUTH_USER_NAME_MAX + 1, 1);
    assert_error(slice_str(text), "users:1: user name too long");
    free(text);
    text = make_file(1, AUTH_SECRET_TEXT_MAX + 1);
    assert_error(slice_str(text), "users:1: password too long");
    free(text);
}

static void finds_among_many(void **state)
{
    enum { MANY = 5000 };
    char *text = malloc(MANY * 32), *p = text;
    for (int i = 0; i < MANY; i++)
        p += sprintf(p, "\"user%d\" \"pw%d\"\n", i, i);
    struct userdb *db = parse(text);
    assert_int_equal(userdb_count(db), MANY);
    assert_plain(db, "user4321", "pw4321");
    userdb_free(db);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_names_and_secrets),
        cmocka_unit_test(keeps_order_and_the_last_secret),
        cmocka_unit_test(empty_and_absent_are_fine),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(lengths_are_capped),
        cmocka_unit_test(finds_among_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
