/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The few primitives of authentication, by OpenSSL: hashes, HMAC, PBKDF2,
 * base64 and comparison in constant time. Pure; any thread. What returns int
 * gives 0 or a negative code: the library may refuse (MD5 in FIPS mode). */
#ifndef AUTH_CRYPTO_H
#define AUTH_CRYPTO_H

#include "base/slice.h"

enum {
    CRYPTO_MD5_HEX_SIZE = 33, /* 32 digits and a NUL */
    CRYPTO_SHA256_SIZE = 32,
};

/* Lower-case hex of MD5(a || b). */
NODISCARD int crypto_md5_hex(struct slice a, struct slice b,
                             char out[CRYPTO_MD5_HEX_SIZE]);

NODISCARD int crypto_sha256(struct slice data, uint8_t out[CRYPTO_SHA256_SIZE]);

NODISCARD int crypto_hmac_sha256(struct slice key, struct slice data,
                                 uint8_t out[CRYPTO_SHA256_SIZE]);

/* PBKDF2-HMAC-SHA-256, one block: the slow one (about 1 ms at 4096). */
NODISCARD int crypto_pbkdf2_sha256(struct slice password, struct slice salt,
                                   int iterations,
                                   uint8_t out[CRYPTO_SHA256_SIZE]);

/* The time taken depends on the lengths alone. */
bool crypto_equal(struct slice a, struct slice b);

/* Room for the encoding of n bytes and its NUL. */
#define CRYPTO_BASE64_SIZE(n) (((n) + 2) / 3 * 4 + 1)

/* Encodes into out, which holds CRYPTO_BASE64_SIZE(data.n); returns the length
 * without the NUL. */
size_t crypto_base64_encode(struct slice data, char *out);

/* Standard alphabet, padding required, no blanks, unused bits zero. False when
 * the text is anything else or needs more than cap bytes. */
NODISCARD bool crypto_base64_decode(struct slice text, uint8_t *out, size_t cap,
                                    size_t *out_n);

#endif
