/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What is known of a user's password: a line of auth_file or a value of
 * pg_authid, and the SCRAM keys made from it. A secret owns its bytes and wipes
 * them. Not shared between threads while it changes; reading is free. */
#ifndef AUTH_SECRET_H
#define AUTH_SECRET_H

#include "auth/crypto.h"
#include "base/err.h"

enum auth_secret_kind {
    AUTH_SECRET_NONE, /* empty: no password fits */
    AUTH_SECRET_PLAIN,
    AUTH_SECRET_MD5,
    AUTH_SECRET_SCRAM,
};

enum {
    AUTH_KEY_SIZE = CRYPTO_SHA256_SIZE,
    AUTH_SECRET_TEXT_MAX = 65535, /* bytes of a secret, as PgBouncer's */
    AUTH_SALT_MAX = 128,      /* bytes of a SCRAM salt; PostgreSQL makes 16 */
    AUTH_SALT_SIZE = 16,      /* of the salts made here */
    AUTH_MD5_SECRET_LEN = 35, /* "md5" and 32 digits */
    AUTH_ITERATIONS_DEFAULT = 4096,
    AUTH_ITERATIONS_MAX = 10000000,
    /* A server tells us how many; half a second of a processor's time is the
     * most that we spend on its word. PostgreSQL's default is 4096. */
    AUTH_SERVER_ITERATIONS_MAX = 1000000,
};

struct auth_secret {
    enum auth_secret_kind kind;
    char *text; /* PLAIN, MD5: the value, NUL at text[text_n] */
    size_t text_n;
    /* SCRAM: */
    bool is_derived; /* made here from a plain password: its salt is ours, so
                      * the keys of its dialogue fit no PostgreSQL */
    int iterations;
    size_t salt_n;
    uint8_t salt[AUTH_SALT_MAX];
    uint8_t stored_key[AUTH_KEY_SIZE];
    uint8_t server_key[AUTH_KEY_SIZE];
};

/* Takes any value: "md5" and 32 lower-case hex digits is MD5,
 * "SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey" is SCRAM, nothing is
 * NONE, all else PLAIN, as in PostgreSQL. Fails on more than
 * AUTH_SECRET_TEXT_MAX bytes, a NUL byte, or a SCRAM secret beyond our caps.
 * On failure *out is NONE. */
NODISCARD int auth_secret_parse(struct slice value, struct auth_secret *out);

void auth_secret_copy(const struct auth_secret *from, struct auth_secret *to);
bool auth_secret_equal(const struct auth_secret *a,
                       const struct auth_secret *b);

/* Wipes, frees, leaves NONE. */
void auth_secret_fini(struct auth_secret *s);

struct slice auth_secret_text(const struct auth_secret *s);

/* The secret of a plain password: SASLprep and PBKDF2. Slow: for a helper
 * thread, its result for a cache. */
NODISCARD int auth_secret_derive_scram(struct slice plain, struct slice salt,
                                       int iterations, struct auth_secret *out);

/* The salt that user sees when there is none of PostgreSQL's: that of a plain
 * password and that of an unknown user are the same function of a key of the
 * process (random, kept while it runs), so that they cannot be told apart and
 * a derived secret can be cached. */
NODISCARD int auth_secret_salt_for(struct slice process_key, struct slice user,
                                   uint8_t salt[AUTH_SALT_SIZE]);

/* "SCRAM-SHA-256$..." of a SCRAM secret. */
enum { AUTH_SCRAM_TEXT_SIZE = 512 };
size_t auth_secret_scram_text(const struct auth_secret *s,
                              char out[AUTH_SCRAM_TEXT_SIZE]);

/* "md5..." of a plain password. */
NODISCARD int auth_secret_md5_of(struct slice plain, struct slice user,
                                 char out[AUTH_MD5_SECRET_LEN + 1]);

/* What a client's login proves and a server's login can use. Owns its bytes. */
struct auth_keys {
    bool has_scram;
    uint8_t client_key[AUTH_KEY_SIZE];
    uint8_t server_key[AUTH_KEY_SIZE];
    char *password; /* NULL: not known */
    size_t password_n;
};

void auth_keys_copy(const struct auth_keys *from, struct auth_keys *to);
void auth_keys_fini(struct auth_keys *k); /* wipes, frees, leaves empty */

#endif
