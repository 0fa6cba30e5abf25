/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pg/pg_track.h"

#include <stdlib.h>
#include <string.h>

#include "pg/pg_proto.h"

void pg_track_init(struct pg_track *t)
{
    memset(t, 0, sizeof *t);
    t->ring = t->inline_ring;
    t->cap = TRACK_INLINE;
    t->tx = PG_TX_IDLE;
}

void pg_track_fini(struct pg_track *t)
{
    if (t->ring != t->inline_ring)
        free(t->ring);
    pg_track_init(t);
}

static struct track_entry *at(const struct pg_track *t, uint32_t i)
{
    return &t->ring[(t->head + i) & (t->cap - 1)];
}

static void grow(struct pg_track *t)
{
    struct track_entry *wide = mem_new_array(t->cap * 2, sizeof *wide);
    for (uint32_t i = 0; i < t->count; i++)
        wide[i] = *at(t, i);
    if (t->ring != t->inline_ring)
        free(t->ring);
    t->ring = wide;
    t->head = 0;
    t->cap *= 2;
}

static struct track_entry pop_front(struct pg_track *t)
{
    struct track_entry e = *at(t, 0);
    t->head = (t->head + 1) & (t->cap - 1);
    t->count--;
    if (e.flags & TRACK_BARRIER)
        t->n_barriers--;
    return e;
}

static bool ends_with_ready(uint8_t kind)
{
    return kind <= TRACK_SYNC;
}

static void append(struct pg_track *t, struct track_entry e)
{
    if (t->count == t->cap)
        grow(t);
    e.epoch = t->epoch;
    e.serial = ++t->serial;
    *at(t, t->count++) = e;
    if (e.flags & TRACK_BARRIER)
        t->n_barriers++;
}

/* CopyDone and CopyFail matter while COPY runs, and to a COPY that may begin
 * with a request still outstanding. */
static bool push_copy_end(struct pg_track *t, struct track_entry e)
{
    if (t->in_copy_in) {
        t->in_copy_in = false;
        return false;
    }
    if (t->count)
        append(t, e);
    return false;
}

bool pg_track_push(struct pg_track *t, struct track_entry e)
{
    if (e.kind == TRACK_COPY_END)
        return push_copy_end(t, e);
    if (t->in_copy_in && e.kind == TRACK_SYNC) {
        t->n_copy_syncs++;
        return false;
    }
    t->in_copy_in = false; /* anything else ends the COPY, with the session */
    if (t->is_skipping) {
        if (e.kind != TRACK_SYNC)
            return false;
        t->is_skipping = false;
    }
    append(t, e);
    if (ends_with_ready(e.kind)) {
        t->has_unsynced = false;
        t->epoch++;
    } else {
        t->has_unsynced = true;
    }
    return true;
}

bool pg_track_pop_local(struct pg_track *t, struct track_entry *out)
{
    if (!pg_track_has_local(t))
        return false;
    *out = pop_front(t);
    return true;
}

/* COPY IN begins for the request at the front. Syncs sent behind it are
 * ignored by the server up to the CopyDone or CopyFail, if that is sent
 * already. Another request makes the COPY fail, and PostgreSQL, which has not
 * read it to its end then, ends the session. */
static void begin_copy_in(struct pg_track *t)
{
    struct track_entry front = *at(t, 0);
    uint32_t i = 1;
    bool ended = false;
    for (; i < t->count && !ended; i++) {
        struct track_entry *e = at(t, i);
        if (e->kind == TRACK_SYNC)
            continue;
        ended = true;
        if (e->kind != TRACK_COPY_END)
            break;
    }
    /* What is ignored goes: the front moves over it, not the rest, which may be
     * long. */
    t->head = (t->head + i - 1) & (t->cap - 1);
    t->count -= i - 1;
    *at(t, 0) = front;
    t->in_copy_in = !ended;
    t->n_copy_syncs = 0;
    /* A Sync that was taken out no longer closes the batch. */
    if (t->count == 1 && !ends_with_ready(front.kind))
        t->has_unsynced = true;
}

static void answer_front(struct pg_track *t, struct track_reply *out)
{
    out->has_entry = true;
    out->entry = pop_front(t);
}

static int reply_error(struct pg_track *t, struct track_reply *out)
{
    t->has_failed = true;
    if (t->in_copy_in && t->n_copy_syncs)
        t->is_lost = true;
    t->in_copy_in = false;
    if (t->count && !ends_with_ready(at(t, 0)->kind)) {
        answer_front(t, out);
        out->has_failed = true;
        uint32_t n = 0;
        while (n < t->count && at(t, n)->kind != TRACK_SYNC)
            n++;
        t->skip_left = t->skip_total = n;
        t->found = 0;
    }
    return 0;
}

static int reply_ready(struct pg_track *t, char status, struct track_reply *out)
{
    if (!t->count || !ends_with_ready(at(t, 0)->kind))
        return ERR_PROTO;
    answer_front(t, out);
    t->tx = status;
    t->in_copy_in = false;
    t->has_failed = false;
    return 0;
}

static int reply_to(struct pg_track *t, enum track_kind kind,
                    struct track_reply *out)
{
    if (!t->count || at(t, 0)->kind != kind)
        return ERR_PROTO;
    answer_front(t, out);
    return 0;
}

/* Replies that close a request of their kind and otherwise belong to a
 * Query. */
static int reply_maybe(struct pg_track *t, enum track_kind kind,
                       struct track_reply *out)
{
    if (!t->count)
        return ERR_PROTO;
    if (at(t, 0)->kind == kind)
        answer_front(t, out);
    return 0;
}

int pg_track_reply(struct pg_track *t, char type, char status,
                   struct track_reply *out)
{
    out->has_entry = out->has_failed = false;
    switch (type) {
    case PG_MSG_DATA_ROW:
    case PG_MSG_COPY_DATA:
    case PG_MSG_COPY_DONE:
    case PG_MSG_COPY_OUT:
    case PG_MSG_FUNCTION_RESULT:
    case PG_MSG_PARAMETER_DESCRIPTION:
        return t->count ? 0 : ERR_PROTO;
    case PG_MSG_NOTICE:
    case PG_MSG_NOTIFICATION:
    case PG_MSG_PARAMETER_STATUS:
        return 0;
    case PG_MSG_READY:
        return reply_ready(t, status, out);
    case PG_MSG_ERROR:
        return reply_error(t, out);
    case PG_MSG_PARSE_COMPLETE:
        return reply_to(t, TRACK_PARSE, out);
    case PG_MSG_BIND_COMPLETE:
        return reply_to(t, TRACK_BIND, out);
    case PG_MSG_CLOSE_COMPLETE:
        return reply_to(t, TRACK_CLOSE, out);
    case PG_MSG_ROW_DESCRIPTION:
    case PG_MSG_NO_DATA:
        return reply_maybe(t, TRACK_DESCRIBE, out);
    case PG_MSG_COMMAND_COMPLETE:
    case PG_MSG_EMPTY_QUERY:
    case PG_MSG_PORTAL_SUSPENDED:
        t->in_copy_in = false;
        return reply_maybe(t, TRACK_EXECUTE, out);
    case PG_MSG_COPY_IN:
    case PG_MSG_COPY_BOTH:
        if (!t->count)
            return ERR_PROTO;
        begin_copy_in(t);
        return 0;
    default:
        return ERR_PROTO;
    }
}

bool pg_track_skip(struct pg_track *t, struct track_entry *out)
{
    if (t->skip_left) {
        *out = *at(t, --t->skip_left);
        if (out->flags & TRACK_BARRIER)
            t->n_barriers--;
        return true;
    }
    t->head = (t->head + t->skip_total) & (t->cap - 1);
    t->count -= t->skip_total;
    t->skip_total = 0;
    if (!t->count)
        t->is_skipping = true;
    return false;
}

struct track_entry *pg_track_find(struct pg_track *t, unsigned flags,
                                  unsigned without)
{
    uint32_t i = t->skip_total;
    if (i && t->found)
        i = t->found;
    while (i < t->count && (at(t, i)->flags & (flags | without)) != flags)
        i++;
    t->found = i;
    return i < t->count ? at(t, i) : NULL;
}

bool pg_track_drain(struct pg_track *t, struct track_entry *out)
{
    if (!t->count)
        return false;
    *out = *at(t, --t->count);
    if (out->flags & TRACK_BARRIER)
        t->n_barriers--;
    return true;
}

const struct track_entry *pg_track_front(const struct pg_track *t)
{
    return t->count ? at(t, 0) : NULL;
}
