/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* CancelRequest. The key names a node of the fleet (peers.c) and there a
 * client; which worker has it is found by asking each in turn, so that a client
 * may move. The owner delivers:
 *
 *   waiting client   its query is answered with 57014 here
 *   linked client    a CancelRequest with the server's own key is sent over a
 *                    connection of its own (QUIC: a stream), only if the client
 * still holds that server when the connection stands console          its
 * command gives up waiting, if that is what it does anything else    nothing to
 * cancel
 *
 * The server is not given to anybody else before PostgreSQL has closed the
 * cancel connection, which it does after the signal was sent: so a cancel never
 * meets a query of another client. If that takes too long, the server is
 * closed. The requester's connection is closed last. */
#include <stdlib.h>

#include "auth/crypto.h"
#include "base/log.h"
#include "base/rand.h"
#include "net/tls.h"
#include "pool/handover.h"
#include "pool/impl.h"
#include "pool/server_quic.h"

enum { CANCELS_MIN = 8 };

/* ------------------------------------------------------------------- keys
 *
 * Bytes 0 to 3 are what drivers show as a pid, hence positive. In a fleet, the
 * layout is PgBouncer's, so that both may be in it: bytes 1 and 2 are the
 * node's peer_id, low byte first; the two lowest bits of byte 7 say how often a
 * request may still be passed on, and are set in the key that the client gets.
 * All else is random. */

enum { HOPS_AT = 7, HOPS_MASK = 3 };

/* Long keys are for fleets whose every node can pass them on. */
static bool may_be_long(const struct conf *conf)
{
    if (conf->peer_id <= 0)
        return true;
    for (int i = 0; i < conf_peer_count(conf); i++) {
        const struct conf_peer *p = conf_peer_at(conf, i);
        if (p->id != conf->peer_id && p->long_keys <= 0)
            return false;
    }
    return true;
}

void cancel_make_key(struct client *c)
{
    const struct conf *conf = c->shard->conf;
    bool is_long = c->minor >= PG_MINOR_LONG_KEY && may_be_long(conf);
    c->key_n = (uint8_t)(4 + (is_long ? CANCEL_KEY_SIZE : 4));
    rand_bytes(c->key, c->key_n);
    c->key[0] &= 0x7f;
    if (conf->peer_id > 0) {
        c->key[1] = (uint8_t)(conf->peer_id & 0xff);
        c->key[2] = (uint8_t)(conf->peer_id >> 8);
        c->key[HOPS_AT] |= HOPS_MASK;
    }
}

/* Of bytes that are random in any layout. */
static unsigned bucket_of(const uint8_t *key)
{
    return (unsigned)(key[3] | key[4] << 8) % KEY_BUCKETS;
}

void cancel_register(struct client *c)
{
    struct client **b = &c->shard->keys[bucket_of(c->key)];
    c->next_key = *b;
    *b = c;
    c->has_key = true;
}

void cancel_unregister(struct client *c)
{
    if (!c->has_key)
        return;
    struct client **b = &c->shard->keys[bucket_of(c->key)];
    while (*b != c)
        b = &(*b)->next_key;
    *b = c->next_key;
    c->has_key = false;
}

/* In a fleet the hops do not count: peers have changed them. */
static bool is_key_of(const struct client *c, const uint8_t *key, size_t n)
{
    uint8_t a[CANCEL_KEY_MAX], b[CANCEL_KEY_MAX];
    if (c->key_n != n)
        return false;
    memcpy(a, c->key, n);
    memcpy(b, key, n);
    if (c->shard->conf->peer_id > 0) {
        a[HOPS_AT] |= HOPS_MASK;
        b[HOPS_AT] |= HOPS_MASK;
    }
    return crypto_equal(slice_of(a, n), slice_of(b, n));
}

static struct client *find(struct shard *sh, const uint8_t *key, size_t n)
{
    struct client *c = sh->keys[bucket_of(key)];
    while (c && !is_key_of(c, key, n))
        c = c->next_key;
    return c;
}

/* --------------------------------------------------------------- messages */

enum note_kind { NOTE_FIND, NOTE_DONE };

/* In an upgrade the other processes are asked, too, and then the workers once
 * more: the client may have come over meanwhile. A request that came from one
 * of them goes on to the other. */
enum note_stage { STAGE_HERE, STAGE_OLDER, STAGE_NEWER, STAGE_AGAIN };

/* In place of the requester's worker: it is in another process. */
enum { FROM_GENERATION = SHARDS_MAX };

struct note {
    struct message m;
    struct shard *to;
    enum note_kind kind;
    int from; /* worker of the requester */
    uint64_t requester;
    int hops;
    bool is_second_round;
    enum note_stage stage;
    bool has_peer, by_peers; /* an address; a node that passed it on */
    struct addr peer;        /* who asks, and may be gone already */
    int64_t start_us;
    size_t n;
    uint8_t key[CANCEL_KEY_MAX];
};

static void handle(struct message *m, void *loop_data);

static void post(struct shard *to, const struct note *body)
{
    struct loop *loop = shard_loop_now(to);
    if (!loop)
        return;
    struct note *m = mem_new(sizeof *m);
    *m = *body;
    m->m.handle = handle;
    m->to = to;
    mailbox_send(loop, &m->m);
}

/* The other process learns what became of its request. */
static void tell_generation(struct shard *sh, int from, uint64_t token,
                            bool was_found)
{
    struct handover *h = sh->shared->handover;
    struct handover_parcel *p = mem_new(sizeof *p);
    *p = (struct handover_parcel){.m.handle = h->on_parcel,
                                  .to =
                                      (enum generation)(from - FROM_GENERATION),
                                  .kind = HANDOVER_CANCEL_DONE,
                                  .fd = -1,
                                  .token = token,
                                  .was_found = was_found};
    mailbox_send(h->loop, &p->m);
}

void cancel_tell_requester(struct shard *sh, int from, uint64_t requester)
{
    if (from >= FROM_GENERATION) {
        tell_generation(sh, from, requester, true);
        return;
    }
    post(sh->shared->shard[from],
         &(struct note){.kind = NOTE_DONE, .requester = requester});
}

/* --------------------------------------------------------------- delivery */

enum cancel_step {
    CANCEL_QUEUED,
    CANCEL_CONNECT,
    CANCEL_SSL,
    CANCEL_TLS,
    CANCEL_SENT
};

/* One CancelRequest on its way to a server. */
struct cancel {
    struct list node; /* in pool.cancels */
    struct pool *pool;
    struct server *server; /* counted in its n_cancels while on the way */
    struct stream *stream;
    struct quic_ask ask; /* for a stream, where that of the server has none */
    bool is_quic, is_asking;
    uint64_t client; /* whose query it is for */
    int from;        /* worker of the requester; -1: nobody waits */
    uint64_t requester;
    int64_t start_us;
    enum cancel_step step;
    /* What is known of the server, which may be gone by then. */
    struct addr at;
    char *host_name;
    bool has_tls;
    bool is_abandoned; /* the server was closed with its query running */
    uint32_t pid;
    uint16_t key_n;
    uint8_t key[PG_CANCEL_KEY_MAX];
};

static struct cancel *cancel_new(struct server *s)
{
    struct cancel *k = mem_new(sizeof *k);
    k->pool = s->pool;
    k->start_us = shard_now(s->pool->shard);
    k->at = s->at;
    k->host_name = s->host_name ? mem_strdup(s->host_name) : NULL;
    k->has_tls = stream_tls(s->stream) != NULL;
    k->is_quic = s->stream->kind == STREAM_QUIC;
    k->pid = s->pid;
    k->key_n = s->key_n;
    memcpy(k->key, s->key, s->key_n);
    k->from = -1;
    list_init(&k->node);
    list_push_back(&s->pool->cancels, &k->node);
    return k;
}

/* Off its list; memory goes at the end of the turn. */
static void cancel_free(struct cancel *k)
{
    struct shard *sh = k->pool->shard;
    if (k->stream)
        stream_close(k->stream);
    if (k->is_asking)
        quic_hub_take_back(&k->ask);
    list_remove(&k->node);
    free(k->host_name);
    mem_wipe(k->key, sizeof k->key);
    if (k->from >= 0)
        cancel_tell_requester(sh, k->from, k->requester);
    loop_free_later(sh->loop, k);
}

static void start_queued(struct pool *p);

static void finish(struct cancel *k)
{
    struct pool *p = k->pool;
    struct server *s = k->server;
    bool was_counted = k->step != CANCEL_QUEUED;
    if (was_counted)
        p->n_cancels--;
    cancel_free(k);
    if (s && was_counted && --s->n_cancels == 0 && s->state == SERVER_CANCELED)
        pool_give_server(s);
    start_queued(p);
}

static bool still_holds(const struct cancel *k)
{
    const struct server *s = k->server;
    if (k->is_abandoned)
        return true;
    return s && s->client && s->client->id == k->client && s->job == JOB_NONE &&
           !pg_track_is_idle(&s->track);
}

static void deliver(struct cancel *k)
{
    struct pgbuf *b = &k->pool->shard->text;
    if (!still_holds(k)) {
        finish(k);
        return;
    }
    pgbuf_reset(b);
    pg_put_cancel_request(b, k->pid, k->key, k->key_n);
    (void)stream_write(k->stream, b->p, b->n);
    pgbuf_wipe(b);
    k->step = CANCEL_SENT;
}

static void on_open(struct stream *st)
{
    struct cancel *k = st->owner;
    struct pgbuf *b = &k->pool->shard->text;
    bool with_tls = k->has_tls && k->step == CANCEL_CONNECT;
    if (!with_tls) {
        deliver(k);
        return;
    }
    pgbuf_reset(b);
    pg_put_ssl_request(b);
    k->step = CANCEL_SSL;
    (void)stream_write(st, b->p, b->n);
}

static const struct stream_handler cancel_handler;

static void on_data(struct stream *st, const char *p, size_t n)
{
    struct cancel *k = st->owner;
    if (k->step != CANCEL_SSL || n != 1 || p[0] != 'S') {
        finish(k); /* nothing else is ever said on such a connection */
        return;
    }
    struct tls_ctx *ctx;
    struct err e;
    if (pool_server_tls(k->pool, &ctx, &e)) {
        finish(k);
        return;
    }
    k->step = CANCEL_TLS;
    k->stream = tls_connect(k->stream, ctx, k->host_name, TLS_ALPN_POSTGRESQL,
                            &cancel_handler, k);
}

static void on_eof(struct stream *st)
{
    finish(st->owner);
}

static void on_error(struct stream *st, const struct err *e)
{
    struct cancel *k = st->owner;
    if (k->step != CANCEL_SENT)
        log_warning("cancel request could not be delivered: %s", e->text);
    else if (k->server)
        k->server->needs_close = true; /* the signal may still come */
    finish(k);
}

static const struct stream_handler cancel_handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_error = on_error,
};

static int max_cancels(const struct pool *p)
{
    int size = conf_pool_size(p->shard->conf, p->cdb, p->cuser);
    return MAX(2 * size, (int)CANCELS_MIN);
}

static void undeliverable(struct cancel *k, const struct err *e)
{
    log_warning("cancel request could not be delivered: %s", e->text);
    finish(k);
}

static void on_quic_stream(struct quic_ask *a, struct stream *st)
{
    struct cancel *k = container_of(a, struct cancel, ask);
    k->is_asking = false;
    k->stream = st;
    stream_set_owner(st, &cancel_handler, k);
    deliver(k);
}

static void on_quic_fail(struct quic_ask *a, const struct err *e)
{
    struct cancel *k = container_of(a, struct cancel, ask);
    k->is_asking = false;
    undeliverable(k, e);
}

/* On the connection of the server; when that has no room, on another. */
static void start_quic(struct cancel *k)
{
    struct pool *p = k->pool;
    struct quic_hub *hub;
    struct err e;
    if (k->server)
        k->stream = quic_open_beside(k->server->stream, &cancel_handler, k);
    if (k->stream) {
        deliver(k);
        return;
    }
    (void)err_set(&e, ERR_CLOSED, "its database line is gone");
    if (!p->cdb || server_quic_hub(p->shard, p->cdb, k->host_name,
                                   addr_port(&k->at), &hub, &e)) {
        undeliverable(k, &e);
        return;
    }
    k->is_asking = true;
    k->ask.on_stream = on_quic_stream;
    k->ask.on_fail = on_quic_fail;
    k->ask.deadline_us =
        shard_now(p->shard) + p->shard->conf->server_connect_timeout_us;
    quic_hub_ask(hub, &k->ask);
}

static void start(struct cancel *k)
{
    struct sock_options o = {0};
    struct err e;
    k->step = CANCEL_CONNECT;
    k->pool->n_cancels++;
    if (k->server)
        k->server->n_cancels++;
    if (k->is_quic) {
        start_quic(k);
        return;
    }
    k->stream =
        sock_connect(k->pool->shard->loop, &k->at, &o, &cancel_handler, k, &e);
    if (!k->stream)
        undeliverable(k, &e);
}

static void start_queued(struct pool *p)
{
    list_for_safe(n, &p->cancels)
    {
        struct cancel *k = list_entry(n, struct cancel, node);
        if (k->step != CANCEL_QUEUED)
            continue;
        if (p->n_cancels >= max_cancels(p))
            return;
        if (still_holds(k))
            start(k);
        else
            cancel_free(k);
    }
}

void cancel_left(struct client *c)
{
    if (!c->server || !c->server->key_n || c->is_left_cancelled)
        return;
    c->is_left_cancelled = true;
    struct cancel *k = cancel_new(c->server);
    k->server = c->server;
    k->client = c->id;
    start_queued(k->pool);
}

void cancel_abandoned(struct server *s)
{
    if (!s->key_n)
        return;
    cancel_new(s)->is_abandoned = true;
    start_queued(s->pool);
}

void cancel_server_gone(struct server *s)
{
    list_for_safe(n, &s->pool->cancels)
    {
        struct cancel *k = list_entry(n, struct cancel, node);
        if (k->server == s)
            k->server = NULL; /* ends by itself */
    }
}

void cancel_expire(struct pool *p)
{
    int64_t limit = p->shard->conf->cancel_wait_timeout_us;
    list_for_safe(n, &p->cancels)
    {
        struct cancel *k = list_entry(n, struct cancel, node);
        struct server *s = k->server;
        if (limit <= 0 || shard_now(p->shard) - k->start_us < limit)
            continue;
        bool was_sent = k->step == CANCEL_SENT;
        finish(k);
        if (was_sent && s)
            server_close(s, "cancel_wait_timeout");
        return; /* the list may have changed; the next tick goes on */
    }
}

void cancel_stop(struct pool *p)
{
    list_for_safe(n, &p->cancels)
    {
        struct cancel *k = list_entry(n, struct cancel, node);
        k->from = -1;
        cancel_free(k);
    }
}

void cancel_count(const struct pool *p, int *active, int *waiting)
{
    *active = p->n_cancels;
    *waiting = 0;
    for (struct list *n = p->cancels.next; n != &p->cancels; n = n->next)
        *waiting += list_entry(n, struct cancel, node)->step == CANCEL_QUEUED;
}

/* ------------------------------------------------------------------ routing */

/* The client waits for a server: what it asked is answered here. */
static void cancel_waiting(struct client *c)
{
    struct pgbuf *b = &c->shard->text;
    pool_stop_waiting(c);
    pgbuf_reset(b);
    pg_put_error(b, "ERROR", "57014",
                 "canceling statement due to user request");
    (void)stream_write(c->stream, b->p, b->n);
    link_skip_request(c);
}

static void deliver_to(struct client *c, const struct note *m)
{
    struct shard *sh = c->shard;
    struct server *s = c->server;
    struct cancel *k;
    if (c->state == CLIENT_WAITING)
        cancel_waiting(c);
    if (c->state == CLIENT_CONSOLE)
        sh->console->cancel(c);
    if (c->state != CLIENT_ACTIVE || !s || s->job != JOB_NONE ||
        pg_track_is_idle(&s->track)) {
        cancel_tell_requester(sh, m->from, m->requester);
        return;
    }
    k = cancel_new(s);
    k->server = s;
    k->client = c->id;
    k->from = m->from;
    k->requester = m->requester;
    start_queued(s->pool);
}

/* Clients moved while the request went round: it may have passed its own. The
 * clocks of two loops differ by no more than a turn. */
static bool may_have_missed(const struct shard *sh, const struct note *m)
{
    enum { TURN_US = 100 * 1000 };
    return !m->is_second_round &&
           atomic_load(&sh->shared->last_move_us) >= m->start_us - TURN_US;
}

static void end_unknown(struct shard *sh, const struct note *m)
{
    if (m->has_peer)
        limits_cancel_missed(sh->shared, &m->peer, m->by_peers, shard_now(sh));
    cancel_tell_requester(sh, m->from, m->requester);
}

/* Gives the note to the main thread, which asks and calls cancel_answered(). */
static bool ask_generation(struct shard *sh, const struct note *m,
                           enum generation to)
{
    struct handover *h = sh->shared->handover;
    if (!h || !atomic_load(&h->has[to]) || m->from == FROM_GENERATION + (int)to)
        return false;
    struct handover_parcel *p = mem_new(sizeof *p);
    struct note *copy = mem_new(sizeof *copy);
    *copy = *m;
    *p = (struct handover_parcel){.m.handle = h->on_parcel,
                                  .to = to,
                                  .kind = HANDOVER_CANCEL,
                                  .fd = -1,
                                  .note = copy};
    mailbox_send(h->loop, &p->m);
    return true;
}

/* No worker has it. */
static void look_elsewhere(struct shard *sh, const struct note *m)
{
    struct note on = *m;
    bool was_asked = m->stage != STAGE_HERE;
    if (on.stage < STAGE_OLDER) {
        on.stage = STAGE_OLDER;
        if (ask_generation(sh, &on, GEN_OLDER))
            return;
    }
    if (on.stage < STAGE_NEWER) {
        on.stage = STAGE_NEWER;
        if (ask_generation(sh, &on, GEN_NEWER))
            return;
    }
    if (on.stage < STAGE_AGAIN && was_asked && on.from < FROM_GENERATION) {
        on.stage = STAGE_AGAIN;
        on.hops = sh->shared->n_shards;
        on.is_second_round = true;
        post(sh, &on);
        return;
    }
    if (on.from >= FROM_GENERATION)
        tell_generation(sh, on.from, on.requester, false);
    else
        end_unknown(sh, &on);
}

size_t cancel_note_key(const void *note, const uint8_t **key)
{
    const struct note *m = note;
    *key = m->key;
    return m->n;
}

/* To a worker's thread again. */
static void go_on_elsewhere(struct message *message, void *loop_data)
{
    struct note *m = container_of(message, struct note, m);
    look_elsewhere(m->to, m);
    mem_wipe(m->key, sizeof m->key);
    free(m);
}

void cancel_answered(struct shared *s, void *note, bool was_found)
{
    struct note *m = note;
    struct shard *sh = s->shard[m->from < FROM_GENERATION ? m->from : 0];
    struct loop *loop = shard_loop_now(sh);
    m->to = sh;
    if (was_found) {
        cancel_tell_requester(sh, m->from, m->requester);
    } else if (loop) {
        m->m.handle = go_on_elsewhere;
        mailbox_send(loop, &m->m);
        return;
    }
    mem_wipe(m->key, sizeof m->key);
    free(m);
}

static void look_here(struct shard *sh, const struct note *m)
{
    struct client *c = find(sh, m->key, m->n);
    if (c) {
        deliver_to(c, m);
        return;
    }
    struct note on = *m;
    if (--on.hops <= 0 && may_have_missed(sh, m)) {
        on.hops = sh->shared->n_shards;
        on.is_second_round = true;
    }
    if (on.hops <= 0)
        look_elsewhere(sh, m);
    else
        post(sh->shared->shard[(sh->index + 1) % sh->shared->n_shards], &on);
}

static void handle(struct message *message, void *loop_data)
{
    struct note *m = container_of(message, struct note, m);
    if (m->kind == NOTE_FIND) {
        look_here(m->to, m);
    } else {
        struct client *c = shard_find_client(m->to, m->requester);
        if (c && c->state == CLIENT_CANCEL)
            client_drop(c, "cancel request was dealt with");
    }
    mem_wipe(m->key, sizeof m->key);
    free(m);
}

/* True when the key is another node's; then the request has been dealt with. An
 * unknown node may be what we were before a reload: so look here, too. */
static bool is_for_peer(struct client *c, const struct note *m, uint8_t *key,
                        size_t n)
{
    struct shard *sh = c->shard;
    const struct conf *conf = sh->conf;
    int id = key[1] | key[2] << 8;
    if (conf->peer_id <= 0 || id == conf->peer_id || !conf_find_peer(conf, id))
        return false;
    if ((key[HOPS_AT] & HOPS_MASK) == 0) {
        client_drop(c, "cancel request was passed on too often");
        return true;
    }
    key[HOPS_AT]--;
    if (m->has_peer)
        limits_cancel_missed(sh->shared, &m->peer, true, shard_now(sh));
    peers_forward(c, id, key, n);
    return true;
}

static bool is_refused(struct shard *sh, const struct addr *peer)
{
    char at[ADDR_TEXT_MAX];
    enum cancel_verdict v =
        limits_cancel(sh->shared, peer, sh->conf, shard_now(sh));
    if (v == CANCEL_REFUSED_FIRST) {
        addr_host_text(peer, at, sizeof at);
        log_warning("%s: too many cancel requests with unknown keys; more are "
                    "not looked at for up to ten seconds "
                    "(max_unknown_cancels_per_address = %d, "
                    "max_unknown_cancels = %d)",
                    at, sh->conf->max_unknown_cancels_per_address,
                    sh->conf->max_unknown_cancels);
    }
    return v != CANCEL_ALLOWED;
}

void cancel_request(struct client *c, uint32_t pid, struct slice key)
{
    struct shard *sh = c->shard;
    struct note m = {.kind = NOTE_FIND,
                     .from = sh->index,
                     .requester = c->id,
                     .hops = sh->shared->n_shards,
                     .start_us = shard_now(sh)};
    sh->tally.cancel_requests++;
    if (key.n < 4 || key.n > CANCEL_KEY_SIZE) {
        client_drop(c, "bad cancel request");
        return;
    }
    struct addr self;
    m.has_peer = !stream_ends(c->stream, &m.peer, &self);
    if (m.has_peer && is_refused(sh, &m.peer)) {
        client_drop(c, "too many cancel requests with unknown keys");
        return;
    }
    pg_set_u32(m.key, pid);
    memcpy(m.key + 4, key.p, key.n);
    m.n = 4 + key.n;
    m.by_peers = sh->conf->peer_id > 0 && m.n > HOPS_AT &&
                 (m.key[HOPS_AT] & HOPS_MASK) != HOPS_MASK;
    if (!is_for_peer(c, &m, m.key, m.n))
        post(sh, &m);
    mem_wipe(m.key, sizeof m.key);
}

void shard_cancel_for(struct shard *sh, enum generation from, uint64_t token,
                      const uint8_t *key, size_t n)
{
    struct note m = {.kind = NOTE_FIND,
                     .from = FROM_GENERATION + (int)from,
                     .requester = token,
                     .hops = sh->shared->n_shards,
                     .start_us = shard_now(sh),
                     .n = n};
    must(n <= sizeof m.key);
    memcpy(m.key, key, n);
    post(sh, &m);
    mem_wipe(m.key, sizeof m.key);
}
