/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The dialogues, from the client's side of the wire:
 *
 *   plain       R(3)          p password
 *   md5         R(5) salt     p "md5" md5(md5(password user) salt)
 *   scram       R(10) names   p name, client-first
 *               R(11) server-first   p client-final   R(12) server-final
 *
 * A login that cannot succeed (unknown user, no password, a secret that does
 * not fit the method) is `doomed`: it goes through the whole dialogue, with a
 * salt that depends on the user alone, and fails at the end for the reason kept
 * for the log. The order of SCRAM's checks is PostgreSQL's: form, channel
 * binding, nonce, proof. */
#include "auth/auth_client.h"

#include <stdio.h>
#include <stdlib.h>

#include "auth/scram.h"
#include "base/rand.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

enum auth_client_state {
    STATE_NEW,
    STATE_PASSWORD,   /* plain, PAM, LDAP: wait for the password */
    STATE_MD5,        /* wait for the digest */
    STATE_SASL,       /* wait for the mechanism */
    STATE_SASL_FIRST, /* the mechanism came alone: wait for client-first */
    STATE_SASL_FINAL,
    STATE_DERIVE, /* work: the SCRAM secret of a plain password */
    STATE_VERIFY, /* work: a plain password against a SCRAM secret */
    STATE_EXTERNAL,
    STATE_DONE,
};

enum {
    MD5_SALT_SIZE = 4,
    SCRAM_TEXT_MAX = 4096, /* of an AuthMessage: three capped messages */
};

struct auth_client {
    enum auth_client_state state;
    enum auth_method method;
    struct slice user; /* owned */
    struct auth_secret secret;
    struct auth_secret derived;
    struct auth_keys keys;
    const char *doom; /* NULL, or why it cannot succeed */
    int work_rc;
    int iterations;
    bool is_known, may_work, offers_plus, is_bound;
    uint8_t md5_salt[MD5_SALT_SIZE];
    uint8_t salt[AUTH_SALT_SIZE]; /* for a plain password and for nobody */
    char nonce[64];               /* ours */
    uint8_t binding[64];
    size_t binding_n;
    struct slice gs2;          /* points into first */
    struct slice client_nonce; /* points into first */
    char first[AUTH_SASL_BODY_MAX];
    size_t first_n;
    struct pgbuf message; /* SCRAM's AuthMessage, as far as it is known */
};

static const char *const method_names[] = {
    [AUTH_METHOD_ANY] = "any",
    [AUTH_METHOD_TRUST] = "trust",
    [AUTH_METHOD_PLAIN] = "plain",
    [AUTH_METHOD_MD5] = "md5",
    [AUTH_METHOD_SCRAM] = "scram-sha-256",
    [AUTH_METHOD_CERT] = "cert",
    [AUTH_METHOD_HBA] = "hba",
    [AUTH_METHOD_PAM] = "pam",
    [AUTH_METHOD_LDAP] = "ldap",
    [AUTH_METHOD_PEER] = "peer",
    [AUTH_METHOD_REJECT] = "reject",
};

const char *auth_method_name(enum auth_method m)
{
    return (size_t)m < ARRAY_SIZE(method_names) ? method_names[m] : "?";
}

bool auth_method_parse(struct slice name, enum auth_method *out)
{
    for (size_t i = 0; i < ARRAY_SIZE(method_names); i++) {
        if (slice_is_nocase(name, method_names[i])) {
            *out = (enum auth_method)i;
            return true;
        }
    }
    return false;
}

/* Why this secret cannot serve this method; NULL when it can. */
static const char *find_doom(const struct auth_client *a)
{
    if (!a->is_known)
        return "the user is unknown";
    if (a->secret.kind == AUTH_SECRET_NONE)
        return "the user has no password";
    if (a->method == AUTH_METHOD_SCRAM && a->secret.kind == AUTH_SECRET_MD5)
        return "the user has an md5 secret, which SCRAM cannot use";
    return NULL;
}

static void set_password(struct auth_client *a, struct slice password)
{
    auth_keys_fini(&a->keys);
    a->keys.password = mem_strndup(password.p, password.n);
    a->keys.password_n = password.n;
}

/* What the method asks for: a login that needs none of it is common. */
static void init_random(struct auth_client *a,
                        const struct auth_client_params *p)
{
    if (a->method == AUTH_METHOD_SCRAM) {
        scram_make_nonce(p->test_nonce, a->nonce, sizeof a->nonce);
        must(auth_secret_salt_for(p->process_key, p->user, a->salt) == 0);
    } else if (p->test_salt.n) {
        memcpy(a->md5_salt, p->test_salt.p, MIN(p->test_salt.n, MD5_SALT_SIZE));
    } else if (a->method == AUTH_METHOD_MD5) {
        rand_bytes(a->md5_salt, MD5_SALT_SIZE);
    }
}

struct auth_client *auth_client_new(const struct auth_client_params *p)
{
    struct auth_client *a = mem_new(sizeof *a);
    a->method = p->method;
    a->user =
        slice_of(mem_strndup(p->user.n ? p->user.p : "", p->user.n), p->user.n);
    if (p->secret)
        auth_secret_copy(p->secret, &a->secret);
    if (a->method == AUTH_METHOD_MD5 && a->secret.kind == AUTH_SECRET_SCRAM)
        a->method = AUTH_METHOD_SCRAM;
    a->is_known = p->secret != NULL;
    a->doom = find_doom(a);
    if (p->plain.n && a->secret.is_derived)
        set_password(a, p->plain);
    a->iterations =
        p->scram_iterations > 0 ? p->scram_iterations : AUTH_ITERATIONS_DEFAULT;
    a->may_work = p->may_work;
    a->offers_plus = p->has_tls && p->allow_plus && p->tls_server_end_point.n;
    if (a->offers_plus) {
        must(p->tls_server_end_point.n <= sizeof a->binding);
        a->binding_n = p->tls_server_end_point.n;
        memcpy(a->binding, p->tls_server_end_point.p, a->binding_n);
    }
    init_random(a, p);
    pgbuf_init(&a->message, SCRAM_TEXT_MAX);
    return a;
}

void auth_client_free(struct auth_client *a)
{
    if (!a)
        return;
    auth_secret_fini(&a->secret);
    auth_secret_fini(&a->derived);
    auth_keys_fini(&a->keys);
    pgbuf_wipe(&a->message);
    pgbuf_fini(&a->message);
    free((char *)a->user.p);
    mem_wipe(a, sizeof *a);
    free(a);
}

static struct slice secret_salt(const struct auth_client *a)
{
    if (a->secret.kind == AUTH_SECRET_SCRAM)
        return slice_of(a->secret.salt, a->secret.salt_n);
    return slice_of(a->salt, AUTH_SALT_SIZE);
}

/* --- ends -------------------------------------------------------------- */

static int fail(struct auth_client *a, struct err *e, int code,
                const char *what)
{
    a->state = STATE_DONE;
    auth_keys_fini(&a->keys);
    return err_set(e, code, "%s", what);
}

static int fail_password(struct auth_client *a, struct err *e)
{
    return fail(a, e, ERR_AUTH, a->doom ? a->doom : "wrong password");
}

static int fail_scram(struct auth_client *a, struct err *e, const char *what)
{
    a->state = STATE_DONE;
    auth_keys_fini(&a->keys);
    return err_set(e, ERR_PROTO, "malformed SCRAM message (%s)", what);
}

static int succeed(struct auth_client *a)
{
    a->state = STATE_DONE;
    if (a->secret.kind == AUTH_SECRET_PLAIN)
        set_password(a, auth_secret_text(&a->secret));
    return AUTH_OK;
}

/* --- passwords --------------------------------------------------------- */

/* Of any two lengths in the same time. */
static bool equal_hidden(struct slice a, struct slice b)
{
    uint8_t x[CRYPTO_SHA256_SIZE], y[CRYPTO_SHA256_SIZE];
    if (crypto_sha256(a, x) < 0 || crypto_sha256(b, y) < 0)
        return false;
    return crypto_equal(slice_of(x, sizeof x), slice_of(y, sizeof y));
}

static int read_password(struct auth_client *a, struct slice body,
                         struct slice *out, struct err *e)
{
    if (body.n > AUTH_PASSWORD_BODY_MAX || !body.n ||
        memchr(body.p, 0, body.n) != body.p + body.n - 1)
        return fail(a, e, ERR_PROTO, "invalid password packet size");
    if (body.n == 1)
        return fail(a, e, ERR_AUTH, "empty password returned by client");
    *out = slice_of(body.p, body.n - 1);
    return 0;
}

static int check_md5(struct auth_client *a, struct slice answer, struct err *e)
{
    char stored[AUTH_MD5_SECRET_LEN + 1], expected[AUTH_MD5_SECRET_LEN + 1];
    struct slice text = auth_secret_text(&a->secret);
    int rc = 0;
    if (a->secret.kind == AUTH_SECRET_MD5)
        memcpy(stored, text.p, sizeof stored);
    else
        rc = auth_secret_md5_of(text, a->user, stored);
    if (rc == 0)
        rc = auth_secret_md5_of(slice_of(stored + 3, AUTH_MD5_SECRET_LEN - 3),
                                slice_of(a->md5_salt, MD5_SALT_SIZE), expected);
    if (rc < 0)
        return fail(a, e, ERR_AUTH, "this system's OpenSSL refuses md5");
    bool is_right = crypto_equal(answer, slice_str(expected));
    mem_wipe(stored, sizeof stored);
    mem_wipe(expected, sizeof expected);
    return is_right && !a->doom ? succeed(a) : fail_password(a, e);
}

static int check_plain(struct auth_client *a, struct slice answer,
                       struct err *e)
{
    char md5[AUTH_MD5_SECRET_LEN + 1];
    struct slice text = auth_secret_text(&a->secret);
    if (a->secret.kind == AUTH_SECRET_MD5) {
        if (auth_secret_md5_of(answer, a->user, md5) < 0)
            return fail(a, e, ERR_AUTH, "this system's OpenSSL refuses md5");
        answer = slice_str(md5);
    }
    bool is_right = equal_hidden(answer, text);
    return is_right && !a->doom ? succeed(a) : fail_password(a, e);
}

static int run_work(struct auth_client *a, struct pgbuf *out, struct err *e)
{
    if (a->may_work)
        return AUTH_WORK;
    auth_client_work(a);
    return auth_client_resume(a, out, e);
}

static int on_password(struct auth_client *a, struct slice body,
                       struct pgbuf *out, struct err *e)
{
    struct slice answer;
    int rc = read_password(a, body, &answer, e);
    if (rc < 0)
        return rc;
    if (a->state == STATE_MD5)
        return check_md5(a, answer, e);
    /* In place of what the caller knew: this is what is to be checked. */
    set_password(a, answer);
    if (a->method != AUTH_METHOD_PLAIN) {
        a->state = STATE_EXTERNAL;
        return AUTH_EXTERNAL;
    }
    if (a->secret.kind != AUTH_SECRET_SCRAM)
        return check_plain(a, answer, e);
    a->state = STATE_VERIFY;
    return run_work(a, out, e);
}

/* --- SCRAM ------------------------------------------------------------- */

static void put_mechanisms(struct auth_client *a, struct pgbuf *out)
{
    size_t at = pgbuf_begin(out, PG_MSG_AUTH);
    pgbuf_put_u32(out, PG_AUTH_SASL);
    if (a->offers_plus)
        pgbuf_put_cstr(out, SCRAM_MECHANISM_PLUS);
    pgbuf_put_cstr(out, SCRAM_MECHANISM);
    pgbuf_put_u8(out, 0);
    pgbuf_end(out, at);
}

/* Reads the gs2 header, which ends with its second comma, off *rest. */
static int read_gs2(struct auth_client *a, struct slice *rest, struct err *e)
{
    struct slice s = *rest;
    size_t n = 1;
    char flag = s.n ? s.p[0] : 0;
    if (flag == 'p') {
        if (!a->is_bound)
            return fail_scram(a, e,
                              "channel binding data without "
                              "SCRAM-SHA-256-PLUS");
        const char *comma = memchr(s.p, ',', s.n);
        n = comma ? (size_t)(comma - s.p) : s.n;
        if (!slice_is(slice_of(s.p, n), "p=tls-server-end-point"))
            return fail(a, e, ERR_PROTO,
                        "unsupported SCRAM channel-binding type");
    } else if (flag != 'n' && flag != 'y') {
        return fail_scram(a, e, "unexpected channel-binding flag");
    } else if (a->is_bound) {
        return fail_scram(a, e,
                          "SCRAM-SHA-256-PLUS without channel binding data");
    } else if (flag == 'y' && a->offers_plus) {
        /* It says we did not offer what we did: somebody took it away. */
        return fail(a, e, ERR_AUTHZ, "SCRAM channel binding negotiation error");
    }
    if (s.n < n + 2 || s.p[n] != ',')
        return fail_scram(a, e, "comma expected after channel-binding flag");
    if (s.p[n + 1] == 'a')
        return fail(a, e, ERR_UNSUPPORTED,
                    "client uses authorization identity, but it is not "
                    "supported");
    if (s.p[n + 1] != ',')
        return fail_scram(a, e, "unexpected attribute in client-first-message");
    a->gs2 = slice_of(s.p, n + 2);
    *rest = slice_of(s.p + n + 2, s.n - n - 2);
    return 0;
}

static int read_first(struct auth_client *a, struct err *e)
{
    struct slice rest = slice_of(a->first, a->first_n), ignored;
    char name;
    if (memchr(rest.p, 0, rest.n))
        return fail_scram(a, e, "zero byte");
    int rc = read_gs2(a, &rest, e);
    if (rc < 0)
        return rc;
    pgbuf_put_bytes(&a->message, rest.p, rest.n);
    if (rest.n && rest.p[0] == 'm')
        return fail(a, e, ERR_UNSUPPORTED,
                    "client requires an unsupported SCRAM extension");
    /* The name is that of the start-up packet; this one is ignored. */
    if (!scram_read_attr(&rest, 'n', &ignored))
        return fail_scram(a, e, "attribute \"n\" expected");
    if (!scram_read_attr(&rest, 'r', &a->client_nonce))
        return fail_scram(a, e, "attribute \"r\" expected");
    if (!scram_is_nonce(a->client_nonce))
        return fail_scram(a, e, "non-printable characters in nonce");
    while (rest.n)
        if (!scram_read_any(&rest, &name, &ignored))
            return fail_scram(a, e, "attribute expected");
    return 0;
}

static int put_server_first(struct auth_client *a, struct pgbuf *out,
                            struct err *e)
{
    char salt[CRYPTO_BASE64_SIZE(AUTH_SALT_MAX)];
    char count[16];
    const struct auth_secret *s = a->derived.kind ? &a->derived : &a->secret;
    int iterations =
        s->kind == AUTH_SECRET_SCRAM ? s->iterations : a->iterations;
    crypto_base64_encode(secret_salt(a), salt);
    snprintf(count, sizeof count, "%d", iterations);
    pgbuf_put_bytes(&a->message, ",", 1);
    size_t at = a->message.n;
    pgbuf_put_bytes(&a->message, "r=", 2);
    pgbuf_put_bytes(&a->message, a->client_nonce.p, a->client_nonce.n);
    pgbuf_put_bytes(&a->message, a->nonce, strlen(a->nonce));
    pgbuf_put_bytes(&a->message, ",s=", 3);
    pgbuf_put_bytes(&a->message, salt, strlen(salt));
    pgbuf_put_bytes(&a->message, ",i=", 3);
    pgbuf_put_bytes(&a->message, count, strlen(count));
    if (a->message.failed)
        return fail(a, e, ERR_NOMEM, "no memory for a SCRAM message");
    pg_put_auth_data(out, PG_AUTH_SASL_CONTINUE,
                     slice_of(a->message.p + at, a->message.n - at));
    a->state = STATE_SASL_FINAL;
    return AUTH_MORE;
}

static int on_first(struct auth_client *a, struct slice data, struct pgbuf *out,
                    struct err *e)
{
    if (!data.n || data.n > sizeof a->first)
        return fail_scram(a, e, "empty or too long");
    memcpy(a->first, data.p, data.n);
    a->first_n = data.n;
    int rc = read_first(a, e);
    if (rc < 0)
        return rc;
    if (a->doom || a->secret.kind == AUTH_SECRET_SCRAM)
        return put_server_first(a, out, e);
    a->state = STATE_DERIVE;
    return run_work(a, out, e);
}

static int on_initial(struct auth_client *a, struct slice body,
                      struct pgbuf *out, struct err *e)
{
    struct pgread r = pgread_of(body);
    struct slice mechanism = pgread_cstr(&r);
    int32_t n = pgread_i32(&r);
    struct slice data =
        n >= 0 ? pgread_bytes(&r, (size_t)n) : (struct slice){0};
    if (body.n > AUTH_SASL_BODY_MAX || !pgread_done(&r) || n < -1)
        return fail(a, e, ERR_PROTO, "malformed SASLInitialResponse");
    if (a->offers_plus && slice_is(mechanism, SCRAM_MECHANISM_PLUS))
        a->is_bound = true;
    else if (!slice_is(mechanism, SCRAM_MECHANISM))
        return fail(a, e, ERR_PROTO,
                    "client selected an invalid SASL authentication mechanism");
    if (n >= 0)
        return on_first(a, data, out, e);
    /* A mechanism alone is answered with an empty challenge. */
    pg_put_auth_data(out, PG_AUTH_SASL_CONTINUE, slice_str(""));
    a->state = STATE_SASL_FIRST;
    return AUTH_MORE;
}

struct final_message {
    struct slice binding, nonce, proof, without_proof;
};

static bool read_final(struct slice data, struct final_message *m)
{
    struct slice rest = data;
    char name;
    if (memchr(data.p, 0, data.n) ||
        !scram_read_attr(&rest, 'c', &m->binding) ||
        !scram_read_attr(&rest, 'r', &m->nonce))
        return false;
    do {
        m->without_proof = slice_of(data.p, (size_t)(rest.p - data.p));
        if (!scram_read_any(&rest, &name, &m->proof))
            return false;
    } while (name != 'p');
    /* The comma before p= belongs to neither part. */
    m->without_proof.n--;
    return rest.n == 0;
}

static int check_binding(struct auth_client *a, struct slice got, struct err *e)
{
    char expected[SCRAM_BINDING_TEXT_SIZE];
    struct slice channel = slice_of(a->binding, a->is_bound ? a->binding_n : 0);
    if (scram_binding_text(a->gs2, channel, expected) &&
        slice_is(got, expected))
        return 0;
    if (a->is_bound)
        return fail(a, e, ERR_AUTHZ, "SCRAM channel binding check failed");
    return fail(a, e, ERR_PROTO,
                "unexpected SCRAM channel-binding attribute in "
                "client-final-message");
}

static bool is_nonce(const struct auth_client *a, struct slice got)
{
    size_t n = a->client_nonce.n;
    return got.n > n && slice_eq(slice_of(got.p, n), a->client_nonce) &&
           slice_is(slice_of(got.p + n, got.n - n), a->nonce);
}

static int put_server_final(struct auth_client *a, const struct auth_secret *s,
                            struct pgbuf *out, struct err *e)
{
    uint8_t signature[AUTH_KEY_SIZE];
    char text[2 + CRYPTO_BASE64_SIZE(AUTH_KEY_SIZE)] = "v=";
    if (scram_server_signature(s->server_key, pgbuf_slice(&a->message),
                               signature) < 0)
        return fail(a, e, ERR_AUTH, "this system's OpenSSL refuses HMAC");
    crypto_base64_encode(slice_of(signature, sizeof signature), text + 2);
    pg_put_auth_data(out, PG_AUTH_SASL_FINAL, slice_str(text));
    if (!s->is_derived) {
        a->keys.has_scram = true;
        memcpy(a->keys.server_key, s->server_key, AUTH_KEY_SIZE);
    } else {
        mem_wipe(a->keys.client_key, AUTH_KEY_SIZE);
    }
    return succeed(a);
}

static int check_proof(struct auth_client *a, const uint8_t *proof,
                       struct pgbuf *out, struct err *e)
{
    uint8_t stored[AUTH_KEY_SIZE];
    const struct auth_secret *s = a->derived.kind ? &a->derived : &a->secret;
    int rc = scram_mask(s->stored_key, pgbuf_slice(&a->message), proof,
                        a->keys.client_key);
    if (rc == 0)
        rc = scram_stored_key(a->keys.client_key, stored);
    if (rc < 0)
        return fail(a, e, ERR_AUTH, "this system's OpenSSL refuses HMAC");
    bool is_right = crypto_equal(slice_of(stored, sizeof stored),
                                 slice_of(s->stored_key, AUTH_KEY_SIZE));
    if (!is_right || a->doom) {
        mem_wipe(a->keys.client_key, AUTH_KEY_SIZE);
        return fail_password(a, e);
    }
    return put_server_final(a, s, out, e);
}

static int on_final(struct auth_client *a, struct slice data, struct pgbuf *out,
                    struct err *e)
{
    struct final_message m;
    uint8_t proof[AUTH_KEY_SIZE];
    size_t n;
    if (data.n > AUTH_SASL_BODY_MAX || !data.n || !read_final(data, &m))
        return fail_scram(a, e, "client-final-message");
    if (!crypto_base64_decode(m.proof, proof, sizeof proof, &n) ||
        n != sizeof proof)
        return fail_scram(a, e, "malformed proof in client-final-message");
    int rc = check_binding(a, m.binding, e);
    if (rc < 0)
        return rc;
    if (!is_nonce(a, m.nonce))
        return fail(a, e, ERR_PROTO,
                    "invalid SCRAM response (nonce does not match)");
    pgbuf_put_bytes(&a->message, ",", 1);
    pgbuf_put_bytes(&a->message, m.without_proof.p, m.without_proof.n);
    if (a->message.failed)
        return fail(a, e, ERR_NOMEM, "no memory for a SCRAM message");
    return check_proof(a, proof, out, e);
}

/* --- entry points ------------------------------------------------------ */

int auth_client_start(struct auth_client *a, struct pgbuf *out, struct err *e)
{
    must(a->state == STATE_NEW);
    switch (a->method) {
    case AUTH_METHOD_ANY:
        return succeed(a);
    case AUTH_METHOD_TRUST:
        if (!a->is_known)
            return fail(a, e, ERR_AUTHZ, "\"trust\" authentication failed");
        return succeed(a);
    case AUTH_METHOD_PLAIN:
    case AUTH_METHOD_PAM:
    case AUTH_METHOD_LDAP:
        pg_put_auth(out, PG_AUTH_CLEARTEXT);
        a->state = STATE_PASSWORD;
        return AUTH_MORE;
    case AUTH_METHOD_MD5:
        pg_put_auth_data(out, PG_AUTH_MD5,
                         slice_of(a->md5_salt, MD5_SALT_SIZE));
        a->state = STATE_MD5;
        return AUTH_MORE;
    case AUTH_METHOD_SCRAM:
        put_mechanisms(a, out);
        a->state = STATE_SASL;
        return AUTH_MORE;
    case AUTH_METHOD_CERT:
    case AUTH_METHOD_HBA:
    case AUTH_METHOD_PEER:
    case AUTH_METHOD_REJECT:
        break;
    }
    return fail(a, e, ERR_AUTHZ, "login rejected");
}

int auth_client_step(struct auth_client *a, struct slice body,
                     struct pgbuf *out, struct err *e)
{
    switch (a->state) {
    case STATE_PASSWORD:
    case STATE_MD5:
        return on_password(a, body, out, e);
    case STATE_SASL:
        return on_initial(a, body, out, e);
    case STATE_SASL_FIRST:
        return on_first(a, body, out, e);
    case STATE_SASL_FINAL:
        return on_final(a, body, out, e);
    case STATE_NEW:
    case STATE_DERIVE:
    case STATE_VERIFY:
    case STATE_EXTERNAL:
    case STATE_DONE:
        break;
    }
    return fail(a, e, ERR_PROTO, "unexpected password message");
}

/* The password that came, hashed like the secret: equal ServerKeys mean equal
 * passwords. */
static int hash_like_secret(struct auth_client *a)
{
    if (a->secret.iterations > AUTH_ITERATIONS_MAX)
        return ERR_TOO_LARGE;
    return auth_secret_derive_scram(auth_client_password(a), secret_salt(a),
                                    a->secret.iterations, &a->derived);
}

void auth_client_work(struct auth_client *a)
{
    if (a->state == STATE_VERIFY)
        a->work_rc = hash_like_secret(a);
    else if (a->state == STATE_DERIVE)
        a->work_rc = auth_secret_derive_scram(auth_secret_text(&a->secret),
                                              secret_salt(a), a->iterations,
                                              &a->derived);
}

static int end_verify(struct auth_client *a, struct err *e)
{
    bool is_right = crypto_equal(slice_of(a->derived.server_key, AUTH_KEY_SIZE),
                                 slice_of(a->secret.server_key, AUTH_KEY_SIZE));
    auth_secret_fini(&a->derived);
    return is_right && !a->doom ? succeed(a) : fail_password(a, e);
}

int auth_client_resume(struct auth_client *a, struct pgbuf *out, struct err *e)
{
    must(a->state == STATE_VERIFY || a->state == STATE_DERIVE);
    if (a->work_rc == ERR_TOO_LARGE)
        return fail(a, e, ERR_AUTH,
                    "the user's SCRAM secret has too many iterations");
    if (a->work_rc < 0)
        return fail(a, e, ERR_AUTH, "this system's OpenSSL refuses PBKDF2");
    return a->state == STATE_VERIFY ? end_verify(a, e)
                                    : put_server_first(a, out, e);
}

enum auth_method auth_client_method(const struct auth_client *a)
{
    return a->method;
}

size_t auth_client_body_max(const struct auth_client *a)
{
    return a->method == AUTH_METHOD_SCRAM ? AUTH_SASL_BODY_MAX
                                          : AUTH_PASSWORD_BODY_MAX;
}

bool auth_client_is_bound(const struct auth_client *a)
{
    return a->is_bound;
}

struct slice auth_client_password(const struct auth_client *a)
{
    return slice_of(a->keys.password ? a->keys.password : "",
                    a->keys.password_n);
}

const struct auth_keys *auth_client_keys(const struct auth_client *a)
{
    return &a->keys;
}

const struct auth_secret *auth_client_derived(const struct auth_client *a)
{
    return a->derived.kind == AUTH_SECRET_SCRAM ? &a->derived : NULL;
}
