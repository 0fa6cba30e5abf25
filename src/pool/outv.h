/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Output to one stream, put together from pieces of the input, which are sent
 * from where they lie, and from bytes that are made here, which are copied to
 * the worker's scratch buffer. What a loop turn has to say to a peer leaves in
 * one call. Lives on the stack, for the length of one callback. */
#ifndef POOL_OUTV_H
#define POOL_OUTV_H

#include "net/stream.h"

enum { OUTV_IOV = 64 };

struct outv {
    struct stream *to;
    char *copy; /* LOOP_SCRATCH_BYTES */
    size_t copied;
    int n;
    size_t total; /* bytes that were put, flushed or not */
    struct iovec iov[OUTV_IOV];
};

static inline void outv_init(struct outv *o, struct stream *to, int scratch)
{
    o->to = to;
    o->copy = loop_scratch(to->loop, scratch);
    o->copied = 0;
    o->n = 0;
    o->total = 0;
}

/* A broken stream tells its owner from the loop. */
static inline void outv_flush(struct outv *o)
{
    if (o->n)
        (void)stream_writev(o->to, o->iov, o->n);
    o->n = 0;
    o->copied = 0;
}

/* Bytes that stay where they are until the flush. */
static inline void outv_span(struct outv *o, const void *p, size_t n)
{
    if (!n)
        return;
    o->total += n;
    struct iovec *last = o->n ? &o->iov[o->n - 1] : NULL;
    if (last && (const char *)last->iov_base + last->iov_len == p) {
        last->iov_len += n;
        return;
    }
    if (o->n == OUTV_IOV)
        outv_flush(o);
    o->iov[o->n++] = (struct iovec){(void *)(uintptr_t)p, n};
}

/* Bytes that may change after the call; n at most LOOP_SCRATCH_BYTES. */
static inline void outv_copy(struct outv *o, const void *p, size_t n)
{
    must(n <= LOOP_SCRATCH_BYTES);
    if (o->copied + n > LOOP_SCRATCH_BYTES || o->n == OUTV_IOV)
        outv_flush(o);
    char *to = o->copy + o->copied;
    memcpy(to, p, n);
    o->copied += n;
    outv_span(o, to, n);
}

#endif
