/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/scram.h"

#include <stdlib.h>
#include <stringprep.h>

#include "base/rand.h"

static bool is_ascii(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] >= 0x80)
            return false;
    return true;
}

/* The profile without its normalisation, as PostgreSQL checks a password before
 * it normalises it; the standard would have it the other way round. */
static void make_profile(Stringprep_profile *out, size_t max)
{
    const Stringprep_profile *step = stringprep_saslprep;
    size_t n = 0;
    for (; step->operation; step++) {
        must(n + 1 < max);
        if (step->operation != STRINGPREP_NFKC)
            out[n++] = *step;
    }
    out[n] = *step;
}

/* Mapped and checked in place. False when a character is not allowed or none
 * is left. */
static bool map_and_check(uint32_t *chars, size_t *n)
{
    Stringprep_profile profile[32];
    make_profile(profile, ARRAY_SIZE(profile));
    /* The mappings of SASLprep never make a text longer. */
    return stringprep_4i(chars, n, *n + 1, STRINGPREP_NO_UNASSIGNED, profile) ==
               STRINGPREP_OK &&
           *n > 0;
}

static void free_chars(uint32_t *chars, size_t n)
{
    if (chars)
        mem_wipe(chars, n * sizeof *chars);
    free(chars);
}

/* NULL when the text is not UTF-8 or SASLprep refuses it. */
static char *saslprep(struct slice text, size_t *out_n)
{
    size_t n;
    char *out = NULL;
    uint32_t *chars = stringprep_utf8_to_ucs4(text.p, (ssize_t)text.n, &n);
    if (!chars)
        return NULL;
    size_t left = n;
    if (map_and_check(chars, &left)) {
        uint32_t *normal = stringprep_ucs4_nfkc_normalize(chars, (ssize_t)left);
        size_t normal_n = 0;
        while (normal && normal[normal_n])
            normal_n++;
        if (normal)
            out =
                stringprep_ucs4_to_utf8(normal, (ssize_t)normal_n, NULL, out_n);
        free_chars(normal, normal_n);
    }
    free_chars(chars, n);
    return out;
}

char *scram_prep_new(struct slice password, size_t *n)
{
    /* PostgreSQL leaves ASCII as it is, control characters included. */
    char *prepared = is_ascii(password) || memchr(password.p, 0, password.n)
                         ? NULL
                         : saslprep(password, n);
    if (prepared)
        return prepared;
    *n = password.n;
    return mem_strndup(password.n ? password.p : "", password.n);
}

void scram_prep_free(char *p, size_t n)
{
    if (p)
        mem_wipe(p, n);
    free(p);
}

int scram_salted_password(struct slice plain, struct slice salt, int iterations,
                          uint8_t out[AUTH_KEY_SIZE])
{
    size_t n;
    char *prepared = scram_prep_new(plain, &n);
    int rc = crypto_pbkdf2_sha256(slice_of(prepared, n), salt, iterations, out);
    scram_prep_free(prepared, n);
    return rc;
}

static struct slice key_slice(const uint8_t key[AUTH_KEY_SIZE])
{
    return slice_of(key, AUTH_KEY_SIZE);
}

int scram_client_key(const uint8_t salted[AUTH_KEY_SIZE],
                     uint8_t out[AUTH_KEY_SIZE])
{
    return crypto_hmac_sha256(key_slice(salted), slice_str("Client Key"), out);
}

int scram_server_key(const uint8_t salted[AUTH_KEY_SIZE],
                     uint8_t out[AUTH_KEY_SIZE])
{
    return crypto_hmac_sha256(key_slice(salted), slice_str("Server Key"), out);
}

int scram_stored_key(const uint8_t client_key[AUTH_KEY_SIZE],
                     uint8_t out[AUTH_KEY_SIZE])
{
    return crypto_sha256(key_slice(client_key), out);
}

int scram_mask(const uint8_t stored_key[AUTH_KEY_SIZE], struct slice message,
               const uint8_t in[AUTH_KEY_SIZE], uint8_t out[AUTH_KEY_SIZE])
{
    uint8_t signature[AUTH_KEY_SIZE];
    int rc = crypto_hmac_sha256(key_slice(stored_key), message, signature);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < AUTH_KEY_SIZE; i++)
        out[i] = in[i] ^ signature[i];
    mem_wipe(signature, sizeof signature);
    return 0;
}

int scram_server_signature(const uint8_t server_key[AUTH_KEY_SIZE],
                           struct slice message, uint8_t out[AUTH_KEY_SIZE])
{
    return crypto_hmac_sha256(key_slice(server_key), message, out);
}

void scram_make_nonce(struct slice test, char *out, size_t cap)
{
    uint8_t raw[SCRAM_NONCE_RAW];
    must(cap >= SCRAM_NONCE_SIZE);
    if (test.n) {
        must(slice_copy(test, out, cap));
        return;
    }
    rand_bytes(raw, sizeof raw);
    crypto_base64_encode(slice_of(raw, sizeof raw), out);
}

bool scram_is_nonce(struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] < 0x21 || s.p[i] > 0x7e || s.p[i] == ',')
            return false;
    return s.n > 0;
}

bool scram_binding_text(struct slice gs2, struct slice channel,
                        char out[SCRAM_BINDING_TEXT_SIZE])
{
    uint8_t all[SCRAM_BINDING_MAX];
    if (gs2.n > sizeof all || channel.n > sizeof all - gs2.n)
        return false;
    memcpy(all, gs2.p, gs2.n);
    if (channel.n)
        memcpy(all + gs2.n, channel.p, channel.n);
    crypto_base64_encode(slice_of(all, gs2.n + channel.n), out);
    return true;
}

bool scram_read_any(struct slice *rest, char *name, struct slice *value)
{
    struct slice s = *rest;
    if (s.n < 2 || s.p[1] != '=')
        return false;
    char c = s.p[0];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
        return false;
    const char *comma = memchr(s.p, ',', s.n);
    size_t n = comma ? (size_t)(comma - s.p) : s.n;
    *name = c;
    *value = slice_of(s.p + 2, n - 2);
    n += comma ? 1 : 0;
    *rest = slice_of(s.p + n, s.n - n);
    return true;
}

bool scram_read_attr(struct slice *rest, char name, struct slice *value)
{
    struct slice s = *rest;
    char got;
    if (!scram_read_any(&s, &got, value) || got != name)
        return false;
    *rest = s;
    return true;
}
