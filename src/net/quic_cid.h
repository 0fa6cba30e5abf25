/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Connection IDs: how they are made, and whose they are. The first byte modulo
 * the number of workers is the worker, so that the kernel can steer by it; the
 * rest is random. A client's own first choice is steered by the same rule. One
 * thread. */
#ifndef NET_QUIC_CID_H
#define NET_QUIC_CID_H

#include <ngtcp2/ngtcp2.h>

#include "base/base.h"

enum { QUIC_CID_BYTES = 10 };

struct quic_conn;
struct quic_cid_entry;

struct quic_cids {
    struct quic_cid_entry *all; /* uthash */
};

void quic_cid_make(ngtcp2_cid *out, size_t n, int worker, int n_workers);

void quic_cids_add(struct quic_cids *t, const ngtcp2_cid *cid,
                   struct quic_conn *c);
void quic_cids_remove(struct quic_cids *t, const ngtcp2_cid *cid);
struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid,
                                 size_t n);

void quic_cids_clear(struct quic_cids *t);

#endif
