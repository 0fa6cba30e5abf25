/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/ldap_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct ldap_options parse(const char *text)
{
    struct ldap_options o;
    struct err e = {0};
    if (ldap_options_parse_words(text, &o, &e))
        fail_msg("%s: %s", text, e.text);
    return o;
}

static void simple_bind(void **state)
{
    struct ldap_options o = parse("ldapserver=one.test ldapprefix=\"cn=\" "
                                  "ldapsuffix=\", dc=test\", ldaptls=1");
    assert_string_equal(o.server, "one.test");
    assert_string_equal(o.prefix, "cn=");
    assert_string_equal(o.suffix, ", dc=test");
    assert_true(o.starts_tls);
    assert_null(o.base_dn);
    char *uris = ldap_options_uris(&o);
    assert_string_equal(uris, "ldap://one.test:389");
    free(uris);
    ldap_options_fini(&o);
}

static void search(void **state)
{
    struct ldap_options o;
    struct err e;
    assert_int_equal(
        ldap_options_parse("ldapserver=a b\nldapport=1389\nldapscheme=ldaps\n"
                           "ldapbasedn=dc=test\nldapbinddn=cn=x,dc=test\n"
                           "ldapbindpasswd=se=cret\n",
                           &o, &e),
        0);
    assert_string_equal(o.bind_dn, "cn=x,dc=test");
    assert_string_equal(o.bind_password, "se=cret");
    assert_int_equal(o.scope, LDAP_OPTION_SUB);
    char *text = ldap_options_uris(&o);
    assert_string_equal(text, "ldaps://a:1389 ldaps://b:1389");
    free(text);
    text = ldap_options_filter_for(&o, slice_str("bob"));
    assert_string_equal(text, "(uid=bob)");
    free(text);
    ldap_options_fini(&o);

    o = parse("ldapserver=a ldapbasedn=x "
              "ldapsearchfilter=\"(|(uid=$username)(mail=$username@t))\"");
    text = ldap_options_filter_for(&o, slice_str("bob"));
    assert_string_equal(text, "(|(uid=bob)(mail=bob@t))");
    free(text);
    ldap_options_fini(&o);
}

static void names_that_would_change_the_filter(void **state)
{
    static const char *const bad[] = {"*", "a)(uid=b", "a\\2a", "a/b", "(x"};
    struct ldap_options o = parse("ldapserver=a ldapbasedn=x "
                                  "ldapsearchattribute=cn");
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_null(ldap_options_filter_for(&o, slice_str(bad[i])));
    assert_null(ldap_options_filter_for(&o, slice_of("a\0b", 3)));
    char *text = ldap_options_filter_for(&o, slice_str("ok"));
    assert_string_equal(text, "(cn=ok)");
    free(text);
    ldap_options_fini(&o);
}

static void urls(void **state)
{
    struct ldap_options o =
        parse("ldapurl=ldap://h.test:3389/dc=a%20b?mail?base");
    assert_string_equal(o.server, "h.test");
    assert_int_equal(o.port, 3389);
    assert_string_equal(o.base_dn, "dc=a b");
    assert_string_equal(o.attribute, "mail");
    assert_int_equal(o.scope, LDAP_OPTION_BASE);
    assert_false(o.is_ldaps);
    ldap_options_fini(&o);
    o = parse("ldapurl=ldaps://[::1]/dc=x");
    assert_string_equal(o.server, "[::1]");
    char *uris = ldap_options_uris(&o);
    assert_string_equal(uris, "ldaps://[::1]:636");
    free(uris);
    ldap_options_fini(&o);
}

static void refused(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"", "needs ldapbasedn"},
        {"ldapserver=a", "needs ldapbasedn"},
        {"ldapbasedn=x", "needs ldapserver"},
        {"ldapserver=a ldapprefix=x ldapbasedn=y", "do not go"},
        {"ldapserver=a ldapbasedn=y ldapsearchattribute=a "
         "ldapsearchfilter=b",
         "does not go"},
        {"ldapurl=http://x/dc=y", "ldapurl"},
        {"ldapurl=ldap:x", "ldapurl"},
        {"ldapurl=ldap://x:99999/dc=y", "ldapurl"},
        {"ldapurl=ldap://x/dc=y?a?deep", "ldapurl"},
        {"ldapurl=ldap://x/dc=y?a?sub?(b=c)", "does not go"},
        {"ldapserver=a ldapport=0 ldapprefix=x", "ldapport"},
        {"ldapscheme=tls", "ldapscheme"},
        {"ldapcolour=blue", "unknown LDAP option"},
        {"ldapserver=\"a", "never closed"},
        {"word", "unknown LDAP option"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct ldap_options o;
        struct err e = {0};
        assert_int_equal(ldap_options_parse_words(bad[i].text, &o, &e),
                         ERR_CONF);
        if (!strstr(e.text, bad[i].why))
            fail_msg("%s: %s", bad[i].text, e.text);
        assert_null(o.server);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_bind),
        cmocka_unit_test(search),
        cmocka_unit_test(names_that_would_change_the_filter),
        cmocka_unit_test(urls),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
