/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/loop.h"

static struct loop *new_loop(void *data)
{
    struct loop *loop = NULL;
    struct err e;
    assert_int_equal(loop_new(&loop, data, &e), 0);
    assert_ptr_equal(loop_data(loop), data);
    return loop;
}

static void run(struct loop *loop)
{
    alarm(30);
    loop_run(loop);
    alarm(0);
}

/* --- mailbox ------------------------------------------------------------- */

enum { SENDERS = 4, MESSAGES = 50000 };

struct note {
    struct message m;
    int sender, number;
};

struct inbox {
    struct loop *loop;
    int next[SENDERS];
    int n;
};

static void on_note(struct message *m, void *loop_data)
{
    struct note *note = container_of(m, struct note, m);
    struct inbox *inbox = loop_data;
    assert_int_equal(inbox->next[note->sender], note->number);
    inbox->next[note->sender]++;
    free(note);
    if (++inbox->n == SENDERS * MESSAGES)
        loop_stop(inbox->loop);
}

struct sender {
    pthread_t thread;
    struct loop *to;
    int id;
};

static void *send_notes(void *arg)
{
    struct sender *s = arg;
    for (int i = 0; i < MESSAGES; i++) {
        struct note *note = mem_new(sizeof *note);
        note->m.handle = on_note;
        note->sender = s->id;
        note->number = i;
        mailbox_send(s->to, &note->m);
        if (i % 1000 == 0)
            sched_yield();
    }
    return NULL;
}

static void mail_of_many_threads_arrives_in_order(void **state)
{
    struct inbox inbox = {0};
    struct sender senders[SENDERS];
    inbox.loop = new_loop(&inbox);
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.to = inbox.loop, .id = i};
        assert_int_equal(
            pthread_create(&senders[i].thread, NULL, send_notes, &senders[i]),
            0);
    }
    run(inbox.loop);
    for (int i = 0; i < SENDERS; i++)
        pthread_join(senders[i].thread, NULL);
    assert_int_equal(inbox.n, SENDERS * MESSAGES);
    assert_int_equal(loop_stats(inbox.loop)->messages, SENDERS * MESSAGES);
    loop_free(inbox.loop);
}

/* Two loops play ping-pong: each message must wake a loop that sleeps. */
struct ball {
    struct message m;
    struct loop *at[2];
    int n;
};

enum { STROKES = 20000 };

static void on_ball(struct message *m, void *loop_data)
{
    struct ball *ball = container_of(m, struct ball, m);
    if (++ball->n >= STROKES) {
        loop_stop(ball->at[0]);
        loop_stop(ball->at[1]);
        free(ball);
        return;
    }
    mailbox_send(ball->at[ball->n % 2], &ball->m);
}

static void *run_loop(void *arg)
{
    loop_run(arg);
    return NULL;
}

static void no_wakeup_is_lost(void **state)
{
    struct ball *ball = mem_new(sizeof *ball);
    struct loop *a = new_loop(NULL), *b = new_loop(NULL);
    pthread_t thread;
    ball->m.handle = on_ball;
    ball->at[0] = a;
    ball->at[1] = b;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, b), 0);
    mailbox_send(a, &ball->m);
    run(a);
    pthread_join(thread, NULL);
    loop_free(a);
    loop_free(b);
}

static void unread_mail_is_freed(void **state)
{
    struct loop *loop = new_loop(NULL);
    for (int i = 0; i < 3; i++) {
        struct note *note = mem_new(sizeof *note);
        note->m.handle = on_note;
        mailbox_send(loop, &note->m);
    }
    loop_free(loop);
}

/* --- descriptors --------------------------------------------------------- */

struct pair {
    struct loop *loop;
    struct io io, other;
    int far_fd, n_events;
    struct task task;
    struct timer timer;
};

static void on_readable(struct io *io, uint32_t events)
{
    struct pair *p = container_of(io, struct pair, io);
    char byte;
    assert_true(events & EPOLLIN);
    assert_int_equal(read(io->fd, &byte, 1), 1);
    if (++p->n_events == 3) {
        loop_del(p->loop, io);
        loop_stop(p->loop);
    } else {
        assert_int_equal(write(p->far_fd, "x", 1), 1);
    }
}

static void pair_init(struct pair *p)
{
    int fd[2];
    *p = (struct pair){.loop = new_loop(NULL)};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd),
                     0);
    p->io.fd = fd[0];
    p->far_fd = fd[1];
    list_init(&p->task.node);
}

static void pair_fini(struct pair *p)
{
    close(p->io.fd);
    close(p->far_fd);
    loop_free(p->loop);
}

static void tells_of_each_arrival(void **state)
{
    struct pair p;
    pair_init(&p);
    p.io.on_event = on_readable;
    assert_int_equal(loop_add(p.loop, &p.io, EPOLLIN), 0);
    assert_int_equal(write(p.far_fd, "x", 1), 1);
    run(p.loop);
    assert_int_equal(p.n_events, 3);
    pair_fini(&p);
}

static void add_says_what_it_cannot_watch(void **state)
{
    struct loop *loop = new_loop(NULL);
    struct io io = {.fd = -1, .on_event = on_readable};
    assert_int_equal(loop_add(loop, &io, EPOLLIN), ERR_IO);
    loop_free(loop);
}

/* Two descriptors are ready in one turn; the first callback ends the second:
 * no event follows, and its memory may go at the end of the turn. */
struct heap_io {
    struct io io;
    struct heap_io *victim;
    struct loop *loop;
};

static struct heap_io *survivor;
static int n_kills;

static void on_kill_other(struct io *io, uint32_t events)
{
    struct heap_io *h = container_of(io, struct heap_io, io);
    n_kills++;
    survivor = h;
    loop_del(h->loop, &h->victim->io);
    loop_free_later(h->loop, h->victim);
    loop_stop(h->loop);
}

static void no_event_after_del(void **state)
{
    struct loop *loop = new_loop(NULL);
    struct heap_io *h[2];
    int fd[2][2];
    n_kills = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd[i]), 0);
        assert_int_equal(write(fd[i][1], "x", 1), 1);
        h[i] = mem_new(sizeof **h);
        h[i]->io.fd = fd[i][0];
        h[i]->io.on_event = on_kill_other;
        h[i]->loop = loop;
        assert_int_equal(loop_add(loop, &h[i]->io, EPOLLIN), 0);
    }
    h[0]->victim = h[1];
    h[1]->victim = h[0];
    run(loop);
    assert_int_equal(n_kills, 1);
    free(survivor);
    for (int i = 0; i < 2; i++) {
        close(fd[i][0]);
        close(fd[i][1]);
    }
    loop_free(loop);
}

/* --- timers and tasks ---------------------------------------------------- */

static int64_t set_at;

static void on_timer(struct timer *t)
{
    struct pair *p = container_of(t, struct pair, timer);
    assert_true(loop_now_us(p->loop) >= t->deadline_us);
    if (++p->n_events == 3)
        loop_stop(p->loop);
    else
        timer_set(p->loop, t, loop_now_us(p->loop) + 2000);
}

static void timers_fire_when_due(void **state)
{
    struct pair p;
    pair_init(&p);
    p.timer.on_fire = on_timer;
    set_at = loop_now_us(p.loop);
    timer_set(p.loop, &p.timer, set_at + 2000);
    assert_true(timer_is_set(&p.timer));
    run(p.loop);
    assert_true(loop_now_us(p.loop) - set_at >= 6000);
    assert_false(timer_is_set(&p.timer));
    timer_set(p.loop, &p.timer, set_at);
    timer_clear(p.loop, &p.timer);
    assert_false(timer_is_set(&p.timer));
    pair_fini(&p);
}

/* A task that defers itself for ever leaves descriptors their turn. */
static void on_restless(struct task *t)
{
    struct pair *p = container_of(t, struct pair, task);
    loop_defer(p->loop, t);
}

static void tasks_do_not_starve_descriptors(void **state)
{
    struct pair p;
    pair_init(&p);
    p.task.run = on_restless;
    p.io.on_event = on_readable;
    loop_defer(p.loop, &p.task);
    loop_defer(p.loop, &p.task);
    assert_int_equal(loop_add(p.loop, &p.io, EPOLLIN), 0);
    assert_int_equal(write(p.far_fd, "x", 1), 1);
    run(p.loop);
    loop_cancel(&p.task);
    pair_fini(&p);
}

static struct task tasks[3];
static int n_tasks;
static struct loop *task_loop;

static void on_first_task(struct task *t)
{
    n_tasks++;
    loop_cancel(&tasks[1]);
    loop_cancel(t);
}

static void on_canceled_task(struct task *t)
{
    fail();
}

static void on_last_task(struct task *t)
{
    n_tasks++;
    loop_stop(task_loop);
}

static void canceled_tasks_do_not_run(void **state)
{
    task_loop = new_loop(NULL);
    n_tasks = 0;
    tasks[0].run = on_first_task;
    tasks[1].run = on_canceled_task;
    tasks[2].run = on_last_task;
    for (int i = 0; i < 3; i++) {
        list_init(&tasks[i].node);
        loop_defer(task_loop, &tasks[i]);
    }
    run(task_loop);
    assert_int_equal(n_tasks, 2);
    loop_free(task_loop);
}

static void scratch_buffers_are_apart(void **state)
{
    struct loop *loop = new_loop(NULL);
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        memset(loop_scratch(loop, i), i, LOOP_SCRATCH_BYTES);
    for (int i = 0; i < LOOP_SCRATCH_COUNT; i++)
        assert_int_equal(loop_scratch(loop, i)[LOOP_SCRATCH_BYTES - 1], i);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mail_of_many_threads_arrives_in_order),
        cmocka_unit_test(no_wakeup_is_lost),
        cmocka_unit_test(unread_mail_is_freed),
        cmocka_unit_test(tells_of_each_arrival),
        cmocka_unit_test(add_says_what_it_cannot_watch),
        cmocka_unit_test(no_event_after_del),
        cmocka_unit_test(timers_fire_when_due),
        cmocka_unit_test(tasks_do_not_starve_descriptors),
        cmocka_unit_test(canceled_tasks_do_not_run),
        cmocka_unit_test(scratch_buffers_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
