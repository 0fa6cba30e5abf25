/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A bidirectional QUIC stream as a struct stream.
 *
 * Calls by the owner only queue and mark; ngtcp2 is called by the flush at the
 * turn's end. Bytes that arrive are handed up inside ngtcp2_conn_read_pkt(); a
 * paused stream keeps them, at most its window, and that window opens as the
 * owner takes them. The owner may keep a stream longer than its connection
 * lives: then conn is NULL and nothing but close does anything. */
#include <stdlib.h>

#include "net/quic_impl.h"

static struct quic_stream *stream_of(struct stream *s)
{
    return container_of(s, struct quic_stream, s);
}

static void owe(struct quic_stream *t)
{
    if (list_is_linked(&t->node_owed))
        return;
    /* A lost stream has no connection, but its loop. */
    if (!t->conn)
        return;
    list_push_back(&t->conn->host->owed, &t->node_owed);
    quic_host_wake(t->conn->host);
}

void quic_stream_mark_ready(struct quic_stream *t)
{
    struct quic_conn *c = t->conn;
    size_t unsent = quic_sendq_unsent(&t->out);
    bool has_rest = unsent || (t->fin_wanted && !t->fin_sent);
    if (!c || t->is_gone || t->is_cut || t->is_blocked || !has_rest ||
        list_is_linked(&t->node_ready))
        return;
    list_push_back(unsent > QUIC_SMALL_BYTES ? &c->bulk : &c->small,
                   &t->node_ready);
}

static void mark_for_flush(struct quic_stream *t)
{
    quic_stream_mark_ready(t);
    if (t->conn)
        quic_conn_mark_dirty(t->conn);
}

/* --- the owner's calls ------------------------------------------------------
 */

static int quic_writev(struct stream *s, const struct iovec *iov, int n)
{
    struct quic_stream *t = stream_of(s);
    if (!t->conn || t->is_gone || t->is_cut || t->fin_wanted)
        return ERR_CLOSED;
    if (quic_sendq_put(&t->out, &t->conn->host->chunks, iov, n)) {
        t->error = ERR_NOMEM;
        owe(t);
        return ERR_NOMEM;
    }
    s->pending = quic_sendq_unsent(&t->out);
    mark_for_flush(t);
    return 0;
}

static void quic_pause(struct stream *s)
{
    s->is_paused = true;
}

static void quic_resume(struct stream *s)
{
    struct quic_stream *t = stream_of(s);
    s->is_paused = false;
    if (t->in.size || t->kept_back || (t->fin_received && !t->eof_told))
        owe(t);
}

static void quic_shutdown(struct stream *s)
{
    struct quic_stream *t = stream_of(s);
    t->fin_wanted = true;
    mark_for_flush(t);
}

static void give_in_back(struct quic_stream *t)
{
    if (t->conn && t->in.size) {
        struct quic_conn *c = t->conn;
        c->held -= t->in.size;
        quic_conn_credit(c, 0);
    }
    bufq_clear(&t->in, t->conn ? loop_pool(t->conn->host->loop) : NULL);
}

static void let_go(struct quic_stream *t)
{
    t->is_owned = false;
    t->s.handler = NULL;
    t->s.owner = NULL;
    give_in_back(t);
    list_remove(&t->node_owed);
}

static void quic_close(struct stream *s)
{
    struct quic_stream *t = stream_of(s);
    if (!t->is_owned)
        return;
    let_go(t);
    if (!t->conn || t->is_gone) {
        quic_stream_forget(t);
        return;
    }
    struct quic_conn *c = t->conn;
    if (t->is_cut) {
        t->wants_reset = true;
    } else {
        t->wants_stop = !t->fin_received;
        t->fin_wanted = true;
        quic_stream_mark_ready(t);
    }
    t->doomed_us = loop_now_us(c->host->loop) + QUIC_LINGER_US;
    c->has_orders = true;
    list_push_back(&c->doomed, &t->node_doomed);
    quic_conn_mark_dirty(c);
}

static void quic_reset(struct stream *s)
{
    struct quic_stream *t = stream_of(s);
    t->wants_reset = true;
    t->reset_code = QUIC_CODE_LOST;
    if (!t->is_cut) {
        t->is_cut = true;
        list_remove(&t->node_ready);
    }
    quic_close(s);
}

static int quic_fd(const struct stream *s)
{
    return -1;
}

static const struct tls_info *quic_tls_of(const struct stream *s)
{
    const struct quic_stream *t = container_of(s, struct quic_stream, s);
    return t->conn ? &t->conn->who.info : NULL;
}

static int quic_ends(const struct stream *s, struct addr *peer,
                     struct addr *self)
{
    const struct quic_stream *t = container_of(s, struct quic_stream, s);
    if (!t->conn)
        return ERR_CLOSED;
    *peer = t->conn->peer;
    *self = t->conn->socket->local;
    return 0;
}

static const struct stream_ops quic_ops = {
    .writev = quic_writev,
    .pause = quic_pause,
    .resume = quic_resume,
    .shutdown = quic_shutdown,
    .close = quic_close,
    .reset = quic_reset,
    .fd = quic_fd,
    .tls = quic_tls_of,
    .ends = quic_ends,
};

bool quic_stream_ids(const struct stream *s, uint64_t *conn, int64_t *stream)
{
    const struct quic_stream *t;
    if (s->ops != &quic_ops)
        return false;
    t = container_of(s, struct quic_stream, s);
    if (!t->conn)
        return false;
    *conn = t->conn->id;
    *stream = t->id;
    return true;
}

struct stream *quic_open_beside(struct stream *s,
                                const struct stream_handler *h, void *owner)
{
    struct quic_stream *t = stream_of(s);
    return t->conn ? quic_open_stream(t->conn, h, owner) : NULL;
}

bool quic_stream_is_draining(const struct stream *s)
{
    const struct quic_stream *t = container_of(s, struct quic_stream, s);
    return t->conn && t->conn->is_draining;
}

struct quic_stream *quic_stream_new(struct quic_conn *c, int64_t id)
{
    struct quic_stream *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->s.ops = &quic_ops;
    t->s.loop = c->host->loop;
    t->s.kind = STREAM_QUIC;
    t->conn = c;
    t->id = id;
    t->is_owned = true;
    bufq_init(&t->in);
    list_init(&t->node);
    list_init(&t->node_ready);
    list_init(&t->node_owed);
    list_init(&t->node_doomed);
    list_push_back(&c->streams, &t->node);
    c->n_streams++;
    return t;
}

/* --- what arrives -----------------------------------------------------------
 */

/* The owner took n bytes: the peer may send as many more, unless the owner does
 * not want them now. */
static void open_window(struct quic_stream *t, size_t n)
{
    t->kept_back += n;
    if (t->s.is_paused || !t->conn || t->is_gone || !t->kept_back)
        return;
    (void)ngtcp2_conn_extend_max_stream_offset(t->conn->q, t->id, t->kept_back);
    t->kept_back = 0;
}

static void tell_eof(struct quic_stream *t)
{
    if (!t->is_owned || t->eof_told || t->error_told || t->s.is_paused ||
        t->in.size || !t->fin_received)
        return;
    t->eof_told = true;
    if (t->s.handler && t->s.handler->on_eof)
        t->s.handler->on_eof(&t->s);
}

static void hold(struct quic_stream *t, const uint8_t *p, size_t n)
{
    if (bufq_put(&t->in, loop_pool(t->conn->host->loop), p, n)) {
        quic_stream_tell_error(t, ERR_NOMEM, "out of memory");
        return;
    }
    t->conn->held += n;
}

void quic_stream_receive(struct quic_stream *t, const uint8_t *p, size_t n,
                         bool is_last)
{
    quic_conn_credit(t->conn, n);
    t->fin_received = t->fin_received || is_last;
    if (!t->is_owned || t->error_told)
        return;
    if (n && (t->s.is_paused || t->in.size)) {
        hold(t, p, n);
    } else if (n) {
        t->s.handler->on_data(&t->s, (const char *)p, n);
        if (t->is_owned)
            open_window(t, n);
    }
    tell_eof(t);
}

/* From the turn's end: a stream that was paused goes on. */
static void deliver_held(struct quic_stream *t)
{
    struct bufq_pool *pool = loop_pool(t->conn->host->loop);
    struct bufq held = t->in;
    bufq_init(&t->in);
    while (held.size && t->is_owned && !t->s.is_paused) {
        struct slice s = bufq_front(&held);
        t->s.handler->on_data(&t->s, s.p, s.n);
        if (t->conn) {
            t->conn->held -= s.n;
            quic_conn_credit(t->conn, 0);
        }
        open_window(t, s.n);
        bufq_drop(&held, pool, s.n);
    }
    if (t->is_owned) {
        t->in = held;
        return;
    }
    if (t->conn) {
        t->conn->held -= held.size;
        quic_conn_credit(t->conn, 0);
    }
    bufq_clear(&held, pool);
}

void quic_stream_deliver(struct quic_stream *t)
{
    if (!t->is_owned)
        return;
    if (t->error) {
        quic_stream_tell_error(t, t->error, err_name(t->error));
        return;
    }
    if (t->error_told)
        return;
    if (t->in.size)
        deliver_held(t);
    if (!t->is_owned)
        return;
    open_window(t, 0);
    if (t->conn)
        quic_conn_mark_dirty(t->conn); /* the window's news */
    tell_eof(t);
}

/* --- what has left ----------------------------------------------------------
 */

void quic_stream_acked(struct quic_stream *t, uint64_t offset)
{
    if (!t->conn)
        return;
    quic_sendq_ack(&t->out, &t->conn->host->chunks, offset);
    t->waits_us =
        quic_sendq_unacked(&t->out) ? loop_now_us(t->conn->host->loop) : 0;
}

void quic_stream_note_sent(struct quic_stream *t, size_t n)
{
    quic_sendq_mark_sent(&t->out, n);
    if (n && !t->waits_us)
        t->waits_us = loop_now_us(t->conn->host->loop);
    size_t was = t->s.pending;
    t->s.pending = quic_sendq_unsent(&t->out);
    if (was && !t->s.pending && t->is_owned && t->s.handler->on_drain)
        t->s.handler->on_drain(&t->s);
}

/* --- the end ----------------------------------------------------------------
 */

void quic_stream_tell_error(struct quic_stream *t, int code, const char *text)
{
    struct err e;
    if (!t->is_owned || t->error_told)
        return;
    t->error_told = true;
    give_in_back(t);
    (void)err_set(&e, code, "%s", text);
    if (t->s.handler && t->s.handler->on_error)
        t->s.handler->on_error(&t->s, &e);
}

void quic_stream_forget(struct quic_stream *t)
{
    struct quic_conn *c = t->conn;
    must(!t->is_owned);
    list_remove(&t->node_ready);
    list_remove(&t->node_doomed);
    list_remove(&t->node_owed);
    list_remove(&t->node);
    if (c)
        quic_sendq_clear(&t->out, &c->host->chunks);
    loop_free_later(t->s.loop, t);
}

/* ngtcp2 knows it no more: both directions have ended and were acknowledged. */
void quic_stream_gone(struct quic_stream *t)
{
    struct quic_conn *c = t->conn;
    t->is_gone = true;
    t->s.pending = 0;
    c->n_streams--;
    list_remove(&t->node_ready);
    quic_sendq_clear(&t->out, &c->host->chunks);
    if (!t->is_owned)
        quic_stream_forget(t);
    else if (!t->fin_received)
        quic_stream_tell_error(t, ERR_CLOSED, "the stream was closed");
}

/* The connection is no more. While the owner is told, it can still see whose it
 * was. */
void quic_stream_lost(struct quic_stream *t, const struct err *why)
{
    struct quic_conn *c = t->conn;
    give_in_back(t);
    list_remove(&t->node_ready);
    list_remove(&t->node_doomed);
    list_remove(&t->node_owed);
    quic_sendq_clear(&t->out, &c->host->chunks);
    t->s.pending = 0;
    c->n_streams -= !t->is_gone;
    t->is_gone = true;
    if (!t->is_owned) {
        quic_stream_forget(t);
        return;
    }
    if (!t->eof_told)
        quic_stream_tell_error(t, why->code, why->text);
    if (t->is_owned) {
        list_remove(&t->node);
        t->conn = NULL;
    }
}

void quic_stream_refuse(struct quic_stream *t, enum quic_code code)
{
    t->reset_code = code;
    let_go(t);
    t->is_cut = t->wants_reset = true;
    t->conn->has_orders = true;
    t->doomed_us = loop_now_us(t->s.loop) + QUIC_LINGER_US;
    list_push_back(&t->conn->doomed, &t->node_doomed);
    quic_conn_mark_dirty(t->conn);
}
