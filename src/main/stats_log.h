/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The line of statistics every stats_period. Main thread. */
#ifndef MAIN_STATS_LOG_H
#define MAIN_STATS_LOG_H

#include "pool/shard.h"

struct app;

void stats_log_start(struct app *app);

/* Puts the line together from the totals of two moments; any thread. */
void stats_log_format(char *buf, size_t cap, const struct pool_stats *now,
                      const struct pool_stats *before, int64_t elapsed_us);

#endif
