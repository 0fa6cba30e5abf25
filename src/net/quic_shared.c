/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <errno.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rand.h"
#include "net/quic_impl.h"

enum { SECRET_BYTES = 32, KEY_FILE_MAX = 16384 };

struct host_entry {
    UT_hash_handle hh;
    uint8_t ip[16]; /* IPv4 as ::ffff:a.b.c.d */
    int n;
};

struct quic_shared {
    uint8_t secret[SECRET_BYTES];
    uint32_t process;
    struct quic_ticket_key ticket_key;
    pthread_mutex_t lock; /* of hosts */
    struct host_entry *hosts;
};

/* SHA-512 of a word and the key, for one use each. */
static void derive(const char *use, const uint8_t *key, size_t n, uint8_t *out,
                   size_t out_n)
{
    uint8_t hash[64];
    unsigned hash_n = sizeof hash;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    must(md && EVP_DigestInit_ex(md, EVP_sha512(), NULL) &&
         EVP_DigestUpdate(md, use, strlen(use)) &&
         EVP_DigestUpdate(md, key, n) && EVP_DigestFinal_ex(md, hash, &hash_n));
    EVP_MD_CTX_free(md);
    must(out_n <= sizeof hash);
    memcpy(out, hash, out_n);
    mem_wipe(hash, sizeof hash);
}

static int read_key(const char *file, uint8_t *p, size_t *n, struct err *e)
{
    FILE *f = fopen(file, "re");
    if (!f)
        return err_set(e, ERR_CONF, "%.200s: %s", file, strerror(errno));
    *n = fread(p, 1, *n, f);
    fclose(f);
    return *n ? 0 : err_set(e, ERR_CONF, "%.200s is empty", file);
}

int quic_shared_new(struct quic_shared **out, const char *key_file,
                    struct err *e)
{
    struct quic_shared *s = mem_new(sizeof *s);
    uint8_t key[KEY_FILE_MAX];
    size_t n = sizeof key;
    bool has_key = key_file && *key_file;
    int rc = quic_tls_make_ticket_key(&s->ticket_key, e);
    rand_bytes(s->secret, sizeof s->secret);
    rand_bytes(&s->process, sizeof s->process);
    if (rc == 0 && has_key)
        rc = read_key(key_file, key, &n, e);
    if (rc) {
        free(s);
        return rc;
    }
    if (has_key) {
        derive("pgbraid quic secret", key, n, s->secret, sizeof s->secret);
        derive("pgbraid quic tickets", key, n, s->ticket_key.p,
               s->ticket_key.n);
        mem_wipe(key, n);
    }
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

uint32_t quic_shared_process(const struct quic_shared *s)
{
    return s->process;
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
