/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Opening subflows ourselves, through the kernel's userspace path manager: the
 * same pair of addresses and a new source port, so that neither side needs
 * more addresses or `ip mptcp`. The sysctl that turns it on holds for the whole
 * network namespace, and the process needs CAP_NET_ADMIN. One object belongs to
 * one thread; no call waits. */
#ifndef NET_MPTCP_PM_H
#define NET_MPTCP_PM_H

#include "base/err.h"

struct mptcp_pm;

/* ERR_UNSUPPORTED and what is missing: the sysctl or the capability. */
NODISCARD int mptcp_pm_new(struct mptcp_pm **out, struct err *e);
void mptcp_pm_free(struct mptcp_pm *pm); /* NULL is fine */

/* Without anybody who listens to its events the kernel refuses the subflows
 * that peers open, once the userspace path manager is on: listens, until
 * mptcp_pm_free(). */
NODISCARD int mptcp_pm_let_peers_join(struct mptcp_pm *pm, struct err *e);

/* Asks for one more subflow of a connection that this process opened and that
 * has exchanged data. 0 says that it is on its way: the peer may still refuse,
 * which mptcp_read() shows a round trip later. */
NODISCARD int mptcp_pm_add_subflow(struct mptcp_pm *pm, int fd, struct err *e);

#endif
