/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A path whose MTU falls in the middle of a connection takes large packets and
 * says nothing: ngtcp2 probes upwards only when a path is new, and repeats in
 * packets of the size that was lost. So whoever sends watches for streams that
 * wait for an acknowledgement for several time-outs though a large packet left,
 * and then keeps to the size that every path of QUIC carries (RFC 9000, 14).
 *
 * The same silence may have been an outage. So larger ones are tried again,
 * ever more seldom while that fails; and on a new path, which is probed anew.
 */
#include "net/quic_impl.h"

enum {
    SILENT_PTOS = 3,
    SILENT_LEAST_US = 200 * 1000,
    AGAIN_FIRST_US = 30 * 1000000,
    AGAIN_MOST_US = 1200 * 1000000,
};

size_t quic_mtu_limit(const struct quic_conn *c, size_t max)
{
    return c->mtu.is_small ? MIN(max, (size_t)NGTCP2_MAX_UDP_PAYLOAD_SIZE)
                           : max;
}

void quic_mtu_note_packet(struct quic_conn *c, size_t n)
{
    if (n > NGTCP2_MAX_UDP_PAYLOAD_SIZE)
        c->mtu.large_us = loop_now_us(c->host->loop);
}

void quic_mtu_new_path(struct quic_conn *c)
{
    c->mtu = (struct quic_mtu){.again_us = 0};
}

/* A stream that says nothing new may wait for its peer's window; one that waits
 * for an acknowledgement waits for the path. */
static bool is_silent(const struct quic_conn *c, int64_t now, int64_t limit)
{
    list_for(i, &c->streams)
    {
        const struct quic_stream *t = list_entry(i, struct quic_stream, node);
        if (t->waits_us && !t->is_cut && !t->is_gone &&
            now - t->waits_us > limit && c->mtu.large_us >= t->waits_us)
            return true;
    }
    return false;
}

void quic_mtu_watch(struct quic_conn *c)
{
    struct quic_mtu *m = &c->mtu;
    int64_t now = loop_now_us(c->host->loop);
    if (m->is_small) {
        if (now < m->again_us)
            return;
        m->is_small = false;
        m->look_us = 0;
    }
    if (!m->large_us || now < m->look_us)
        return;
    int64_t pto = (int64_t)(ngtcp2_conn_get_pto(c->q) / NGTCP2_MICROSECONDS);
    int64_t limit = MAX(SILENT_PTOS * pto, (int64_t)SILENT_LEAST_US);
    m->look_us = now + pto / 2;
    if (!is_silent(c, now, limit))
        return;
    m->pause_us = m->pause_us ? MIN(2 * m->pause_us, (int64_t)AGAIN_MOST_US)
                              : AGAIN_FIRST_US;
    m->is_small = true;
    m->again_us = now + m->pause_us;
    c->black_holes++;
}
