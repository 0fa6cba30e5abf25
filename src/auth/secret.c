/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/secret.h"

#include <stdio.h>
#include <stdlib.h>

#include "auth/scram.h"

static bool is_md5(struct slice v)
{
    if (v.n != AUTH_MD5_SECRET_LEN || memcmp(v.p, "md5", 3) != 0)
        return false;
    for (size_t i = 3; i < v.n; i++)
        if (!strchr("0123456789abcdef", v.p[i]) || !v.p[i])
            return false;
    return true;
}

/* Cuts *rest at the first c; false when there is none. */
static bool cut(struct slice *rest, char c, struct slice *head)
{
    const char *at = rest->n ? memchr(rest->p, c, rest->n) : NULL;
    if (!at)
        return false;
    *head = slice_of(rest->p, (size_t)(at - rest->p));
    *rest = slice_of(at + 1, rest->n - head->n - 1);
    return true;
}

static bool decode_key(struct slice text, uint8_t out[AUTH_KEY_SIZE])
{
    size_t n;
    return crypto_base64_decode(text, out, AUTH_KEY_SIZE, &n) &&
           n == AUTH_KEY_SIZE;
}

/* 1: a SCRAM secret; 0: none; negative: one with too long a salt. */
static int parse_scram(struct slice v, struct auth_secret *out)
{
    struct slice scheme, iterations, salt, stored;
    int64_t count;
    if (!cut(&v, '$', &scheme) || !slice_is(scheme, SCRAM_MECHANISM) ||
        !cut(&v, ':', &iterations) || !cut(&v, '$', &salt) ||
        !cut(&v, ':', &stored))
        return 0;
    if (!slice_to_i64(iterations, &count) || count < 1 || count > INT32_MAX)
        return 0;
    if (!decode_key(stored, out->stored_key) ||
        !decode_key(v, out->server_key) || !salt.n)
        return 0;
    if (salt.n >= CRYPTO_BASE64_SIZE(AUTH_SALT_MAX))
        return ERR_TOO_LARGE;
    if (!crypto_base64_decode(salt, out->salt, AUTH_SALT_MAX, &out->salt_n))
        return 0;
    out->iterations = (int)count;
    return 1;
}

int auth_secret_parse(struct slice value, struct auth_secret *out)
{
    memset(out, 0, sizeof *out);
    if (value.n > AUTH_SECRET_TEXT_MAX)
        return ERR_TOO_LARGE;
    if (!value.n)
        return 0;
    if (memchr(value.p, 0, value.n))
        return ERR_SYNTAX;
    int rc = parse_scram(value, out);
    if (rc > 0) {
        out->kind = AUTH_SECRET_SCRAM;
        return 0;
    }
    memset(out, 0, sizeof *out);
    if (rc < 0)
        return rc;
    out->kind = is_md5(value) ? AUTH_SECRET_MD5 : AUTH_SECRET_PLAIN;
    out->text = mem_strndup(value.p, value.n);
    out->text_n = value.n;
    return 0;
}

void auth_secret_copy(const struct auth_secret *from, struct auth_secret *to)
{
    *to = *from;
    if (from->text)
        to->text = mem_strndup(from->text, from->text_n);
}

bool auth_secret_equal(const struct auth_secret *a, const struct auth_secret *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind != AUTH_SECRET_SCRAM)
        return crypto_equal(auth_secret_text(a), auth_secret_text(b));
    return a->iterations == b->iterations && a->is_derived == b->is_derived &&
           crypto_equal(slice_of(a->salt, a->salt_n),
                        slice_of(b->salt, b->salt_n)) &&
           crypto_equal(slice_of(a->stored_key, AUTH_KEY_SIZE),
                        slice_of(b->stored_key, AUTH_KEY_SIZE)) &&
           crypto_equal(slice_of(a->server_key, AUTH_KEY_SIZE),
                        slice_of(b->server_key, AUTH_KEY_SIZE));
}

static void free_text(char *text, size_t n)
{
    if (text)
        mem_wipe(text, n);
    free(text);
}

void auth_secret_fini(struct auth_secret *s)
{
    free_text(s->text, s->text_n);
    mem_wipe(s, sizeof *s);
}

struct slice auth_secret_text(const struct auth_secret *s)
{
    return slice_of(s->text ? s->text : "", s->text_n);
}

int auth_secret_derive_scram(struct slice plain, struct slice salt,
                             int iterations, struct auth_secret *out)
{
    uint8_t salted[AUTH_KEY_SIZE], client_key[AUTH_KEY_SIZE];
    memset(out, 0, sizeof *out);
    if (!salt.n || salt.n > AUTH_SALT_MAX || plain.n > AUTH_SECRET_TEXT_MAX)
        return ERR_TOO_LARGE;
    int rc = scram_salted_password(plain, salt, iterations, salted);
    if (rc == 0)
        rc = scram_client_key(salted, client_key);
    if (rc == 0)
        rc = scram_stored_key(client_key, out->stored_key);
    if (rc == 0)
        rc = scram_server_key(salted, out->server_key);
    mem_wipe(salted, sizeof salted);
    mem_wipe(client_key, sizeof client_key);
    if (rc < 0) {
        auth_secret_fini(out);
        return rc;
    }
    out->kind = AUTH_SECRET_SCRAM;
    out->is_derived = true;
    out->iterations = iterations;
    out->salt_n = salt.n;
    memcpy(out->salt, salt.p, salt.n);
    return 0;
}

int auth_secret_salt_for(struct slice process_key, struct slice user,
                         uint8_t salt[AUTH_SALT_SIZE])
{
    uint8_t sum[CRYPTO_SHA256_SIZE];
    int rc = crypto_hmac_sha256(process_key, user, sum);
    if (rc == 0)
        memcpy(salt, sum, AUTH_SALT_SIZE);
    return rc;
}

size_t auth_secret_scram_text(const struct auth_secret *s,
                              char out[AUTH_SCRAM_TEXT_SIZE])
{
    char salt[CRYPTO_BASE64_SIZE(AUTH_SALT_MAX)];
    char stored[CRYPTO_BASE64_SIZE(AUTH_KEY_SIZE)];
    char server[CRYPTO_BASE64_SIZE(AUTH_KEY_SIZE)];
    must(s->kind == AUTH_SECRET_SCRAM);
    crypto_base64_encode(slice_of(s->salt, s->salt_n), salt);
    crypto_base64_encode(slice_of(s->stored_key, AUTH_KEY_SIZE), stored);
    crypto_base64_encode(slice_of(s->server_key, AUTH_KEY_SIZE), server);
    return (size_t)snprintf(out, AUTH_SCRAM_TEXT_SIZE,
                            SCRAM_MECHANISM "$%d:%s$%s:%s", s->iterations, salt,
                            stored, server);
}

int auth_secret_md5_of(struct slice plain, struct slice user,
                       char out[AUTH_MD5_SECRET_LEN + 1])
{
    memcpy(out, "md5", 4);
    return crypto_md5_hex(plain, user, out + 3);
}

void auth_keys_copy(const struct auth_keys *from, struct auth_keys *to)
{
    *to = *from;
    if (from->password)
        to->password = mem_strndup(from->password, from->password_n);
}

void auth_keys_fini(struct auth_keys *k)
{
    free_text(k->password, k->password_n);
    mem_wipe(k, sizeof *k);
}
