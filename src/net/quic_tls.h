/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* TLS inside QUIC: the one place that knows GnuTLS, so that another helper of
 * ngtcp2 can take its place. Settings (struct quic_tls, net/quic.h) are shared
 * by threads; a session belongs to its connection's thread. */
#ifndef NET_QUIC_TLS_H
#define NET_QUIC_TLS_H

#include <ngtcp2/ngtcp2_crypto.h>

#include "net/quic.h"
#include "net/tls.h"

struct quic_session;

/* --- of the process ------------------------------------------------------- */

enum { QUIC_TICKET_KEY_MAX = 64 };
struct quic_ticket_key {
    unsigned char p[QUIC_TICKET_KEY_MAX];
    unsigned n;
};
NODISCARD int quic_tls_make_ticket_key(struct quic_ticket_key *out,
                                       struct err *e);
/* In quic_shared.c, for the settings of listeners. */
const struct quic_ticket_key *
quic_shared_ticket_key(const struct quic_shared *s);

/* --- one handshake -------------------------------------------------------- */

NODISCARD int quic_session_new_server(struct quic_session **out,
                                      struct quic_tls *t,
                                      ngtcp2_crypto_get_conn get_conn,
                                      void *user_data, struct err *e);

struct quic_session_client {
    const char *host, *alpn; /* as in struct quic_connect_params */
    bool is_tunnel;
    struct quic_memory *memory;
};
NODISCARD int quic_session_new_client(struct quic_session **out,
                                      struct quic_tls *t,
                                      const struct quic_session_client *p,
                                      ngtcp2_crypto_get_conn get_conn,
                                      void *user_data, struct err *e);
void quic_session_free(struct quic_session *s); /* NULL is fine */

/* No ticket is kept any more. */
void quic_session_drop_memory(struct quic_session *s);

/* For ngtcp2_conn_set_tls_native_handle(). */
void *quic_session_native(struct quic_session *s);

/* What is kept of a handshake when its session is gone. */
struct quic_identity {
    struct tls_info info;
    uint8_t binding[64];
    char cipher[48];
    bool is_resumed;
};

/* Both have finished: checks what the library does not, and fills the identity
 * (zero before). A listener also sends a ticket. */
NODISCARD int quic_session_finish(struct quic_session *s,
                                  struct quic_identity *out, struct err *e);
void quic_identity_clear(struct quic_identity *i);

/* Why our side refused, in words; "" when it is not known. */
void quic_session_explain(struct quic_session *s, char *buf, size_t cap);

/* Name of a TLS alert. */
const char *quic_alert_name(unsigned alert);

#endif
