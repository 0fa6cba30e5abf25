/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Capped queue of bytes in chunks, and the pool that the chunks come from.
 * An empty queue holds no memory. Queue and pool belong to one thread; a queue
 * may outlive its pool's thread only when it is empty. Chunks are plain heap
 * blocks, so that a queue may be handed to another worker whole. */
#ifndef BASE_BUFQ_H
#define BASE_BUFQ_H

#include <sys/uio.h>

#include "base/err.h"
#include "base/slice.h"

struct bufq_chunk;

/* Free chunks kept for reuse; the size of each class and the number kept are
 * bounded in bufq.c. */
struct bufq_pool {
    struct bufq_chunk *free_small, *free_large;
    unsigned n_small, n_large;
};

struct bufq {
    struct bufq_chunk *head, *tail;
    size_t size; /* bytes held */
};

void bufq_pool_init(struct bufq_pool *pool);
void bufq_pool_fini(struct bufq_pool *pool);
size_t bufq_pool_size(const struct bufq_pool *pool); /* bytes kept free */

void bufq_init(struct bufq *q);

/* Gives all chunks back. pool may be NULL: then they are freed. */
void bufq_clear(struct bufq *q, struct bufq_pool *pool);

/* Copies bytes to the end; ERR_NOMEM when there is no memory. The cap is the
 * caller's: it compares q->size before. */
NODISCARD int bufq_put(struct bufq *q, struct bufq_pool *pool, const void *p,
                       size_t n);

/* Describes the first bytes of the queue; returns how many iov it filled. */
int bufq_peek(const struct bufq *q, struct iovec *iov, int max);

/* First contiguous piece; n is 0 when the queue is empty. */
struct slice bufq_front(const struct bufq *q);

/* Drops n bytes from the front; n <= size. */
void bufq_drop(struct bufq *q, struct bufq_pool *pool, size_t n);

/* Appends everything of src to dst, leaving src empty. */
void bufq_append(struct bufq *dst, struct bufq *src);

#endif
