/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Loops that a scheduler drives, and everything that would make one run differ
 * from the next. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"
#include "loop/timer.h"
#include "net/resolve.h"
#include "sim.h"

uint64_t sim_seed;
bool sim_verbose;
int64_t sim_now_us = 1000000;

static uint64_t random_state;

void sim_srand(uint64_t seed)
{
    sim_seed = seed;
    random_state = seed * 0x9e3779b97f4a7c15u + 0x1234567;
}

static uint64_t next_random(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint32_t rnd(uint32_t below)
{
    return below ? (uint32_t)(next_random() % below) : 0;
}

bool chance(unsigned percent)
{
    return rnd(100) < percent;
}

void sim_fail(const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "seed %llu: ", (unsigned long long)sim_seed);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

void bytes_add(struct bytes *b, const void *p, size_t n)
{
    if (!n)
        return;
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->p = realloc(b->p, b->cap);
        must(b->p);
    }
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void bytes_drop(struct bytes *b, size_t n)
{
    must(n <= b->n);
    if (n)
        memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

void bytes_free(struct bytes *b)
{
    free(b->p);
    *b = (struct bytes){0};
}

/* ------------------------------------------------- clock, random, log, DNS */

int64_t clock_now_us(void)
{
    return sim_now_us;
}

int64_t clock_wall_us(void)
{
    return sim_now_us;
}

void rand_bytes(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)next_random();
}

void log_write(enum log_level level, const char *fmt, ...)
{
    va_list ap;
    if (!sim_verbose)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "%lld ", (long long)sim_now_us);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

bool log_is_on(enum log_level level)
{
    return sim_verbose;
}

int resolver_new(struct resolver **out, struct loop *loop,
                 const struct resolver_options *o, struct err *e)
{
    *out = NULL;
    return 0;
}

void resolver_free(struct resolver *r)
{
}

int resolver_reconfigure(struct resolver *r, const struct resolver_options *o,
                         struct err *e)
{
    return 0;
}

struct resolve *resolve_start(struct resolver *r, const char *host,
                              resolve_cb cb, void *arg)
{
    sim_fail("name resolution of %s", host);
}

void resolve_cancel(struct resolve *q)
{
}

size_t resolver_n_cached(const struct resolver *r)
{
    return 0;
}

size_t resolver_n_zones(const struct resolver *r)
{
    return 0;
}

void resolver_for_each(struct resolver *r, resolve_entry_cb cb, void *arg)
{
}

void resolver_for_each_zone(struct resolver *r, resolve_zone_cb cb, void *arg)
{
}

size_t resolver_n_waiting(const struct resolver *r)
{
    return 0;
}

/* ------------------------------------------------------------------- loops */

struct loop {
    int64_t now_us;
    struct timer_heap timers;
    struct list tasks;
    void **garbage;
    size_t n_garbage, cap_garbage;
    struct bufq_pool pool;
    char *scratch[LOOP_SCRATCH_COUNT];
    struct message *inbox, **inbox_end;
};

struct loop *sim_loop_new(void)
{
    struct loop *l = mem_new(sizeof *l);
    l->now_us = sim_now_us;
    timer_heap_init(&l->timers);
    list_init(&l->tasks);
    bufq_pool_init(&l->pool);
    l->inbox_end = &l->inbox;
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        l->scratch[i] = mem_new(LOOP_SCRATCH_BYTES);
    return l;
}

void sim_loop_end_turn(struct loop *l)
{
    for (size_t i = 0; i < l->n_garbage; i++)
        free(l->garbage[i]);
    l->n_garbage = 0;
}

void sim_loop_free(struct loop *l)
{
    while (l->inbox) {
        struct message *m = l->inbox;
        l->inbox = m->next;
        free(m);
    }
    sim_loop_end_turn(l);
    free(l->garbage);
    timer_heap_fini(&l->timers);
    bufq_pool_fini(&l->pool);
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        free(l->scratch[i]);
    free(l);
}

void sim_loop_tick(struct loop *l)
{
    l->now_us = sim_now_us;
}

static bool handle_mail(struct loop *l)
{
    struct message *m = l->inbox;
    if (!m)
        return false;
    l->inbox = NULL;
    l->inbox_end = &l->inbox;
    while (m) {
        struct message *next = m->next;
        m->handle(m, NULL);
        m = next;
    }
    return true;
}

static bool run_tasks(struct loop *l)
{
    struct list now, *n;
    if (list_empty(&l->tasks))
        return false;
    now = l->tasks;
    now.next->prev = now.prev->next = &now;
    list_init(&l->tasks);
    while ((n = list_first(&now))) {
        list_remove(n);
        struct task *t = list_entry(n, struct task, node);
        t->run(t);
    }
    return true;
}

bool sim_loop_work(struct loop *l, bool with_timers)
{
    bool worked = handle_mail(l);
    if (with_timers)
        timer_heap_run(&l->timers, l->now_us);
    return run_tasks(l) || worked;
}

int loop_add(struct loop *l, struct io *io, uint32_t events)
{
    sim_fail("a descriptor in the simulation");
}

void loop_mod(struct loop *l, struct io *io, uint32_t events)
{
}

void loop_del(struct loop *l, struct io *io)
{
}

void timer_set(struct loop *l, struct timer *t, int64_t deadline_us)
{
    timer_heap_set(&l->timers, t, deadline_us);
}

void timer_clear(struct loop *l, struct timer *t)
{
    timer_heap_remove(&l->timers, t);
}

bool timer_is_set(const struct timer *t)
{
    return t->slot != 0;
}

void loop_defer(struct loop *l, struct task *t)
{
    if (!list_is_linked(&t->node))
        list_push_back(&l->tasks, &t->node);
}

void loop_cancel(struct task *t)
{
    list_remove(&t->node);
}

void loop_free_later(struct loop *l, void *p)
{
    if (l->n_garbage == l->cap_garbage) {
        l->cap_garbage = l->cap_garbage * 2 + 16;
        l->garbage = realloc(l->garbage, l->cap_garbage * sizeof(void *));
        must(l->garbage);
    }
    l->garbage[l->n_garbage++] = p;
}

void mailbox_send(struct loop *l, struct message *m)
{
    m->next = NULL;
    *l->inbox_end = m;
    l->inbox_end = &m->next;
}

int64_t loop_now_us(const struct loop *l)
{
    return l->now_us;
}

char *loop_scratch(struct loop *l, int which)
{
    return l->scratch[which];
}

struct bufq_pool *loop_pool(struct loop *l)
{
    return &l->pool;
}
