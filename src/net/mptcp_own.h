/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The subflows that we open ourselves on one connection, and open again when
 * they break: they are counted now and then, because a request succeeds even
 * when the peer then refuses. What is missing is asked for, ever more seldom
 * while nothing comes of it. Belongs to whoever owns the connection; no call
 * waits. */
#ifndef NET_MPTCP_OWN_H
#define NET_MPTCP_OWN_H

#include "net/mptcp_pm.h"

struct mptcp_own {
    uint8_t wanted;   /* beside the first; 0: there is nothing to do */
    uint8_t n;        /* of them when last counted */
    uint8_t failures; /* counts in a row that found too few */
    bool had_all;
    int64_t look_us; /* when to count next */
};

/* Asks for all of them. True when some are on their way, so that it is worth
 * to wait until mptcp_is_settled(); else the error says why not. */
bool mptcp_own_open(struct mptcp_own *o, struct mptcp_pm *pm, int fd,
                    int wanted, int64_t now_us, struct err *e);

enum mptcp_own_news {
    MPTCP_OWN_SAME,
    MPTCP_OWN_CHANGED, /* another number than before, or the first one */
    MPTCP_OWN_FELL_BACK,
};

/* Counts, when it is time to, and asks for what is missing. */
enum mptcp_own_news mptcp_own_look(struct mptcp_own *o, struct mptcp_pm *pm,
                                   int fd, int64_t now_us);

/* Why there are fewer than wanted, for a log line. */
const char *mptcp_own_why(const struct mptcp_own *o);

#endif
