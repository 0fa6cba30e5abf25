/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Every stats_period: the snapshot that SHOW STATS_AVERAGES needs, and the line
 * of statistics for the log and the service manager. Main thread. */
#ifndef MAIN_STATS_LOG_H
#define MAIN_STATS_LOG_H

struct app;

void stats_log_start(struct app *app);

#endif
