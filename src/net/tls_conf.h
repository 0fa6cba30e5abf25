/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* TLS settings of one side, made from options once and then only read. Counted
 * references: a reload makes a new one, and connections keep theirs as long as
 * they live. Making one reads files and may block; any thread. */
#ifndef NET_TLS_CONF_H
#define NET_TLS_CONF_H

#include "base/err.h"
#include "base/slice.h"

struct tls_ctx;
struct ssl_ctx_st;

/* In the order of conf_sslmode. */
enum tls_mode {
    TLS_MODE_DISABLE,
    TLS_MODE_ALLOW,
    TLS_MODE_PREFER,
    TLS_MODE_REQUIRE,
    TLS_MODE_VERIFY_CA,
    TLS_MODE_VERIFY_FULL,
};

/* The words of the options as they stand; NULL and "" are the default. Nothing
 * of it is kept. */
struct tls_params {
    const char *prefix;        /* of the options, for errors: "client_tls" */
    enum tls_mode mode;        /* not DISABLE */
    const char *key_file;      /* PEM; the listening side needs both */
    const char *cert_file;     /* PEM, with the chain */
    const char *ca_file;       /* PEM; "system" is the system's store */
    const char *protocols;     /* "secure" */
    const char *ciphers;       /* up to TLS 1.2: "default" */
    const char *tls13_ciphers; /* "default" */
    const char *ecdhcurve;     /* "auto" */
    const char *dheparams;     /* "auto" */
};

/* For accepting connections. With a CA file clients are asked for a
 * certificate: verify-ca and verify-full insist on a good one, the other modes
 * do without one but refuse a bad one. */
NODISCARD int tls_ctx_new_server(struct tls_ctx **out,
                                 const struct tls_params *p, struct err *e);

/* For connecting. verify-ca and verify-full check the server's certificate
 * against the CA file (without one: the system's store); verify-full checks the
 * host name too. */
NODISCARD int tls_ctx_new_client(struct tls_ctx **out,
                                 const struct tls_params *p, struct err *e);

struct tls_ctx *tls_ctx_ref(struct tls_ctx *ctx);
void tls_ctx_unref(struct tls_ctx *ctx); /* NULL is fine */

/* For tls.c. */
struct ssl_ctx_st *tls_ctx_ssl(const struct tls_ctx *ctx);
bool tls_ctx_checks_name(const struct tls_ctx *ctx);

/* tls-server-end-point of the listening side's own certificate; empty when it
 * has none. */
struct slice tls_ctx_server_end_point(const struct tls_ctx *ctx);

/* Takes everything off this thread's OpenSSL error queue and returns the cause
 * in words, in buf: "no start line", "peer sent alert: unknown CA". */
const char *tls_take_error(char *buf, size_t cap);

#endif
