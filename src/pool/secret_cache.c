/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/secret_cache.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"

struct entry {
    UT_hash_handle hh;
    int64_t asked_us;
    struct auth_secret secret;
    char *key; /* database, NUL, user */
};

struct secret_cache {
    pthread_mutex_t lock;
    struct entry *entries; /* uthash keeps the order of insertion */
    size_t max;
};

struct secret_cache *secret_cache_new(size_t max)
{
    struct secret_cache *c = mem_new(sizeof *c);
    c->max = max;
    must(pthread_mutex_init(&c->lock, NULL) == 0);
    return c;
}

static void remove_locked(struct secret_cache *c, struct entry *n)
{
    HASH_DEL(c->entries, n);
    auth_secret_fini(&n->secret);
    free(n->key);
    free(n);
}

static void clear_locked(struct secret_cache *c)
{
    while (c->entries)
        remove_locked(c, c->entries);
}

void secret_cache_clear(struct secret_cache *c)
{
    pthread_mutex_lock(&c->lock);
    clear_locked(c);
    pthread_mutex_unlock(&c->lock);
}

void secret_cache_free(struct secret_cache *c)
{
    clear_locked(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Both in one, from malloc. Neither has a NUL. */
static char *make_key(struct slice database, struct slice user, size_t *n)
{
    *n = database.n + 1 + user.n;
    char *key = mem_new(*n);
    memcpy(key, database.p, database.n);
    memcpy(key + database.n + 1, user.p, user.n);
    return key;
}

static struct entry *find_locked(struct secret_cache *c, const char *key,
                                 size_t n)
{
    struct entry *found;
    HASH_FIND(hh, c->entries, key, n, found);
    return found;
}

bool secret_cache_find(struct secret_cache *c, struct slice database,
                       struct slice user, int64_t not_before_us,
                       struct auth_secret *out)
{
    size_t size;
    char *key = make_key(database, user, &size);
    pthread_mutex_lock(&c->lock);
    struct entry *n = find_locked(c, key, size);
    bool hit = n && n->asked_us >= not_before_us;
    if (hit)
        auth_secret_copy(&n->secret, out);
    else if (n)
        remove_locked(c, n);
    pthread_mutex_unlock(&c->lock);
    free(key);
    return hit;
}

void secret_cache_put(struct secret_cache *c, struct slice database,
                      struct slice user, int64_t now_us,
                      const struct auth_secret *secret)
{
    size_t size;
    struct entry *n = mem_new(sizeof *n);
    n->key = make_key(database, user, &size);
    n->asked_us = now_us;
    auth_secret_copy(secret, &n->secret);
    pthread_mutex_lock(&c->lock);
    struct entry *old = find_locked(c, n->key, size);
    if (old)
        remove_locked(c, old);
    else if (HASH_COUNT(c->entries) >= c->max)
        remove_locked(c, c->entries);
    HASH_ADD_KEYPTR(hh, c->entries, n->key, size, n);
    pthread_mutex_unlock(&c->lock);
}

void secret_cache_drop(struct secret_cache *c, struct slice database,
                       struct slice user)
{
    size_t size;
    char *key = make_key(database, user, &size);
    pthread_mutex_lock(&c->lock);
    struct entry *n = find_locked(c, key, size);
    if (n)
        remove_locked(c, n);
    pthread_mutex_unlock(&c->lock);
    free(key);
}
