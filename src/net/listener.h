/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Listening sockets, TCP and Unix. Opening (before privileges are dropped) and
 * accepting (on a loop, later) are separate steps; between them a listener may
 * be handed to another thread. Then it belongs to its loop's thread. */
#ifndef NET_LISTENER_H
#define NET_LISTENER_H

#include <sys/types.h>

#include "loop/loop.h"
#include "net/addr.h"

struct listener;

struct listener_options {
    int backlog;
    bool only_bind; /* to see whether the address is free: nobody can connect */
    /* TCP */
    bool reuseport;     /* one listener a worker on the same address */
    int defer_accept_s; /* TCP_DEFER_ACCEPT; 0: off */
    bool mptcp;
    /* Unix; an abstract name has none of it */
    int unix_mode;          /* 0777; -1 leaves it to the umask */
    const char *unix_group; /* name or number; NULL or "": leave it */
};

/* Binds and listens. The error names address, port and cause. A Unix socket
 * that nobody listens on any more is replaced; one that is in use is not. */
NODISCARD int listener_open(struct listener **out, const struct addr *at,
                            const struct listener_options *o, struct err *e);

/* Takes a descriptor that listens already (socket activation, upgrade). On
 * failure it stays the caller's. */
NODISCARD int listener_adopt(struct listener **out, int fd, struct err *e);

/* fd is non-blocking and the receiver's. peer is IPv4 where it was mapped. */
typedef void (*listener_accept_cb)(void *arg, int fd, const struct addr *peer);

/* Begins, or begins again, to accept on loop. */
NODISCARD int listener_start(struct listener *l, struct loop *loop,
                             listener_accept_cb cb, void *arg, struct err *e);

/* Stops accepting; clients queue in the kernel. listener_start() goes on. */
void listener_stop(struct listener *l);

/* Changes TCP_DEFER_ACCEPT after a reload. */
void listener_set_defer_accept(struct listener *l, int seconds);

/* The socket's file stays when the listener goes: somebody else took the
 * descriptor over. */
void listener_keep_file(struct listener *l);

/* Stops, closes, and removes the file of a Unix socket. */
void listener_close(struct listener *l);

int listener_fd(const struct listener *l);

/* What a reload and an upgrade may change of one that listens already. */
void listener_set_backlog(struct listener *l, int backlog);

/* Its file is ours to remove at the end, or not. */
void listener_own_file(struct listener *l);

/* Where it listens, with the port that the kernel chose for 0. */
const struct addr *listener_addr(const struct listener *l);

#endif
