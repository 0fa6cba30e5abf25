/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* All workers of the process: threads with a loop and a shard each. Made,
 * started and stopped by main; gathering may be asked for from any of its
 * threads. */
#ifndef WORKER_TEAM_H
#define WORKER_TEAM_H

#include "pool/shard.h"

struct team;
struct shared;

/* Makes the shards and their loops; no thread runs yet. */
NODISCARD int team_new(struct team **out, struct shared *shared, int n_workers,
                       const struct console_ops *console, struct err *e);
NODISCARD int team_start(struct team *t, struct err *e);

/* Stops the loops, waits for the threads, frees everything. */
void team_free(struct team *t);

int team_size(const struct team *t);
struct shard *team_shard(const struct team *t, int i);

/* Runs each(shard, arg) on every worker's thread, one after the other (worker 0
 * first), without stopping any; then done(arg) on the loop that asked. So
 * each() may write to arg without a lock. done may be NULL. */
void team_gather(struct team *t, struct loop *asker,
                 void (*each)(struct shard *sh, void *arg),
                 void (*done)(void *arg), void *arg);

/* Runs fn(shard, arg) on worker i's thread. */
void team_run_on(struct team *t, int i, void (*fn)(struct shard *sh, void *arg),
                 void *arg);

#endif
