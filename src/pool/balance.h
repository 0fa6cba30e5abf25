/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Which worker should take clients of which: the policy alone. Pure; any
 * thread. */
#ifndef POOL_BALANCE_H
#define POOL_BALANCE_H

#include "base/base.h"

/* Loads are thousandths of a processor. */
struct balance_plan {
    int to;   /* -1: stay as it is */
    int give; /* so much of our load */
};

/* For worker self of n. busy is the load from which a worker hands clients on.
 *
 *   spread   self is busy, and the least loaded has at least half of busy less:
 *            a quarter of the difference goes there
 *   gather   self has next to nothing, and another before it can take that on
 *            without coming near to being busy: all of it goes there, so that
 *            at low load few workers wake
 *
 * Between the two lies a wide range in which nothing moves, and work gathers
 * only towards lower numbers: so nothing swings. */
struct balance_plan balance_plan(const int *load, int n, int self, int busy);

#endif
