/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/err.h"

int crypto_md5_hex(struct slice a, struct slice b,
                   char out[CRYPTO_MD5_HEX_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_md5(), NULL) &&
              EVP_DigestUpdate(ctx, a.p, a.n) &&
              EVP_DigestUpdate(ctx, b.p, b.n) &&
              EVP_DigestFinal_ex(ctx, sum, &n) && n == 16;
    EVP_MD_CTX_free(ctx);
    out[0] = 0;
    if (!ok)
        return ERR_UNSUPPORTED;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * n] = 0;
    mem_wipe(sum, sizeof sum);
    return 0;
}

int crypto_sha256(struct slice data, uint8_t out[CRYPTO_SHA256_SIZE])
{
    unsigned n = CRYPTO_SHA256_SIZE;
    return EVP_Digest(data.p, data.n, out, &n, EVP_sha256(), NULL)
               ? 0
               : ERR_UNSUPPORTED;
}

int crypto_hmac_sha256(struct slice key, struct slice data,
                       uint8_t out[CRYPTO_SHA256_SIZE])
{
    unsigned n = CRYPTO_SHA256_SIZE;
    /* A NULL key would mean "the key of before". */
    const char *k = key.n ? key.p : "";
    return HMAC(EVP_sha256(), k, (int)key.n, (const uint8_t *)data.p, data.n,
                out, &n)
               ? 0
               : ERR_UNSUPPORTED;
}

int crypto_pbkdf2_sha256(struct slice password, struct slice salt,
                         int iterations, uint8_t out[CRYPTO_SHA256_SIZE])
{
    if (iterations < 1)
        return ERR_PROTO;
    return PKCS5_PBKDF2_HMAC(password.n ? password.p : "", (int)password.n,
                             (const uint8_t *)salt.p, (int)salt.n, iterations,
                             EVP_sha256(), CRYPTO_SHA256_SIZE, out)
               ? 0
               : ERR_UNSUPPORTED;
}

bool crypto_equal(struct slice a, struct slice b)
{
    return a.n == b.n && (a.n == 0 || CRYPTO_memcmp(a.p, b.p, a.n) == 0);
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t crypto_base64_encode(struct slice data, char *out)
{
    const uint8_t *p = (const uint8_t *)data.p;
    size_t n = 0;
    for (size_t i = 0; i < data.n; i += 3) {
        size_t left = data.n - i;
        uint32_t v = (uint32_t)p[i] << 16;
        v |= left > 1 ? (uint32_t)p[i + 1] << 8 : 0;
        v |= left > 2 ? p[i + 2] : 0;
        out[n++] = base64_digits[v >> 18];
        out[n++] = base64_digits[v >> 12 & 63];
        out[n++] = '=';
        out[n++] = '=';
        if (left > 1)
            out[n - 2] = base64_digits[v >> 6 & 63];
        if (left > 2)
            out[n - 1] = base64_digits[v & 63];
    }
    out[n] = 0;
    return n;
}

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* One group of four digits, the last `pad` of them being '='. */
static bool base64_group(const char *p, int pad, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = i < 4 - pad ? base64_value(p[i]) : 0;
        if (d < 0)
            return false;
        v = v << 6 | (uint32_t)d;
    }
    *out = v;
    return (v & ((1u << 8 * pad) - 1)) == 0;
}

bool crypto_base64_decode(struct slice text, uint8_t *out, size_t cap,
                          size_t *out_n)
{
    size_t n = 0;
    if (text.n % 4)
        return false;
    for (size_t i = 0; i < text.n; i += 4) {
        const char *p = text.p + i;
        int pad = 0;
        if (i + 4 == text.n && p[3] == '=')
            pad = p[2] == '=' ? 2 : 1;
        uint32_t v;
        if (!base64_group(p, pad, &v) || cap - n < (size_t)(3 - pad))
            return false;
        for (int k = 0; k < 3 - pad; k++)
            out[n++] = (uint8_t)(v >> (16 - 8 * k));
    }
    *out_n = n;
    return true;
}
