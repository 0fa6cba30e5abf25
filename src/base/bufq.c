/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/bufq.h"

#include <stdlib.h>

enum {
    SMALL_SIZE = 512 - 32, /* a waiting client's query */
    LARGE_SIZE = 16384 - 32,
    KEEP_SMALL = 256,
    KEEP_LARGE = 64,
};

struct bufq_chunk {
    struct bufq_chunk *next;
    uint32_t cap, begin, end;
    char data[];
};

void bufq_pool_init(struct bufq_pool *pool)
{
    *pool = (struct bufq_pool){0};
}

static void free_all(struct bufq_chunk *c)
{
    while (c) {
        struct bufq_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void bufq_pool_fini(struct bufq_pool *pool)
{
    free_all(pool->free_small);
    free_all(pool->free_large);
    *pool = (struct bufq_pool){0};
}

size_t bufq_pool_size(const struct bufq_pool *pool)
{
    return pool->n_small * (sizeof(struct bufq_chunk) + SMALL_SIZE) +
           pool->n_large * (sizeof(struct bufq_chunk) + LARGE_SIZE);
}

static struct bufq_chunk *chunk_take(struct bufq_pool *pool, size_t want)
{
    bool small = want <= SMALL_SIZE;
    struct bufq_chunk **list = small ? &pool->free_small : &pool->free_large;
    unsigned *n = small ? &pool->n_small : &pool->n_large;
    struct bufq_chunk *c = *list;
    if (c) {
        *list = c->next;
        (*n)--;
    } else {
        size_t cap = small ? SMALL_SIZE : LARGE_SIZE;
        c = malloc(sizeof *c + cap);
        if (!c)
            return NULL;
        c->cap = (uint32_t)cap;
    }
    c->next = NULL;
    c->begin = c->end = 0;
    return c;
}

static void chunk_give(struct bufq_pool *pool, struct bufq_chunk *c)
{
    if (pool && c->cap == SMALL_SIZE && pool->n_small < KEEP_SMALL) {
        c->next = pool->free_small;
        pool->free_small = c;
        pool->n_small++;
    } else if (pool && c->cap == LARGE_SIZE && pool->n_large < KEEP_LARGE) {
        c->next = pool->free_large;
        pool->free_large = c;
        pool->n_large++;
    } else {
        free(c);
    }
}

void bufq_init(struct bufq *q)
{
    *q = (struct bufq){0};
}

void bufq_clear(struct bufq *q, struct bufq_pool *pool)
{
    while (q->head) {
        struct bufq_chunk *c = q->head;
        q->head = c->next;
        chunk_give(pool, c);
    }
    *q = (struct bufq){0};
}

int bufq_put(struct bufq *q, struct bufq_pool *pool, const void *p, size_t n)
{
    const char *from = p;
    while (n) {
        struct bufq_chunk *c = q->tail;
        if (!c || c->end == c->cap) {
            c = chunk_take(pool, n);
            if (!c)
                return ERR_NOMEM;
            if (q->tail)
                q->tail->next = c;
            else
                q->head = c;
            q->tail = c;
        }
        size_t part = MIN(n, (size_t)(c->cap - c->end));
        memcpy(c->data + c->end, from, part);
        c->end += (uint32_t)part;
        q->size += part;
        from += part;
        n -= part;
    }
    return 0;
}

int bufq_peek(const struct bufq *q, struct iovec *iov, int max)
{
    int n = 0;
    for (struct bufq_chunk *c = q->head; c && n < max; c = c->next)
        iov[n++] = (struct iovec){c->data + c->begin, c->end - c->begin};
    return n;
}

struct slice bufq_front(const struct bufq *q)
{
    struct bufq_chunk *c = q->head;
    return c ? slice_of(c->data + c->begin, c->end - c->begin)
             : slice_of("", 0);
}

void bufq_drop(struct bufq *q, struct bufq_pool *pool, size_t n)
{
    must(n <= q->size);
    q->size -= n;
    while (n) {
        struct bufq_chunk *c = q->head;
        size_t part = MIN(n, (size_t)(c->end - c->begin));
        c->begin += (uint32_t)part;
        n -= part;
        if (c->begin < c->end)
            return;
        q->head = c->next;
        if (!q->head)
            q->tail = NULL;
        chunk_give(pool, c);
    }
}

void bufq_append(struct bufq *dst, struct bufq *src)
{
    if (!src->head)
        return;
    if (dst->tail)
        dst->tail->next = src->head;
    else
        dst->head = src->head;
    dst->tail = src->tail;
    dst->size += src->size;
    *src = (struct bufq){0};
}
