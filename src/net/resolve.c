/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A question waits at the entry of its name: NEW (a task starts the look-up),
 * ASKED (c-ares has it), then KNOWN until it expires. Answered questions go to
 * the ready list, which the task empties: look-ups and callbacks happen in the
 * task only, so no answer changes while a callback looks at it. */
#include "net/resolve.h"

#define CARES_NO_DEPRECATED /* all versions have what is used here */
#include <ares.h>
#include <ares_nameser.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/log.h"

enum entry_state {
    ENTRY_NEW,
    ENTRY_ASKED,
    ENTRY_KNOWN,
};

/* From c-ares 1.31 on it keeps answers of its own, unless told to keep them for
 * no time at all; those here are the ones that can be flushed. */
#ifndef ARES_OPT_QUERY_CACHE
#define ARES_OPT_QUERY_CACHE 0
#endif

enum {
    ADDRESSES_MAX = 64,
    HOST_MAX = 255,
    TIMEOUT_MS = 2000, /* of one try; doubles with each */
    TRIES = 3,
    TTL_MIN_US = 1000000, /* of answers: /etc/hosts says 0 */
};

struct zone {
    struct list node; /* in resolver.zones */
    struct resolver *r;
    uint32_t serial;
    unsigned n_names; /* entries; without one it goes, once it is not asked */
    bool has_serial, is_asked;
    char name[];
};

struct entry {
    struct list node; /* in resolver.entries */
    struct resolver *r;
    struct zone *zone; /* NULL: a name without a dot */
    enum entry_state state;
    struct list waiting;  /* struct resolve.node */
    unsigned n_questions; /* waiting, ready or being told */
    int64_t expires_us;
    struct addr *at;
    size_t n;
    struct err err; /* when n is 0 */
    char host[];
};

struct resolve {
    struct list node; /* in entry.waiting or resolver.ready */
    struct entry *entry;
    resolve_cb cb;
    void *arg;
};

struct dns_socket {
    struct list node;
    struct io io;
    struct resolver *r;
};

struct resolver {
    struct loop *loop;
    ares_channel channel;
    int64_t max_ttl_us, nxdomain_ttl_us, zone_check_us;
    resolve_gone_cb on_gone;
    void *gone_arg;
    char *resolv_conf, *servers;
    struct list entries, ready, sockets, zones;
    struct task task;
    struct timer timer, zone_timer;
    size_t n_waiting;
    bool is_closing;
};

/* --- the library on the loop --------------------------------------------- */

static void set_timer(struct resolver *r)
{
    struct timeval tv;
    if (!ares_timeout(r->channel, NULL, &tv)) {
        timer_clear(r->loop, &r->timer);
        return;
    }
    int64_t left_us = (int64_t)tv.tv_sec * 1000000 + tv.tv_usec;
    timer_set(r->loop, &r->timer, loop_now_us(r->loop) + left_us + 1000);
}

static void on_timer(struct timer *t)
{
    struct resolver *r = container_of(t, struct resolver, timer);
    ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    set_timer(r);
}

/* c-ares does not promise to read until there is no more, so the descriptor is
 * armed anew: what is left is reported again. */
static void on_socket(struct io *io, uint32_t events)
{
    struct dns_socket *s = container_of(io, struct dns_socket, io);
    struct resolver *r = s->r;
    bool reads = events & (EPOLLIN | EPOLLERR | EPOLLHUP);
    bool writes = events & EPOLLOUT;
    ares_process_fd(r->channel, reads ? io->fd : ARES_SOCKET_BAD,
                    writes ? io->fd : ARES_SOCKET_BAD);
    if (list_is_linked(&s->node)) {
        uint32_t want = io->events;
        loop_mod(r->loop, io, 0);
        loop_mod(r->loop, io, want);
    }
    set_timer(r);
}

static struct dns_socket *find_socket(struct resolver *r, int fd)
{
    list_for(n, &r->sockets)
    {
        struct dns_socket *s = list_entry(n, struct dns_socket, node);
        if (s->io.fd == fd)
            return s;
    }
    return NULL;
}

static void drop_socket(struct dns_socket *s)
{
    list_remove(&s->node);
    loop_del(s->r->loop, &s->io);
    loop_free_later(s->r->loop, s);
}

/* c-ares made a socket, wants something else of it, or closes it next. */
static void on_socket_state(void *arg, ares_socket_t fd, int reads, int writes)
{
    struct resolver *r = arg;
    struct dns_socket *s = find_socket(r, fd);
    uint32_t events = (reads ? EPOLLIN : 0) | (writes ? EPOLLOUT : 0);
    if (s && !events) {
        drop_socket(s);
    } else if (s) {
        loop_mod(r->loop, &s->io, events);
    } else if (events) {
        s = mem_new(sizeof *s);
        s->r = r;
        s->io.fd = fd;
        s->io.on_event = on_socket;
        list_push_back(&r->sockets, &s->node);
        /* Unwatched, the look-up ends by its time-out. */
        if (loop_add(r->loop, &s->io, events))
            drop_socket(s);
    }
}

/* --- looking up ---------------------------------------------------------- */

static bool has_addr(const struct entry *en, const struct addr *a)
{
    for (size_t i = 0; i < en->n; i++)
        if (addr_eq(&en->at[i], a))
            return true;
    return false;
}

static void add_addr(struct entry *en, const struct ares_addrinfo_node *node)
{
    struct addr a = {.len = (socklen_t)node->ai_addrlen};
    if (en->n == ADDRESSES_MAX || a.len > sizeof a.un ||
        (node->ai_family != AF_INET && node->ai_family != AF_INET6))
        return;
    memcpy(&a.sa, node->ai_addr, a.len);
    if (!has_addr(en, &a))
        en->at[en->n++] = a;
}

/* Takes the addresses over; returns the shortest TTL. */
static int64_t take_answer(struct entry *en, const struct ares_addrinfo *ai)
{
    int64_t ttl_us = INT64_MAX;
    size_t n = 0;
    for (struct ares_addrinfo_node *x = ai->nodes; x; x = x->ai_next)
        n++;
    en->at = mem_new_array(MIN(n + 1, (size_t)ADDRESSES_MAX), sizeof *en->at);
    for (struct ares_addrinfo_node *x = ai->nodes; x; x = x->ai_next) {
        add_addr(en, x);
        ttl_us = MIN(ttl_us, (int64_t)x->ai_ttl * 1000000);
    }
    for (struct ares_addrinfo_cname *x = ai->cnames; x; x = x->next)
        ttl_us = MIN(ttl_us, (int64_t)x->ttl * 1000000);
    return MAX(ttl_us, (int64_t)TTL_MIN_US);
}

static void tell_gone(struct entry *en, const struct addr *was, size_t n)
{
    struct resolver *r = en->r;
    if (en->n == 0 || !r->on_gone)
        return;
    for (size_t i = 0; i < n; i++)
        if (!has_addr(en, &was[i]))
            r->on_gone(r->gone_arg, en->host, &was[i]);
}

static void make_ready(struct entry *en)
{
    struct resolver *r = en->r;
    while (!list_empty(&en->waiting)) {
        struct list *n = list_first(&en->waiting);
        list_remove(n);
        list_push_back(&r->ready, n);
    }
    loop_defer(r->loop, &r->task);
}

static void on_answer(void *arg, int status, int timeouts,
                      struct ares_addrinfo *ai)
{
    struct entry *en = arg;
    struct resolver *r = en->r;
    int64_t ttl_us = r->nxdomain_ttl_us;
    if (r->is_closing)
        return;
    if (status == ARES_EDESTRUCTION) { /* by resolver_reconfigure() */
        en->state = ENTRY_NEW;
        loop_defer(r->loop, &r->task);
        return;
    }
    struct addr *was = en->at;
    size_t n_was = en->n;
    en->at = NULL;
    en->n = 0;
    en->err = (struct err){0};
    if (status == ARES_SUCCESS) {
        ttl_us = take_answer(en, ai);
        ttl_us = MIN(ttl_us, r->max_ttl_us);
    }
    if (ai)
        ares_freeaddrinfo(ai);
    if (en->n == 0)
        (void)err_set(&en->err, ERR_CONNECT, "cannot resolve host \"%s\": %s",
                      en->host,
                      status == ARES_SUCCESS ? "it has no address"
                                             : ares_strerror(status));
    en->state = ENTRY_KNOWN;
    en->expires_us = loop_now_us(r->loop) + ttl_us;
    tell_gone(en, was, n_was);
    free(was);
    make_ready(en);
}

static void ask(struct entry *en)
{
    const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC,
                                              .ai_socktype = SOCK_STREAM};
    en->state = ENTRY_ASKED;
    ares_getaddrinfo(en->r->channel, en->host, NULL, &hints, on_answer, en);
}

static void tell(struct resolver *r, struct resolve *q)
{
    struct entry *en = q->entry;
    r->n_waiting--;
    q->cb(q->arg, en->at, en->n, en->n ? NULL : &en->err);
    free(q);
    en->n_questions--;
}

static void on_task(struct task *t)
{
    struct resolver *r = container_of(t, struct resolver, task);
    struct list now;
    list_for(n, &r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (en->state == ENTRY_NEW)
            ask(en);
    }
    set_timer(r);
    /* Those that a callback asks are told in the next turn. */
    list_init(&now);
    while (!list_empty(&r->ready)) {
        struct list *n = list_first(&r->ready);
        list_remove(n);
        list_push_back(&now, n);
    }
    while (!list_empty(&now)) {
        struct list *n = list_first(&now);
        list_remove(n);
        tell(r, list_entry(n, struct resolve, node));
    }
}

/* --- zones --------------------------------------------------------------- */

static struct zone *zone_of(struct resolver *r, const char *host)
{
    const char *name = strchr(host, '.');
    if (!name || !*++name)
        return NULL;
    list_for(n, &r->zones)
    {
        struct zone *z = list_entry(n, struct zone, node);
        if (slice_is_nocase(slice_str(z->name), name))
            return z;
    }
    size_t n = strlen(name);
    struct zone *z = mem_new(sizeof *z + n + 1);
    memcpy(z->name, name, n);
    z->r = r;
    list_push_back(&r->zones, &z->node);
    return z;
}

static void free_zone_if_unused(struct zone *z)
{
    if (z->n_names || z->is_asked)
        return;
    list_remove(&z->node);
    free(z);
}

/* Looks up again what is known; those that wait get the new answer. */
static void renew_names(struct zone *z)
{
    list_for(n, &z->r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (en->zone == z && en->state == ENTRY_KNOWN)
            en->state = ENTRY_NEW;
    }
    loop_defer(z->r->loop, &z->r->task);
}

static void take_serial(struct zone *z, uint32_t serial)
{
    if (z->has_serial && z->serial != serial) {
        log_info("zone '%s' serial changed: old=%u new=%u", z->name, z->serial,
                 serial);
        renew_names(z);
    }
    z->serial = serial;
    z->has_serial = true;
}

static void on_soa(void *arg, int status, int timeouts, unsigned char *buf,
                   int n)
{
    struct zone *z = arg;
    struct ares_soa_reply *soa = NULL;
    if (z->r->is_closing)
        return;
    z->is_asked = false;
    if (status == ARES_SUCCESS)
        status = ares_parse_soa_reply(buf, n, &soa);
    if (status == ARES_SUCCESS)
        take_serial(z, soa->serial);
    else
        log_debug("zone '%s' has no serial: %s", z->name,
                  ares_strerror(status));
    if (soa)
        ares_free_data(soa);
    free_zone_if_unused(z);
}

static void set_zone_timer(struct resolver *r)
{
    if (r->zone_check_us > 0)
        timer_set(r->loop, &r->zone_timer,
                  loop_now_us(r->loop) + r->zone_check_us);
    else
        timer_clear(r->loop, &r->zone_timer);
}

static void on_zone_timer(struct timer *t)
{
    struct resolver *r = container_of(t, struct resolver, zone_timer);
    list_for_safe(n, &r->zones)
    {
        struct zone *z = list_entry(n, struct zone, node);
        if (z->is_asked)
            continue;
        z->is_asked = true;
        ares_query(r->channel, z->name, ns_c_in, ns_t_soa, on_soa, z);
    }
    set_timer(r);
    set_zone_timer(r);
}

void resolver_for_each_zone(struct resolver *r, resolve_zone_cb cb, void *arg)
{
    list_for(n, &r->zones)
    {
        const struct zone *z = list_entry(n, struct zone, node);
        struct resolve_zone row = {z->name, z->serial, z->n_names};
        cb(arg, &row);
    }
}

size_t resolver_n_zones(const struct resolver *r)
{
    size_t count = 0;
    list_for(n, &r->zones) count++;
    return count;
}

/* --- entries ------------------------------------------------------------- */

static void free_entry(struct entry *en)
{
    if (en->zone) {
        en->zone->n_names--;
        free_zone_if_unused(en->zone);
    }
    list_remove(&en->node);
    free(en->at);
    free(en);
}

/* Forgets what expired and nobody asks for. The names of a zone that is watched
 * stay, so that a change of theirs is seen. */
static void sweep(struct resolver *r)
{
    int64_t now = loop_now_us(r->loop);
    bool watches = r->zone_check_us > 0;
    list_for_safe(n, &r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (en->state == ENTRY_KNOWN && !en->n_questions &&
            en->expires_us <= now && !(watches && en->zone))
            free_entry(en);
    }
}

/* A pooler knows as many names as its configuration has hosts: few. */
static struct entry *find_entry(struct resolver *r, const char *host)
{
    list_for(n, &r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (slice_is_nocase(slice_str(en->host), host))
            return en;
    }
    return NULL;
}

static struct entry *new_entry(struct resolver *r, const char *host)
{
    sweep(r);
    size_t n = MIN(strlen(host), (size_t)HOST_MAX + 1);
    struct entry *en = mem_new(sizeof *en + n + 1);
    memcpy(en->host, host, n);
    en->r = r;
    en->zone = zone_of(r, en->host);
    if (en->zone)
        en->zone->n_names++;
    list_init(&en->waiting);
    list_push_front(&r->entries, &en->node);
    return en;
}

struct resolve *resolve_start(struct resolver *r, const char *host,
                              resolve_cb cb, void *arg)
{
    struct entry *en = find_entry(r, host);
    if (!en)
        en = new_entry(r, host);
    struct resolve *q = mem_new(sizeof *q);
    q->entry = en;
    q->cb = cb;
    q->arg = arg;
    if (en->state == ENTRY_KNOWN && en->expires_us <= loop_now_us(r->loop))
        en->state = ENTRY_NEW;
    list_push_back(en->state == ENTRY_KNOWN ? &r->ready : &en->waiting,
                   &q->node);
    en->n_questions++;
    r->n_waiting++;
    loop_defer(r->loop, &r->task);
    return q;
}

void resolve_cancel(struct resolve *q)
{
    struct entry *en = q->entry;
    list_remove(&q->node);
    en->n_questions--;
    en->r->n_waiting--;
    free(q);
}

void resolver_for_each(struct resolver *r, resolve_entry_cb cb, void *arg)
{
    list_for(n, &r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (en->state != ENTRY_KNOWN)
            continue;
        struct resolve_entry row = {en->host, en->expires_us, en->at, en->n};
        cb(arg, &row);
    }
}

size_t resolver_n_cached(const struct resolver *r)
{
    size_t count = 0;
    list_for(n, &r->entries)
    {
        count += list_entry(n, struct entry, node)->state == ENTRY_KNOWN;
    }
    return count;
}

size_t resolver_n_waiting(const struct resolver *r)
{
    return r->n_waiting;
}

void resolver_flush(struct resolver *r)
{
    list_for(n, &r->entries)
    {
        list_entry(n, struct entry, node)->expires_us = INT64_MIN;
    }
    sweep(r);
}

/* --- life ---------------------------------------------------------------- */

static pthread_once_t library_once = PTHREAD_ONCE_INIT;

static void init_library(void)
{
    must(ares_library_init(ARES_LIB_INIT_ALL) == ARES_SUCCESS);
}

static bool is_given(const char *s)
{
    return s && *s;
}

static int open_channel(ares_channel *out, struct resolver *r,
                        const struct resolver_options *o, struct err *e)
{
    struct ares_options a = {.timeout = TIMEOUT_MS, .tries = TRIES};
    int mask = ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS |
               ARES_OPT_SOCK_STATE_CB | ARES_OPT_QUERY_CACHE;
    char lookups[] = "fb"; /* /etc/hosts, then servers */
    a.lookups = lookups;
    a.sock_state_cb = on_socket_state;
    a.sock_state_cb_data = r;
    if (is_given(o->resolv_conf)) {
        if (access(o->resolv_conf, R_OK))
            return err_set(e, ERR_CONF, "resolv_conf \"%s\": %s",
                           o->resolv_conf, strerror(errno));
        a.resolvconf_path = (char *)(uintptr_t)o->resolv_conf; /* copied */
        mask |= ARES_OPT_RESOLVCONF;
    }
    int rc = ares_init_options(out, &a, mask);
    if (rc)
        return err_set(e, ERR_CONF, "name resolver: %s", ares_strerror(rc));
    if (!is_given(o->servers))
        return 0;
    rc = ares_set_servers_ports_csv(*out, o->servers);
    if (rc == 0)
        return 0;
    ares_destroy(*out);
    return err_set(e, ERR_CONF, "name servers \"%s\": %s", o->servers,
                   ares_strerror(rc));
}

static void take_strings(struct resolver *r, const struct resolver_options *o)
{
    free(r->resolv_conf);
    free(r->servers);
    r->resolv_conf = mem_strdup(o->resolv_conf ? o->resolv_conf : "");
    r->servers = mem_strdup(o->servers ? o->servers : "");
}

int resolver_new(struct resolver **out, struct loop *loop,
                 const struct resolver_options *o, struct err *e)
{
    pthread_once(&library_once, init_library);
    struct resolver *r = mem_new(sizeof *r);
    r->loop = loop;
    r->max_ttl_us = o->max_ttl_us;
    r->nxdomain_ttl_us = o->nxdomain_ttl_us;
    r->zone_check_us = o->zone_check_us;
    r->on_gone = o->on_gone;
    r->gone_arg = o->arg;
    list_init(&r->zones);
    list_init(&r->entries);
    list_init(&r->ready);
    list_init(&r->sockets);
    list_init(&r->task.node);
    r->task.run = on_task;
    r->timer.on_fire = on_timer;
    r->zone_timer.on_fire = on_zone_timer;
    take_strings(r, o);
    int rc = open_channel(&r->channel, r, o, e);
    if (rc) {
        free(r->resolv_conf);
        free(r->servers);
        free(r);
        return rc;
    }
    set_zone_timer(r);
    *out = r;
    return 0;
}

static void drop_questions(struct list *l)
{
    while (!list_empty(l)) {
        struct list *n = list_first(l);
        list_remove(n);
        free(list_entry(n, struct resolve, node));
    }
}

void resolver_free(struct resolver *r)
{
    r->is_closing = true;
    ares_destroy(r->channel);
    loop_cancel(&r->task);
    timer_clear(r->loop, &r->timer);
    timer_clear(r->loop, &r->zone_timer);
    list_for(n, &r->zones)
    {
        list_entry(n, struct zone, node)->is_asked = false;
    }
    drop_questions(&r->ready);
    while (!list_empty(&r->entries)) {
        struct list *n = list_first(&r->entries);
        struct entry *en = list_entry(n, struct entry, node);
        drop_questions(&en->waiting);
        free_entry(en);
    }
    list_for_safe(n, &r->zones) free(list_entry(n, struct zone, node));
    free(r->resolv_conf);
    free(r->servers);
    free(r);
}

int resolver_reconfigure(struct resolver *r, const struct resolver_options *o,
                         struct err *e)
{
    ares_channel old = r->channel, fresh;
    bool same =
        strcmp(r->resolv_conf, o->resolv_conf ? o->resolv_conf : "") == 0 &&
        strcmp(r->servers, o->servers ? o->servers : "") == 0;
    if (!same) {
        int rc = open_channel(&fresh, r, o, e);
        if (rc)
            return rc;
        take_strings(r, o);
        r->channel = fresh;
        ares_destroy(old); /* its questions are asked again */
        resolver_flush(r);
        set_timer(r);
    }
    r->max_ttl_us = o->max_ttl_us;
    r->nxdomain_ttl_us = o->nxdomain_ttl_us;
    if (r->zone_check_us != o->zone_check_us) {
        r->zone_check_us = o->zone_check_us;
        set_zone_timer(r);
    }
    return 0;
}
