/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What was last seen of each server address, over all workers, so that a state
 * is logged when it changes and not for every connection. Any thread. */
#ifndef POOL_TARGETS_H
#define POOL_TARGETS_H

#include "net/addr.h"

struct targets;

enum target_fact {
    TARGET_MPTCP,          /* enum mptcp_use */
    TARGET_EXTRA_SUBFLOWS, /* how many it let us open */
    TARGET_FACTS,
};

struct targets *targets_new(void);
void targets_free(struct targets *t);

/* Notes the value; true when it is another one than before, or the first. */
bool targets_note(struct targets *t, const struct addr *at,
                  enum target_fact fact, int value);

#endif
