/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/multipath.h"

#include "net/mptcp.h"
#include "net/mptcp_pm.h"

static const struct conf_db *first_that_requires(const struct conf *c)
{
    const struct conf_db *db = conf_fallback_db(c);
    if (db && db->mptcp == CONF_MPTCP_REQUIRE)
        return db;
    for (int i = 0; i < conf_db_count(c); i++) {
        db = conf_db_at(c, i);
        if (db->mptcp == CONF_MPTCP_REQUIRE)
            return db;
    }
    return NULL;
}

int multipath_check(const struct conf *c, bool is_start, struct err *e)
{
    const struct conf_db *db = first_that_requires(c);
    bool listens = is_start && c->listen_mptcp && c->listen_addr.n;
    if ((!listens && !db) || mptcp_check(e) == 0)
        return 0;
    if (listens)
        return err_wrap(e, "listen_mptcp = 1");
    return err_wrap(e, "%s: [databases] %s: mptcp = require", db->place,
                    db->name);
}

int multipath_check_rights(const struct conf *c, struct err *e)
{
    struct mptcp_pm *pm;
    if (c->mptcp_subflows == 0)
        return 0;
    int rc = mptcp_pm_new(&pm, e);
    if (rc)
        return err_wrap(e, "mptcp_subflows = %d", c->mptcp_subflows);
    mptcp_pm_free(pm);
    return 0;
}
