/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The team with shards that only count: threads, gathering, errands, and a
 * start that fails. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/team.h"

enum { WORKERS = 5 };

struct shard {
    int index;
    struct loop *loop;
    pthread_t thread;
};

static int fails_at = -1;
static int n_alive, n_started, n_stopped; /* started and stopped: atomic */

int shard_new(struct shard **out, struct shared *shared, int index,
              const struct console_ops *console, struct err *e)
{
    struct shard *sh = mem_new(sizeof *sh);
    sh->index = index;
    *out = sh;
    n_alive++;
    return 0;
}

static const struct conf conf;

const struct conf *shard_conf(const struct shard *sh)
{
    return &conf;
}

void shard_set_cpu_clock(struct shard *sh, int64_t (*cpu_clock)(void))
{
}

int shard_start(struct shard *sh, struct loop *loop, struct err *e)
{
    if (sh->index == fails_at)
        return err_set(e, ERR_IO, "no luck");
    sh->loop = loop;
    sh->thread = pthread_self();
    __atomic_add_fetch(&n_started, 1, __ATOMIC_SEQ_CST);
    return 0;
}

void shard_stop(struct shard *sh)
{
    must(pthread_equal(sh->thread, pthread_self()));
    __atomic_add_fetch(&n_stopped, 1, __ATOMIC_SEQ_CST);
}

void shard_free(struct shard *sh)
{
    n_alive--;
    free(sh);
}

static int set_up(void **state)
{
    n_alive = n_started = n_stopped = 0;
    fails_at = -1;
    return 0;
}

static struct team *start_team(void)
{
    struct team *t = NULL;
    struct err e;
    assert_int_equal(team_new(&t, NULL, WORKERS, NULL, &e), 0);
    assert_int_equal(team_start(t, &e), 0);
    return t;
}

static void test_life(void **state)
{
    struct team *t = start_team();
    assert_int_equal(team_size(t), WORKERS);
    assert_int_equal(n_started, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(team_shard(t, i)->index, i);
    team_free(t);
    assert_int_equal(n_stopped, WORKERS);
    assert_int_equal(n_alive, 0);
}

static void test_not_started(void **state)
{
    struct team *t = NULL;
    struct err e;
    assert_int_equal(team_new(&t, NULL, WORKERS, NULL, &e), 0);
    team_free(t);
    assert_int_equal(n_started, 0);
    assert_int_equal(n_alive, 0);
}

static void test_start_fails(void **state)
{
    struct team *t = NULL;
    struct err e;
    fails_at = 3;
    assert_int_equal(team_new(&t, NULL, WORKERS, NULL, &e), 0);
    assert_int_equal(team_start(t, &e), ERR_IO);
    assert_string_equal(e.text, "worker 3: no luck");
    team_free(t);
    assert_int_equal(n_stopped, 3);
    assert_int_equal(n_alive, 0);
}

struct sum {
    struct loop *asker;
    int order[WORKERS], n;
    int left; /* gathers that are under way */
};

static void note(struct shard *sh, void *arg)
{
    struct sum *s = arg;
    must(pthread_equal(sh->thread, pthread_self()));
    s->order[s->n++] = sh->index;
}

static void end_one(void *arg)
{
    struct sum *s = arg;
    if (--s->left == 0)
        loop_stop(s->asker);
}

static void test_gather(void **state)
{
    struct team *t = start_team();
    struct err e;
    struct sum s = {.left = 1};
    assert_int_equal(loop_new(&s.asker, NULL, &e), 0);
    team_gather(t, s.asker, note, end_one, &s);
    loop_run(s.asker);
    assert_int_equal(s.n, WORKERS);
    for (int i = 0; i < WORKERS; i++)
        assert_int_equal(s.order[i], i);
    team_free(t);
    loop_free(s.asker);
}

struct many {
    struct loop *asker;
    int n, left;
};

static void count(struct shard *sh, void *arg)
{
    (*(int *)arg)++;
}

static void count_all(struct shard *sh, void *arg)
{
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_RELAXED);
}

static struct many many;

static void end_of_many(void *arg)
{
    if (--many.left == 0)
        loop_stop(many.asker);
}

/* Each with an argument of its own, all at the same time. */
static void test_gather_many(void **state)
{
    enum { GATHERS = 1000 };
    static int counts[GATHERS];
    struct team *t = start_team();
    struct err e;
    many.left = GATHERS;
    assert_int_equal(loop_new(&many.asker, NULL, &e), 0);
    for (int i = 0; i < GATHERS; i++)
        team_gather(t, many.asker, count, end_of_many, &counts[i]);
    loop_run(many.asker);
    for (int i = 0; i < GATHERS; i++)
        assert_int_equal(counts[i], WORKERS);
    team_free(t);
    loop_free(many.asker);
}

/* Without done; a later gather shows that the first has been everywhere. */
static void test_errands(void **state)
{
    struct team *t = start_team();
    struct err e;
    int n = 0;
    struct sum s = {.left = 1};
    assert_int_equal(loop_new(&s.asker, NULL, &e), 0);
    for (int i = 0; i < WORKERS; i++)
        team_run_on(t, i, count_all, &n);
    team_gather(t, s.asker, count_all, NULL, &n);
    team_gather(t, s.asker, note, end_one, &s);
    loop_run(s.asker);
    assert_int_equal(__atomic_load_n(&n, __ATOMIC_RELAXED), 2 * WORKERS);
    team_free(t);
    loop_free(s.asker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_life, set_up),
        cmocka_unit_test_setup(test_not_started, set_up),
        cmocka_unit_test_setup(test_start_fails, set_up),
        cmocka_unit_test_setup(test_gather, set_up),
        cmocka_unit_test_setup(test_gather_many, set_up),
        cmocka_unit_test_setup(test_errands, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
