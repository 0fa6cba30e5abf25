/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One QUIC connection, of either side.
 *
 *   HANDSHAKE  packets are exchanged; fails with the cause in words
 *   UP         streams come and go
 *   CLOSING    we said goodbye: the last packet is kept for three PTO and sent
 *              again to whoever has not heard it
 *   DRAINING   the peer said it, or nobody answers: three PTO of silence
 *   GONE
 *
 * Whatever way it ends, its streams are told first, then its owner. Callbacks
 * of ngtcp2 run inside ngtcp2_conn_read_pkt(), called from the loop. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/rand.h"
#include "net/quic_impl.h"

enum { CLIENT_CID_BYTES = 8, CLIENT_DCID_BYTES = 18, KEEP_ALIVE_S = 5 };

static const char *peer_text(const struct quic_conn *c, char buf[ADDR_TEXT_MAX])
{
    addr_text(&c->peer, buf, ADDR_TEXT_MAX);
    return buf;
}

void quic_conn_mark_dirty(struct quic_conn *c)
{
    if (c->state > QUIC_CONN_UP || list_is_linked(&c->node_dirty))
        return;
    list_push_back(&c->host->dirty, &c->node_dirty);
    quic_host_wake(c->host);
}

/* The connection's window is refilled at once, so that a paused stream stops
 * nobody else; unless paused ones hold a great deal already. */
void quic_conn_credit(struct quic_conn *c, size_t n)
{
    c->owed_window += n;
    if (c->held > c->held_max || !c->owed_window || c->state > QUIC_CONN_UP)
        return;
    ngtcp2_conn_extend_max_offset(c->q, c->owed_window);
    c->owed_window = 0;
}

/* --- callbacks --------------------------------------------------------------
 */

static ngtcp2_conn *get_conn(ngtcp2_crypto_conn_ref *ref)
{
    return ((struct quic_conn *)ref->user_data)->q;
}

static void on_rand(uint8_t *p, size_t n, const ngtcp2_rand_ctx *ctx)
{
    rand_bytes(p, n);
}

/* TLS is gone after the handshake; nothing it could say is expected then. */
static int on_crypto(ngtcp2_conn *q, ngtcp2_encryption_level level,
                     uint64_t offset, const uint8_t *p, size_t n, void *arg)
{
    struct quic_conn *c = arg;
    if (!c->tls)
        return NGTCP2_ERR_CRYPTO;
    return ngtcp2_crypto_recv_crypto_data_cb(q, level, offset, p, n, arg);
}

static int on_new_cid(ngtcp2_conn *q, ngtcp2_cid *cid, uint8_t *token, size_t n,
                      void *arg)
{
    struct quic_conn *c = arg;
    if (!c->is_server) {
        quic_cid_draw(cid, n);
        rand_bytes(token, NGTCP2_STATELESS_RESET_TOKENLEN);
        return 0;
    }
    const struct quic_listener_params *p = &c->socket->listener->p;
    struct slice secret = quic_shared_secret(p->shared);
    struct quic_place me = quic_listener_place(c->socket->listener);
    quic_cid_make(cid, &me);
    quic_cids_add(&c->socket->cids, cid, c);
    return ngtcp2_crypto_generate_stateless_reset_token(
               token, (const uint8_t *)secret.p, secret.n, cid)
               ? NGTCP2_ERR_CALLBACK_FAILURE
               : 0;
}

static int on_old_cid(ngtcp2_conn *q, const ngtcp2_cid *cid, void *arg)
{
    struct quic_conn *c = arg;
    if (c->is_server)
        quic_cids_remove(&c->socket->cids, cid);
    return 0;
}

static int on_path(ngtcp2_conn *q, uint32_t flags, const ngtcp2_path *path,
                   const ngtcp2_path *old, ngtcp2_path_validation_result res,
                   void *arg)
{
    struct quic_conn *c = arg;
    if (res != NGTCP2_PATH_VALIDATION_RESULT_SUCCESS ||
        path->remote.addrlen > sizeof(struct sockaddr_un))
        return 0;
    struct addr now = {.len = path->remote.addrlen};
    memcpy(&now.sa, path->remote.addr, path->remote.addrlen);
    if (addr_eq(&now, &c->peer))
        return 0;
    c->peer = now;
    c->rebindings++;
    quic_mtu_new_path(c);
    return 0;
}

static int on_stream_open(ngtcp2_conn *q, int64_t id, void *arg)
{
    struct quic_conn *c = arg;
    if (!ngtcp2_is_bidi_stream(id) || !c->is_server)
        return 0;
    struct quic_listener *l = c->socket->listener;
    struct quic_stream *t = quic_stream_new(c, id);
    if (!t || ngtcp2_conn_set_stream_user_data(q, id, t))
        return NGTCP2_ERR_CALLBACK_FAILURE;
    if (c->is_draining)
        quic_stream_refuse(t, QUIC_CODE_SHUTDOWN);
    else if (!l->p.on_stream(l->p.arg, &t->s, &c->peer))
        quic_stream_refuse(t, QUIC_CODE_REFUSED);
    return 0;
}

/* The server's one unidirectional stream: a type byte, then messages of a type
 * byte, a length byte and a body. */
static void read_control(struct quic_conn *c, const uint8_t *p, size_t n)
{
    enum { FIRST, TYPE, LENGTH, BODY, IGNORE };
    for (size_t i = 0; i < n; i++) {
        switch (c->control_at) {
        case FIRST:
            c->control_at = p[i] == QUIC_CONTROL_STREAM ? TYPE : IGNORE;
            break;
        case TYPE:
            c->control_at = LENGTH;
            if (p[i] == QUIC_CONTROL_DRAIN && !c->is_draining) {
                c->is_draining = true;
                if (c->handler && c->handler->on_drain)
                    c->handler->on_drain(c);
            }
            break;
        case LENGTH:
            c->control_skip = p[i];
            c->control_at = p[i] ? BODY : TYPE;
            break;
        case BODY:
            if (--c->control_skip == 0)
                c->control_at = TYPE;
            break;
        default:
            return;
        }
    }
}

static int on_stream_data(ngtcp2_conn *q, uint32_t flags, int64_t id,
                          uint64_t offset, const uint8_t *p, size_t n,
                          void *arg, void *stream)
{
    struct quic_conn *c = arg;
    if (stream) {
        quic_stream_receive(stream, p, n, flags & NGTCP2_STREAM_DATA_FLAG_FIN);
        return 0;
    }
    if (!ngtcp2_is_bidi_stream(id) && !c->is_server)
        read_control(c, p, n);
    (void)ngtcp2_conn_extend_max_stream_offset(q, id, n);
    quic_conn_credit(c, n);
    return 0;
}

static int on_acked(ngtcp2_conn *q, int64_t id, uint64_t offset, uint64_t n,
                    void *arg, void *stream)
{
    if (stream)
        quic_stream_acked(stream, offset + n);
    return 0;
}

static void tell_room(struct quic_conn *c)
{
    if (c->handler && c->handler->on_room)
        c->handler->on_room(c);
}

static int on_stream_close(ngtcp2_conn *q, uint32_t flags, int64_t id,
                           uint64_t code, void *arg, void *stream)
{
    struct quic_conn *c = arg;
    if (stream) {
        (void)ngtcp2_conn_set_stream_user_data(q, id, NULL);
        quic_stream_gone(stream);
    }
    if (ngtcp2_conn_is_local_stream(q, id))
        tell_room(c);
    else if (!ngtcp2_is_bidi_stream(id))
        ngtcp2_conn_extend_max_streams_uni(q, 1);
    else if (!c->is_draining)
        ngtcp2_conn_extend_max_streams_bidi(q, 1);
    return 0;
}

static int on_stream_reset(ngtcp2_conn *q, int64_t id, uint64_t final_size,
                           uint64_t code, void *arg, void *stream)
{
    struct quic_stream *t = stream;
    static const char *const why[] = {
        [QUIC_CODE_NONE] = "the peer reset the session",
        [QUIC_CODE_SHUTDOWN] = "the peer takes no new sessions",
        [QUIC_CODE_LOST] = "the session broke on the peer's other side",
        [QUIC_CODE_REFUSED] = "the peer refused the session: a limit",
        [QUIC_CODE_PROTOCOL] = "the peer calls it a protocol violation",
        [QUIC_CODE_TIMEOUT] = "the peer waited too long",
    };
    if (!t)
        return 0;
    t->is_cut = true;
    list_remove(&t->node_ready);
    quic_stream_tell_error(
        t, code == QUIC_CODE_SHUTDOWN ? ERR_SHUTDOWN : ERR_CLOSED,
        why[code < ARRAY_SIZE(why) ? code : 0]);
    return 0;
}

static int on_stream_window(ngtcp2_conn *q, int64_t id, uint64_t max, void *arg,
                            void *stream)
{
    struct quic_stream *t = stream;
    if (!t)
        return 0;
    t->is_blocked = false;
    quic_stream_mark_ready(t);
    return 0;
}

static int on_more_streams(ngtcp2_conn *q, uint64_t max, void *arg)
{
    tell_room(arg);
    return 0;
}

static void end_half_open(struct quic_conn *c)
{
    c->socket->n_half_open -= c->is_half_open;
    c->is_half_open = false;
}

static void send_token(struct quic_conn *c)
{
    uint8_t token[NGTCP2_CRYPTO_MAX_REGULAR_TOKENLEN];
    struct slice secret = quic_shared_secret(c->socket->listener->p.shared);
    ngtcp2_ssize n = ngtcp2_crypto_generate_regular_token(
        token, (const uint8_t *)secret.p, secret.n, &c->peer.sa, c->peer.len,
        quic_now());
    if (n > 0)
        (void)ngtcp2_conn_submit_new_token(c->q, token, (size_t)n);
}

static int on_handshake_done(ngtcp2_conn *q, void *arg)
{
    enum { ALERT_BAD_CERTIFICATE = 42 };
    struct quic_conn *c = arg;
    if (quic_session_finish(c->tls, &c->who, &c->why)) {
        c->alert = ALERT_BAD_CERTIFICATE;
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    c->state = QUIC_CONN_UP;
    if (c->who.is_resumed)
        c->host->totals.resumed++;
    else
        c->host->totals.full++;
    end_half_open(c);
    if (c->is_server)
        send_token(c);
    else if (c->handler && c->handler->on_up)
        c->handler->on_up(c);
    return 0;
}

static int on_new_token(ngtcp2_conn *q, const uint8_t *p, size_t n, void *arg)
{
    struct quic_conn *c = arg;
    void *copy = c->memory ? malloc(n) : NULL;
    if (!copy)
        return 0;
    memcpy(copy, p, n);
    free(c->memory->token);
    c->memory->token = copy;
    c->memory->token_n = n;
    return 0;
}

static const ngtcp2_callbacks callbacks = {
    .client_initial = ngtcp2_crypto_client_initial_cb,
    .recv_client_initial = ngtcp2_crypto_recv_client_initial_cb,
    .recv_retry = ngtcp2_crypto_recv_retry_cb,
    .recv_crypto_data = on_crypto,
    .encrypt = ngtcp2_crypto_encrypt_cb,
    .decrypt = ngtcp2_crypto_decrypt_cb,
    .hp_mask = ngtcp2_crypto_hp_mask_cb,
    .update_key = ngtcp2_crypto_update_key_cb,
    .delete_crypto_aead_ctx = ngtcp2_crypto_delete_crypto_aead_ctx_cb,
    .delete_crypto_cipher_ctx = ngtcp2_crypto_delete_crypto_cipher_ctx_cb,
    .get_path_challenge_data = ngtcp2_crypto_get_path_challenge_data_cb,
    .version_negotiation = ngtcp2_crypto_version_negotiation_cb,
    .rand = on_rand,
    .get_new_connection_id = on_new_cid,
    .remove_connection_id = on_old_cid,
    .path_validation = on_path,
    .stream_open = on_stream_open,
    .recv_stream_data = on_stream_data,
    .acked_stream_data_offset = on_acked,
    .stream_close = on_stream_close,
    .stream_reset = on_stream_reset,
    .extend_max_stream_data = on_stream_window,
    .extend_max_local_streams_bidi = on_more_streams,
    .handshake_completed = on_handshake_done,
    .recv_new_token = on_new_token,
};

/* --- making one -------------------------------------------------------------
 */

static bool is_loopback(const struct addr *a)
{
    if (a->sa.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
    return (ntohl(a->in.sin_addr.s_addr) >> 24) == 127;
}

static void on_timer(struct timer *t);

static struct quic_conn *make(struct quic_socket *s, const struct addr *peer,
                              bool is_server)
{
    static _Atomic uint64_t last_id;
    struct quic_conn *c = mem_new(sizeof *c);
    c->id = ++last_id;
    c->host = s->host;
    c->socket = s;
    c->is_server = is_server;
    c->peer = *peer;
    /* Where nothing is lost for lack of room on the way, pacing only costs;
     * to be decided once, since the library adds up what was not told. */
    c->is_paced = !is_loopback(peer);
    c->drain_stream = c->close_code = -1;
    c->start_us = loop_now_us(s->host->loop);
    c->timer.on_fire = on_timer;
    list_init(&c->node);
    list_init(&c->node_dirty);
    list_init(&c->streams);
    list_init(&c->small);
    list_init(&c->bulk);
    list_init(&c->doomed);
    return c;
}

struct setting {
    enum quic_congestion congestion;
    const struct quic_windows *windows;
    int64_t idle_us, handshake_us;
};

static void set_up(struct quic_conn *c, ngtcp2_settings *st,
                   ngtcp2_transport_params *tp, const struct setting *from)
{
    static const ngtcp2_cc_algo algo[] = {
        [QUIC_CONGESTION_CUBIC] = NGTCP2_CC_ALGO_CUBIC,
        [QUIC_CONGESTION_RENO] = NGTCP2_CC_ALGO_RENO,
        [QUIC_CONGESTION_BBR] = NGTCP2_CC_ALGO_BBR,
    };
    const struct quic_windows *w = from->windows;
    ngtcp2_settings_default(st);
    st->initial_ts = quic_now();
    st->cc_algo = algo[from->congestion];
    st->max_tx_udp_payload_size = QUIC_PACKET_MAX;
    st->ack_thresh = 1; /* an acknowledgement rides along with the reply */
    st->initial_rtt = QUIC_INITIAL_RTT_MS * NGTCP2_MILLISECONDS;
    st->handshake_timeout =
        (ngtcp2_duration)from->handshake_us * NGTCP2_MICROSECONDS;
    st->max_window = MAX(w->conn_max, w->conn);
    st->max_stream_window = MAX(w->stream_max, w->stream);
    c->held_max = (size_t)st->max_window / 2;
    ngtcp2_transport_params_default(tp);
    tp->initial_max_data = w->conn;
    tp->max_idle_timeout = (ngtcp2_duration)from->idle_us * NGTCP2_MICROSECONDS;
}

static int set_server(struct quic_conn *c, const struct quic_accept *a,
                      struct err *e)
{
    const struct quic_listener_params *p = &c->socket->listener->p;
    struct slice secret = quic_shared_secret(p->shared);
    ngtcp2_settings st;
    ngtcp2_transport_params tp;
    ngtcp2_cid scid;
    const struct setting from = {
        .congestion = p->limits.congestion,
        .windows = &p->limits.windows,
        .idle_us = p->limits.idle_timeout_us,
        .handshake_us = p->limits.handshake_timeout_us,
    };
    set_up(c, &st, &tp, &from);
    st.token = a->hd->token;
    st.tokenlen = a->hd->tokenlen;
    st.token_type = a->token_type;
    tp.initial_max_stream_data_bidi_remote = from.windows->stream;
    tp.initial_max_streams_bidi = (uint64_t)p->limits.max_streams;
    tp.original_dcid = a->odcid ? *a->odcid : a->hd->dcid;
    tp.original_dcid_present = 1;
    if (a->odcid) {
        tp.retry_scid = a->hd->dcid;
        tp.retry_scid_present = 1;
    }
    struct quic_place me = quic_listener_place(c->socket->listener);
    quic_cid_make(&scid, &me);
    if (ngtcp2_crypto_generate_stateless_reset_token(tp.stateless_reset_token,
                                                     (const uint8_t *)secret.p,
                                                     secret.n, &scid) == 0)
        tp.stateless_reset_token_present = 1;
    int rv =
        ngtcp2_conn_server_new(&c->q, &a->hd->scid, &scid, a->path,
                               a->hd->version, &callbacks, &st, &tp, NULL, c);
    if (rv)
        return err_set(e, ERR_IO, "%s", ngtcp2_strerror(rv));
    int rc = quic_session_new_server(&c->tls, p->tls, get_conn, c, e);
    if (rc) {
        ngtcp2_conn_del(c->q);
        return rc;
    }
    ngtcp2_conn_set_tls_native_handle(c->q, quic_session_native(c->tls));
    quic_cids_add(&c->socket->cids, &scid, c);
    quic_cids_add(&c->socket->cids, &a->hd->dcid, c);
    return 0;
}

struct quic_conn *quic_conn_accept(struct quic_socket *s,
                                   const struct quic_accept *a)
{
    struct quic_conn *c = make(s, a->peer, true);
    struct err e;
    if (set_server(c, a, &e)) {
        if (quic_socket_may_tell(s))
            log_error("QUIC connection: %s", e.text);
        free(c);
        return NULL;
    }
    c->counted = c->peer;
    c->is_counted = c->is_half_open = true;
    s->n_half_open++;
    list_push_back(&s->conns, &c->node);
    return c;
}

static int set_client(struct quic_conn *c, const struct quic_connect_params *p,
                      struct err *e)
{
    ngtcp2_settings st;
    ngtcp2_transport_params tp;
    ngtcp2_cid dcid, scid;
    ngtcp2_path path = {
        .local = {&c->socket->local.sa, c->socket->local.len},
        .remote = {&c->peer.sa, c->peer.len},
    };
    const struct setting from = {
        .congestion = p->congestion,
        .windows = &quic_client_windows,
        .idle_us = p->idle_timeout_us,
        .handshake_us = p->handshake_timeout_us,
    };
    set_up(c, &st, &tp, &from);
    tp.initial_max_stream_data_bidi_local = from.windows->stream;
    tp.initial_max_stream_data_uni = 4096;
    tp.initial_max_streams_uni = 1; /* the control stream */
    if (p->memory && p->memory->token) {
        st.token = p->memory->token;
        st.tokenlen = p->memory->token_n;
    }
    quic_cid_draw(&dcid, CLIENT_DCID_BYTES);
    quic_cid_draw(&scid, CLIENT_CID_BYTES);
    int rv =
        ngtcp2_conn_client_new(&c->q, &dcid, &scid, &path, NGTCP2_PROTO_VER_V1,
                               &callbacks, &st, &tp, NULL, c);
    if (rv)
        return err_set(e, ERR_IO, "QUIC: %s", ngtcp2_strerror(rv));
    struct quic_session_client sc = {p->host, p->alpn, p->is_tunnel, p->memory};
    int rc = quic_session_new_client(&c->tls, p->tls, &sc, get_conn, c, e);
    if (rc) {
        ngtcp2_conn_del(c->q);
        return rc;
    }
    ngtcp2_conn_set_tls_native_handle(c->q, quic_session_native(c->tls));
    ngtcp2_conn_set_keep_alive_timeout(c->q, KEEP_ALIVE_S * NGTCP2_SECONDS);
    return 0;
}

int quic_connect(struct quic_conn **out, struct quic_host *host,
                 const struct addr *to, const struct quic_connect_params *p,
                 const struct quic_conn_handler *h, void *owner, struct err *e)
{
    struct quic_socket *s;
    int fd = quic_udp_connect(to, e);
    if (fd < 0)
        return fd;
    int rc = quic_socket_new(&s, host, fd, e);
    if (rc)
        return rc;
    s->is_connected = true;
    struct quic_conn *c = make(s, to, false);
    rc = set_client(c, p, e);
    if (rc) {
        free(c);
        quic_socket_close(s);
        return rc;
    }
    c->handler = h;
    c->owner = owner;
    c->memory = p->memory;
    s->client = c;
    list_push_back(&s->conns, &c->node);
    quic_conn_mark_dirty(c);
    *out = c;
    return 0;
}

/* --- its end ----------------------------------------------------------------
 */

static void forget_cids(struct quic_conn *c)
{
    enum { CIDS_MAX = 64 };
    ngtcp2_cid cids[CIDS_MAX];
    size_t n = ngtcp2_conn_get_scid(c->q, NULL);
    const ngtcp2_cid *first = ngtcp2_conn_get_client_initial_dcid(c->q);
    if (!c->is_server)
        return;
    must(n <= CIDS_MAX);
    (void)ngtcp2_conn_get_scid(c->q, cids);
    for (size_t i = 0; i < n; i++)
        quic_cids_remove(&c->socket->cids, &cids[i]);
    if (quic_cids_find(&c->socket->cids, first->data, first->datalen) == c)
        quic_cids_remove(&c->socket->cids, first);
}

void quic_conn_destroy(struct quic_conn *c)
{
    struct err why;
    (void)err_set(&why, ERR_CLOSED, "closed");
    while (!list_empty(&c->streams))
        quic_stream_lost(
            list_entry(list_first(&c->streams), struct quic_stream, node),
            &why);
    end_half_open(c);
    if (c->is_counted)
        quic_shared_leave(c->socket->listener->p.shared, &c->counted);
    timer_clear(c->host->loop, &c->timer);
    quic_host_keep_counts(c);
    list_remove(&c->node_dirty);
    list_remove(&c->node);
    forget_cids(c);
    c->state = QUIC_CONN_GONE;
    ngtcp2_conn_del(c->q);
    quic_session_free(c->tls);
    quic_identity_clear(&c->who);
    free(c->last);
    loop_free_later(c->host->loop, c);
}

static void retire(struct quic_conn *c)
{
    if (c->socket->client == c)
        quic_socket_close(c->socket);
    else
        quic_conn_destroy(c);
}

/* Says what there is to say about a handshake that failed here or there. */
static void log_refusal(struct quic_conn *c)
{
    char at[ADDR_TEXT_MAX];
    if (c->is_server && c->why.text[0] && quic_socket_may_tell(c->socket))
        log_warning("%s: QUIC handshake failed: %s", peer_text(c, at),
                    c->why.text);
}

static void tell_end(struct quic_conn *c)
{
    const struct quic_conn_handler *h = c->handler;
    while (!list_empty(&c->streams))
        quic_stream_lost(
            list_entry(list_first(&c->streams), struct quic_stream, node),
            &c->why);
    c->handler = NULL;
    if (h && h->on_down)
        h->on_down(c, &c->why);
}

static void linger(struct quic_conn *c, enum quic_conn_state state)
{
    bool was_up = c->state == QUIC_CONN_UP;
    int64_t pto_us = (int64_t)(ngtcp2_conn_get_pto(c->q) / NGTCP2_MICROSECONDS);
    if (!was_up) {
        c->host->totals.failed++;
        log_refusal(c);
        if (c->memory)
            quic_memory_clear(c->memory);
    }
    end_half_open(c);
    c->state = (uint8_t)state;
    list_remove(&c->node_dirty);
    timer_set(c->host->loop, &c->timer,
              loop_now_us(c->host->loop) +
                  (state == QUIC_CONN_GONE ? 0 : 3 * pto_us));
    tell_end(c);
}

/* Writes and sends the closing packet; it is kept for who has not heard it. */
static void say_goodbye(struct quic_conn *c, const ngtcp2_ccerr *cc)
{
    uint8_t packet[QUIC_PACKET_MAX];
    ngtcp2_path_storage ps;
    ngtcp2_pkt_info pi;
    ngtcp2_path_storage_zero(&ps);
    ngtcp2_ssize n = ngtcp2_conn_write_connection_close(
        c->q, &ps.path, &pi, packet, sizeof packet, cc, quic_now());
    if (n <= 0) {
        linger(c, QUIC_CONN_DRAINING);
        return;
    }
    quic_socket_send(c->socket, &ps.path, packet, (size_t)n, (size_t)n);
    c->last = malloc((size_t)n);
    if (c->last) {
        memcpy(c->last, packet, (size_t)n);
        c->last_n = (size_t)n;
    }
    linger(c, QUIC_CONN_CLOSING);
}

void quic_conn_end(struct quic_conn *c, uint64_t code, const struct err *why)
{
    ngtcp2_ccerr cc;
    if (c->state > QUIC_CONN_UP)
        return;
    c->why = *why;
    ngtcp2_ccerr_set_application_error(&cc, code, (const uint8_t *)why->text,
                                       strlen(why->text));
    say_goodbye(c, &cc);
}

enum { CRYPTO_ERROR = 0x100 };

/* What the peer gave as its reason. */
static void explain_peer(struct quic_conn *c)
{
    const ngtcp2_ccerr *cc = ngtcp2_conn_get_ccerr(c->q);
    int n = (int)MIN(cc->reasonlen, (size_t)200);
    const char *reason = n ? (const char *)cc->reason : "";
    char text[256], clean[204];
    for (int i = 0; i < n; i++)
        clean[i] = reason[i] >= ' ' && reason[i] < 127 ? reason[i] : '?';
    clean[n] = 0;
    if (cc->type == NGTCP2_CCERR_TYPE_APPLICATION) {
        (void)err_set(&c->why,
                      cc->error_code == QUIC_CODE_SHUTDOWN ? ERR_SHUTDOWN
                                                           : ERR_CLOSED,
                      "closed by the peer%s%s", n ? ": " : "", clean);
        return;
    }
    if ((cc->error_code & ~(uint64_t)0xff) == CRYPTO_ERROR) {
        unsigned alert = cc->error_code & 0xff;
        snprintf(text, sizeof text, "refused by the peer: TLS alert %u (%s)",
                 alert, quic_alert_name(alert));
    } else if (cc->error_code == NGTCP2_CONNECTION_REFUSED) {
        snprintf(text, sizeof text, "refused by the peer");
    } else if (cc->error_code || n) {
        snprintf(text, sizeof text, "closed by the peer: QUIC error 0x%llx",
                 (unsigned long long)cc->error_code);
    } else {
        snprintf(text, sizeof text, "the peer has forgotten the connection");
    }
    (void)err_set(&c->why, ERR_CLOSED, "%s%s%s", text, n ? ": " : "", clean);
}

static void explain_crypto(struct quic_conn *c)
{
    char text[256] = "";
    unsigned alert = ngtcp2_conn_get_tls_alert(c->q);
    if (c->tls)
        quic_session_explain(c->tls, text, sizeof text);
    (void)err_set(&c->why, ERR_TLS, "%s (TLS alert %u)",
                  text[0] ? text : quic_alert_name(alert), alert);
}

static void explain_silence(struct quic_conn *c)
{
    if (c->state == QUIC_CONN_UP)
        (void)err_set(&c->why, ERR_TIMEOUT, "the peer went silent");
    else
        (void)err_set(&c->why, ERR_TIMEOUT,
                      "no answer over UDP: nobody listens there, or the "
                      "network lets no UDP through");
}

void quic_conn_fail(struct quic_conn *c, int rv)
{
    ngtcp2_ccerr cc;
    if (c->state > QUIC_CONN_UP)
        return;
    ngtcp2_ccerr_default(&cc);
    switch (rv) {
    case NGTCP2_ERR_DRAINING:
    case NGTCP2_ERR_CLOSING:
        explain_peer(c);
        linger(c, QUIC_CONN_DRAINING);
        return;
    case NGTCP2_ERR_IDLE_CLOSE:
    case NGTCP2_ERR_HANDSHAKE_TIMEOUT:
        explain_silence(c);
        linger(c, QUIC_CONN_GONE);
        return;
    case NGTCP2_ERR_DROP_CONN:
    case NGTCP2_ERR_RETRY:
        linger(c, QUIC_CONN_GONE);
        return;
    case NGTCP2_ERR_CRYPTO:
        explain_crypto(c);
        ngtcp2_ccerr_set_tls_alert(&cc, ngtcp2_conn_get_tls_alert(c->q), NULL,
                                   0);
        break;
    case NGTCP2_ERR_RECV_VERSION_NEGOTIATION:
        (void)err_set(&c->why, ERR_PROTO,
                      "the peer does not speak QUIC version 1");
        linger(c, QUIC_CONN_GONE);
        return;
    default:
        if (c->alert) {
            ngtcp2_ccerr_set_tls_alert(&cc, c->alert, NULL, 0);
            break;
        }
        (void)err_set(&c->why, ERR_PROTO, "QUIC: %s", ngtcp2_strerror(rv));
        ngtcp2_ccerr_set_liberr(&cc, rv, NULL, 0);
    }
    say_goodbye(c, &cc);
}

void quic_conn_refused(struct quic_conn *c, int cause)
{
    /* Later on it may be a forgery, or the peer's restart: its silence, or its
     * reset, says more. */
    if (c->state != QUIC_CONN_HANDSHAKE)
        return;
    (void)err_set(&c->why, ERR_CONNECT, "UDP: %s", strerror(cause));
    linger(c, QUIC_CONN_GONE);
}

/* --- time and packets -------------------------------------------------------
 */

/* Closed streams whose rest nobody took. */
static void end_doomed(struct quic_conn *c)
{
    struct list *n;
    int64_t now = loop_now_us(c->host->loop);
    while ((n = list_first(&c->doomed))) {
        struct quic_stream *t = list_entry(n, struct quic_stream, node_doomed);
        if (t->doomed_us > now)
            return;
        list_remove(n);
        (void)ngtcp2_conn_shutdown_stream(c->q, 0, t->id, QUIC_CODE_TIMEOUT);
    }
}

static void on_timer(struct timer *timer)
{
    struct quic_conn *c = container_of(timer, struct quic_conn, timer);
    ngtcp2_tstamp now = quic_now();
    if (c->state > QUIC_CONN_UP) {
        retire(c);
        return;
    }
    end_doomed(c);
    if (ngtcp2_conn_get_expiry(c->q) <= now) {
        int rv = ngtcp2_conn_handle_expiry(c->q, now);
        if (rv) {
            quic_conn_fail(c, rv);
            return;
        }
    }
    quic_conn_mark_dirty(c);
}

void quic_conn_set_timer(struct quic_conn *c)
{
    ngtcp2_tstamp expiry = ngtcp2_conn_get_expiry(c->q);
    int64_t at = INT64_MAX;
    struct list *n = list_first(&c->doomed);
    if (expiry != UINT64_MAX)
        at =
            (int64_t)((expiry + NGTCP2_MICROSECONDS - 1) / NGTCP2_MICROSECONDS);
    if (n)
        at = MIN(at, list_entry(n, struct quic_stream, node_doomed)->doomed_us);
    if (at != INT64_MAX)
        timer_set(c->host->loop, &c->timer, at);
    else
        timer_clear(c->host->loop, &c->timer);
}

/* It hears the last packet again, less and less often. */
static void repeat_goodbye(struct quic_conn *c, const ngtcp2_path *path)
{
    unsigned n = ++c->n_last_asked;
    if (c->state == QUIC_CONN_CLOSING && c->last && (n & (n - 1)) == 0)
        quic_socket_send(c->socket, path, c->last, c->last_n, c->last_n);
}

/* Memory that only a handshake needs. */
static void free_tls(struct quic_conn *c)
{
    if (!c->tls || !c->is_server || c->state != QUIC_CONN_UP)
        return;
    ngtcp2_conn_set_tls_native_handle(c->q, NULL);
    quic_session_free(c->tls);
    c->tls = NULL;
}

void quic_conn_read(struct quic_conn *c, const ngtcp2_path *path, uint8_t *p,
                    size_t n)
{
    ngtcp2_pkt_info pi = {0};
    if (c->state > QUIC_CONN_UP) {
        repeat_goodbye(c, path);
        return;
    }
    c->packets_in++;
    c->bytes_in += n;
    int rv = ngtcp2_conn_read_pkt(c->q, path, &pi, p, n, quic_now());
    if (rv) {
        quic_conn_fail(c, rv);
        return;
    }
    free_tls(c);
    quic_conn_mark_dirty(c);
}

/* --- the owner's calls ------------------------------------------------------
 */

struct stream *quic_open_stream(struct quic_conn *c,
                                const struct stream_handler *h, void *owner)
{
    int64_t id;
    if (c->state != QUIC_CONN_UP || c->is_draining || c->close_code >= 0 ||
        ngtcp2_conn_get_streams_bidi_left(c->q) == 0)
        return NULL;
    struct quic_stream *t = quic_stream_new(c, -1);
    if (!t)
        return NULL;
    if (ngtcp2_conn_open_bidi_stream(c->q, &id, t)) {
        c->n_streams--;
        t->is_owned = false;
        quic_stream_forget(t);
        return NULL;
    }
    t->id = id;
    stream_set_owner(&t->s, h, owner);
    return &t->s;
}

void *quic_conn_owner(const struct quic_conn *c)
{
    return c->owner;
}

bool quic_conn_is_up(const struct quic_conn *c)
{
    return c->state == QUIC_CONN_UP;
}

bool quic_conn_is_draining(const struct quic_conn *c)
{
    return c->is_draining;
}

int quic_conn_streams(const struct quic_conn *c)
{
    return c->n_streams;
}

uint64_t quic_conn_room(const struct quic_conn *c)
{
    return c->state == QUIC_CONN_UP ? ngtcp2_conn_get_streams_bidi_left(c->q)
                                    : 0;
}

void quic_conn_close(struct quic_conn *c, enum quic_code code)
{
    c->handler = NULL;
    c->memory = NULL;
    quic_session_drop_memory(c->tls);
    c->close_code = code;
    quic_conn_mark_dirty(c);
}

void quic_conn_say_drain(struct quic_conn *c)
{
    if (c->is_draining || c->state > QUIC_CONN_UP)
        return;
    c->is_draining = true;
    if (c->state == QUIC_CONN_UP && c->who.info.is_tunnel &&
        ngtcp2_conn_open_uni_stream(c->q, &c->drain_stream, NULL))
        c->drain_stream = -1; /* the peer takes none: it finds out */
    quic_conn_mark_dirty(c);
}
