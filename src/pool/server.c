/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The life of a server connection: open, log in, serve, run queries of ours,
 * close. Its login is in server_login.c, its traffic in link_server.c. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "pool/impl.h"

static const char *state_name(enum server_state state)
{
    static const char *const names[] = {
        [SERVER_LOGIN] = "login",   [SERVER_IDLE] = "idle",
        [SERVER_USED] = "used",     [SERVER_TESTED] = "tested",
        [SERVER_ACTIVE] = "active", [SERVER_CANCELED] = "being_canceled",
        [SERVER_CLOSED] = "closed",
    };
    return names[state];
}

const char *server_state_name(const struct server *s)
{
    return state_name(s->state);
}

/* Which moves are legal; closing always is. */
static bool is_legal(enum server_state from, enum server_state to)
{
    static const unsigned next[] = {
        [SERVER_LOGIN] =
            1u << SERVER_IDLE | 1u << SERVER_TESTED | 1u << SERVER_ACTIVE,
        [SERVER_IDLE] =
            1u << SERVER_USED | 1u << SERVER_ACTIVE | 1u << SERVER_TESTED,
        [SERVER_USED] = 1u << SERVER_TESTED | 1u << SERVER_IDLE,
        [SERVER_TESTED] =
            1u << SERVER_IDLE | 1u << SERVER_CANCELED | 1u << SERVER_TESTED,
        [SERVER_ACTIVE] =
            1u << SERVER_IDLE | 1u << SERVER_TESTED | 1u << SERVER_CANCELED,
        [SERVER_CANCELED] = 1u << SERVER_IDLE | 1u << SERVER_TESTED,
        [SERVER_CLOSED] = 0,
        [SERVER_STATES] = 1u << SERVER_LOGIN | 1u << SERVER_IDLE,
    };
    return to == SERVER_CLOSED || (next[from] >> to & 1);
}

void server_set_state(struct server *s, enum server_state to)
{
    struct pool *p = s->pool;
    enum server_state from = s->state;
    if (from == to)
        return;
    must(is_legal(from, to));
    if (from < SERVER_CLOSED) {
        list_remove(&s->node);
        p->n_servers[from]--;
    }
    s->state = (uint8_t)to;
    if (to == SERVER_CLOSED)
        return;
    /* Idle: the last used first, so that the rest can grow old and go. */
    if (to == SERVER_IDLE)
        list_push_front(&p->servers[to], &s->node);
    else
        list_push_back(&p->servers[to], &s->node);
    p->n_servers[to]++;
}

const char *server_name(const struct server *s, char buf[SERVER_NAME_MAX])
{
    char at[ADDR_TEXT_MAX] = "";
    if (s->at.len)
        addr_text(&s->at, at, sizeof at);
    return log_tag_make(buf, 'S', s, s->pool ? s->pool->rec->db->name : "-",
                        s->pool ? s->pool->rec->user->name : "-", at);
}

/* ------------------------------------------------------------------ stream */

static void on_data(struct stream *st, const char *p, size_t n)
{
    struct server *s = st->owner;
    if (s->login)
        server_login_data(s, p, n);
    else
        link_from_server(s, p, n);
}

static void on_drain(struct stream *st)
{
    struct server *s = st->owner;
    if (s->client)
        client_update_flow(s->client);
}

static void broke(struct server *s, const char *how)
{
    char name[SERVER_NAME_MAX];
    s->is_broken = true;
    s->pool->shard->tally.servers_lost++;
    if (!s->said_fatal)
        log_warning("%s server conn crashed? (%s)", server_name(s, name), how);
    server_close(s, "server conn crashed?");
}

static void on_eof(struct stream *st)
{
    struct server *s = st->owner;
    if (s->login)
        server_login_fail(s, "08006", "server closed the connection");
    else
        broke(s, "closed by the server");
}

static void on_error(struct stream *st, const struct err *e)
{
    struct server *s = st->owner;
    if (s->login)
        server_login_lost(s, e);
    else
        broke(s, e->text);
}

static void on_open(struct stream *st)
{
    server_login_opened(st->owner);
}

const struct stream_handler server_handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_drain = on_drain,
    .on_eof = on_eof,
    .on_error = on_error,
};

void server_update_flow(struct server *s)
{
    struct client *c = s->client;
    /* The backlog of a connection that broke will never drain. */
    if (c && !c->is_gone && stream_pending(c->stream) > STREAM_BACKLOG_HIGH)
        stream_pause(s->stream);
    else
        stream_resume(s->stream);
}

/* -------------------------------------------------------------- open, close */

static struct server *server_new(struct pool *p)
{
    struct shard *sh = p->shard;
    struct server *s = mem_new(sizeof *s);
    s->pool = p;
    s->state = SERVER_STATES;
    s->epoch = pool_epoch(p);
    s->id = ++sh->shared->last_server_id;
    sh->tally.servers_opened++;
    s->connect_us = s->request_us = shard_now(sh);
    s->params = pg_params_empty();
    pg_track_init(&s->track);
    list_init(&s->node);
    list_init(&s->lru);
    return s;
}

void server_open(struct pool *p, const struct client *for_replication)
{
    struct server *s = server_new(p);
    s->is_replication = for_replication != NULL;
    if (s->is_replication)
        atomic_fetch_add(&p->rec->n_replicating, 1);
    s->replication_client = for_replication ? for_replication->id : 0;
    server_set_state(s, SERVER_LOGIN);
    server_login_start(s);
}

/* Its client, if it has one, ends with it: nothing is undone for it. */
static void drain_track(struct server *s)
{
    struct track_entry e;
    while (pg_track_drain(&s->track, &e))
        prepared_settle(NULL, s, &e, OUTCOME_SKIPPED);
}

/* The client that loses its server. PostgreSQL's own words have reached it if
 * the server had any; amid a message there is no place for ours. */
static void end_client(struct client *c, const struct server *s,
                       const char *why)
{
    if (client_login_runs_query(c))
        client_login_refuse(c, "08P01", "auth_query could not be run");
    else if (s->said_fatal)
        client_drop(c, "server ended the session");
    else if (link_is_amid_reply(s))
        client_drop(c, "%s", why);
    else
        client_close(c, "08P01", "%s", why);
}

static void server_free(struct server *s, struct shard *sh)
{
    prepared_free_server(s);
    pg_track_fini(&s->track);
    inbuf_clear(&s->in);
    pg_params_unref(s->params);
    mem_wipe(s->key, sizeof s->key);
    free(s->job_error);
    free(s->host_name);
    loop_free_later(sh->loop, s);
}

struct server *server_adopt(struct pool *p, int fd, enum stream_kind kind)
{
    struct server *s = server_new(p);
    s->stream = sock_accepted(p->shard->loop, fd, kind, &server_handler, s);
    if (!s->stream) {
        server_free(s, p->shard);
        return NULL;
    }
    s->track.tx = PG_TX_IDLE;
    server_set_state(s, SERVER_IDLE);
    return s;
}

void server_vanish(struct server *s)
{
    server_free(s, s->pool->shard);
}

void server_close(struct server *s, const char *fmt, ...)
{
    struct pool *p = s->pool;
    struct shard *sh = p->shard;
    char why[ERR_TEXT_MAX], name[SERVER_NAME_MAX];
    if (s->state == SERVER_CLOSED)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (sh->conf->log_disconnections)
        log_info("%s closing because: %s (age=%llds)", server_name(s, name),
                 why, (long long)((shard_now(sh) - s->connect_us) / 1000000));
    struct client *c = s->client;
    if (c && !s->is_broken)
        link_flush_requests(c);
    bool is_amid_message = s->is_amid_message || (c && link_is_amid_request(c));
    bool is_clean =
        !s->login && pg_track_is_idle(&s->track) && !is_amid_message;
    bool is_running =
        !s->login && !s->is_broken && (s->track.count > 0 || s->was_running);
    drain_track(s);
    server_set_state(s, SERVER_CLOSED);
    if (c) {
        c->server = NULL;
        s->client = NULL;
    }
    bool is_cut = is_running && s->stream && s->stream->kind == STREAM_QUIC;
    if (is_running && !is_cut && !s->is_replication && shard_loop_now(sh))
        cancel_abandoned(s);
    server_login_free(s);
    if (is_cut) {
        /* What it runs is cancelled by that. */
        stream_reset(s->stream);
        s->stream = NULL;
    }
    if (s->stream) {
        static const char terminate[] = {'X', 0, 0, 0, 4};
        if (is_clean)
            (void)stream_write(s->stream, terminate, sizeof terminate);
        stream_close(s->stream);
        s->stream = NULL;
    }
    cancel_server_gone(s);
    if (s->is_replication)
        atomic_fetch_sub(&p->rec->n_replicating, 1);
    budget_give(sh->shared, p->rec);
    pool_publish(p);
    pool_budget_freed(sh);
    if (c)
        end_client(c, s, why);
    server_free(s, sh);
}

/* -------------------------------------------------------- queries of ours */

static void begin_job(struct server *s, enum server_job job)
{
    must(s->job == JOB_NONE && s->track.count == 0);
    s->job = (uint8_t)job;
    s->job_failed = false;
    free(s->job_error);
    s->job_error = NULL;
    prepared_note_own_query(s);
    s->request_us = shard_now(s->pool->shard);
}

void server_run_job(struct server *s, enum server_job job, struct slice sql)
{
    char head[PG_HEADER_SIZE] = {PG_MSG_QUERY};
    struct iovec iov[] = {{head, sizeof head},
                          {(void *)(uintptr_t)sql.p, sql.n},
                          {(void *)(uintptr_t) "", 1}};
    begin_job(s, job);
    pg_set_u32(head + 1, (uint32_t)(4 + sql.n + 1));
    (void)pg_track_push(&s->track, (struct track_entry){.kind = TRACK_QUERY,
                                                        .flags = TRACK_OURS});
    (void)stream_writev(s->stream, iov, ARRAY_SIZE(iov));
}

void server_run_auth_query(struct server *s, struct slice sql,
                           struct slice user)
{
    struct pgbuf *b = &s->pool->shard->text;
    static const enum track_kind kinds[] = {
        TRACK_PARSE, TRACK_BIND, TRACK_DESCRIBE, TRACK_EXECUTE, TRACK_SYNC};
    struct slice none = slice_of("", 0);
    begin_job(s, JOB_AUTH);
    pgbuf_reset(b);
    pg_put_parse(b, none, sql, NULL, 0);
    pg_put_bind(b, none, none, &user, 1);
    pg_put_describe(b, PG_TARGET_PORTAL, none);
    pg_put_execute(b, none, 0);
    pg_put_sync(b);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        (void)pg_track_push(&s->track,
                            (struct track_entry){.kind = (uint8_t)kinds[i],
                                                 .flags = TRACK_OURS});
    prepared_note_own_parse(s);
    (void)stream_write(s->stream, b->p, b->n);
}

/* The client's settings are in force, in the server's spelling. */
static void settings_done(struct server *s, struct client *c)
{
    if (s->job_failed) {
        client_close(c, "08P01", "invalid server parameter: %s", s->job_error);
        return;
    }
    pg_params_unref(c->params);
    c->params = pg_params_ref(s->params);
    client_go_on(c);
}

/* A server that cannot be set up is of no use: as if its login had failed. */
static void connect_query_done(struct server *s)
{
    struct pool *p = s->pool;
    char why[ERR_TEXT_MAX];
    if (!s->job_failed) {
        server_login_done(s);
        return;
    }
    snprintf(why, sizeof why, "connect_query failed: %s",
             s->job_error ? s->job_error : "");
    log_warning("pool %s/%s: %s", p->rec->db->name, p->rec->user->name, why);
    server_close(s, "connect_query failed");
    pool_server_failed(p, "08P01", why);
}

void server_job_done(struct server *s)
{
    enum server_job job = s->job;
    struct client *c = s->client;
    s->job = JOB_NONE;
    if (s->track.tx != PG_TX_IDLE) {
        server_close(s, "a query of the pooler left a transaction open");
        return;
    }
    if (job == JOB_AUTH && c) {
        client_login_query_done(c);
        return;
    }
    if (job == JOB_SET && c) {
        settings_done(s, c);
        return;
    }
    if (s->job_failed && (job == JOB_RESET || job == JOB_CHECK)) {
        server_close(s, "%s query failed: %s",
                     job == JOB_RESET ? "reset" : "check", s->job_error);
        return;
    }
    if (job == JOB_CONNECT) {
        connect_query_done(s);
        return;
    }
    if (job == JOB_RESET)
        s->needs_reset = false;
    pool_give_server(s);
}
