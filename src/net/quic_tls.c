/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/quic_tls.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <ngtcp2/ngtcp2_crypto_gnutls.h>
#include <openssl/x509.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "auth/tls_binding.h"

/* RFC 9001: TLS 1.3 without the middlebox compatibility mode, and the ciphers
 * whose header protection ngtcp2 knows. */
static const char priority_text[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:"
    "+CHACHA20-POLY1305:-GROUP-ALL:+GROUP-X25519:+GROUP-SECP256R1:"
    "+GROUP-SECP384R1:%DISABLE_TLS13_COMPAT_MODE";

struct quic_tls {
    atomic_int refs;
    bool is_server;
    bool asks_for_cert, require_cert, no_verify, no_name;
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priority;
    struct quic_ticket_key ticket_key;
    uint8_t binding[TLS_BINDING_MAX]; /* of our own certificate */
    size_t binding_n;
};

struct quic_session {
    ngtcp2_crypto_conn_ref ref; /* GnuTLS's session pointer */
    gnutls_session_t tls;
    struct quic_tls *settings;
    struct quic_memory *memory;
    bool said_no_alpn;
    unsigned verify_status; /* of the client's certificate */
};

static struct quic_session *session_of(gnutls_session_t tls)
{
    return container_of(gnutls_session_get_ptr(tls), struct quic_session, ref);
}

/* --- settings ---------------------------------------------------------------
 */

int quic_tls_make_ticket_key(struct quic_ticket_key *out, struct err *e)
{
    gnutls_datum_t key;
    int rc = gnutls_session_ticket_key_generate(&key);
    if (rc < 0 || key.size > sizeof out->p)
        return err_set(e, ERR_TLS, "QUIC: no key for session tickets: %s",
                       gnutls_strerror(rc));
    memcpy(out->p, key.data, key.size);
    out->n = key.size;
    gnutls_memset(key.data, 0, key.size);
    gnutls_free(key.data);
    return 0;
}

static bool is_set(const char *s)
{
    return s && *s;
}

/* The library does not say which file it could not read. */
static int check_readable(const char *prefix, const char *what,
                          const char *file, struct err *e)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_CONF, "%s_%s_file \"%.200s\": %s", prefix, what,
                       file, strerror(errno));
    close(fd);
    return 0;
}

static int load_key(struct quic_tls *t, const struct quic_tls_params *p,
                    struct err *e)
{
    if (!is_set(p->cert_file) && !is_set(p->key_file))
        return t->is_server
                   ? err_set(e, ERR_CONF,
                             "%s_cert_file and %s_key_file are needed for QUIC",
                             p->prefix, p->prefix)
                   : 0;
    if (!is_set(p->cert_file) || !is_set(p->key_file))
        return err_set(e, ERR_CONF, "%s_%s_file is missing", p->prefix,
                       is_set(p->cert_file) ? "key" : "cert");
    int rc = check_readable(p->prefix, "cert", p->cert_file, e);
    if (rc == 0)
        rc = check_readable(p->prefix, "key", p->key_file, e);
    if (rc)
        return rc;
    rc = gnutls_certificate_set_x509_key_file(t->credentials, p->cert_file,
                                              p->key_file, GNUTLS_X509_FMT_PEM);
    if (rc < 0)
        return err_set(e, ERR_CONF,
                       "%s_cert_file \"%.120s\" with %s_key_file "
                       "\"%.120s\": %s",
                       p->prefix, p->cert_file, p->prefix, p->key_file,
                       gnutls_strerror(rc));
    return 0;
}

static int load_trust(struct quic_tls *t, const struct quic_tls_params *p,
                      struct err *e)
{
    const char *prefix = p->ca_prefix ? p->ca_prefix : p->prefix;
    int rc = 0;
    if (is_set(p->ca_file) && strcmp(p->ca_file, "system") != 0)
        rc = check_readable(prefix, "ca", p->ca_file, e);
    if (rc)
        return rc;
    if (!is_set(p->ca_file) && t->is_server)
        return 0;
    if (!is_set(p->ca_file) || !strcmp(p->ca_file, "system"))
        rc = gnutls_certificate_set_x509_system_trust(t->credentials);
    else
        rc = gnutls_certificate_set_x509_trust_file(t->credentials, p->ca_file,
                                                    GNUTLS_X509_FMT_PEM);
    t->asks_for_cert = true;
    if (rc < 0 && t->is_server)
        return err_set(e, ERR_CONF, "%s_ca_file \"%.200s\": %s", prefix,
                       p->ca_file, gnutls_strerror(rc));
    if (rc <= 0 && is_set(p->ca_file) && strcmp(p->ca_file, "system"))
        return err_set(e, ERR_CONF, "%s_ca_file \"%.200s\": %s", prefix,
                       p->ca_file,
                       rc ? gnutls_strerror(rc) : "no certificate in it");
    return 0; /* an empty system store refuses everybody, later */
}

static X509 *to_x509(const gnutls_datum_t *der)
{
    const unsigned char *p = der->data;
    return d2i_X509(NULL, &p, der->size);
}

/* For SCRAM-SHA-256-PLUS; without a hash there is no channel binding. */
static void note_binding(struct quic_tls *t)
{
    gnutls_datum_t der;
    if (gnutls_certificate_get_crt_raw(t->credentials, 0, 0, &der) < 0)
        return;
    X509 *cert = to_x509(&der);
    if (cert && tls_binding_server_end_point(cert, t->binding, &t->binding_n))
        t->binding_n = 0;
    X509_free(cert);
}

static int make(struct quic_tls **out, bool is_server,
                const struct quic_tls_params *p, struct err *e)
{
    struct quic_tls *t = mem_new(sizeof *t);
    atomic_init(&t->refs, 1);
    t->is_server = is_server;
    t->require_cert = p->require_cert;
    t->no_verify = p->no_verify;
    t->no_name = p->no_name;
    must(gnutls_certificate_allocate_credentials(&t->credentials) == 0);
    must(gnutls_priority_init(&t->priority, priority_text, NULL) == 0);
    int rc = load_key(t, p, e);
    if (rc == 0)
        rc = load_trust(t, p, e);
    if (rc == 0 && is_server && p->require_cert && !t->asks_for_cert)
        rc = err_set(e, ERR_CONF,
                     "%s_ca_file is needed to verify the certificates of "
                     "clients",
                     p->prefix);
    if (rc) {
        quic_tls_unref(t);
        return rc;
    }
    if (is_server)
        note_binding(t);
    *out = t;
    return 0;
}

int quic_tls_new_server(struct quic_tls **out, struct quic_shared *s,
                        const struct quic_tls_params *p, struct err *e)
{
    int rc = make(out, true, p, e);
    if (rc == 0)
        (*out)->ticket_key = *quic_shared_ticket_key(s);
    return rc;
}

int quic_tls_new_client(struct quic_tls **out, const struct quic_tls_params *p,
                        struct err *e)
{
    return make(out, false, p, e);
}

struct quic_tls *quic_tls_ref(struct quic_tls *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void quic_tls_unref(struct quic_tls *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) > 1)
        return;
    gnutls_certificate_free_credentials(t->credentials);
    gnutls_priority_deinit(t->priority);
    mem_wipe(&t->ticket_key, sizeof t->ticket_key);
    free(t);
}

/* --- ALPN -------------------------------------------------------------------
 */

static gnutls_datum_t word(const char *s)
{
    return (gnutls_datum_t){(unsigned char *)(uintptr_t)s, (unsigned)strlen(s)};
}

/* Once a session: a second call would add to the first. */
static int offer_alpn(struct quic_session *s, bool with_edge, const char *only)
{
    gnutls_datum_t words[3];
    unsigned n = 0;
    if (only && !*only)
        return 0;
    if (only) {
        words[n++] = word(only);
    } else {
        if (with_edge)
            words[n++] = word(QUIC_ALPN_EDGE);
        words[n++] = word(QUIC_ALPN_PGSQL);
        words[n++] = word(QUIC_ALPN_POSTGRESQL);
    }
    return gnutls_alpn_set_protocols(s->tls, words, n,
                                     GNUTLS_ALPN_MANDATORY |
                                         GNUTLS_ALPN_SERVER_PRECEDENCE);
}

static void get_alpn(const struct quic_session *s, char *out, size_t cap)
{
    gnutls_datum_t got = {NULL, 0};
    out[0] = 0;
    if (gnutls_alpn_get_selected_protocol(s->tls, &got) == 0)
        slice_copy(slice_of(got.data, got.size), out, cap);
}

/* --- hooks ------------------------------------------------------------------
 */

/* A client that offers no ALPN at all passes GNUTLS_ALPN_MANDATORY. */
static int after_client_hello(gnutls_session_t tls, unsigned type,
                              unsigned when, unsigned incoming,
                              const gnutls_datum_t *msg)
{
    gnutls_datum_t got;
    if (gnutls_alpn_get_selected_protocol(tls, &got) == 0)
        return 0;
    session_of(tls)->said_no_alpn = true;
    return GNUTLS_E_NO_APPLICATION_PROTOCOL;
}

static int after_ticket(gnutls_session_t tls, unsigned type, unsigned when,
                        unsigned incoming, const gnutls_datum_t *msg)
{
    struct quic_memory *m = session_of(tls)->memory;
    gnutls_datum_t ticket;
    if (!incoming || !m || gnutls_session_get_data2(tls, &ticket) < 0)
        return 0;
    void *copy = malloc(ticket.size);
    if (copy) {
        memcpy(copy, ticket.data, ticket.size);
        free(m->ticket);
        m->ticket = copy;
        m->ticket_n = ticket.size;
    }
    gnutls_free(ticket.data);
    return 0;
}

/* The library's own check would refuse a client that sends no certificate,
 * though it was only asked for one. */
static int check_client(gnutls_session_t tls)
{
    struct quic_session *s = session_of(tls);
    unsigned n = 0;
    if (!gnutls_certificate_get_peers(tls, &n) || n == 0)
        return s->settings->require_cert ? GNUTLS_E_CERTIFICATE_REQUIRED : 0;
    int rc = gnutls_certificate_verify_peers3(tls, NULL, &s->verify_status);
    if (rc == 0 && s->verify_status)
        rc = GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR;
    return rc;
}

/* --- sessions ---------------------------------------------------------------
 */

static int begin(struct quic_session **out, struct quic_tls *t, unsigned flags,
                 ngtcp2_crypto_get_conn get_conn, void *user_data,
                 struct err *e)
{
    struct quic_session *s = mem_new(sizeof *s);
    s->ref.get_conn = get_conn;
    s->ref.user_data = user_data;
    int rc = gnutls_init(&s->tls, flags);
    if (rc < 0) {
        free(s);
        return err_set(e, ERR_TLS, "TLS: %s", gnutls_strerror(rc));
    }
    s->settings = quic_tls_ref(t);
    gnutls_session_set_ptr(s->tls, &s->ref);
    *out = s;
    return 0;
}

static int give_up(struct quic_session *s, int rc, struct err *e)
{
    quic_session_free(s);
    return err_set(e, ERR_TLS, "TLS: %s", gnutls_strerror(rc));
}

int quic_session_new_server(struct quic_session **out, struct quic_tls *t,
                            ngtcp2_crypto_get_conn get_conn, void *user_data,
                            struct err *e)
{
    struct quic_session *s;
    gnutls_datum_t key = {t->ticket_key.p, t->ticket_key.n};
    int rc = begin(&s, t,
                   GNUTLS_SERVER | GNUTLS_NO_AUTO_SEND_TICKET |
                       GNUTLS_NO_END_OF_EARLY_DATA,
                   get_conn, user_data, e);
    if (rc)
        return rc;
    rc = gnutls_priority_set(s->tls, t->priority);
    if (rc == 0)
        rc = gnutls_session_ticket_enable_server(s->tls, &key);
    if (rc == 0 && ngtcp2_crypto_gnutls_configure_server_session(s->tls))
        rc = GNUTLS_E_INTERNAL_ERROR;
    if (rc == 0)
        rc = gnutls_credentials_set(s->tls, GNUTLS_CRD_CERTIFICATE,
                                    t->credentials);
    if (rc == 0)
        rc = offer_alpn(s, true, NULL);
    if (rc < 0)
        return give_up(s, rc, e);
    gnutls_handshake_set_hook_function(s->tls, GNUTLS_HANDSHAKE_CLIENT_HELLO,
                                       GNUTLS_HOOK_POST, after_client_hello);
    if (t->asks_for_cert) {
        gnutls_certificate_server_set_request(
            s->tls,
            t->require_cert ? GNUTLS_CERT_REQUIRE : GNUTLS_CERT_REQUEST);
        gnutls_session_set_verify_function(s->tls, check_client);
    }
    *out = s;
    return 0;
}

static int resume(struct quic_session *s)
{
    struct quic_memory *m = s->memory;
    if (!m || !m->ticket)
        return 0;
    return gnutls_session_set_data(s->tls, m->ticket, m->ticket_n);
}

static int set_name(struct quic_session *s, const char *host)
{
    struct addr ip;
    if (!host || addr_parse_ip(slice_str(host), 0, &ip))
        return 0;
    return gnutls_server_name_set(s->tls, GNUTLS_NAME_DNS, host, strlen(host));
}

int quic_session_new_client(struct quic_session **out, struct quic_tls *t,
                            const struct quic_session_client *p,
                            ngtcp2_crypto_get_conn get_conn, void *user_data,
                            struct err *e)
{
    struct quic_session *s;
    int rc = begin(&s, t,
                   GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT |
                       GNUTLS_NO_END_OF_EARLY_DATA,
                   get_conn, user_data, e);
    if (rc)
        return rc;
    s->memory = p->memory;
    rc = gnutls_priority_set(s->tls, t->priority);
    if (rc == 0 && ngtcp2_crypto_gnutls_configure_client_session(s->tls))
        rc = GNUTLS_E_INTERNAL_ERROR;
    if (rc == 0)
        rc = gnutls_credentials_set(s->tls, GNUTLS_CRD_CERTIFICATE,
                                    t->credentials);
    if (rc == 0)
        rc = offer_alpn(s, p->is_tunnel, p->alpn);
    if (rc == 0)
        rc = set_name(s, p->host);
    if (rc < 0)
        return give_up(s, rc, e);
    (void)resume(s); /* an old ticket is no reason not to connect */
    gnutls_handshake_set_hook_function(s->tls,
                                       GNUTLS_HANDSHAKE_NEW_SESSION_TICKET,
                                       GNUTLS_HOOK_POST, after_ticket);
    if (!t->no_verify)
        gnutls_session_set_verify_cert(s->tls, t->no_name ? NULL : p->host, 0);
    *out = s;
    return 0;
}

void quic_session_free(struct quic_session *s)
{
    if (!s)
        return;
    gnutls_deinit(s->tls);
    quic_tls_unref(s->settings);
    free(s);
}

void quic_session_drop_memory(struct quic_session *s)
{
    if (s)
        s->memory = NULL;
}

void *quic_session_native(struct quic_session *s)
{
    return s->tls;
}

/* --- after the handshake ----------------------------------------------------
 */

/* A ticket carries the certificate of the client, but nobody has looked at it
 * since: it may have run out. */
static int check_resumed(struct quic_session *s, struct err *e)
{
    unsigned status = 0;
    int rc = gnutls_certificate_verify_peers3(s->tls, NULL, &status);
    if (rc < 0 || status)
        return err_set(e, ERR_AUTHZ,
                       "the client certificate of the resumed session is not "
                       "valid any more");
    return 0;
}

static int note_peer(struct quic_session *s, struct quic_identity *out,
                     struct err *e)
{
    unsigned n = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(s->tls, &n);
    struct quic_tls *t = s->settings;
    if (!chain || n == 0)
        return t->is_server && t->require_cert
                   ? err_set(e, ERR_AUTHZ, "no client certificate")
                   : 0;
    if (t->is_server && out->is_resumed) {
        int rc = check_resumed(s, e);
        if (rc)
            return rc;
    }
    out->info.peer_cert = to_x509(&chain[0]);
    out->info.has_client_cert =
        t->is_server && t->asks_for_cert && out->info.peer_cert;
    return 0;
}

int quic_session_finish(struct quic_session *s, struct quic_identity *out,
                        struct err *e)
{
    struct quic_tls *t = s->settings;
    const char *cipher = gnutls_ciphersuite_get(s->tls);
    size_t n = 0;
    out->is_resumed = gnutls_session_is_resumed(s->tls) != 0;
    out->info.version = "TLSv1.3";
    snprintf(out->cipher, sizeof out->cipher, "%s", cipher ? cipher : "?");
    out->info.cipher = out->cipher;
    get_alpn(s, out->info.alpn, sizeof out->info.alpn);
    if (!out->info.alpn[0])
        return err_set(e, ERR_PROTO, "no ALPN was agreed on");
    out->info.is_tunnel = !strcmp(out->info.alpn, QUIC_ALPN_EDGE);
    int rc = note_peer(s, out, e);
    if (rc)
        return rc;
    if (t->is_server) {
        n = t->binding_n;
        memcpy(out->binding, t->binding, n);
    } else if (out->info.peer_cert &&
               tls_binding_server_end_point(out->info.peer_cert, out->binding,
                                            &n)) {
        n = 0;
    }
    /* What a tunnel binds to is not what its client sees. */
    out->info.server_end_point =
        slice_of(out->binding, out->info.is_tunnel ? 0 : n);
    if (t->is_server)
        (void)gnutls_session_ticket_send(s->tls, 1, 0); /* a mere offer */
    return 0;
}

void quic_identity_clear(struct quic_identity *i)
{
    X509_free(i->info.peer_cert);
    *i = (struct quic_identity){0};
}

void quic_session_explain(struct quic_session *s, char *buf, size_t cap)
{
    gnutls_datum_t text;
    unsigned status;
    buf[0] = 0;
    if (s->said_no_alpn) {
        snprintf(buf, cap, "no ALPN that we speak (%s, %s or %s)",
                 QUIC_ALPN_PGSQL, QUIC_ALPN_POSTGRESQL, QUIC_ALPN_EDGE);
        return;
    }
    status = s->settings->is_server
                 ? s->verify_status
                 : gnutls_session_get_verify_cert_status(s->tls);
    if (status == 0 || status == (unsigned)-1 ||
        gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509,
                                                     &text, 0) < 0)
        return;
    slice_copy(slice_trim(slice_of(text.data, text.size)), buf, cap);
    gnutls_free(text.data);
}

const char *quic_alert_name(unsigned alert)
{
    const char *name = gnutls_alert_get_name((gnutls_alert_description_t)alert);
    return name ? name : "unknown alert";
}

void quic_memory_clear(struct quic_memory *m)
{
    if (m->ticket)
        mem_wipe(m->ticket, m->ticket_n);
    free(m->ticket);
    free(m->token);
    *m = (struct quic_memory){0};
}

const char *quic_version(void)
{
    static char text[64];
    snprintf(text, sizeof text, "ngtcp2 %s, GnuTLS %s",
             ngtcp2_version(0)->version_str, gnutls_check_version(NULL));
    return text;
}

bool quic_is_built(void)
{
    return true;
}
