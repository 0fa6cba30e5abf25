/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The counters of all workers by database, and the snapshots that averages are
 * taken against. main calls admin_stats_tick() every stats_period. As in
 * PgBouncer an average covers the time since the last snapshot but one: one to
 * two periods. Sets belong to whoever made them; the rest is for any thread. */
#ifndef ADMIN_STATS_H
#define ADMIN_STATS_H

#include "pool/shard.h"

struct db_rec;
struct team;

struct stats_row {
    const struct db_rec *db;
    struct pool_stats sum;
};

struct stats_set {
    struct stats_row *rows;
    int n, cap;
};

/* Once, before anything is counted. */
void stats_start(int64_t now_us);

/* Takes a snapshot: gathers from all workers, logs the averages as one line if
 * log_stats is on, then calls done (which may be NULL) with that line on the
 * asker's loop. */
void admin_stats_tick(struct loop *asker,
                      void (*done)(void *arg, const char *line), void *arg);

/* Adds what a worker has counted; on its thread. */
void stats_collect(struct stats_set *set, struct shard *sh);
void stats_fini(struct stats_set *set);
void stats_sum(const struct stats_set *set, struct pool_stats *out);

/* Counts per second, times per event, of a database (NULL: of all) whose
 * counters are now cur. */
void stats_average(const struct db_rec *db, const struct pool_stats *cur,
                   int64_t now_us, struct pool_stats *out);

/* The same between two totals that lie span_us apart. */
void stats_between(const struct pool_stats *cur, const struct pool_stats *old,
                   int64_t span_us, struct pool_stats *out);

/* The line for the log out of averages. */
void stats_put_line(const struct pool_stats *avg, char *buf, size_t cap);

/* Makes the set the latest snapshot, and it empty. */
void stats_rotate(struct stats_set *set, int64_t now_us);

/* The counters in the order of PgBouncer's columns. */
enum { STATS_COUNTERS = 12 };
void stats_values(const struct pool_stats *s, uint64_t out[STATS_COUNTERS]);

#endif
