/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/cert.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include "auth/tls_binding.h"

static EVP_PKEY *rsa, *ec, *ed;

static int make_keys(void **state)
{
    rsa = EVP_RSA_gen(2048);
    ec = EVP_EC_gen("P-256");
    ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    return rsa && ec && ed ? 0 : -1;
}

static int free_keys(void **state)
{
    EVP_PKEY_free(rsa);
    EVP_PKEY_free(ec);
    EVP_PKEY_free(ed);
    return 0;
}

/* A certificate that signs itself; cn of n bytes, none when it is NULL. */
static X509 *make_cert(EVP_PKEY *key, const EVP_MD *md, const char *cn, int n)
{
    X509 *x = X509_new();
    X509_NAME *name = X509_get_subject_name(x);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_NAME_add_entry_by_txt(name, "O", MBSTRING_UTF8,
                               (const unsigned char *)"Org", -1, -1, 0);
    /* Past the length check of the other functions. */
    X509_NAME_ENTRY *e = cn ? X509_NAME_ENTRY_create_by_NID(
                                  NULL, NID_commonName, V_ASN1_UTF8STRING,
                                  (const unsigned char *)cn, n)
                            : NULL;
    if (e)
        X509_NAME_add_entry(name, e, -1, 0);
    X509_NAME_ENTRY_free(e);
    X509_set_issuer_name(x, name);
    X509_set_pubkey(x, key);
    assert_true(X509_sign(x, key, md) > 0);
    return x;
}

static void common_name_is_the_role(void **state)
{
    char name[CERT_NAME_MAX + 1];
    struct err e = {0};
    X509 *x = make_cert(ec, EVP_sha256(), "\303\266ra", 4);
    assert_int_equal(cert_common_name(x, name, &e), 0);
    assert_string_equal(name, "\303\266ra");
    assert_int_equal(
        cert_check_role(x, slice_str("\303\266ra"), NULL, NULL, &e), 0);
    assert_int_equal(cert_check_role(x, slice_str("ora"), NULL, NULL, &e),
                     ERR_AUTHZ);
    assert_non_null(strstr(e.text, "\303\266ra"));
    X509_free(x);
}

static bool map_to_admin(void *arg, struct slice name, struct slice role)
{
    ++*(int *)arg;
    return slice_is(name, "carol") && slice_is(role, "admin");
}

static void map_decides_when_there_is_one(void **state)
{
    struct err e = {0};
    int calls = 0;
    X509 *x = make_cert(ec, EVP_sha256(), "carol", 5);
    assert_int_equal(
        cert_check_role(x, slice_str("admin"), map_to_admin, &calls, &e), 0);
    assert_int_equal(
        cert_check_role(x, slice_str("carol"), map_to_admin, &calls, &e),
        ERR_AUTHZ);
    assert_int_equal(calls, 2);
    X509_free(x);
}

static void bad_names_are_refused(void **state)
{
    static const struct {
        const char *cn;
        int n;
        const char *text;
    } cases[] = {
        {NULL, 0, "no common name"},
        {"", 0, "not text"},
        {"admin\0.example.com", 18, "zero byte"},
        {"admin\0", 6, "zero byte"},
    };
    char name[CERT_NAME_MAX + 1];
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err e = {0};
        X509 *x = make_cert(ec, EVP_sha256(), cases[i].cn, cases[i].n);
        assert_int_equal(cert_common_name(x, name, &e), ERR_AUTHZ);
        if (!strstr(e.text, cases[i].text))
            fail_msg("%s: expected %s", e.text, cases[i].text);
        assert_int_equal(cert_check_role(x, slice_str("admin"), NULL, NULL, &e),
                         ERR_AUTHZ);
        X509_free(x);
    }
}

static void subject_for_logs(void **state)
{
    char text[64], small[4];
    X509 *x = make_cert(ec, EVP_sha256(), "carol", 5);
    cert_subject(x, text, sizeof text);
    assert_string_equal(text, "CN=carol,O=Org");
    cert_subject(x, small, sizeof small);
    assert_string_equal(small, "CN=");
    X509_free(x);
}

static void assert_binding(EVP_PKEY *key, const EVP_MD *signed_with,
                           const EVP_MD *bound_with)
{
    uint8_t got[TLS_BINDING_MAX], want[EVP_MAX_MD_SIZE];
    size_t n = 0;
    unsigned want_n = 0;
    X509 *x = make_cert(key, signed_with, "carol", 5);
    int rc = tls_binding_server_end_point(x, got, &n);
    assert_int_equal(rc, bound_with ? 0 : ERR_UNSUPPORTED);
    if (bound_with) {
        assert_true(X509_digest(x, bound_with, want, &want_n));
        assert_int_equal(n, want_n);
        assert_memory_equal(got, want, n);
    }
    X509_free(x);
}

static void end_point_hash_is_that_of_the_signature(void **state)
{
    assert_binding(ec, EVP_sha256(), EVP_sha256());
    assert_binding(ec, EVP_sha384(), EVP_sha384());
    assert_binding(rsa, EVP_sha512(), EVP_sha512());
    assert_binding(rsa, EVP_sha1(), EVP_sha256());
    assert_binding(rsa, EVP_md5(), EVP_sha256());
    assert_binding(ed, NULL, NULL);
}

static void end_point_hash_of_rsa_pss(void **state)
{
    uint8_t got[TLS_BINDING_MAX], want[EVP_MAX_MD_SIZE];
    size_t n = 0;
    unsigned want_n = 0;
    EVP_PKEY_CTX *pctx;
    X509 *x = make_cert(rsa, EVP_sha256(), "carol", 5);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    assert_true(EVP_DigestSignInit(ctx, &pctx, EVP_sha384(), NULL, rsa));
    assert_true(EVP_PKEY_CTX_set_rsa_padding(pctx, RSA_PKCS1_PSS_PADDING) > 0);
    assert_true(X509_sign_ctx(x, ctx) > 0);
    assert_int_equal(tls_binding_server_end_point(x, got, &n), 0);
    assert_true(X509_digest(x, EVP_sha384(), want, &want_n));
    assert_int_equal(n, want_n);
    assert_memory_equal(got, want, n);
    EVP_MD_CTX_free(ctx);
    X509_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(common_name_is_the_role),
        cmocka_unit_test(map_decides_when_there_is_one),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(subject_for_logs),
        cmocka_unit_test(end_point_hash_is_that_of_the_signature),
        cmocka_unit_test(end_point_hash_of_rsa_pss),
    };
    return cmocka_run_group_tests(tests, make_keys, free_keys);
}
