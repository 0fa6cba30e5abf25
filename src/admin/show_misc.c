/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The SHOW commands that are a few lines each. */
#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>

#include "admin/console.h"
#include "admin/names.h"
#include "config.h"
#include "net/quic.h"
#include "pool/shared.h"
#include "pool/statement.h"

enum { HELP_MAX = 8192 };

void show_help(struct job *j)
{
    struct pg_error_text notice = {"NOTICE", "00000", "Console usage", NULL,
                                   NULL};
    const struct command *c;
    char text[HELP_MAX] = "";
    size_t n = 0;

    for (size_t i = 0; (c = command_at(i)); i++) {
        if (!c->usage)
            continue;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "\n\t%-46s %s",
                              c->usage, c->help);
        must(n < sizeof(text));
    }
    notice.detail = text;
    pg_put_notice_full(&j->out, &notice);
    job_done(j);
}

static void put_pair(struct job *j, const char *key, const char *value)
{
    table_row(&j->table);
    table_text(&j->table, key);
    table_text(&j->table, value);
    table_row_end(&j->table);
}

static void put_single(struct job *j, const char *value)
{
    table_row(&j->table);
    table_text(&j->table, value);
    table_row_end(&j->table);
}

void show_version(struct job *j)
{
    put_single(j, "pgbraid " PGBRAID_VERSION);
    job_done(j);
}

void show_state(struct job *j)
{
    bool is_paused = atomic_load(&j->shared->is_paused);
    bool is_suspended = is_paused && atomic_load(&j->shared->is_suspended);

    put_pair(j, "active", is_paused ? "no" : "yes");
    put_pair(j, "paused", is_paused && !is_suspended ? "yes" : "no");
    put_pair(j, "suspended", is_suspended ? "yes" : "no");
    job_done(j);
}

/* Drivers ask for these when they log in, or compare them. */
void show_setting(struct job *j)
{
    static const struct {
        enum table_id table;
        const char *value;
    } settings[] = {
        {TABLE_CLIENT_ENCODING, "UTF-8"},
        {TABLE_DEFAULT_TRANSACTION_ISOLATION, "read committed"},
        {TABLE_STANDARD_CONFORMING_STRINGS, "on"},
        {TABLE_DATESTYLE, "ISO"},
        {TABLE_TIMEZONE, "GMT"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
        if (settings[i].table == j->cmd->table)
            put_single(j, settings[i].value);
    }
    job_done(j);
}

static void put_option(void *arg, const char *key, const char *value,
                       const char *deflt, bool is_changeable)
{
    struct table *t = &((struct job *)arg)->table;

    table_row(t);
    table_text(t, key);
    table_text(t, value);
    table_text(t, deflt);
    table_text(t, is_changeable ? "yes" : "no");
    table_row_end(t);
}

void show_config(struct job *j)
{
    conf_each_option(j->conf, put_option, j);
    job_done(j);
}

/* ------------------------------------------------------------------ workers */

static void put_worker(struct shard *sh, struct job *j)
{
    const struct loop_stats *ls = loop_stats(shard_loop(sh));
    struct table *t = &j->table;
    struct quic_host_counts q = {0};
    struct shard_counts c;
    struct rusage used = {0};

    (void)getrusage(RUSAGE_THREAD, &used); /* fails for bad arguments only */
    shard_get_counts(sh, &c);
    if (shard_quic(sh))
        quic_host_get_counts(shard_quic(sh), &q);
    table_row(t);
    table_int(t, shard_index(sh));
    table_int(t, c.clients);
    table_int(t, c.login_clients);
    table_int(t, c.servers);
    table_int(t, c.pools);
    table_int(t, (int64_t)ls->turns);
    table_int(t, (int64_t)ls->events);
    table_int(t, (int64_t)ls->messages);
    table_int(t, (int64_t)c.lent);
    table_int(t, (int64_t)c.borrowed);
    table_int(t, (int64_t)c.moved_in);
    table_int(t, (int64_t)c.moved_out);
    table_int(t, c.cpu_us);
    table_int(t, c.load_permille / 10);
    table_int(t, c.maxwait_us);
    table_int(t, c.longest_wait_us);
    table_int(t, (int64_t)c.xacts);
    table_int(t, (int64_t)ls->wakeups);
    table_int(t, used.ru_nvcsw);
    table_int(t, used.ru_nivcsw);
    table_int(t, (int64_t)q.forwarded);
    table_int(t, (int64_t)q.relayed);
    table_int(t, (int64_t)q.lost);
    table_row_end(t);
}

void show_workers(struct job *j)
{
    job_gather(j, put_worker, job_done);
}

/* ------------------------------------------------------------ lists and mem */

static void add_counts(struct shard *sh, struct job *j)
{
    struct shard_counts *sum = j->data, c;

    shard_get_counts(sh, &c);
    sum->clients += c.clients;
    sum->login_clients += c.login_clients;
    sum->used_clients += c.used_clients;
    sum->servers += c.servers;
    sum->dns_names += c.dns_names;
    sum->dns_zones += c.dns_zones;
    sum->dns_pending += c.dns_pending;
    sum->pools += c.pools;
    sum->client_size = c.client_size;
    sum->server_size = c.server_size;
    sum->pool_size = c.pool_size;
    sum->buffer_bytes += c.buffer_bytes;
    sum->spare_bytes += c.spare_bytes;
}

static void gather_counts(struct job *j, void (*done)(struct job *j))
{
    j->data = mem_new(sizeof(struct shard_counts));
    job_gather(j, add_counts, done);
}

static void put_count(struct job *j, const char *name, int64_t n)
{
    table_row(&j->table);
    table_text(&j->table, name);
    table_int(&j->table, n);
    table_row_end(&j->table);
}

static int64_t count_pools(struct shared *s)
{
    int64_t n = 1; /* the console's */

    pthread_mutex_lock(&s->records_lock);
    for (struct pool_rec *p = s->pool_list; p; p = p->next)
        n++;
    pthread_mutex_unlock(&s->records_lock);
    return n;
}

static void put_lists(struct job *j)
{
    const struct shard_counts *c = j->data;
    struct names names;

    names_of_databases(&names, j->shared, j->conf);
    put_count(j, "databases", (int64_t)names.n);
    names_fini(&names);
    names_of_users(&names, j->shared, j->conf);
    put_count(j, "users", (int64_t)names.n);
    names_fini(&names);
    put_count(j, "peers", conf_peer_count(j->conf));
    put_count(j, "pools", count_pools(j->shared));
    put_count(j, "peer_pools", conf_peer_count(j->conf));
    put_count(j, "free_clients", 0); /* their memory goes back to the heap */
    put_count(j, "used_clients", c->used_clients);
    put_count(j, "login_clients", c->login_clients);
    put_count(j, "free_servers", 0);
    put_count(j, "used_servers", c->servers);
    put_count(j, "dns_names", (int64_t)c->dns_names);
    put_count(j, "dns_zones", (int64_t)c->dns_zones);
    put_count(j, "dns_queries", (int64_t)c->dns_pending);
    put_count(j, "dns_pending", 0);
    job_done(j);
}

void show_lists(struct job *j)
{
    gather_counts(j, put_lists);
}

static void put_memory(struct job *j, const char *name, size_t size,
                       size_t used, size_t unused, size_t total)
{
    struct table *t = &j->table;

    table_row(t);
    table_text(t, name);
    table_int(t, (int64_t)size);
    table_int(t, (int64_t)used);
    table_int(t, (int64_t)unused);
    table_int(t, (int64_t)total);
    table_row_end(t);
}

static void put_objects(struct job *j, const char *name, size_t size, size_t n)
{
    put_memory(j, name, size, n, 0, n * size);
}

/* size is that of one object, on average where they differ. The names are
 * PgBouncer's where it has such a row. */
static void put_mem(struct job *j)
{
    const struct shard_counts *c = j->data;
    struct mallinfo2 heap = mallinfo2();
    size_t n, bytes, n_consoles = (size_t)console_count();

    statement_totals(&n, &bytes);
    put_memory(j, "statement", n ? bytes / n : 0, n, 0, bytes);
    put_objects(j, "client_cache", c->client_size, (size_t)c->clients);
    put_objects(j, "server_cache", c->server_size, (size_t)c->servers);
    put_objects(j, "pool_cache", c->pool_size, (size_t)c->pools);
    put_memory(j, "iobuf_cache", 1, c->buffer_bytes, c->spare_bytes,
               c->buffer_bytes + c->spare_bytes);
    put_objects(j, "scratch", LOOP_SCRATCH_COUNT * LOOP_SCRATCH_BYTES,
                (size_t)j->shared->n_shards);
    put_objects(j, "console", sizeof(struct console), n_consoles);
    put_memory(j, "heap", 1, heap.uordblks + heap.hblkhd, heap.fordblks,
               heap.arena + heap.hblkhd);
    job_done(j);
}

void show_mem(struct job *j)
{
    gather_counts(j, put_mem);
}
