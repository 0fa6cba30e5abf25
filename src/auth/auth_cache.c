/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/auth_cache.h"

#include <stdlib.h>

#include "base/list.h"
#include "base/rand.h"
#include "pg/pg_write.h"

struct entry {
    struct list node; /* in entries, newest first */
    uint8_t id[CRYPTO_SHA256_SIZE];
    uint8_t salted[AUTH_KEY_SIZE];
};

struct auth_cache {
    struct list entries;
    size_t n, max;
    uint8_t key[CRYPTO_SHA256_SIZE]; /* makes ids useless outside */
};

struct auth_cache *auth_cache_new(size_t max)
{
    struct auth_cache *c = mem_new(sizeof *c);
    list_init(&c->entries);
    c->max = max;
    rand_bytes(c->key, sizeof c->key);
    return c;
}

static void drop(struct auth_cache *c, struct entry *x)
{
    list_remove(&x->node);
    c->n--;
    mem_wipe(x, sizeof *x);
    free(x);
}

void auth_cache_free(struct auth_cache *c)
{
    if (!c)
        return;
    list_for_safe(it, &c->entries) drop(c, list_entry(it, struct entry, node));
    mem_wipe(c, sizeof *c);
    free(c);
}

static bool make_id(const struct auth_cache *c,
                    const struct auth_cache_input *in,
                    uint8_t id[CRYPTO_SHA256_SIZE])
{
    struct pgbuf b;
    pgbuf_init(&b, in->password.n + in->salt.n + 64);
    pgbuf_put_u32(&b, (uint32_t)in->iterations);
    pgbuf_put_u32(&b, (uint32_t)in->salt.n);
    pgbuf_put_bytes(&b, in->salt.p, in->salt.n);
    pgbuf_put_bytes(&b, in->password.p, in->password.n);
    bool ok = !b.failed && crypto_hmac_sha256(slice_of(c->key, sizeof c->key),
                                              pgbuf_slice(&b), id) == 0;
    pgbuf_wipe(&b);
    pgbuf_fini(&b);
    return ok;
}

static struct entry *find(struct auth_cache *c,
                          const uint8_t id[CRYPTO_SHA256_SIZE])
{
    list_for(it, &c->entries)
    {
        struct entry *x = list_entry(it, struct entry, node);
        if (memcmp(x->id, id, sizeof x->id) == 0)
            return x;
    }
    return NULL;
}

bool auth_cache_find(struct auth_cache *c, const struct auth_cache_input *in,
                     uint8_t salted[AUTH_KEY_SIZE])
{
    uint8_t id[CRYPTO_SHA256_SIZE];
    if (!c || !make_id(c, in, id))
        return false;
    struct entry *x = find(c, id);
    if (!x)
        return false;
    list_remove(&x->node);
    list_push_front(&c->entries, &x->node);
    memcpy(salted, x->salted, AUTH_KEY_SIZE);
    return true;
}

void auth_cache_put(struct auth_cache *c, const struct auth_cache_input *in,
                    const uint8_t salted[AUTH_KEY_SIZE])
{
    uint8_t id[CRYPTO_SHA256_SIZE];
    if (!c || !c->max || !make_id(c, in, id) || find(c, id))
        return;
    while (c->n >= c->max)
        drop(c, list_entry(list_last(&c->entries), struct entry, node));
    struct entry *x = mem_new(sizeof *x);
    memcpy(x->id, id, sizeof x->id);
    memcpy(x->salted, salted, AUTH_KEY_SIZE);
    list_push_front(&c->entries, &x->node);
    c->n++;
}
