/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The one budget, exact from many threads; demand counters; failures. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "pool/shared.h"

enum { THREADS = 4, ROUNDS = 20000 };

static struct shared *s;
static struct db_rec *db[2];
static struct user_rec *user[2];
static struct pool_rec *pool[2][2];

static int set_up(void **state)
{
    s = shared_new(NULL, THREADS);
    for (int i = 0; i < 2; i++) {
        db[i] = shared_db(s, slice_str(i ? "db1" : "db0"));
        user[i] = shared_user(s, slice_str(i ? "user1" : "user0"));
    }
    for (int i = 0; i < 4; i++)
        pool[i / 2][i % 2] = shared_pool(s, db[i / 2], user[i % 2]);
    return 0;
}

static int tear_down(void **state)
{
    shared_free(s);
    return 0;
}

static void test_records(void **state)
{
    assert_ptr_equal(shared_db(s, slice_str("db0")), db[0]);
    assert_ptr_equal(shared_find_db(s, slice_str("db1")), db[1]);
    assert_null(shared_find_db(s, slice_str("db")));
    assert_null(shared_find_user(s, slice_str("user")));
    assert_ptr_equal(shared_find_user(s, slice_str("user1")), user[1]);
    assert_ptr_equal(shared_pool(s, db[0], user[1]), pool[0][1]);
    assert_ptr_not_equal(pool[0][1], pool[1][0]);
    assert_string_equal(pool[1][0]->db->name, "db1");
    assert_string_equal(pool[1][0]->user->name, "user0");
    assert_int_equal((uintptr_t)&pool[0][0]->slot[1] % 64, 0);
}

static void take(struct pool_rec *p, const struct budget_limits *l,
                 enum budget_verdict expected)
{
    assert_int_equal(budget_take(s, p, l), expected);
}

static void test_limits(void **state)
{
    struct budget_limits l = {.pool_size = 2, .max_db = 3, .max_user = 3};
    take(pool[0][0], &l, BUDGET_OK);
    take(pool[0][0], &l, BUDGET_OK);
    take(pool[0][0], &l, BUDGET_POOL_FULL);
    take(pool[0][1], &l, BUDGET_OK);
    take(pool[0][1], &l, BUDGET_DB_FULL);
    take(pool[1][0], &l, BUDGET_OK);
    take(pool[1][0], &l, BUDGET_USER_FULL);
    assert_int_equal(budget_db_count(s, db[0]), 3);
    assert_int_equal(budget_user_count(s, user[0]), 3);
    /* What was refused left nothing behind. */
    budget_give(s, pool[0][0]);
    take(pool[1][0], &l, BUDGET_OK);
    budget_give(s, pool[0][0]);
    budget_give(s, pool[0][1]);
    budget_give(s, pool[1][0]);
    budget_give(s, pool[1][0]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(budget_db_count(s, db[i]), 0);
        assert_int_equal(budget_user_count(s, user[i]), 0);
    }
}

/* A pool whose clients a limit has refused for long is next, however busy the
 * other pools under it are. */
static void test_claim(void **state)
{
    struct budget_limits l = {.max_user = 2, .now_us = 1000};
    struct budget_limits late = {
        .max_user = 2, .since_us = 900000, .now_us = 1000000};
    struct budget_limits early = {
        .max_user = 2, .since_us = 1, .now_us = 1000000};
    take(pool[0][0], &l, BUDGET_OK);
    take(pool[0][0], &l, BUDGET_OK);
    take(pool[1][0], &late, BUDGET_USER_FULL); /* has not waited for long */
    assert_false(budget_is_claimed(s, pool[0][0], 0, 1000000));
    take(pool[1][0], &early, BUDGET_USER_FULL);
    assert_true(budget_is_claimed(s, pool[0][0], 0, 1000000));
    assert_true(budget_is_claimed(s, pool[0][0], 2, 1000000));
    assert_false(budget_is_claimed(s, pool[1][0], 1, 1000000));
    budget_give(s, pool[0][0]);
    take(pool[0][0], &late, BUDGET_USER_FULL);
    take(pool[1][0], &early, BUDGET_OK);
    assert_false(budget_is_claimed(s, pool[0][0], 0, 1000000));
    /* It ends with the client that waited, or by itself. */
    take(pool[1][0], &early, BUDGET_USER_FULL);
    assert_false(budget_end_claim(s, pool[1][0], 2));
    assert_true(budget_end_claim(s, pool[1][0], 1));
    take(pool[1][0], &early, BUDGET_USER_FULL);
    budget_give(s, pool[1][0]);
    late.now_us += CLAIM_TTL_US;
    take(pool[0][0], &late, BUDGET_OK);
    budget_give(s, pool[0][0]);
    budget_give(s, pool[0][0]);
}

static void test_no_limit(void **state)
{
    struct budget_limits none = {0};
    for (int i = 0; i < 100; i++)
        take(pool[0][0], &none, BUDGET_OK);
    for (int i = 0; i < 100; i++)
        budget_give(s, pool[0][0]);
}

/* What the threads hold, counted by themselves. */
static atomic_int held_pool[2][2], held_db[2], held_user[2];
static const struct budget_limits limits = {
    .pool_size = 3, .max_db = 4, .max_user = 5};

static void give_one(int d, int u)
{
    atomic_fetch_sub(&held_pool[d][u], 1);
    atomic_fetch_sub(&held_db[d], 1);
    atomic_fetch_sub(&held_user[u], 1);
    budget_give(s, pool[d][u]);
}

static void *hammer(void *arg)
{
    unsigned x = *(unsigned *)arg;
    uint64_t *taken = arg;
    uint64_t n = 0;
    int mine[2][2] = {{0}};
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 1664525 + 1013904223;
        int d = x >> 30 & 1, u = x >> 29 & 1;
        if (x >> 28 & 1) {
            if (budget_take(s, pool[d][u], &limits) != BUDGET_OK)
                continue;
            /* Counted behind the taking, uncounted before the giving: never
             * more than there is. */
            must(atomic_fetch_add(&held_pool[d][u], 1) < limits.pool_size);
            must(atomic_fetch_add(&held_db[d], 1) < limits.max_db);
            must(atomic_fetch_add(&held_user[u], 1) < limits.max_user);
            mine[d][u]++;
            n++;
        } else if (mine[d][u]) {
            mine[d][u]--;
            give_one(d, u);
        }
    }
    for (int k = 0; k < 4; k++)
        while (mine[k / 2][k % 2]-- > 0)
            give_one(k / 2, k % 2);
    *taken = n;
    return NULL;
}

static void test_exact_from_threads(void **state)
{
    pthread_t t[THREADS];
    uint64_t arg[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        arg[i] = i * 77 + 1;
        assert_int_equal(pthread_create(&t[i], NULL, hammer, &arg[i]), 0);
    }
    uint64_t took = 0; /* one of them may never have got a turn */
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        took += arg[i];
    }
    assert_true(took > 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(budget_db_count(s, db[i]), 0);
        assert_int_equal(budget_user_count(s, user[i]), 0);
    }
    for (int k = 0; k < 4; k++)
        assert_int_equal(pool[k / 2][k % 2]->n_servers, 0);
}

static void test_demand(void **state)
{
    struct pool_rec *p = pool[0][0];
    assert_false(demand_take(p, 1));
    demand_add(p, 1, 2);
    demand_add(p, 2, 1);
    assert_int_equal(p->demand, 3);
    assert_true(demand_take(p, 1));
    assert_true(demand_take(p, 1));
    assert_false(demand_take(p, 1)); /* never another worker's */
    /* The waiter left meanwhile; the server that comes makes it good. */
    demand_add(p, 2, -1);
    assert_int_equal(p->demand, 0);
    assert_false(demand_take(p, 2));
    demand_add(p, 1, -2);
    assert_false(demand_take(p, 1));
    demand_add(p, 1, 2);
    assert_int_equal(p->demand, 0);
}

static atomic_int n_units;

/* Thread 0 adds units, the others take them; none is taken twice. */
static void *demand_thread(void *arg)
{
    int me = *(int *)arg;
    for (int i = 0; i < ROUNDS; i++) {
        if (me == 0) {
            atomic_fetch_add(&n_units, 1);
            demand_add(pool[0][0], 0, 1);
        } else if (demand_take(pool[0][0], 0)) {
            must(atomic_fetch_sub(&n_units, 1) > 0);
        }
    }
    return NULL;
}

static void test_demand_from_threads(void **state)
{
    pthread_t t[THREADS];
    int arg[THREADS];
    for (int i = 0; i < THREADS; i++) {
        arg[i] = i;
        assert_int_equal(pthread_create(&t[i], NULL, demand_thread, &arg[i]),
                         0);
    }
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(pool[0][0]->slot[0].demand, n_units);
    assert_int_equal(pool[0][0]->demand, n_units);
    while (demand_take(pool[0][0], 0))
        n_units--;
    assert_int_equal(n_units, 0);
}

static void *records_thread(void *arg)
{
    struct pool_rec **out = arg;
    for (int i = 0; i < 1000; i++) {
        char name[16] = "new0000";
        name[3] = (char)('0' + i / 100);
        struct db_rec *d = shared_db(s, slice_str(name));
        struct user_rec *u = shared_user(s, slice_str(name));
        *out = shared_pool(s, d, u);
        must((*out)->db == d && (*out)->user == u);
    }
    return NULL;
}

static void test_records_from_threads(void **state)
{
    pthread_t t[THREADS];
    struct pool_rec *last[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&t[i], NULL, records_thread, &last[i]),
                         0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (size_t i = 1; i < THREADS; i++)
        assert_ptr_equal(last[i], last[0]);
}

static void test_failure(void **state)
{
    char code[6], text[FAIL_TEXT_MAX];
    struct pool_rec *p = pool[0][0];
    assert_false(pool_rec_failure(p, code, text, sizeof text));
    pool_rec_set_failed(p, 42, "28P01", "no entry");
    assert_true(pool_rec_failure(p, code, text, sizeof text));
    assert_string_equal(code, "28P01");
    assert_string_equal(text, "no entry");
    pool_rec_set_working(p);
    assert_false(pool_rec_failure(p, code, text, sizeof text));
}

static struct conf *load_conf(void)
{
    char path[] = "/tmp/shared_test.XXXXXX";
    static const char text[] = "[databases]\ndb1 =\n* =\n[pgbouncer]\n"
                               "listen_port = 6432\n";
    struct conf *conf;
    struct err e;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(conf_load(path, &conf, &e), 0);
    unlink(path);
    return conf;
}

static void sweep(const struct conf *conf, int n)
{
    while (n-- > 0)
        shared_forget_unused(s, conf);
}

/* A database that only the fallback line serves goes when nobody uses it. */
static void test_forget_unused(void **state)
{
    struct conf *conf = load_conf();
    struct slice name = slice_str("db0");
    atomic_store(&db[0]->n_clients, 1);
    sweep(conf, 5);
    assert_ptr_equal(shared_find_db(s, name), db[0]);
    atomic_store(&db[0]->n_clients, 0);
    sweep(conf, 1);
    assert_ptr_equal(shared_db(s, name), db[0]); /* begins anew */
    sweep(conf, 1);
    assert_ptr_equal(shared_find_db(s, name), db[0]);
    sweep(conf, 1);
    assert_null(shared_find_db(s, name));
    assert_string_equal(pool[0][1]->db->name, "db0"); /* still readable */
    assert_ptr_equal(shared_pool(s, db[1], user[0]), pool[1][0]);
    struct db_rec *again = shared_db(s, name);
    assert_ptr_not_equal(again, db[0]);
    assert_ptr_not_equal(shared_pool(s, again, user[0]), pool[0][0]);
    atomic_store(&again->is_paused, true);
    sweep(conf, 9);
    assert_ptr_equal(shared_find_db(s, name), again);
    assert_ptr_equal(shared_find_db(s, slice_str("db1")), db[1]);
    conf_unref(conf);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_records),
        T(test_limits),
        T(test_claim),
        T(test_no_limit),
        T(test_exact_from_threads),
        T(test_demand),
        T(test_demand_from_threads),
        T(test_records_from_threads),
        T(test_failure),
        T(test_forget_unused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
