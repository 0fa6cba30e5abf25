/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* TLS as a stream over any stream (net/stream.h). The TLS stream takes the one
 * below: it becomes its owner, moves with it, and closes it. It belongs to the
 * same thread. All plain text that arrived is handed up at once: nothing waits
 * inside the library. Until on_open() nothing may be written: such bytes are
 * dropped and stream_writev() says ERR_CLOSED. */
#ifndef NET_TLS_H
#define NET_TLS_H

#include "net/stream.h"
#include "net/tls_conf.h"

struct x509_st;

enum { TLS_ALPN_MAX = 16 };
#define TLS_ALPN_POSTGRESQL "postgresql"

/* What stream_tls() of an open TLS stream gives; lives as long as the stream.
 */
struct tls_info {
    const char *version; /* "TLSv1.3" */
    const char *cipher;  /* "TLS_AES_256_GCM_SHA384" */
    /* The accepting side: the client proved a certificate, and the CA file
     * vouches for it. */
    bool has_client_cert;
    /* What the peer sent, verified or not; for auth/cert.h. NULL: none. */
    struct x509_st *peer_cert;
    /* Hash of the server's certificate, whichever side that is, for
     * SCRAM-SHA-256-PLUS; empty when there is no binding. */
    struct slice server_end_point;
    char alpn[TLS_ALPN_MAX]; /* "" when none was agreed on */
    /* The session was passed on by an edge: the address, and what the handshake
     * proved, are the edge's, not the client's. */
    bool is_tunnel;
};

/* "TLSv1.3/TLS_AES_256_GCM_SHA384"; buf is returned. */
enum { TLS_TEXT_MAX = 96 };
const char *tls_text(const struct tls_info *info, char buf[TLS_TEXT_MAX]);

/* Answers a handshake. fed is what was read of it already (direct TLS; empty
 * after an SSLRequest). is_direct insists on ALPN "postgresql", as PostgreSQL
 * does; else a client may do without ALPN. on_open() or on_error() follows.
 * lower may be paused or not: it is resumed. */
struct stream *tls_accept(struct stream *lower, struct tls_ctx *ctx,
                          const struct stream_handler *h, void *owner,
                          struct slice fed, bool is_direct);

/* Starts a handshake. host is sent as the server name when it is a name, and
 * checked when ctx says verify-full, which then fails without one. alpn may be
 * NULL; whether the server agreed is for the owner to look at (tls_info.alpn).
 */
struct stream *tls_connect(struct stream *lower, struct tls_ctx *ctx,
                           const char *host, const char *alpn,
                           const struct stream_handler *h, void *owner);

#endif
