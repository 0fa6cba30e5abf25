/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The subflows that one session opens itself (--mptcp_subflows), from the
 * pooler's first word on, since the kernel takes no request earlier. Embedded
 * by the session; belongs to its loop's thread. */
#ifndef EDGE_FLOWS_H
#define EDGE_FLOWS_H

#include "edge/upstream.h"
#include "net/mptcp_own.h"

struct flows {
    struct upstream *up;
    struct stream *s; /* NULL: not open */
    struct mptcp_own own;
    struct timer timer;
    int64_t wait_until_us;             /* 0: not waiting any more */
    void (*on_ready)(struct flows *f); /* set by the owner */
};

/* True when on_ready() follows, once they are answered, and no bulk should be
 * asked for before. */
bool flows_open(struct flows *f, struct upstream *u, struct stream *s);

bool flows_are_coming(const struct flows *f);

/* Before the stream goes; never opened is fine. */
void flows_close(struct flows *f);

#endif
