/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/shard_dns.h"

#include <strings.h>

#include "pool/impl.h"

void shard_each_dns(struct shard *sh, resolve_entry_cb cb, void *arg)
{
    if (sh->resolver)
        resolver_for_each(sh->resolver, cb, arg);
}

void shard_each_zone(struct shard *sh, resolve_zone_cb cb, void *arg)
{
    if (sh->resolver)
        resolver_for_each_zone(sh->resolver, cb, arg);
}

void shard_address_gone(void *arg, const char *host, const struct addr *at)
{
    struct shard *sh = arg;
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        for (int i = 0; i < SERVER_CLOSED; i++)
            list_for(n, &p->servers[i])
            {
                struct server *s = list_entry(n, struct server, node);
                if (s->host_name && !strcasecmp(s->host_name, host) &&
                    addr_same_host(&s->at, at))
                    s->needs_close = true;
            }
    }
}
