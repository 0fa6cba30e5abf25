/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/altstack.h"
#include "base/clock.h"
#include "worker/pin.h"

enum { THREAD_NAME_MAX = 16 }; /* the kernel's limit */

int worker_init(struct worker *w, struct shared *shared, int index,
                const struct console_ops *console, struct err *e)
{
    *w = (struct worker){.index = index};
    must(pthread_mutex_init(&w->start_lock, NULL) == 0);
    must(pthread_cond_init(&w->start_known, NULL) == 0);
    int rc = loop_new(&w->loop, w, e);
    if (rc == 0)
        rc = shard_new(&w->shard, shared, index, console, e);
    return rc;
}

static void tell_start(struct worker *w, int rc, const struct err *e)
{
    pthread_mutex_lock(&w->start_lock);
    w->is_start_known = true;
    w->start_rc = rc;
    w->start_error = *e;
    pthread_cond_signal(&w->start_known);
    pthread_mutex_unlock(&w->start_lock);
}

static void *run(void *arg)
{
    struct worker *w = arg;
    struct err e = {0};
    altstack_start();
    if (shard_conf(w->shard)->worker_pinning)
        pin_thread(w->index);
    shard_set_cpu_clock(w->shard, clock_thread_cpu_us);
    int rc = shard_start(w->shard, w->loop, &e);
    tell_start(w, rc, &e);
    if (rc == 0) {
        loop_run(w->loop);
        shard_stop(w->shard);
    }
    altstack_stop();
    return NULL;
}

static int wait_for_start(struct worker *w, struct err *e)
{
    pthread_mutex_lock(&w->start_lock);
    while (!w->is_start_known)
        pthread_cond_wait(&w->start_known, &w->start_lock);
    int rc = w->start_rc;
    if (rc && e)
        *e = w->start_error;
    pthread_mutex_unlock(&w->start_lock);
    return rc;
}

int worker_start(struct worker *w, struct err *e)
{
    int cause = pthread_create(&w->thread, NULL, run, w);
    if (cause)
        return err_set(e, ERR_IO, "worker %d: cannot start a thread: %s",
                       w->index, strerror(cause));
    w->is_running = true;
    char name[THREAD_NAME_MAX];
    snprintf(name, sizeof name, "pgbraid-w%d", w->index);
    (void)pthread_setname_np(w->thread, name); /* for people only */
    if (wait_for_start(w, e))
        return err_wrap(e, "worker %d", w->index);
    return 0;
}

void worker_stop(struct worker *w)
{
    if (w->is_running)
        loop_stop(w->loop);
}

void worker_join(struct worker *w)
{
    if (w->is_running)
        must(pthread_join(w->thread, NULL) == 0);
    w->is_running = false;
}

void worker_free_shard(struct worker *w)
{
    if (w->shard)
        shard_free(w->shard);
    w->shard = NULL;
}

void worker_free_loop(struct worker *w)
{
    if (w->loop)
        loop_free(w->loop);
    w->loop = NULL;
    pthread_cond_destroy(&w->start_known);
    pthread_mutex_destroy(&w->start_lock);
}
