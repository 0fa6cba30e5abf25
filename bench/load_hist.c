/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "bench/load_hist.h"

#include <string.h>

/* Below HIST_STEPS each microsecond has a slot of its own; above, the highest
 * set bit chooses a row and the five bits behind it the step. */
static unsigned slot_of(int64_t us)
{
    if (us < HIST_STEPS)
        return us < 0 ? 0 : (unsigned)us;
    unsigned bit = 63 - (unsigned)__builtin_clzll((uint64_t)us);
    unsigned step = (unsigned)(us >> (bit - 5)) & (HIST_STEPS - 1);
    return MIN((bit - 4) * HIST_STEPS + step, (unsigned)HIST_SLOTS - 1);
}

/* The middle of a slot. */
static int64_t value_of(unsigned slot)
{
    unsigned row = slot / HIST_STEPS;
    int64_t step = slot % HIST_STEPS;
    if (row == 0)
        return step;
    return ((HIST_STEPS + step) << (row - 1)) + ((1LL << (row - 1)) >> 1);
}

void hist_reset(struct hist *h)
{
    memset(h, 0, sizeof *h);
}

void hist_add(struct hist *h, int64_t us)
{
    h->n++;
    h->sum_us += us;
    h->max_us = MAX(h->max_us, us);
    h->slots[slot_of(us)]++;
}

void hist_merge(struct hist *h, const struct hist *from)
{
    h->n += from->n;
    h->sum_us += from->sum_us;
    h->max_us = MAX(h->max_us, from->max_us);
    for (unsigned i = 0; i < HIST_SLOTS; i++)
        h->slots[i] += from->slots[i];
}

int64_t hist_part(const struct hist *h, double part)
{
    uint64_t seen = 0, want = (uint64_t)(part * (double)h->n + 0.5);
    if (h->n == 0)
        return 0;
    for (unsigned i = 0; i < HIST_SLOTS; i++) {
        seen += h->slots[i];
        if (seen >= MAX(want, (uint64_t)1))
            return MIN(value_of(i), h->max_us);
    }
    return h->max_us;
}

double hist_mean(const struct hist *h)
{
    return h->n ? (double)h->sum_us / (double)h->n : 0;
}
