/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* How many connections of one address have not logged in yet, over all workers.
 */
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
