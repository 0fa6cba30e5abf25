/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Sockets made of memory: short reads, short writes, ends and failures whenever
 * the dice say so. */
#include <stdlib.h>

#include "sim.h"

enum { FD_FIRST = 1000000, WIRE_MAX = 200000 };

struct list conns = {&conns, &conns};
void (*conn_on_connect)(struct conn *k);
bool sim_detach_may_fail, sim_writes_may_fail;

/* The pooler's end: freed like a real one, so that a use after the close is
 * seen. */
struct fake_stream {
    struct stream s;
    struct conn *k;
    bool in_callback;
};

static const struct stream_ops ops;
static int last_fd = FD_FIRST;

static struct fake_stream *fake_of(const struct stream *s)
{
    return container_of((struct stream *)(uintptr_t)s, struct fake_stream, s);
}

static struct conn *conn_new(void)
{
    struct conn *k = mem_new(sizeof *k);
    k->fd = ++last_fd;
    k->tiny = chance(10);
    list_push_back(&conns, &k->node);
    return k;
}

void conns_sweep(void)
{
    list_for_safe(n, &conns)
    {
        struct conn *k = list_entry(n, struct conn, node);
        if (k->stream || !k->peer_gone)
            continue;
        list_remove(&k->node);
        bytes_free(&k->in);
        bytes_free(&k->wire);
        bytes_free(&k->backlog);
        free(k);
    }
}

static struct stream *open_stream(struct conn *k, struct loop *loop,
                                  const struct stream_handler *h, void *owner)
{
    k->stream = mem_new(sizeof *k->stream);
    k->stream->k = k;
    k->stream->s = (struct stream){.ops = &ops,
                                   .handler = h,
                                   .owner = owner,
                                   .loop = loop,
                                   .kind = STREAM_TCP};
    return &k->stream->s;
}

struct conn *conn_accept(void)
{
    return conn_new();
}

struct stream *sock_accepted(struct loop *loop, int fd, enum stream_kind kind,
                             const struct stream_handler *h, void *owner)
{
    list_for(n, &conns)
    {
        struct conn *k = list_entry(n, struct conn, node);
        if (k->fd == fd)
            return open_stream(k, loop, h, owner);
    }
    sim_fail("no connection %d", fd);
}

struct stream *sock_connect(struct loop *loop, const struct addr *to,
                            const struct sock_options *o,
                            const struct stream_handler *h, void *owner,
                            struct err *e)
{
    struct conn *k = conn_new();
    k->to = *to;
    k->open_due = true;
    struct stream *s = open_stream(k, loop, h, owner);
    conn_on_connect(k);
    return s;
}

void sock_set_options(int fd, const struct sock_options *o)
{
}

void conn_send(struct conn *k, const void *p, size_t n)
{
    if (k->stream)
        bytes_add(&k->in, p, n);
}

void conn_release(struct conn *k)
{
    k->peer_shut = k->peer_gone = true;
}

bool conn_is_closed(const struct conn *k)
{
    return !k->stream;
}

struct stream *conn_stream(const struct conn *k)
{
    return k->stream ? &k->stream->s : NULL;
}

bool conn_is_of(const struct conn *k, const struct loop *loop)
{
    return k->stream && k->stream->s.loop == loop;
}

/* ---------------------------------------------------------- the stream's ops
 */

static size_t some_of(const struct conn *k, size_t n)
{
    if (n <= 1)
        return n;
    if (k->tiny && n < 2000) /* of more it would never come to an end */
        return 1;
    if (chance(10))
        return 1;
    if (chance(50))
        return n;
    size_t most = chance(50) ? 16 : 100000;
    return 1 + rnd((uint32_t)MIN(n, most));
}

static void take_from_backlog(struct conn *k, size_t n)
{
    bytes_add(&k->wire, k->backlog.p, n);
    bytes_drop(&k->backlog, n);
    if (k->stream)
        k->stream->s.pending = k->backlog.n;
}

static int fake_writev(struct stream *s, const struct iovec *iov, int n)
{
    struct conn *k = fake_of(s)->k;
    must(s->handler); /* not closed */
    must(s->loop);    /* not detached */
    if (sim_writes_may_fail && rnd(5000) == 0)
        k->peer_reset = true;
    if (k->peer_reset || k->refused)
        return ERR_IO;
    bool was_empty = !k->backlog.n;
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        bytes_add(&k->backlog, iov[i].iov_base, iov[i].iov_len);
        total += iov[i].iov_len;
    }
    if (was_empty && k->wire.n < WIRE_MAX && !k->open_due)
        take_from_backlog(k, some_of(k, total));
    s->pending = k->backlog.n;
    return 0;
}

static void fake_pause(struct stream *s)
{
    s->is_paused = true;
}

static void fake_resume(struct stream *s)
{
    s->is_paused = false;
}

static void fake_shutdown(struct stream *s)
{
}

static void fake_close(struct stream *s)
{
    struct fake_stream *f = fake_of(s);
    struct conn *k = f->k;
    must(s->handler);
    s->handler = NULL;
    take_from_backlog(k, k->backlog.n);
    k->stream = NULL;
    loop_free_later(s->loop, f);
}

static int fake_detach(struct stream *s)
{
    struct fake_stream *f = fake_of(s);
    must(!f->in_callback);
    if (f->k->backlog.n || f->k->told_end || f->k->peer_reset)
        return ERR_UNSUPPORTED;
    if (f->k->stays || (sim_detach_may_fail && chance(10)))
        return ERR_UNSUPPORTED;
    s->loop = NULL;
    return 0;
}

static void fake_attach(struct stream *s, struct loop *loop)
{
    must(!s->loop);
    s->loop = loop;
}

static int fake_fd(const struct stream *s)
{
    return fake_of(s)->k->fd;
}

static const struct stream_ops ops = {
    .writev = fake_writev,
    .pause = fake_pause,
    .resume = fake_resume,
    .shutdown = fake_shutdown,
    .close = fake_close,
    .detach = fake_detach,
    .attach = fake_attach,
    .fd = fake_fd,
};

/* ------------------------------------------------------------------- events */

static bool tell_error(struct conn *k, const char *text)
{
    struct err e;
    struct stream *s = &k->stream->s;
    err_set(&e, ERR_IO, "%s", text);
    k->told_end = true;
    s->handler->on_error(s, &e);
    return true;
}

static bool read_some(struct conn *k)
{
    struct stream *s = &k->stream->s;
    struct loop *loop = s->loop;
    size_t n = some_of(k, k->in.n);
    n = MIN(n, (size_t)LOOP_SCRATCH_BYTES);
    char *buf = loop_scratch(loop, 0);
    memcpy(buf, k->in.p, n);
    bytes_drop(&k->in, n);
    s->handler->on_data(s, buf, n);
    memset(buf, 0xdd, n); /* lent until the return only */
    return true;
}

static bool act(struct conn *k)
{
    struct stream *s = &k->stream->s;
    if (k->told_end)
        return false;
    if (k->refused)
        return tell_error(k, "refused");
    if (k->peer_reset)
        return tell_error(k, "reset");
    if (k->open_due) {
        k->open_due = false;
        s->handler->on_open(s);
        return true;
    }
    if (k->backlog.n && k->wire.n < WIRE_MAX && chance(50)) {
        take_from_backlog(k, some_of(k, k->backlog.n));
        if (!k->backlog.n && s->handler->on_drain)
            s->handler->on_drain(s);
        return true;
    }
    if (s->is_paused)
        return k->backlog.n > 0;
    if (k->in.n)
        return read_some(k);
    if (!k->peer_shut)
        return k->backlog.n > 0;
    k->told_end = true;
    s->handler->on_eof(s);
    return true;
}

bool conn_step(struct conn *k, struct loop *loop)
{
    if (!conn_is_of(k, loop))
        return false;
    struct fake_stream *f = k->stream;
    f->in_callback = true;
    bool acted = act(k);
    f->in_callback = false; /* freed at the end of the turn at the earliest */
    return acted;
}

/* No other process here. */
int sock_take_fd(struct stream *s, struct loop *was)
{
    must(false);
    return -1;
}
