/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* START  the first packets; what is not N'ed goes on
 * ASK    for a stream; the client is not read
 * OPEN   both ways
 *
 * Until the pooler's first byte what the client began with is kept: a session
 * that was refused because the pooler drains is tried once more elsewhere, and
 * nothing has happened yet. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "edge/flows.h"
#include "edge/tunnel.h"
#include "pg/pg_startup.h"
#include "pg/pg_write.h"

enum {
    START_MAX = 65536,
    START_LIMIT_US = 60 * 1000000, /* for the client to say something */
    ERROR_MAX = 1024,
    RETRIES_MAX = 8, /* each dead connection may be met once */
};

enum tunnel_state { TUNNEL_START, TUNNEL_ASK, TUNNEL_OPEN };

struct tunnel {
    struct list node;
    struct tunnels *all;
    enum tunnel_state state;
    struct stream *local, *up; /* up: NULL until OPEN */
    struct upstream_ask ask;
    struct timer timer;
    char *start; /* what the client began with; NULL: not kept any more */
    size_t start_n, start_cap;
    unsigned n_retries;
    struct flows flows;
    bool is_answered; /* the pooler has said something */
    bool local_ended, up_ended;
};

static void end(struct tunnel *t)
{
    if (t->state == TUNNEL_ASK)
        upstream_take_back(&t->ask);
    timer_clear(t->all->loop, &t->timer);
    flows_close(&t->flows);
    if (t->local)
        stream_close(t->local);
    if (t->up)
        stream_close(t->up);
    list_remove(&t->node);
    t->all->n--;
    free(t->start);
    loop_free_later(t->all->loop, t);
}

/* Both know that this was no ordinary end. */
static void break_off(struct tunnel *t)
{
    flows_close(&t->flows);
    if (t->up)
        stream_reset(t->up);
    t->up = NULL;
    end(t);
}

static void refuse(struct tunnel *t, const char *sqlstate, const char *text)
{
    struct pgbuf b;
    pgbuf_init(&b, ERROR_MAX);
    pg_put_error(&b, "FATAL", sqlstate, text);
    (void)stream_write(t->local, b.p, b.n);
    pgbuf_fini(&b);
    end(t);
}

/* --- both ways --------------------------------------------------------------
 */

static void pass(struct stream *from, struct stream *to, const char *p,
                 size_t n)
{
    (void)stream_write(to, p, n); /* a broken one says so itself */
    if (stream_pending(to) > STREAM_BACKLOG_HIGH)
        stream_pause(from);
}

/* Its own subflows are there: the client may ask for bulk. */
static void on_flows(struct flows *f)
{
    struct tunnel *t = container_of(f, struct tunnel, flows);
    if (stream_pending(t->up) == 0)
        stream_resume(t->local);
}

static void first_answer(struct tunnel *t)
{
    t->is_answered = true;
    t->flows.on_ready = on_flows;
    if (flows_open(&t->flows, t->all->up, t->up))
        stream_pause(t->local);
}

static void up_data(struct stream *s, const char *p, size_t n)
{
    struct tunnel *t = s->owner;
    free(t->start);
    t->start = NULL;
    if (!t->is_answered)
        first_answer(t);
    pass(s, t->local, p, n);
}

static void up_drain(struct stream *s)
{
    struct tunnel *t = s->owner;
    if (!flows_are_coming(&t->flows))
        stream_resume(t->local);
}

static void up_eof(struct stream *s)
{
    struct tunnel *t = s->owner;
    t->up_ended = true;
    end(t); /* the backlog still leaves */
}

static void ask(struct tunnel *t);

/* The client has sent one packet, as far as we know without effect: it may be
 * sent again. */
static bool has_only_begun(const struct tunnel *t)
{
    return t->start_n >= 8 && pg_get_u32(t->start) == t->start_n &&
           pg_get_u32(t->start + 4) != PG_CANCEL_REQUEST_CODE;
}

static void up_error(struct stream *s, const struct err *e)
{
    struct tunnel *t = s->owner;
    char text[ERROR_MAX];
    bool again = t->start && t->n_retries < RETRIES_MAX &&
                 (e->code == ERR_SHUTDOWN || has_only_begun(t));
    flows_close(&t->flows);
    stream_close(s);
    t->up = NULL;
    if (again) {
        t->n_retries++;
        ask(t);
        return;
    }
    log_debug("edge: session lost: %s", e->text);
    if (!t->start) {
        end(t);
        return;
    }
    snprintf(text, sizeof text, "%s: %s", t->all->up->text, e->text);
    refuse(t, "08006", text);
}

static const struct stream_handler up_handler = {
    .on_data = up_data,
    .on_drain = up_drain,
    .on_eof = up_eof,
    .on_error = up_error,
};

static void on_stream(struct upstream_ask *a, struct stream *s)
{
    struct tunnel *t = container_of(a, struct tunnel, ask);
    t->state = TUNNEL_OPEN;
    t->up = s;
    stream_set_owner(s, &up_handler, t);
    (void)stream_write(s, t->start, t->start_n);
    if (t->local_ended)
        stream_shutdown(s);
    else
        stream_resume(t->local);
}

static void on_fail(struct upstream_ask *a, const struct err *e)
{
    struct tunnel *t = container_of(a, struct tunnel, ask);
    t->state = TUNNEL_OPEN; /* nothing to take back */
    refuse(t, "08006", e->text);
}

static void ask(struct tunnel *t)
{
    t->state = TUNNEL_ASK;
    timer_clear(t->all->loop, &t->timer);
    stream_pause(t->local);
    t->ask.on_stream = on_stream;
    t->ask.on_fail = on_fail;
    upstream_ask(t->all->up, &t->ask);
}

/* --- the client -------------------------------------------------------------
 */

static bool keep(struct tunnel *t, const char *p, size_t n)
{
    if (t->start_n + n > START_MAX)
        return false;
    if (t->start_n + n > t->start_cap) {
        size_t cap = MAX(t->start_n + n, (size_t)512);
        char *bigger = realloc(t->start, cap);
        if (!bigger)
            return false;
        t->start = bigger;
        t->start_cap = cap;
    }
    memcpy(t->start + t->start_n, p, n);
    t->start_n += n;
    return true;
}

/* Answers the requests that are for this hop; true when the first packet that
 * is not one of them has begun. */
static bool answer_requests(struct tunnel *t)
{
    enum { REQUEST_SIZE = 8 };
    while (t->start_n >= REQUEST_SIZE) {
        uint32_t size = pg_get_u32(t->start);
        uint32_t code = pg_get_u32(t->start + 4);
        if (size != REQUEST_SIZE ||
            (code != PG_SSL_REQUEST_CODE && code != PG_GSSENC_REQUEST_CODE))
            return true;
        t->start_n -= REQUEST_SIZE;
        memmove(t->start, t->start + REQUEST_SIZE, t->start_n);
        (void)stream_write(t->local, "N", 1);
    }
    return false;
}

static void local_data(struct stream *s, const char *p, size_t n)
{
    struct tunnel *t = s->owner;
    if (t->state == TUNNEL_OPEN) {
        if (t->start && !keep(t, p, n)) {
            free(t->start);
            t->start = NULL;
        }
        pass(s, t->up, p, n);
        return;
    }
    if (!keep(t, p, n)) {
        end(t);
        return;
    }
    if (t->state == TUNNEL_ASK)
        return;
    if (pg_startup_is_tls(t->start, t->start_n))
        end(t); /* direct TLS: there is nobody to shake hands with */
    else if (answer_requests(t))
        ask(t);
}

static void local_drain(struct stream *s)
{
    struct tunnel *t = s->owner;
    if (t->up)
        stream_resume(t->up);
}

static void local_eof(struct stream *s)
{
    struct tunnel *t = s->owner;
    t->local_ended = true;
    if (t->state == TUNNEL_OPEN)
        stream_shutdown(t->up); /* what was asked for is still answered */
    else
        end(t);
}

static void local_error(struct stream *s, const struct err *e)
{
    break_off(s->owner);
}

static const struct stream_handler local_handler = {
    .on_data = local_data,
    .on_drain = local_drain,
    .on_eof = local_eof,
    .on_error = local_error,
};

static void on_time(struct timer *timer)
{
    end(container_of(timer, struct tunnel, timer));
}

/* --- life -------------------------------------------------------------------
 */

void tunnels_init(struct tunnels *t, struct loop *loop, struct upstream *up)
{
    *t = (struct tunnels){.loop = loop, .up = up};
    list_init(&t->all);
}

void tunnel_accept(struct tunnels *all, int fd, bool is_unix)
{
    struct tunnel *t = mem_new(sizeof *t);
    t->all = all;
    t->local = sock_accepted(all->loop, fd, is_unix ? STREAM_UNIX : STREAM_TCP,
                             &local_handler, t);
    if (!t->local) {
        free(t);
        return;
    }
    t->timer.on_fire = on_time;
    timer_set(all->loop, &t->timer, loop_now_us(all->loop) + START_LIMIT_US);
    list_init(&t->node);
    list_push_back(&all->all, &t->node);
    all->n++;
    all->total++;
}

void tunnels_close(struct tunnels *all)
{
    while (!list_empty(&all->all)) {
        struct tunnel *t =
            list_entry(list_first(&all->all), struct tunnel, node);
        if (t->up)
            end(t);
        else
            refuse(t, "57P01", "the edge shuts down");
    }
}
