/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Writes what metrics.c has gathered, family by family. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "admin/console.h"
#include "admin/metric_text.h"
#include "admin/metrics_impl.h"
#include "admin/names.h"
#include "config.h"
#include "pool/statement.h"

#include <openssl/crypto.h>

/* A database with all that is told of it. */
struct db_row {
    struct slice name;
    struct db_rec *rec; /* NULL: nobody has asked for it yet */
    const struct conf_db *conf;
    struct pool_stats stats;
    struct latency_sum query, xact, wait;
};

struct user_row {
    struct slice name;
    struct user_rec *rec; /* NULL: the same */
    const struct conf_user *conf;
};

struct page {
    struct metrics *m;
    struct pgbuf *out;
    struct db_row *dbs;
    struct user_row *users;
    size_t n_dbs, n_users;
};

static struct metric_label label(const char *name, const char *value)
{
    return (struct metric_label){name, slice_str(value)};
}

/* --- pools: the workers' parts put together --------------------------------
 */

static int compare_pools(const void *a, const void *b)
{
    const struct metrics_pool *p = a, *q = b;
    int order = strcmp(p->db->name, q->db->name);
    if (order)
        return order;
    if (!p->user || !q->user)
        return (p->user != NULL) - (q->user != NULL);
    return strcmp(p->user->name, q->user->name);
}

static void add_pool(struct metrics_pool *to, const struct metrics_pool *p)
{
    to->cl_active += p->cl_active;
    to->cl_waiting += p->cl_waiting;
    to->cl_active_cancel += p->cl_active_cancel;
    to->cl_waiting_cancel += p->cl_waiting_cancel;
    to->sv_active += p->sv_active;
    to->sv_active_cancel += p->sv_active_cancel;
    to->sv_being_canceled += p->sv_being_canceled;
    to->sv_idle += p->sv_idle;
    to->sv_used += p->sv_used;
    to->sv_tested += p->sv_tested;
    to->sv_login += p->sv_login;
    to->maxwait_us = MAX(to->maxwait_us, p->maxwait_us);
    pool_stats_add(&to->stats, &p->stats);
}

static void merge_pools(struct metrics *m)
{
    size_t n = 0;
    if (m->n_pools)
        qsort(m->pools, m->n_pools, sizeof *m->pools, compare_pools);
    for (size_t i = 0; i < m->n_pools; i++) {
        if (n && !compare_pools(&m->pools[n - 1], &m->pools[i]))
            add_pool(&m->pools[n - 1], &m->pools[i]);
        else
            m->pools[n++] = m->pools[i];
    }
    m->n_pools = n;
}

struct state {
    const char *name;
    size_t at; /* in struct metrics_pool */
};

static const struct state client_states[] = {
    {"active", offsetof(struct metrics_pool, cl_active)},
    {"waiting", offsetof(struct metrics_pool, cl_waiting)},
    {"active_cancel", offsetof(struct metrics_pool, cl_active_cancel)},
    {"waiting_cancel", offsetof(struct metrics_pool, cl_waiting_cancel)},
};

static const struct state server_states[] = {
    {"active", offsetof(struct metrics_pool, sv_active)},
    {"active_cancel", offsetof(struct metrics_pool, sv_active_cancel)},
    {"being_canceled", offsetof(struct metrics_pool, sv_being_canceled)},
    {"idle", offsetof(struct metrics_pool, sv_idle)},
    {"used", offsetof(struct metrics_pool, sv_used)},
    {"tested", offsetof(struct metrics_pool, sv_tested)},
    {"login", offsetof(struct metrics_pool, sv_login)},
};

static void put_states(struct page *p, enum metric_id id,
                       const struct state *states, size_t n)
{
    metric_begin(p->out, id);
    for (size_t i = 0; i < p->m->n_pools; i++) {
        const struct metrics_pool *pool = &p->m->pools[i];
        if (!pool->user)
            continue;
        struct metric_label l[3] = {label("database", pool->db->name),
                                    label("user", pool->user->name)};
        for (size_t k = 0; k < n; k++) {
            int count;
            memcpy(&count, (const char *)pool + states[k].at, sizeof count);
            l[2] = label("state", states[k].name);
            metric_put(p->out, id, l, 3, count);
        }
    }
}

static void put_pools(struct page *p)
{
    const struct metric_label console[3] = {label("database", CONSOLE_DB),
                                            label("user", CONSOLE_DB),
                                            label("state", "active")};
    put_states(p, METRIC_POOL_CLIENTS, client_states,
               ARRAY_SIZE(client_states));
    metric_put(p->out, METRIC_POOL_CLIENTS, console, 3, console_count());
    put_states(p, METRIC_POOL_SERVERS, server_states,
               ARRAY_SIZE(server_states));
    metric_begin(p->out, METRIC_POOL_MAXWAIT);
    for (size_t i = 0; i < p->m->n_pools; i++) {
        const struct metrics_pool *pool = &p->m->pools[i];
        if (!pool->user)
            continue;
        const struct metric_label l[2] = {label("database", pool->db->name),
                                          label("user", pool->user->name)};
        metric_put_us(p->out, METRIC_POOL_MAXWAIT, l, 2, pool->maxwait_us);
    }
}

/* --- databases -------------------------------------------------------------
 */

static void fill_latency(const struct page *p, struct db_row *r)
{
    for (int i = 0; r->rec && i < p->m->n_workers; i++) {
        latency_collect(&r->query, &r->rec->latency[i].query);
        latency_collect(&r->xact, &r->rec->latency[i].xact);
        latency_collect(&r->wait, &r->rec->latency[i].wait);
    }
}

/* As strcmp(): the order of the names, and of the pools. */
static int compare_name(const char *a, struct slice b)
{
    size_t n = strlen(a);
    int order = memcmp(a, b.p, MIN(n, b.n));
    return order ? order : (n > b.n) - (n < b.n);
}

/* The counts of its pools, which come in the order of the rows. */
static void add_pools(const struct page *p, struct db_row *r, size_t *at)
{
    int order = -1;
    for (; *at < p->m->n_pools; ++*at) {
        const struct metrics_pool *pool = &p->m->pools[*at];
        order = compare_name(pool->db->name, r->name);
        if (order > 0)
            return;
        if (order == 0)
            pool_stats_add(&r->stats, &pool->stats);
    }
}

static void fill_databases(struct page *p)
{
    struct names names;
    size_t pool = 0;
    names_of_databases(&names, p->m->shared, p->m->conf);
    p->dbs = mem_new_array(MAX(names.n, (size_t)1), sizeof *p->dbs);
    for (size_t i = 0; i < names.n; i++) {
        struct db_row *r = &p->dbs[p->n_dbs];
        if (conf_is_console_db(names.at[i]))
            continue;
        p->n_dbs++;
        r->name = names.at[i];
        r->conf = names_find_db(p->m->conf, r->name);
        r->rec = shared_find_db(p->m->shared, r->name);
        fill_latency(p, r);
        add_pools(p, r, &pool);
    }
    names_fini(&names);
}

static int64_t db_servers(const struct page *p, const struct db_row *r)
{
    return r->rec ? budget_db_count(p->m->shared, r->rec) : 0;
}

static int64_t db_servers_max(const struct page *p, const struct db_row *r)
{
    return conf_max_db_connections(p->m->conf, r->conf);
}

static int64_t db_pool_size(const struct page *p, const struct db_row *r)
{
    return conf_pool_size(p->m->conf, r->conf, NULL);
}

static int64_t db_reserve_size(const struct page *p, const struct db_row *r)
{
    return conf_reserve_pool_size(p->m->conf, r->conf, NULL);
}

static int64_t db_clients(const struct page *p, const struct db_row *r)
{
    return r->rec ? atomic_load(&r->rec->n_clients) : 0;
}

static int64_t db_clients_max(const struct page *p, const struct db_row *r)
{
    return conf_max_db_client_connections(p->m->conf, r->conf);
}

static int64_t db_paused(const struct page *p, const struct db_row *r)
{
    return r->rec && atomic_load(&r->rec->is_paused);
}

static int64_t db_disabled(const struct page *p, const struct db_row *r)
{
    return r->rec && atomic_load(&r->rec->is_disabled);
}

static const struct {
    enum metric_id id;
    int64_t (*get)(const struct page *p, const struct db_row *r);
} db_gauges[] = {
    {METRIC_DB_SERVERS, db_servers},
    {METRIC_DB_SERVERS_MAX, db_servers_max},
    {METRIC_DB_POOL_SIZE, db_pool_size},
    {METRIC_DB_RESERVE_SIZE, db_reserve_size},
    {METRIC_DB_CLIENTS, db_clients},
    {METRIC_DB_CLIENTS_MAX, db_clients_max},
    {METRIC_DB_PAUSED, db_paused},
    {METRIC_DB_DISABLED, db_disabled},
};

static const struct {
    enum metric_id id;
    size_t at; /* in struct pool_stats */
} db_counters[] = {
    {METRIC_DB_QUERIES, offsetof(struct pool_stats, query_count)},
    {METRIC_DB_XACTS, offsetof(struct pool_stats, xact_count)},
    {METRIC_DB_ASSIGNMENTS,
     offsetof(struct pool_stats, server_assignment_count)},
    {METRIC_DB_RECEIVED, offsetof(struct pool_stats, received)},
    {METRIC_DB_SENT, offsetof(struct pool_stats, sent)},
    {METRIC_DB_CLIENT_PARSES, offsetof(struct pool_stats, client_parse_count)},
    {METRIC_DB_SERVER_PARSES, offsetof(struct pool_stats, server_parse_count)},
    {METRIC_DB_BINDS, offsetof(struct pool_stats, bind_count)},
    {METRIC_DB_LOGINS, offsetof(struct pool_stats, client_login_count)},
};

static const struct {
    enum metric_id id;
    size_t at; /* in struct db_row */
} db_latencies[] = {
    {METRIC_QUERY_TIME, offsetof(struct db_row, query)},
    {METRIC_XACT_TIME, offsetof(struct db_row, xact)},
    {METRIC_WAIT_TIME, offsetof(struct db_row, wait)},
};

static void put_databases(struct page *p)
{
    struct metric_label l = {.name = "database"};
    for (size_t f = 0; f < ARRAY_SIZE(db_gauges); f++) {
        metric_begin(p->out, db_gauges[f].id);
        for (size_t i = 0; i < p->n_dbs; i++) {
            l.value = p->dbs[i].name;
            metric_put(p->out, db_gauges[f].id, &l, 1,
                       db_gauges[f].get(p, &p->dbs[i]));
        }
    }
    for (size_t f = 0; f < ARRAY_SIZE(db_counters); f++) {
        metric_begin(p->out, db_counters[f].id);
        for (size_t i = 0; i < p->n_dbs; i++) {
            uint64_t v;
            memcpy(&v, (const char *)&p->dbs[i].stats + db_counters[f].at,
                   sizeof v);
            l.value = p->dbs[i].name;
            metric_put(p->out, db_counters[f].id, &l, 1, (int64_t)v);
        }
    }
    for (size_t f = 0; f < ARRAY_SIZE(db_latencies); f++) {
        metric_begin(p->out, db_latencies[f].id);
        for (size_t i = 0; i < p->n_dbs; i++) {
            const char *row = (const char *)&p->dbs[i];
            l.value = p->dbs[i].name;
            metric_put_latency(p->out, db_latencies[f].id, &l,
                               (const void *)(row + db_latencies[f].at));
        }
    }
}

/* --- users -----------------------------------------------------------------
 */

static void fill_users(struct page *p)
{
    struct names names;
    names_of_users(&names, p->m->shared, p->m->conf);
    p->users = mem_new_array(MAX(names.n, (size_t)1), sizeof *p->users);
    for (size_t i = 0; i < names.n; i++) {
        struct slice name = names.at[i];
        if (conf_is_console_db(name))
            continue;
        p->users[p->n_users++] = (struct user_row){
            .name = name,
            .rec = shared_find_user(p->m->shared, name),
            .conf = conf_find_user(p->m->conf, name),
        };
    }
    names_fini(&names);
}

static int64_t user_servers(const struct page *p, const struct user_row *r)
{
    return r->rec ? budget_user_count(p->m->shared, r->rec) : 0;
}

static int64_t user_servers_max(const struct page *p, const struct user_row *r)
{
    return conf_max_user_connections(p->m->conf, r->conf);
}

static int64_t user_clients(const struct page *p, const struct user_row *r)
{
    return r->rec ? atomic_load(&r->rec->n_clients) : 0;
}

static int64_t user_clients_max(const struct page *p, const struct user_row *r)
{
    return conf_max_user_client_connections(p->m->conf, r->conf);
}

static const struct {
    enum metric_id id;
    int64_t (*get)(const struct page *p, const struct user_row *r);
} user_gauges[] = {
    {METRIC_USER_SERVERS, user_servers},
    {METRIC_USER_SERVERS_MAX, user_servers_max},
    {METRIC_USER_CLIENTS, user_clients},
    {METRIC_USER_CLIENTS_MAX, user_clients_max},
};

/* Only those that were here: an auth_file may have very many. */
static void put_users(struct page *p)
{
    struct metric_label l = {.name = "user"};
    for (size_t f = 0; f < ARRAY_SIZE(user_gauges); f++) {
        metric_begin(p->out, user_gauges[f].id);
        for (size_t i = 0; i < p->n_users; i++) {
            if (!p->users[i].rec)
                continue;
            l.value = p->users[i].name;
            metric_put(p->out, user_gauges[f].id, &l, 1,
                       user_gauges[f].get(p, &p->users[i]));
        }
    }
}

/* --- workers ---------------------------------------------------------------
 */

static const struct {
    enum metric_id id;
    enum { WORKER_INT, WORKER_INT64, WORKER_US } type;
    size_t at; /* in struct metrics_worker */
} worker_figures[] = {
    {METRIC_W_CLIENTS, WORKER_INT, offsetof(struct metrics_worker, clients)},
    {METRIC_W_SERVERS, WORKER_INT, offsetof(struct metrics_worker, servers)},
    {METRIC_W_CPU, WORKER_US, offsetof(struct metrics_worker, cpu_us)},
    {METRIC_W_TURNS, WORKER_INT64, offsetof(struct metrics_worker, loop.turns)},
    {METRIC_W_EVENTS, WORKER_INT64,
     offsetof(struct metrics_worker, loop.events)},
    {METRIC_W_MESSAGES, WORKER_INT64,
     offsetof(struct metrics_worker, loop.messages)},
    {METRIC_W_LENT, WORKER_INT64, offsetof(struct metrics_worker, lent)},
    {METRIC_W_BORROWED, WORKER_INT64,
     offsetof(struct metrics_worker, borrowed)},
    {METRIC_W_MOVED_IN, WORKER_INT64,
     offsetof(struct metrics_worker, moved_in)},
    {METRIC_W_MOVED_OUT, WORKER_INT64,
     offsetof(struct metrics_worker, moved_out)},
    {METRIC_W_MAXWAIT, WORKER_US, offsetof(struct metrics_worker, maxwait_us)},
};

static void put_worker(struct page *p, size_t f, int worker)
{
    const char *at =
        (const char *)&p->m->workers[worker] + worker_figures[f].at;
    enum metric_id id = worker_figures[f].id;
    char number[16];
    struct metric_label l;
    int64_t v = 0;
    int small;
    snprintf(number, sizeof number, "%d", worker);
    l = label("worker", number);
    if (worker_figures[f].type == WORKER_INT) {
        memcpy(&small, at, sizeof small);
        metric_put(p->out, id, &l, 1, small);
        return;
    }
    memcpy(&v, at, sizeof v);
    if (worker_figures[f].type == WORKER_US)
        metric_put_us(p->out, id, &l, 1, v);
    else
        metric_put(p->out, id, &l, 1, v);
}

static void put_workers(struct page *p)
{
    for (size_t f = 0; f < ARRAY_SIZE(worker_figures); f++) {
        metric_begin(p->out, worker_figures[f].id);
        for (int i = 0; i < p->m->n_workers; i++)
            put_worker(p, f, i);
    }
}

/* --- the process -----------------------------------------------------------
 */

struct sample {
    const char *value; /* of the label */
    int64_t n;
};

static void put_split(struct page *p, enum metric_id id, const char *name,
                      const struct sample *samples, size_t n)
{
    metric_begin(p->out, id);
    for (size_t i = 0; i < n; i++) {
        struct metric_label l = label(name, samples[i].value);
        metric_put(p->out, id, &l, 1, samples[i].n);
    }
}

#define PUT_SPLIT(p, id, name, ...)                                            \
    do {                                                                       \
        const struct sample samples[] = {__VA_ARGS__};                         \
        put_split((p), (id), (name), samples, ARRAY_SIZE(samples));            \
    } while (0)

static void put_state(struct page *p)
{
    const struct metrics_reload reload = metrics_last_reload();
    const struct metric_label build[3] = {
        label("version", PGBRAID_VERSION),
        label("openssl", OpenSSL_version(OPENSSL_VERSION_STRING)),
        label("quic", quic_version()),
    };
    struct shared *s = p->m->shared;
    metric_begin(p->out, METRIC_BUILD_INFO);
    metric_put(p->out, METRIC_BUILD_INFO, build, 3, 1);
    metric_put_single(p->out, METRIC_PAUSED, atomic_load(&s->is_paused));
    metric_put_single(p->out, METRIC_SHUTTING_DOWN,
                      atomic_load(&s->is_shutting_down));
    metric_put_single(p->out, METRIC_RELOAD_OK, reload.is_good);
    metric_begin(p->out, METRIC_RELOAD_TIME);
    metric_put_us(p->out, METRIC_RELOAD_TIME, NULL, 0, reload.good_wall_us);
    metric_put_single(p->out, METRIC_CONF_WORKERS, p->m->n_workers);
}

static void put_ends(struct page *p, enum metric_id id, bool is_login)
{
    const struct tally *t = &p->m->tally;
    metric_begin(p->out, id);
    for (int i = 0; i < TALLY_ENDS_MAX && t->ends[i].sqlstate[0]; i++) {
        const struct tally_end *e = &t->ends[i];
        struct metric_label l = label("sqlstate", e->sqlstate);
        uint64_t n = is_login ? e->logins : e->sessions;
        if (n)
            metric_put(p->out, id, &l, 1, (int64_t)n);
    }
}

static void put_clients(struct page *p)
{
    const struct tally *t = &p->m->tally;
    int64_t all = 0, login = 0;
    for (int i = 0; i < p->m->n_workers; i++) {
        all += p->m->workers[i].clients;
        login += p->m->workers[i].login_clients;
    }
    PUT_SPLIT(p, METRIC_CLIENTS, "state", {"login", login},
              {"session", all - login});
    metric_put_single(p->out, METRIC_CLIENTS_MAX, p->m->conf->max_client_conn);
    PUT_SPLIT(p, METRIC_ACCEPTED, "transport",
              {"socket", (int64_t)t->accepted_sockets},
              {"quic", (int64_t)t->accepted_streams});
    metric_put_single(p->out, METRIC_REFUSED_HOST,
                      (int64_t)t->refused_by_address);
    metric_put_single(p->out, METRIC_LOGINS, (int64_t)t->logins);
    put_ends(p, METRIC_LOGIN_FAILURES, true);
    put_ends(p, METRIC_CLIENT_ERRORS, false);
    metric_put_single(p->out, METRIC_CANCELS, (int64_t)t->cancel_requests);
    metric_put_single(p->out, METRIC_SERVERS_OPENED,
                      (int64_t)t->servers_opened);
    metric_put_single(p->out, METRIC_SERVERS_READY,
                      (int64_t)t->servers_logged_in);
    metric_put_single(p->out, METRIC_SERVERS_FAILED,
                      (int64_t)t->servers_failed);
    metric_put_single(p->out, METRIC_SERVERS_LOST, (int64_t)t->servers_lost);
}

static void put_rtt(struct page *p, enum metric_id id, const int64_t us[2])
{
    const struct metric_label roles[2] = {label("role", "client"),
                                          label("role", "server")};
    metric_begin(p->out, id);
    for (int i = 0; i < 2; i++)
        metric_put_us(p->out, id, &roles[i], 1, us[i]);
}

static void put_quic(struct page *p)
{
    const struct quic_totals *t = &p->m->quic;
    const struct metrics_quic *q = p->m->quic_side;
    const int64_t mean[2] = {q[0].rtt_sum_us / MAX(q[0].n_up, 1),
                             q[1].rtt_sum_us / MAX(q[1].n_up, 1)};
    const int64_t max[2] = {q[0].rtt_max_us, q[1].rtt_max_us};
    if (!quic_is_built())
        return;
    PUT_SPLIT(p, METRIC_QUIC_CONNS, "role", {"client", q[0].conns},
              {"server", q[1].conns});
    PUT_SPLIT(p, METRIC_QUIC_STREAMS, "role", {"client", q[0].streams},
              {"server", q[1].streams});
    put_rtt(p, METRIC_QUIC_RTT_MEAN, mean);
    put_rtt(p, METRIC_QUIC_RTT_MAX, max);
    PUT_SPLIT(p, METRIC_QUIC_HANDSHAKES, "outcome", {"full", (int64_t)t->full},
              {"resumed", (int64_t)t->resumed}, {"failed", (int64_t)t->failed},
              {"refused", (int64_t)t->refused});
    metric_put_single(p->out, METRIC_QUIC_RETRIES, (int64_t)t->retries);
    PUT_SPLIT(p, METRIC_QUIC_BYTES, "direction", {"in", (int64_t)t->bytes_in},
              {"out", (int64_t)t->bytes_out});
    PUT_SPLIT(p, METRIC_QUIC_PACKETS, "direction",
              {"in", (int64_t)t->packets_in}, {"out", (int64_t)t->packets_out});
    metric_put_single(p->out, METRIC_QUIC_SENDS, (int64_t)t->sends);
    metric_put_single(p->out, METRIC_QUIC_REBINDINGS, (int64_t)t->rebindings);
}

static void put_mptcp(struct page *p)
{
    const struct shard_mptcp *n = &p->m->mptcp;
    const struct tally *t = &p->m->tally;
    PUT_SPLIT(p, METRIC_MPTCP_CONNS, "side", {"client", n->clients},
              {"server", n->servers});
    PUT_SPLIT(p, METRIC_MPTCP_FLOWS, "side", {"client", n->client_subflows},
              {"server", n->server_subflows});
    PUT_SPLIT(p, METRIC_MPTCP_TOTAL, "side",
              {"client", (int64_t)t->mptcp_clients},
              {"server", (int64_t)t->mptcp_servers});
    metric_put_single(p->out, METRIC_MPTCP_FALLBACKS,
                      (int64_t)t->mptcp_fallbacks);
}

static void put_statements(struct page *p)
{
    size_t n, bytes;
    statement_totals(&n, &bytes);
    metric_put_single(p->out, METRIC_STATEMENTS, (int64_t)n);
    metric_put_single(p->out, METRIC_STATEMENT_BYTES, (int64_t)bytes);
}

void metrics_put(struct metrics *m, struct pgbuf *out)
{
    struct page p = {.m = m, .out = out};
    merge_pools(m);
    fill_databases(&p);
    fill_users(&p);
    put_state(&p);
    put_clients(&p);
    put_pools(&p);
    put_databases(&p);
    put_users(&p);
    put_workers(&p);
    put_quic(&p);
    put_mptcp(&p);
    put_statements(&p);
    metrics_put_process(out);
    free(p.dbs);
    free(p.users);
}
