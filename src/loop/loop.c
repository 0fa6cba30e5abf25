/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "loop/loop.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "loop/timer.h"

enum {
    EVENTS_PER_TURN = 256,
    MESSAGES_PER_TURN = 4096,
    FREE_LATER_FIRST = 64,
};

struct loop {
    int epoll_fd;
    void *data;
    int64_t now_us;
    struct timer_heap timers;
    struct list tasks, at_end;
    void **garbage;
    size_t n_garbage, cap_garbage;
    struct bufq_pool pool;
    char *scratch[LOOP_SCRATCH_COUNT];
    struct io wake;
    struct loop_stats stats;
    struct epoll_event *at_hand; /* of the turn that is running */
    int n_at_hand;
    struct message *inbox; /* taken from the mailbox, oldest first */

    /* written by other threads; on cache lines of their own */
    _Alignas(64) _Atomic(struct message *) mailbox; /* newest first */
    atomic_bool stopping;
};

static void on_wake(struct io *io, uint32_t events)
{
    struct loop *loop = container_of(io, struct loop, wake);
    uint64_t n;
    loop->stats.wakeups++;
    /* Edge-triggered: reading resets the counter; the mailbox itself is
     * looked at on every turn. */
    while (read(io->fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
}

int loop_new(struct loop **out, void *data, struct err *e)
{
    struct loop *loop = aligned_alloc(64, (sizeof *loop + 63) & ~(size_t)63);
    must(loop);
    *loop = (struct loop){.data = data, .epoll_fd = -1, .wake.fd = -1};
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    loop->wake.on_event = on_wake;
    list_init(&loop->tasks);
    list_init(&loop->at_end);
    bufq_pool_init(&loop->pool);
    timer_heap_init(&loop->timers);
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        loop->scratch[i] = mem_new(LOOP_SCRATCH_BYTES);
    loop->now_us = clock_now_us();
    if (loop->epoll_fd < 0 || loop->wake.fd < 0 ||
        loop_add(loop, &loop->wake, EPOLLIN)) {
        loop_free(loop);
        return err_set(e, ERR_IO, "event loop: %s", strerror(errno));
    }
    *out = loop;
    return 0;
}

static void empty_garbage(struct loop *loop)
{
    for (size_t i = 0; i < loop->n_garbage; i++)
        free(loop->garbage[i]);
    loop->n_garbage = 0;
}

static void take_mail(struct loop *loop)
{
    struct message *m = atomic_exchange(&loop->mailbox, NULL);
    struct message *oldest_first = NULL;
    while (m) {
        struct message *next = m->next;
        m->next = oldest_first;
        oldest_first = m;
        m = next;
    }
    struct message **tail = &loop->inbox;
    while (*tail)
        tail = &(*tail)->next;
    *tail = oldest_first;
}

static void run_list(struct list *l)
{
    struct list *n;
    while ((n = list_first(l))) {
        list_remove(n);
        struct task *t = list_entry(n, struct task, node);
        t->run(t);
    }
}

void loop_free(struct loop *loop)
{
    run_list(&loop->at_end);
    take_mail(loop);
    while (loop->inbox) {
        struct message *m = loop->inbox;
        loop->inbox = m->next;
        free(m);
    }
    empty_garbage(loop);
    free(loop->garbage);
    timer_heap_fini(&loop->timers);
    bufq_pool_fini(&loop->pool);
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        free(loop->scratch[i]);
    if (loop->wake.fd >= 0)
        close(loop->wake.fd);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    free(loop);
}

int loop_add(struct loop *loop, struct io *io, uint32_t events)
{
    struct epoll_event ev = {.events = events | EPOLLET, .data.ptr = io};
    io->events = events;
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, io->fd, &ev))
        return ERR_IO;
    return 0;
}

void loop_mod(struct loop *loop, struct io *io, uint32_t events)
{
    if (io->events == events)
        return;
    struct epoll_event ev = {.events = events | EPOLLET, .data.ptr = io};
    io->events = events;
    must(epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, io->fd, &ev) == 0);
}

void loop_del(struct loop *loop, struct io *io)
{
    io->on_event = NULL;
    /* An event at hand would be another thread's business once that thread has
     * registered io anew. */
    for (int i = 0; i < loop->n_at_hand; i++)
        if (loop->at_hand[i].data.ptr == io)
            loop->at_hand[i].data.ptr = NULL;
    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, io->fd, NULL);
}

void timer_set(struct loop *loop, struct timer *t, int64_t deadline_us)
{
    timer_heap_set(&loop->timers, t, deadline_us);
}

void timer_clear(struct loop *loop, struct timer *t)
{
    timer_heap_remove(&loop->timers, t);
}

bool timer_is_set(const struct timer *t)
{
    return t->slot != 0;
}

void loop_defer(struct loop *loop, struct task *t)
{
    if (!list_is_linked(&t->node))
        list_push_back(&loop->tasks, &t->node);
}

void loop_at_end(struct loop *loop, struct task *t)
{
    if (!list_is_linked(&t->node))
        list_push_back(&loop->at_end, &t->node);
}

void loop_cancel(struct task *t)
{
    list_remove(&t->node);
}

void loop_free_later(struct loop *loop, void *p)
{
    if (loop->n_garbage == loop->cap_garbage) {
        size_t cap = MAX(loop->cap_garbage * 2, (size_t)FREE_LATER_FIRST);
        loop->garbage = realloc(loop->garbage, cap * sizeof(void *));
        must(loop->garbage);
        loop->cap_garbage = cap;
    }
    loop->garbage[loop->n_garbage++] = p;
}

void mailbox_send(struct loop *to, struct message *m)
{
    struct message *old =
        atomic_load_explicit(&to->mailbox, memory_order_relaxed);
    do {
        m->next = old;
    } while (!atomic_compare_exchange_weak_explicit(
        &to->mailbox, &old, m, memory_order_seq_cst, memory_order_relaxed));
    if (!old) {
        uint64_t one = 1;
        while (write(to->wake.fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
}

void loop_stop(struct loop *loop)
{
    atomic_store(&loop->stopping, true);
    uint64_t one = 1;
    while (write(loop->wake.fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void handle_mail(struct loop *loop)
{
    if (atomic_load_explicit(&loop->mailbox, memory_order_relaxed))
        take_mail(loop);
    for (int i = 0; loop->inbox && i < MESSAGES_PER_TURN; i++) {
        struct message *m = loop->inbox;
        loop->inbox = m->next;
        loop->stats.messages++;
        m->handle(m, loop->data);
    }
}

/* Tasks deferred by a running task run in the next round of the same turn, at
 * most once each a turn: a task that always defers itself cannot starve the
 * descriptors. */
static void run_tasks(struct loop *loop)
{
    struct list now;
    if (list_empty(&loop->tasks))
        return;
    now = loop->tasks;
    now.next->prev = now.prev->next = &now;
    list_init(&loop->tasks);
    run_list(&now);
}

static int wait_ms(struct loop *loop)
{
    if (!list_empty(&loop->tasks) || loop->inbox)
        return 0;
    int64_t first = timer_heap_first_us(&loop->timers);
    if (first == INT64_MAX)
        return -1;
    int64_t left = first - clock_now_us();
    if (left <= 0)
        return 0;
    return (int)MIN((left + 999) / 1000, (int64_t)60000);
}

static void one_turn(struct loop *loop)
{
    struct epoll_event ev[EVENTS_PER_TURN];
    int n = epoll_wait(loop->epoll_fd, ev, EVENTS_PER_TURN, wait_ms(loop));
    must(n >= 0 || errno == EINTR);
    loop->now_us = clock_now_us();
    loop->stats.turns++;
    loop->at_hand = ev;
    loop->n_at_hand = n;
    for (int i = 0; i < n; i++) {
        struct io *io = ev[i].data.ptr;
        if (io && io->on_event)
            io->on_event(io, ev[i].events);
    }
    loop->n_at_hand = 0;
    if (n > 0)
        loop->stats.events += (uint64_t)n;
    handle_mail(loop);
    timer_heap_run(&loop->timers, loop->now_us);
    run_tasks(loop);
    empty_garbage(loop);
}

void loop_run(struct loop *loop)
{
    while (!atomic_load_explicit(&loop->stopping, memory_order_relaxed))
        one_turn(loop);
    atomic_store(&loop->stopping, false);
}

void *loop_data(const struct loop *loop)
{
    return loop->data;
}

int64_t loop_now_us(const struct loop *loop)
{
    return loop->now_us;
}

char *loop_scratch(struct loop *loop, int which)
{
    return loop->scratch[which];
}

struct bufq_pool *loop_pool(struct loop *loop)
{
    return &loop->pool;
}

const struct loop_stats *loop_stats(const struct loop *loop)
{
    return &loop->stats;
}
