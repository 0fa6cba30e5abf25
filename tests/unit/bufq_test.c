/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/bufq.h"

/* What the queue must hold, as one flat buffer. */
struct model {
    uint8_t bytes[1 << 20];
    size_t begin, end;
};

static struct model model;
static uint32_t seed;

static uint32_t next_random(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed >> 8;
}

static void expect_same(const struct bufq *q)
{
    struct iovec iov[512];
    size_t at = model.begin, held = model.end - model.begin;
    int n = bufq_peek(q, iov, 512);
    assert_int_equal(q->size, held);
    assert_int_equal(bufq_front(q).n, n ? iov[0].iov_len : 0);
    for (int i = 0; i < n; i++) {
        assert_true(iov[i].iov_len > 0);
        assert_true(at + iov[i].iov_len <= model.end);
        assert_memory_equal(iov[i].iov_base, model.bytes + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert_int_equal(at, model.end);
    assert_true((held == 0) == (q->head == NULL));
}

static void put(struct bufq *q, struct bufq_pool *pool, size_t n)
{
    n = MIN(n, sizeof model.bytes - model.end);
    for (size_t i = 0; i < n; i++)
        model.bytes[model.end + i] = (uint8_t)next_random();
    assert_int_equal(bufq_put(q, pool, model.bytes + model.end, n), 0);
    model.end += n;
}

static void drop(struct bufq *q, struct bufq_pool *pool, size_t n)
{
    n = MIN(n, model.end - model.begin);
    bufq_drop(q, pool, n);
    model.begin += n;
}

static size_t random_size(void)
{
    static const uint32_t limits[] = {2, 100, 1000, 20000, 70000};
    return next_random() % limits[next_random() % ARRAY_SIZE(limits)];
}

static void behaves_like_a_flat_buffer(void **state)
{
    struct bufq_pool pool;
    struct bufq q;
    bufq_pool_init(&pool);
    bufq_init(&q);
    for (uint32_t run = 0; run < 200; run++) {
        seed = run;
        model.begin = model.end = 0;
        for (int i = 0; i < 60; i++) {
            if (next_random() % 3)
                put(&q, &pool, random_size());
            else
                drop(&q, &pool, random_size());
            expect_same(&q);
        }
        if (run % 2) {
            drop(&q, &pool, SIZE_MAX);
            expect_same(&q);
        } else {
            bufq_clear(&q, &pool);
        }
        assert_null(q.head);
        assert_int_equal(q.size, 0);
    }
    bufq_pool_fini(&pool);
}

static void empties_hold_nothing(void **state)
{
    struct bufq_pool pool;
    struct bufq q;
    bufq_pool_init(&pool);
    bufq_init(&q);
    model.begin = model.end = 0;
    expect_same(&q);
    bufq_drop(&q, &pool, 0);
    assert_int_equal(bufq_put(&q, &pool, "", 0), 0);
    expect_same(&q);
    put(&q, &pool, 10);
    drop(&q, &pool, 10);
    expect_same(&q);
    /* The chunk is kept and used again. */
    assert_int_equal(pool.n_small, 1);
    put(&q, &pool, 10);
    assert_int_equal(pool.n_small, 0);
    bufq_clear(&q, &pool);
    bufq_clear(&q, &pool);
    bufq_pool_fini(&pool);
}

static void peeks_at_most_what_is_asked(void **state)
{
    struct bufq_pool pool;
    struct bufq q;
    struct iovec iov[2];
    bufq_pool_init(&pool);
    bufq_init(&q);
    model.begin = model.end = 0;
    put(&q, &pool, 100000);
    assert_int_equal(bufq_peek(&q, iov, 2), 2);
    assert_int_equal(bufq_peek(&q, iov, 0), 0);
    bufq_clear(&q, NULL);
    bufq_pool_fini(&pool);
}

/* What is handed to another thread: another pool takes the chunks. */
static void moves_to_another_pool(void **state)
{
    struct bufq_pool pool, other;
    struct bufq q, more;
    bufq_pool_init(&pool);
    bufq_pool_init(&other);
    bufq_init(&q);
    bufq_init(&more);
    model.begin = model.end = 0;
    bufq_append(&q, &more);
    expect_same(&q);
    put(&more, &pool, 30000);
    bufq_append(&q, &more);
    assert_null(more.head);
    expect_same(&q);
    put(&more, &pool, 400);
    bufq_append(&q, &more);
    bufq_pool_fini(&pool);
    put(&q, &other, 5000);
    expect_same(&q);
    drop(&q, &other, 35000);
    expect_same(&q);
    bufq_clear(&q, &other);
    bufq_pool_fini(&other);
}

static void pool_is_bounded(void **state)
{
    struct bufq_pool pool;
    struct bufq q;
    static char block[4000000];
    bufq_pool_init(&pool);
    bufq_init(&q);
    assert_int_equal(bufq_put(&q, &pool, block, sizeof block), 0);
    bufq_clear(&q, &pool);
    assert_true(pool.n_large > 0 && pool.n_large <= 64);
    bufq_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaves_like_a_flat_buffer),
        cmocka_unit_test(empties_hold_nothing),
        cmocka_unit_test(peeks_at_most_what_is_asked),
        cmocka_unit_test(moves_to_another_pool),
        cmocka_unit_test(pool_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
