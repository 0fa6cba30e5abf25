/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/shard_dns.h"

#include <stdlib.h>
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

/* To another worker, which may have borrowed such a connection and never asked
 * for the name. */
struct gone {
    struct message m;
    struct shard *to;
    struct addr at;
    char host[];
};

static void mark(struct shard *sh, const char *host, const struct addr *at)
{
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

static void on_gone(struct message *message, void *loop_data)
{
    struct gone *g = container_of(message, struct gone, m);
    mark(g->to, g->host, &g->at);
    free(g);
}

void shard_address_gone(void *arg, const char *host, const struct addr *at)
{
    struct shard *sh = arg;
    size_t n = strlen(host);
    mark(sh, host, at);
    for (int i = 0; i < sh->shared->n_shards; i++) {
        struct shard *other = sh->shared->shard[i];
        struct loop *loop = other == sh ? NULL : shard_loop_now(other);
        if (!loop)
            continue;
        struct gone *g = mem_new(sizeof *g + n + 1);
        g->m.handle = on_gone;
        g->to = other;
        g->at = *at;
        memcpy(g->host, host, n);
        mailbox_send(loop, &g->m);
    }
}
