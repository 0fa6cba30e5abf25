/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Multipath TCP on the way to the pooler. A connection that fell back is plain
 * TCP from its first packet on, so that is known as soon as it is connected. */
#include "edge/upstream.h"

#include "base/log.h"
#include "net/mptcp.h"
#include "net/mptcp_pm.h"

int upstream_load_mptcp(struct upstream *u, struct err *e)
{
    const struct upstream_options *o = &u->o;
    if (!o->target.mptcp)
        return 0;
    if (o->mptcp_require && mptcp_check(e))
        return err_wrap(e, "--mptcp=require");
    if (o->mptcp_subflows && mptcp_pm_new(&u->path_manager, e))
        return err_wrap(e, "--mptcp_subflows=%d", o->mptcp_subflows);
    return 0;
}

/* Which side it is that has none. */
static int explain(enum mptcp_use use, struct err *e)
{
    struct err ours;
    if (use == MPTCP_UNUSED && mptcp_check(&ours))
        return err_set(e, ERR_CONNECT, "no Multipath TCP: here %s", ours.text);
    return err_set(e, ERR_CONNECT,
                   "no Multipath TCP: the pooler answers with plain TCP; it "
                   "lacks listen_mptcp, or something on the way removes the "
                   "option");
}

int upstream_check_mptcp(struct upstream *u, int fd, struct err *e)
{
    struct err why;
    if (!u->o.target.mptcp)
        return 0;
    enum mptcp_use use = mptcp_use_of(fd);
    if (use != MPTCP_USED && u->o.mptcp_require)
        return explain(use, e);
    if ((int)use == u->seen_mptcp)
        return 0;
    u->seen_mptcp = (int)use;
    if (use == MPTCP_USED) {
        log_info("edge: Multipath TCP to %s", u->text);
        return 0;
    }
    (void)explain(use, &why); /* the text is what counts */
    log_warning("edge: %s: %s; going on with TCP", u->text, why.text);
    return 0;
}
