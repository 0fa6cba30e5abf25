/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Whether this host can do what the configuration asks of Multipath TCP, asked
 * when it is loaded and not at the first connection. */
#ifndef MAIN_MULTIPATH_H
#define MAIN_MULTIPATH_H

#include "conf/conf.h"

/* What needs no rights: listen_mptcp (is_start) and mptcp = require. */
NODISCARD int multipath_check(const struct conf *c, bool is_start,
                              struct err *e);

/* mptcp_subflows, for the account that we run as in the end. */
NODISCARD int multipath_check_rights(const struct conf *c, struct err *e);

#endif
