/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/crypto.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void assert_hex(const uint8_t *p, size_t n, const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    assert_int_equal(strlen(hex), 2 * n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(hex[2 * i], digits[p[i] >> 4]);
        assert_int_equal(hex[2 * i + 1], digits[p[i] & 15]);
    }
}

static void md5_joins_its_inputs(void **state)
{
    char out[CRYPTO_MD5_HEX_SIZE];
    assert_int_equal(crypto_md5_hex(slice_str(""), slice_str(""), out), 0);
    assert_string_equal(out, "d41d8cd98f00b204e9800998ecf8427e");
    assert_int_equal(crypto_md5_hex(slice_str("a"), slice_str("bc"), out), 0);
    assert_string_equal(out, "900150983cd24fb0d6963f7d28e17f72");
}

static void sha256_and_hmac_match_the_standards(void **state)
{
    uint8_t out[CRYPTO_SHA256_SIZE];
    assert_int_equal(crypto_sha256(slice_str("abc"), out), 0);
    assert_hex(out, sizeof out,
               "ba7816bf8f01cfea414140de5dae2223"
               "b00361a396177a9cb410ff61f20015ad");
    /* RFC 4231, case 2 */
    assert_int_equal(
        crypto_hmac_sha256(slice_str("Jefe"),
                           slice_str("what do ya want for nothing?"), out),
        0);
    assert_hex(out, sizeof out,
               "5bdcc146bf60754e6a042426089575c7"
               "5a003f089d2739839dec58b964ec3843");
    /* No key and no data. */
    assert_int_equal(
        crypto_hmac_sha256((struct slice){0}, (struct slice){0}, out), 0);
    assert_hex(out, sizeof out,
               "b613679a0814d9ec772f95d778c35fc5"
               "ff1697c493715653c6c712144292c5ad");
}

static void pbkdf2_matches_rfc7914(void **state)
{
    uint8_t out[CRYPTO_SHA256_SIZE];
    assert_int_equal(
        crypto_pbkdf2_sha256(slice_str("passwd"), slice_str("salt"), 1, out),
        0);
    assert_hex(out, sizeof out,
               "55ac046e56e3089fec1691c22544b605"
               "f94185216dde0465e68b9d57c20dacbc");
    assert_true(
        crypto_pbkdf2_sha256(slice_str("x"), slice_str("salt"), 0, out) < 0);
}

static void equal_compares_length_and_bytes(void **state)
{
    assert_true(crypto_equal(slice_str("abc"), slice_str("abc")));
    assert_true(crypto_equal((struct slice){0}, slice_str("")));
    assert_false(crypto_equal(slice_str("abc"), slice_str("abd")));
    assert_false(crypto_equal(slice_str("abc"), slice_str("ab")));
}

static void base64_goes_both_ways(void **state)
{
    static const char *const pairs[][2] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xff\xef\xbe", "/+++"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        char text[CRYPTO_BASE64_SIZE(16)];
        uint8_t back[16];
        size_t n;
        struct slice data = slice_str(pairs[i][0]);
        assert_int_equal(crypto_base64_encode(data, text), strlen(pairs[i][1]));
        assert_string_equal(text, pairs[i][1]);
        assert_true(crypto_base64_decode(slice_str(text), back, data.n, &n));
        assert_true(slice_eq(slice_of(back, n), data));
        if (data.n)
            assert_false(
                crypto_base64_decode(slice_str(text), back, data.n - 1, &n));
    }
}

static void base64_refuses_other_spellings(void **state)
{
    static const char *const bad[] = {
        "Z",    "Zg",       "Zg=",    "Zh==", "Zm9=", "====", "=g==",
        "Z=g=", "Zg==Zg==", "Zm9v\n", "Zm 9", " Zg=", "Zm-_", "Zm9vZ===",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        uint8_t out[16];
        size_t n;
        assert_false(
            crypto_base64_decode(slice_str(bad[i]), out, sizeof out, &n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(md5_joins_its_inputs),
        cmocka_unit_test(sha256_and_hmac_match_the_standards),
        cmocka_unit_test(pbkdf2_matches_rfc7914),
        cmocka_unit_test(equal_compares_length_and_bytes),
        cmocka_unit_test(base64_goes_both_ways),
        cmocka_unit_test(base64_refuses_other_spellings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
