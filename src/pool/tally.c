/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/tally.h"

#include <string.h>

#include "base/slice.h"
#include "pool/shard.h"

static struct tally_end *find(struct tally *t, const char *sqlstate)
{
    for (int i = 0; i < t->n_ends; i++)
        if (!strncmp(t->ends[i].sqlstate, sqlstate, TALLY_STATE_MAX - 1))
            return &t->ends[i];
    struct tally_end *e = &t->ends[t->n_ends];
    /* The last place is everybody's who finds none. */
    if (t->n_ends == TALLY_ENDS_MAX - 1)
        sqlstate = "other";
    else
        t->n_ends++;
    (void)slice_copy(slice_str(sqlstate), e->sqlstate, sizeof e->sqlstate);
    return e;
}

static void add(struct tally *t, const char *sqlstate, uint64_t logins,
                uint64_t sessions)
{
    struct tally_end *e = find(t, sqlstate);
    e->logins += logins;
    e->sessions += sessions;
}

void tally_end(struct tally *t, const char *sqlstate, bool was_login)
{
    add(t, sqlstate, was_login, !was_login);
}

void tally_add(struct tally *to, const struct tally *from)
{
    for (int i = 0; i < TALLY_ENDS_MAX && from->ends[i].sqlstate[0]; i++)
        add(to, from->ends[i].sqlstate, from->ends[i].logins,
            from->ends[i].sessions);
    to->logins += from->logins;
    to->accepted_sockets += from->accepted_sockets;
    to->accepted_streams += from->accepted_streams;
    to->refused_by_address += from->refused_by_address;
    to->cancel_requests += from->cancel_requests;
    to->servers_opened += from->servers_opened;
    to->servers_logged_in += from->servers_logged_in;
    to->servers_failed += from->servers_failed;
    to->servers_lost += from->servers_lost;
    to->mptcp_clients += from->mptcp_clients;
    to->mptcp_servers += from->mptcp_servers;
    to->mptcp_fallbacks += from->mptcp_fallbacks;
}

void pool_stats_add(struct pool_stats *to, const struct pool_stats *s)
{
    to->xact_count += s->xact_count;
    to->query_count += s->query_count;
    to->server_assignment_count += s->server_assignment_count;
    to->received += s->received;
    to->sent += s->sent;
    to->xact_time_us += s->xact_time_us;
    to->query_time_us += s->query_time_us;
    to->wait_time_us += s->wait_time_us;
    to->client_parse_count += s->client_parse_count;
    to->server_parse_count += s->server_parse_count;
    to->bind_count += s->bind_count;
    to->client_login_count += s->client_login_count;
}
