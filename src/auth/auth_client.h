/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Verifying a client: the pooler as the PostgreSQL server. One object a login;
 * it belongs to the worker of its client. Bytes in, bytes out.
 *
 *   start -> MORE (a request is in out; wait for a 'p' message)
 *         -> OK   (any, trust)
 *         -> < 0  (reject; trust for an unknown user)
 *   step  -> MORE, OK, < 0; EXTERNAL (PAM, LDAP); WORK (slow hashing)
 *   WORK: auth_client_work() on any thread while nobody else touches the
 *         object, then auth_client_resume(), which answers like step.
 *
 * AuthenticationOk and ErrorResponse are the caller's to write. A failure with
 * ERR_AUTH is told to the client as `password authentication failed for user
 * "x"`; its text is for the log. Failures with another code (ERR_PROTO,
 * ERR_AUTHZ, ERR_UNSUPPORTED) carry a text that the client may read too.
 * An unknown user walks through the same dialogue and fails at its end. */
#ifndef AUTH_AUTH_CLIENT_H
#define AUTH_AUTH_CLIENT_H

#include "auth/secret.h"

struct pgbuf;

enum auth_method {
    AUTH_METHOD_ANY,
    AUTH_METHOD_TRUST,
    AUTH_METHOD_PLAIN,
    AUTH_METHOD_MD5,
    AUTH_METHOD_SCRAM,
    AUTH_METHOD_CERT, /* decided by the caller with auth/cert.h */
    AUTH_METHOD_HBA,  /* resolved by the caller to one of the others */
    AUTH_METHOD_PAM,
    AUTH_METHOD_LDAP,
    AUTH_METHOD_PEER, /* decided by the caller */
    AUTH_METHOD_REJECT,
};

/* As in the ini file: "scram-sha-256". */
const char *auth_method_name(enum auth_method m);
NODISCARD bool auth_method_parse(struct slice name, enum auth_method *out);

enum auth_result {
    AUTH_OK = 0,
    AUTH_MORE = 1,     /* send out, wait for the peer */
    AUTH_WORK = 2,     /* run x_work() elsewhere, then x_resume() */
    AUTH_EXTERNAL = 3, /* check auth_client_password() by PAM or LDAP */
};

enum {
    AUTH_PASSWORD_BODY_MAX = 65536, /* body of a 'p' message */
    AUTH_SASL_BODY_MAX = 1024,      /* the same within SASL, as PostgreSQL */
};

struct auth_client_params {
    enum auth_method method;
    struct slice user;
    /* NULL: unknown user. Copied. For SCRAM pass a derived secret when there
     * is one in a cache; with a plain secret the dialogue derives one. */
    const struct auth_secret *secret;
    /* Plain password that a derived secret was made from; empty: unknown. For
     * auth_client_keys(). */
    struct slice plain;
    struct slice process_key; /* for salts, see auth_secret_salt_for() */
    int scram_iterations;     /* 0: AUTH_ITERATIONS_DEFAULT */
    bool may_work;            /* the caller handles AUTH_WORK */
    bool has_tls;
    bool allow_plus; /* offer SCRAM-SHA-256-PLUS when the next is set */
    struct slice tls_server_end_point; /* of our certificate; empty: none */
    /* For tests: fixed SCRAM nonce and MD5 salt (4 bytes). */
    struct slice test_nonce;
    struct slice test_salt;
};

struct auth_client;

struct auth_client *auth_client_new(const struct auth_client_params *p);
void auth_client_free(struct auth_client *a); /* wipes; NULL is fine */

NODISCARD int auth_client_start(struct auth_client *a, struct pgbuf *out,
                                struct err *e);

/* body: of a 'p' message. After OK or a failure it must not be called. */
NODISCARD int auth_client_step(struct auth_client *a, struct slice body,
                               struct pgbuf *out, struct err *e);
void auth_client_work(struct auth_client *a);
NODISCARD int auth_client_resume(struct auth_client *a, struct pgbuf *out,
                                 struct err *e);

/* The method really used: MD5 turns into SCRAM for a SCRAM secret. */
enum auth_method auth_client_method(const struct auth_client *a);

/* Largest body of a 'p' message that makes sense now. */
size_t auth_client_body_max(const struct auth_client *a);

/* The dialogue is bound to the TLS channel (SCRAM-SHA-256-PLUS). */
bool auth_client_is_bound(const struct auth_client *a);

/* After EXTERNAL. Borrowed. */
struct slice auth_client_password(const struct auth_client *a);

/* After OK: what may open servers in the user's name. Borrowed; for keeping
 * it there is auth_keys_copy(). */
const struct auth_keys *auth_client_keys(const struct auth_client *a);

/* The SCRAM secret derived on the way, for a cache; NULL when none was. */
const struct auth_secret *auth_client_derived(const struct auth_client *a);

#endif
