/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The event loop of one worker: readiness, timers, deferred work and a mailbox.
 * A loop and everything registered with it belong to the thread that runs it;
 * only mailbox_send() and loop_stop() may be called from elsewhere. Callbacks
 * come from the loop only, never from inside the call that registered them. */
#ifndef LOOP_LOOP_H
#define LOOP_LOOP_H

#include <sys/epoll.h>

#include "base/bufq.h"
#include "base/list.h"

struct loop;

enum {
    /* One read fills at most this much; a worker has one such buffer. */
    LOOP_SCRATCH_BYTES = 65536,
};

/* --- descriptors ------------------------------------------------------ */

struct io {
    int fd;
    uint32_t events; /* what it is registered for */
    void (*on_event)(struct io *io, uint32_t events); /* EPOLL* bits */
};

/* Registers io->fd edge-triggered for events (EPOLLIN, EPOLLOUT, ...), after
 * io->fd and io->on_event were set. */
NODISCARD int loop_add(struct loop *loop, struct io *io, uint32_t events);

/* Changes the events it is registered for. */
void loop_mod(struct loop *loop, struct io *io, uint32_t events);

/* Ends the registration; no callback follows. The memory of io must live until
 * the end of the turn (loop_free_later()). Does not close the descriptor. */
void loop_del(struct loop *loop, struct io *io);

/* --- timers ----------------------------------------------------------- */

struct timer {
    int64_t deadline_us;
    uint32_t slot; /* place in the heap + 1; 0 = not set */
    void (*on_fire)(struct timer *t);
};

/* (Re)sets a one-shot timer to a time of loop_now_us()'s clock. */
void timer_set(struct loop *loop, struct timer *t, int64_t deadline_us);
void timer_clear(struct loop *loop, struct timer *t);
bool timer_is_set(const struct timer *t);

/* --- deferred work ---------------------------------------------------- */

struct task {
    struct list node; /* list_init() before first use */
    void (*run)(struct task *t);
};

/* Runs once before the loop next waits, after the events at hand. Deferring
 * what is deferred already does nothing. */
void loop_defer(struct loop *loop, struct task *t);
void loop_cancel(struct task *t);

/* Runs once when the loop is freed, unless it is cancelled before: for what
 * outlives its owner for a while. */
void loop_at_end(struct loop *loop, struct task *t);

/* free()s p at the end of the turn, when no event at hand can name it. */
void loop_free_later(struct loop *loop, void *p);

/* --- mailbox ---------------------------------------------------------- */

/* Embedded at the start of a heap object. Sending gives it away; handle() runs
 * on the receiving loop's thread and owns it. */
struct message {
    struct message *next;
    void (*handle)(struct message *m, void *loop_data);
};

/* Any thread. Wakes the loop only when its mailbox was empty. Messages of one
 * sender arrive in order. */
void mailbox_send(struct loop *to, struct message *m);

/* --- life ------------------------------------------------------------- */

NODISCARD int loop_new(struct loop **out, void *loop_data, struct err *e);

/* Frees what was registered with loop_free_later and unhandled messages. */
void loop_free(struct loop *loop);

/* Runs until loop_stop(); then it may be run again. */
void loop_run(struct loop *loop);

/* Any thread. */
void loop_stop(struct loop *loop);

/* What was given to loop_new(): the worker. */
void *loop_data(const struct loop *loop);

/* Time at the start of this turn, monotonic. */
int64_t loop_now_us(const struct loop *loop);

/* Bytes that live until the callback returns: reads land here.
 * LOOP_SCRATCH_BYTES each; 0 = sockets, 1 = TLS plain text, 2 = output being
 * put together for servers, 3 = TLS records on their way out, 4 = output being
 * put together for clients. */
char *loop_scratch(struct loop *loop, int which);
enum { LOOP_SCRATCH_COUNT = 5 };

/* Chunks for backlogs of this loop's streams. */
struct bufq_pool *loop_pool(struct loop *loop);

struct loop_stats {
    uint64_t turns, events, messages;
    uint64_t wakeups; /* by others, for the mailbox */
};
const struct loop_stats *loop_stats(const struct loop *loop);

#endif
