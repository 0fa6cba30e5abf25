/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A histogram of latencies: 32 steps for each power of two, so that a value is
 * told to 3 %. A value; belongs to whoever embeds it. */
#ifndef BENCH_LOAD_HIST_H
#define BENCH_LOAD_HIST_H

#include "base/base.h"

enum { HIST_STEPS = 32, HIST_SLOTS = HIST_STEPS * 37 };

struct hist {
    uint64_t n;
    int64_t sum_us, max_us;
    uint32_t slots[HIST_SLOTS];
};

void hist_reset(struct hist *h);
void hist_add(struct hist *h, int64_t us);
void hist_merge(struct hist *h, const struct hist *from);

/* The latency that part (0 to 1) of them stay below, in microseconds; 0 of an
 * empty one. */
int64_t hist_part(const struct hist *h, double part);
double hist_mean(const struct hist *h);

#endif
