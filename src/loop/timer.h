/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Heap of one-shot timers behind loop.h; reads no clock. One thread. */
#ifndef LOOP_TIMER_H
#define LOOP_TIMER_H

#include "loop/loop.h"

struct timer_heap {
    struct timer **at;
    uint32_t n, cap;
};

void timer_heap_init(struct timer_heap *h);
void timer_heap_fini(struct timer_heap *h);
void timer_heap_set(struct timer_heap *h, struct timer *t, int64_t deadline_us);
void timer_heap_remove(struct timer_heap *h, struct timer *t);

/* Deadline of the earliest timer, INT64_MAX without one. */
int64_t timer_heap_first_us(const struct timer_heap *h);

/* Fires all that are due at now_us. A timer that a callback sets anew fires in
 * this run only if it is due as well, and at most once each. */
void timer_heap_run(struct timer_heap *h, int64_t now_us);

/* True when every parent is due no later than its children. */
bool timer_heap_is_valid(const struct timer_heap *h);

#endif
