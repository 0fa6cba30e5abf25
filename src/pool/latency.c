/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/latency.h"

const int64_t latency_bounds_us[LATENCY_BUCKETS] = {
    100,     250,      500,      1000,     2500,      5000,    10000,
    25000,   50000,    100000,   250000,   500000,    1000000, 2500000,
    5000000, 10000000, 30000000, 60000000, INT64_MAX,
};

const uint8_t latency_first[65] = {
    [8] = 1,   [9] = 2,   [10] = 3,  [11] = 4,  [12] = 4,
    [13] = 5,  [14] = 6,  [15] = 7,  [16] = 8,  [17] = 9,
    [18] = 10, [19] = 11, [20] = 12, [21] = 13, [22] = 13,
    [23] = 14, [24] = 15, [25] = 16, [26] = 17, [27 ... 64] = 18,
};

void latency_collect(struct latency_sum *to, const struct latency *from)
{
    for (int i = 0; i < LATENCY_BUCKETS; i++)
        to->n[i] += atomic_load_explicit(&from->n[i], memory_order_relaxed);
    to->sum_us += atomic_load_explicit(&from->sum_us, memory_order_relaxed);
}
