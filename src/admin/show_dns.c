/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW DNS_HOSTS and SHOW DNS_ZONES. Every worker resolves for itself: a name
 * that several know is shown once, with the answer that lives longest. */
#include <stdlib.h>

#include "admin/job.h"
#include "net/resolve.h"
#include "pool/shard_dns.h"

enum { ADDRS_TEXT_MAX = 1024 };

struct known {
    struct known *next;
    int64_t ttl_s;
    char addrs[ADDRS_TEXT_MAX];
    char host[]; /* last */
};

struct gathered {
    struct known *first, **end;
    int64_t now_us; /* of the worker at hand */
};

static void free_gathered(void *data)
{
    struct gathered *g = data;

    while (g->first) {
        struct known *next = g->first->next;

        free(g->first);
        g->first = next;
    }
    free(g);
}

static struct known *get_known(struct gathered *g, const char *host)
{
    struct known *k = g->first;
    size_t n = strlen(host);

    while (k && strcmp(k->host, host) != 0)
        k = k->next;
    if (k)
        return k;
    k = mem_new(sizeof(*k) + n + 1);
    memcpy(k->host, host, n);
    k->ttl_s = -1;
    *g->end = k;
    g->end = &k->next;
    return k;
}

static void print_addrs(const struct resolve_entry *e, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = 0;
    for (size_t i = 0; i < e->n && at + ADDR_TEXT_MAX + 1 < cap; i++) {
        if (i)
            buf[at++] = ',';
        addr_host_text(&e->at[i], buf + at, cap - at);
        at += strlen(buf + at);
    }
}

static void on_entry(void *arg, const struct resolve_entry *e)
{
    struct gathered *g = arg;
    struct known *k = get_known(g, e->host);
    int64_t ttl_s = MAX(e->expires_us - g->now_us, 0) / 1000000;

    if (ttl_s <= k->ttl_s)
        return;
    k->ttl_s = ttl_s;
    print_addrs(e, k->addrs, sizeof(k->addrs));
}

static void each_shard(struct shard *sh, struct job *j)
{
    struct gathered *g = j->data;

    g->now_us = loop_now_us(shard_loop(sh));
    shard_each_dns(sh, on_entry, g);
}

static void put_hosts(struct job *j)
{
    const struct gathered *g = j->data;
    struct table *t = &j->table;

    for (const struct known *k = g->first; k; k = k->next) {
        table_row(t);
        table_text(t, k->host);
        table_int(t, k->ttl_s);
        table_text(t, k->addrs);
        table_row_end(t);
    }
    job_done(j);
}

void show_dns_hosts(struct job *j)
{
    struct gathered *g = mem_new(sizeof(*g));

    g->end = &g->first;
    j->data = g;
    j->free_data = free_gathered;
    job_gather(j, each_shard, put_hosts);
}

/* --- zones: a name that several workers have is one row --------------------
 */

struct known_zone {
    struct known_zone *next;
    uint32_t serial;
    unsigned n_names;
    char name[]; /* last */
};

struct zones {
    struct known_zone *first, **end;
};

static void free_zones(void *data)
{
    struct zones *g = data;

    while (g->first) {
        struct known_zone *next = g->first->next;

        free(g->first);
        g->first = next;
    }
    free(g);
}

static void on_zone(void *arg, const struct resolve_zone *z)
{
    struct zones *g = arg;
    struct known_zone *k = g->first;
    size_t n = strlen(z->name);

    while (k && strcmp(k->name, z->name) != 0)
        k = k->next;
    if (!k) {
        k = mem_new(sizeof(*k) + n + 1);
        memcpy(k->name, z->name, n);
        *g->end = k;
        g->end = &k->next;
    }
    k->serial = MAX(k->serial, z->serial);
    k->n_names = MAX(k->n_names, z->n_names);
}

static void each_shard_zones(struct shard *sh, struct job *j)
{
    shard_each_zone(sh, on_zone, j->data);
}

static void put_zones(struct job *j)
{
    const struct zones *g = j->data;
    struct table *t = &j->table;

    for (const struct known_zone *k = g->first; k; k = k->next) {
        table_row(t);
        table_text(t, k->name);
        table_int(t, k->serial);
        table_int(t, k->n_names);
        table_row_end(t);
    }
    job_done(j);
}

void show_dns_zones(struct job *j)
{
    struct zones *g = mem_new(sizeof(*g));

    g->end = &g->first;
    j->data = g;
    j->free_data = free_zones;
    job_gather(j, each_shard_zones, put_zones);
}
