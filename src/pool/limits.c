/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* How many connections of one address have not logged in yet, and how many
 * cancel requests with unknown keys came from it lately, over all workers. */
#include <stdlib.h>

#include "pool/impl.h"

enum { HOST_KEY_SIZE = 16 };

struct host_count {
    UT_hash_handle hh;
    uint8_t key[HOST_KEY_SIZE];
    int n;
};

static bool make_key(const struct addr *peer, uint8_t key[HOST_KEY_SIZE])
{
    memset(key, 0, HOST_KEY_SIZE);
    if (peer->sa.sa_family == AF_INET)
        memcpy(key, &peer->in.sin_addr, sizeof peer->in.sin_addr);
    else if (peer->sa.sa_family == AF_INET6)
        memcpy(key, &peer->in6.sin6_addr, HOST_KEY_SIZE);
    else
        return false;
    return true;
}

bool limits_host_enter(struct shared *s, const struct addr *peer, int max,
                       struct host_count **out)
{
    uint8_t key[HOST_KEY_SIZE];
    struct host_count *h;
    *out = NULL;
    if (max <= 0 || !make_key(peer, key))
        return true;
    pthread_mutex_lock(&s->hosts_lock);
    HASH_FIND(hh, s->hosts, key, sizeof key, h);
    if (!h) {
        h = mem_new(sizeof *h);
        memcpy(h->key, key, sizeof key);
        HASH_ADD(hh, s->hosts, key, sizeof h->key, h);
    }
    bool ok = h->n < max;
    if (ok) {
        h->n++;
        *out = h;
    }
    pthread_mutex_unlock(&s->hosts_lock);
    return ok;
}

void limits_host_leave(struct shared *s, struct host_count *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&s->hosts_lock);
    if (--h->n == 0) {
        HASH_DEL(s->hosts, h);
        free(h);
    }
    pthread_mutex_unlock(&s->hosts_lock);
}

/* ---------------------------------------------------------------- cancels */

/* An unknown key costs a message for each worker, and guesses at keys. What one
 * address may have of them is counted in windows of time, by tenths. */
enum {
    MISS_WINDOW_US = 10 * 1000 * 1000,
    MISSES_KEPT = 4096, /* addresses; beyond that, all others are one */
    WHOLE = 10,
};

struct miss_count {
    UT_hash_handle hh;
    uint8_t key[HOST_KEY_SIZE];
    int tenths;
    bool is_logged; /* that it is over the limit */
};

/* Whoever has an IPv6 address has the other 2^64 beside it. */
static bool make_miss_key(const struct addr *peer, uint8_t key[HOST_KEY_SIZE])
{
    if (!make_key(peer, key))
        return false;
    if (peer->sa.sa_family == AF_INET6)
        memset(key + 8, 0, HOST_KEY_SIZE - 8);
    return true;
}

void limits_forget_misses(struct shared *s)
{
    struct miss_count *m, *next;
    HASH_ITER(hh, s->misses, m, next)
    {
        HASH_DEL(s->misses, m);
        free(m);
    }
    s->miss_tenths = 0;
}

static void begin_window_locked(struct shared *s, int64_t now_us)
{
    if (now_us - s->miss_window_us < MISS_WINDOW_US)
        return;
    limits_forget_misses(s);
    s->miss_window_us = now_us;
}

static struct miss_count *find_miss_locked(struct shared *s, const uint8_t *key)
{
    static const uint8_t rest[HOST_KEY_SIZE];
    struct miss_count *m;
    HASH_FIND(hh, s->misses, key, HOST_KEY_SIZE, m);
    if (!m && HASH_COUNT(s->misses) >= MISSES_KEPT)
        HASH_FIND(hh, s->misses, rest, HOST_KEY_SIZE, m);
    return m;
}

void limits_cancel_missed(struct shared *s, const struct addr *peer,
                          bool by_peers, int64_t now_us)
{
    uint8_t key[HOST_KEY_SIZE];
    if (!make_miss_key(peer, key))
        return;
    pthread_mutex_lock(&s->hosts_lock);
    begin_window_locked(s, now_us);
    struct miss_count *m = find_miss_locked(s, key);
    if (!m) {
        m = mem_new(sizeof *m);
        if (HASH_COUNT(s->misses) < MISSES_KEPT)
            memcpy(m->key, key, sizeof key);
        HASH_ADD(hh, s->misses, key, sizeof m->key, m);
    }
    int tenths = by_peers ? 1 : WHOLE;
    m->tenths += tenths;
    s->miss_tenths += tenths;
    pthread_mutex_unlock(&s->hosts_lock);
}

enum cancel_verdict limits_cancel(struct shared *s, const struct addr *peer,
                                  const struct conf *conf, int64_t now_us)
{
    uint8_t key[HOST_KEY_SIZE];
    enum cancel_verdict v = CANCEL_ALLOWED;
    int mine = conf->max_unknown_cancels_per_address;
    int all = conf->max_unknown_cancels;
    if (!make_miss_key(peer, key))
        return v;
    pthread_mutex_lock(&s->hosts_lock);
    begin_window_locked(s, now_us);
    struct miss_count *m = find_miss_locked(s, key);
    if (m && ((mine > 0 && m->tenths / WHOLE >= mine) ||
              (all > 0 && s->miss_tenths / WHOLE >= all))) {
        v = m->is_logged ? CANCEL_REFUSED : CANCEL_REFUSED_FIRST;
        m->is_logged = true;
    }
    pthread_mutex_unlock(&s->hosts_lock);
    return v;
}
