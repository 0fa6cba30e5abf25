/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* From a client to its server. Messages are framed by their header; what needs
 * no change is sent on from where it was read. The first message that a server
 * must see asks the pool for one (pool_want_server()); until it comes, and
 * while our own SET runs or a reply must be awaited, input is held. Every
 * request that will be answered goes into the server's track.
 *
 * What a client sends against the protocol ends that client. */
#include "pool/impl.h"

enum { SCRATCH_TO_SERVER = 2 };

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

static enum step flush_message(struct client *c, struct outv *o,
                               struct message_in *m)
{
    struct server *s = c->server;
    enum step step = pass(c, o, m);
    s->has_unflushed = false;
    if (s->body_left)
        return step; /* amid a reply: said at its end (consume_server()) */
    struct outv oc;
    outv_init(&oc, c->stream, LINK_SCRATCH_TO_CLIENT);
    link_answer_local(c, s, &oc);
    outv_flush(&oc);
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
    prepared_push_query(c, s);
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

static enum step send_extended(struct client *c, struct outv *o,
                               struct message_in *m)
{
    struct server *s = c->server;
    bool tracked = c->pool->tracks_statements && !s->is_replication;
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

/* What is held back needs no Flush: only what was sent does, once. */
static enum step extended_message(struct client *c, struct outv *o,
                                  struct message_in *m)
{
    struct server *s = c->server;
    enum step step = send_extended(c, o, m);
    if (step == STEP_DONE)
        s->has_unflushed = true;
    return step;
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
    if (len >= (uint32_t)c->shard->conf->max_packet_size) {
        client_close(c, "08P01", "message is longer than max_packet_size");
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

/* What follows a CopyData that was passed on is treated alike while it is more
 * of the same; returns how much was taken. */
static size_t pass_more_copy_data(struct client *c, struct outv *o,
                                  const char *p, size_t n)
{
    size_t first = (size_t)pg_get_u32(p + 1) + 1;
    if (c->body_mode != BODY_FORWARD || !c->server)
        return 0;
    uint32_t max = (uint32_t)c->shard->conf->max_packet_size;
    size_t end = link_run_end(p, 0, n, MIN(max, PG_LARGE_MESSAGE_LIMIT));
    outv_span(o, p + first, end - first);
    return end - first;
}

/* Takes as much of the input as can be taken now; returns how much. What is
 * left begins at a message. *step tells why it stopped. */
static size_t consume_client(struct client *c, const char *p, size_t n,
                             enum step *step)
{
    struct outv o; /* its pieces are not erased: this is the hot path */
    size_t at = 0;
    o.n = 0;
    c->sending = &o;
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
        if (*step == STEP_CLOSED) {
            c->sending = NULL;
            return n; /* or about to be: client_finish() */
        }
        if (*step != STEP_DONE)
            break;
        if (m.p[0] == PG_MSG_COPY_DATA && m.used == m.total)
            m.used += pass_more_copy_data(c, &o, m.p, n - at);
        at += m.used;
    }
    if (o.n)
        outv_flush(&o);
    c->sending = NULL;
    return at;
}

void link_flush_requests(struct client *c)
{
    if (c->sending && c->sending->n)
        outv_flush(c->sending);
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
        (void)client_count_held(c); /* it becomes a statement, perhaps */
        size_t used = consume_client(c, in.p, in.n, &step);
        if (c->state == CLIENT_CLOSED) {
            inbuf_clear(&in);
            return;
        }
        inbuf_drop(&in, used);
        c->in = in;
        (void)client_count_held(c); /* no more than before */
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
    else if (!client_count_held(c))
        client_close(c, "53200",
                     "no memory for a message of %zu bytes: all that is held "
                     "would exceed statement_max_bytes",
                     c->in.n >= PG_HEADER_SIZE
                         ? (size_t)pg_get_u32(c->in.p + 1) + 1
                         : n);
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
            size_t part = MIN(n, inbuf_missing(&c->in));
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
