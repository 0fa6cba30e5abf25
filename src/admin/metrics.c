/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Gathering what GET /metrics tells; metrics_page.c writes it. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "admin/metrics_impl.h"
#include "base/clock.h"

static atomic_bool is_reload_good;
static _Atomic int64_t reload_wall_us;

void metrics_note_reload(bool is_good)
{
    if (is_good)
        atomic_store(&reload_wall_us, clock_wall_us());
    atomic_store(&is_reload_good, is_good);
}

struct metrics_reload metrics_last_reload(void)
{
    return (struct metrics_reload){
        .is_good = atomic_load(&is_reload_good),
        .good_wall_us = atomic_load(&reload_wall_us),
    };
}

struct metrics *metrics_new(struct shared *shared)
{
    struct metrics *m = mem_new(sizeof *m);
    m->shared = shared;
    m->conf = shared_conf(shared);
    m->n_workers = shared->n_shards;
    m->workers = mem_new_array((size_t)m->n_workers, sizeof *m->workers);
    return m;
}

void metrics_free(struct metrics *m)
{
    conf_unref(m->conf);
    free(m->pools);
    free(m->workers);
    free(m);
}

/* --- on the worker's thread ------------------------------------------------
 */

static struct metrics_pool *add_pool(struct metrics *m)
{
    if (m->n_pools == m->cap_pools) {
        m->cap_pools = MAX(2 * m->cap_pools, (size_t)64);
        m->pools = realloc(m->pools, m->cap_pools * sizeof *m->pools);
        must(m->pools);
    }
    struct metrics_pool *p = &m->pools[m->n_pools++];
    memset(p, 0, sizeof *p);
    return p;
}

static void collect_pool(void *arg, const struct pool_view *v)
{
    *add_pool(arg) = (struct metrics_pool){
        .db = v->rec->db,
        .user = v->rec->user,
        .cl_active = v->cl_active,
        .cl_waiting = v->cl_waiting,
        .cl_active_cancel = v->cl_active_cancel,
        .cl_waiting_cancel = v->cl_waiting_cancel,
        .sv_active = v->sv_active,
        .sv_active_cancel = v->sv_active_cancel,
        .sv_being_canceled = v->sv_being_canceled,
        .sv_idle = v->sv_idle,
        .sv_used = v->sv_used,
        .sv_tested = v->sv_tested,
        .sv_login = v->sv_login,
        .maxwait_us = v->maxwait_us,
        .stats = v->stats,
    };
}

/* Counters never go back while their database is there. */
static void collect_gone(struct metrics *m, int worker)
{
    pthread_mutex_lock(&m->shared->records_lock);
    const struct db_rec *db = m->shared->db_list;
    pthread_mutex_unlock(&m->shared->records_lock);
    for (; db; db = db->next) {
        const struct pool_stats *gone = &db->gone[worker];
        if (!gone->client_login_count && !gone->server_assignment_count)
            continue;
        struct metrics_pool *p = add_pool(m);
        p->db = db;
        p->stats = *gone;
    }
}

static void collect_connection(void *arg, const struct quic_conn_view *v)
{
    struct metrics *m = arg;
    struct metrics_quic *q = &m->quic_side[v->is_server];
    q->conns++;
    q->streams += v->streams;
    if (!v->is_up)
        return;
    q->n_up++;
    q->rtt_sum_us += v->srtt_us;
    q->rtt_max_us = MAX(q->rtt_max_us, v->srtt_us);
}

static void collect_quic(struct metrics *m, struct quic_host *h)
{
    struct quic_totals t = {0}, *sum = &m->quic;
    if (!h)
        return;
    quic_host_each(h, collect_connection, m);
    quic_host_totals(h, &t);
    sum->full += t.full;
    sum->resumed += t.resumed;
    sum->failed += t.failed;
    sum->refused += t.refused;
    sum->retries += t.retries;
    sum->bytes_in += t.bytes_in;
    sum->bytes_out += t.bytes_out;
    sum->packets_in += t.packets_in;
    sum->packets_out += t.packets_out;
    sum->sends += t.sends;
    sum->rebindings += t.rebindings;
}

static void collect_mptcp(struct metrics *m, struct shard *sh)
{
    struct shard_mptcp n;
    shard_count_mptcp(sh, &n);
    m->mptcp.clients += n.clients;
    m->mptcp.client_subflows += n.client_subflows;
    m->mptcp.servers += n.servers;
    m->mptcp.server_subflows += n.server_subflows;
}

void metrics_collect(struct shard *sh, void *arg)
{
    struct metrics *m = arg;
    struct shard_counts c;
    int i = shard_index(sh);
    shard_get_counts(sh, &c);
    m->workers[i] = (struct metrics_worker){
        .clients = c.clients,
        .login_clients = c.login_clients,
        .servers = c.servers,
        .cpu_us = c.cpu_us,
        .maxwait_us = c.maxwait_us,
        .lent = c.lent,
        .borrowed = c.borrowed,
        .moved_in = c.moved_in,
        .moved_out = c.moved_out,
        .loop = *loop_stats(shard_loop(sh)),
    };
    tally_add(&m->tally, shard_tally(sh));
    shard_each_pool(sh, collect_pool, m);
    collect_gone(m, i);
    collect_quic(m, shard_quic(sh));
    collect_mptcp(m, sh);
}
