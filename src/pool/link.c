/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The two directions between a client and its server.
 *
 * Client to server: messages are framed by their header; what needs no change
 * is sent on from where it was read. The first message that a server must see
 * asks the pool for one (pool_want_server()); until it comes, and while our own
 * SET runs or a reply must be awaited, input is held. Every request that will
 * be answered goes into the server's track.
 *
 * Server to client: the track tells which replies are the client's; those to
 * requests of ours are swallowed, and those to requests that we did not pass on
 * are put in at their place. After the ReadyForQuery that leaves the server
 * idle it goes back to the pool, in the same turn.
 *
 * Failures: what a client sends against the protocol ends that client; what a
 * server sends against it ends that server and its client. */
#include <stdlib.h>

#include "base/log.h"
#include "pg/pg_error.h"
#include "pool/impl.h"

enum { SCRATCH_TO_SERVER = 2, SCRATCH_TO_CLIENT = 4 };

int inbuf_append(struct inbuf *b, const char *p, size_t n)
{
    size_t need = b->n + n;
    if (need > UINT32_MAX / 2)
        return ERR_TOO_LARGE;
    if (need > b->cap) {
        size_t cap = MAX((size_t)b->cap * 2, (need + 63) & ~(size_t)63);
        char *wide = realloc(b->p, cap);
        if (!wide)
            return ERR_NOMEM;
        b->p = wide;
        b->cap = (uint32_t)cap;
    }
    memcpy(b->p + b->n, p, n);
    b->n += (uint32_t)n;
    return 0;
}

void inbuf_clear(struct inbuf *b)
{
    free(b->p);
    *b = (struct inbuf){0};
}

void inbuf_drop(struct inbuf *b, size_t n)
{
    if (n == b->n) {
        inbuf_clear(b);
        return;
    }
    memmove(b->p, b->p + n, b->n - n);
    b->n -= (uint32_t)n;
}

/* ------------------------------------------------------- attach, detach */

void link_attach(struct client *c, struct server *s)
{
    must(!c->server && !s->client);
    c->server = s;
    s->client = c;
    server_set_state(s, SERVER_ACTIVE);
    c->pool->stats.server_assignment_count++;
    s->request_us = shard_now(c->shard);
    if (c->state != CLIENT_LOGIN)
        client_set_state(c, CLIENT_ACTIVE);
}

void link_detach(struct client *c)
{
    struct server *s = c->server;
    c->server = NULL;
    s->client = NULL;
    s->has_barrier_bound = false;
    c->is_stalled = false;
    s->request_us = shard_now(c->shard);
    if (c->state == CLIENT_ACTIVE)
        client_set_state(c, CLIENT_IDLE);
    stream_resume(s->stream);
}

bool link_will_answer(const struct client *c)
{
    const struct server *s = c->server;
    const struct pg_track *t = &s->track;
    return s->job == JOB_NONE && t->count && !t->in_copy_in &&
           !t->is_skipping && !t->has_unsynced && !s->is_replication &&
           (c->body_left == 0 || c->body_mode == BODY_DISCARD);
}

static bool at_boundary(const struct client *c, const struct server *s)
{
    bool client_is = !c || c->body_left == 0 || c->body_mode == BODY_DISCARD;
    return client_is && s->body_left == 0 && s->in.n == 0;
}

void link_release_if_idle(struct server *s)
{
    struct client *c = s->client;
    if (!c || s->job != JOB_NONE || !pg_track_is_idle(&s->track) ||
        !at_boundary(c, s))
        return;
    if (s->pool->mode == CONF_POOL_SESSION || s->is_replication)
        return;
    link_detach(c);
    s->needs_reset |= s->pool->shard->conf->server_reset_query_always;
    pool_give_server(s);
}

/* --------------------------------------------------- client to server */

static struct outv *to_server(struct client *c, struct outv *o)
{
    outv_init(o, c->server->stream, SCRATCH_TO_SERVER);
    return o;
}

static void end_by_protocol(struct client *c, const char *text)
{
    client_close(c, "08P01", "%s", text);
}

/* Starts the clocks of the statistics and the time-outs. */
static void note_request(struct client *c)
{
    int64_t now = shard_now(c->shard);
    c->request_us = now;
    if (!c->query_us)
        c->query_us = now;
    if (!c->xact_us)
        c->xact_us = now;
}

static void push(struct server *s, enum track_kind kind, unsigned flags)
{
    (void)pg_track_push(
        &s->track,
        (struct track_entry){.kind = (uint8_t)kind, .flags = (uint8_t)flags});
}

/* Passes the message on as it is, of which the rest may be still to come. */
static enum step pass(struct client *c, struct outv *o, struct message_in *m)
{
    m->used = MIN(m->have, m->total);
    outv_span(o, m->p, m->used);
    c->body_left = (uint32_t)(m->total - m->used);
    c->body_mode = BODY_FORWARD;
    return STEP_DONE;
}

static enum step discard(struct client *c, struct message_in *m)
{
    m->used = MIN(m->have, m->total);
    c->body_left = (uint32_t)(m->total - m->used);
    c->body_mode = BODY_DISCARD;
    return STEP_DONE;
}

/* Without a server there is nothing to synchronise with. */
static enum step answer_sync_locally(struct client *c, struct message_in *m)
{
    static const char ready[] = {'Z', 0, 0, 0, 5, 'I'};
    (void)stream_write(c->stream, ready, sizeof ready);
    m->used = m->total;
    return STEP_DONE;
}

/* Replies that we owe and that no server reply stands before: Flush asks for
 * them. */
static void answer_local(struct client *c, struct server *s, struct outv *o)
{
    struct track_entry e;
    while (pg_track_pop_local(&s->track, &e)) {
        static const char parse[] = {'1', 0, 0, 0, 4};
        static const char close[] = {'3', 0, 0, 0, 4};
        if (e.kind == TRACK_PARSE)
            outv_copy(o, parse, sizeof parse);
        else if (e.kind == TRACK_CLOSE)
            outv_copy(o, close, sizeof close);
        prepared_settle(c, s, &e, OUTCOME_DONE);
    }
}

static enum step flush_message(struct client *c, struct outv *o,
                               struct message_in *m)
{
    struct server *s = c->server;
    enum step step = pass(c, o, m);
    struct outv oc;
    outv_init(&oc, c->stream, SCRATCH_TO_CLIENT);
    answer_local(c, s, &oc);
    outv_flush(&oc);
    s->has_unflushed = false;
    return step;
}

static enum step query_message(struct client *c, struct outv *o,
                               struct message_in *m)
{
    struct server *s = c->server;
    if (c->shard->conf->disable_pqexec) {
        client_close(c, "08P01", "PQexec disallowed");
        return STEP_CLOSED;
    }
    prepared_note_query(c, s);
    push(s, TRACK_QUERY, TRACK_BARRIER);
    s->has_unflushed = false;
    return pass(c, o, m);
}

static enum step sync_message(struct client *c, struct outv *o,
                              struct message_in *m)
{
    push(c->server, TRACK_SYNC, 0);
    c->server->has_unflushed = false;
    return pass(c, o, m);
}

static enum step extended_message(struct client *c, struct outv *o,
                                  struct message_in *m)
{
    struct server *s = c->server;
    bool tracked = c->pool->tracks_statements && !s->is_replication;
    s->has_unflushed = true;
    switch (m->p[0]) {
    case PG_MSG_PARSE:
        if (tracked)
            return prepared_parse(c, o, m);
        c->pool->stats.client_parse_count++;
        c->pool->stats.server_parse_count++;
        push(s, TRACK_PARSE, 0);
        return pass(c, o, m);
    case PG_MSG_BIND:
        if (tracked)
            return prepared_bind(c, o, m);
        c->pool->stats.bind_count++;
        push(s, TRACK_BIND, 0);
        return pass(c, o, m);
    case PG_MSG_DESCRIBE:
        if (tracked)
            return prepared_describe(c, o, m);
        push(s, TRACK_DESCRIBE, 0);
        return pass(c, o, m);
    case PG_MSG_CLOSE:
        if (tracked)
            return prepared_close(c, o, m);
        push(s, TRACK_CLOSE, 0);
        return pass(c, o, m);
    default:
        push(s, TRACK_EXECUTE, s->has_barrier_bound ? TRACK_BARRIER : 0);
        return pass(c, o, m);
    }
}

static enum step linked_message(struct client *c, struct outv *o,
                                struct message_in *m)
{
    struct server *s = c->server;
    if (s->track.is_skipping && !strchr("Sdcf", m->p[0]))
        return discard(c, m); /* as the server would */
    switch (m->p[0]) {
    case PG_MSG_QUERY:
        return query_message(c, o, m);
    case PG_MSG_PARSE:
    case PG_MSG_BIND:
    case PG_MSG_DESCRIBE:
    case PG_MSG_CLOSE:
    case PG_MSG_EXECUTE:
        return extended_message(c, o, m);
    case PG_MSG_SYNC:
        return sync_message(c, o, m);
    case PG_MSG_FLUSH:
        return flush_message(c, o, m);
    case PG_MSG_FUNCTION_CALL:
        push(s, TRACK_FUNCTION, 0);
        s->has_unflushed = false;
        return pass(c, o, m);
    case PG_MSG_COPY_DONE:
    case PG_MSG_COPY_FAIL:
        push(s, TRACK_COPY_END, 0);
        return pass(c, o, m);
    default: /* CopyData */
        return pass(c, o, m);
    }
}

static bool is_small_type(char type)
{
    return type == PG_MSG_CLOSE || type == PG_MSG_DESCRIBE ||
           type == PG_MSG_EXECUTE || type == PG_MSG_FLUSH ||
           type == PG_MSG_SYNC || type == PG_MSG_TERMINATE ||
           type == PG_MSG_COPY_DONE;
}

static bool is_known_type(char type)
{
    return type && strchr("QPBDCESHFXdcf", type);
}

/* PostgreSQL's limits and, for what it answers such a message with, its text.
 */
static enum step check_header(struct client *c, char type, uint32_t len)
{
    if (!is_known_type(type)) {
        client_close(c, "08P01", "invalid frontend message type %u",
                     (unsigned char)type);
        return STEP_CLOSED;
    }
    uint32_t max =
        is_small_type(type) ? PG_SMALL_MESSAGE_LIMIT : PG_LARGE_MESSAGE_LIMIT;
    if (len < 4 || len > max) {
        end_by_protocol(c, "invalid message length");
        return STEP_CLOSED;
    }
    return STEP_DONE;
}

/* Terminate: what was asked before it is still carried out, as PostgreSQL
 * does. */
static enum step terminate_message(struct client *c, struct outv *o)
{
    if (o->n)
        outv_flush(o);
    client_finish(c, "client close request");
    return STEP_CLOSED;
}

static enum step unlinked_message(struct client *c, struct message_in *m,
                                  bool *needs_server)
{
    *needs_server = false;
    if (c->is_skipping && m->p[0] != PG_MSG_SYNC)
        return discard(c, m);
    switch (m->p[0]) {
    case PG_MSG_COPY_DATA:
    case PG_MSG_COPY_DONE:
    case PG_MSG_COPY_FAIL: /* of a COPY that has failed */
        return discard(c, m);
    case PG_MSG_FLUSH:
        return discard(c, m);
    case PG_MSG_SYNC:
        if (m->have < m->total)
            return STEP_MORE;
        c->is_skipping = false;
        return answer_sync_locally(c, m);
    default:
        *needs_server = true;
        return STEP_DONE;
    }
}

static enum step one_message(struct client *c, struct outv *o,
                             struct message_in *m)
{
    enum step step = check_header(c, m->p[0], pg_get_u32(m->p + 1));
    if (step != STEP_DONE)
        return step;
    if (m->p[0] == PG_MSG_TERMINATE)
        return terminate_message(c, o);
    if (!c->server) {
        bool needs_server;
        step = unlinked_message(c, m, &needs_server);
        if (!needs_server)
            return step;
        if (!pool_want_server(c))
            return c->state == CLIENT_CLOSED ? STEP_CLOSED : STEP_HOLD;
        to_server(c, o);
    }
    if (c->server->job != JOB_NONE || c->server->track.count >= TRACK_MAX)
        return STEP_HOLD;
    note_request(c);
    return linked_message(c, o, m);
}

/* Takes as much of the input as can be taken now; returns how much. What is
 * left begins at a message. *step tells why it stopped. */
static size_t consume_client(struct client *c, const char *p, size_t n,
                             enum step *step)
{
    struct outv o = {0};
    size_t at = 0;
    *step = STEP_DONE;
    if (c->server)
        to_server(c, &o);
    while (at < n) {
        if (c->body_left) {
            size_t part = MIN((size_t)c->body_left, n - at);
            if (c->body_mode == BODY_FORWARD)
                outv_span(&o, p + at, part);
            c->body_left -= (uint32_t)part;
            at += part;
            continue;
        }
        if (n - at < PG_HEADER_SIZE) {
            *step = STEP_MORE;
            break;
        }
        struct message_in m = {.p = p + at, .have = n - at};
        m.total = (size_t)pg_get_u32(m.p + 1) + 1;
        m.have = MIN(m.have, m.total);
        *step = one_message(c, &o, &m);
        if (*step == STEP_CLOSED)
            return n; /* or about to be: client_finish() */
        if (*step != STEP_DONE)
            break;
        at += m.used;
    }
    if (o.n)
        outv_flush(&o);
    return at;
}

/* A reply must be awaited: it comes only if the server is asked to send. */
static void stall(struct client *c)
{
    struct server *s = c->server;
    if (!s || s->job != JOB_NONE)
        return;
    c->is_stalled = true;
    if (s->has_unflushed) {
        static const char flush[] = {'H', 0, 0, 0, 4};
        (void)stream_write(s->stream, flush, sizeof flush);
        s->has_unflushed = false;
    }
}

static bool must_hold(const struct client *c)
{
    return c->is_stalled || c->state == CLIENT_WAITING ||
           (c->server && c->server->job != JOB_NONE);
}

/* After input was consumed: keeps the rest, looks at the flow. */
static void after_input(struct client *c, enum step step)
{
    if (step == STEP_HOLD && !c->wants_close)
        stall(c);
    if (c->server && c->body_left == 0)
        link_release_if_idle(c->server);
    client_update_flow(c);
}

void client_go_on(struct client *c)
{
    enum step step = STEP_DONE;
    c->is_stalled = false;
    if (c->in.n) {
        struct inbuf in = c->in;
        c->in = (struct inbuf){0};
        size_t used = consume_client(c, in.p, in.n, &step);
        if (c->state == CLIENT_CLOSED) {
            inbuf_clear(&in);
            return;
        }
        inbuf_drop(&in, used);
        c->in = in;
    }
    after_input(c, step);
}

void link_skip_request(struct client *c)
{
    /* What is held begins with the request. */
    char type = c->in.n ? c->in.p[0] : 0;
    bool is_simple = type == PG_MSG_QUERY || type == PG_MSG_FUNCTION_CALL;
    if (is_simple && c->in.n >= PG_HEADER_SIZE) {
        static const char ready[] = {'Z', 0, 0, 0, 5, 'I'};
        size_t total = (size_t)pg_get_u32(c->in.p + 1) + 1;
        size_t here = MIN(total, (size_t)c->in.n);
        inbuf_drop(&c->in, here);
        c->body_left = (uint32_t)(total - here);
        c->body_mode = BODY_DISCARD;
        (void)stream_write(c->stream, ready, sizeof ready);
    } else {
        c->is_skipping = true;
    }
    client_go_on(c);
}

static void hold(struct client *c, const char *p, size_t n)
{
    if (inbuf_append(&c->in, p, n))
        client_close(c, "53200", "out of memory for a message of the client");
}

/* How many bytes complete the message that the held input ends with, as far as
 * that is known: first its header, then what its kind needs. */
static size_t missing(const struct inbuf *in)
{
    if (in->n < PG_HEADER_SIZE)
        return PG_HEADER_SIZE - in->n;
    size_t total = (size_t)pg_get_u32(in->p + 1) + 1;
    return total > in->n ? MIN(total - in->n, (size_t)1 << 30) : 0;
}

void link_from_client(struct client *c, const char *p, size_t n)
{
    c->pool->stats.received += n;
    if (c->wants_close)
        return;
    while (n && !must_hold(c)) {
        enum step step;
        if (c->in.n) {
            /* An incomplete message is there: complete it, no more. */
            size_t part = MIN(n, missing(&c->in));
            hold(c, p, part);
            p += part;
            n -= part;
            if (c->state == CLIENT_CLOSED)
                return;
            client_go_on(c);
            if (c->state == CLIENT_CLOSED)
                return;
            if (part == 0)
                break;
            continue;
        }
        size_t used = consume_client(c, p, n, &step);
        if (c->state == CLIENT_CLOSED)
            return;
        p += used;
        n -= used;
        if (n)
            hold(c, p, n);
        if (c->state == CLIENT_CLOSED)
            return;
        after_input(c, step);
        return;
    }
    if (n)
        hold(c, p, n);
    if (c->state != CLIENT_CLOSED)
        client_update_flow(c);
}

/* --------------------------------------------------- server to client */

/* What the handling of a reply may need. */
struct replying {
    struct server *s;
    struct client *c; /* NULL: nobody listens */
    struct outv o;
    bool is_broken;
};

/* These are looked at whole, unless they are very long. */
static bool is_held_reply(char type)
{
    switch (type) {
    case PG_MSG_READY:
    case PG_MSG_ERROR:
    case PG_MSG_NOTICE:
    case PG_MSG_PARAMETER_STATUS:
    case PG_MSG_COMMAND_COMPLETE:
    case PG_MSG_NOTIFICATION:
        return true;
    default:
        return false;
    }
}

static bool front_is_ours(const struct server *s)
{
    const struct track_entry *e = pg_track_front(&s->track);
    return e && (e->flags & TRACK_OURS);
}

void link_note_parameter(struct server *s, struct slice body,
                         bool *is_news_for_client)
{
    const char *end = memchr(body.p, 0, body.n);
    *is_news_for_client = true;
    if (!end || end + 1 > body.p + body.n)
        return;
    struct slice name = slice_of(body.p, (size_t)(end - body.p));
    struct slice value = slice_of(end + 1, body.n - name.n - 1);
    if (value.n && value.p[value.n - 1] == 0)
        value.n--;
    if (!s->login && slice_is(name, "session_authorization"))
        s->is_other_user = !slice_is(value, s->pool->rec->user->name);
    bool same = s->client && s->client->params == s->params;
    s->params = pg_params_with(s->params, name, value);
    if (!s->client)
        return;
    struct slice was = pg_params_get(s->client->params, name);
    *is_news_for_client = !was.p || !slice_eq(was, value);
    if (same) {
        pg_params_unref(s->client->params);
        s->client->params = pg_params_ref(s->params);
    } else {
        s->client->params = pg_params_with(s->client->params, name, value);
    }
}

static void note_job_error(struct server *s, struct slice body)
{
    struct pg_error x;
    s->job_failed = true;
    if (s->job_error)
        return;
    bool is_good = pg_error_parse(body, &x) && x.message.p;
    s->job_error = is_good ? mem_strndup(x.message.p,
                                         MIN(x.message.n, (size_t)ERR_TEXT_MAX))
                           : mem_strdup("error without a text");
}

static bool tag_is(struct slice body, const char *tag)
{
    size_t n = strlen(tag);
    return body.n >= n && !memcmp(body.p, tag, n);
}

static bool drops_all(struct slice tag)
{
    return tag.n && tag.p[0] == 'D' &&
           (tag_is(tag, "DISCARD ALL") || tag_is(tag, "DEALLOCATE ALL"));
}

/* A message of a query of ours. */
static void own_reply(struct replying *r, char type, struct slice m)
{
    struct server *s = r->s;
    struct slice body = slice_of(m.p + PG_HEADER_SIZE, m.n - PG_HEADER_SIZE);
    bool is_news;
    if (type == PG_MSG_ERROR)
        note_job_error(s, body);
    if (s->job == JOB_AUTH && r->c)
        client_login_query_reply(r->c, type, body);
    if (type == PG_MSG_COMMAND_COMPLETE && drops_all(body))
        prepared_forget_all(NULL, s);
    if (type == PG_MSG_PARAMETER_STATUS) {
        link_note_parameter(s, body, &is_news);
        if (is_news && r->c && s->job == JOB_SET)
            outv_copy(&r->o, m.p, m.n);
    }
}

static void note_ready(struct replying *r)
{
    struct client *c = r->c;
    struct pool *pool = r->s->pool;
    if (!c)
        return;
    int64_t now = shard_now(c->shard);
    pool->stats.query_count++;
    if (c->query_us)
        pool->stats.query_time_us += (uint64_t)(now - c->query_us);
    c->query_us = r->s->track.count ? now : 0;
    c->request_us = now;
    if (r->s->track.tx != PG_TX_IDLE)
        return;
    pool->stats.xact_count++;
    if (c->xact_us)
        pool->stats.xact_time_us += (uint64_t)(now - c->xact_us);
    c->xact_us = r->s->track.count ? now : 0;
    if (r->s->track.count == 0)
        r->s->has_barrier_bound = false;
}

static void after_error(struct replying *r, const struct track_entry *failed)
{
    struct track_entry e;
    prepared_settle(r->c, r->s, failed, OUTCOME_FAILED);
    while (pg_track_skip(&r->s->track, &e))
        prepared_settle(r->c, r->s, &e, OUTCOME_SKIPPED);
}

static void answer_local_before(struct replying *r, char type)
{
    if (type == PG_MSG_NOTICE || type == PG_MSG_NOTIFICATION ||
        type == PG_MSG_PARAMETER_STATUS || !r->s->track.count)
        return;
    if (r->c)
        answer_local(r->c, r->s, &r->o);
}

static void confused(struct replying *r, char type)
{
    r->is_broken = true;
    server_close(r->s, "unexpected message '%c' from server",
                 type >= 0x20 && type < 0x7f ? type : '?');
}

/* An error that no request led to: the server is going away. Its client has
 * been told by the server's own message then. */
static void note_fatal(struct replying *r, struct slice body)
{
    struct pg_error x;
    char text[256];
    if (!pg_error_parse(body, &x) || !pg_error_is_fatal(&x))
        return;
    r->s->said_fatal = true;
    pg_error_text(&x, text, sizeof text);
    if (r->c) {
        log_debug("server of client %llu: %s", (unsigned long long)r->c->id,
                  text);
        return;
    }
    r->is_broken = true;
    server_close(r->s, "server said while idle: %s", text);
}

/* One reply; m is as much of it as there is: the whole for is_held_reply()
 * types up to REPLY_HELD_MAX, else at least the header. Returns how the rest of
 * it, if there is one, is to be treated. */
static enum body_mode one_reply(struct replying *r, struct slice m,
                                size_t total)
{
    struct server *s = r->s;
    struct track_reply t;
    char type = m.p[0];
    bool is_whole = m.n == total;
    struct slice body = slice_of(m.p + PG_HEADER_SIZE, m.n - PG_HEADER_SIZE);

    if (type == PG_MSG_READY && total != 6) {
        confused(r, type);
        return BODY_DISCARD;
    }
    answer_local_before(r, type);
    bool ours = front_is_ours(s);
    char status = type == PG_MSG_READY ? body.p[0] : 0;
    if (pg_track_reply(&s->track, type, status, &t)) {
        confused(r, type);
        return BODY_DISCARD;
    }
    if (ours && s->job != JOB_NONE) {
        if (is_whole)
            own_reply(r, type, m);
        else if (type == PG_MSG_ERROR)
            s->job_failed = true;
        if (t.has_failed)
            after_error(r, &t.entry);
        if (type == PG_MSG_READY)
            s->job_ended = true;
        return BODY_DISCARD;
    }
    if (ours && t.has_entry && !t.has_failed) {
        /* ParseComplete or CloseComplete of a request of ours. */
        prepared_settle(r->c, s, &t.entry, OUTCOME_DONE);
        return BODY_DISCARD;
    }
    if (type == PG_MSG_PARAMETER_STATUS && is_whole) {
        bool is_news;
        link_note_parameter(s, body, &is_news);
    }
    if (type == PG_MSG_ERROR && is_whole && !t.has_failed)
        note_fatal(r, body);
    if (!r->c || r->is_broken)
        return BODY_DISCARD;
    if (type == PG_MSG_ERROR && t.has_failed) {
        struct pgbuf *fixed = &s->pool->shard->text;
        pgbuf_reset(fixed);
        bool replaced =
            is_whole && prepared_fix_error(r->c, s, &t.entry, body, fixed);
        if (replaced && fixed->n <= LOOP_SCRATCH_BYTES)
            outv_copy(&r->o, fixed->p, fixed->n);
        else
            outv_span(&r->o, m.p, m.n);
        after_error(r, &t.entry);
        return BODY_FORWARD;
    }
    outv_span(&r->o, m.p, m.n);
    if (t.has_entry) {
        prepared_settle(r->c, s, &t.entry, OUTCOME_DONE);
        answer_local(r->c, s, &r->o);
    }
    if (type == PG_MSG_COMMAND_COMPLETE && is_whole && drops_all(body))
        prepared_forget_all(r->c, s);
    if (type == PG_MSG_READY)
        note_ready(r);
    return BODY_FORWARD;
}

/* Takes whole messages, and the beginnings of those that stream; returns how
 * much. What is left begins at a message. */
static size_t consume_server(struct replying *r, const char *p, size_t n)
{
    struct server *s = r->s;
    size_t at = 0;
    while (at < n && !r->is_broken) {
        if (s->body_left) {
            size_t part = MIN((size_t)s->body_left, n - at);
            if (s->body_mode == BODY_FORWARD && r->c)
                outv_span(&r->o, p + at, part);
            s->body_left -= (uint32_t)part;
            at += part;
            continue;
        }
        if (n - at < PG_HEADER_SIZE)
            break;
        uint32_t len = pg_get_u32(p + at + 1);
        if (len < 4 || len > INT32_MAX) {
            confused(r, p[at]);
            break;
        }
        size_t total = (size_t)len + 1;
        size_t have = MIN(total, n - at);
        char type = p[at];
        if (have < total && is_held_reply(type) && total <= REPLY_HELD_MAX)
            break;
        if ((type == PG_MSG_DATA_ROW || type == PG_MSG_COPY_DATA) && r->c &&
            s->job == JOB_NONE && s->track.count) {
            /* By far the most frequent; nothing to decide, once what we owe
             * before it is said. */
            answer_local(r->c, s, &r->o);
            outv_span(&r->o, p + at, have);
            s->body_mode = BODY_FORWARD;
        } else if (s->job == JOB_AUTH && have < total &&
                   total <= REPLY_HELD_MAX) {
            break;
        } else {
            s->body_mode = (uint8_t)one_reply(r, slice_of(p + at, have), total);
            if (r->is_broken)
                break;
            r->c = s->client;
        }
        s->body_left = (uint32_t)(total - have);
        at += have;
    }
    return at;
}

static size_t missing_reply(const struct inbuf *in)
{
    size_t n = missing(in);
    return n ? n : 1;
}

static void after_replies(struct server *s)
{
    struct client *c = s->client;
    if (s->track.is_lost) {
        server_close(s, "messages during COPY cannot be followed");
        return;
    }
    if (s->job_ended) {
        s->job_ended = false;
        server_job_done(s);
        if (s->state == SERVER_CLOSED)
            return;
        c = s->client;
    }
    if (c && c->wants_close && !link_will_answer(c)) {
        client_drop(c, "client close request");
        return;
    }
    if (c && s->pool->mode == CONF_POOL_STATEMENT && s->job == JOB_NONE &&
        s->track.tx != PG_TX_IDLE && s->track.count == 0) {
        client_close(c, "08P01",
                     "transaction blocks not allowed in statement pooling "
                     "mode");
        return;
    }
    if (c && c->is_stalled)
        client_go_on(c);
    if (s->state == SERVER_CLOSED || !s->client)
        return;
    link_release_if_idle(s);
    if (s->state != SERVER_CLOSED && s->client)
        server_update_flow(s);
}

void link_from_server(struct server *s, const char *p, size_t n)
{
    struct replying r = {.s = s, .c = s->client};
    struct stream *to = r.c ? r.c->stream : s->stream;
    outv_init(&r.o, to, SCRATCH_TO_CLIENT);
    while (n && s->in.n && !r.is_broken) {
        size_t part = MIN(n, missing_reply(&s->in));
        if (inbuf_append(&s->in, p, part)) {
            server_close(s, "out of memory for a message of the server");
            return;
        }
        p += part;
        n -= part;
        size_t used = consume_server(&r, s->in.p, s->in.n);
        if (r.is_broken)
            return;
        if (used) {
            outv_flush(&r.o);
            inbuf_drop(&s->in, used);
        }
    }
    if (n && !r.is_broken) {
        size_t used = consume_server(&r, p, n);
        if (r.is_broken)
            return;
        if (used < n && inbuf_append(&s->in, p + used, n - used)) {
            server_close(s, "out of memory for a message of the server");
            return;
        }
    }
    if (r.o.total) {
        s->pool->stats.sent += r.o.total;
        outv_flush(&r.o);
    }
    if (s->state != SERVER_CLOSED)
        after_replies(s);
}
