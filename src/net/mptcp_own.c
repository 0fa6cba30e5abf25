/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/mptcp_own.h"

#include "net/mptcp.h"

enum {
    LOOK_US = 2 * 1000 * 1000, /* also what the peer has to answer a request */
    BACKOFF_MAX = 5,           /* 2 s << 5: about a minute */
    UNCOUNTED = UINT8_MAX,
};

static int ask(struct mptcp_pm *pm, int fd, int n, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = mptcp_pm_add_subflow(pm, fd, e);
    return rc;
}

bool mptcp_own_open(struct mptcp_own *o, struct mptcp_pm *pm, int fd,
                    int wanted, int64_t now_us, struct err *e)
{
    *o = (struct mptcp_own){.n = UNCOUNTED};
    if (ask(pm, fd, wanted, e))
        return false;
    o->wanted = (uint8_t)wanted;
    o->look_us = now_us + LOOK_US;
    return true;
}

enum mptcp_own_news mptcp_own_look(struct mptcp_own *o, struct mptcp_pm *pm,
                                   int fd, int64_t now_us)
{
    struct err e;
    if (!o->wanted || now_us < o->look_us)
        return MPTCP_OWN_SAME;
    int total = mptcp_count_subflows(fd);
    if (total < 0) {
        o->wanted = 0;
        return MPTCP_OWN_FELL_BACK;
    }
    /* When it is the first that broke, one more of ours takes its place. */
    int n = MAX(total - 1, 0);
    bool is_news = n != o->n;
    o->n = (uint8_t)n;
    if (n >= o->wanted) {
        o->had_all = true;
        o->failures = 0;
    } else {
        if (mptcp_is_settled(fd)) /* what comes of it the count will tell */
            (void)ask(pm, fd, o->wanted + 1 - total, &e);
        o->failures = (uint8_t)MIN(o->failures + 1, (int)BACKOFF_MAX);
    }
    o->look_us = now_us + ((int64_t)LOOK_US << o->failures);
    return is_news ? MPTCP_OWN_CHANGED : MPTCP_OWN_SAME;
}

const char *mptcp_own_why(const struct mptcp_own *o)
{
    if (o->had_all)
        return "the others broke; they are asked for again";
    return "the server takes no more, or the way to it is blocked; there: ip "
           "mptcp limits set subflows 8";
}
