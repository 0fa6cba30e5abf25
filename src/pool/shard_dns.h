/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a worker's resolver remembers, for SHOW DNS_HOSTS. On its thread. */
#ifndef POOL_SHARD_DNS_H
#define POOL_SHARD_DNS_H

#include "net/resolve.h"
#include "pool/shard.h"

void shard_each_dns(struct shard *sh, resolve_entry_cb cb, void *arg);

#endif
