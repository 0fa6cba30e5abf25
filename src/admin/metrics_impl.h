/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a scrape has gathered, for metrics.c and metrics_page.c only. */
#ifndef ADMIN_METRICS_IMPL_H
#define ADMIN_METRICS_IMPL_H

#include "admin/metrics.h"
#include "loop/loop.h"
#include "net/quic.h"
#include "pool/shared.h"
#include "pool/tally.h"

/* What one worker has of a pool; of a database's pools that are gone, without
 * a user. */
struct metrics_pool {
    const struct db_rec *db;
    const struct user_rec *user;
    int cl_active, cl_waiting, cl_active_cancel, cl_waiting_cancel;
    int sv_active, sv_active_cancel, sv_being_canceled, sv_idle, sv_used,
        sv_tested, sv_login;
    int64_t maxwait_us;
    struct pool_stats stats;
};

struct metrics_worker {
    int clients, login_clients, servers;
    int64_t cpu_us, maxwait_us;
    uint64_t lent, borrowed, moved_in, moved_out;
    struct loop_stats loop;
};

struct metrics_quic {
    int conns, streams, n_up;
    int64_t rtt_sum_us, rtt_max_us;
};

struct metrics {
    struct shared *shared;
    struct conf *conf; /* a reference */
    struct metrics_pool *pools;
    size_t n_pools, cap_pools;
    struct metrics_worker *workers;
    int n_workers;
    struct tally tally;
    struct quic_totals quic;
    struct metrics_quic quic_side[2]; /* as client, as server */
    struct shard_mptcp mptcp;
};

struct metrics_reload {
    bool is_good;
    int64_t good_wall_us;
};
struct metrics_reload metrics_last_reload(void);

#endif
