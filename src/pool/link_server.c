/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* From a server to its client. The track tells which replies are the client's;
 * those to requests of ours are swallowed, and those to requests that we did
 * not pass on are put in at their place. After the ReadyForQuery that leaves
 * the server idle it goes back to the pool, in the same turn.
 *
 * What a server sends against the protocol ends that server and its client. */
#include <stdlib.h>

#include "base/log.h"
#include "pg/pg_error.h"
#include "pool/impl.h"

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
    if (c->query_us) {
        pool->stats.query_time_us += (uint64_t)(now - c->query_us);
        latency_add(&pool->latency->query, now - c->query_us);
    }
    c->query_us = r->s->track.count ? now : 0;
    c->request_us = now;
    if (r->s->track.count == 0)
        r->s->may_begin = false;
    if (r->s->track.tx != PG_TX_IDLE)
        return;
    pool->stats.xact_count++;
    if (c->xact_us) {
        pool->stats.xact_time_us += (uint64_t)(now - c->xact_us);
        latency_add(&pool->latency->xact, now - c->xact_us);
    }
    c->xact_us = r->s->track.count ? now : 0;
    if (r->s->track.count == 0)
        r->s->has_barrier_bound = false;
}

/* The newest first, so that each finds what it changed as it left it. */
static void after_error(struct replying *r, const struct track_entry *failed)
{
    struct track_entry e;
    while (pg_track_skip(&r->s->track, &e))
        prepared_settle(r->c, r->s, &e, OUTCOME_SKIPPED);
    prepared_settle(r->c, r->s, failed, OUTCOME_FAILED);
}

static void confused(struct replying *r, char type)
{
    r->is_broken = true;
    outv_flush(&r->o); /* what came before it is good */
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
    if (r->c) /* a notice, too, may be of a later request */
        link_answer_local(r->c, s, &r->o);
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
        if (is_whole)
            link_answer_local(r->c, s, &r->o);
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
    uint32_t max = (uint32_t)s->pool->shard->conf->max_packet_size;
    size_t at = 0;
    while (at < n && !r->is_broken) {
        if (s->body_left) {
            size_t part = MIN((size_t)s->body_left, n - at);
            if (s->body_mode == BODY_FORWARD && r->c)
                outv_span(&r->o, p + at, part);
            s->body_left -= (uint32_t)part;
            at += part;
            if (!s->body_left && r->c && s->job == JOB_NONE)
                link_answer_local(r->c, s, &r->o);
            continue;
        }
        if (n - at < PG_HEADER_SIZE)
            break;
        uint32_t len = pg_get_u32(p + at + 1);
        if (len < 4 || len > INT32_MAX) {
            confused(r, p[at]);
            break;
        }
        if (len >= max) {
            server_close(s, "message is longer than max_packet_size");
            r->is_broken = true;
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
            link_answer_local(r->c, s, &r->o);
            if (have == total)
                have = total = link_run_end(p, at, n, max) - at;
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
    size_t n = inbuf_missing(in);
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
    if (c && c->wants_close && (!link_will_answer(c) || c->is_gone)) {
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
    struct replying r; /* not erased as a whole: this is the hot path */
    r.s = s;
    r.c = s->client;
    r.is_broken = false;
    struct stream *to = r.c ? r.c->stream : s->stream;
    outv_init(&r.o, to, LINK_SCRATCH_TO_CLIENT);
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
