/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A socket as a stream. Registered edge-triggered once: a short read means that
 * the socket is empty, so no read is spent on learning EAGAIN. A TCP socket is
 * registered for both directions; a Unix socket for reading only, until it has
 * a backlog, because its peer's every read would wake us as writable. */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/addr.h"
#include "net/mptcp.h"
#include "net/stream.h"

enum {
    READS_PER_TURN = 4,       /* of LOOP_SCRATCH_BYTES each */
    LINGER_US = 5 * 1000000,  /* to send a backlog after stream_close() */
    CONNECT_RETRY_US = 10000, /* Unix socket whose backlog is full */
    IOV_PER_FLUSH = 64,
};

enum sock_state {
    SOCK_CONNECTING,
    SOCK_OPEN,
    SOCK_CLOSING, /* given up by its owner, sending what is left */
    SOCK_CLOSED,  /* waits for the end of the turn */
};

struct sock {
    struct stream s;
    struct io io;
    struct bufq out;
    struct task task; /* what must be told or read from the loop */
    struct timer timer;
    int error;          /* errno that the owner has not been told yet */
    uint8_t state;      /* enum sock_state */
    bool is_readable;   /* the socket may hold bytes not read yet */
    bool has_hangup;    /* the peer's end was reported: read up to it */
    bool is_at_end;     /* ... and only the end itself is left to read */
    bool is_ended;      /* on_eof or on_error was delivered */
    bool error_told;    /* on_error was, maybe after on_eof */
    bool opened_untold; /* connected at once: on_open() is due */
    bool shutdown_wanted;
    struct addr *peer; /* of a connect, or as somebody told */
};

static const struct stream_ops sock_ops;

static struct sock *sock_of(struct stream *s)
{
    return container_of(s, struct sock, s);
}

static uint32_t base_events(const struct sock *k)
{
    return EPOLLIN | EPOLLRDHUP | (k->s.kind == STREAM_UNIX ? 0 : EPOLLOUT);
}

static void watch_writable(struct sock *k, bool on)
{
    if (k->s.kind == STREAM_UNIX)
        loop_mod(k->s.loop, &k->io, base_events(k) | (on ? EPOLLOUT : 0));
}

static void sock_destroy(struct sock *k)
{
    k->state = SOCK_CLOSED;
    loop_cancel(&k->task);
    timer_clear(k->s.loop, &k->timer);
    if (k->io.fd >= 0) {
        loop_del(k->s.loop, &k->io);
        close(k->io.fd);
    }
    bufq_clear(&k->out, loop_pool(k->s.loop));
    free(k->peer);
    loop_free_later(k->s.loop, k);
}

/* The owner is told from the loop, once. */
static void fail(struct sock *k, int error)
{
    if (!k->error)
        k->error = error;
    k->is_readable = false;
    loop_defer(k->s.loop, &k->task);
}

static void tell_error(struct sock *k)
{
    struct err e;
    char text[ADDR_TEXT_MAX] = "connection";
    bool connecting = k->state == SOCK_CONNECTING;
    if (k->peer)
        addr_text(k->peer, text, sizeof text);
    err_set(&e, connecting ? ERR_CONNECT : ERR_IO, "%s%s: %s",
            connecting ? "cannot connect to " : "", text, strerror(k->error));
    k->is_ended = k->error_told = true;
    if (k->s.handler->on_error)
        k->s.handler->on_error(&k->s, &e);
}

/* Sends from the backlog; false when the socket is broken. */
static bool flush(struct sock *k)
{
    while (k->out.size) {
        struct iovec iov[IOV_PER_FLUSH];
        struct msghdr msg = {.msg_iov = iov};
        msg.msg_iovlen = (size_t)bufq_peek(&k->out, iov, IOV_PER_FLUSH);
        ssize_t n = sendmsg(k->io.fd, &msg, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            watch_writable(k, true);
            return true;
        }
        if (n < 0) {
            fail(k, errno);
            return false;
        }
        bufq_drop(&k->out, loop_pool(k->s.loop), (size_t)n);
        k->s.pending = k->out.size;
    }
    watch_writable(k, false);
    if (k->shutdown_wanted)
        (void)shutdown(k->io.fd, SHUT_WR);
    return true;
}

static void on_writable(struct sock *k)
{
    if (!k->out.size || !flush(k) || k->out.size)
        return;
    if (k->s.handler->on_drain)
        k->s.handler->on_drain(&k->s);
}

/* One read; false when there is nothing more to do in this turn. */
static bool read_once(struct sock *k)
{
    char *buf = loop_scratch(k->s.loop, 0);
    ssize_t n = recv(k->io.fd, buf, LOOP_SCRATCH_BYTES, 0);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN) {
        k->is_readable = false;
        return false;
    }
    if (n < 0) {
        fail(k, errno);
        return false;
    }
    if (n == 0) {
        k->is_readable = false;
        k->is_ended = true;
        if (k->s.handler->on_eof)
            k->s.handler->on_eof(&k->s);
        return false;
    }
    if (n < LOOP_SCRATCH_BYTES) {
        k->is_at_end = k->has_hangup;
        k->is_readable = k->has_hangup;
    }
    k->s.handler->on_data(&k->s, buf, (size_t)n);
    return k->is_readable;
}

static void read_some(struct sock *k)
{
    for (int i = 0; i < READS_PER_TURN; i++) {
        if (k->state != SOCK_OPEN || k->s.is_paused || k->is_ended)
            return;
        if (!read_once(k))
            return;
    }
    if (k->state == SOCK_OPEN && k->is_readable)
        loop_defer(k->s.loop, &k->task);
}

static void discard_input(struct sock *k)
{
    for (int i = 0; i < READS_PER_TURN; i++) {
        ssize_t n =
            recv(k->io.fd, loop_scratch(k->s.loop, 0), LOOP_SCRATCH_BYTES, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            sock_destroy(k);
            return;
        }
        if (n < 0)
            return;
    }
}

static void on_closing_event(struct sock *k)
{
    if (!flush(k)) {
        sock_destroy(k);
        return;
    }
    discard_input(k);
}

static void finish_connect(struct sock *k)
{
    int error = 0;
    socklen_t len = sizeof error;
    getsockopt(k->io.fd, SOL_SOCKET, SO_ERROR, &error, &len);
    if (error) {
        k->error = error;
        tell_error(k);
        return;
    }
    k->state = SOCK_OPEN;
    loop_mod(k->s.loop, &k->io, base_events(k));
    if (k->s.handler->on_open)
        k->s.handler->on_open(&k->s);
}

static void on_event(struct io *io, uint32_t events)
{
    struct sock *k = container_of(io, struct sock, io);
    if (k->state == SOCK_CONNECTING) {
        if (!k->is_ended && !timer_is_set(&k->timer) && !k->opened_untold)
            finish_connect(k);
        if (k->state != SOCK_OPEN)
            return;
    }
    if (k->state == SOCK_CLOSING) {
        on_closing_event(k);
        return;
    }
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        k->has_hangup = true;
    if (events & EPOLLOUT)
        on_writable(k);
    if (!k->error && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
        k->is_readable = true;
        if (k->state == SOCK_OPEN)
            read_some(k);
    }
}

static void run_task(struct task *t)
{
    struct sock *k = container_of(t, struct sock, task);
    if (k->opened_untold) {
        k->opened_untold = false;
        k->state = SOCK_OPEN;
        if (k->s.handler->on_open)
            k->s.handler->on_open(&k->s);
        if (k->state != SOCK_OPEN)
            return;
    }
    if (k->error && !k->error_told) {
        if (k->state == SOCK_CLOSING)
            sock_destroy(k);
        else
            tell_error(k);
        return;
    }
    if (k->is_readable)
        read_some(k);
}

static void on_timer(struct timer *t);

static struct sock *sock_new(struct loop *loop, int fd, enum stream_kind kind,
                             const struct stream_handler *h, void *owner)
{
    struct sock *k = mem_new(sizeof *k);
    k->s = (struct stream){.ops = &sock_ops,
                           .handler = h,
                           .owner = owner,
                           .loop = loop,
                           .kind = (uint8_t)kind};
    k->io.fd = fd;
    k->io.on_event = on_event;
    k->task.run = run_task;
    k->timer.on_fire = on_timer;
    list_init(&k->task.node);
    bufq_init(&k->out);
    return k;
}

struct stream *sock_accepted(struct loop *loop, int fd, enum stream_kind kind,
                             const struct stream_handler *h, void *owner)
{
    struct sock *k = sock_new(loop, fd, kind, h, owner);
    k->state = SOCK_OPEN;
    if (loop_add(loop, &k->io, base_events(k))) {
        close(fd);
        free(k);
        return NULL;
    }
    return &k->s;
}

void sock_set_options(int fd, const struct sock_options *o)
{
    int on = 1, keepalive = o->keepalive;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keepalive,
                     sizeof keepalive);
    const struct {
        int level, name, value;
    } opt[] = {
        {IPPROTO_TCP, TCP_KEEPIDLE, o->keepidle_s},
        {IPPROTO_TCP, TCP_KEEPINTVL, o->keepintvl_s},
        {IPPROTO_TCP, TCP_KEEPCNT, o->keepcnt},
        {IPPROTO_TCP, TCP_USER_TIMEOUT, o->user_timeout_ms},
        {SOL_SOCKET, SO_RCVBUF, o->buffer_bytes},
        {SOL_SOCKET, SO_SNDBUF, o->buffer_bytes},
    };
    for (size_t i = 0; i < ARRAY_SIZE(opt); i++)
        if (opt[i].value)
            (void)setsockopt(fd, opt[i].level, opt[i].name, &opt[i].value,
                             sizeof opt[i].value);
}

/* Unix sockets answer at once: connected, refused, or EAGAIN when the
 * listener's backlog is full, which no event reports; then it is tried again.
 */
static void try_connect(struct sock *k)
{
    if (!connect(k->io.fd, &k->peer->sa, k->peer->len)) {
        k->opened_untold = true;
        loop_defer(k->s.loop, &k->task);
    } else if (errno == EAGAIN) {
        timer_set(k->s.loop, &k->timer,
                  loop_now_us(k->s.loop) + CONNECT_RETRY_US);
    } else if (errno != EINPROGRESS && errno != EINTR) {
        fail(k, errno);
    }
}

static int make_socket(int family, bool mptcp)
{
    const int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
    int fd = socket(family, type, mptcp ? IPPROTO_MPTCP : 0);
    if (fd < 0 && mptcp && mptcp_is_missing(errno))
        fd = socket(family, type, 0);
    return fd;
}

struct stream *sock_connect(struct loop *loop, const struct addr *to,
                            const struct sock_options *o,
                            const struct stream_handler *h, void *owner,
                            struct err *e)
{
    bool is_unix = to->sa.sa_family == AF_UNIX;
    int fd = make_socket(to->sa.sa_family, !is_unix && o->mptcp);
    if (fd < 0) {
        err_set(e, ERR_CONNECT, "cannot make a socket: %s", strerror(errno));
        return NULL;
    }
    if (!is_unix)
        sock_set_options(fd, o);
    struct sock *k =
        sock_new(loop, fd, is_unix ? STREAM_UNIX : STREAM_TCP, h, owner);
    k->state = SOCK_CONNECTING;
    k->peer = mem_new(sizeof *k->peer);
    *k->peer = *to;
    try_connect(k);
    if (loop_add(loop, &k->io, base_events(k) | EPOLLOUT)) {
        err_set(e, ERR_CONNECT, "cannot watch a socket: %s", strerror(errno));
        k->s.handler = NULL;
        sock_destroy(k);
        return NULL;
    }
    return &k->s;
}

static int sock_writev(struct stream *s, const struct iovec *iov, int n)
{
    struct sock *k = sock_of(s);
    size_t sent = 0;
    if (k->state != SOCK_OPEN || k->error)
        return k->state == SOCK_OPEN || k->error ? ERR_IO : ERR_CLOSED;
    if (!k->out.size) {
        ssize_t w;
        struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                             .msg_iovlen = (size_t)n};
        do {
            w = n == 1
                    ? send(k->io.fd, iov->iov_base, iov->iov_len, MSG_NOSIGNAL)
                    : sendmsg(k->io.fd, &msg, MSG_NOSIGNAL);
        } while (w < 0 && errno == EINTR);
        if (w < 0 && errno != EAGAIN) {
            fail(k, errno);
            return ERR_IO;
        }
        sent = w < 0 ? 0 : (size_t)w;
    }
    bool was_empty = !k->out.size;
    for (int i = 0; i < n; i++) {
        if (sent >= iov[i].iov_len) {
            sent -= iov[i].iov_len;
            continue;
        }
        if (bufq_put(&k->out, loop_pool(s->loop),
                     (char *)iov[i].iov_base + sent, iov[i].iov_len - sent)) {
            fail(k, ENOMEM);
            return ERR_NOMEM;
        }
        sent = 0;
    }
    s->pending = k->out.size;
    if (was_empty && k->out.size)
        watch_writable(k, true);
    return 0;
}

static void sock_pause(struct stream *s)
{
    s->is_paused = true;
}

static void sock_resume(struct stream *s)
{
    struct sock *k = sock_of(s);
    s->is_paused = false;
    if (k->is_readable)
        loop_defer(s->loop, &k->task);
}

static void sock_shutdown(struct stream *s)
{
    struct sock *k = sock_of(s);
    k->shutdown_wanted = true;
    if (k->state == SOCK_OPEN && !k->out.size)
        (void)shutdown(k->io.fd, SHUT_WR);
}

static void on_timer(struct timer *t)
{
    struct sock *k = container_of(t, struct sock, timer);
    if (k->state == SOCK_CONNECTING)
        try_connect(k);
    else
        sock_destroy(k);
}

/* The loop ends first. */
static void end_lingering(struct task *t)
{
    sock_destroy(container_of(t, struct sock, task));
}

/* A socket that is closed while input waits in it sends a reset, which can
 * overtake our last message; so what is there is read away, and with a backlog
 * the socket lives on until it is sent. */
static void sock_close(struct stream *s)
{
    struct sock *k = sock_of(s);
    if (k->state >= SOCK_CLOSING)
        return;
    bool had_input = k->is_readable && !k->is_at_end;
    bool can_linger = k->state == SOCK_OPEN && !k->error && !k->is_ended;
    k->state = SOCK_CLOSING;
    s->handler = NULL;
    loop_cancel(&k->task);
    if (!can_linger || (!k->out.size && !had_input)) {
        sock_destroy(k);
        return;
    }
    k->shutdown_wanted = true;
    if (!k->out.size)
        (void)shutdown(k->io.fd, SHUT_WR);
    timer_set(s->loop, &k->timer, loop_now_us(s->loop) + LINGER_US);
    k->task.run = end_lingering;
    loop_at_end(s->loop, &k->task);
    discard_input(k);
}

static int sock_detach(struct stream *s)
{
    struct sock *k = sock_of(s);
    if (k->state != SOCK_OPEN || k->error || k->out.size || k->is_ended ||
        list_is_linked(&k->task.node))
        return ERR_UNSUPPORTED;
    loop_del(s->loop, &k->io);
    s->loop = NULL;
    return 0;
}

static void sock_attach(struct stream *s, struct loop *loop)
{
    struct sock *k = sock_of(s);
    s->loop = loop;
    k->io.on_event = on_event;
    if (loop_add(loop, &k->io, base_events(k)))
        fail(k, errno);
}

int sock_take_fd(struct stream *s, struct loop *was)
{
    struct sock *k = sock_of(s);
    int fd = k->io.fd;
    must(!s->loop && (s->kind == STREAM_TCP || s->kind == STREAM_UNIX));
    k->state = SOCK_CLOSED;
    free(k->peer);
    loop_free_later(was, k);
    return fd;
}

static int sock_fd(const struct stream *s)
{
    return container_of(s, const struct sock, s)->io.fd;
}

static int sock_ends(const struct stream *s, struct addr *peer,
                     struct addr *self)
{
    const struct sock *k = container_of(s, const struct sock, s);
    if (addr_of_self(k->io.fd, self))
        return ERR_CLOSED;
    if (k->peer)
        *peer = *k->peer;
    else if (addr_of_peer(k->io.fd, peer))
        return ERR_CLOSED;
    return 0;
}

static void sock_set_peer(struct stream *s, const struct addr *peer)
{
    struct sock *k = sock_of(s);
    if (!k->peer)
        k->peer = mem_new(sizeof *k->peer);
    *k->peer = *peer;
}

static const struct stream_ops sock_ops = {
    .writev = sock_writev,
    .pause = sock_pause,
    .resume = sock_resume,
    .shutdown = sock_shutdown,
    .close = sock_close,
    .detach = sock_detach,
    .attach = sock_attach,
    .fd = sock_fd,
    .ends = sock_ends,
    .set_peer = sock_set_peer,
};
