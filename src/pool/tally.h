/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a worker has counted since its start, beside the statistics of pools.
 * Its thread only. */
#ifndef POOL_TALLY_H
#define POOL_TALLY_H

#include "base/base.h"

enum {
    TALLY_ENDS_MAX = 40, /* different SQLSTATEs; the rest are one */
    TALLY_STATE_MAX = 6,
};

/* Clients that were closed with an error of ours. */
struct tally_end {
    char sqlstate[TALLY_STATE_MAX];
    uint64_t logins, sessions; /* before and after the login */
};

struct tally {
    struct tally_end ends[TALLY_ENDS_MAX];
    int n_ends;
    uint64_t logins; /* that succeeded, also to the console */
    uint64_t accepted_sockets, accepted_streams, refused_by_address;
    uint64_t cancel_requests;
    uint64_t servers_opened, servers_logged_in, servers_failed, servers_lost;
    uint64_t mptcp_clients, mptcp_servers, mptcp_fallbacks;
};

void tally_end(struct tally *t, const char *sqlstate, bool was_login);

/* Adds all of it to a sum. */
void tally_add(struct tally *to, const struct tally *from);

#endif
