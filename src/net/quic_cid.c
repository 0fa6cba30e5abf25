/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/quic_cid.h"

#include <stdlib.h>

#include "base/hash.h"
#include "base/rand.h"

struct quic_cid_entry {
    UT_hash_handle hh;
    struct quic_conn *conn;
    ngtcp2_cid cid;
};

void quic_cid_draw(ngtcp2_cid *out, size_t n)
{
    must(n <= NGTCP2_MAX_CIDLEN);
    out->datalen = n;
    rand_bytes(out->data, n);
}

uint8_t quic_cid_steer(int worker, int n_workers)
{
    must(n_workers > 0 && n_workers <= 256);
    int whole = 256 / n_workers; /* values of the byte that each worker has */
    uint8_t random;
    rand_bytes(&random, sizeof random);
    return (uint8_t)(worker + random % whole * n_workers);
}

void quic_cid_make(ngtcp2_cid *out, const struct quic_place *at)
{
    quic_cid_draw(out, QUIC_CID_BYTES);
    out->data[0] = at->steer;
    memcpy(out->data + 1, &at->process, sizeof at->process);
    out->data[5] = (uint8_t)at->worker;
}

bool quic_cid_read(struct quic_place *out, const uint8_t *cid, size_t n)
{
    if (n != QUIC_CID_BYTES)
        return false;
    out->steer = cid[0];
    memcpy(&out->process, cid + 1, sizeof out->process);
    out->worker = cid[5];
    return true;
}

void quic_cids_add(struct quic_cids *t, const ngtcp2_cid *cid,
                   struct quic_conn *c)
{
    struct quic_cid_entry *k = mem_new(sizeof *k), *old;
    k->cid = *cid;
    k->conn = c;
    HASH_REPLACE(hh, t->all, cid.data[0], k->cid.datalen, k, old);
    free(old);
}

static struct quic_cid_entry *find(const struct quic_cids *t,
                                   const uint8_t *cid, size_t n)
{
    struct quic_cid_entry *k;
    HASH_FIND(hh, t->all, cid, n, k);
    return k;
}

void quic_cids_remove(struct quic_cids *t, const ngtcp2_cid *cid)
{
    struct quic_cid_entry *k = find(t, cid->data, cid->datalen);
    if (!k)
        return;
    HASH_DEL(t->all, k);
    free(k);
}

struct quic_conn *quic_cids_find(const struct quic_cids *t, const uint8_t *cid,
                                 size_t n)
{
    struct quic_cid_entry *k = find(t, cid, n);
    return k ? k->conn : NULL;
}

void quic_cids_clear(struct quic_cids *t)
{
    struct quic_cid_entry *k, *next;
    HASH_ITER(hh, t->all, k, next)
    {
        HASH_DEL(t->all, k);
        free(k);
    }
}
