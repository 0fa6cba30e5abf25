/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "conf/strpool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_SIZE = 4096, ALIGN = 16 };

struct strpool_chunk {
    struct strpool_chunk *next;
    size_t size, used;
    _Alignas(ALIGN) char data[];
};

void strpool_init(struct strpool *p)
{
    p->chunks = NULL;
}

void strpool_fini(struct strpool *p)
{
    struct strpool_chunk *c, *next;

    for (c = p->chunks; c; c = next) {
        next = c->next;
        mem_wipe(c->data, c->used);
        free(c);
    }
    p->chunks = NULL;
}

void *strpool_alloc(struct strpool *p, size_t size)
{
    struct strpool_chunk *c = p->chunks;
    size_t want = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    void *at;

    if (!c || c->size - c->used < want) {
        size_t room = MAX(want, (size_t)CHUNK_SIZE);

        c = mem_new(sizeof(*c) + room);
        c->size = room;
        c->next = p->chunks;
        p->chunks = c;
    }
    at = c->data + c->used;
    c->used += want;
    return at;
}

char *strpool_dup(struct strpool *p, struct slice s)
{
    char *copy = strpool_alloc(p, s.n + 1);

    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    return copy;
}

char *strpool_printf(struct strpool *p, const char *fmt, ...)
{
    va_list ap;
    char *text;
    int n;

    must(fmt); /* gcc warns of NULL in sanitizer builds */
    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    must(n >= 0);
    text = strpool_alloc(p, (size_t)n + 1);
    va_start(ap, fmt);
    vsnprintf(text, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return text;
}
