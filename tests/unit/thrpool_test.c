/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "loop/thrpool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>

#include "loop/loop.h"

enum { JOBS = 200 };

struct work {
    struct thrpool_job job;
    int value;
    pthread_t ran_on;
};

static struct loop *loop;
static int n_home, sum_home;
static atomic_int n_dropped, n_ran;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void work_run(struct thrpool_job *j)
{
    struct work *w = container_of(j, struct work, job);
    w->ran_on = pthread_self();
    w->value *= 2;
    n_ran++;
}

static void blocked_run(struct thrpool_job *j)
{
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    work_run(j);
}

static void work_done(struct thrpool_job *j)
{
    struct work *w = container_of(j, struct work, job);
    assert_false(pthread_equal(w->ran_on, pthread_self()));
    sum_home += w->value;
    free(w);
    if (++n_home == JOBS)
        loop_stop(loop);
}

static void work_drop(struct thrpool_job *j)
{
    n_dropped++;
    free(container_of(j, struct work, job));
}

static int start(struct thrpool *p, void (*run)(struct thrpool_job *j),
                 int value)
{
    struct work *w = mem_new(sizeof *w);
    w->value = value;
    w->job.run = run;
    w->job.done = work_done;
    w->job.drop = work_drop;
    int rc = thrpool_start(p, loop, &w->job);
    if (rc)
        free(w);
    return rc;
}

static int set_up(void **state)
{
    struct err e;
    n_home = sum_home = 0;
    n_dropped = 0;
    n_ran = 0;
    return loop_new(&loop, NULL, &e);
}

static void jobs_come_home(void **state)
{
    struct thrpool *p = thrpool_new("test", 4, JOBS);
    for (int i = 0; i < JOBS; i++)
        assert_int_equal(start(p, work_run, i), 0);
    loop_run(loop);
    assert_int_equal(sum_home, JOBS * (JOBS - 1));
    thrpool_stop(p);
    loop_free(loop);
    thrpool_free(p);
    assert_int_equal(n_dropped, 0);
}

static void waiting_jobs_are_bounded(void **state)
{
    struct thrpool *p = thrpool_new("test", 1, 3);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 3; i++)
        assert_int_equal(start(p, blocked_run, i), 0);
    assert_int_equal(start(p, blocked_run, 9), ERR_LIMIT);
    pthread_mutex_unlock(&gate);
    thrpool_stop(p);
    assert_int_equal(start(p, work_run, 9), ERR_LIMIT);
    loop_free(loop);
    thrpool_free(p);
    assert_int_equal(n_dropped, 3);
}

/* Jobs that ran, but whose loop ended before it looked. */
static void jobs_that_find_nobody_are_dropped(void **state)
{
    struct thrpool *p = thrpool_new("test", 2, 100);
    for (int i = 0; i < 50; i++)
        assert_int_equal(start(p, work_run, i), 0);
    while (n_ran < 50)
        sched_yield();
    thrpool_stop(p);
    thrpool_stop(p);
    loop_free(loop);
    thrpool_free(p);
    assert_int_equal(n_dropped, 50);
    assert_int_equal(n_home, 0);
}

static void nothing_started(void **state)
{
    struct thrpool *p = thrpool_new("test", 2, 2);
    thrpool_free(p);
    thrpool_free(NULL);
    loop_free(loop);
}

/* One party's flood lets the others pass. */
static int order[16], n_order;

static void order_run(struct thrpool_job *j)
{
    struct work *w = container_of(j, struct work, job);
    w->ran_on = pthread_self();
    pthread_mutex_lock(&gate);
    order[n_order++] = (int)j->party;
    pthread_mutex_unlock(&gate);
}

static void order_done(struct thrpool_job *j)
{
    work_drop(j);
    if (n_order == 10)
        loop_stop(loop);
}

static void start_order(struct thrpool *p, uint64_t party)
{
    struct work *w = mem_new(sizeof *w);
    w->job.run = order_run;
    w->job.done = order_done;
    w->job.drop = work_drop;
    w->job.party = party;
    assert_int_equal(thrpool_start(p, loop, &w->job), 0);
}

static void a_flood_lets_others_pass(void **state)
{
    struct thrpool *p = thrpool_new("test", 1, 100);
    n_order = 0;
    pthread_mutex_lock(&gate);
    for (int i = 0; i < 9; i++)
        start_order(p, 1);
    start_order(p, 2);
    pthread_mutex_unlock(&gate);
    loop_run(loop);
    /* One of the flood had begun, and one was next. */
    int at = 0;
    while (at < 10 && order[at] != 2)
        at++;
    assert_in_range(at, 0, 2);
    thrpool_stop(p);
    loop_free(loop);
    thrpool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(jobs_come_home, set_up),
        cmocka_unit_test_setup(waiting_jobs_are_bounded, set_up),
        cmocka_unit_test_setup(jobs_that_find_nobody_are_dropped, set_up),
        cmocka_unit_test_setup(nothing_started, set_up),
        cmocka_unit_test_setup(a_flood_lets_others_pass, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
