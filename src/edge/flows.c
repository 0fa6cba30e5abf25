/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "edge/flows.h"

#include <inttypes.h>

#include "base/log.h"
#include "net/mptcp.h"

enum {
    SETTLE_US = 2000,          /* how often to see whether they are answered */
    WAIT_US = 1000 * 1000,     /* for that, at most */
    WATCH_US = 2 * 1000 * 1000 /* and whether they are still there */
};

static void note(struct upstream *u, int n, const char *why)
{
    if (n == u->seen_subflows)
        return;
    u->seen_subflows = n;
    if (why)
        log_warning("edge: %d of %d extra subflows to %s: %s", n,
                    u->o.mptcp_subflows, u->text, why);
    else
        log_info("edge: %d extra subflows to %s", n, u->text);
}

static void watch(struct flows *f, int64_t now)
{
    struct mptcp_own *o = &f->own;
    enum mptcp_own_news news =
        mptcp_own_look(o, f->up->path_manager, stream_fd(f->s), now);
    if (news == MPTCP_OWN_CHANGED)
        note(f->up, o->n, o->n < o->wanted ? mptcp_own_why(o) : NULL);
}

static void on_timer(struct timer *t)
{
    struct flows *f = container_of(t, struct flows, timer);
    struct loop *loop = f->up->loop;
    int64_t now = loop_now_us(loop);
    bool is_settled = mptcp_is_settled(stream_fd(f->s));
    if (f->wait_until_us && !is_settled && now < f->wait_until_us) {
        timer_set(loop, t, now + SETTLE_US);
        return;
    }
    timer_set(loop, t, now + WATCH_US);
    if (f->wait_until_us) {
        f->wait_until_us = 0;
        f->on_ready(f);
        f->own.look_us = now; /* a short session shall be counted, too */
    }
    watch(f, now);
}

bool flows_open(struct flows *f, struct upstream *u, struct stream *s)
{
    struct err e;
    int64_t now = loop_now_us(u->loop);
    if (!u->o.target.mptcp || s->kind == STREAM_QUIC ||
        mptcp_use_of(stream_fd(s)) != MPTCP_USED)
        return false;
    f->up = u;
    f->s = s;
    if (!u->path_manager)
        return false;
    if (!mptcp_own_open(&f->own, u->path_manager, stream_fd(s),
                        u->o.mptcp_subflows, now, &e)) {
        note(u, 0, e.text);
        return false;
    }
    f->wait_until_us = now + WAIT_US;
    f->timer.on_fire = on_timer;
    timer_set(u->loop, &f->timer, now + SETTLE_US);
    return true;
}

bool flows_are_coming(const struct flows *f)
{
    return f->wait_until_us != 0;
}

/* What went which way, for who asks why a transfer was slow. */
static void tell(const struct flows *f)
{
    struct mptcp_subflow flow[MPTCP_SUBFLOWS_MAX];
    int n = mptcp_read_subflows(stream_fd(f->s), flow);
    for (int i = 0; i < n; i++) {
        char from[ADDR_TEXT_MAX], to[ADDR_TEXT_MAX];
        addr_text(&flow[i].local, from, sizeof from);
        addr_text(&flow[i].remote, to, sizeof to);
        log_debug("edge: session ends: subflow %d of %d, %s to %s: sent "
                  "%" PRIu64 ", received %" PRIu64 " bytes, round trip %u us, "
                  "%" PRIu64 " segments sent again",
                  i + 1, n, from, to, flow[i].sent_bytes,
                  flow[i].received_bytes, (unsigned)flow[i].rtt_us,
                  flow[i].retransmits);
    }
}

void flows_close(struct flows *f)
{
    if (!f->s)
        return;
    timer_clear(f->up->loop, &f->timer);
    if (log_is_on(LOG_LEVEL_DEBUG))
        tell(f);
    f->s = NULL;
    f->wait_until_us = 0;
}
