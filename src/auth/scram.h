/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What both ends of SCRAM-SHA-256 (RFC 5802, 7677) share: keys, proofs and the
 * reading of attributes. Private to auth. Pure; any thread. */
#ifndef AUTH_SCRAM_H
#define AUTH_SCRAM_H

#include "auth/secret.h"

#define SCRAM_MECHANISM "SCRAM-SHA-256"
#define SCRAM_MECHANISM_PLUS "SCRAM-SHA-256-PLUS"
#define SCRAM_GS2_PLUS "p=tls-server-end-point,,"

enum {
    SCRAM_NONCE_RAW = 18, /* random bytes, as many as PostgreSQL takes */
    SCRAM_NONCE_SIZE = CRYPTO_BASE64_SIZE(SCRAM_NONCE_RAW),
    /* The longest gs2 header we accept and the longest channel hash. */
    SCRAM_BINDING_MAX = sizeof SCRAM_GS2_PLUS - 1 + 64,
};

/* The password that is hashed: SASLprep of it, or the bytes themselves where
 * that fails (not UTF-8, prohibited or unassigned characters). To be given to
 * scram_prep_free(). */
char *scram_prep_new(struct slice password, size_t *n);
void scram_prep_free(char *p, size_t n);

NODISCARD int scram_salted_password(struct slice plain, struct slice salt,
                                    int iterations, uint8_t out[AUTH_KEY_SIZE]);
NODISCARD int scram_client_key(const uint8_t salted[AUTH_KEY_SIZE],
                               uint8_t out[AUTH_KEY_SIZE]);
NODISCARD int scram_server_key(const uint8_t salted[AUTH_KEY_SIZE],
                               uint8_t out[AUTH_KEY_SIZE]);
NODISCARD int scram_stored_key(const uint8_t client_key[AUTH_KEY_SIZE],
                               uint8_t out[AUTH_KEY_SIZE]);

/* ClientKey xor HMAC(StoredKey, message): from ClientKey it makes the proof,
 * from the proof it gives ClientKey back. */
NODISCARD int scram_mask(const uint8_t stored_key[AUTH_KEY_SIZE],
                         struct slice message, const uint8_t in[AUTH_KEY_SIZE],
                         uint8_t out[AUTH_KEY_SIZE]);
NODISCARD int scram_server_signature(const uint8_t server_key[AUTH_KEY_SIZE],
                                     struct slice message,
                                     uint8_t out[AUTH_KEY_SIZE]);

/* Text of a fresh nonce, or of test when that is not empty. */
void scram_make_nonce(struct slice test, char *out, size_t cap);

/* Printable ASCII without the comma, at least one. */
bool scram_is_nonce(struct slice s);

/* base64(gs2 header || channel data), NUL at the end; false when too long. */
enum { SCRAM_BINDING_TEXT_SIZE = CRYPTO_BASE64_SIZE(SCRAM_BINDING_MAX) };
NODISCARD bool scram_binding_text(struct slice gs2, struct slice channel,
                                  char out[SCRAM_BINDING_TEXT_SIZE]);

/* Takes "x=value" and the comma after it off the front of *rest. */
NODISCARD bool scram_read_any(struct slice *rest, char *name,
                              struct slice *value);
/* The same when its name is `name`; else *rest stays as it was. */
NODISCARD bool scram_read_attr(struct slice *rest, char name,
                               struct slice *value);

#endif
