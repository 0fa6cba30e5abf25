/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/shared.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/rand.h"
#include "loop/thrpool.h"
#include "pool/latency.h"
#include "pool/secret_cache.h"
#include "pool/shard.h"
#include "pool/targets.h"

enum {
    HASHERS_MAX = 4,
    SERVER_HASHERS = 2, /* so that one server cannot keep the others out */
    ASKERS = 16,        /* they wait, they do not work */
    HELPER_JOBS_MAX = 4096,
    SECRETS_MAX = 10000,
};

/* Zeroed, on cache lines of its own; size is a multiple of theirs. */
static void *new_lines(size_t size)
{
    void *p = aligned_alloc(64, size);
    must(p);
    memset(p, 0, size);
    return p;
}

struct shared *shared_new(struct conf *conf, int n_shards)
{
    struct shared *s = mem_new(sizeof *s);
    must(n_shards > 0 && n_shards <= SHARDS_MAX);
    s->n_shards = n_shards;
    s->last_move_us = INT64_MIN / 2;
    s->load = new_lines((size_t)n_shards * sizeof s->load[0]);
    s->conf = conf;
    pthread_mutex_init(&s->records_lock, NULL);
    pthread_mutex_init(&s->budget_lock, NULL);
    pthread_mutex_init(&s->conf_lock, NULL);
    pthread_mutex_init(&s->hosts_lock, NULL);
    s->targets = targets_new();
    rand_bytes(s->process_key, sizeof s->process_key);
    s->start_wall_us = clock_wall_us();
    s->secrets = secret_cache_new(SECRETS_MAX);
    s->hashing =
        thrpool_new("hash", MIN(n_shards, HASHERS_MAX), HELPER_JOBS_MAX);
    s->hashing_servers =
        thrpool_new("hash-sv", SERVER_HASHERS, HELPER_JOBS_MAX);
    s->asking = thrpool_new("ask", ASKERS, HELPER_JOBS_MAX);
    return s;
}

static void free_users(struct shared *s)
{
    HASH_CLEAR(hh, s->users);
    while (s->user_list) {
        struct user_rec *u = s->user_list;
        s->user_list = u->next;
        auth_keys_fini(&u->keys);
        auth_secret_fini(&u->secret);
        auth_secret_fini(&u->derived);
        auth_secret_fini(&u->derived_from);
        pthread_mutex_destroy(&u->lock);
        free(u->name);
        free(u);
    }
}

void shared_stop_helpers(struct shared *s)
{
    thrpool_stop(s->hashing);
    thrpool_stop(s->hashing_servers);
    thrpool_stop(s->asking);
}

static void free_pool_rec(struct pool_rec *p)
{
    pg_params_unref(p->welcome);
    pthread_mutex_destroy(&p->fail_lock);
    free(p->slot);
    free(p->pool);
    free(p);
}

static void free_db_rec(struct db_rec *d)
{
    free(d->name);
    free(d->latency);
    free(d->gone);
    free(d);
}

/* Those that have been there for so many sweeps. */
static void free_retired(struct shared *s, uint8_t min_sweeps)
{
    struct pool_rec **p = &s->retired_pools;
    struct db_rec **d = &s->retired_dbs;
    while (*p) {
        struct pool_rec *rec = *p;
        if (rec->n_sweeps++ < min_sweeps) {
            p = &rec->next_retired;
            continue;
        }
        *p = rec->next_retired;
        free_pool_rec(rec);
    }
    while (*d) {
        struct db_rec *rec = *d;
        if (rec->n_sweeps++ < min_sweeps) {
            d = &rec->next_retired;
            continue;
        }
        *d = rec->next_retired;
        free_db_rec(rec);
    }
}

void shared_free(struct shared *s)
{
    thrpool_free(s->hashing);
    thrpool_free(s->hashing_servers);
    thrpool_free(s->asking);
    secret_cache_free(s->secrets);
    limits_forget_misses(s);
    HASH_CLEAR(hh, s->pools);
    while (s->pool_list) {
        struct pool_rec *p = s->pool_list;
        s->pool_list = p->next;
        free_pool_rec(p);
    }
    HASH_CLEAR(hh, s->dbs);
    while (s->db_list) {
        struct db_rec *d = s->db_list;
        s->db_list = d->next;
        free_db_rec(d);
    }
    free_retired(s, 0);
    free_users(s);
    targets_free(s->targets);
    conf_unref(s->conf);
    pthread_mutex_destroy(&s->records_lock);
    pthread_mutex_destroy(&s->budget_lock);
    pthread_mutex_destroy(&s->conf_lock);
    pthread_mutex_destroy(&s->hosts_lock);
    mem_wipe(s->process_key, sizeof s->process_key);
    free(s->load);
    free(s);
}

struct conf *shared_conf(struct shared *s)
{
    pthread_mutex_lock(&s->conf_lock);
    struct conf *c = conf_ref(s->conf);
    pthread_mutex_unlock(&s->conf_lock);
    return c;
}

void shared_set_conf(struct shared *s, struct conf *conf)
{
    pthread_mutex_lock(&s->conf_lock);
    struct conf *old = s->conf;
    s->conf = conf;
    pthread_mutex_unlock(&s->conf_lock);
    conf_unref(old);
    secret_cache_clear(s->secrets); /* the queries may be others */
}

static struct db_rec *find_db(struct shared *s, struct slice name)
{
    struct db_rec *d;
    HASH_FIND(hh, s->dbs, name.p, name.n, d);
    return d;
}

struct db_rec *shared_find_db(struct shared *s, struct slice name)
{
    pthread_mutex_lock(&s->records_lock);
    struct db_rec *d = find_db(s, name);
    pthread_mutex_unlock(&s->records_lock);
    return d;
}

struct db_rec *shared_db(struct shared *s, struct slice name)
{
    pthread_mutex_lock(&s->records_lock);
    struct db_rec *d = find_db(s, name);
    if (!d) {
        d = mem_new(sizeof *d);
        d->name = mem_strndup(name.p, name.n);
        d->latency = new_lines((size_t)s->n_shards * sizeof *d->latency);
        d->gone = mem_new_array((size_t)s->n_shards, sizeof *d->gone);
        HASH_ADD_KEYPTR(hh, s->dbs, d->name, name.n, d);
        d->next = s->db_list;
        s->db_list = d;
    }
    d->n_sweeps = 0;
    pthread_mutex_unlock(&s->records_lock);
    return d;
}

enum { SWEEPS_UNUSED = 2, SWEEPS_RETIRED = 2 };

static bool is_unused_db(struct shared *s, const struct conf *conf,
                         struct db_rec *d)
{
    struct slice name = slice_str(d->name);
    return !atomic_load(&d->n_pools) && !atomic_load(&d->n_clients) &&
           !atomic_load(&d->is_paused) && !atomic_load(&d->is_disabled) &&
           !atomic_load(&d->is_wait_close) && !budget_db_count(s, d) &&
           !conf_is_console_db(name) && !conf_find_db(conf, name);
}

/* Their `next` stays: somebody may be walking the list. */
static bool retire_dbs(struct shared *s, const struct conf *conf)
{
    bool any = false;
    for (struct db_rec **at = &s->db_list; *at;) {
        struct db_rec *d = *at;
        d->n_sweeps = is_unused_db(s, conf, d) ? d->n_sweeps + 1 : 0;
        if (d->n_sweeps < SWEEPS_UNUSED) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        HASH_DEL(s->dbs, d);
        d->is_retired = any = true;
        d->n_sweeps = 0;
        d->next_retired = s->retired_dbs;
        s->retired_dbs = d;
    }
    return any;
}

static void retire_pools(struct shared *s)
{
    for (struct pool_rec **at = &s->pool_list; *at;) {
        struct pool_rec *p = *at;
        if (!p->db->is_retired) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        HASH_DEL(s->pools, p);
        p->next_retired = s->retired_pools;
        s->retired_pools = p;
    }
}

void shared_forget_unused(struct shared *s, const struct conf *conf)
{
    pthread_mutex_lock(&s->records_lock);
    free_retired(s, SWEEPS_RETIRED);
    if (retire_dbs(s, conf))
        retire_pools(s);
    pthread_mutex_unlock(&s->records_lock);
}

struct user_rec *shared_user(struct shared *s, struct slice name)
{
    struct user_rec *u;
    pthread_mutex_lock(&s->records_lock);
    HASH_FIND(hh, s->users, name.p, name.n, u);
    if (!u) {
        u = mem_new(sizeof *u);
        u->name = mem_strndup(name.p, name.n);
        pthread_mutex_init(&u->lock, NULL);
        HASH_ADD_KEYPTR(hh, s->users, u->name, name.n, u);
        u->next = s->user_list;
        s->user_list = u;
    }
    pthread_mutex_unlock(&s->records_lock);
    return u;
}

struct user_rec *shared_find_user(struct shared *s, struct slice name)
{
    struct user_rec *u;
    pthread_mutex_lock(&s->records_lock);
    HASH_FIND(hh, s->users, name.p, name.n, u);
    pthread_mutex_unlock(&s->records_lock);
    return u;
}

static struct pool_rec *pool_rec_new(struct shared *s, struct db_rec *db,
                                     struct user_rec *user)
{
    struct pool_rec *p = mem_new(sizeof *p);
    p->key.db = p->db = db;
    p->key.user = p->user = user;
    p->pool = mem_new_array((size_t)s->n_shards, sizeof p->pool[0]);
    p->slot = new_lines((size_t)(s->n_shards + GEN_COUNT) * sizeof p->slot[0]);
    pthread_mutex_init(&p->fail_lock, NULL);
    return p;
}

struct pool_rec *shared_pool(struct shared *s, struct db_rec *db,
                             struct user_rec *user)
{
    struct pool_rec *p;
    struct {
        struct db_rec *db;
        struct user_rec *user;
    } key = {db, user};
    pthread_mutex_lock(&s->records_lock);
    HASH_FIND(hh, s->pools, &key, sizeof key, p);
    if (!p) {
        p = pool_rec_new(s, db, user);
        HASH_ADD(hh, s->pools, key, sizeof p->key, p);
        p->next = s->pool_list;
        s->pool_list = p;
    }
    pthread_mutex_unlock(&s->records_lock);
    return p;
}

static bool is_full(int n, int limit)
{
    return limit > 0 && n >= limit;
}

static bool has_claim(const struct limit_claim *c, const struct pool_rec *p,
                      int64_t since_us, int64_t now_us)
{
    int64_t since = atomic_load_explicit(&c->since_us, memory_order_relaxed);
    return since && c->pool != p && now_us - c->seen_us < CLAIM_TTL_US &&
           (!since_us || since < since_us);
}

/* Of a limit that p's budget is under: the last place may be spoken for. */
static bool is_full_for(const struct pool_rec *p, int n, int limit,
                        const struct limit_claim *c,
                        const struct budget_limits *l)
{
    return is_full(n, limit) ||
           (is_full(n + 1, limit) && has_claim(c, p, l->since_us, l->now_us));
}

static void claim(struct limit_claim *c, const struct pool_rec *p,
                  const struct budget_limits *l)
{
    if (!l->since_us || l->now_us - l->since_us < CLAIM_WAIT_US ||
        has_claim(c, p, l->since_us, l->now_us))
        return;
    c->pool = p;
    c->seen_us = l->now_us;
    atomic_store_explicit(&c->since_us, l->since_us, memory_order_relaxed);
}

static void end_claim(struct limit_claim *c, const struct pool_rec *p)
{
    if (c->pool == p)
        atomic_store_explicit(&c->since_us, 0, memory_order_relaxed);
}

static void count_locked(struct pool_rec *p, int n)
{
    p->n_servers += n;
    p->db->n_servers += n;
    p->user->n_servers += n;
    must(p->n_servers >= 0 && p->db->n_servers >= 0 && p->user->n_servers >= 0);
}

static enum budget_verdict verdict(const struct pool_rec *p,
                                   const struct budget_limits *l)
{
    struct db_rec *db = p->db;
    struct user_rec *user = p->user;
    if (is_full(p->n_servers, l->pool_size))
        return BUDGET_POOL_FULL;
    if (is_full_for(p, db->n_servers, l->max_db, &db->claim, l))
        return BUDGET_DB_FULL;
    if (is_full_for(p, user->n_servers, l->max_user, &user->claim, l))
        return BUDGET_USER_FULL;
    return BUDGET_OK;
}

static enum budget_verdict take_locked(struct shared *s, struct pool_rec *p,
                                       const struct budget_limits *l)
{
    if (s->is_budget_elsewhere) {
        if (p->n_grants == 0)
            return BUDGET_POOL_FULL;
        p->n_grants--;
        count_locked(p, 1);
        return BUDGET_OK;
    }
    enum budget_verdict v = verdict(p, l);
    if (v == BUDGET_OK) {
        count_locked(p, 1);
        end_claim(&p->db->claim, p);
        end_claim(&p->user->claim, p);
    } else if (v != BUDGET_POOL_FULL) {
        claim(v == BUDGET_DB_FULL ? &p->db->claim : &p->user->claim, p, l);
    }
    return v;
}

enum budget_verdict budget_take(struct shared *s, struct pool_rec *p,
                                const struct budget_limits *l)
{
    pthread_mutex_lock(&s->budget_lock);
    enum budget_verdict v = take_locked(s, p, l);
    pthread_mutex_unlock(&s->budget_lock);
    return v;
}

static bool end_claim_since(struct limit_claim *c, const struct pool_rec *p,
                            int64_t since_us)
{
    bool is = c->pool == p && atomic_load(&c->since_us) == since_us;
    if (is)
        end_claim(c, p);
    return is;
}

static bool is_any_claimed(const struct pool_rec *p)
{
    return atomic_load_explicit(&p->db->claim.since_us, memory_order_relaxed) ||
           atomic_load_explicit(&p->user->claim.since_us, memory_order_relaxed);
}

bool budget_end_claim(struct shared *s, struct pool_rec *p, int64_t since_us)
{
    if (!is_any_claimed(p))
        return false;
    pthread_mutex_lock(&s->budget_lock);
    bool was_db = end_claim_since(&p->db->claim, p, since_us);
    bool was_user = end_claim_since(&p->user->claim, p, since_us);
    pthread_mutex_unlock(&s->budget_lock);
    return was_db || was_user;
}

bool budget_is_claimed(struct shared *s, struct pool_rec *p, int64_t since_us,
                       int64_t now_us)
{
    if (!is_any_claimed(p))
        return false;
    pthread_mutex_lock(&s->budget_lock);
    bool is = has_claim(&p->db->claim, p, since_us, now_us) ||
              has_claim(&p->user->claim, p, since_us, now_us);
    pthread_mutex_unlock(&s->budget_lock);
    return is;
}

void budget_give(struct shared *s, struct pool_rec *p)
{
    pthread_mutex_lock(&s->budget_lock);
    bool is_elsewhere = s->is_budget_elsewhere;
    count_locked(p, -1);
    pthread_mutex_unlock(&s->budget_lock);
    if (is_elsewhere)
        s->on_place_given(s, p);
}

/* ----------------------------------------------- over two generations */

void budget_hand_over(struct shared *s, struct pool_rec *p, enum generation to)
{
    pthread_mutex_lock(&s->budget_lock);
    if (to == GEN_OLDER)
        p->n_foreign++;
    else
        count_locked(p, -1);
    pthread_mutex_unlock(&s->budget_lock);
}

void budget_receive(struct shared *s, struct pool_rec *p, enum generation from)
{
    pthread_mutex_lock(&s->budget_lock);
    if (from == GEN_OLDER && p->n_foreign > 0)
        p->n_foreign--;
    else
        count_locked(p, 1);
    pthread_mutex_unlock(&s->budget_lock);
}

void budget_add_foreign(struct shared *s, struct pool_rec *p, int n)
{
    pthread_mutex_lock(&s->budget_lock);
    count_locked(p, n);
    p->n_foreign += n;
    pthread_mutex_unlock(&s->budget_lock);
}

bool budget_foreign_closed(struct shared *s, struct pool_rec *p)
{
    pthread_mutex_lock(&s->budget_lock);
    bool had = p->n_foreign > 0;
    if (had)
        p->n_foreign--;
    pthread_mutex_unlock(&s->budget_lock);
    if (had)
        budget_give(s, p);
    return had;
}

void budget_foreign_gone(struct shared *s)
{
    pthread_mutex_lock(&s->records_lock);
    for (struct pool_rec *p = s->pool_list; p; p = p->next)
        while (budget_foreign_closed(s, p))
            ;
    pthread_mutex_unlock(&s->records_lock);
}

enum budget_verdict budget_grant(struct shared *s, struct pool_rec *p,
                                 const struct budget_limits *l)
{
    pthread_mutex_lock(&s->budget_lock);
    enum budget_verdict v = take_locked(s, p, l);
    p->n_foreign += v == BUDGET_OK;
    pthread_mutex_unlock(&s->budget_lock);
    return v;
}

void budget_granted(struct shared *s, struct pool_rec *p)
{
    pthread_mutex_lock(&s->budget_lock);
    p->n_grants++;
    pthread_mutex_unlock(&s->budget_lock);
}

bool budget_grant_return(struct shared *s, struct pool_rec *p)
{
    pthread_mutex_lock(&s->budget_lock);
    bool had = p->n_grants > 0;
    p->n_grants -= had;
    pthread_mutex_unlock(&s->budget_lock);
    return had;
}

void budget_leave(struct shared *s,
                  void (*each)(void *arg, struct pool_rec *p, int n), void *arg)
{
    pthread_mutex_lock(&s->records_lock);
    pthread_mutex_lock(&s->budget_lock);
    s->is_budget_elsewhere = true;
    for (struct pool_rec *p = s->pool_list; p; p = p->next)
        each(arg, p, p->n_servers);
    pthread_mutex_unlock(&s->budget_lock);
    pthread_mutex_unlock(&s->records_lock);
}

void budget_resume(struct shared *s)
{
    pthread_mutex_lock(&s->records_lock);
    pthread_mutex_lock(&s->budget_lock);
    s->is_budget_elsewhere = false;
    for (struct pool_rec *p = s->pool_list; p; p = p->next)
        p->n_grants = 0;
    pthread_mutex_unlock(&s->budget_lock);
    pthread_mutex_unlock(&s->records_lock);
}

int budget_db_count(struct shared *s, struct db_rec *db)
{
    pthread_mutex_lock(&s->budget_lock);
    int n = db->n_servers;
    pthread_mutex_unlock(&s->budget_lock);
    return n;
}

int budget_user_count(struct shared *s, struct user_rec *u)
{
    pthread_mutex_lock(&s->budget_lock);
    int n = u->n_servers;
    pthread_mutex_unlock(&s->budget_lock);
    return n;
}

bool demand_take(struct pool_rec *p, int shard)
{
    atomic_int *d = &p->slot[shard].demand;
    int n = atomic_load(d);
    while (n > 0)
        if (atomic_compare_exchange_weak(d, &n, n - 1)) {
            atomic_fetch_sub(&p->demand, 1);
            return true;
        }
    return false;
}

void demand_add(struct pool_rec *p, int shard, int n)
{
    atomic_fetch_add(&p->slot[shard].demand, n);
    atomic_fetch_add(&p->demand, n);
}

void pool_rec_set_failed(struct pool_rec *p, int64_t now_us,
                         const char *sqlstate, const char *text)
{
    pthread_mutex_lock(&p->fail_lock);
    slice_copy(slice_str(text), p->fail_text, sizeof p->fail_text);
    slice_copy(slice_str(sqlstate), p->fail_state, sizeof p->fail_state);
    atomic_store(&p->failed_us, now_us);
    pthread_mutex_unlock(&p->fail_lock);
}

void pool_rec_set_working(struct pool_rec *p)
{
    if (atomic_load(&p->failed_us))
        atomic_store(&p->failed_us, 0);
}

bool pool_rec_failure(struct pool_rec *p, char *sqlstate, char *text,
                      size_t cap)
{
    pthread_mutex_lock(&p->fail_lock);
    bool failed = atomic_load(&p->failed_us) != 0;
    slice_copy(slice_str(p->fail_state), sqlstate, sizeof p->fail_state);
    slice_copy(slice_str(p->fail_text), text, cap);
    pthread_mutex_unlock(&p->fail_lock);
    return failed;
}

void user_rec_set_keys(struct user_rec *u, const struct auth_keys *keys)
{
    if (!keys || (!keys->has_scram && !keys->password))
        return;
    pthread_mutex_lock(&u->lock);
    auth_keys_fini(&u->keys);
    auth_keys_copy(keys, &u->keys);
    pthread_mutex_unlock(&u->lock);
}

void user_rec_get_keys(struct user_rec *u, struct auth_keys *out)
{
    pthread_mutex_lock(&u->lock);
    auth_keys_copy(&u->keys, out);
    pthread_mutex_unlock(&u->lock);
}

void user_rec_set_secret(struct user_rec *u, const struct auth_secret *s)
{
    pthread_mutex_lock(&u->lock);
    auth_secret_fini(&u->secret);
    auth_secret_copy(s, &u->secret);
    pthread_mutex_unlock(&u->lock);
}

void user_rec_get_secret(struct user_rec *u, struct auth_secret *out)
{
    pthread_mutex_lock(&u->lock);
    auth_secret_copy(&u->secret, out);
    pthread_mutex_unlock(&u->lock);
}

bool user_rec_get_derived(struct user_rec *u, const struct auth_secret *plain,
                          struct auth_secret *out)
{
    pthread_mutex_lock(&u->lock);
    bool hit = u->derived.kind == AUTH_SECRET_SCRAM &&
               auth_secret_equal(&u->derived_from, plain);
    if (hit)
        auth_secret_copy(&u->derived, out);
    pthread_mutex_unlock(&u->lock);
    return hit;
}

void user_rec_set_derived(struct user_rec *u, const struct auth_secret *plain,
                          const struct auth_secret *derived)
{
    pthread_mutex_lock(&u->lock);
    auth_secret_fini(&u->derived);
    auth_secret_fini(&u->derived_from);
    auth_secret_copy(plain, &u->derived_from);
    auth_secret_copy(derived, &u->derived);
    pthread_mutex_unlock(&u->lock);
}
