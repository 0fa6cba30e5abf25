/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Packing: what the streams of a connection have to say leaves in as few
 * packets as it fits, many packets to a system call. This is where QUIC earns
 * its keep: a packet costs what a TCP send costs, whether one stream has a
 * frame in it or ten. Streams with little to say go first; of the others each
 * has one packet in turn. */
#include "net/quic_impl.h"

/* Packets of the same size, the last one possibly shorter, put together for one
 * send. */
struct burst {
    struct quic_conn *c;
    uint8_t *p;
    size_t used, seg;
    ngtcp2_path_storage path;
};

static void burst_send(struct burst *b)
{
    if (!b->used)
        return;
    quic_socket_send(b->c->socket, &b->path.path, b->p, b->used, b->seg);
    b->c->sends++;
    b->used = 0;
}

/* A packet of n bytes was written behind those that are there. */
static void burst_add(struct burst *b, size_t n, const ngtcp2_path *path)
{
    uint8_t *at = b->p + b->used;
    if (b->used && (n > b->seg || !ngtcp2_path_eq(path, &b->path.path))) {
        burst_send(b);
        memmove(b->p, at, n);
    }
    if (!b->used) {
        b->seg = n;
        ngtcp2_path_copy(&b->path.path, path);
    }
    b->used += n;
    b->c->packets_out++;
    b->c->bytes_out += n;
    quic_mtu_note_packet(b->c, n);
    if (n < b->seg || b->used / b->seg >= QUIC_GSO_MAX ||
        b->used + b->seg > QUIC_TX_BYTES)
        burst_send(b);
}

static struct quic_stream *first_of(struct list *l)
{
    struct list *n = list_first(l);
    return n ? list_entry(n, struct quic_stream, node_ready) : NULL;
}

static struct quic_stream *choose(struct quic_conn *c)
{
    struct quic_stream *small = first_of(&c->small), *bulk = first_of(&c->bulk);
    if (ngtcp2_conn_get_max_data_left(c->q) == 0)
        return NULL;
    if (small && (!bulk || c->n_small < QUIC_SMALL_RUN)) {
        c->n_small++;
        return small;
    }
    c->n_small = 0;
    return bulk ? bulk : small;
}

static void wrote(struct quic_stream *t, size_t n, bool had_fin)
{
    struct quic_conn *c = t->conn;
    c->frames_out++;
    if (had_fin && n == quic_sendq_unsent(&t->out))
        t->fin_sent = true;
    list_remove(&t->node_ready);
    quic_stream_note_sent(t, n);
    quic_stream_mark_ready(t); /* in its turn */
}

/* The peer does not read this stream any more. To a pooler that is the end of
 * the session; the other side still waits for the last words. */
static void cut(struct quic_stream *t)
{
    list_remove(&t->node_ready);
    t->is_cut = true;
    quic_sendq_mark_sent(&t->out, quic_sendq_unsent(&t->out));
    t->s.pending = 0;
    if (t->conn->is_server)
        quic_stream_tell_error(t, ERR_CLOSED, "the client stopped the session");
    else if (t->is_owned && t->s.handler->on_drain)
        t->s.handler->on_drain(&t->s);
}

static const uint8_t drain_words[] = {QUIC_CONTROL_STREAM, QUIC_CONTROL_DRAIN,
                                      0};

/* What goes next into the packet. */
struct piece {
    struct quic_stream *t; /* NULL: none, or the control stream */
    int64_t id;
    uint32_t flags;
    ngtcp2_vec vec[16];
    size_t n;
    size_t bytes;
};

static void fill(struct piece *p, struct quic_conn *c)
{
    *p = (struct piece){.id = -1};
    if (c->drain_stream >= 0 && c->drain_sent < sizeof drain_words) {
        p->id = c->drain_stream;
        p->vec[0].base = (uint8_t *)(uintptr_t)drain_words + c->drain_sent;
        p->vec[0].len = p->bytes = sizeof drain_words - c->drain_sent;
        p->n = 1;
        p->flags = NGTCP2_WRITE_STREAM_FLAG_MORE;
        return;
    }
    struct iovec iov[ARRAY_SIZE(p->vec)];
    p->t = choose(c);
    if (!p->t)
        return;
    p->id = p->t->id;
    p->n = (size_t)quic_sendq_peek(&p->t->out, iov, ARRAY_SIZE(iov));
    for (size_t i = 0; i < p->n; i++) {
        p->vec[i] = (ngtcp2_vec){iov[i].iov_base, iov[i].iov_len};
        p->bytes += iov[i].iov_len;
    }
    p->flags = NGTCP2_WRITE_STREAM_FLAG_MORE;
    if (p->t->fin_wanted && p->bytes == quic_sendq_unsent(&p->t->out))
        p->flags |= NGTCP2_WRITE_STREAM_FLAG_FIN;
    if (p->t->node_ready.next != &c->small)
        p->flags |= QUIC_WRITE_FLAG_PADDING;
}

static void note_piece(struct quic_conn *c, const struct piece *p,
                       ngtcp2_ssize n)
{
    if (n < 0)
        return;
    if (p->t)
        wrote(p->t, (size_t)n, p->flags & NGTCP2_WRITE_STREAM_FLAG_FIN);
    else if (p->id >= 0)
        c->drain_sent += (size_t)n;
}

/* A refusal that concerns one stream only; false when it is another matter. */
static bool skip_piece(struct quic_conn *c, const struct piece *p,
                       ngtcp2_ssize rv)
{
    if (rv != NGTCP2_ERR_STREAM_DATA_BLOCKED &&
        rv != NGTCP2_ERR_STREAM_SHUT_WR && rv != NGTCP2_ERR_STREAM_NOT_FOUND)
        return false;
    if (!p->t) {
        c->drain_sent = sizeof drain_words;
    } else if (rv == NGTCP2_ERR_STREAM_DATA_BLOCKED) {
        p->t->is_blocked = true;
        list_remove(&p->t->node_ready);
    } else {
        cut(p->t);
    }
    return true;
}

/* Returns 0, or what ngtcp2 failed with. */
static int write_packets(struct quic_conn *c)
{
    struct burst b = {.c = c, .p = (uint8_t *)c->host->tx};
    ngtcp2_path_storage ps;
    ngtcp2_pkt_info pi;
    ngtcp2_tstamp now = quic_now();
    size_t total = 0,
           max =
               quic_mtu_limit(c, ngtcp2_conn_get_max_tx_udp_payload_size(c->q));
    size_t limit = c->is_paced ? ngtcp2_conn_get_send_quantum(c->q)
                               : (size_t)QUIC_FLUSH_BYTES;
    ngtcp2_path_storage_zero(&ps);
    ngtcp2_path_storage_zero(&b.path);
    for (;;) {
        struct piece p;
        ngtcp2_ssize taken = -1;
        fill(&p, c);
        ngtcp2_ssize n =
            ngtcp2_conn_writev_stream(c->q, &ps.path, &pi, b.p + b.used, max,
                                      &taken, p.flags, p.id, p.vec, p.n, now);
        note_piece(c, &p, taken);
        if (n == NGTCP2_ERR_WRITE_MORE || skip_piece(c, &p, n))
            continue;
        if (n < 0)
            return (int)n;
        if (n == 0)
            break;
        burst_add(&b, (size_t)n, &ps.path);
        total += (size_t)n;
        if (total >= limit) {
            quic_conn_mark_dirty(c); /* the rest has its turn */
            break;
        }
    }
    burst_send(&b);
    if (c->is_paced)
        ngtcp2_conn_update_pkt_tx_time(c->q, now);
    return 0;
}

/* What closing a stream asked for. */
static void carry_out_orders(struct quic_conn *c)
{
    if (!c->has_orders)
        return;
    c->has_orders = false;
    list_for(i, &c->doomed)
    {
        struct quic_stream *t = list_entry(i, struct quic_stream, node_doomed);
        if (t->wants_reset)
            (void)ngtcp2_conn_shutdown_stream(c->q, 0, t->id, t->reset_code);
        else if (t->wants_stop)
            (void)ngtcp2_conn_shutdown_stream_read(c->q, 0, t->id,
                                                   QUIC_CODE_NONE);
        t->wants_reset = t->wants_stop = false;
    }
}

void quic_conn_flush(struct quic_conn *c)
{
    if (c->state > QUIC_CONN_UP)
        return;
    if (c->close_code >= 0) {
        struct err why;
        (void)err_set(&why, ERR_CLOSED, "closed");
        quic_conn_end(c, (uint64_t)c->close_code, &why);
        return;
    }
    if (quic_socket_is_full(c->socket))
        return;
    carry_out_orders(c);
    quic_mtu_watch(c);
    int rv = write_packets(c);
    if (rv)
        quic_conn_fail(c, rv);
    else
        quic_conn_set_timer(c);
}
