/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* OpenSSL reads from the slice that the stream below lends (bio_read) and
 * writes into a scratch buffer of the loop (bio_write), which leaves in one
 * write below at the end of each call: out is always empty between calls and
 * before a callback, so that the streams of a loop can share the buffer.
 *
 * Happy path: HANDSHAKE -> OPEN -> ENDED (the peer's close_notify or end of
 * file) -> close. Anything fatal -> FAILED, told once: at once when the loop
 * called us, else by a task. */
#include "net/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "auth/tls_binding.h"
#include "net/addr.h"

enum tls_state {
    TLS_HANDSHAKE,
    TLS_OPEN,
    TLS_ENDED,
    TLS_FAILED,
};

enum {
    SCRATCH_PLAIN = 1,
    SCRATCH_RECORDS = 3,
    RECORD_BYTES = 16384,
    WRITE_AT_MOST = 1 << 30,
    /* What the library may answer by itself while our backlog is not empty: a
     * peer that asks (renegotiation, key updates) and does not read would fill
     * memory else. */
    ANSWERS_MAX = 65536,
};

struct tls_stream {
    struct stream s;
    struct stream *lower;
    SSL *ssl;
    struct tls_ctx *ctx;
    enum tls_state state;
    bool is_accepting, is_direct;
    bool is_shut;    /* our close_notify is out */
    bool *gone;      /* of the frame that reads: set by close and detach */
    struct slice in; /* lent by lower, not read yet */
    size_t out_n;    /* bytes of records in the scratch buffer */
    size_t answers;  /* see ANSWERS_MAX */
    char *host;      /* to check; NULL: no check */
    struct err *err; /* for the task to tell */
    struct task task;
    struct tls_info info;
    uint8_t binding[TLS_BINDING_MAX]; /* the connecting side's */
};

static struct tls_stream *of_stream(const struct stream *s)
{
    return container_of(s, struct tls_stream, s);
}

/* --- the library's view of the stream below ------------------------------ */

static void flush(struct tls_stream *t)
{
    size_t n = t->out_n;
    t->out_n = 0;
    /* A broken stream below says so by its on_error(). */
    if (n)
        (void)stream_write(t->lower, loop_scratch(t->s.loop, SCRATCH_RECORDS),
                           n);
    t->s.pending = stream_pending(t->lower);
}

static int bio_read(BIO *bio, char *buf, int n)
{
    struct tls_stream *t = BIO_get_data(bio);
    size_t part = MIN(t->in.n, (size_t)n);
    BIO_clear_retry_flags(bio);
    if (part == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(buf, t->in.p, part);
    t->in = slice_of(t->in.p + part, t->in.n - part);
    return (int)part;
}

static int bio_write(BIO *bio, const char *buf, int n)
{
    struct tls_stream *t = BIO_get_data(bio);
    size_t left = (size_t)n;
    BIO_clear_retry_flags(bio);
    while (left) {
        if (t->out_n == LOOP_SCRATCH_BYTES)
            flush(t);
        size_t part = MIN(left, LOOP_SCRATCH_BYTES - t->out_n);
        char *out = loop_scratch(t->s.loop, SCRATCH_RECORDS);
        memcpy(out + t->out_n, buf, part);
        t->out_n += part;
        buf += part;
        left -= part;
    }
    return n;
}

static long bio_ctrl(BIO *bio, int cmd, long arg, void *p)
{
    return cmd == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;
static pthread_once_t method_once = PTHREAD_ONCE_INIT;

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK,
                          "pgbraid stream");
    must(method);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_ctrl(method, bio_ctrl);
}

/* --- failures ------------------------------------------------------------ */

static const char *verify_text(const struct tls_stream *t)
{
    return X509_verify_cert_error_string(SSL_get_verify_result(t->ssl));
}

/* Puts the library's reason into words; empties its queue. */
static void describe(struct tls_stream *t, struct err *e)
{
    const char *where = t->state == TLS_HANDSHAKE ? "TLS handshake" : "TLS";
    const char *whose = t->is_accepting ? "client" : "server";
    char cause[200];
    int reason = ERR_GET_REASON(ERR_peek_error());
    tls_take_error(cause, sizeof cause);
    switch (reason) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
        if (t->host &&
            SSL_get_verify_result(t->ssl) == X509_V_ERR_HOSTNAME_MISMATCH)
            err_set(e, ERR_TLS,
                    "%s: %s certificate verify failed: it is not for host "
                    "\"%s\"",
                    where, whose, t->host);
        else
            err_set(e, ERR_TLS, "%s: %s certificate verify failed: %s", where,
                    whose, verify_text(t));
        break;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
        err_set(e, ERR_TLS,
                "%s: no TLS version that both sides allow (%s); see the "
                "_protocols option",
                where, cause);
        break;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
        err_set(e, ERR_TLS, "%s: the %s does not speak TLS (%s)", where, whose,
                cause);
        break;
    default:
        err_set(e, ERR_TLS, "%s: %s", where, cause);
    }
}

static void tell_error(struct tls_stream *t, const struct err *e)
{
    t->state = TLS_FAILED;
    if (t->s.handler->on_error)
        t->s.handler->on_error(&t->s, e);
}

static void on_task(struct task *task)
{
    struct tls_stream *t = container_of(task, struct tls_stream, task);
    struct err e = *t->err;
    tell_error(t, &e);
}

/* For failures inside a call into the stream. */
static void fail_later(struct tls_stream *t, const struct err *e)
{
    t->state = TLS_FAILED;
    t->err = mem_new(sizeof *t->err);
    *t->err = *e;
    loop_defer(t->s.loop, &t->task);
}

/* --- the handshake ------------------------------------------------------- */

/* A certificate without any alternative name may give the address as its common
 * name, as libpq takes it. */
static bool common_name_is(X509 *cert, const char *host)
{
    const X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (at < 0 || X509_get_ext_by_NID(cert, NID_subject_alt_name, -1) >= 0)
        return false;
    const ASN1_STRING *name =
        X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    return slice_is(
        slice_of(ASN1_STRING_get0_data(name), (size_t)ASN1_STRING_length(name)),
        host);
}

static bool is_ip(const char *host)
{
    struct addr a;
    return addr_parse_ip(slice_str(host), 0, &a);
}

static bool is_cert_for(X509 *cert, const char *host)
{
    if (!*host)
        return false;
    if (is_ip(host))
        return X509_check_ip_asc(cert, host, 0) == 1 ||
               common_name_is(cert, host);
    return X509_check_host(cert, host, 0, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS,
                           NULL) == 1;
}

/* Checks the name inside the handshake, so that the server is told by an alert
 * and learns nothing of us. */
static int on_verify(int ok, X509_STORE_CTX *store)
{
    if (!ok || X509_STORE_CTX_get_error_depth(store) > 0)
        return ok;
    SSL *ssl =
        X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct tls_stream *t = SSL_get_app_data(ssl);
    if (is_cert_for(X509_STORE_CTX_get_current_cert(store), t->host))
        return 1;
    X509_STORE_CTX_set_error(store, X509_V_ERR_HOSTNAME_MISMATCH);
    return 0;
}

static void set_info(struct tls_stream *t)
{
    struct tls_info *info = &t->info;
    const unsigned char *alpn;
    unsigned alpn_n;
    size_t n;
    info->version = SSL_get_version(t->ssl);
    info->cipher = SSL_get_cipher_name(t->ssl);
    info->peer_cert = SSL_get0_peer_certificate(t->ssl);
    info->has_client_cert = t->is_accepting && info->peer_cert &&
                            (SSL_get_verify_mode(t->ssl) & SSL_VERIFY_PEER) &&
                            SSL_get_verify_result(t->ssl) == X509_V_OK;
    if (t->is_accepting)
        info->server_end_point = tls_ctx_server_end_point(t->ctx);
    else if (info->peer_cert &&
             tls_binding_server_end_point(info->peer_cert, t->binding, &n) == 0)
        info->server_end_point = slice_of(t->binding, n);
    SSL_get0_alpn_selected(t->ssl, &alpn, &alpn_n);
    if (alpn_n && alpn_n < sizeof info->alpn)
        (void)slice_copy(slice_of(alpn, alpn_n), info->alpn, sizeof info->alpn);
    ERR_clear_error();
}

enum outcome {
    OUTCOME_WAIT,
    OUTCOME_DONE,
    OUTCOME_FAILED, /* e is set */
};

static enum outcome shake_hands(struct tls_stream *t, struct err *e)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    enum outcome outcome = OUTCOME_DONE;
    if (rc != 1) {
        bool waits = SSL_get_error(t->ssl, rc) == SSL_ERROR_WANT_READ;
        outcome = waits ? OUTCOME_WAIT : OUTCOME_FAILED;
        if (!waits)
            describe(t, e);
    }
    flush(t); /* the alert, too */
    if (outcome != OUTCOME_DONE)
        return outcome;
    set_info(t);
    if (t->is_direct && !t->info.alpn[0]) {
        err_set(e, ERR_TLS,
                "TLS handshake: direct TLS needs ALPN \"postgresql\", which "
                "the client did not send");
        return OUTCOME_FAILED;
    }
    return OUTCOME_DONE;
}

static void go_on_shaking(struct tls_stream *t)
{
    struct err e;
    enum outcome outcome = shake_hands(t, &e);
    if (outcome == OUTCOME_FAILED) {
        tell_error(t, &e);
    } else if (outcome == OUTCOME_DONE) {
        t->state = TLS_OPEN;
        if (t->s.is_paused)
            stream_pause(t->lower);
        if (t->s.handler->on_open)
            t->s.handler->on_open(&t->s);
    }
}

/* --- reading ------------------------------------------------------------- */

/* Decrypts a scratch buffer's worth. The state is set before the callback,
 * which may write, close or detach; what it was is told after. */
static size_t decrypt(struct tls_stream *t, char *buf, bool *more,
                      struct err *e)
{
    size_t n = 0;
    int got = 1;
    ERR_clear_error();
    while (n < LOOP_SCRATCH_BYTES) {
        got = SSL_read(t->ssl, buf + n, (int)(LOOP_SCRATCH_BYTES - n));
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    *more = got > 0;
    int why = got > 0 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, got);
    if (why == SSL_ERROR_ZERO_RETURN) {
        t->state = TLS_ENDED;
    } else if (why != SSL_ERROR_NONE && why != SSL_ERROR_WANT_READ) {
        describe(t, e);
        t->state = TLS_FAILED;
    }
    t->answers = t->s.pending ? t->answers + t->out_n : 0;
    if (t->answers > ANSWERS_MAX && t->state == TLS_OPEN) {
        err_set(e, ERR_TLS, "TLS: the peer asks and does not read the answers");
        t->state = TLS_FAILED;
    }
    flush(t); /* answers to key updates, alerts */
    return n;
}

/* False when there is no more for now. */
static bool read_some(struct tls_stream *t)
{
    char *buf = loop_scratch(t->s.loop, SCRATCH_PLAIN);
    bool *gone = t->gone;
    bool more;
    struct err e;
    size_t n = decrypt(t, buf, &more, &e);
    enum tls_state state = t->state;
    if (n && t->s.handler->on_data)
        t->s.handler->on_data(&t->s, buf, n);
    if (*gone)
        return false;
    if (state == TLS_ENDED && t->s.handler->on_eof)
        t->s.handler->on_eof(&t->s);
    else if (state == TLS_FAILED)
        tell_error(t, &e);
    return more && !*gone;
}

/* What comes after the end or a failure is thrown away. */
static void on_lower_data(struct stream *lower, const char *p, size_t n)
{
    struct tls_stream *t = lower->owner;
    bool is_gone = false;
    t->gone = &is_gone;
    t->in = slice_of(p, n);
    if (t->state == TLS_HANDSHAKE)
        go_on_shaking(t);
    while (!is_gone && t->state == TLS_OPEN && read_some(t))
        ;
    if (is_gone)
        return;
    t->in = slice_of("", 0);
    t->gone = NULL;
}

static void on_lower_drain(struct stream *lower)
{
    struct tls_stream *t = lower->owner;
    t->s.pending = stream_pending(lower);
    if (t->state != TLS_HANDSHAKE && t->state != TLS_FAILED &&
        t->s.handler->on_drain)
        t->s.handler->on_drain(&t->s);
}

/* PostgreSQL and its clients often end without close_notify; the protocol says
 * by itself whether something is missing. */
static void on_lower_eof(struct stream *lower)
{
    struct tls_stream *t = lower->owner;
    struct err e;
    if (t->state == TLS_HANDSHAKE) {
        err_set(&e, ERR_CLOSED,
                "TLS handshake: the peer closed the connection");
        tell_error(t, &e);
    } else if (t->state == TLS_OPEN) {
        t->state = TLS_ENDED;
        if (t->s.handler->on_eof)
            t->s.handler->on_eof(&t->s);
    }
}

static void on_lower_error(struct stream *lower, const struct err *cause)
{
    struct tls_stream *t = lower->owner;
    struct err e = *cause;
    if (t->state == TLS_FAILED)
        return;
    if (t->state == TLS_HANDSHAKE)
        err_wrap(&e, "TLS handshake");
    tell_error(t, &e);
}

static const struct stream_handler lower_handler = {
    .on_data = on_lower_data,
    .on_drain = on_lower_drain,
    .on_eof = on_lower_eof,
    .on_error = on_lower_error,
};

/* --- operations ---------------------------------------------------------- */

static bool may_write(const struct tls_stream *t)
{
    return (t->state == TLS_OPEN || t->state == TLS_ENDED) && !t->is_shut;
}

static int encrypt(struct tls_stream *t, const char *p, size_t n)
{
    while (n) {
        size_t part = MIN(n, (size_t)WRITE_AT_MOST);
        if (SSL_write(t->ssl, p, (int)part) != (int)part)
            return ERR_TLS;
        p += part;
        n -= part;
    }
    return 0;
}

/* Small pieces share a record. */
static int encrypt_pieces(struct tls_stream *t, const struct iovec *iov, int n)
{
    char buf[RECORD_BYTES];
    size_t have = 0;
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        const char *p = iov[i].iov_base;
        size_t left = iov[i].iov_len;
        while (left && rc == 0) {
            size_t part = MIN(left, sizeof buf - have);
            if (part == sizeof buf) {
                rc = encrypt(t, p, part);
            } else {
                memcpy(buf + have, p, part);
                have += part;
            }
            if (have == sizeof buf) {
                rc = encrypt(t, buf, have);
                have = 0;
            }
            p += part;
            left -= part;
        }
    }
    return rc ? rc : encrypt(t, buf, have);
}

static int tls_writev(struct stream *s, const struct iovec *iov, int n)
{
    struct tls_stream *t = of_stream(s);
    struct err e;
    if (!may_write(t))
        return ERR_CLOSED;
    ERR_clear_error();
    int rc = n == 1 ? encrypt(t, iov->iov_base, iov->iov_len)
                    : encrypt_pieces(t, iov, n);
    if (rc) {
        describe(t, &e);
        fail_later(t, &e);
    }
    flush(t);
    return rc;
}

/* A paused owner does not stall the handshake. */
static void tls_pause(struct stream *s)
{
    struct tls_stream *t = of_stream(s);
    s->is_paused = true;
    if (t->state != TLS_HANDSHAKE)
        stream_pause(t->lower);
}

static void tls_resume(struct stream *s)
{
    s->is_paused = false;
    stream_resume(of_stream(s)->lower);
}

static void say_goodbye(struct tls_stream *t)
{
    if (!may_write(t))
        return;
    t->is_shut = true;
    ERR_clear_error();
    (void)SSL_shutdown(t->ssl); /* sends close_notify, waits for none */
    ERR_clear_error();
    flush(t);
}

static void tls_shutdown(struct stream *s)
{
    struct tls_stream *t = of_stream(s);
    say_goodbye(t);
    t->is_shut = true;
    stream_shutdown(t->lower);
}

static void leave_frame(struct tls_stream *t)
{
    if (t->gone)
        *t->gone = true;
    t->gone = NULL;
    t->in = slice_of("", 0);
}

static void tls_close(struct stream *s)
{
    struct tls_stream *t = of_stream(s);
    leave_frame(t);
    say_goodbye(t);
    loop_cancel(&t->task);
    stream_close(t->lower);
    SSL_free(t->ssl);
    tls_ctx_unref(t->ctx);
    free(t->host);
    free(t->err);
    loop_free_later(s->loop, t);
}

static int tls_detach(struct stream *s)
{
    struct tls_stream *t = of_stream(s);
    if (t->state != TLS_OPEN || t->is_shut || t->in.n || s->pending)
        return ERR_UNSUPPORTED;
    int rc = stream_detach(t->lower);
    if (rc)
        return rc;
    leave_frame(t);
    s->loop = NULL;
    return 0;
}

static void tls_attach(struct stream *s, struct loop *loop)
{
    s->loop = loop;
    stream_attach(of_stream(s)->lower, loop);
}

static int tls_fd(const struct stream *s)
{
    return stream_fd(of_stream(s)->lower);
}

static const struct tls_info *get_info(const struct stream *s)
{
    const struct tls_stream *t = of_stream(s);
    return t->info.version ? &t->info : NULL;
}

static int tls_ends(const struct stream *s, struct addr *peer,
                    struct addr *self)
{
    return stream_ends(container_of(s, const struct tls_stream, s)->lower, peer,
                       self);
}

static const struct stream_ops tls_ops = {
    .writev = tls_writev,
    .pause = tls_pause,
    .resume = tls_resume,
    .shutdown = tls_shutdown,
    .close = tls_close,
    .detach = tls_detach,
    .attach = tls_attach,
    .fd = tls_fd,
    .ends = tls_ends,
    .tls = get_info,
};

/* --- making one ---------------------------------------------------------- */

static struct tls_stream *new_stream(struct stream *lower, struct tls_ctx *ctx,
                                     const struct stream_handler *h,
                                     void *owner)
{
    struct tls_stream *t = mem_new(sizeof *t);
    pthread_once(&method_once, make_method);
    BIO *bio = BIO_new(method);
    t->ssl = SSL_new(tls_ctx_ssl(ctx));
    must(bio && t->ssl);
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    t->s = (struct stream){.ops = &tls_ops,
                           .handler = h,
                           .owner = owner,
                           .loop = lower->loop,
                           .pending = stream_pending(lower),
                           .kind = STREAM_TLS};
    t->ctx = tls_ctx_ref(ctx);
    t->in = slice_of("", 0);
    list_init(&t->task.node);
    t->task.run = on_task;
    t->lower = lower;
    stream_set_owner(lower, &lower_handler, t);
    return t;
}

static struct stream *start(struct tls_stream *t)
{
    struct err e;
    enum outcome outcome = shake_hands(t, &e);
    t->in = slice_of("", 0);
    if (outcome == OUTCOME_FAILED)
        fail_later(t, &e);
    else
        /* Each side needs what the other answers to its first bytes. */
        must(outcome == OUTCOME_WAIT);
    stream_resume(t->lower);
    return &t->s;
}

struct stream *tls_accept(struct stream *lower, struct tls_ctx *ctx,
                          const struct stream_handler *h, void *owner,
                          struct slice fed, bool is_direct)
{
    struct tls_stream *t = new_stream(lower, ctx, h, owner);
    t->is_accepting = true;
    t->is_direct = is_direct;
    SSL_set_accept_state(t->ssl);
    t->in = fed;
    return start(t);
}

static void set_host(struct tls_stream *t, const char *host)
{
    bool checks = tls_ctx_checks_name(t->ctx);
    if (host && !is_ip(host))
        SSL_set_tlsext_host_name(t->ssl, host);
    if (!checks)
        return;
    t->host = mem_strdup(host ? host : ""); /* which no certificate is for */
    SSL_set_verify(t->ssl, SSL_VERIFY_PEER, on_verify);
}

static void set_alpn(struct tls_stream *t, const char *alpn)
{
    unsigned char list[TLS_ALPN_MAX + 1];
    size_t n = strlen(alpn);
    must(n > 0 && n < TLS_ALPN_MAX);
    list[0] = (unsigned char)n;
    memcpy(list + 1, alpn, n);
    must(SSL_set_alpn_protos(t->ssl, list, (unsigned)n + 1) == 0);
}

struct stream *tls_connect(struct stream *lower, struct tls_ctx *ctx,
                           const char *host, const char *alpn,
                           const struct stream_handler *h, void *owner)
{
    struct tls_stream *t = new_stream(lower, ctx, h, owner);
    SSL_set_connect_state(t->ssl);
    set_host(t, host);
    if (alpn)
        set_alpn(t, alpn);
    return start(t);
}

const char *tls_text(const struct tls_info *info, char buf[TLS_TEXT_MAX])
{
    snprintf(buf, TLS_TEXT_MAX, "%s/%s", info->version, info->cipher);
    return buf;
}
