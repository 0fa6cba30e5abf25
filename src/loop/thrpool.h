/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Helper threads for what blocks or takes long: PAM, LDAP, slow hashes. A job
 * is started from any loop's thread, runs on a helper and comes home by mailbox
 * to the loop that started it. So a job must own all that it touches: whom it
 * is for is named by an id and looked up when it is home again.
 *
 * Threads come as they are needed, up to a bound, and so do waiting jobs. The
 * parties that jobs are for take turns, so that nobody's flood keeps the rest
 * waiting. */
#ifndef LOOP_THRPOOL_H
#define LOOP_THRPOOL_H

#include "base/err.h"
#include "base/list.h"

struct loop;
struct thrpool;

/* Embedded in a heap object; the three functions are set by its owner. */
struct thrpool_job {
    struct list node; /* the pool's */
    struct loop *home;
    uint64_t party; /* whom it is for; set by the owner, or 0 */
    uint64_t turn;  /* the pool's */
    void (*run)(struct thrpool_job *j); /* on a helper thread */
    void (*done)(
        struct thrpool_job *j); /* on the loop it came from; frees the job */
    void (*drop)(
        struct thrpool_job *j); /* frees it instead, when all is ending */
};

/* name: of the threads, for people; up to 10 letters. max_jobs counts those
 * that run or wait. */
struct thrpool *thrpool_new(const char *name, int max_threads, int max_jobs);

/* Gives the job away. ERR_LIMIT: too many; it is still the caller's. */
NODISCARD int thrpool_start(struct thrpool *p, struct loop *home,
                            struct thrpool_job *j);

/* Begins no more jobs and sends none home, then waits for those that run; those
 * that take more than two seconds are left behind. While all loops still exist;
 * any thread, more than once does no harm. */
void thrpool_stop(struct thrpool *p);

/* After thrpool_stop(), when no loop is left that could take a job. */
void thrpool_free(struct thrpool *p); /* NULL is fine */

#endif
