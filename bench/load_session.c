/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "bench/load_session.h"

#include <stdlib.h>

#include "base/clock.h"
#include "net/tls.h"
#include "pg/pg_read.h"

enum { BODY_MAX = AUTH_SERVER_BODY_MAX };

static void send_out(struct session *s)
{
    struct pgbuf *b = &s->env->out;
    must(!b->failed);
    (void)stream_write(s->stream, b->p, b->n);
    pgbuf_reset(b);
}

static void forget(struct session *s)
{
    auth_server_free(s->auth);
    s->auth = NULL;
    free(s->body);
    s->body = NULL;
    s->skip = s->head_n = 0;
}

static void fail(struct session *s, const char *why)
{
    enum session_state was = s->state;
    if (s->stream)
        stream_reset(s->stream);
    s->stream = NULL;
    forget(s);
    s->state = SESSION_WAITING;
    load_on_broken(s, was, why);
}

/* --- what the server says ------------------------------------------------- */

static struct auth_server *make_auth(struct session *s)
{
    const struct load_options *o = s->env->o;
    const struct tls_info *tls = stream_tls(s->stream);
    struct auth_server_params p = {
        .user = slice_str(o->user),
        .password = slice_str(o->password ? o->password : ""),
        .has_tls = tls != NULL,
        .tls_server_end_point = tls ? tls->server_end_point : slice_of("", 0),
        .cache = s->env->cache,
    };
    return auth_server_new(&p);
}

static void auth_message(struct session *s)
{
    struct err e = {0};
    if (!s->auth)
        s->auth = make_auth(s);
    int rc = auth_server_step(s->auth, slice_of(s->body, s->body_n),
                              &s->env->out, &e);
    if (rc < 0)
        fail(s, e.text);
    else if (s->env->out.n)
        send_out(s);
}

/* The 'M' field of an ErrorResponse. */
static const char *words_of(const struct session *s)
{
    struct pgread r = pgread_of(slice_of(s->body, s->body_n));
    while (pgread_left(&r) > 1) {
        uint8_t field = pgread_u8(&r);
        struct slice text = pgread_cstr(&r);
        if (!r.bad && field == 'M')
            return text.p;
    }
    return "an error without words";
}

static void error_message(struct session *s)
{
    if (s->state < SESSION_IDLE) {
        fail(s, words_of(s));
        return;
    }
    s->has_failed = true;
    load_on_error(s, words_of(s));
}

static void send_statement(struct session *s)
{
    const struct load_options *o = s->env->o;
    if (s->is_bulk)
        pg_put_query(&s->env->out, slice_str(o->bulk_sql));
    else
        load_put_statement(&s->env->out, o, s->statement);
    send_out(s);
}

static void ready_message(struct session *s)
{
    const struct load_options *o = s->env->o;
    if (s->state == SESSION_LOGIN && o->mode == LOAD_PREPARED && !s->is_bulk) {
        s->state = SESSION_PREPARING;
        load_put_prepare(&s->env->out, o);
        send_out(s);
    } else if (s->state < SESSION_IDLE) {
        s->state = SESSION_IDLE;
        load_on_ready(s);
    } else if (!s->is_bulk && ++s->statement < o->n_statements) {
        send_statement(s);
    } else {
        s->state = SESSION_IDLE;
        load_on_done(s);
    }
}

static void message(struct session *s)
{
    switch (s->head[0]) {
    case PG_MSG_AUTH:
        auth_message(s);
        break;
    case PG_MSG_ERROR:
        error_message(s);
        break;
    case PG_MSG_READY:
        ready_message(s);
        break;
    default:
        break;
    }
}

static bool begin_message(struct session *s)
{
    uint32_t len = pg_get_u32(s->head + 1);
    s->head_n = 0;
    if (len < 4 || len > PG_LARGE_MESSAGE_LIMIT) {
        fail(s, "not a PostgreSQL server");
        return false;
    }
    s->skip = len - 4;
    s->body_n = 0;
    if (s->head[0] == PG_MSG_AUTH || s->head[0] == PG_MSG_ERROR)
        s->body = mem_new(MIN(s->skip, (uint32_t)BODY_MAX) + 1);
    return true;
}

static void end_message(struct session *s)
{
    char *body = s->body;
    message(s);
    if (body && s->body == body) {
        free(body);
        s->body = NULL;
    }
}

static size_t take_body(struct session *s, const char *p, size_t n)
{
    size_t step = MIN(n, (size_t)s->skip);
    if (s->body && s->body_n < BODY_MAX) {
        size_t kept = MIN(step, (size_t)BODY_MAX - s->body_n);
        memcpy(s->body + s->body_n, p, kept);
        s->body_n += (uint32_t)kept;
    }
    s->skip -= (uint32_t)step;
    return step;
}

static void on_data(struct stream *stream, const char *p, size_t n)
{
    struct session *s = stream->owner;
    s->bytes += n;
    while (n > 0) {
        size_t step = 1;
        if (s->skip > 0) {
            step = take_body(s, p, n);
        } else {
            s->head[s->head_n++] = *p;
            if (s->head_n == PG_HEADER_SIZE && !begin_message(s))
                return;
        }
        p += step;
        n -= step;
        if (s->skip == 0 && s->head_n == 0) {
            end_message(s);
            if (s->stream != stream)
                return; /* closed meanwhile */
        }
    }
}

/* --- connecting ----------------------------------------------------------- */

static void on_eof(struct stream *stream)
{
    fail(stream->owner, "the server closed the connection");
}

static void on_error(struct stream *stream, const struct err *e)
{
    fail(stream->owner, e->text);
}

static void start_up(struct session *s)
{
    const struct load_options *o = s->env->o;
    struct pg_pair pairs[] = {
        {slice_str("user"), slice_str(o->user)},
        {slice_str("database"), slice_str(o->dbname)},
        {slice_str("application_name"), slice_str("bench/load")},
    };
    s->state = SESSION_LOGIN;
    pg_put_startup(&s->env->out, PG_MINOR_OLDEST, pairs, ARRAY_SIZE(pairs));
    send_out(s);
}

static void on_open(struct stream *stream)
{
    start_up(stream->owner);
}

static const struct stream_handler handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_eof = on_eof,
    .on_error = on_error,
};

static void on_stream(struct upstream_ask *a, struct stream *stream)
{
    struct session *s = container_of(a, struct session, ask);
    s->stream = stream;
    stream_set_owner(stream, &handler, s);
    start_up(s);
}

static void on_fail(struct upstream_ask *a, const struct err *e)
{
    fail(container_of(a, struct session, ask), e->text);
}

void session_init(struct session *s, struct session_env *env)
{
    *s = (struct session){.env = env};
    list_init(&s->node);
    s->ask.on_stream = on_stream;
    s->ask.on_fail = on_fail;
}

void session_open(struct session *s)
{
    static const struct sock_options none = {.keepalive = false};
    struct err e;
    s->open_us = clock_now_us();
    s->state = SESSION_ASKING;
    if (s->env->up) {
        upstream_ask(s->env->up, &s->ask);
        return;
    }
    s->stream =
        sock_connect(s->env->loop, &s->env->o->unix_at, &none, &handler, s, &e);
    if (!s->stream)
        fail(s, e.text);
}

void session_query(struct session *s, int64_t arrival_us)
{
    must(s->state == SESSION_IDLE);
    s->state = SESSION_BUSY;
    s->arrival_us = arrival_us;
    s->statement = 0;
    s->has_failed = false;
    send_statement(s);
}

void session_close(struct session *s)
{
    if (s->state == SESSION_ASKING && s->env->up)
        upstream_take_back(&s->ask);
    if (s->stream && s->state >= SESSION_IDLE) {
        pg_put_terminate(&s->env->out);
        send_out(s);
    }
    if (s->stream)
        stream_close(s->stream);
    s->stream = NULL;
    forget(s);
    s->state = SESSION_CLOSED;
}
