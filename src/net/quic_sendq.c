/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/quic_sendq.h"

#include <stdlib.h>
#include <string.h>

struct quic_chunk {
    struct quic_chunk *next;
    uint32_t cap, n;
    char p[];
};

enum {
    SMALL_BYTES = 1024 - sizeof(struct quic_chunk),
    LARGE_BYTES = 16384 - sizeof(struct quic_chunk),
    SMALL_SPARE = 1024,
    LARGE_SPARE = 64,
};

void quic_chunks_init(struct quic_chunks *p)
{
    *p = (struct quic_chunks){0};
}

void quic_chunks_fini(struct quic_chunks *p)
{
    for (int i = 0; i < 2; i++)
        while (p->spare[i]) {
            struct quic_chunk *c = p->spare[i];
            p->spare[i] = c->next;
            free(c);
        }
    quic_chunks_init(p);
}

static struct quic_chunk *take(struct quic_chunks *p, bool is_large)
{
    struct quic_chunk *c = p->spare[is_large];
    uint32_t cap = is_large ? LARGE_BYTES : SMALL_BYTES;
    if (c) {
        p->spare[is_large] = c->next;
        p->n_spare[is_large]--;
    } else {
        c = malloc(sizeof *c + cap);
        if (!c)
            return NULL;
        c->cap = cap;
    }
    c->next = NULL;
    c->n = 0;
    return c;
}

static void give(struct quic_chunks *p, struct quic_chunk *c)
{
    bool is_large = c->cap > SMALL_BYTES;
    unsigned max = is_large ? LARGE_SPARE : SMALL_SPARE;
    if (p->n_spare[is_large] >= max) {
        free(c);
        return;
    }
    c->next = p->spare[is_large];
    p->spare[is_large] = c;
    p->n_spare[is_large]++;
}

static int put(struct quic_sendq *q, struct quic_chunks *p, const char *from,
               size_t n)
{
    while (n) {
        struct quic_chunk *c = q->tail;
        if (!c || c->n == c->cap) {
            c = take(p, n > SMALL_BYTES || quic_sendq_unsent(q));
            if (!c)
                return ERR_NOMEM;
            if (q->tail)
                q->tail->next = c;
            else
                q->head = c;
            q->tail = c;
        }
        if (!q->next) {
            q->next = c;
            q->next_off = c->n;
        }
        size_t k = MIN(n, (size_t)(c->cap - c->n));
        memcpy(c->p + c->n, from, k);
        c->n += (uint32_t)k;
        q->end += k;
        from += k;
        n -= k;
    }
    return 0;
}

int quic_sendq_put(struct quic_sendq *q, struct quic_chunks *p,
                   const struct iovec *iov, int n)
{
    for (int i = 0; i < n; i++) {
        int rc = put(q, p, iov[i].iov_base, iov[i].iov_len);
        if (rc)
            return rc;
    }
    return 0;
}

int quic_sendq_peek(const struct quic_sendq *q, struct iovec *iov, int max)
{
    struct quic_chunk *c = q->next;
    uint32_t off = q->next_off;
    int n = 0;
    for (; c && n < max; c = c->next, off = 0)
        if (c->n > off)
            iov[n++] = (struct iovec){c->p + off, c->n - off};
    return n;
}

void quic_sendq_mark_sent(struct quic_sendq *q, size_t n)
{
    must(n <= quic_sendq_unsent(q));
    q->sent += n;
    while (n) {
        size_t k = MIN(n, (size_t)(q->next->n - q->next_off));
        q->next_off += (uint32_t)k;
        n -= k;
        if (q->next_off == q->next->n && q->next->next) {
            q->next = q->next->next;
            q->next_off = 0;
        }
    }
    if (q->sent == q->end)
        q->next = NULL;
}

void quic_sendq_ack(struct quic_sendq *q, struct quic_chunks *p,
                    uint64_t offset)
{
    must(offset <= q->sent);
    if (offset <= q->acked)
        return;
    size_t n = (size_t)(offset - q->acked);
    q->acked = offset;
    while (n) {
        struct quic_chunk *c = q->head;
        size_t k = MIN(n, (size_t)(c->n - q->head_off));
        q->head_off += (uint32_t)k;
        n -= k;
        if (q->head_off < c->n)
            return;
        q->head = c->next;
        q->head_off = 0;
        if (!q->head)
            q->tail = NULL;
        if (q->next == c)
            q->next = NULL;
        give(p, c);
    }
}

void quic_sendq_clear(struct quic_sendq *q, struct quic_chunks *p)
{
    while (q->head) {
        struct quic_chunk *c = q->head;
        q->head = c->next;
        give(p, c);
    }
    *q = (struct quic_sendq){.acked = q->end, .sent = q->end, .end = q->end};
}
