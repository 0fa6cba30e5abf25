/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The dialogues, from PostgreSQL's side of the wire:
 *
 *   trust    R(0)
 *   plain    R(3)          p password        R(0)
 *   md5      R(5) salt     p digest          R(0)
 *   scram    R(10) names   p client-first
 *            R(11) server-first   p client-final   R(12) server-final   R(0)
 *
 * It fails when the server asks for what we have no secret for, when it ends
 * SCRAM without its own proof, when it asks twice, and, with channel binding
 * required, when anything but SCRAM-SHA-256-PLUS would do. */
#include "auth/auth_server.h"

#include <stdio.h>
#include <stdlib.h>

#include "auth/auth_cache.h"
#include "auth/scram.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

enum auth_server_state {
    STATE_START,
    STATE_ANSWERED, /* password or digest sent: Ok may come */
    STATE_FIRST,    /* client-first sent: R(11) must come */
    STATE_WORK,
    STATE_FINAL,    /* client-final sent: R(12) must come */
    STATE_VERIFIED, /* the server proved itself: Ok must come */
    STATE_DONE,
};

enum {
    SCRAM_TEXT_MAX = 8192, /* of an AuthMessage: three capped messages */
    SERVER_SALT_MAX = 1024,
};

struct auth_server {
    enum auth_server_state state;
    const char *method;
    struct slice user;     /* owned */
    struct slice password; /* owned; p == NULL: unknown */
    bool has_md5, has_keys;
    char md5[AUTH_MD5_SECRET_LEN + 1];
    struct auth_keys keys;
    bool may_work, has_tls, is_bound;
    enum auth_channel_binding channel_binding;
    uint8_t binding[64];
    size_t binding_n;
    struct auth_cache *cache;
    const char *gs2;
    char nonce[64];           /* ours */
    size_t nonce_at, nonce_n; /* the whole nonce, within message */
    uint8_t salt[SERVER_SALT_MAX];
    size_t salt_n;
    int iterations;
    int work_rc;
    uint8_t salted[AUTH_KEY_SIZE];
    struct pgbuf message; /* SCRAM's AuthMessage, as far as it is known */
};

static struct slice copy_slice(struct slice s)
{
    return slice_of(mem_strndup(s.n ? s.p : "", s.n), s.n);
}

struct auth_server *auth_server_new(const struct auth_server_params *p)
{
    struct auth_server *a = mem_new(sizeof *a);
    a->method = "trust";
    a->user = copy_slice(p->user);
    if (p->password.n)
        a->password = copy_slice(p->password);
    if (p->md5.p && p->md5.n == AUTH_MD5_SECRET_LEN)
        a->has_md5 = slice_copy(p->md5, a->md5, sizeof a->md5);
    if (p->keys && p->keys->has_scram) {
        auth_keys_copy(p->keys, &a->keys);
        a->has_keys = true;
    }
    a->may_work = p->may_work;
    a->has_tls = p->has_tls;
    a->channel_binding = p->channel_binding;
    if (p->has_tls && p->tls_server_end_point.n) {
        must(p->tls_server_end_point.n <= sizeof a->binding);
        a->binding_n = p->tls_server_end_point.n;
        memcpy(a->binding, p->tls_server_end_point.p, a->binding_n);
    }
    a->cache = p->cache;
    scram_make_nonce(p->test_nonce, a->nonce, sizeof a->nonce);
    pgbuf_init(&a->message, SCRAM_TEXT_MAX);
    return a;
}

void auth_server_free(struct auth_server *a)
{
    if (!a)
        return;
    if (a->password.p)
        mem_wipe((char *)a->password.p, a->password.n);
    free((char *)a->password.p);
    free((char *)a->user.p);
    auth_keys_fini(&a->keys);
    pgbuf_wipe(&a->message);
    pgbuf_fini(&a->message);
    mem_wipe(a, sizeof *a);
    free(a);
}

const char *auth_server_method(const struct auth_server *a)
{
    return a->method;
}

static int fail(struct auth_server *a, struct err *e, int code,
                const char *what)
{
    a->state = STATE_DONE;
    return err_set(e, code, "%s", what);
}

/* The server asks for a->method and there is nothing to answer it with. */
static int fail_missing(struct auth_server *a, struct err *e)
{
    const char *known = "nothing";
    if (a->has_keys)
        known = "only a SCRAM key";
    else if (a->has_md5)
        known = "only an md5 hash";
    a->state = STATE_DONE;
    return err_set(e, ERR_AUTH,
                   "server asks for %s but %s is known for user \"" SLICE_FMT
                   "\"; put its password in auth_file or in password=",
                   a->method, known, SLICE_ARG(a->user));
}

/* --- passwords --------------------------------------------------------- */

static int on_cleartext(struct auth_server *a, struct pgbuf *out, struct err *e)
{
    if (!a->password.p)
        return fail_missing(a, e);
    pg_put_password(out, a->password);
    a->state = STATE_ANSWERED;
    return AUTH_MORE;
}

static int on_md5(struct auth_server *a, struct slice salt, struct pgbuf *out,
                  struct err *e)
{
    char answer[AUTH_MD5_SECRET_LEN + 1];
    int rc = 0;
    if (salt.n != 4)
        return fail(a, e, ERR_PROTO, "server sent a malformed md5 request");
    if (!a->password.p && !a->has_md5)
        return fail_missing(a, e);
    if (!a->has_md5)
        rc = auth_secret_md5_of(a->password, a->user, a->md5);
    if (rc == 0)
        rc = auth_secret_md5_of(slice_of(a->md5 + 3, AUTH_MD5_SECRET_LEN - 3),
                                salt, answer);
    if (rc < 0)
        return fail(a, e, ERR_UNSUPPORTED,
                    "server asks for md5, which this system's OpenSSL refuses");
    pg_put_password(out, slice_str(answer));
    mem_wipe(answer, sizeof answer);
    a->state = STATE_ANSWERED;
    return AUTH_MORE;
}

/* --- SCRAM ------------------------------------------------------------- */

/* Which of our two mechanisms the server's list has. */
static bool read_mechanisms(struct slice list, bool *has_scram, bool *has_plus)
{
    struct pgread r = pgread_of(list);
    *has_scram = *has_plus = false;
    for (;;) {
        struct slice name = pgread_cstr(&r);
        if (!name.n)
            return pgread_done(&r);
        *has_scram = *has_scram || slice_is(name, SCRAM_MECHANISM);
        *has_plus = *has_plus || slice_is(name, SCRAM_MECHANISM_PLUS);
    }
}

/* Picks mechanism and gs2 header; 0 or a failure. */
static int choose_mechanism(struct auth_server *a, struct slice list,
                            struct err *e)
{
    bool has_scram, has_plus;
    bool can_bind = a->binding_n && a->channel_binding != AUTH_BINDING_DISABLE;
    if (!read_mechanisms(list, &has_scram, &has_plus))
        return fail(a, e, ERR_PROTO, "server sent a malformed SASL request");
    if (has_plus && !a->has_tls)
        return fail(a, e, ERR_PROTO,
                    "server offers SCRAM-SHA-256-PLUS without TLS");
    a->is_bound = has_plus && can_bind;
    if (!a->is_bound && a->channel_binding == AUTH_BINDING_REQUIRE)
        return fail(a, e, ERR_AUTH,
                    has_plus ? "channel binding is required but the server's "
                               "certificate allows none"
                             : "channel binding is required but the server "
                               "does not offer SCRAM-SHA-256-PLUS");
    if (!a->is_bound && !has_scram)
        return fail(a, e, ERR_UNSUPPORTED,
                    "none of the server's SASL mechanisms is supported; "
                    "SCRAM-SHA-256 is");
    if (a->is_bound)
        a->method = "scram-sha-256-plus";
    a->gs2 = a->is_bound ? SCRAM_GS2_PLUS : can_bind ? "y,," : "n,,";
    return 0;
}

static void put(struct pgbuf *b, const char *s)
{
    pgbuf_put_bytes(b, s, strlen(s));
}

static int on_sasl(struct auth_server *a, struct slice list, struct pgbuf *out,
                   struct err *e)
{
    int rc = choose_mechanism(a, list, e);
    if (rc < 0)
        return rc;
    if (!a->password.p && !a->has_keys)
        return fail_missing(a, e);
    char first[sizeof SCRAM_GS2_PLUS + 8 + sizeof a->nonce];
    size_t gs2_n = strlen(a->gs2);
    /* The name is that of the start-up packet, as with libpq. */
    int n = snprintf(first, sizeof first, "%sn=,r=%s", a->gs2, a->nonce);
    put(&a->message, first + gs2_n);
    pg_put_sasl_initial(out,
                        a->is_bound ? SCRAM_MECHANISM_PLUS : SCRAM_MECHANISM,
                        slice_of(first, (size_t)n));
    a->state = STATE_FIRST;
    return AUTH_MORE;
}

static int fail_scram(struct auth_server *a, struct err *e, const char *what)
{
    a->state = STATE_DONE;
    return err_set(e, ERR_PROTO, "malformed SCRAM message from server (%s)",
                   what);
}

static int read_server_first(struct auth_server *a, struct slice data,
                             struct err *e)
{
    struct slice rest = data, nonce, salt, count;
    int64_t iterations;
    size_t n = strlen(a->nonce);
    if (!scram_read_attr(&rest, 'r', &nonce) || !scram_is_nonce(nonce))
        return fail_scram(a, e, "nonce expected");
    if (nonce.n <= n || memcmp(nonce.p, a->nonce, n) != 0)
        return fail(a, e, ERR_PROTO,
                    "invalid SCRAM response from server (nonce mismatch)");
    if (!scram_read_attr(&rest, 's', &salt) || !salt.n ||
        !crypto_base64_decode(salt, a->salt, sizeof a->salt, &a->salt_n))
        return fail_scram(a, e, "salt");
    if (!scram_read_attr(&rest, 'i', &count) ||
        !slice_to_i64(count, &iterations) || iterations < 1 ||
        iterations > INT32_MAX)
        return fail_scram(a, e, "iteration count");
    if (rest.n || data.p[data.n - 1] == ',')
        return fail_scram(a, e, "garbage at the end");
    a->iterations = (int)iterations;
    a->nonce_at = (size_t)(nonce.p - a->message.p);
    a->nonce_n = nonce.n;
    return 0;
}

static struct auth_cache_input cache_input(const struct auth_server *a)
{
    return (struct auth_cache_input){a->password, slice_of(a->salt, a->salt_n),
                                     a->iterations};
}

/* With password: SaltedPassword to both keys. Wins over keys that a client's
 * login gave, which may be of an older password. */
static int make_keys(struct auth_server *a)
{
    if (!a->password.p)
        return 0;
    int rc = scram_client_key(a->salted, a->keys.client_key);
    if (rc == 0)
        rc = scram_server_key(a->salted, a->keys.server_key);
    return rc;
}

static int put_client_final(struct auth_server *a, struct pgbuf *out,
                            struct err *e)
{
    char binding[SCRAM_BINDING_TEXT_SIZE];
    char proof_text[CRYPTO_BASE64_SIZE(AUTH_KEY_SIZE)];
    uint8_t stored[AUTH_KEY_SIZE], proof[AUTH_KEY_SIZE];
    struct slice channel = slice_of(a->binding, a->is_bound ? a->binding_n : 0);
    char nonce[AUTH_SERVER_BODY_MAX];
    must(scram_binding_text(slice_str(a->gs2), channel, binding));
    memcpy(nonce, a->message.p + a->nonce_at, a->nonce_n);
    pgbuf_put_bytes(&a->message, ",", 1);
    size_t at = a->message.n;
    put(&a->message, "c=");
    put(&a->message, binding);
    put(&a->message, ",r=");
    pgbuf_put_bytes(&a->message, nonce, a->nonce_n);
    int rc = a->message.failed ? ERR_NOMEM : make_keys(a);
    if (rc == 0)
        rc = scram_stored_key(a->keys.client_key, stored);
    if (rc == 0)
        rc = scram_mask(stored, pgbuf_slice(&a->message), a->keys.client_key,
                        proof);
    if (rc < 0)
        return fail(a, e, rc, "cannot make a SCRAM proof");
    crypto_base64_encode(slice_of(proof, sizeof proof), proof_text);
    size_t msg = pgbuf_begin(out, PG_MSG_SASL_RESPONSE);
    pgbuf_put_bytes(out, a->message.p + at, a->message.n - at);
    put(out, ",p=");
    put(out, proof_text);
    pgbuf_end(out, msg);
    mem_wipe(stored, sizeof stored);
    a->state = STATE_FINAL;
    return AUTH_MORE;
}

static int on_continue(struct auth_server *a, struct slice data,
                       struct pgbuf *out, struct err *e)
{
    /* Parsed where it is kept, so that the nonce outlives the message. */
    pgbuf_put_bytes(&a->message, ",", 1);
    size_t at = a->message.n;
    pgbuf_put_bytes(&a->message, data.p, data.n);
    if (a->message.failed)
        return fail(a, e, ERR_NOMEM, "no memory for a SCRAM message");
    int rc = read_server_first(a, slice_of(a->message.p + at, data.n), e);
    if (rc < 0)
        return rc;
    struct auth_cache_input in = cache_input(a);
    if (!a->password.p || auth_cache_find(a->cache, &in, a->salted))
        return put_client_final(a, out, e);
    if (a->iterations > AUTH_SERVER_ITERATIONS_MAX) {
        a->state = STATE_DONE;
        return err_set(e, ERR_TOO_LARGE,
                       "server asks for %d SCRAM iterations, more than the %d "
                       "that are done for it",
                       a->iterations, AUTH_SERVER_ITERATIONS_MAX);
    }
    a->state = STATE_WORK;
    if (a->may_work)
        return AUTH_WORK;
    auth_server_work(a);
    return auth_server_resume(a, out, e);
}

void auth_server_work(struct auth_server *a)
{
    a->work_rc = scram_salted_password(
        a->password, slice_of(a->salt, a->salt_n), a->iterations, a->salted);
}

int auth_server_resume(struct auth_server *a, struct pgbuf *out, struct err *e)
{
    must(a->state == STATE_WORK);
    if (a->work_rc < 0)
        return fail(a, e, a->work_rc, "cannot hash the password for SCRAM");
    struct auth_cache_input in = cache_input(a);
    auth_cache_put(a->cache, &in, a->salted);
    return put_client_final(a, out, e);
}

static int on_sasl_final(struct auth_server *a, struct slice data,
                         struct err *e)
{
    uint8_t expected[AUTH_KEY_SIZE], got[AUTH_KEY_SIZE];
    struct slice rest = data, value;
    size_t n;
    if (scram_read_attr(&rest, 'e', &value)) {
        a->state = STATE_DONE;
        return err_set(e, ERR_AUTH, "server refused the SCRAM login: %.*s",
                       (int)MIN(value.n, (size_t)100),
                       scram_is_nonce(value) ? value.p : "?");
    }
    if (!scram_read_attr(&rest, 'v', &value) || rest.n ||
        !crypto_base64_decode(value, got, sizeof got, &n) || n != sizeof got)
        return fail_scram(a, e, "server signature");
    int rc = scram_server_signature(a->keys.server_key,
                                    pgbuf_slice(&a->message), expected);
    if (rc < 0 || !crypto_equal(slice_of(got, sizeof got),
                                slice_of(expected, sizeof expected)))
        return fail(a, e, ERR_AUTH,
                    "invalid server signature: this server does not know the "
                    "user's secret");
    a->state = STATE_VERIFIED;
    return AUTH_MORE;
}

/* --- entry point ------------------------------------------------------- */

static int on_ok(struct auth_server *a, struct err *e)
{
    if (a->state == STATE_FIRST || a->state == STATE_FINAL)
        return fail(a, e, ERR_AUTH,
                    "server ended the SCRAM login without proving itself");
    if (a->channel_binding == AUTH_BINDING_REQUIRE && !a->is_bound)
        return fail(a, e, ERR_AUTH,
                    "channel binding is required but the server let us in "
                    "without it");
    a->state = STATE_DONE;
    return AUTH_OK;
}

static const struct {
    uint32_t code;
    const char *name;
} methods[] = {
    {PG_AUTH_KERBEROS_V5, "kerberos"},
    {PG_AUTH_CLEARTEXT, "password"},
    {PG_AUTH_MD5, "md5"},
    {PG_AUTH_GSS, "gss"},
    {PG_AUTH_SSPI, "sspi"},
    {PG_AUTH_SASL, "scram-sha-256"},
};

static const char *method_name(uint32_t code)
{
    for (size_t i = 0; i < ARRAY_SIZE(methods); i++)
        if (methods[i].code == code)
            return methods[i].name;
    return NULL;
}

static int on_request(struct auth_server *a, uint32_t code, struct slice data,
                      struct pgbuf *out, struct err *e)
{
    const char *name = method_name(code);
    if (a->state != STATE_START)
        return fail(a, e, ERR_PROTO, "server asks for a second authentication");
    a->method = name ? name : "an unknown method";
    if (code != PG_AUTH_SASL && a->channel_binding == AUTH_BINDING_REQUIRE) {
        a->state = STATE_DONE;
        return err_set(e, ERR_AUTH,
                       "channel binding is required but the server asks for %s",
                       a->method);
    }
    if (code == PG_AUTH_CLEARTEXT && !data.n)
        return on_cleartext(a, out, e);
    if (code == PG_AUTH_MD5)
        return on_md5(a, data, out, e);
    if (code == PG_AUTH_SASL)
        return on_sasl(a, data, out, e);
    a->state = STATE_DONE;
    return err_set(e, ERR_UNSUPPORTED,
                   "server asks for %s (authentication code %u), which is not "
                   "supported; use scram-sha-256, md5, password, cert or trust",
                   a->method, code);
}

int auth_server_step(struct auth_server *a, struct slice body,
                     struct pgbuf *out, struct err *e)
{
    struct pgread r = pgread_of(body);
    uint32_t code = pgread_u32(&r);
    struct slice data = pgread_rest(&r);
    if (!pgread_done(&r) || body.n > AUTH_SERVER_BODY_MAX ||
        a->state == STATE_DONE || a->state == STATE_WORK)
        return fail(a, e, ERR_PROTO,
                    "unexpected authentication message from server");
    if (code == PG_AUTH_OK)
        return on_ok(a, e);
    if (code == PG_AUTH_SASL_CONTINUE && a->state == STATE_FIRST)
        return on_continue(a, data, out, e);
    if (code == PG_AUTH_SASL_FINAL && a->state == STATE_FINAL)
        return on_sasl_final(a, data, e);
    if (code == PG_AUTH_SASL_CONTINUE || code == PG_AUTH_SASL_FINAL)
        return fail(a, e, ERR_PROTO, "SCRAM message from server out of turn");
    return on_request(a, code, data, out, e);
}
