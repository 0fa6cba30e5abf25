/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SUSPEND on one worker: clients are not read any more, and what is on its way
 * to them and to servers is sent. Servers are read on, so that the replies to
 * what runs arrive. On the worker's thread. */
#ifndef POOL_SUSPEND_H
#define POOL_SUSPEND_H

#include "base/base.h"

struct shard;

/* More than once does no harm. */
void shard_suspend(struct shard *sh);

/* Connections with output that is not sent yet; with must_end they are closed,
 * and so are logins. */
int shard_suspend_left(struct shard *sh, bool must_end);

/* After RESUME. */
void shard_end_suspend(struct shard *sh);

#endif
