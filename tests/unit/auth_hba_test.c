/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/hba.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static char warnings[4096];

static void on_warn(void *arg, const char *text)
{
    size_t n = strlen(warnings);
    snprintf(warnings + n, sizeof warnings - n, "%s\n", text);
}

static int on_read(void *arg, const char *path, char **text, size_t *n,
                   struct err *e)
{
    static const char *const files[][2] = {
        {"/etc/p/dbs", "# names\n\n one, two\nthree \"a b\"\n@more\n"},
        {"/etc/p/more", "four\n"},
        {"/etc/p/loop", "@loop @loop\n"},
        {"/abs", "five"},
        {"/etc/p/bad", "ok\n\"open\n"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        if (!strcmp(path, files[i][0])) {
            *text = mem_strdup(files[i][1]);
            *n = strlen(files[i][1]);
            return 0;
        }
    }
    return err_set(e, ERR_CONF, "cannot read file \"%s\": gone", path);
}

static int try_parse(const char *text, struct hba **out, struct err *e,
                     const struct ident *ident)
{
    struct hba_source src = {
        .read_file = on_read, .warn = on_warn, .ident = ident};
    warnings[0] = 0;
    return hba_parse(slice_str(text), "/etc/p/hba", &src, out, e);
}

static struct hba *parse(const char *text)
{
    struct hba *h;
    struct err e = {0};
    if (try_parse(text, &h, &e, NULL))
        fail_msg("%s", e.text);
    return h;
}

/* The line that decides for this client; 0: none. */
static int line_for(const struct hba *h, enum hba_via via, const char *from,
                    const char *database, const char *user)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    struct hba_client c = {
        .via = via, .database = slice_str(database), .user = slice_str(user)};
    if (from && inet_pton(AF_INET, from, &in.sin_addr) == 1)
        c.addr = (struct sockaddr *)&in;
    else if (from && inet_pton(AF_INET6, from, &in6.sin6_addr) == 1)
        c.addr = (struct sockaddr *)&in6;
    const struct hba_rule *r = hba_match(h, &c);
    return r ? r->line : 0;
}

static void types_of_connection(void **state)
{
    struct hba *h = parse("local all unix trust\n"
                          "hostssl all tls all trust\n"
                          "hostnossl all plain all trust\n"
                          "hostquic all quic all trust\n"
                          "host all any all trust\n");
    static const struct {
        const char *user;
        int line[4]; /* by enum hba_via */
    } want[] = {
        {"unix", {1, 0, 0, 0}}, {"tls", {0, 0, 2, 2}}, {"plain", {0, 3, 0, 0}},
        {"quic", {0, 0, 0, 4}}, {"any", {0, 5, 5, 5}},
    };
    assert_string_equal(warnings, "");
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        for (int via = HBA_UNIX; via <= HBA_QUIC; via++)
            assert_int_equal(line_for(h, (enum hba_via)via,
                                      via == HBA_UNIX ? NULL : "::1", "d",
                                      want[i].user),
                             want[i].line[via]);
    hba_free(h);
}

static void addresses(void **state)
{
    struct hba *h = parse("host all a 10.1.0.0/16 trust\n"
                          "host all b 10.1.0.0 255.255.0.0 trust\n"
                          "host all c fe80::/10 trust\n"
                          "host all d 2001:db8:: ffff:ffff:: trust\n"
                          "host all e 0.0.0.0/0 trust\n"
                          "host all f ::/0 trust\n"
                          "host all g 192.168.1.1/32 trust\n"
                          "host all h 10.1.2.3/12 trust\n"
                          "host all h all md5\n"
                          "host all i 10.1.2.3/12 reject\n"
                          "host all i all md5\n"
                          "host all j 10.0.0.128/25 trust\n");
    static const struct {
        const char *user, *from;
        int line;
    } want[] = {
        {"a", "10.1.255.1", 1},
        {"a", "10.2.0.1", 0},
        {"a", "::1", 0},
        {"b", "10.1.9.9", 2},
        {"b", "11.1.9.9", 0},
        {"c", "febf::1", 3},
        {"c", "fec0::1", 0},
        {"d", "2001:db8:1::", 4},
        {"d", "2001:db9::", 0},
        {"e", "8.8.8.8", 5},
        {"e", "::1", 0},
        {"f", "::1", 6},
        {"f", "127.0.0.1", 0},
        {"g", "192.168.1.1", 7},
        {"g", "192.168.1.2", 0},
        /* bits beyond the mask: lets nobody in, keeps everybody out */
        {"h", "10.1.2.3", 9},
        {"i", "10.1.2.3", 10},
        {"i", "10.15.0.1", 10},
        {"i", "10.16.0.1", 11},
        {"j", "10.0.0.200", 12},
        {"j", "10.0.0.5", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_int_equal(
            line_for(h, HBA_PLAIN, want[i].from, "d", want[i].user),
            want[i].line);
    assert_non_null(strstr(warnings, "/etc/p/hba:8: the address has bits"));
    assert_non_null(strstr(warnings, "/etc/p/hba:10: the address has bits"));
    hba_free(h);
}

static void names(void **state)
{
    struct hba *h = parse("local one,\"two x\" , three u1,u2 trust\n"
                          "local sameuser all trust\n"
                          "local \"all\" \"sameuser\" trust\n"
                          "local /^app_\\d+$ /^svc trust\n"
                          "local @dbs u3 trust\n"
                          "local @/abs,six \"u\"\"4\" trust # said so\n"
                          "local \"a,b\" replication trust\n");
    static const struct {
        const char *database, *user;
        int line;
    } want[] = {
        {"one", "u1", 1},        {"two x", "u2", 1},
        {"three", "u2", 1},      {"three", "u9", 0},
        {"bob", "bob", 2},       {"bob", "Bob", 0},
        {"all", "sameuser", 3},  {"x", "sameuser", 0},
        {"app_12", "svc9", 4},   {"app_", "svc9", 0},
        {"app_12", "asvc", 0},   {"one", "u3", 5},
        {"a b", "u3", 5},        {"four", "u3", 5},
        {"five", "u3", 0},       {"five", "u\"4", 6},
        {"six", "u\"4", 6},      {"a,b", "replication", 7},
        {"a", "replication", 0},
    };
    assert_string_equal(warnings, "");
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        assert_int_equal(
            line_for(h, HBA_UNIX, NULL, want[i].database, want[i].user),
            want[i].line);
    hba_free(h);
}

static void replication(void **state)
{
    struct hba *h = parse("local all all trust\n"
                          "local replication rep md5\n");
    struct hba_client c = {.via = HBA_UNIX,
                           .is_replication = true,
                           .database = slice_str("d"),
                           .user = slice_str("rep")};
    assert_int_equal(hba_match(h, &c)->line, 2);
    c.user = slice_str("bob");
    assert_null(hba_match(h, &c));
    c.is_replication = false;
    assert_int_equal(hba_match(h, &c)->line, 1);
    /* the word is no database of that name */
    hba_free(h);
    h = parse("local replication all trust\n");
    assert_int_equal(line_for(h, HBA_UNIX, NULL, "replication", "u"), 0);
    hba_free(h);
    assert_null(hba_match(NULL, &c));
}

static void methods_and_options(void **state)
{
    struct err e;
    struct ident *ident;
    struct hba *h;
    assert_int_equal(ident_parse(slice_str("m root all\n\"a b\" x y\n"), "id",
                                 NULL, NULL, &ident, &e),
                     0);
    assert_int_equal(
        try_parse("local all a peer map=m\n"
                  "hostssl all b all cert map=\"a b\"\n"
                  "host all c all ldap ldapserver=l ldapprefix=\"cn=\" "
                  "ldapsuffix=\", dc=x\"\n"
                  "local all d pam pamservice=x\n"
                  "local all e md5\nlocal all f password\n"
                  "local all g scram-sha-256\nlocal all h reject\n"
                  "hostssl all i all \\\n   cert\n"
                  "host all j all peer\n",
                  &h, &e, ident),
        0);
    static const enum auth_method want[] = {
        AUTH_METHOD_PEER,  AUTH_METHOD_CERT,   AUTH_METHOD_LDAP,
        AUTH_METHOD_PAM,   AUTH_METHOD_MD5,    AUTH_METHOD_PLAIN,
        AUTH_METHOD_SCRAM, AUTH_METHOD_REJECT, AUTH_METHOD_CERT,
        AUTH_METHOD_PEER,
    };
    assert_int_equal(hba_count(h), ARRAY_SIZE(want));
    for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
        char user[2] = {(char)('a' + i), 0};
        struct sockaddr_in in = {.sin_family = AF_INET};
        struct hba_client c = {.database = slice_str("d"),
                               .user = slice_str(user),
                               .addr = (struct sockaddr *)&in};
        const struct hba_rule *r = hba_match(h, &c);
        if (!r) {
            c.via = HBA_TLS;
            r = hba_match(h, &c);
        }
        assert_non_null(r);
        assert_int_equal(r->method, want[i]);
        if (i < 2)
            assert_string_equal(ident_map_name(r->map), i ? "a b" : "m");
        if (i == 2)
            assert_string_equal(
                r->options,
                "ldapserver=l\nldapprefix=cn=\nldapsuffix=, dc=x\n");
    }
    assert_non_null(strstr(warnings, "hba:11: peer works for local only"));
    hba_free(h);
    ident_free(ident);
}

static void bad_lines_are_skipped_and_told(void **state)
{
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"remote all all trust", "expected local, host"},
        {"\"local\" all all trust", "expected local, host"},
        {"local", "expected a database"},
        {"local all", "expected a user"},
        {"local all, trust", "expected a user"},
        {"local all all", "expected a method"},
        {"local all all gss", "expected a method"},
        {"local all all \"trust\"", "expected a method"},
        {"local samerole all trust", "members"},
        {"local all +staff trust", "members"},
        {"local all all trust clientcert=1", "no option but map="},
        {"local all all trust,", "expected name=value"},
        {"local all all peer map=nomap", "no such map"},
        {"host all all example.org trust", "host names"},
        {"host all all samenet trust", "host names"},
        {"host all all 10.0.0.0/33 trust", "number of bits"},
        {"host all all ::/129 trust", "number of bits"},
        {"host all all 10.0.0.0/-1 trust", "number of bits"},
        {"host all all 10.0.0.0/x trust", "number of bits"},
        {"host all all 10.0.0.0 trust", "a mask"},
        {"host all all 10.0.0.0 ffff:: trust", "a mask"},
        {"host all all 10.0.0/8 trust", "IPv4"},
        {"local \"open all trust", "never closed"},
        {"local @nofile all trust", "cannot read file"},
        {"local @loop all trust", "name each other"},
        {"local @bad all trust", "/etc/p/bad:2: a quote"},
        {"local /( all trust", "regular expression"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char text[256];
        snprintf(text, sizeof text, "# first\n%s\nlocal all good trust\n",
                 bad[i].line);
        struct hba *h = parse(text);
        if (hba_count(h) != 1 || !strstr(warnings, bad[i].why) ||
            !strstr(warnings, "/etc/p/hba:2: "))
            fail_msg("%s: %zu rules, %s", bad[i].line, hba_count(h), warnings);
        assert_int_equal(line_for(h, HBA_UNIX, NULL, "d", "good"), 3);
        hba_free(h);
    }
}

static void a_bad_line_that_rejects_is_an_error(void **state)
{
    struct hba *h;
    struct err e;
    assert_int_equal(try_parse("local all all trust\n\n"
                               "host all mallory example.org reject\n",
                               &h, &e, NULL),
                     ERR_CONF);
    assert_null(h);
    assert_non_null(strstr(e.text, "/etc/p/hba:3: "));
    assert_non_null(strstr(e.text, "rejects"));
    assert_int_equal(try_parse("local x\\\n y reject extra\n", &h, &e, NULL),
                     ERR_CONF);
    struct hba_source src = {.warn = on_warn};
    assert_int_equal(hba_parse(slice_of("local\0", 6), "f", &src, &h, &e),
                     ERR_CONF);
}

static void maps(void **state)
{
    struct ident *i;
    struct err e;
    warnings[0] = 0;
    assert_int_equal(ident_parse(slice_str("# map system role\n"
                                           "m root postgres\n"
                                           "m \"a b\" app\n"
                                           "m boss all\n"
                                           "m quoted \"all\"\n"
                                           "dom /^(.*)@example\\.org$ \\1\n"
                                           "dom /^svc-([\\w.]+)@ app_\\1_rw\n"
                                           "dom /^op[[:digit:]]@ /^op_\n"
                                           "opt /^z(y)?$ \\1\n"
                                           "lit x \\1\n"
                                           "bad only\n"
                                           "bad too many words here\n"
                                           "bad /[ x\n"
                                           "bad /plain \\1\n"
                                           "bad x +role\n"),
                                 "id", on_warn, NULL, &i, &e),
                     0);
    for (int line = 11; line <= 15; line++) {
        char at[32];
        snprintf(at, sizeof at, "id:%d: ", line);
        if (!strstr(warnings, at))
            fail_msg("line %d not in %s", line, warnings);
    }
    assert_null(ident_find(i, slice_str("bad")));
    assert_null(ident_find(NULL, slice_str("m")));
    static const struct {
        const char *map, *system, *role;
        bool ok;
    } want[] = {
        {"m", "root", "postgres", true},
        {"m", "root", "root", false},
        {"m", "a b", "app", true},
        {"m", "boss", "anyone", true},
        {"m", "quoted", "all", true},
        {"m", "quoted", "x", false},
        {"dom", "bob@example.org", "bob", true},
        {"dom", "bob@example.org", "alice", false},
        {"dom", "bob@examplexorg", "bob", false},
        {"dom", "svc-pay.x@h", "app_pay.x_rw", true},
        {"dom", "svc-pay@h", "app_pay", false},
        {"dom", "svc-pay@h", "app_", false},
        {"dom", "op1@h", "op_x", true},
        {"dom", "op1@h", "xop_", false},
        {"opt", "zy", "y", true},
        {"opt", "z", "", false},
        {"opt", "z", "\\1", false},
        {"lit", "x", "\\1", true},
    };
    for (size_t k = 0; k < ARRAY_SIZE(want); k++) {
        const struct ident_map *m = ident_find(i, slice_str(want[k].map));
        assert_non_null(m);
        if (ident_map_allows(m, slice_str(want[k].system),
                             slice_str(want[k].role)) != want[k].ok)
            fail_msg("%s: %s as %s", want[k].map, want[k].system, want[k].role);
    }
    ident_free(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_of_connection),
        cmocka_unit_test(addresses),
        cmocka_unit_test(names),
        cmocka_unit_test(replication),
        cmocka_unit_test(methods_and_options),
        cmocka_unit_test(bad_lines_are_skipped_and_told),
        cmocka_unit_test(a_bad_line_that_rejects_is_an_error),
        cmocka_unit_test(maps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
