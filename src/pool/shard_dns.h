/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a worker's resolver remembers, for SHOW DNS_HOSTS and DNS_ZONES, and
 * what follows from its news. On its thread. */
#ifndef POOL_SHARD_DNS_H
#define POOL_SHARD_DNS_H

#include "net/resolve.h"
#include "pool/shard.h"

void shard_each_dns(struct shard *sh, resolve_entry_cb cb, void *arg);
void shard_each_zone(struct shard *sh, resolve_zone_cb cb, void *arg);

/* resolve_gone_cb; arg is the shard: connections to that address of the host go
 * once they are free. */
void shard_address_gone(void *arg, const char *host, const struct addr *at);

#endif
