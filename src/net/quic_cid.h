/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Connection IDs: how they are made, whose they are, and which connection each
 * of them names. One thread.
 *
 *   0       steers: what the kernel's filter looks at (quic_socket.c)
 *   1..4    the process that gave it, a number drawn at its start, so that
 *           another process of the port knows whom to pass a datagram to
 *   5       its worker
 *   6..13   random
 *
 * A client's own first choice means nothing, and has any length. */
#ifndef NET_QUIC_CID_H
#define NET_QUIC_CID_H

#include <ngtcp2/ngtcp2.h>

#include "base/base.h"

enum {
    QUIC_CID_BYTES = 14,
    QUIC_CID_RANDOM = 6, /* where it begins */
};

/* Who gives it. */
struct quic_place {
    uint32_t process;
    int worker;
    uint8_t steer;
};

void quic_cid_make(ngtcp2_cid *out, const struct quic_place *at);

/* False unless n bytes are one that somebody like us may have given. */
bool quic_cid_read(struct quic_place *out, const uint8_t *cid, size_t n);

/* One without a meaning. */
void quic_cid_draw(ngtcp2_cid *out, size_t n);

/* A first byte that the filter of n sockets of one process gives to worker. */
uint8_t quic_cid_steer(int worker, int n_workers);

/* --- the connections they name ----------------------------------------------
 */

struct quic_conn;
struct quic_cid_entry;

struct quic_cids {
    struct quic_cid_entry *all; /* uthash */
};

void quic_cids_add(struct quic_cids *t, const ngtcp2_cid *cid,
                   struct quic_conn *c);
void quic_cids_remove(struct quic_cids *t, const ngtcp2_cid *cid);
struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid,
                                 size_t n);

void quic_cids_clear(struct quic_cids *t);

#endif
