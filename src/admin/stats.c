/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/stats.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/control.h"
#include "base/clock.h"
#include "base/log.h"
#include "pool/shared.h"
#include "worker/team.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stats_set older, newer; /* under lock */
static int64_t older_us, newer_us;

void stats_start(int64_t now_us)
{
    pthread_mutex_lock(&lock);
    newer_us = now_us;
    older_us = now_us - 1000000;
    pthread_mutex_unlock(&lock);
}

void stats_fini(struct stats_set *set)
{
    free(set->rows);
    memset(set, 0, sizeof(*set));
}

void stats_values(const struct pool_stats *s, uint64_t out[STATS_COUNTERS])
{
    const uint64_t v[STATS_COUNTERS] = {
        s->server_assignment_count,
        s->xact_count,
        s->query_count,
        s->received,
        s->sent,
        s->xact_time_us,
        s->query_time_us,
        s->wait_time_us,
        s->client_parse_count,
        s->server_parse_count,
        s->bind_count,
        s->client_login_count,
    };

    memcpy(out, v, sizeof(v));
}

static struct stats_row *find(const struct stats_set *set,
                              const struct db_rec *db)
{
    for (int i = 0; i < set->n; i++) {
        if (set->rows[i].db == db)
            return &set->rows[i];
    }
    return NULL;
}

static struct stats_row *find_or_add(struct stats_set *set,
                                     const struct db_rec *db)
{
    struct stats_row *row = find(set, db);

    if (row)
        return row;
    if (set->n == set->cap) {
        int cap = set->cap ? 2 * set->cap : 16;
        struct stats_row *rows = mem_new_array((size_t)cap, sizeof(*rows));

        if (set->n)
            memcpy(rows, set->rows, (size_t)set->n * sizeof(*rows));
        free(set->rows);
        set->rows = rows;
        set->cap = cap;
    }
    row = &set->rows[set->n++];
    row->db = db;
    return row;
}

static void collect_pool(void *arg, const struct pool_view *v)
{
    pool_stats_add(&find_or_add(arg, v->rec->db)->sum, &v->stats);
}

void stats_collect(struct stats_set *set, struct shard *sh)
{
    shard_each_pool(sh, collect_pool, set);
}

void stats_sum(const struct stats_set *set, struct pool_stats *out)
{
    memset(out, 0, sizeof(*out));
    for (int i = 0; i < set->n; i++)
        pool_stats_add(out, &set->rows[i].sum);
}

/* -------------------------------------------------------------- averages */

static uint64_t per_second(uint64_t cur, uint64_t old, int64_t span_us)
{
    return cur > old ? (uint64_t)((double)(cur - old) * 1e6 / (double)span_us)
                     : 0;
}

static uint64_t per_event(uint64_t cur, uint64_t old, uint64_t n_cur,
                          uint64_t n_old)
{
    return cur > old && n_cur > n_old ? (cur - old) / (n_cur - n_old) : 0;
}

void stats_between(const struct pool_stats *c, const struct pool_stats *o,
                   int64_t span_us, struct pool_stats *out)
{
    memset(out, 0, sizeof(*out));
    if (span_us <= 0)
        return;
#define RATE(field) out->field = per_second(c->field, o->field, span_us)
#define MEAN(field, of) out->field = per_event(c->field, o->field, c->of, o->of)
    RATE(xact_count);
    RATE(query_count);
    RATE(server_assignment_count);
    RATE(received);
    RATE(sent);
    RATE(client_parse_count);
    RATE(server_parse_count);
    RATE(bind_count);
    RATE(client_login_count);
    MEAN(xact_time_us, xact_count);
    MEAN(query_time_us, query_count);
    MEAN(wait_time_us, server_assignment_count);
#undef RATE
#undef MEAN
}

void stats_average(const struct db_rec *db, const struct pool_stats *cur,
                   int64_t now_us, struct pool_stats *out)
{
    struct pool_stats old = {0};
    const struct stats_row *row;
    int64_t since_us;

    pthread_mutex_lock(&lock);
    since_us = older_us;
    row = db ? find(&older, db) : NULL;
    if (row)
        old = row->sum;
    else if (!db)
        stats_sum(&older, &old);
    pthread_mutex_unlock(&lock);
    stats_between(cur, &old, now_us - since_us, out);
}

void stats_rotate(struct stats_set *set, int64_t now_us)
{
    pthread_mutex_lock(&lock);
    stats_fini(&older);
    older = newer;
    newer = *set;
    older_us = newer_us;
    newer_us = now_us;
    pthread_mutex_unlock(&lock);
    memset(set, 0, sizeof(*set));
}

void stats_put_line(const struct pool_stats *a, char *buf, size_t cap)
{
    snprintf(buf, cap,
             "stats: %" PRIu64 " xacts/s, %" PRIu64 " queries/s, %" PRIu64
             " client parses/s, %" PRIu64 " server parses/s, %" PRIu64
             " binds/s, %" PRIu64 " client logins/s, in %" PRIu64
             " B/s, out %" PRIu64 " B/s, xact %" PRIu64 " us, query %" PRIu64
             " us, wait %" PRIu64 " us",
             a->xact_count, a->query_count, a->client_parse_count,
             a->server_parse_count, a->bind_count, a->client_login_count,
             a->received, a->sent, a->xact_time_us, a->query_time_us,
             a->wait_time_us);
}

/* ------------------------------------------------------------------ tick */

struct tick {
    struct stats_set set;
    struct shared *shared;
    void (*done)(void *arg, const char *line);
    void *arg;
};

static void tick_each(struct shard *sh, void *arg)
{
    struct tick *t = arg;

    t->shared = shard_shared(sh);
    stats_collect(&t->set, sh);
}

static void log_if_on(struct shared *shared, const char *line)
{
    struct conf *conf = shared_conf(shared);

    if (conf->log_stats)
        log_info("%s", line);
    conf_unref(conf);
}

static void tick_done(void *arg)
{
    struct tick *t = arg;
    struct pool_stats cur, avg;
    int64_t now_us = clock_now_us();
    char line[512];

    stats_sum(&t->set, &cur);
    stats_rotate(&t->set, now_us);
    stats_average(NULL, &cur, now_us, &avg);
    stats_put_line(&avg, line, sizeof(line));
    if (t->shared)
        log_if_on(t->shared, line);
    if (t->done)
        t->done(t->arg, line);
    free(t);
}

void admin_stats_tick(struct loop *asker,
                      void (*done)(void *arg, const char *line), void *arg)
{
    struct tick *t = mem_new(sizeof(*t));

    t->done = done;
    t->arg = arg;
    team_gather(control_get()->team, asker, tick_each, tick_done, t);
}
