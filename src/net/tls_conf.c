/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/tls_conf.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "auth/tls_binding.h"
#include "base/log.h"

struct tls_ctx {
    atomic_uint refs;
    SSL_CTX *ssl;
    bool checks_name;
    size_t binding_n;
    uint8_t binding[TLS_BINDING_MAX];
};

enum { VERIFY_DEPTH = 6 };

static const char *error_words(unsigned long code)
{
    int reason = ERR_GET_REASON(code);
    if (ERR_SYSTEM_ERROR(code))
        return strerror(reason);
    const char *text = ERR_reason_error_string(code);
    return text ? text : "unknown reason";
}

/* Alerts of the peer have reasons of their own: the alert's number plus 1000.
 */
static bool is_alert(unsigned long code)
{
    return ERR_GET_LIB(code) == ERR_LIB_SSL &&
           ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET;
}

const char *tls_take_error(char *buf, size_t cap)
{
    /* The first entry is the cause; later ones say what failed because. */
    unsigned long code = ERR_get_error();
    if (!code)
        snprintf(buf, cap, "no cause given");
    else if (is_alert(code))
        snprintf(buf, cap, "the peer refused: %s",
                 SSL_alert_desc_string_long(ERR_GET_REASON(code) -
                                            SSL_AD_REASON_OFFSET));
    else
        snprintf(buf, cap, "%s", error_words(code));
    ERR_clear_error();
    return buf;
}

static bool is_given(const char *s)
{
    return s && *s;
}

static int fail(const struct tls_params *p, const char *option,
                const char *value, struct err *e)
{
    char cause[200];
    return err_set(e, ERR_CONF, "%s_%s \"%s\": %s", p->prefix, option, value,
                   tls_take_error(cause, sizeof cause));
}

/* --- protocol versions --------------------------------------------------- */

static const struct {
    const char *word;
    unsigned bits; /* bit 0 is TLS 1.0 */
} versions[] = {
    {"secure", 0xc},  {"default", 0xc}, {"all", 0xf},
    {"legacy", 0xf},  {"tlsv1", 0x7},   {"tlsv1.0", 0x1},
    {"tlsv1.1", 0x2}, {"tlsv1.2", 0x4}, {"tlsv1.3", 0x8},
};

static const int version_number[] = {TLS1_VERSION, TLS1_1_VERSION,
                                     TLS1_2_VERSION, TLS1_3_VERSION};
static const uint64_t version_off[] = {SSL_OP_NO_TLSv1, SSL_OP_NO_TLSv1_1,
                                       SSL_OP_NO_TLSv1_2, SSL_OP_NO_TLSv1_3};

static bool one_version(struct slice word, unsigned *bits)
{
    for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
        if (slice_is_nocase(word, versions[i].word)) {
            *bits = versions[i].bits;
            return true;
        }
    }
    return false;
}

/* Words between commas or colons; "!" takes a version away. */
static bool parse_versions(const char *text, unsigned *out)
{
    unsigned bits;
    *out = 0;
    for (;;) {
        size_t n = strcspn(text, ",:");
        struct slice word = slice_trim(slice_of(text, n));
        bool is_negated = word.n && word.p[0] == '!';
        if (is_negated)
            word = slice_of(word.p + 1, word.n - 1);
        if (!one_version(word, &bits))
            return false;
        if (is_negated && !*out)
            *out = 0xf;
        *out = is_negated ? *out & ~bits : *out | bits;
        if (!text[n])
            return *out != 0;
        text += n + 1;
    }
}

static int set_versions(SSL_CTX *ssl, const struct tls_params *p, struct err *e)
{
    const char *text = is_given(p->protocols) ? p->protocols : "secure";
    unsigned bits;
    if (!parse_versions(text, &bits))
        return err_set(e, ERR_CONF,
                       "%s_protocols \"%s\": use \"secure\", \"all\", or a "
                       "list of tlsv1.0, tlsv1.1, tlsv1.2, tlsv1.3",
                       p->prefix, text);
    int first = __builtin_ctz(bits), last = 31 - __builtin_clz(bits);
    if (!SSL_CTX_set_min_proto_version(ssl, version_number[first]) ||
        !SSL_CTX_set_max_proto_version(ssl, version_number[last]))
        return fail(p, "protocols", text, e);
    for (int i = first; i < last; i++)
        if (!(bits & (1u << i)))
            SSL_CTX_set_options(ssl, version_off[i]);
    return 0;
}

/* --- ciphers and key exchange -------------------------------------------- */

static bool is_default_word(const char *s)
{
    static const char *const words[] = {"default", "secure", "normal", "fast"};
    if (!is_given(s))
        return true;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (strcasecmp(s, words[i]) == 0)
            return true;
    return false;
}

/* PgBouncer's older words, still found in files. */
static const char *cipher_string(const char *s)
{
    if (strcasecmp(s, "compat") == 0)
        return "HIGH:!aNULL";
    if (strcasecmp(s, "legacy") == 0)
        return "HIGH:MEDIUM:!aNULL";
    if (strcasecmp(s, "all") == 0 || strcasecmp(s, "insecure") == 0)
        return "ALL";
    return s;
}

static int set_ciphers(SSL_CTX *ssl, const struct tls_params *p, struct err *e)
{
    if (!is_default_word(p->ciphers) &&
        !SSL_CTX_set_cipher_list(ssl, cipher_string(p->ciphers)))
        return fail(p, "ciphers", p->ciphers, e);
    if (!is_default_word(p->tls13_ciphers) &&
        !SSL_CTX_set_ciphersuites(ssl, p->tls13_ciphers))
        return fail(p, "tls13_ciphers", p->tls13_ciphers, e);
    return 0;
}

static int set_key_exchange(SSL_CTX *ssl, const struct tls_params *p,
                            struct err *e)
{
    const char *curve = p->ecdhcurve, *dh = p->dheparams;
    if (!is_given(dh) || strcasecmp(dh, "auto") == 0 ||
        strcasecmp(dh, "legacy") == 0)
        SSL_CTX_set_dh_auto(ssl, 1);
    else if (strcasecmp(dh, "none") != 0)
        return err_set(e, ERR_CONF,
                       "%s_dheparams \"%s\": use \"auto\" or \"none\"",
                       p->prefix, dh);
    /* OpenSSL 3 cannot do without groups in TLS 1.3, so "none" is as good as
     * "auto". */
    if (!is_given(curve) || strcasecmp(curve, "auto") == 0 ||
        strcasecmp(curve, "none") == 0)
        return 0;
    if (!SSL_CTX_set1_groups_list(ssl, curve)) {
        ERR_clear_error();
        return err_set(e, ERR_CONF,
                       "%s_ecdhcurve \"%s\": not a curve that OpenSSL knows; "
                       "use \"auto\", \"X25519\", \"prime256v1\", ...",
                       p->prefix, curve);
    }
    return 0;
}

/* --- files --------------------------------------------------------------- */

static int check_readable(const struct tls_params *p, const char *option,
                          const char *file, struct err *e)
{
    FILE *f = fopen(file, "re");
    if (!f)
        return err_set(e, ERR_CONF, "%s_%s \"%s\": %s", p->prefix, option, file,
                       strerror(errno));
    fclose(f);
    return 0;
}

/* PgBouncer takes a key with any permissions; so do we, and say so. */
static void warn_if_open(const struct tls_params *p)
{
    struct stat st;
    if (stat(p->key_file, &st) == 0 && (st.st_mode & S_IRWXO))
        log_warning("%s_key_file \"%s\": readable by everybody; chmod 0600 it",
                    p->prefix, p->key_file);
}

/* No terminal to ask for a pass phrase on. */
static int no_pass_phrase(char *buf, int size, int rwflag, void *arg)
{
    return 0;
}

static int load_key_pair(SSL_CTX *ssl, const struct tls_params *p,
                         struct err *e)
{
    int rc = check_readable(p, "cert_file", p->cert_file, e);
    if (rc == 0)
        rc = check_readable(p, "key_file", p->key_file, e);
    if (rc)
        return rc;
    SSL_CTX_set_default_passwd_cb(ssl, no_pass_phrase);
    if (SSL_CTX_use_certificate_chain_file(ssl, p->cert_file) != 1)
        return fail(p, "cert_file", p->cert_file, e);
    if (SSL_CTX_use_PrivateKey_file(ssl, p->key_file, SSL_FILETYPE_PEM) != 1)
        return fail(p, "key_file", p->key_file, e);
    if (SSL_CTX_check_private_key(ssl) != 1)
        return fail(p, "key_file", p->key_file, e);
    warn_if_open(p);
    return 0;
}

static bool uses_system_store(const struct tls_params *p)
{
    return !is_given(p->ca_file) || strcmp(p->ca_file, "system") == 0;
}

static int load_ca(SSL_CTX *ssl, const struct tls_params *p, struct err *e)
{
    if (uses_system_store(p)) {
        if (SSL_CTX_set_default_verify_paths(ssl) != 1)
            return fail(p, "ca_file", "system", e);
    } else {
        int rc = check_readable(p, "ca_file", p->ca_file, e);
        if (rc)
            return rc;
        if (SSL_CTX_load_verify_file(ssl, p->ca_file) != 1)
            return fail(p, "ca_file", p->ca_file, e);
    }
    SSL_CTX_set_verify_depth(ssl, VERIFY_DEPTH);
    return 0;
}

/* --- contexts ------------------------------------------------------------ */

static int new_ctx(struct tls_ctx **out, const SSL_METHOD *method,
                   const struct tls_params *p, struct err *e)
{
    ERR_clear_error();
    struct tls_ctx *ctx = mem_new(sizeof *ctx);
    atomic_init(&ctx->refs, 1);
    ctx->ssl = SSL_CTX_new(method);
    must(ctx->ssl);
    *out = ctx;
    SSL_CTX_set_mode(ctx->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(ctx->ssl,
                        SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    int rc = set_versions(ctx->ssl, p, e);
    return rc ? rc : set_ciphers(ctx->ssl, p, e);
}

static void set_binding(struct tls_ctx *ctx)
{
    X509 *cert = SSL_CTX_get0_certificate(ctx->ssl);
    if (tls_binding_server_end_point(cert, ctx->binding, &ctx->binding_n))
        ctx->binding_n = 0; /* no SCRAM-PLUS with this certificate */
    ERR_clear_error();
}

/* A resumed session is only taken by the context that issued it. Tickets carry
 * the session, so nothing is kept here and all workers can resume it. */
static void set_sessions(SSL_CTX *ssl)
{
    unsigned char id[SSL_MAX_SSL_SESSION_ID_LENGTH];
    must(RAND_bytes(id, sizeof id) == 1);
    must(SSL_CTX_set_session_id_context(ssl, id, sizeof id));
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(ssl, 1);
}

/* Takes ALPN "postgresql" or none at all; another protocol's client is told
 * no_application_protocol (RFC 7301). */
static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_n,
                   const unsigned char *in, unsigned in_n, void *arg)
{
    static const unsigned char ours[] = "\012postgresql";
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_n, ours, sizeof ours - 1, in,
                              in_n) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static int ask_for_client_cert(SSL_CTX *ssl, const struct tls_params *p,
                               struct err *e)
{
    bool must_have = p->mode >= TLS_MODE_VERIFY_CA;
    if (!is_given(p->ca_file)) {
        if (!must_have)
            return 0;
        return err_set(e, ERR_CONF,
                       "%s_sslmode: verify-ca and verify-full need %s_ca_file, "
                       "to check client certificates against",
                       p->prefix, p->prefix);
    }
    int rc = load_ca(ssl, p, e);
    if (rc)
        return rc;
    /* The names tell a client which of its certificates to send. */
    if (!uses_system_store(p))
        SSL_CTX_set_client_CA_list(ssl, SSL_load_client_CA_file(p->ca_file));
    SSL_CTX_set_verify(ssl,
                       SSL_VERIFY_PEER |
                           (must_have ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                       NULL);
    return 0;
}

static int setup_server(struct tls_ctx *ctx, const struct tls_params *p,
                        struct err *e)
{
    if (!is_given(p->key_file) || !is_given(p->cert_file))
        return err_set(e, ERR_CONF,
                       "%s_sslmode: TLS needs both %s_key_file and "
                       "%s_cert_file",
                       p->prefix, p->prefix, p->prefix);
    int rc = set_key_exchange(ctx->ssl, p, e);
    if (rc == 0)
        rc = load_key_pair(ctx->ssl, p, e);
    if (rc == 0)
        rc = ask_for_client_cert(ctx->ssl, p, e);
    if (rc)
        return rc;
    SSL_CTX_set_options(ctx->ssl, SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_alpn_select_cb(ctx->ssl, on_alpn, NULL);
    set_sessions(ctx->ssl);
    set_binding(ctx);
    return 0;
}

static int setup_client(struct tls_ctx *ctx, const struct tls_params *p,
                        struct err *e)
{
    bool has_key = is_given(p->key_file), has_cert = is_given(p->cert_file);
    int rc = 0;
    if (has_key != has_cert)
        return err_set(e, ERR_CONF, "%s_%s: needs %s_%s as well", p->prefix,
                       has_key ? "key_file" : "cert_file", p->prefix,
                       has_key ? "cert_file" : "key_file");
    if (has_key)
        rc = load_key_pair(ctx->ssl, p, e);
    if (rc)
        return rc;
    SSL_CTX_set_session_cache_mode(ctx->ssl, SSL_SESS_CACHE_OFF);
    if (p->mode < TLS_MODE_VERIFY_CA)
        return 0;
    ctx->checks_name = p->mode == TLS_MODE_VERIFY_FULL;
    SSL_CTX_set_verify(ctx->ssl, SSL_VERIFY_PEER, NULL);
    return load_ca(ctx->ssl, p, e);
}

static int give(struct tls_ctx **out, struct tls_ctx *ctx, int rc)
{
    if (rc) {
        tls_ctx_unref(ctx);
        ctx = NULL;
    }
    *out = ctx;
    ERR_clear_error();
    return rc;
}

int tls_ctx_new_server(struct tls_ctx **out, const struct tls_params *p,
                       struct err *e)
{
    struct tls_ctx *ctx;
    int rc = new_ctx(&ctx, TLS_server_method(), p, e);
    return give(out, ctx, rc ? rc : setup_server(ctx, p, e));
}

int tls_ctx_new_client(struct tls_ctx **out, const struct tls_params *p,
                       struct err *e)
{
    struct tls_ctx *ctx;
    int rc = new_ctx(&ctx, TLS_client_method(), p, e);
    return give(out, ctx, rc ? rc : setup_client(ctx, p, e));
}

struct tls_ctx *tls_ctx_ref(struct tls_ctx *ctx)
{
    atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed);
    return ctx;
}

void tls_ctx_unref(struct tls_ctx *ctx)
{
    if (!ctx ||
        atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) != 1)
        return;
    SSL_CTX_free(ctx->ssl);
    free(ctx);
}

SSL_CTX *tls_ctx_ssl(const struct tls_ctx *ctx)
{
    return ctx->ssl;
}

bool tls_ctx_checks_name(const struct tls_ctx *ctx)
{
    return ctx->checks_name;
}

struct slice tls_ctx_server_end_point(const struct tls_ctx *ctx)
{
    return slice_of(ctx->binding, ctx->binding_n);
}
