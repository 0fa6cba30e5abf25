/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Bytes of a QUIC stream on their way out. They stay where they were put until
 * the peer has acknowledged them, since lost packets are written anew from
 * them. An empty queue holds no memory. Belongs to one thread, like the pool of
 * chunks. */
#ifndef NET_QUIC_SENDQ_H
#define NET_QUIC_SENDQ_H

#include <sys/uio.h>

#include "base/err.h"

struct quic_chunk;

/* Free chunks kept for reuse, of two sizes. */
struct quic_chunks {
    struct quic_chunk *spare[2];
    unsigned n_spare[2];
};

void quic_chunks_init(struct quic_chunks *p);
void quic_chunks_fini(struct quic_chunks *p);

struct quic_sendq {
    struct quic_chunk *head, *tail; /* from the first byte not acknowledged */
    struct quic_chunk *next;        /* has the next byte to send; NULL: none */
    uint32_t head_off, next_off;
    uint64_t acked, sent, end; /* offsets in the stream */
};

/* Copies bytes to the end; ERR_NOMEM leaves some of them out. */
NODISCARD int quic_sendq_put(struct quic_sendq *q, struct quic_chunks *p,
                             const struct iovec *iov, int n);

/* Describes what is to be sent next; returns how many iov it filled. */
int quic_sendq_peek(const struct quic_sendq *q, struct iovec *iov, int max);
void quic_sendq_mark_sent(struct quic_sendq *q, size_t n);

/* Everything before offset has arrived. */
void quic_sendq_ack(struct quic_sendq *q, struct quic_chunks *p,
                    uint64_t offset);
void quic_sendq_clear(struct quic_sendq *q, struct quic_chunks *p);

static inline size_t quic_sendq_unsent(const struct quic_sendq *q)
{
    return (size_t)(q->end - q->sent);
}

static inline size_t quic_sendq_unacked(const struct quic_sendq *q)
{
    return (size_t)(q->sent - q->acked);
}

#endif
