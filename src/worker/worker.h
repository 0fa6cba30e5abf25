/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One worker: a thread, its loop and its shard. Made, started, stopped and
 * freed by the team, from the thread that owns the team; the shard belongs to
 * the worker's thread from worker_start() on. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <pthread.h>

#include "pool/shard.h"

struct worker {
    int index;
    struct loop *loop;
    struct shard *shard;
    pthread_t thread;
    bool is_running;

    /* How its start went; under start_lock until it is known. */
    pthread_mutex_t start_lock;
    pthread_cond_t start_known;
    bool is_start_known;
    int start_rc;
    struct err start_error;
};

NODISCARD int worker_init(struct worker *w, struct shared *shared, int index,
                          const struct console_ops *console, struct err *e);

/* Starts the thread and waits until its shard has started, or failed to. */
NODISCARD int worker_start(struct worker *w, struct err *e);

/* Asks the thread to end; worker_join() waits for it. Both do nothing for one
 * that does not run. */
void worker_stop(struct worker *w);
void worker_join(struct worker *w);

/* In two steps, since shards and messages of the team name each other's loops:
 * first all shards, then all loops. After worker_join(). */
void worker_free_shard(struct worker *w);
void worker_free_loop(struct worker *w);

#endif
