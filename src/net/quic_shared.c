/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <pthread.h>
#include <stdlib.h>

#include "base/rand.h"
#include "net/quic_impl.h"

enum { SECRET_BYTES = 32 };

struct host_entry {
    UT_hash_handle hh;
    uint8_t ip[16]; /* IPv4 as ::ffff:a.b.c.d */
    int n;
};

struct quic_shared {
    uint8_t secret[SECRET_BYTES];
    struct quic_ticket_key ticket_key;
    pthread_mutex_t lock; /* of hosts */
    struct host_entry *hosts;
};

int quic_shared_new(struct quic_shared **out, struct err *e)
{
    struct quic_shared *s = mem_new(sizeof *s);
    int rc = quic_tls_make_ticket_key(&s->ticket_key, e);
    if (rc) {
        free(s);
        return rc;
    }
    rand_bytes(s->secret, sizeof s->secret);
    must(pthread_mutex_init(&s->lock, NULL) == 0);
    *out = s;
    return 0;
}

void quic_shared_free(struct quic_shared *s)
{
    struct host_entry *h, *next;
    if (!s)
        return;
    HASH_ITER(hh, s->hosts, h, next)
    {
        HASH_DEL(s->hosts, h);
        free(h);
    }
    pthread_mutex_destroy(&s->lock);
    mem_wipe(s, sizeof *s);
    free(s);
}

const struct quic_ticket_key *
quic_shared_ticket_key(const struct quic_shared *s)
{
    return &s->ticket_key;
}

struct slice quic_shared_secret(const struct quic_shared *s)
{
    return slice_of(s->secret, sizeof s->secret);
}

static void ip_of(const struct addr *a, uint8_t ip[16])
{
    memset(ip, 0, 16);
    if (a->sa.sa_family == AF_INET6) {
        memcpy(ip, &a->in6.sin6_addr, 16);
    } else {
        ip[10] = ip[11] = 0xff;
        memcpy(ip + 12, &a->in.sin_addr, 4);
    }
}

bool quic_shared_enter(struct quic_shared *s, const struct addr *peer, int max)
{
    uint8_t ip[16];
    struct host_entry *h;
    ip_of(peer, ip);
    pthread_mutex_lock(&s->lock);
    HASH_FIND(hh, s->hosts, ip, sizeof ip, h);
    bool ok = max <= 0 || !h || h->n < max;
    if (ok && !h) {
        h = mem_new(sizeof *h);
        memcpy(h->ip, ip, sizeof ip);
        HASH_ADD(hh, s->hosts, ip, sizeof h->ip, h);
    }
    if (ok)
        h->n++;
    pthread_mutex_unlock(&s->lock);
    return ok;
}

void quic_shared_leave(struct quic_shared *s, const struct addr *peer)
{
    uint8_t ip[16];
    struct host_entry *h;
    ip_of(peer, ip);
    pthread_mutex_lock(&s->lock);
    HASH_FIND(hh, s->hosts, ip, sizeof ip, h);
    must(h);
    if (--h->n == 0) {
        HASH_DEL(s->hosts, h);
        free(h);
    }
    pthread_mutex_unlock(&s->lock);
}
