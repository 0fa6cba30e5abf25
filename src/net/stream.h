/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A byte stream, whatever carries it: a socket (stream_sock.c), TLS over any
 * stream (tls.c), a QUIC stream (quic_stream.c). It pushes: bytes that arrive
 * are lent to on_data() until it returns, and the owner takes them all. Writing
 * tries at once and keeps what did not fit; the owner looks at stream_pending()
 * and pauses the other side. A stream belongs to one loop's thread.
 *
 * Callbacks come from the loop only, never from inside a call into the stream.
 * After on_eof() or on_error() nothing more is read; the owner closes. One that
 * goes on writing after on_eof() may still be told by on_error() that nobody
 * takes it. */
#ifndef NET_STREAM_H
#define NET_STREAM_H

#include "base/err.h"
#include "base/slice.h"
#include "loop/loop.h"

struct stream;
struct addr;

enum stream_kind {
    STREAM_UNIX,
    STREAM_TCP,
    STREAM_TLS,
    STREAM_QUIC,
};

/* What the owner is told. Rows that an owner does not need stay NULL. */
struct stream_handler {
    /* Connected, and for TLS shaken hands; only for streams that were opened
     * by a connect or turned into TLS. */
    void (*on_open)(struct stream *s);
    /* n > 0 bytes, valid until the return. After stream_pause() what was read
     * already may still be delivered, at most a scratch buffer's worth. After
     * stream_close() nothing is. */
    void (*on_data)(struct stream *s, const char *p, size_t n);
    /* The backlog is empty again. */
    void (*on_drain)(struct stream *s);
    /* The peer finished sending. */
    void (*on_eof)(struct stream *s);
    /* Broken: refused, reset, TLS alert... The text names the cause. */
    void (*on_error)(struct stream *s, const struct err *e);
};

struct stream_ops {
    int (*writev)(struct stream *s, const struct iovec *iov, int n);
    void (*pause)(struct stream *s);
    void (*resume)(struct stream *s);
    void (*shutdown)(struct stream *s);
    void (*close)(struct stream *s);
    int (*detach)(struct stream *s);
    void (*attach)(struct stream *s, struct loop *loop);
    void (*reset)(struct stream *s); /* NULL: close */
    int (*fd)(const struct stream *s);
    /* NULL: of the descriptor */
    int (*ends)(const struct stream *s, struct addr *peer, struct addr *self);
    void (*set_peer)(struct stream *s, const struct addr *peer);
    const struct tls_info *(*tls)(const struct stream *s);
};

struct stream {
    const struct stream_ops *ops;
    const struct stream_handler *handler;
    void *owner;
    struct loop *loop;
    size_t pending; /* bytes written that the transport did not take yet */
    uint8_t kind;   /* enum stream_kind */
    bool is_paused;
};

/* Bytes of a backlog at which an owner pauses the other side. */
enum { STREAM_BACKLOG_HIGH = 128 * 1024 };

static inline void stream_set_owner(struct stream *s,
                                    const struct stream_handler *h, void *owner)
{
    s->handler = h;
    s->owner = owner;
}

/* Sends now what the transport takes and copies the rest to the backlog.
 * 0, or a negative code when the stream is broken: on_error() then follows from
 * the loop as well, so the result may be ignored by an owner that waits for
 * it. */
static inline int stream_writev(struct stream *s, const struct iovec *iov,
                                int n)
{
    return s->ops->writev(s, iov, n);
}

static inline int stream_write(struct stream *s, const void *p, size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)p, n};
    return s->ops->writev(s, &iov, 1);
}

static inline size_t stream_pending(const struct stream *s)
{
    return s->pending;
}

/* Stops and starts reading. No system call. */
static inline void stream_pause(struct stream *s)
{
    if (!s->is_paused)
        s->ops->pause(s);
}

static inline void stream_resume(struct stream *s)
{
    if (s->is_paused)
        s->ops->resume(s);
}

/* Ends our direction after the backlog. */
static inline void stream_shutdown(struct stream *s)
{
    s->ops->shutdown(s);
}

/* Gives the stream up: no callback follows. The backlog is still sent, for a
 * few seconds at most, and what the peer sent meanwhile is thrown away, so that
 * a last ErrorResponse is not lost to a reset. The memory goes by itself. */
static inline void stream_close(struct stream *s)
{
    s->ops->close(s);
}

/* The same for a session that broke: what was not sent is dropped, and where
 * the transport can say so the peer learns that this was no ordinary end. */
static inline void stream_reset(struct stream *s)
{
    if (s->ops->reset)
        s->ops->reset(s);
    else
        s->ops->close(s);
}

/* Takes the stream off its loop, so that another thread may attach it;
 * ERR_UNSUPPORTED when its kind cannot move or it has a backlog. To be called
 * from a task or a message, never from a callback of the stream itself. Between
 * the two calls it belongs to whoever holds the pointer. Bytes that arrive
 * meanwhile are seen after the attach. */
NODISCARD static inline int stream_detach(struct stream *s)
{
    return s->ops->detach ? s->ops->detach(s) : ERR_UNSUPPORTED;
}

static inline void stream_attach(struct stream *s, struct loop *loop)
{
    s->ops->attach(s, loop);
}

/* The descriptor underneath, -1 without one; for SHOW and socket options. */
static inline int stream_fd(const struct stream *s)
{
    return s->ops->fd(s);
}

/* The addresses of both ends (net/addr.h); a code when it has none any more. */
NODISCARD int stream_ends(const struct stream *s, struct addr *peer,
                          struct addr *self);

/* The peer is really another, as a load balancer in between has told: what
 * stream_ends() says from now on. Without effect on kinds that cannot. */
static inline void stream_set_peer(struct stream *s, const struct addr *peer)
{
    if (s->ops->set_peer)
        s->ops->set_peer(s, peer);
}

/* Of the TLS layer, NULL without one (net/tls.h). */
static inline const struct tls_info *stream_tls(const struct stream *s)
{
    return s->ops->tls ? s->ops->tls(s) : NULL;
}

/* --- sockets (stream_sock.c) ------------------------------------------ */

/* Takes an accepted, non-blocking descriptor. Reading begins with the next
 * turn. Closes fd and returns NULL when it cannot be registered. */
struct stream *sock_accepted(struct loop *loop, int fd, enum stream_kind kind,
                             const struct stream_handler *h, void *owner);

/* The descriptor of a detached one, to be closed or handed to another process;
 * the stream is gone. was: the loop that it was on. */
int sock_take_fd(struct stream *s, struct loop *was);

/* Socket options of an outgoing connection. */
struct sock_options {
    bool keepalive;
    int keepidle_s, keepintvl_s, keepcnt; /* 0: the system's */
    int user_timeout_ms;                  /* 0: the system's */
    int buffer_bytes;                     /* 0: the system's */
    bool mptcp; /* plain TCP where this kernel has none; see net/mptcp.h */
};

/* Starts connecting to addr (net/addr.h); on_open() or on_error() follows.
 * NULL with the cause in e when not even a socket could be had. */
struct stream *sock_connect(struct loop *loop, const struct addr *to,
                            const struct sock_options *o,
                            const struct stream_handler *h, void *owner,
                            struct err *e);

/* Applies the TCP options to a descriptor; TCP_NODELAY always. */
void sock_set_options(int fd, const struct sock_options *o);

#endif
