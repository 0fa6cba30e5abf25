/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/statement.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { FIRST_BUCKETS = 1024 };

static struct {
    pthread_mutex_t lock;
    struct statement **bucket;
    size_t n_buckets; /* a power of two */
    size_t count, bytes;
    uint32_t first_id, last_id;
    uint32_t limit; /* of last_id, after statement_leave(); 0: none */
    uint32_t max_imported;
    atomic_size_t held, max;
} reg = {.lock = PTHREAD_MUTEX_INITIALIZER, .max = SIZE_MAX};

void statement_set_max(size_t bytes)
{
    atomic_store_explicit(&reg.max, bytes, memory_order_relaxed);
}

static bool has_room(size_t bytes, size_t more)
{
    size_t held = atomic_load_explicit(&reg.held, memory_order_relaxed);
    return bytes + held + more <=
           atomic_load_explicit(&reg.max, memory_order_relaxed);
}

bool statement_hold(size_t was, size_t now)
{
    atomic_fetch_add_explicit(&reg.held, now - was, memory_order_relaxed);
    if (now <= was)
        return true;
    pthread_mutex_lock(&reg.lock);
    bool ok = has_room(reg.bytes, 0);
    pthread_mutex_unlock(&reg.lock);
    return ok;
}

static bool has_body(const struct statement *s, uint64_t hash,
                     struct slice body)
{
    return s->hash == hash && s->body_n == body.n &&
           !memcmp(s->body, body.p, body.n);
}

/* Behind the comment that begins at p; comments nest. */
static const char *skip_comment(const char *p, const char *end)
{
    int depth = 0;
    while (end - p > 1) {
        if (p[0] == '/' && p[1] == '*') {
            depth++;
            p += 2;
        } else if (p[0] == '*' && p[1] == '/') {
            p += 2;
            if (--depth == 0)
                return p;
        } else {
            p++;
        }
    }
    return end;
}

/* Behind blanks and comments. */
static struct slice first_word(struct slice text)
{
    const char *p = text.p, *end = text.p + text.n;
    while (p < end) {
        if (strchr(" \t\r\n\f;", *p) && *p) {
            p++;
        } else if (end - p > 1 && p[0] == '-' && p[1] == '-') {
            p = memchr(p, '\n', (size_t)(end - p));
            if (!p)
                return slice_of(end, 0);
        } else if (end - p > 1 && p[0] == '/' && p[1] == '*') {
            p = skip_comment(p, end);
        } else {
            break;
        }
    }
    return slice_of(p, (size_t)(end - p));
}

static bool begins_with(struct slice text, const char *word)
{
    size_t n = strlen(word);
    return text.n >= n && !strncasecmp(text.p, word, n);
}

static void grow(void)
{
    size_t wide = reg.n_buckets ? reg.n_buckets * 2 : FIRST_BUCKETS;
    struct statement **to = mem_new_array(wide, sizeof(void *));
    for (size_t i = 0; i < reg.n_buckets; i++) {
        struct statement *s = reg.bucket[i];
        while (s) {
            struct statement *next = s->next;
            s->next = to[s->hash & (wide - 1)];
            to[s->hash & (wide - 1)] = s;
            s = next;
        }
    }
    free(reg.bucket);
    reg.bucket = to;
    reg.n_buckets = wide;
}

static bool is_local(uint32_t id)
{
    return id >= STATEMENT_ID_LOCAL;
}

static struct statement *find_locked(uint64_t hash, struct slice body)
{
    if (!reg.n_buckets)
        return NULL;
    struct statement *s = reg.bucket[hash & (reg.n_buckets - 1)];
    while (s && !has_body(s, hash, body))
        s = s->next;
    return s;
}

static uint32_t next_id(void)
{
    if (reg.limit && reg.last_id + 1 >= reg.limit && !is_local(reg.last_id))
        reg.last_id = STATEMENT_ID_LOCAL;
    return ++reg.last_id;
}

/* id 0: the next one. */
static struct statement *add_locked(uint64_t hash, struct slice body,
                                    uint32_t id)
{
    if (!has_room(reg.bytes, sizeof(struct statement) + body.n))
        return NULL;
    struct statement *s = malloc(sizeof *s + body.n);
    if (!s)
        return NULL;
    if (reg.count >= reg.n_buckets)
        grow();
    struct slice text = first_word(slice_of(body.p, strnlen(body.p, body.n)));
    *s = (struct statement){
        .id = id ? id : next_id(),
        .is_barrier =
            begins_with(text, "deallocate") || begins_with(text, "discard"),
        .may_begin = begins_with(text, "begin") || begins_with(text, "start"),
        .hash = hash,
        .body_n = body.n,
    };
    s->name_n =
        (uint8_t)snprintf(s->name, sizeof s->name, SERVER_PREFIX "%u", s->id);
    memcpy(s->body, body.p, body.n);
    s->next = reg.bucket[hash & (reg.n_buckets - 1)];
    reg.bucket[hash & (reg.n_buckets - 1)] = s;
    reg.count++;
    reg.bytes += sizeof *s + body.n;
    return s;
}

static struct statement *get(uint64_t hash, struct slice body)
{
    pthread_mutex_lock(&reg.lock);
    struct statement *s = find_locked(hash, body);
    if (!s)
        s = add_locked(hash, body, 0);
    if (s)
        s->refs++;
    pthread_mutex_unlock(&reg.lock);
    return s;
}

struct statement *statement_get(struct slice body)
{
    return get(XXH3_64bits(body.p, body.n), body);
}

struct statement *statement_ref(struct statement *s)
{
    if (s)
        atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

static void remove_locked(struct statement *s)
{
    struct statement **at = &reg.bucket[s->hash & (reg.n_buckets - 1)];
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    reg.count--;
    reg.bytes -= sizeof *s + s->body_n;
}

void statement_unref(struct statement *s)
{
    if (!s)
        return;
    unsigned refs = atomic_load_explicit(&s->refs, memory_order_relaxed);
    while (refs > 1)
        if (atomic_compare_exchange_weak(&s->refs, &refs, refs - 1))
            return;
    /* Perhaps the last one: under the lock, so that nobody finds it. */
    pthread_mutex_lock(&reg.lock);
    bool last = atomic_fetch_sub(&s->refs, 1) == 1;
    if (last)
        remove_locked(s);
    pthread_mutex_unlock(&reg.lock);
    if (last)
        free(s);
}

void statement_totals(size_t *count, size_t *bytes)
{
    pthread_mutex_lock(&reg.lock);
    *count = reg.count;
    *bytes = reg.bytes;
    pthread_mutex_unlock(&reg.lock);
}

struct statement *statement_cache_get(struct statement_cache *c,
                                      struct slice body)
{
    uint64_t hash = XXH3_64bits(body.p, body.n);
    if (body.n > STATEMENT_CACHE_BODY_MAX)
        return get(hash, body);
    struct statement **slot = &c->slot[hash & (STATEMENT_CACHE_SLOTS - 1)];
    if (*slot && has_body(*slot, hash, body))
        return statement_ref(*slot);
    struct statement *s = get(hash, body);
    if (s) {
        statement_unref(*slot);
        *slot = statement_ref(s);
    }
    return s;
}

void statement_cache_fini(struct statement_cache *c)
{
    for (int i = 0; i < STATEMENT_CACHE_SLOTS; i++)
        statement_unref(c->slot[i]);
    memset(c, 0, sizeof *c);
}

/* ------------------------------------------------------------- an upgrade */

enum {
    LEAVE_STEP = 1 << 16
}; /* numbers that a leaving process may still use */

struct imported {
    UT_hash_handle hh;
    uint32_t id;
    struct statement *statement;
};

struct statement_table {
    pthread_mutex_t lock;
    struct imported *all;
};

struct statement_table *statement_table_new(void)
{
    struct statement_table *t = mem_new(sizeof *t);
    must(pthread_mutex_init(&t->lock, NULL) == 0);
    return t;
}

void statement_table_free(struct statement_table *t)
{
    struct imported *k, *next;
    if (!t)
        return;
    HASH_ITER(hh, t->all, k, next)
    {
        HASH_DEL(t->all, k);
        statement_unref(k->statement);
        free(k);
    }
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* Numbers that other processes give: below where ours began, or beyond where
 * they end. What the same body has here already stays. */
static struct statement *adopt(uint32_t id, struct slice body)
{
    uint64_t hash = XXH3_64bits(body.p, body.n);
    pthread_mutex_lock(&reg.lock);
    struct statement *s = find_locked(hash, body);
    bool is_free = !is_local(id) && id &&
                   (id < reg.first_id || (reg.limit && id >= reg.limit));
    if (!s)
        s = add_locked(hash, body, is_free ? id : 0);
    if (s)
        s->refs++;
    if (!is_local(id))
        reg.max_imported = MAX(reg.max_imported, id);
    pthread_mutex_unlock(&reg.lock);
    return s;
}

void statement_import(struct statement_table *t, uint32_t id, struct slice body)
{
    struct imported *k;
    pthread_mutex_lock(&t->lock);
    HASH_FIND(hh, t->all, &id, sizeof id, k);
    struct statement *s = k ? NULL : adopt(id, body);
    if (s) {
        k = mem_new(sizeof *k);
        k->id = id;
        k->statement = s;
        HASH_ADD(hh, t->all, id, sizeof k->id, k);
    }
    pthread_mutex_unlock(&t->lock);
}

struct statement *statement_imported(struct statement_table *t, uint32_t id)
{
    struct imported *k;
    pthread_mutex_lock(&t->lock);
    HASH_FIND(hh, t->all, &id, sizeof id, k);
    struct statement *s = k ? statement_ref(k->statement) : NULL;
    pthread_mutex_unlock(&t->lock);
    return s;
}

uint32_t statement_leave(void)
{
    pthread_mutex_lock(&reg.lock);
    if (!reg.limit && reg.last_id < STATEMENT_ID_LOCAL - 2 * LEAVE_STEP)
        reg.limit = reg.last_id + LEAVE_STEP;
    uint32_t limit = reg.limit;
    pthread_mutex_unlock(&reg.lock);
    return limit;
}

void statement_come_back(void)
{
    pthread_mutex_lock(&reg.lock);
    if (reg.limit && !is_local(reg.last_id))
        reg.last_id = MAX(reg.limit, reg.max_imported) + LEAVE_STEP;
    if (reg.last_id < STATEMENT_ID_LOCAL - 2 * LEAVE_STEP)
        reg.limit = 0;
    pthread_mutex_unlock(&reg.lock);
}

void statement_count_from(uint32_t id)
{
    pthread_mutex_lock(&reg.lock);
    reg.first_id = reg.last_id = id;
    pthread_mutex_unlock(&reg.lock);
}
