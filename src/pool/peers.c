/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Cancel requests whose client is on another node of the fleet ([peers]). The
 * key tells the node and how often the request may still be passed on
 * (cancel.c); here it is passed on, over a connection of its own:
 *
 *   queued      while pool_size requests are on their way to that peer
 *   connecting  one address of the peer after the other
 *   sent        until the peer closes, which it does once the request has had
 *               its effect; then the requester's connection is closed, too
 *
 * Each peer is one worker's business (its number modulo the workers), so that
 * pool_size holds for the process. What cannot be delivered, or is not answered
 * within cancel_wait_timeout, is dropped with a line in the log: as in
 * PostgreSQL, the requester learns nothing either way. */
#include <stdlib.h>

#include "base/log.h"
#include "pool/impl.h"

enum {
    FORWARD_ADDRS_MAX = 8,
    FORWARDS_MAX = 8192, /* of one peer, queued ones included */
};

enum forward_step {
    FORWARD_QUEUED,
    FORWARD_CONNECT, /* looking the name up included */
    FORWARD_SENT,
};

struct peer_pool {
    struct list node; /* in shard.peers */
    struct shard *shard;
    int id;
    struct list forwards; /* the oldest first */
    int n_forwards, n_active, n_sent;
    bool is_starting;
};

struct forward {
    struct list node; /* in peer_pool.forwards */
    struct peer_pool *peer;
    enum forward_step step;
    struct resolve *question;
    struct stream *stream;
    struct addr *at; /* while connecting */
    int n_at, next_at;
    int port;
    int from;
    uint64_t requester;
    int64_t start_us;
    size_t key_n;
    uint8_t key[CANCEL_KEY_MAX];
};

static void start_queued(struct peer_pool *p);

static struct peer_pool *peer_pool_find(const struct shard *sh, int id)
{
    for (struct list *n = sh->peers.next; n != &sh->peers; n = n->next) {
        struct peer_pool *p = list_entry(n, struct peer_pool, node);
        if (p->id == id)
            return p;
    }
    return NULL;
}

static struct peer_pool *peer_pool_get(struct shard *sh, int id)
{
    struct peer_pool *p = peer_pool_find(sh, id);
    if (p)
        return p;
    p = mem_new(sizeof *p);
    p->shard = sh;
    p->id = id;
    list_init(&p->forwards);
    list_push_back(&sh->peers, &p->node);
    return p;
}

/* ----------------------------------------------------------------- one way */

static void close_forward(struct forward *f)
{
    if (f->question)
        resolve_cancel(f->question);
    if (f->stream)
        stream_close(f->stream);
    mem_wipe(f->key, sizeof f->key);
    free(f->at);
    list_remove(&f->node);
}

static void finish(struct forward *f)
{
    struct peer_pool *p = f->peer;
    p->n_forwards--;
    p->n_active -= f->step != FORWARD_QUEUED;
    p->n_sent -= f->step == FORWARD_SENT;
    close_forward(f);
    cancel_tell_requester(p->shard, f->from, f->requester);
    loop_free_later(p->shard->loop, f);
    start_queued(p);
}

static void fail(struct forward *f, const char *why)
{
    log_warning("peer %d: cancel request could not be passed on: %s",
                f->peer->id, why);
    finish(f);
}

static void on_open(struct stream *st)
{
    struct forward *f = st->owner;
    struct pgbuf *b = &f->peer->shard->text;
    pgbuf_reset(b);
    pg_put_cancel_request(b, pg_get_u32(f->key), f->key + 4, f->key_n - 4);
    (void)stream_write(st, b->p, b->n);
    pgbuf_wipe(b);
    f->step = FORWARD_SENT;
    f->peer->n_sent++;
}

/* Nothing is ever said on such a connection. */
static void on_data(struct stream *st, const char *p, size_t n)
{
    finish(st->owner);
}

static void on_eof(struct stream *st)
{
    struct forward *f = st->owner;
    if (f->step == FORWARD_SENT)
        finish(f);
    else
        fail(f, "connection closed");
}

static void try_next(struct forward *f, const char *why);

static void on_error(struct stream *st, const struct err *e)
{
    struct forward *f = st->owner;
    if (f->step == FORWARD_SENT) {
        finish(f);
        return;
    }
    stream_close(f->stream);
    f->stream = NULL;
    try_next(f, e->text);
}

static const struct stream_handler forward_handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_error = on_error,
};

/* Connects to the next address; why is what was wrong with the last one. */
static void try_next(struct forward *f, const char *why)
{
    struct sock_options o = {0};
    struct err e;
    if (f->next_at == f->n_at) {
        fail(f, why);
        return;
    }
    f->stream = sock_connect(f->peer->shard->loop, &f->at[f->next_at++], &o,
                             &forward_handler, f, &e);
    if (!f->stream)
        fail(f, e.text);
}

static void use_addresses(struct forward *f, const struct addr *at, size_t n,
                          int port)
{
    f->n_at = (int)MIN(n, (size_t)FORWARD_ADDRS_MAX);
    f->at = mem_new_array((size_t)f->n_at, sizeof *f->at);
    for (int i = 0; i < f->n_at; i++) {
        f->at[i] = at[i];
        if (port)
            addr_set_port(&f->at[i], port);
    }
    try_next(f, "no address");
}

static void on_resolved(void *arg, const struct addr *at, size_t n,
                        const struct err *e)
{
    struct forward *f = arg;
    f->question = NULL;
    if (n)
        use_addresses(f, at, n, f->port);
    else
        fail(f, e->text);
}

static void start(struct forward *f, const struct conf_peer *peer)
{
    struct addr a;
    struct err e;
    f->step = FORWARD_CONNECT;
    f->peer->n_active++;
    f->port = peer->port;
    if (peer->host[0] == '/' || peer->host[0] == '@') {
        if (addr_unix(slice_str(peer->host), peer->port, &a, &e))
            fail(f, e.text);
        else
            use_addresses(f, &a, 1, 0);
    } else if (addr_parse_ip(slice_str(peer->host), peer->port, &a)) {
        use_addresses(f, &a, 1, 0);
    } else {
        f->question =
            resolve_start(f->peer->shard->resolver, peer->host, on_resolved, f);
    }
}

/* The one that has waited longest. */
static struct forward *first_queued(struct peer_pool *p)
{
    list_for(n, &p->forwards)
    {
        struct forward *f = list_entry(n, struct forward, node);
        if (f->step == FORWARD_QUEUED)
            return f;
    }
    return NULL;
}

static void start_queued(struct peer_pool *p)
{
    const struct conf *conf = p->shard->conf;
    const struct conf_peer *peer = conf_find_peer(conf, p->id);
    int limit = peer ? conf_peer_pool_size(conf, peer) : 0;
    if (p->is_starting)
        return; /* the loop below goes on */
    p->is_starting = true;
    while (p->n_active < p->n_forwards && (limit <= 0 || p->n_active < limit)) {
        struct forward *f = first_queued(p);
        must(f);
        if (peer)
            start(f, peer);
        else
            fail(f, "it is no longer among the peers");
    }
    p->is_starting = false;
}

/* --------------------------------------------------------------- hand-over */

struct peer_message {
    struct message m;
    struct shard *to;
    int id, from;
    uint64_t requester;
    size_t key_n;
    uint8_t key[CANCEL_KEY_MAX];
};

static void take(struct shard *sh, const struct peer_message *m)
{
    struct peer_pool *p = peer_pool_get(sh, m->id);
    if (p->n_forwards >= FORWARDS_MAX) {
        log_warning("peer %d: more than %d cancel requests wait; one more is "
                    "dropped",
                    p->id, FORWARDS_MAX);
        cancel_tell_requester(sh, m->from, m->requester);
        return;
    }
    struct forward *f = mem_new(sizeof *f);
    f->peer = p;
    f->from = m->from;
    f->requester = m->requester;
    f->start_us = shard_now(sh);
    f->key_n = m->key_n;
    memcpy(f->key, m->key, m->key_n);
    list_init(&f->node);
    list_push_back(&p->forwards, &f->node);
    p->n_forwards++;
    start_queued(p);
}

static void handle(struct message *message, void *loop_data)
{
    struct peer_message *m = container_of(message, struct peer_message, m);
    take(m->to, m);
    mem_wipe(m->key, sizeof m->key);
    free(m);
}

void peers_forward(struct client *requester, int id, const uint8_t *key,
                   size_t n)
{
    struct shard *sh = requester->shard;
    struct shared *shared = sh->shared;
    struct shard *to = shared->shard[id % shared->n_shards];
    struct loop *loop = shard_loop_now(to);
    if (!loop)
        return;
    struct peer_message *m = mem_new(sizeof *m);
    m->m.handle = handle;
    m->to = to;
    m->id = id;
    m->from = sh->index;
    m->requester = requester->id;
    m->key_n = n;
    memcpy(m->key, key, n);
    mailbox_send(loop, &m->m);
}

/* --------------------------------------------------------------- the rest */

/* The list is in order of arrival. */
static void expire_one_peer(struct peer_pool *p, int64_t limit, int64_t now)
{
    for (;;) {
        struct list *first = list_first(&p->forwards);
        struct forward *f;
        if (!first)
            return;
        f = list_entry(first, struct forward, node);
        if (now - f->start_us < limit)
            return;
        fail(f, "cancel_wait_timeout");
    }
}

void peers_expire(struct shard *sh)
{
    int64_t limit = sh->conf->cancel_wait_timeout_us;
    if (limit <= 0)
        return;
    list_for(n, &sh->peers) expire_one_peer(
        list_entry(n, struct peer_pool, node), limit, shard_now(sh));
}

void peers_stop(struct shard *sh)
{
    struct list *n, *k;
    while ((n = list_first(&sh->peers))) {
        struct peer_pool *p = list_entry(n, struct peer_pool, node);
        while ((k = list_first(&p->forwards))) {
            struct forward *f = list_entry(k, struct forward, node);
            close_forward(f);
            loop_free_later(sh->loop, f);
        }
        list_remove(n);
        free(p);
    }
}

struct peer_counts shard_peer_counts(const struct shard *sh, int id)
{
    const struct peer_pool *p = peer_pool_find(sh, id);
    if (!p)
        return (struct peer_counts){0};
    return (struct peer_counts){
        .sent = p->n_sent,
        .connecting = p->n_active - p->n_sent,
        .waiting = p->n_forwards - p->n_active,
    };
}
