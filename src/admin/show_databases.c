/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW DATABASES, USERS, PEERS and PEER_POOLS: the configuration beside the
 * counts. No password is shown. */
#include <stdio.h>

#include "admin/console.h"
#include "admin/names.h"
#include "admin/words.h"
#include "pool/shared.h"

enum { CONSOLE_POOL_SIZE = 2 }; /* what PgBouncer's own database says */

/* ---------------------------------------------------------------- databases */

static void put_console(struct job *j)
{
    struct table *t = &j->table;
    const struct conf *c = j->conf;

    table_row(t);
    table_text(t, CONSOLE_DB);
    table_null(t); /* host */
    table_int(t, c->listen_port);
    table_text(t, CONSOLE_DB);
    table_text(t, CONSOLE_DB);
    table_int(t, CONSOLE_POOL_SIZE);
    table_int(t, 0); /* min_pool_size: it has no servers */
    table_int(t, 0); /* reserve_pool_size */
    table_int(t, c->server_lifetime_us / 1000000);
    table_text(t, words_pool_mode(CONF_POOL_STATEMENT));
    table_null(t); /* load_balance_hosts */
    table_int(t, c->max_db_connections);
    table_int(t, 0);
    table_int(t, c->max_db_client_connections);
    table_int(t, console_count());
    table_int(t, 0);
    table_int(t, 0);
    table_row_end(t);
}

static void put_database(struct job *j, struct slice name)
{
    struct table *t = &j->table;
    const struct conf *c = j->conf;
    const struct conf_db *db = names_find_db(c, name);
    struct db_rec *rec = shared_find_db(j->shared, name);

    table_row(t);
    table_slice(t, name);
    table_text(t, db ? db->host : NULL);
    table_int(t, db ? db->port : 0);
    table_slice(t, db ? conf_db_dbname(db, name) : name);
    table_text(t, db ? db->user : NULL);
    table_int(t, conf_pool_size(c, db, NULL));
    table_int(t, conf_min_pool_size(c, db));
    table_int(t, conf_reserve_pool_size(c, db, NULL));
    table_int(t, conf_server_lifetime_us(c, db) / 1000000);
    table_text(t, words_pool_mode(db ? db->pool_mode : -1));
    table_text(t, words_load_balance(db));
    table_int(t, conf_max_db_connections(c, db));
    table_int(t, rec ? budget_db_count(j->shared, rec) : 0);
    table_int(t, conf_max_db_client_connections(c, db));
    table_int(t, rec ? atomic_load(&rec->n_clients) : 0);
    table_int(t, rec && atomic_load(&rec->is_paused));
    table_int(t, rec && atomic_load(&rec->is_disabled));
    table_row_end(t);
}

void show_databases(struct job *j)
{
    struct names names;

    names_of_databases(&names, j->shared, j->conf);
    for (size_t i = 0; i < names.n; i++) {
        if (conf_is_console_db(names.at[i]))
            put_console(j);
        else
            put_database(j, names.at[i]);
    }
    names_fini(&names);
    job_done(j);
}

/* -------------------------------------------------------------------- users */

/* Empty when not set; right-aligned as PgBouncer writes it. */
static void put_override(struct table *t, int value)
{
    char text[16] = "";

    if (value >= 0)
        snprintf(text, sizeof(text), "%9d", value);
    table_text(t, text);
}

static struct user_rec *find_user(struct shared *s, struct slice name)
{
    struct user_rec *u;

    pthread_mutex_lock(&s->records_lock);
    u = s->user_list;
    pthread_mutex_unlock(&s->records_lock);
    while (u && !slice_is(name, u->name))
        u = u->next;
    return u;
}

static void put_user(struct job *j, struct slice name)
{
    struct table *t = &j->table;
    const struct conf_user *user = conf_find_user(j->conf, name);
    struct user_rec *rec = find_user(j->shared, name);

    table_row(t);
    table_slice(t, name);
    put_override(t, user ? user->pool_size : -1);
    put_override(t, user ? user->reserve_pool_size : -1);
    table_text(t, words_pool_mode(user ? user->pool_mode : -1));
    table_int(t, conf_max_user_connections(j->conf, user));
    table_int(t, rec ? budget_user_count(j->shared, rec) : 0);
    table_int(t, conf_max_user_client_connections(j->conf, user));
    table_int(t, rec ? atomic_load(&rec->n_clients) : 0);
    table_row_end(t);
}

void show_users(struct job *j)
{
    struct names names;

    names_of_users(&names, j->shared, j->conf);
    for (size_t i = 0; i < names.n; i++)
        put_user(j, names.at[i]);
    names_fini(&names);
    job_done(j);
}

/* -------------------------------------------------------------------- peers */

void show_peers(struct job *j)
{
    struct table *t = &j->table;

    for (int i = 0; i < conf_peer_count(j->conf); i++) {
        const struct conf_peer *p = conf_peer_at(j->conf, i);

        table_row(t);
        table_int(t, p->id);
        table_text(t, p->host);
        table_int(t, p->port);
        table_int(t, conf_peer_pool_size(j->conf, p));
        table_row_end(t);
    }
    job_done(j);
}

static void add_peers(struct shard *sh, struct job *j)
{
    struct peer_counts *sum = j->data;

    for (int i = 0; i < conf_peer_count(j->conf); i++) {
        int id = conf_peer_at(j->conf, i)->id;
        struct peer_counts n = shard_peer_counts(sh, id);

        sum[i].waiting += n.waiting;
        sum[i].connecting += n.connecting;
        sum[i].sent += n.sent;
    }
}

/* As in PgBouncer, a request waits until its connection stands. */
static void put_peers(struct job *j)
{
    const struct peer_counts *sum = j->data;
    struct table *t = &j->table;

    for (int i = 0; i < conf_peer_count(j->conf); i++) {
        table_row(t);
        table_int(t, conf_peer_at(j->conf, i)->id);
        table_int(t, sum[i].sent);
        table_int(t, sum[i].waiting + sum[i].connecting);
        table_int(t, sum[i].sent);
        table_int(t, sum[i].connecting);
        table_row_end(t);
    }
    job_done(j);
}

void show_peer_pools(struct job *j)
{
    size_t n = (size_t)conf_peer_count(j->conf);

    j->data = mem_new_array(MAX(n, (size_t)1), sizeof(struct peer_counts));
    job_gather(j, add_peers, put_peers);
}
