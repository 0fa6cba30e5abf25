/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Logging in to PostgreSQL: the pooler as its client. One object a login; it
 * belongs to the worker of its server connection. Bytes in, bytes out.
 *
 *   step -> MORE (what is in out goes to the server; wait for the next 'R')
 *        -> OK   (AuthenticationOk, and all that had to be proven was)
 *        -> WORK (as in auth_client.h; only with may_work)
 *        -> < 0  (the text names the method asked for and what is missing) */
#ifndef AUTH_AUTH_SERVER_H
#define AUTH_AUTH_SERVER_H

#include "auth/auth_client.h"

enum auth_channel_binding {
    AUTH_BINDING_PREFER,
    AUTH_BINDING_DISABLE,
    AUTH_BINDING_REQUIRE,
};

/* Remembers SaltedPassword by (password, salt, iterations), so that only the
 * first login of a user pays for PBKDF2. Owned by a worker, used by its logins
 * alone; the oldest of max entries goes. Passwords are kept as hashes. */
struct auth_cache;

struct auth_cache *auth_cache_new(size_t max);
void auth_cache_free(struct auth_cache *c); /* wipes; NULL is fine */

enum { AUTH_SERVER_BODY_MAX = 2000 }; /* of an 'R' message, as libpq */

struct auth_server_params {
    struct slice user;
    struct slice password;        /* plain; empty: unknown */
    struct slice md5;             /* "md5..."; empty: unknown */
    const struct auth_keys *keys; /* pass-through; NULL: none. Copied. */
    bool may_work;                /* the caller handles AUTH_WORK */
    bool has_tls;
    struct slice tls_server_end_point; /* of the server's certificate */
    enum auth_channel_binding channel_binding;
    struct auth_cache *cache; /* NULL: none. Outlives the login. */
    struct slice test_nonce;  /* for tests: fixed SCRAM nonce */
};

struct auth_server;

struct auth_server *auth_server_new(const struct auth_server_params *p);
void auth_server_free(struct auth_server *a); /* wipes; NULL is fine */

/* body: of an 'R' message. */
NODISCARD int auth_server_step(struct auth_server *a, struct slice body,
                               struct pgbuf *out, struct err *e);
void auth_server_work(struct auth_server *a); /* touches no cache */
NODISCARD int auth_server_resume(struct auth_server *a, struct pgbuf *out,
                                 struct err *e);

/* The method the server asked for, for logs; "trust" when none. */
const char *auth_server_method(const struct auth_server *a);

#endif
