/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW POOLS: the workers' parts of each pool, summed. */
#include <stdlib.h>

#include "admin/console.h"
#include "admin/names.h"
#include "admin/words.h"
#include "pool/shared.h"

struct pools {
    int n, cap;
    struct pool_view at[];
};

static void add_counts(struct pool_view *to, const struct pool_view *v)
{
    to->cl_active += v->cl_active;
    to->cl_waiting += v->cl_waiting;
    to->cl_active_cancel += v->cl_active_cancel;
    to->cl_waiting_cancel += v->cl_waiting_cancel;
    to->sv_active += v->sv_active;
    to->sv_active_cancel += v->sv_active_cancel;
    to->sv_being_canceled += v->sv_being_canceled;
    to->sv_idle += v->sv_idle;
    to->sv_used += v->sv_used;
    to->sv_tested += v->sv_tested;
    to->sv_login += v->sv_login;
    to->maxwait_us = MAX(to->maxwait_us, v->maxwait_us);
}

static struct pools *with_room(struct pools *p)
{
    int cap = p ? 2 * p->cap : 64;
    struct pools *more;

    if (p && p->n < p->cap)
        return p;
    more = mem_new(sizeof(*more) + (size_t)cap * sizeof(more->at[0]));
    if (p)
        memcpy(more, p, sizeof(*p) + (size_t)p->n * sizeof(p->at[0]));
    more->cap = cap;
    free(p);
    return more;
}

static void collect(void *arg, const struct pool_view *v)
{
    struct job *j = arg;
    struct pools *p = j->data;

    for (int i = 0; p && i < p->n; i++) {
        if (p->at[i].rec == v->rec) {
            add_counts(&p->at[i], v);
            return;
        }
    }
    j->data = p = with_room(p);
    p->at[p->n] = *v;
    p->at[p->n].cdb = NULL; /* lives as long as the worker wishes */
    p->n++;
}

static void each(struct shard *sh, struct job *j)
{
    shard_each_pool(sh, collect, j);
}

static const char *db_name(const struct pool_view *v)
{
    return v->rec ? v->rec->db->name : CONSOLE_DB;
}

static const char *user_name(const struct pool_view *v)
{
    return v->rec ? v->rec->user->name : CONSOLE_DB;
}

static int compare(const void *a, const void *b)
{
    int order = strcmp(db_name(a), db_name(b));

    return order ? order : strcmp(user_name(a), user_name(b));
}

static void put_pool(struct job *j, const struct pool_view *v)
{
    struct table *t = &j->table;
    const struct conf_db *cdb =
        v->rec ? names_find_db(j->conf, slice_str(db_name(v))) : NULL;

    table_row(t);
    table_text(t, db_name(v));
    table_text(t, user_name(v));
    table_int(t, v->cl_active);
    table_int(t, v->cl_waiting);
    table_int(t, v->cl_active_cancel);
    table_int(t, v->cl_waiting_cancel);
    table_int(t, v->sv_active);
    table_int(t, v->sv_active_cancel);
    table_int(t, v->sv_being_canceled);
    table_int(t, v->sv_idle);
    table_int(t, v->sv_used);
    table_int(t, v->sv_tested);
    table_int(t, v->sv_login);
    table_int(t, v->maxwait_us / 1000000);
    table_int(t, v->maxwait_us % 1000000);
    table_text(t, words_pool_mode(v->mode));
    table_text(t, words_load_balance(cdb));
    table_row_end(t);
}

static void gathered(struct job *j)
{
    struct pools *p = j->data = with_room(j->data);

    /* The console's sessions, as PgBouncer shows them. */
    p->at[p->n++] = (struct pool_view){
        .mode = CONF_POOL_STATEMENT,
        .cl_active = console_count(),
    };
    qsort(p->at, (size_t)p->n, sizeof(p->at[0]), compare);
    for (int i = 0; i < p->n; i++)
        put_pool(j, &p->at[i]);
    job_done(j);
}

void show_pools(struct job *j)
{
    job_gather(j, each, gathered);
}
