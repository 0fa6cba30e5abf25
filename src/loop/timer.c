/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "loop/timer.h"

#include <stdlib.h>

enum { FIRST_CAP = 64 };

void timer_heap_init(struct timer_heap *h)
{
    *h = (struct timer_heap){0};
}

void timer_heap_fini(struct timer_heap *h)
{
    free(h->at);
    *h = (struct timer_heap){0};
}

static void place(struct timer_heap *h, uint32_t i, struct timer *t)
{
    h->at[i] = t;
    t->slot = i + 1;
}

static void sift_up(struct timer_heap *h, uint32_t i)
{
    struct timer *t = h->at[i];
    while (i) {
        uint32_t up = (i - 1) / 2;
        if (h->at[up]->deadline_us <= t->deadline_us)
            break;
        place(h, i, h->at[up]);
        i = up;
    }
    place(h, i, t);
}

static void sift_down(struct timer_heap *h, uint32_t i)
{
    struct timer *t = h->at[i];
    for (;;) {
        uint32_t kid = 2 * i + 1;
        if (kid >= h->n)
            break;
        if (kid + 1 < h->n &&
            h->at[kid + 1]->deadline_us < h->at[kid]->deadline_us)
            kid++;
        if (t->deadline_us <= h->at[kid]->deadline_us)
            break;
        place(h, i, h->at[kid]);
        i = kid;
    }
    place(h, i, t);
}

void timer_heap_set(struct timer_heap *h, struct timer *t, int64_t deadline_us)
{
    if (t->slot) {
        bool later = deadline_us > t->deadline_us;
        t->deadline_us = deadline_us;
        if (later)
            sift_down(h, t->slot - 1);
        else
            sift_up(h, t->slot - 1);
        return;
    }
    if (h->n == h->cap) {
        h->cap = MAX(h->cap * 2, (uint32_t)FIRST_CAP);
        h->at = realloc(h->at, h->cap * sizeof *h->at);
        must(h->at);
    }
    t->deadline_us = deadline_us;
    h->at[h->n] = t;
    sift_up(h, h->n++);
}

void timer_heap_remove(struct timer_heap *h, struct timer *t)
{
    if (!t->slot)
        return;
    uint32_t i = t->slot - 1;
    t->slot = 0;
    struct timer *last = h->at[--h->n];
    if (last == t)
        return;
    h->at[i] = last;
    last->slot = i + 1;
    sift_down(h, i);
    sift_up(h, last->slot - 1);
}

int64_t timer_heap_first_us(const struct timer_heap *h)
{
    return h->n ? h->at[0]->deadline_us : INT64_MAX;
}

void timer_heap_run(struct timer_heap *h, int64_t now_us)
{
    for (uint32_t budget = h->n; budget && h->n; budget--) {
        struct timer *t = h->at[0];
        if (t->deadline_us > now_us)
            return;
        timer_heap_remove(h, t);
        t->on_fire(t);
    }
}

bool timer_heap_is_valid(const struct timer_heap *h)
{
    for (uint32_t i = 1; i < h->n; i++)
        if (h->at[(i - 1) / 2]->deadline_us > h->at[i]->deadline_us)
            return false;
    for (uint32_t i = 0; i < h->n; i++)
        if (h->at[i]->slot != i + 1)
            return false;
    return true;
}
