/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The end of the turn: owners are told what could not be told at once, then
 * each connection with something to say is written, once. */
#include <stdlib.h>
#include <sys/mman.h>

#include "net/quic_impl.h"

static void deliver_owed(struct quic_host *h)
{
    struct list now, *n;
    if (list_empty(&h->owed))
        return;
    now = h->owed;
    now.next->prev = now.prev->next = &now;
    list_init(&h->owed);
    while ((n = list_first(&now))) {
        list_remove(n);
        quic_stream_deliver(list_entry(n, struct quic_stream, node_owed));
    }
}

static void flush_dirty(struct quic_host *h)
{
    struct list now, *n;
    if (list_empty(&h->dirty))
        return;
    now = h->dirty;
    now.next->prev = now.prev->next = &now;
    list_init(&h->dirty);
    while ((n = list_first(&now))) {
        list_remove(n);
        quic_conn_flush(list_entry(n, struct quic_conn, node_dirty));
    }
}

static void on_task(struct task *t)
{
    struct quic_host *h = container_of(t, struct quic_host, task);
    /* One more look at the sockets, without waiting: what they have for us by
     * now leaves in the same packets. */
    h->has_yielded = !h->has_yielded;
    if (h->has_yielded) {
        loop_defer(h->loop, t);
        return;
    }
    deliver_owed(h);
    flush_dirty(h);
}

void quic_host_wake(struct quic_host *h)
{
    loop_defer(h->loop, &h->task);
}

int quic_host_new(struct quic_host **out, struct loop *loop, struct err *e)
{
    struct quic_host *h = mem_new(sizeof *h);
    size_t rx = (size_t)QUIC_RX_BATCH * QUIC_DATAGRAM_MAX;
    h->loop = loop;
    h->task.run = on_task;
    list_init(&h->task.node);
    list_init(&h->dirty);
    list_init(&h->owed);
    list_init(&h->sockets);
    quic_chunks_init(&h->chunks);
    /* Most of it is never touched: pages come as they are written. */
    h->rx = mmap(NULL, rx, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                 -1, 0);
    must(h->rx != MAP_FAILED);
    h->tx = mem_new(QUIC_TX_BYTES + QUIC_PACKET_MAX);
    *out = h;
    return 0;
}

static void end_all(struct quic_host *h)
{
    struct err why;
    (void)err_set(&why, ERR_SHUTDOWN, "shutting down");
    list_for_safe(i, &h->sockets)
    {
        struct quic_socket *s = list_entry(i, struct quic_socket, node);
        list_for_safe(k, &s->conns) quic_conn_end(
            list_entry(k, struct quic_conn, node), QUIC_CODE_SHUTDOWN, &why);
    }
}

void quic_host_free(struct quic_host *h)
{
    if (!h)
        return;
    flush_dirty(h); /* the last words of sessions */
    end_all(h);
    while (!list_empty(&h->sockets)) {
        struct quic_socket *s =
            list_entry(list_first(&h->sockets), struct quic_socket, node);
        struct quic_listener *l = s->listener;
        if (l)
            quic_listener_close(l);
        else
            quic_socket_close(s);
    }
    /* Streams that their owners still hold are lost ones by now. */
    while (!list_empty(&h->owed))
        list_remove(list_first(&h->owed));
    loop_cancel(&h->task);
    quic_chunks_fini(&h->chunks);
    munmap(h->rx, (size_t)QUIC_RX_BATCH * QUIC_DATAGRAM_MAX);
    free(h->tx);
    loop_free_later(h->loop, h);
}

/* --- looking at it ----------------------------------------------------------
 */

static void view(struct quic_conn *c, struct quic_conn_view *v)
{
    *v = (struct quic_conn_view){
        .id = c->id,
        .is_server = c->is_server,
        .is_up = c->state == QUIC_CONN_UP,
        .is_draining = c->is_draining,
        .is_resumed = c->who.is_resumed,
        .alpn = c->who.info.alpn,
        .peer = c->peer,
        .streams = c->n_streams,
        .age_us = loop_now_us(c->host->loop) - c->start_us,
        .bytes_in = c->bytes_in,
        .bytes_out = c->bytes_out,
        .packets_in = c->packets_in,
        .packets_out = c->packets_out,
        .frames_out = c->frames_out,
        .sends = c->sends,
        .rebindings = c->rebindings,
        .black_holes = c->black_holes,
    };
    ngtcp2_conn_info info;
    ngtcp2_conn_get_conn_info(c->q, &info);
    v->srtt_us = (int64_t)(info.smoothed_rtt / NGTCP2_MICROSECONDS);
    v->min_rtt_us = info.min_rtt == UINT64_MAX
                        ? 0
                        : (int64_t)(info.min_rtt / NGTCP2_MICROSECONDS);
    v->cwnd = info.cwnd;
    v->packet_size =
        quic_mtu_limit(c, ngtcp2_conn_get_path_max_tx_udp_payload_size(c->q));
    v->in_flight = info.bytes_in_flight;
    if (c->is_server && c->socket->listener)
        v->max_streams = c->socket->listener->p.limits.max_streams;
    else
        v->max_streams =
            c->n_streams + (int)MIN(quic_conn_room(c), (uint64_t)1000000);
}

void quic_host_get_counts(const struct quic_host *h,
                          struct quic_host_counts *out)
{
    *out = h->counts;
}

void quic_host_each(struct quic_host *h,
                    void (*cb)(void *arg, const struct quic_conn_view *v),
                    void *arg)
{
    list_for(i, &h->sockets)
    {
        struct quic_socket *s = list_entry(i, struct quic_socket, node);
        list_for(k, &s->conns)
        {
            struct quic_conn *c = list_entry(k, struct quic_conn, node);
            struct quic_conn_view v;
            if (c->state > QUIC_CONN_UP)
                continue;
            view(c, &v);
            cb(arg, &v);
        }
    }
}

static void add_traffic(struct quic_totals *t, const struct quic_conn *c)
{
    t->bytes_in += c->bytes_in;
    t->bytes_out += c->bytes_out;
    t->packets_in += c->packets_in;
    t->packets_out += c->packets_out;
    t->sends += c->sends;
    t->rebindings += c->rebindings;
}

void quic_host_keep_counts(const struct quic_conn *c)
{
    add_traffic(&c->host->totals, c);
}

void quic_host_totals(const struct quic_host *h, struct quic_totals *out)
{
    *out = h->totals;
    for (struct list *i = h->sockets.next; i != &h->sockets; i = i->next) {
        struct quic_socket *s = list_entry(i, struct quic_socket, node);
        list_for(k, &s->conns)
            add_traffic(out, list_entry(k, struct quic_conn, node));
    }
}
