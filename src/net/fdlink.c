/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/fdlink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    HEADER = 8,
    FDS_MAX = 64, /* received, and their frames not complete */
    READ_BYTES = 65536,
    READS_PER_TURN = 16,
    RETRY_US = 5000, /* too many descriptors are on their way (unix(7)) */
};

struct out {
    struct out *next;
    int fd;
    size_t n, at;
    uint8_t p[];
};

struct fdlink {
    struct io io;
    struct loop *loop;
    struct task task; /* what is there already; input left over */
    struct timer retry;
    const struct fdlink_handler *handler;
    void *arg;
    struct out *out, **out_end;
    uint8_t *in;
    size_t in_n, in_cap, in_used;
    int fds[FDS_MAX], n_fds;
    bool is_mute; /* the peer takes nothing more; what it sent counts */
    bool is_lost, is_closed;
    const char *why;
};

/* ----------------------------------------------------------------- sending */

static int send_some(struct fdlink *l, struct out *o)
{
    union {
        struct cmsghdr align;
        char p[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {o->p + o->at, o->n - o->at};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    if (o->fd >= 0) {
        memset(&control, 0, sizeof control);
        h.msg_control = control.p;
        h.msg_controllen = sizeof control.p;
        struct cmsghdr *m = CMSG_FIRSTHDR(&h);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(m), &o->fd, sizeof(int));
    }
    ssize_t n;
    while ((n = sendmsg(l->io.fd, &h, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    if (n < 0)
        return errno;
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
    o->at += (size_t)n;
    return 0;
}

static void drop_first(struct fdlink *l)
{
    struct out *o = l->out;
    l->out = o->next;
    if (!l->out)
        l->out_end = &l->out;
    if (o->fd >= 0)
        close(o->fd);
    mem_wipe(o->p, o->n);
    free(o);
}

static void lose(struct fdlink *l, const char *why)
{
    if (l->is_lost)
        return;
    l->is_lost = true;
    l->why = why;
    while (l->out)
        drop_first(l);
    if (l->loop)
        loop_defer(l->loop, &l->task);
}

/* Its end is seen by reading. */
static void go_mute(struct fdlink *l)
{
    l->is_mute = true;
    while (l->out)
        drop_first(l);
    if (l->loop)
        loop_defer(l->loop, &l->task);
}

static void wait_writable(struct fdlink *l)
{
    struct pollfd p = {.fd = l->io.fd, .events = POLLOUT};
    (void)poll(&p, 1, 1000);
}

static void flush(struct fdlink *l)
{
    while (l->out && !l->is_lost) {
        int cause = send_some(l, l->out);
        if (cause == ETOOMANYREFS && l->loop) {
            timer_set(l->loop, &l->retry, loop_now_us(l->loop) + RETRY_US);
            return;
        }
        if ((cause == EAGAIN || cause == ETOOMANYREFS) && l->loop)
            return; /* edge-triggered: we are told */
        if (cause == EAGAIN || cause == ETOOMANYREFS)
            wait_writable(l);
        else if (cause)
            go_mute(l);
        else if (l->out->at == l->out->n)
            drop_first(l);
    }
}

void fdlink_send(struct fdlink *l, uint8_t type, struct slice body, int fd)
{
    must(body.n <= FDLINK_BODY_MAX);
    if (l->is_lost || l->is_mute) {
        if (fd >= 0)
            close(fd);
        return;
    }
    struct out *o = mem_new(sizeof *o + HEADER + body.n);
    uint32_t n = (uint32_t)body.n;
    o->fd = fd;
    o->n = HEADER + body.n;
    memcpy(o->p, &n, sizeof n); /* one machine: no order of bytes */
    o->p[4] = type;
    o->p[5] = fd >= 0;
    if (body.n)
        memcpy(o->p + HEADER, body.p, body.n);
    bool was_empty = !l->out;
    *l->out_end = o;
    l->out_end = &o->next;
    if (was_empty)
        flush(l);
}

bool fdlink_is_flushed(const struct fdlink *l)
{
    return !l->out;
}

/* --------------------------------------------------------------- receiving */

static void take_fds(struct fdlink *l, struct msghdr *h)
{
    for (struct cmsghdr *m = CMSG_FIRSTHDR(h); m; m = CMSG_NXTHDR(h, m)) {
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(m) + i * sizeof fd, sizeof fd);
            if (l->n_fds < FDS_MAX) {
                l->fds[l->n_fds++] = fd;
            } else {
                close(fd);
                lose(l, "too many descriptors");
            }
        }
    }
    if (h->msg_flags & MSG_CTRUNC)
        lose(l, "a descriptor was lost: too many open files");
}

/* The claimed size of a frame costs nothing: memory grows with what comes. */
static void make_space(struct fdlink *l)
{
    if (l->in_used) {
        memmove(l->in, l->in + l->in_used, l->in_n - l->in_used);
        l->in_n -= l->in_used;
        l->in_used = 0;
    }
    if (l->in_cap - l->in_n >= READ_BYTES)
        return;
    l->in_cap = l->in_cap * 2 + READ_BYTES;
    l->in = realloc(l->in, l->in_cap);
    must(l->in);
}

/* False: nothing more now. */
static bool read_once(struct fdlink *l)
{
    union {
        struct cmsghdr align;
        char p[CMSG_SPACE(sizeof(int) * 16)];
    } control;
    make_space(l);
    struct iovec iov = {l->in + l->in_n, READ_BYTES};
    struct msghdr h = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.p,
                       .msg_controllen = sizeof control.p};
    ssize_t n = recvmsg(l->io.fd, &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        lose(l, n < 0 ? strerror(errno) : "the other process closed it");
        return false;
    }
    take_fds(l, &h);
    l->in_n += (size_t)n;
    return true;
}

/* 1: a frame; 0: not all of it is there; negative: nonsense. */
static int next_frame(struct fdlink *l, struct fdlink_frame *f)
{
    const uint8_t *p = l->in + l->in_used;
    size_t have = l->in_n - l->in_used;
    uint32_t n;
    if (have < HEADER)
        return 0;
    memcpy(&n, p, sizeof n);
    if (n > FDLINK_BODY_MAX || p[5] > 1 || p[6] || p[7])
        return ERR_PROTO;
    if (have - HEADER < n)
        return 0;
    if (p[5] && !l->n_fds)
        return ERR_PROTO;
    *f = (struct fdlink_frame){
        .type = p[4], .body = slice_of(p + HEADER, n), .fd = -1};
    if (p[5]) {
        f->fd = l->fds[0];
        memmove(l->fds, l->fds + 1, (size_t)--l->n_fds * sizeof l->fds[0]);
    }
    l->in_used += HEADER + n;
    return 1;
}

int fdlink_receive(struct fdlink *l, int timeout_ms, struct fdlink_frame *out,
                   struct err *e)
{
    int64_t end = clock_now_us() + (int64_t)timeout_ms * 1000;
    for (;;) {
        int rc = next_frame(l, out);
        if (rc == 1)
            return 0;
        if (rc < 0)
            return err_set(e, ERR_PROTO, "the other process sent nonsense");
        int64_t left = end - clock_now_us();
        if (left <= 0)
            return err_set(e, ERR_TIMEOUT,
                           "the other process did not answer in time");
        struct pollfd p = {.fd = l->io.fd, .events = POLLIN};
        if (poll(&p, 1, (int)(left / 1000) + 1) <= 0)
            continue;
        if (!read_once(l) && l->is_lost)
            return err_set(e, ERR_CLOSED, "the other process has gone: %s",
                           l->why);
    }
}

static void tell_lost(struct fdlink *l)
{
    const struct fdlink_handler *h = l->handler;
    l->handler = NULL;
    if (h)
        h->on_lost(l->arg, l->why);
}

/* What came before the end counts. */
static void deliver(struct fdlink *l)
{
    struct fdlink_frame f;
    int rc = 0;
    while (!l->is_closed && (rc = next_frame(l, &f)) == 1)
        l->handler->on_frame(l->arg, &f);
    if (rc < 0)
        lose(l, "it sent nonsense");
}

static void read_some(struct fdlink *l)
{
    bool more = true;
    for (int i = 0; i < READS_PER_TURN && more && !l->is_closed; i++) {
        more = !l->is_lost && read_once(l);
        if (!l->is_closed)
            deliver(l);
    }
    if (l->is_closed)
        return;
    if (l->is_lost)
        tell_lost(l);
    else if (more)
        loop_defer(l->loop, &l->task);
}

static void run_task(struct task *t)
{
    struct fdlink *l = container_of(t, struct fdlink, task);
    if (l->handler)
        read_some(l);
}

static void on_event(struct io *io, uint32_t events)
{
    struct fdlink *l = container_of(io, struct fdlink, io);
    if (events & EPOLLOUT)
        flush(l);
    if (l->handler)
        read_some(l);
}

static void on_retry(struct timer *t)
{
    flush(container_of(t, struct fdlink, retry));
}

/* -------------------------------------------------------------------- life */

struct fdlink *fdlink_new(int fd)
{
    struct fdlink *l = mem_new(sizeof *l);
    l->io = (struct io){.fd = fd, .on_event = on_event};
    l->task.run = run_task;
    l->retry.on_fire = on_retry;
    l->out_end = &l->out;
    list_init(&l->task.node);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return l;
}

void fdlink_start(struct fdlink *l, struct loop *loop,
                  const struct fdlink_handler *h, void *arg)
{
    l->loop = loop;
    l->handler = h;
    l->arg = arg;
    if (loop_add(loop, &l->io, EPOLLIN | EPOLLOUT | EPOLLRDHUP))
        lose(l, strerror(errno));
    loop_defer(loop, &l->task);
}

void fdlink_close(struct fdlink *l)
{
    if (!l)
        return;
    l->is_closed = true;
    l->handler = NULL;
    while (l->out)
        drop_first(l);
    while (l->n_fds)
        close(l->fds[--l->n_fds]);
    if (l->in) {
        mem_wipe(l->in, l->in_cap);
        if (l->loop)
            loop_free_later(l->loop, l->in);
        else
            free(l->in);
    }
    if (l->loop) {
        timer_clear(l->loop, &l->retry);
        loop_cancel(&l->task);
        loop_del(l->loop, &l->io);
    }
    close(l->io.fd);
    if (l->loop)
        loop_free_later(l->loop, l);
    else
        free(l);
}

bool fdlink_peer_is_ours(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) &&
           (peer.uid == geteuid() || peer.uid == 0);
}
