/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* How long something took, counted by size: of each database, each worker has
 * a set of its own and is the only one that writes it, so that counting is a
 * look into a table and two additions without a lock. Any thread may read: it
 * sums the sets, and sees each number as it was a moment ago. */
#ifndef POOL_LATENCY_H
#define POOL_LATENCY_H

#include <stdatomic.h>

#include "base/base.h"

enum { LATENCY_BOUNDS = 18, LATENCY_BUCKETS };

/* Microseconds, ascending; a bucket holds what is no more than its bound, the
 * last one the rest. */
extern const int64_t latency_bounds_us[LATENCY_BUCKETS];

/* The first bucket that a number of so many bits can be in. */
extern const uint8_t latency_first[65];

struct latency {
    _Atomic uint64_t n[LATENCY_BUCKETS];
    _Atomic uint64_t sum_us;
};

static inline unsigned latency_bucket(int64_t us)
{
    uint64_t v = us > 0 ? (uint64_t)us : 0;
    unsigned i = latency_first[v ? 64 - __builtin_clzll(v) : 0];
    /* A bound is at least twice the one before: one step is enough, and no
     * branch to be guessed wrong. */
    return i + ((int64_t)v > latency_bounds_us[i]);
}

static inline void latency_bump(_Atomic uint64_t *n, uint64_t by)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + by,
                          memory_order_relaxed);
}

/* By the worker whose it is. */
static inline void latency_add(struct latency *l, int64_t us)
{
    latency_bump(&l->n[latency_bucket(us)], 1);
    latency_bump(&l->sum_us, us > 0 ? (uint64_t)us : 0);
}

/* Of one database on one worker, on cache lines of its own. */
struct latency_set {
    _Alignas(64) struct latency query, xact, wait;
};

struct latency_sum {
    uint64_t n[LATENCY_BUCKETS], sum_us;
};

void latency_collect(struct latency_sum *to, const struct latency *from);

#endif
