/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Frames between two processes of one account over a Unix stream socket: a
 * type, a body, at most one descriptor each. At first it may be read without a
 * loop (fdlink_receive()), then it lives on one. One thread.
 *
 *   u32 size of the body, u8 type, u8 whether a descriptor comes with it, u16 0
 */
#ifndef NET_FDLINK_H
#define NET_FDLINK_H

#include "base/err.h"
#include "base/slice.h"
#include "loop/loop.h"

enum { FDLINK_BODY_MAX = 32 << 20 };

struct fdlink;

struct fdlink_frame {
    uint8_t type;
    struct slice body; /* good until the next call or the return */
    int fd;            /* -1: none; the receiver's */
};

/* Called from the loop. After on_lost() nothing follows; close it there or
 * later. */
struct fdlink_handler {
    void (*on_frame)(void *arg, const struct fdlink_frame *f);
    void (*on_lost)(void *arg, const char *why);
};

/* Takes the socket. */
struct fdlink *fdlink_new(int fd);

/* Without a loop: waits for a frame. ERR_TIMEOUT, ERR_CLOSED, ERR_PROTO. */
NODISCARD int fdlink_receive(struct fdlink *l, int timeout_ms,
                             struct fdlink_frame *out, struct err *e);

/* From now on by the loop; what was received already is delivered, too. */
void fdlink_start(struct fdlink *l, struct loop *loop,
                  const struct fdlink_handler *h, void *arg);

/* Sends, or queues: then the descriptor fd (-1: none), which is taken and
 * closed, and the bytes leave as the peer reads. Without a loop it blocks. */
void fdlink_send(struct fdlink *l, uint8_t type, struct slice body, int fd);

/* Whether all has left. */
bool fdlink_is_flushed(const struct fdlink *l);

void fdlink_close(struct fdlink *l); /* NULL is fine */

/* Whether the process at the other end is of our account, or root's. */
bool fdlink_peer_is_ours(int fd);

#endif
