/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/names.h"

#include <stdlib.h>

#include "auth/userdb.h"
#include "pool/shared.h"

static void add(struct names *n, struct slice name)
{
    if (n->n == n->cap) {
        size_t cap = n->cap ? 2 * n->cap : 64;
        struct slice *at = mem_new_array(cap, sizeof(*at));

        if (n->n)
            memcpy(at, n->at, n->n * sizeof(*at));
        free(n->at);
        n->at = at;
        n->cap = cap;
    }
    n->at[n->n++] = name;
}

static int compare(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    int order = memcmp(x->p, y->p, MIN(x->n, y->n));

    if (order)
        return order;
    return (x->n > y->n) - (x->n < y->n);
}

static void sort(struct names *n)
{
    size_t out = 0;

    if (n->n == 0)
        return;
    qsort(n->at, n->n, sizeof(*n->at), compare);
    for (size_t i = 1; i < n->n; i++) {
        if (!slice_eq(n->at[i], n->at[out]))
            n->at[++out] = n->at[i];
    }
    n->n = out + 1;
}

void names_fini(struct names *n)
{
    free(n->at);
    memset(n, 0, sizeof(*n));
}

const struct conf_db *names_find_db(const struct conf *conf, struct slice name)
{
    const struct conf_db *db = conf_find_db(conf, name);

    return db ? db : conf_fallback_db(conf);
}

/* A record stays when its database is gone; it is of interest as long as
 * anything is connected or held by it. */
static bool is_in_use(const struct db_rec *db)
{
    return atomic_load(&db->n_clients) > 0 || atomic_load(&db->is_paused) ||
           atomic_load(&db->is_disabled);
}

/* Records are never taken out of their lists: behind the head no lock is
 * needed. */
static struct db_rec *first_db(struct shared *s)
{
    struct db_rec *db;

    pthread_mutex_lock(&s->records_lock);
    db = s->db_list;
    pthread_mutex_unlock(&s->records_lock);
    return db;
}

static struct user_rec *first_user(struct shared *s)
{
    struct user_rec *u;

    pthread_mutex_lock(&s->records_lock);
    u = s->user_list;
    pthread_mutex_unlock(&s->records_lock);
    return u;
}

void names_of_databases(struct names *n, struct shared *s,
                        const struct conf *conf)
{
    memset(n, 0, sizeof(*n));
    add(n, slice_str(CONSOLE_DB));
    for (int i = 0; i < conf_db_count(conf); i++)
        add(n, slice_str(conf_db_at(conf, i)->name));
    for (struct db_rec *db = first_db(s); db; db = db->next) {
        struct slice name = slice_str(db->name);

        if (conf_is_console_db(name))
            continue;
        if ((conf_fallback_db(conf) && atomic_load(&db->n_pools) > 0) ||
            is_in_use(db) || budget_db_count(s, db) > 0)
            add(n, name);
    }
    sort(n);
}

void names_of_users(struct names *n, struct shared *s, const struct conf *conf)
{
    const struct auth_user *u = NULL;

    memset(n, 0, sizeof(*n));
    add(n, slice_str(CONSOLE_DB));
    while ((u = userdb_next(conf->users, u)))
        add(n, u->name);
    for (int i = 0; i < conf_user_count(conf); i++)
        add(n, slice_str(conf_user_at(conf, i)->name));
    for (struct user_rec *r = first_user(s); r; r = r->next)
        add(n, slice_str(r->name));
    sort(n);
}
