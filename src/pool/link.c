/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A client and its server, bound to each other for a transaction (or a
 * session): attached by the pool, detached when the server is idle again. The
 * traffic is in link_client.c and link_server.c. */
#include <stdlib.h>

#include "pool/impl.h"

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

size_t inbuf_missing(const struct inbuf *in)
{
    if (in->n < PG_HEADER_SIZE)
        return PG_HEADER_SIZE - in->n;
    size_t total = (size_t)pg_get_u32(in->p + 1) + 1;
    return total > in->n ? MIN(total - in->n, (size_t)1 << 30) : 0;
}

size_t link_run_end(const char *p, size_t at, size_t n, uint32_t max)
{
    char type = p[at];
    while (true) {
        at += (size_t)pg_get_u32(p + at + 1) + 1;
        if (n - at < PG_HEADER_SIZE || p[at] != type)
            return at;
        uint32_t len = pg_get_u32(p + at + 1);
        if (len < 4 || len >= max || len >= n - at)
            return at;
    }
}

/* ------------------------------------------------------- attach, detach */

void link_attach(struct client *c, struct server *s)
{
    must(!c->server && !s->client);
    c->server = s;
    s->client = c;
    s->was_used = true;
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
    if (unlikely(c->is_chosen))
        balance_client_idle(c);
    stream_resume(s->stream);
}

bool link_will_answer(const struct client *c)
{
    const struct server *s = c->server;
    const struct pg_track *t = &s->track;
    return s->job == JOB_NONE && t->count && !t->in_copy_in &&
           !t->is_skipping && !t->has_unsynced && !s->is_replication &&
           !link_is_amid_request(c);
}

static bool at_boundary(const struct client *c, const struct server *s)
{
    return (!c || !link_is_amid_request(c)) && s->body_left == 0 &&
           s->in.n == 0;
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
    client_update_flow(c);
    s->needs_reset |= s->pool->shard->conf->server_reset_query_always;
    pool_give_server(s);
}

void link_make_local(struct client *c, struct server *s, struct outv *o)
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
