/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/suspend.h"

#include "pool/impl.h"

static void update_clients(struct shard *sh)
{
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        if (c->state != CLIENT_CANCEL && c->state != CLIENT_CLOSED)
            client_update_flow(c);
    }
}

void shard_suspend(struct shard *sh)
{
    if (sh->is_suspended)
        return;
    sh->is_suspended = true;
    update_clients(sh);
}

void shard_end_suspend(struct shard *sh)
{
    if (!sh->is_suspended)
        return;
    sh->is_suspended = false;
    atomic_store(&sh->shared->is_suspended, false);
    update_clients(sh);
}

static bool has_unsent(const struct stream *s)
{
    return s && stream_pending(s) > 0;
}

static int left_clients(struct shard *sh, bool must_end)
{
    int n = 0;
    list_for_safe(i, &sh->clients)
    {
        struct client *c = list_entry(i, struct client, node_all);
        bool is_login = c->state == CLIENT_LOGIN;
        if (c->state == CLIENT_CONSOLE ||
            !(has_unsent(c->stream) || (must_end && is_login)))
            continue;
        if (must_end)
            client_close(c, "08P01", "suspend_timeout");
        else
            n++;
    }
    return n;
}

static int left_servers(struct pool *p, bool must_end)
{
    int n = 0;
    for (int state = 0; state < SERVER_CLOSED; state++)
        list_for_safe(i, &p->servers[state])
        {
            struct server *s = list_entry(i, struct server, node);
            if (!has_unsent(s->stream))
                continue;
            if (must_end)
                server_close(s, "suspend_timeout");
            else
                n++;
        }
    return n;
}

int shard_suspend_left(struct shard *sh, bool must_end)
{
    int n = left_clients(sh, must_end);
    list_for_safe(i, &sh->pools) n +=
        left_servers(list_entry(i, struct pool, node), must_end);
    return n;
}
