/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Asynchronous DNS of one worker, by c-ares, with a cache. /etc/hosts counts.
 * Questions for one name share one look-up. Belongs to its loop's thread. */
#ifndef NET_RESOLVE_H
#define NET_RESOLVE_H

#include "loop/loop.h"
#include "net/addr.h"

struct resolver;
struct resolve; /* one question */

/* The name has other addresses now, at no longer among them. */
typedef void (*resolve_gone_cb)(void *arg, const char *host,
                                const struct addr *at);

struct resolver_options {
    int64_t max_ttl_us;      /* dns_max_ttl: longest time an answer is kept */
    int64_t nxdomain_ttl_us; /* dns_nxdomain_ttl: same for failures */
    int64_t zone_check_us;   /* dns_zone_check_period; 0: never */
    resolve_gone_cb on_gone; /* may be NULL; not from inside our calls */
    void *arg;
    const char *resolv_conf; /* NULL or "": the system's */
    /* "127.0.0.1:5300" in place of what resolv_conf says; for tests. */
    const char *servers;
};

NODISCARD int resolver_new(struct resolver **out, struct loop *loop,
                           const struct resolver_options *o, struct err *e);

/* Outstanding questions are dropped without an answer; their handles die. Not
 * from inside a resolve_cb. */
void resolver_free(struct resolver *r);

/* After a reload. Also forgets all answers when resolv_conf changed. */
NODISCARD int resolver_reconfigure(struct resolver *r,
                                   const struct resolver_options *o,
                                   struct err *e);

/* Addresses (IPv4 and IPv6, port 0) in the resolver's order, valid until the
 * return; or n == 0 and the cause. The handle is dead then. */
typedef void (*resolve_cb)(void *arg, const struct addr *at, size_t n,
                           const struct err *e);

/* host is a name; numbers are the caller's (addr_parse_ip()). cb comes from the
 * loop, also when the answer is in the cache. */
struct resolve *resolve_start(struct resolver *r, const char *host,
                              resolve_cb cb, void *arg);

/* No callback follows. */
void resolve_cancel(struct resolve *q);

/* One name of the cache, for SHOW DNS_HOSTS. n is 0 for a failure. */
struct resolve_entry {
    const char *host;
    int64_t expires_us; /* of loop_now_us()'s clock */
    const struct addr *at;
    size_t n;
};
typedef void (*resolve_entry_cb)(void *arg, const struct resolve_entry *e);
void resolver_for_each(struct resolver *r, resolve_entry_cb cb, void *arg);

/* What follows the first dot of a name. When the serial number of its SOA
 * record changes, all its names are looked up again. */
struct resolve_zone {
    const char *name;
    uint32_t serial; /* 0: not known */
    unsigned n_names;
};
typedef void (*resolve_zone_cb)(void *arg, const struct resolve_zone *z);
void resolver_for_each_zone(struct resolver *r, resolve_zone_cb cb, void *arg);
size_t resolver_n_zones(const struct resolver *r);

/* Names in the cache, questions waiting. */
size_t resolver_n_cached(const struct resolver *r);
size_t resolver_n_waiting(const struct resolver *r);

/* Forgets all answers: RECONNECT, network change. */
void resolver_flush(struct resolver *r);

#endif
