/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The life of a client: accepted, logged in (client_login.c), served
 * (link_*.c), closed. Whatever way it ends, its server is given back clean or
 * closed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "base/log.h"
#include "net/mptcp.h"
#include "net/tls.h"
#include "pool/impl.h"

static bool is_legal(enum client_state from, enum client_state to)
{
    static const unsigned next[] = {
        [CLIENT_LOGIN] =
            1u << CLIENT_IDLE | 1u << CLIENT_CONSOLE | 1u << CLIENT_CANCEL,
        [CLIENT_IDLE] = 1u << CLIENT_WAITING | 1u << CLIENT_ACTIVE,
        [CLIENT_WAITING] = 1u << CLIENT_IDLE,
        [CLIENT_ACTIVE] = 1u << CLIENT_IDLE,
        [CLIENT_CONSOLE] = 0,
        [CLIENT_CANCEL] = 0,
        [CLIENT_CLOSED] = 0,
    };
    return to == CLIENT_CLOSED || (next[from] >> to & 1);
}

void client_set_state(struct client *c, enum client_state to)
{
    must(is_legal(c->state, to));
    if (c->pool) {
        c->pool->n_active +=
            (to == CLIENT_ACTIVE) - (c->state == CLIENT_ACTIVE);
        c->pool->n_clients +=
            (to >= CLIENT_IDLE && to <= CLIENT_ACTIVE) -
            (c->state >= CLIENT_IDLE && c->state <= CLIENT_ACTIVE);
    }
    c->state = (uint8_t)to;
}

/* A peer on a Unix socket has no address, but a process. */
static void unix_peer_text(const struct client *c, char *buf, size_t cap)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERCRED, &peer, &len))
        snprintf(buf, cap, "unix");
    else
        snprintf(buf, cap, "unix(%ld):%d", (long)peer.pid,
                 c->shard->conf->listen_port);
}

const char *client_name(const struct client *c, char buf[CLIENT_NAME_MAX])
{
    struct addr a, self;
    char at[ADDR_TEXT_MAX] = "?";
    if (c->stream && !stream_ends(c->stream, &a, &self)) {
        if (addr_is_unix(&a))
            unix_peer_text(c, at, sizeof at);
        else
            addr_text(&a, at, sizeof at);
    }
    return log_tag_make(buf, 'C', c,
                        c->db ? c->db->name : client_login_database(c),
                        c->user ? c->user->name : client_login_user(c), at);
}

/* ------------------------------------------------------------------ stream */

static void console_data(struct client *c, const char *p, size_t n);
static void teardown(struct client *c);

static void on_data(struct stream *st, const char *p, size_t n)
{
    struct client *c = st->owner;
    switch ((enum client_state)c->state) {
    case CLIENT_LOGIN:
        client_login_data(c, p, n);
        break;
    case CLIENT_IDLE:
    case CLIENT_WAITING:
    case CLIENT_ACTIVE:
        link_from_client(c, p, n);
        break;
    case CLIENT_CONSOLE:
        console_data(c, p, n);
        break;
    default:
        break;
    }
}

void client_read_ahead(struct client *c)
{
    struct inbuf in = c->in;
    if (c->state != CLIENT_CONSOLE) {
        client_go_on(c);
        return;
    }
    c->in = (struct inbuf){0};
    console_data(c, in.p, in.n);
    inbuf_clear(&in);
}

static void on_drain(struct stream *st)
{
    struct client *c = st->owner;
    if (c->server)
        server_update_flow(c->server);
    if (c->state != CLIENT_LOGIN && c->state != CLIENT_CANCEL)
        client_update_flow(c);
    if (c->state == CLIENT_CONSOLE)
        c->shard->console->drain(c);
}

/* Gone without Terminate. */
static void client_left(struct client *c, const char *why)
{
    client_finish(c, why);
    if (c->state != CLIENT_CLOSED)
        c->left_us = shard_now(c->shard);
}

static void on_eof(struct stream *st)
{
    struct client *c = st->owner;
    if (c->state == CLIENT_CANCEL)
        client_drop(c, "cancel requester left");
    else if (client_login_is_silent(c))
        teardown(c);
    else
        client_left(c, "client unexpected eof");
}

/* A reset of a stream among many is meant for its query; a socket that breaks
 * is like the end of its input: PostgreSQL carries on with what it has. */
static void on_error(struct stream *st, const struct err *e)
{
    struct client *c = st->owner;
    char why[ERR_TEXT_MAX];
    snprintf(why, sizeof why, "client connection: %.300s", e->text);
    c->is_gone = true;
    if (client_login_is_silent(c))
        teardown(c);
    else if (st->kind == STREAM_QUIC)
        client_drop(c, "%s", why);
    else
        client_left(c, why);
}

static void on_open(struct stream *st)
{
    client_login_secured(st->owner);
}

const struct stream_handler client_handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_drain = on_drain,
    .on_eof = on_eof,
    .on_error = on_error,
};

/* Above what a server's replies can come to: STREAM_BACKLOG_HIGH and what was
 * being read, also by TLS, when they did. */
static size_t backlog_max(const struct client *c)
{
    return c->state == CLIENT_CONSOLE ? STREAM_BACKLOG_HIGH
                                      : 4 * STREAM_BACKLOG_HIGH;
}

bool client_count_held(struct client *c)
{
    uint32_t was = c->held;
    c->held = c->in.n > HOLD_BYTES ? c->in.n : 0;
    return c->held == was || statement_hold(was, c->held);
}

/* Input is not read while it could only pile up: held for a server or a reply,
 * or in front of a server that does not take it; nor while replies pile up that
 * the client does not read and that were made here, at no server's pace. What a
 * server sends stops at its own bound, and does not stop the other way: a
 * client may send all it has before it reads. */
void client_update_flow(struct client *c)
{
    struct server *s = c->server;
    bool full =
        c->in.n >= HOLD_BYTES && (c->state == CLIENT_WAITING || c->is_stalled ||
                                  (s && s->job != JOB_NONE));
    if (s && stream_pending(s->stream) > STREAM_BACKLOG_HIGH)
        full = true;
    if (c->state != CLIENT_CONSOLE)
        full = full || c->shard->is_suspended;
    full = full || stream_pending(c->stream) > backlog_max(c);
    if (full || c->wants_close)
        stream_pause(c->stream);
    else
        stream_resume(c->stream);
}

/* ------------------------------------------------------------------ closing */

static bool server_is_clean(const struct client *c, const struct server *s)
{
    return pg_track_is_idle(&s->track) && !link_is_amid_request(c) &&
           s->body_left == 0 && s->in.n == 0;
}

/* Both are about to go: what the requests meant to the client is not undone. */
static void settle_all(struct server *s)
{
    struct track_entry e;
    s->was_running = s->track.count > 0;
    while (pg_track_drain(&s->track, &e))
        prepared_settle(NULL, s, &e, OUTCOME_SKIPPED);
}

static void give_server_back(struct client *c)
{
    struct server *s = c->server;
    if (!s)
        return;
    link_flush_requests(c);
    bool is_clean = server_is_clean(c, s);
    bool runs_job = s->job != JOB_NONE;
    bool ended_here = s->pool->mode == CONF_POOL_SESSION ||
                      c->shard->conf->server_reset_query_always;
    bool in_progress = s->track.count > 0 || s->track.tx == PG_TX_IDLE;
    s->is_amid_message = link_is_amid_request(c);
    if (!is_clean && !runs_job)
        settle_all(s);
    c->server = NULL;
    s->client = NULL;
    s->has_barrier_bound = false;
    s->request_us = shard_now(c->shard);
    if (runs_job) {
        /* Our own query ends by itself, then the server is free. */
        server_set_state(s, SERVER_TESTED);
        stream_resume(s->stream);
    } else if (s->is_replication) {
        server_close(s, "replication client was closed");
    } else if (!is_clean) {
        server_close(s, "client disconnected %s",
                     in_progress ? "with queries in progress"
                                 : "in a transaction");
    } else {
        s->needs_reset = s->needs_reset || ended_here;
        stream_resume(s->stream);
        pool_give_server(s);
    }
}

void client_enter(struct client *c, struct shard *sh)
{
    struct client **bucket = &sh->ids[c->id % ID_BUCKETS];
    c->shard = sh;
    c->next_id = *bucket;
    *bucket = c;
    list_push_front(&sh->clients, &c->node_all);
    sh->n_clients++;
}

void client_leave(struct client *c)
{
    struct client **at = &c->shard->ids[c->id % ID_BUCKETS];
    while (*at != c)
        at = &(*at)->next_id;
    *at = c->next_id;
    list_remove(&c->node_all);
    c->shard->n_clients--;
}

static void unregister(struct client *c)
{
    struct shard *sh = c->shard;
    if (c->is_registered) {
        atomic_fetch_sub(&c->db->n_clients, 1);
        atomic_fetch_sub(&c->user->n_clients, 1);
    }
    atomic_fetch_sub(&sh->shared->n_clients, 1);
    client_leave(c);
    if (sh->is_draining && sh->n_clients == 0 && sh->on_empty)
        sh->on_empty(sh);
}

static void teardown(struct client *c)
{
    struct shard *sh = c->shard;
    enum client_state was = c->state;
    client_login_leave(c); /* before the next: it waits in another list */
    pool_stop_waiting(c);
    if (c->is_chosen)
        balance_forget(c);
    if (was == CLIENT_CONSOLE)
        sh->console->end(c);
    client_set_state(c, CLIENT_CLOSED);
    give_server_back(c);
    client_login_free(c);
    prepared_free_client(c);
    inbuf_clear(&c->in);
    (void)client_count_held(c); /* nothing is */
    if (c->params)
        pg_params_unref(c->params);
    cancel_unregister(c);
    mem_wipe(c->key, sizeof c->key);
    unregister(c);
    stream_close(c->stream);
    loop_free_later(sh->loop, c);
}

void client_vanish(struct client *c)
{
    struct shard *sh = c->shard;
    if (c->is_chosen)
        balance_forget(c);
    client_set_state(c, CLIENT_CLOSED);
    prepared_free_client(c);
    inbuf_clear(&c->in);
    (void)client_count_held(c);
    if (c->params)
        pg_params_unref(c->params);
    cancel_unregister(c);
    mem_wipe(c->key, sizeof c->key);
    unregister(c);
    loop_free_later(sh->loop, c);
}

static void log_end(struct client *c, const char *why)
{
    char name[CLIENT_NAME_MAX];
    if (c->shard->conf->log_disconnections)
        log_info("%s closing because: %s (age=%llds)", client_name(c, name),
                 why,
                 (long long)((shard_now(c->shard) - c->connect_us) / 1000000));
}

void client_drop(struct client *c, const char *fmt, ...)
{
    char why[ERR_TEXT_MAX];
    if (c->state == CLIENT_CLOSED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    log_end(c, why);
    teardown(c);
}

void client_close(struct client *c, const char *sqlstate, const char *fmt, ...)
{
    char why[ERR_TEXT_MAX], name[CLIENT_NAME_MAX];
    if (c->state == CLIENT_CLOSED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    struct pgbuf *b = &c->shard->text;
    tally_end(&c->shard->tally, sqlstate, c->state == CLIENT_LOGIN);
    pgbuf_reset(b);
    pg_put_error(b, "FATAL", sqlstate, why);
    if (!c->server || !link_is_amid_reply(c->server))
        (void)stream_write(c->stream, b->p, b->n);
    if (c->shard->conf->log_pooler_errors)
        log_warning("%s pooler error: %s", client_name(c, name), why);
    log_end(c, why);
    teardown(c);
}

static struct client *client_new(struct shard *sh, struct host_count *host)
{
    struct client *c = mem_new(sizeof *c);
    c->shard = sh;
    c->id = ++sh->shared->last_client_id;
    c->connect_us = c->request_us = shard_now(sh);
    list_init(&c->node_all);
    list_init(&c->node_pool);
    client_login_begin(c, host);
    return c;
}

static void count_client(struct client *c)
{
    client_enter(c, c->shard);
    atomic_fetch_add(&c->shard->shared->n_clients, 1);
}

struct client *client_accept(struct shard *sh, int fd, const struct addr *peer,
                             struct host_count *host)
{
    struct client *c = client_new(sh, host);
    c->stream = sock_accepted(sh->loop, fd,
                              addr_is_unix(peer) ? STREAM_UNIX : STREAM_TCP,
                              &client_handler, c);
    if (!c->stream) {
        client_login_free(c);
        free(c);
        return NULL;
    }
    sh->tally.accepted_sockets++;
    if (sh->conf->listen_mptcp && !addr_is_unix(peer)) {
        c->uses_mptcp = mptcp_use_of(fd) == MPTCP_USED;
        sh->tally.mptcp_clients += c->uses_mptcp;
    }
    count_client(c);
    return c;
}

struct client *client_accept_stream(struct shard *sh, struct stream *st,
                                    struct host_count *host)
{
    struct client *c = client_new(sh, host);
    client_login_is_secured(c);
    c->stream = st;
    stream_set_owner(st, &client_handler, c);
    sh->tally.accepted_streams++;
    count_client(c);
    return c;
}

void client_finish(struct client *c, const char *why)
{
    struct server *s = c->server;
    if (c->state == CLIENT_ACTIVE && s && link_will_answer(c)) {
        c->wants_close = true;
        inbuf_clear(&c->in);
        client_update_flow(c);
        server_update_flow(s); /* nothing holds it back once c is gone */
        return;
    }
    client_drop(c, "%s", why);
}

/* ----------------------------------------------------------------- console */

enum { CONSOLE_MESSAGE_MAX = 65536 };

static void console_data(struct client *c, const char *p, size_t n)
{
    if (inbuf_append(&c->in, p, n)) {
        client_close(c, "53200", "out of memory");
        return;
    }
    struct inbuf in = c->in;
    c->in = (struct inbuf){0};
    size_t at = 0;
    while (c->state == CLIENT_CONSOLE && in.n - at >= PG_HEADER_SIZE) {
        size_t total = (size_t)pg_get_u32(in.p + at + 1) + 1;
        if (total < PG_HEADER_SIZE || total > CONSOLE_MESSAGE_MAX) {
            client_close(c, "08P01", "invalid message length");
            break;
        }
        if (in.n - at < total)
            break;
        char type = in.p[at];
        struct slice body =
            slice_of(in.p + at + PG_HEADER_SIZE, total - PG_HEADER_SIZE);
        at += total;
        c->request_us = shard_now(c->shard);
        if (type == PG_MSG_TERMINATE)
            client_drop(c, "client close request");
        else
            c->shard->console->message(c, type, body);
    }
    if (c->state != CLIENT_CONSOLE) {
        inbuf_clear(&in);
        return;
    }
    inbuf_drop(&in, at);
    c->in = in;
}

void client_console_send(struct client *c, const struct pgbuf *b)
{
    (void)stream_write(c->stream, b->p, b->n);
    client_update_flow(c);
}

bool client_console_is_full(const struct client *c)
{
    return stream_pending(c->stream) > STREAM_BACKLOG_HIGH;
}

void client_console_set(struct client *c, void *state)
{
    c->console = state;
}

void *client_console_get(const struct client *c)
{
    return c->console;
}

void client_console_end(struct client *c)
{
    client_drop(c, "console session ended");
}

struct shard *client_shard(const struct client *c)
{
    return c->shard;
}

uint64_t client_id(const struct client *c)
{
    return c->id;
}

bool client_is_admin(const struct client *c)
{
    return c->is_admin;
}

const char *client_user(const struct client *c)
{
    return c->user ? c->user->name : "";
}
