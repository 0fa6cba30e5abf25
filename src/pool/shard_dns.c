/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/shard_dns.h"

#include "pool/impl.h"

void shard_each_dns(struct shard *sh, resolve_entry_cb cb, void *arg)
{
    if (sh->resolver)
        resolver_for_each(sh->resolver, cb, arg);
}
