/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A question waits at the entry of its name: NEW (a task starts the look-up),
 * ASKED (c-ares has it), then KNOWN until it expires. Answered questions go to
 * the ready list, which the task empties: look-ups and callbacks happen in the
 * task only, so no answer changes while a callback looks at it. */
#include "net/resolve.h"

#include <ares.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum entry_state {
    ENTRY_NEW,
    ENTRY_ASKED,
    ENTRY_KNOWN,
};

enum {
    ADDRESSES_MAX = 64,
    HOST_MAX = 255,
    TIMEOUT_MS = 2000, /* of one try; doubles with each */
    TRIES = 3,
    TTL_MIN_US = 1000000, /* of answers: /etc/hosts says 0 */
};

struct entry {
    struct list node; /* in resolver.entries */
    struct resolver *r;
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
    int64_t max_ttl_us, nxdomain_ttl_us;
    char *resolv_conf, *servers;
    struct list entries, ready, sockets;
    struct task task;
    struct timer timer;
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
    free(en->at);
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

/* --- entries ------------------------------------------------------------- */

static void free_entry(struct entry *en)
{
    list_remove(&en->node);
    free(en->at);
    free(en);
}

/* Forgets what expired and nobody asks for. */
static void sweep(struct resolver *r)
{
    int64_t now = loop_now_us(r->loop);
    list_for_safe(n, &r->entries)
    {
        struct entry *en = list_entry(n, struct entry, node);
        if (en->state == ENTRY_KNOWN && !en->n_questions &&
            en->expires_us <= now)
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
               ARES_OPT_SOCK_STATE_CB;
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
    list_init(&r->entries);
    list_init(&r->ready);
    list_init(&r->sockets);
    list_init(&r->task.node);
    r->task.run = on_task;
    r->timer.on_fire = on_timer;
    take_strings(r, o);
    int rc = open_channel(&r->channel, r, o, e);
    if (rc) {
        free(r->resolv_conf);
        free(r->servers);
        free(r);
        return rc;
    }
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
    drop_questions(&r->ready);
    while (!list_empty(&r->entries)) {
        struct list *n = list_first(&r->entries);
        struct entry *en = list_entry(n, struct entry, node);
        drop_questions(&en->waiting);
        free_entry(en);
    }
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
    return 0;
}
