/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS. Times are microseconds;
 * averages of times are per transaction, query or wait, the others per second.
 */
#include <stdlib.h>

#include "admin/job.h"
#include "admin/names.h"
#include "admin/stats.h"
#include "base/clock.h"
#include "pool/shared.h"

static void each(struct shard *sh, struct job *j)
{
    stats_collect(j->data, sh);
}

static void free_set(void *set)
{
    stats_fini(set);
    free(set);
}

static void gather(struct job *j, void (*done)(struct job *j))
{
    j->data = mem_new(sizeof(struct stats_set));
    j->free_data = free_set;
    job_gather(j, each, done);
}

static const char *db_name(const struct stats_row *r)
{
    return r->db ? r->db->name : CONSOLE_DB;
}

static int compare(const void *a, const void *b)
{
    return strcmp(db_name(a), db_name(b));
}

static void put_counters(struct table *t, const struct pool_stats *s)
{
    uint64_t v[STATS_COUNTERS];

    stats_values(s, v);
    for (int i = 0; i < STATS_COUNTERS; i++)
        table_int(t, (int64_t)v[i]);
}

enum { WITH_TOTALS = 1, WITH_AVERAGES = 2 };

static void put_row(struct job *j, const struct stats_row *r, int what)
{
    struct pool_stats avg = {0};

    if (r->db)
        stats_average(r->db, &r->sum, clock_now_us(), &avg);
    table_row(&j->table);
    table_text(&j->table, db_name(r));
    if (what & WITH_TOTALS)
        put_counters(&j->table, &r->sum);
    if (what & WITH_AVERAGES)
        put_counters(&j->table, &avg);
    table_row_end(&j->table);
}

static void put_rows(struct job *j, int what)
{
    struct stats_set *set = j->data;
    struct stats_row console = {0};
    bool is_console_put = false;

    if (set->n)
        qsort(set->rows, (size_t)set->n, sizeof(set->rows[0]), compare);
    for (int i = 0; i < set->n; i++) {
        if (!is_console_put && compare(&console, &set->rows[i]) < 0) {
            put_row(j, &console, what);
            is_console_put = true;
        }
        put_row(j, &set->rows[i], what);
    }
    if (!is_console_put)
        put_row(j, &console, what);
    job_done(j);
}

static void put_stats(struct job *j)
{
    put_rows(j, WITH_TOTALS | WITH_AVERAGES);
}

static void put_stats_totals(struct job *j)
{
    put_rows(j, WITH_TOTALS);
}

static void put_stats_averages(struct job *j)
{
    put_rows(j, WITH_AVERAGES);
}

/* PgBouncer's names for the rows of SHOW TOTALS, in the order of the counters.
 */
static const char *const total_names[2][STATS_COUNTERS] = {
    {"total_server_assignment_count", "total_xact_count", "total_query_count",
     "total_client_bytes", "total_server_bytes", "total_xact_time",
     "total_query_time", "total_wait_time", "total_ps_client_parse_count",
     "total_ps_server_parse_count", "total_ps_bind_count",
     "total_client_login_count"},
    {"avg_server_assignment_count", "avg_xact_count", "avg_query_count",
     "avg_client_bytes", "avg_server_bytes", "avg_xact_time", "avg_query_time",
     "avg_wait_time", "avg_ps_client_parse_count", "avg_ps_server_parse_count",
     "avg_ps_bind_count", "avg_client_login_count"},
};

static void put_totals(struct job *j)
{
    struct pool_stats s[2];
    uint64_t v[STATS_COUNTERS];

    stats_sum(j->data, &s[0]);
    stats_average(NULL, &s[0], clock_now_us(), &s[1]);
    for (int i = 0; i < 2; i++) {
        stats_values(&s[i], v);
        for (int k = 0; k < STATS_COUNTERS; k++) {
            table_row(&j->table);
            table_text(&j->table, total_names[i][k]);
            table_int(&j->table, (int64_t)v[k]);
            table_row_end(&j->table);
        }
    }
    job_done(j);
}

void show_stats(struct job *j)
{
    gather(j, put_stats);
}

void show_stats_totals(struct job *j)
{
    gather(j, put_stats_totals);
}

void show_stats_averages(struct job *j)
{
    gather(j, put_stats_averages);
}

void show_totals(struct job *j)
{
    gather(j, put_totals);
}
