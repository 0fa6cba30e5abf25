/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "loop/timer.h"

enum { TIMERS = 300 };

struct item {
    struct timer t;
    bool is_set; /* what the test believes */
    int n_fired;
};

static struct timer_heap heap;
static struct item items[TIMERS];
static int64_t now, last_deadline;
static uint32_t seed;

static uint32_t next_random(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed >> 8;
}

static void on_fire(struct timer *t)
{
    struct item *it = container_of(t, struct item, t);
    assert_true(it->is_set);
    assert_false(timer_is_set(t));
    assert_true(t->deadline_us <= now);
    assert_true(t->deadline_us >= last_deadline); /* earliest first */
    last_deadline = t->deadline_us;
    it->is_set = false;
    it->n_fired++;
}

static void reset(void)
{
    memset(items, 0, sizeof items);
    for (int i = 0; i < TIMERS; i++)
        items[i].t.on_fire = on_fire;
    timer_heap_init(&heap);
    now = last_deadline = 0;
}

static void set(int i, int64_t deadline_us)
{
    timer_heap_set(&heap, &items[i].t, deadline_us);
    items[i].is_set = true;
}

static void expect_consistent(void)
{
    uint32_t n = 0;
    int64_t first = INT64_MAX;
    assert_true(timer_heap_is_valid(&heap));
    for (int i = 0; i < TIMERS; i++) {
        assert_true(timer_is_set(&items[i].t) == items[i].is_set);
        if (items[i].is_set) {
            n++;
            first = MIN(first, items[i].t.deadline_us);
        }
    }
    assert_int_equal(heap.n, n);
    assert_true(timer_heap_first_us(&heap) == first);
}

static void random_operations_keep_the_heap(void **state)
{
    for (uint32_t run = 0; run < 20; run++) {
        seed = run;
        reset();
        for (int i = 0; i < 3000; i++) {
            int which = (int)(next_random() % TIMERS);
            switch (next_random() % 5) {
            case 0:
                timer_heap_remove(&heap, &items[which].t);
                items[which].is_set = false;
                break;
            case 1:
                now += next_random() % 50;
                last_deadline = 0;
                timer_heap_run(&heap, now);
                break;
            default: /* often equal ones, also in the past */
                set(which, now - 5 + next_random() % 200);
            }
            expect_consistent();
        }
        now = INT64_MAX - 1;
        last_deadline = 0;
        timer_heap_run(&heap, now);
        assert_int_equal(heap.n, 0);
        expect_consistent();
        timer_heap_fini(&heap);
    }
}

static void removes_what_is_not_set(void **state)
{
    reset();
    timer_heap_remove(&heap, &items[0].t);
    assert_true(timer_heap_first_us(&heap) == INT64_MAX);
    timer_heap_run(&heap, 100);
    timer_heap_fini(&heap);
}

/* A callback that sets its timer again and again does not hold up the loop. */
static int n_again;

static void on_fire_again(struct timer *t)
{
    n_again++;
    timer_heap_set(&heap, t, t->deadline_us);
}

static void self_setting_timer_fires_once_a_run(void **state)
{
    reset();
    n_again = 0;
    items[0].t.on_fire = on_fire_again;
    timer_heap_set(&heap, &items[0].t, 10);
    timer_heap_run(&heap, 10);
    assert_int_equal(n_again, 1);
    timer_heap_run(&heap, 10);
    assert_int_equal(n_again, 2);
    timer_heap_fini(&heap);
}

static void on_fire_clear_other(struct timer *t)
{
    on_fire(t);
    timer_heap_remove(&heap, &items[1].t);
    items[1].is_set = false;
    set(2, now + 1);
}

static void callback_may_clear_and_set_others(void **state)
{
    reset();
    items[0].t.on_fire = on_fire_clear_other;
    set(0, 1);
    set(1, 2);
    set(2, 3);
    now = 5;
    timer_heap_run(&heap, now);
    assert_int_equal(items[0].n_fired, 1);
    assert_int_equal(items[1].n_fired, 0);
    assert_int_equal(items[2].n_fired, 0);
    expect_consistent();
    now = 6;
    timer_heap_run(&heap, now);
    assert_int_equal(items[2].n_fired, 1);
    timer_heap_fini(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_keep_the_heap),
        cmocka_unit_test(removes_what_is_not_set),
        cmocka_unit_test(self_setting_timer_fires_once_a_run),
        cmocka_unit_test(callback_may_clear_and_set_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
