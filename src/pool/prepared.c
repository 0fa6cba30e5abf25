/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Prepared statements of the protocol in transaction and statement mode.
 *
 * A client's name stands for a text of the registry (statement.h). On a server
 * that text is prepared under a name of ours, PGBRAID_<number>, when it is
 * first needed there, and stays for whoever uses it next; the least recently
 * used beyond max_prepared_statements are closed. Of Parse, Bind, Describe and
 * Close only the name is changed; a Parse of what the server has already is not
 * sent, its ParseComplete is ours.
 *
 * Requests are sent before earlier ones are answered, so a name may rest on a
 * Parse that fails later. Within one batch (up to a Sync) that is harmless: the
 * server then skips what follows. Across batches we wait (STEP_HOLD) until the
 * name is settled; likewise behind a query that may drop all statements.
 *
 * The unnamed statement: the text of a client's last unnamed Parse is kept, and
 * prepared again before a Bind that meets a server where it is not. A server
 * knows whose unnamed statement it has, and at which of that client's changes.
 * Once it has this client's for sure, every request passed on changes both
 * alike, whatever becomes of it; until then a Bind waits, unless it shares the
 * batch, and so the fate, of the request that is to make it so. What the server
 * skips is undone, the newest first. */
#include <stdlib.h>

#include "pg/pg_error.h"
#include "pg/pg_read.h"
#include "pool/impl.h"

enum {
    UNNAMED_HELD_MAX = 65536, /* a longer unnamed Parse is not kept */
    /* Beyond what any sane client keeps: whoever never closes what it prepares
     * would take all memory. */
    CLIENT_NAMES_MAX = 1 << 17,
    CLIENT_TEXT_MAX = 2 * PARSE_HELD_MAX,
    SERVER_TEXT_MAX = PARSE_HELD_MAX, /* what is prepared on one server */
};

/* In server.unnamed_of, where client ids are. */
#define UNNAMED_NONE 0 /* there is none */
#define UNNAMED_UNKNOWN UINT64_MAX

/* In client.unnamed: its Parse was too long to be kept. */
static struct statement too_big = {.refs = 1, .may_begin = true};

/* A client's name. Lives while it means a statement or the track names it. */
struct client_stmt {
    UT_hash_handle hh;
    struct statement *statement; /* NULL: closed */
    uint32_t n_pending;          /* Parse and Close of it not answered yet */
    uint32_t n_uses;             /* other entries of the track that name it */
    uint32_t epoch;              /* of the latest of them */
    uint8_t n;
    char name[PG_NAME_MAX + 1];
};

struct client_map {
    struct client_stmt *names;
    int count;
    size_t text_bytes; /* of what they stand for */
};

/* A statement prepared on a server. */
struct server_stmt {
    UT_hash_handle hh;
    struct list node;            /* in server.lru */
    struct statement *statement; /* the key; a reference */
    uint32_t generation;
    uint32_t epoch;    /* when its Parse was sent */
    uint16_t serial;   /* the same, within the epoch */
    bool is_confirmed; /* ParseComplete came */
    bool is_kept;      /* its Close was skipped: it is still there */
};

/* ----------------------------------------------------------- client names */

/* PostgreSQL cuts the name at NAMEDATALEN - 1. */
static struct slice cut_name(struct slice name)
{
    return slice_of(name.p, MIN(name.n, (size_t)PG_NAME_MAX));
}

static struct client_stmt *name_find(struct client *c, struct slice name)
{
    struct client_stmt *k = NULL;
    name = cut_name(name);
    if (c->map)
        HASH_FIND(hh, c->map->names, name.p, name.n, k);
    return k;
}

static struct client_stmt *name_add(struct client *c, struct slice name)
{
    struct client_stmt *k = mem_new(sizeof *k);
    name = cut_name(name);
    if (!c->map)
        c->map = mem_new(sizeof *c->map);
    memcpy(k->name, name.p, name.n);
    k->n = (uint8_t)name.n;
    HASH_ADD(hh, c->map->names, name[0], k->n, k);
    return k;
}

static void name_drop_if_unused(struct client *c, struct client_stmt *k)
{
    if (k->statement || k->n_pending || k->n_uses)
        return;
    HASH_DEL(c->map->names, k);
    free(k);
}

static void name_set(struct client *c, struct client_stmt *k,
                     struct statement *s)
{
    c->map->count += (s != NULL) - (k->statement != NULL);
    c->map->text_bytes += s ? s->body_n : 0;
    c->map->text_bytes -= k->statement ? k->statement->body_n : 0;
    statement_unref(k->statement);
    k->statement = s;
}

void prepared_free_client(struct client *c)
{
    statement_unref(c->unnamed);
    c->unnamed = NULL;
    if (!c->map)
        return;
    struct client_stmt *k, *next;
    HASH_ITER(hh, c->map->names, k, next)
    {
        HASH_DEL(c->map->names, k);
        statement_unref(k->statement);
        free(k);
    }
    free(c->map);
    c->map = NULL;
}

int prepared_count_client(const struct client *c)
{
    return c->map ? c->map->count : 0;
}

/* ------------------------------------------------------ server statements */

static struct slice stmt_name(const struct statement *st)
{
    return slice_of(st->name, st->name_n);
}

static struct server_stmt *have(struct server *s, const struct statement *st)
{
    struct server_stmt *k;
    HASH_FIND_PTR(s->stmts, &st, k);
    return k;
}

static void forget(struct server *s, struct server_stmt *k)
{
    HASH_DEL(s->stmts, k);
    list_remove(&k->node);
    s->n_stmts--;
    s->stmts_bytes -= k->statement->body_n;
    statement_unref(k->statement);
    free(k);
}

static void forget_named(struct server *s)
{
    struct server_stmt *k, *next;
    HASH_ITER(hh, s->stmts, k, next)
    {
        forget(s, k);
    }
}

void prepared_note_own_query(struct server *s)
{
    s->unnamed_of = UNNAMED_NONE;
}

void prepared_note_own_parse(struct server *s)
{
    s->unnamed_of = UNNAMED_UNKNOWN;
}

void prepared_free_server(struct server *s)
{
    forget_named(s);
}

/* The unnamed statement is not among what these commands drop. */
void prepared_forget_all(struct client *c, struct server *s)
{
    forget_named(s);
    if (!c || !c->map)
        return;
    struct client_stmt *k, *next;
    HASH_ITER(hh, c->map->names, k, next)
    {
        name_set(c, k, NULL);
        name_drop_if_unused(c, k);
    }
}

static void push(struct server *s, enum track_kind kind, unsigned flags,
                 void *tag, void *extra, bool *expected)
{
    *expected =
        pg_track_push(&s->track, (struct track_entry){.kind = (uint8_t)kind,
                                                      .flags = (uint8_t)flags,
                                                      .tag = tag,
                                                      .extra = extra});
}

/* Close of one of our names, unseen by the client; st goes with the entry, to
 * be remembered again if the server skips it. NULL: the unnamed statement. */
static void send_close(struct server *s, struct outv *o, struct slice name,
                       struct statement *st)
{
    char head[PG_HEADER_SIZE + 1] = {PG_MSG_CLOSE,       0, 0, 0, 0,
                                     PG_TARGET_STATEMENT};
    bool expected;
    pg_set_u32(head + 1, (uint32_t)(4 + 1 + name.n + 1));
    outv_copy(o, head, sizeof head);
    outv_copy(o, name.p, name.n);
    outv_copy(o, "", 1);
    push(s, TRACK_CLOSE, TRACK_OURS | (st ? 0 : TRACK_UNNAMED), NULL,
         statement_ref(st), &expected);
    if (!expected)
        statement_unref(st);
    else if (st)
        s->n_closing++;
}

/* Parse of a statement of the registry, which outlives the flush. */
static void send_parse(struct outv *o, struct slice name,
                       const struct statement *st)
{
    char head[PG_HEADER_SIZE] = {PG_MSG_PARSE};
    pg_set_u32(head + 1, (uint32_t)(4 + name.n + 1 + st->body_n));
    outv_copy(o, head, sizeof head);
    outv_copy(o, name.p, name.n);
    outv_copy(o, "", 1);
    outv_span(o, st->body, st->body_n);
}

static bool has_room_for(const struct client *c, const struct server *s,
                         const struct statement *st)
{
    unsigned max = (unsigned)c->shard->conf->max_prepared_statements;
    return s->n_stmts < max && s->stmts_bytes + st->body_n <= SERVER_TEXT_MAX;
}

static void make_room(struct client *c, struct server *s, struct outv *o,
                      const struct statement *st)
{
    while (s->n_stmts && !has_room_for(c, s, st)) {
        struct server_stmt *k =
            list_entry(list_last(&s->lru), struct server_stmt, node);
        send_close(s, o, stmt_name(k->statement), k->statement);
        forget(s, k);
    }
}

/* What is prepared there can be used by a request sent now: it is confirmed, or
 * its Parse is of the same batch and so shares this request's fate. */
static bool is_usable(const struct server *s, const struct server_stmt *k)
{
    return k->generation == atomic_load_explicit(&k->statement->generation,
                                                 memory_order_relaxed) &&
           (k->is_confirmed || k->epoch == s->track.epoch);
}

static struct server_stmt *remember(struct server *s, struct statement *st)
{
    struct server_stmt *k = mem_new(sizeof *k);
    k->statement = statement_ref(st);
    k->generation = st->generation;
    k->epoch = s->track.epoch;
    k->serial = s->track.serial;
    HASH_ADD_PTR(s->stmts, statement, k);
    list_init(&k->node);
    list_push_front(&s->lru, &k->node);
    s->n_stmts++;
    s->stmts_bytes += st->body_n;
    return k;
}

/* A Parse fails in a transaction that has failed. Whether it has is not known
 * while an earlier batch, which may be in one, is not answered. */
static bool may_be_failed(const struct server *s)
{
    const struct track_entry *e = pg_track_front(&s->track);
    if (s->track.tx == PG_TX_FAILED)
        return true;
    return e && e->epoch != s->track.epoch &&
           (s->track.tx == PG_TX_BLOCK || s->may_begin);
}

/* Makes s have st before what is sent next. client_parse: its Parse is the
 * client's own, whose name is tag; returns whether one had to be sent. */
static bool ensure(struct client *c, struct outv *o, struct statement *st,
                   struct client_stmt *client_parse)
{
    struct server *s = c->server;
    struct server_stmt *k = have(s, st);
    /* It is not known here, but its Close may yet be skipped. */
    bool may_be_there = k || s->n_closing > 0;
    bool expected;
    bool must_ask = client_parse && may_be_failed(s);
    if (k && is_usable(s, k) && !must_ask) {
        list_remove(&k->node);
        list_push_front(&s->lru, &k->node);
        return false;
    }
    if (k)
        forget(s, k);
    else
        make_room(c, s, o, st);
    if (may_be_there)
        send_close(s, o, stmt_name(st), st);
    send_parse(o, stmt_name(st), st);
    c->pool->stats.server_parse_count++;
    push(s, TRACK_PARSE, client_parse ? 0 : TRACK_OURS, client_parse,
         statement_ref(st), &expected);
    if (expected)
        remember(s, st);
    else
        statement_unref(st);
    return true;
}

/* ---------------------------------------------------------------- settling */

static bool has_unnamed_of(const struct server *s, const struct client *c)
{
    return s->unnamed_of == c->id && s->unnamed_seq == c->unnamed_seq;
}

/* The request at the end of the track gives s the unnamed statement of c. */
static void note_unnamed(struct client *c, struct server *s)
{
    if (!has_unnamed_of(s, c) || !s->is_unnamed_sure) {
        s->is_unnamed_sure = false;
        s->unnamed_epoch = s->track.epoch;
    }
    s->unnamed_of = c->id;
    s->unnamed_seq = c->unnamed_seq;
}

static bool is_barrier(const struct statement *st)
{
    return st && st->is_barrier;
}

/* Pushes a request that makes st (reference taken) the unnamed statement of c,
 * and of s. */
static void push_unnamed(struct client *c, struct server *s,
                         enum track_kind kind, unsigned flags,
                         struct statement *st)
{
    bool expected;
    uint32_t epoch = s->track.epoch;
    push(s, kind, flags | TRACK_UNNAMED, c->unnamed, NULL, &expected);
    if (!expected) { /* the server skips it */
        statement_unref(st);
        return;
    }
    /* c->unnamed's reference went into the entry. */
    s->n_unnamed++;
    s->n_unnamed_barriers += is_barrier(c->unnamed);
    note_unnamed(c, s);
    if (!s->is_unnamed_sure)
        s->unnamed_epoch = epoch; /* a Query counts as the end of its own */
    c->unnamed = st;
    s->unnamed_seq = ++c->unnamed_seq;
}

/* What c had before a request that was skipped is what it has after it, and so
 * before the next one. */
static void undo_unnamed(struct client *c, struct server *s,
                         struct statement *was)
{
    struct track_entry *later =
        pg_track_find(&s->track, TRACK_UNNAMED, TRACK_OURS);
    if (later) {
        s->n_unnamed_barriers += is_barrier(was) - is_barrier(later->tag);
        statement_unref(later->tag);
        later->tag = was;
        return;
    }
    statement_unref(c->unnamed);
    c->unnamed = was;
    c->unnamed_seq++;
    if (s->unnamed_of == c->id && s->is_unnamed_sure)
        s->unnamed_seq = c->unnamed_seq;
}

static void settle_unnamed(struct client *c, struct server *s,
                           const struct track_entry *e, enum outcome how)
{
    struct statement *was = e->tag;
    bool is_ours = e->flags & TRACK_OURS;
    s->n_unnamed -= !is_ours;
    s->n_unnamed_barriers -= is_barrier(was);
    if (!c) {
        statement_unref(was);
        return;
    }
    if (how == OUTCOME_SKIPPED && !s->is_unnamed_sure) {
        if (s->unnamed_epoch == e->epoch) /* else a later batch makes it so */
            s->unnamed_of = UNNAMED_UNKNOWN;
    } else if (how == OUTCOME_FAILED && is_ours) {
        s->unnamed_of = UNNAMED_UNKNOWN;
    } else if (how != OUTCOME_SKIPPED) {
        s->unnamed_of = c->id;
        s->unnamed_seq = c->unnamed_seq;
        s->is_unnamed_sure = true;
    }
    if (how == OUTCOME_DONE || is_ours) {
        statement_unref(was);
        return;
    }
    if (how == OUTCOME_FAILED) { /* a Parse drops what was there first */
        statement_unref(was);
        was = NULL;
    }
    undo_unnamed(c, s, was);
}

static void settle_parse(struct client *c, struct server *s,
                         const struct track_entry *e, enum outcome how)
{
    struct client_stmt *k = e->tag;
    struct statement *st = e->extra;
    struct server_stmt *h = st ? have(s, st) : NULL;
    if (h && !(e->flags & (TRACK_VIRTUAL | TRACK_DUP))) {
        bool is_this = h->epoch == e->epoch && h->serial == e->serial;
        if (how == OUTCOME_DONE)
            h->is_confirmed = h->is_confirmed || is_this;
        else if (is_this || h->is_kept)
            forget(s, h); /* kept: from this Parse on, which did nothing */
    }
    statement_unref(st);
    if (!k || !c)
        return;
    k->n_pending--;
    if (how != OUTCOME_DONE && !(e->flags & TRACK_DUP))
        name_set(c, k, NULL);
    name_drop_if_unused(c, k);
}

/* A statement that was to make room, or to be prepared anew, is still there:
 * its next use closes it first. */
static void undo_own_close(struct server *s, struct statement *st)
{
    if (have(s, st))
        return;
    struct server_stmt *h = remember(s, st);
    h->is_confirmed = h->is_kept = true;
    h->generation--;
}

static void settle_close(struct client *c, struct server *s,
                         const struct track_entry *e, enum outcome how)
{
    struct client_stmt *k = e->tag;
    struct statement *was = e->extra;
    if (e->flags & TRACK_OURS)
        s->n_closing--;
    if ((e->flags & TRACK_OURS) && how != OUTCOME_DONE) {
        undo_own_close(s, was);
    } else if (e->flags & TRACK_OURS) {
        struct server_stmt *h = have(s, was);
        if (h && h->is_kept)
            forget(s, h);
    }
    if (k && c) {
        k->n_pending--;
        if (how != OUTCOME_DONE) {
            name_set(c, k, was);
            was = NULL;
        }
        name_drop_if_unused(c, k);
    }
    statement_unref(was);
}

static void settle_use(struct client *c, const struct track_entry *e)
{
    struct client_stmt *k = e->tag;
    statement_unref(e->extra);
    if (!k || !c)
        return;
    k->n_uses--;
    name_drop_if_unused(c, k);
}

void prepared_settle(struct client *c, struct server *s,
                     const struct track_entry *e, enum outcome how)
{
    if (e->flags & TRACK_UNNAMED) {
        settle_unnamed(c, s, e, how);
        return;
    }
    switch (e->kind) {
    case TRACK_PARSE:
        if (e->extra || e->tag)
            settle_parse(c, s, e, how);
        break;
    case TRACK_CLOSE:
        if (e->extra || e->tag)
            settle_close(c, s, e, how);
        break;
    case TRACK_BIND:
    case TRACK_DESCRIBE:
        settle_use(c, e);
        break;
    default:
        break;
    }
}

/* ---------------------------------------------------------------- messages */

static enum step broken(struct client *c, const char *what)
{
    client_close(c, "08P01", "invalid %s message", what);
    return STEP_CLOSED;
}

static enum step pass_on(struct client *c, struct outv *o, struct message_in *m)
{
    m->used = m->have;
    outv_span(o, m->p, m->have);
    c->body_left = (uint32_t)(m->total - m->have);
    c->body_mode = BODY_FORWARD;
    return STEP_DONE;
}

/* Waits when the name rests on a request of an earlier batch, or when all
 * statements may be about to go. */
static bool must_wait(const struct server *s, const struct client_stmt *k)
{
    return s->track.n_barriers > 0 ||
           (k && k->n_pending && k->epoch != s->track.epoch);
}

static void touch(struct client_stmt *k, const struct server *s)
{
    k->n_pending++;
    k->epoch = s->track.epoch;
}

/* A Parse that is too long to be kept is good for this server only, as long as
 * the client stays linked. */
static enum step parse_unnamed(struct client *c, struct outv *o,
                               struct message_in *m)
{
    struct server *s = c->server;
    struct statement *st = NULL;
    struct slice body =
        slice_of(m->p + PG_HEADER_SIZE + 1, m->total - PG_HEADER_SIZE - 1);
    c->pool->stats.client_parse_count++;
    c->pool->stats.server_parse_count++;
    if (m->have == m->total)
        st = statement_cache_get(&c->shard->statements, body);
    push_unnamed(c, s, TRACK_PARSE, 0, st ? st : statement_ref(&too_big));
    return pass_on(c, o, m);
}

/* The name is taken: PostgreSQL must say so, at the right place and with its
 * effect on the transaction; a Parse of what the server has provokes it, and
 * prepared_fix_error() puts the client's name into its text. */
static void parse_taken(struct client *c, struct outv *o, struct client_stmt *k)
{
    struct server *s = c->server;
    bool expected;
    (void)ensure(c, o, k->statement, NULL);
    send_parse(o, stmt_name(k->statement), k->statement);
    touch(k, s);
    push(s, TRACK_PARSE, TRACK_DUP, k, statement_ref(k->statement), &expected);
    if (!expected) {
        statement_unref(k->statement);
        k->n_pending--;
    }
}

static bool may_prepare_more(const struct client *c, struct slice body)
{
    const struct client_map *m = c->map;
    return !m || (HASH_COUNT(m->names) < CLIENT_NAMES_MAX &&
                  m->text_bytes + body.n <= CLIENT_TEXT_MAX);
}

static enum step parse_named(struct client *c, struct outv *o,
                             struct slice name, struct slice body)
{
    struct server *s = c->server;
    struct client_stmt *k = name_find(c, name);
    bool expected = true;
    if (must_wait(s, k))
        return STEP_HOLD;
    c->pool->stats.client_parse_count++;
    if (k && k->statement) {
        parse_taken(c, o, k);
        return STEP_DONE;
    }
    if (!may_prepare_more(c, body)) {
        client_close(c, "54000",
                     "too many prepared statements (%d names or %d bytes of "
                     "text): close what is no longer needed",
                     (int)CLIENT_NAMES_MAX, (int)CLIENT_TEXT_MAX);
        return STEP_CLOSED;
    }
    struct statement *st = statement_cache_get(&c->shard->statements, body);
    if (!st) {
        client_close(c, "53200",
                     "no memory for a prepared statement: close what is no "
                     "longer needed, or raise statement_max_bytes");
        return STEP_CLOSED;
    }
    if (!k)
        k = name_add(c, name);
    name_set(c, k, statement_ref(st));
    touch(k, s);
    if (!ensure(c, o, st, k))
        push(s, TRACK_PARSE, TRACK_VIRTUAL, k, statement_ref(st), &expected);
    if (!expected) {
        statement_unref(st);
        k->n_pending--;
        name_set(c, k, NULL);
        name_drop_if_unused(c, k);
    }
    statement_unref(st);
    return STEP_DONE;
}

enum step prepared_parse(struct client *c, struct outv *o, struct message_in *m)
{
    size_t n = m->have - PG_HEADER_SIZE;
    const char *name = m->p + PG_HEADER_SIZE;
    if (m->have == m->total && n < 1)
        return broken(c, "Parse");
    if (n >= 1 && name[0] == 0) {
        bool is_kept = m->total <= UNNAMED_HELD_MAX;
        return is_kept && m->have < m->total ? STEP_MORE
                                             : parse_unnamed(c, o, m);
    }
    if (m->total > PARSE_HELD_MAX) {
        client_close(c, "54000",
                     "named prepared statement of %zu bytes: more than %d "
                     "cannot be tracked; use an unnamed one or pool_mode "
                     "session",
                     m->total, (int)PARSE_HELD_MAX);
        return STEP_CLOSED;
    }
    if (m->have < m->total)
        return STEP_MORE;
    struct pgread r = pgread_of(slice_of(name, n));
    struct slice nm = pgread_cstr(&r);
    struct slice body = pgread_rest(&r);
    if (r.bad || !memchr(body.p, 0, body.n))
        return broken(c, "Parse");
    m->used = m->total;
    return parse_named(c, o, nm, body);
}

/* Before a message that uses the unnamed statement: the one on the server must
 * be this client's, or none. False when that is not known yet. */
static bool ensure_unnamed(struct client *c, struct outv *o)
{
    struct server *s = c->server;
    bool expected;
    if (has_unnamed_of(s, c))
        return s->is_unnamed_sure || s->unnamed_epoch == s->track.epoch;
    if (!c->unnamed && s->unnamed_of == UNNAMED_NONE)
        return true;
    if (c->unnamed && c->unnamed != &too_big) {
        send_parse(o, slice_of("", 0), c->unnamed);
        c->pool->stats.server_parse_count++;
        push(s, TRACK_PARSE, TRACK_OURS | TRACK_UNNAMED, NULL, NULL, &expected);
    } else {
        send_close(s, o, slice_of("", 0), NULL);
    }
    note_unnamed(c, s);
    return true;
}

/* A name that the client has not prepared by the protocol: perhaps by SQL, and
 * if not, PostgreSQL says so. But it must not reach a name of ours. */
static enum step pass_foreign(struct client *c, struct outv *o,
                              struct message_in *m, struct slice before,
                              struct slice name)
{
    if (name.n < sizeof SERVER_PREFIX - 1 ||
        memcmp(name.p, SERVER_PREFIX, sizeof SERVER_PREFIX - 1))
        return pass_on(c, o, m);
    char head[PG_HEADER_SIZE];
    memcpy(head, m->p, sizeof head);
    pg_set_u32(head + 1, (uint32_t)(m->total - 1 + 1));
    outv_copy(o, head, sizeof head);
    outv_copy(o, before.p, before.n);
    outv_copy(o, "?", 1);
    outv_span(o, name.p, (size_t)(m->p + m->have - name.p));
    m->used = m->have;
    c->body_left = (uint32_t)(m->total - m->have);
    c->body_mode = BODY_FORWARD;
    return STEP_DONE;
}

/* Sends m with our name in place of name; before is what stands between header
 * and name. */
static enum step send_renamed(struct client *c, struct outv *o,
                              struct message_in *m, struct slice before,
                              struct slice name, const struct statement *st)
{
    char head[PG_HEADER_SIZE];
    memcpy(head, m->p, sizeof head);
    pg_set_u32(head + 1, (uint32_t)(m->total - 1 - name.n + st->name_n));
    outv_copy(o, head, sizeof head);
    outv_copy(o, before.p, before.n);
    outv_copy(o, st->name, st->name_n);
    const char *rest = name.p + name.n;
    size_t left = (size_t)(m->p + m->have - rest);
    if (left < 512)
        outv_copy(o, rest, left);
    else
        outv_span(o, rest, left);
    m->used = m->have;
    c->body_left = (uint32_t)(m->total - m->have);
    c->body_mode = BODY_FORWARD;
    return STEP_DONE;
}

/* Bind or Describe of the statement called name. */
static enum step use_statement(struct client *c, struct outv *o,
                               struct message_in *m, enum track_kind kind,
                               struct slice before, struct slice name)
{
    struct server *s = c->server;
    struct client_stmt *k = NULL;
    struct statement *st = c->unnamed;
    bool expected;
    if (name.n) {
        k = name_find(c, name);
        if (must_wait(s, k))
            return STEP_HOLD;
        st = k ? k->statement : NULL;
        if (st)
            (void)ensure(c, o, st, NULL);
    } else if (!ensure_unnamed(c, o)) {
        return STEP_HOLD;
    }
    /* Which text the unnamed statement is, is not sure while requests that
     * changed it may yet be skipped. */
    if (kind == TRACK_BIND &&
        (is_barrier(st) || (!name.n && s->n_unnamed_barriers)))
        s->has_barrier_bound = true;
    if (kind == TRACK_BIND && (!st || st->may_begin))
        s->may_begin = true;
    push(s, kind, 0, k, statement_ref(st), &expected);
    if (!expected)
        statement_unref(st);
    else if (k)
        k->n_uses++;
    if (!name.n)
        return pass_on(c, o, m);
    if (!st)
        return pass_foreign(c, o, m, before, name);
    return send_renamed(c, o, m, before, name, st);
}

enum step prepared_bind(struct client *c, struct outv *o, struct message_in *m)
{
    const char *body = m->p + PG_HEADER_SIZE, *end = m->p + m->have;
    const char *portal_end = memchr(body, 0, (size_t)(end - body));
    const char *name = portal_end ? portal_end + 1 : end;
    const char *name_end = memchr(name, 0, (size_t)(end - name));
    if (!name_end) {
        if (m->have == m->total || m->have > NAMES_MAX)
            return broken(c, "Bind");
        return STEP_MORE;
    }
    struct slice nm = slice_of(name, (size_t)(name_end - name));
    if (nm.n > NAMES_MAX || name - body > NAMES_MAX)
        return broken(c, "Bind");
    enum step step = use_statement(c, o, m, TRACK_BIND,
                                   slice_of(body, (size_t)(name - body)), nm);
    if (step == STEP_DONE)
        c->pool->stats.bind_count++;
    return step;
}

/* Describe and Close: a letter, a name, nothing more. */
static bool read_target(const struct message_in *m, char *target,
                        struct slice *name)
{
    struct pgread r =
        pgread_of(slice_of(m->p + PG_HEADER_SIZE, m->total - PG_HEADER_SIZE));
    *target = (char)pgread_u8(&r);
    *name = pgread_cstr(&r);
    return pgread_done(&r);
}

enum step prepared_describe(struct client *c, struct outv *o,
                            struct message_in *m)
{
    char target;
    struct slice name;
    bool expected;
    if (m->have < m->total)
        return STEP_MORE;
    if (!read_target(m, &target, &name))
        return broken(c, "Describe");
    if (target == PG_TARGET_STATEMENT)
        return use_statement(c, o, m, TRACK_DESCRIBE,
                             slice_of(m->p + PG_HEADER_SIZE, 1), name);
    push(c->server, TRACK_DESCRIBE, 0, NULL, NULL, &expected);
    return pass_on(c, o, m);
}

static enum step close_unnamed(struct client *c, struct outv *o,
                               struct message_in *m)
{
    push_unnamed(c, c->server, TRACK_CLOSE, 0, NULL);
    return pass_on(c, o, m);
}

enum step prepared_close(struct client *c, struct outv *o, struct message_in *m)
{
    struct server *s = c->server;
    char target;
    struct slice name;
    bool expected;
    if (m->have < m->total)
        return STEP_MORE;
    if (!read_target(m, &target, &name))
        return broken(c, "Close");
    if (target == PG_TARGET_STATEMENT && !name.n)
        return close_unnamed(c, o, m);
    struct client_stmt *k =
        target == PG_TARGET_STATEMENT ? name_find(c, name) : NULL;
    if (target == PG_TARGET_STATEMENT && must_wait(s, k))
        return STEP_HOLD;
    if (!k || !k->statement) {
        push(s, TRACK_CLOSE, 0, NULL, NULL, &expected);
        if (target == PG_TARGET_STATEMENT)
            return pass_foreign(c, o, m, slice_of(m->p + PG_HEADER_SIZE, 1),
                                name);
        return pass_on(c, o, m);
    }
    m->used = m->total;
    struct statement *was = statement_ref(k->statement);
    touch(k, s);
    name_set(c, k, NULL);
    push(s, TRACK_CLOSE, TRACK_VIRTUAL, k, was, &expected);
    if (!expected)
        prepared_settle(
            c, s,
            &(struct track_entry){.kind = TRACK_CLOSE, .tag = k, .extra = was},
            OUTCOME_SKIPPED);
    return STEP_DONE;
}

void prepared_push_query(struct client *c, struct server *s)
{
    bool expected;
    s->may_begin = true;
    if (c->unnamed || s->n_unnamed) {
        push_unnamed(c, s, TRACK_QUERY, TRACK_BARRIER, NULL);
        return;
    }
    if (!has_unnamed_of(s, c) && s->unnamed_of != UNNAMED_NONE)
        s->unnamed_of = UNNAMED_UNKNOWN;
    push(s, TRACK_QUERY, TRACK_BARRIER, NULL, NULL, &expected);
}

/* ------------------------------------------------------------------ errors */

/* The ErrorResponse with `ours` replaced by `theirs` in its message field. */
static bool replace_name(struct slice body, struct slice ours,
                         struct slice theirs, struct pgbuf *out)
{
    bool found = false;
    size_t at = pgbuf_begin(out, PG_MSG_ERROR);
    struct pgread r = pgread_of(body);
    for (uint8_t field = pgread_u8(&r); field && !r.bad;
         field = pgread_u8(&r)) {
        struct slice v = pgread_cstr(&r);
        const char *hit =
            field == 'M' ? memmem(v.p, v.n, ours.p, ours.n) : NULL;
        pgbuf_put_u8(out, field);
        if (!hit) {
            pgbuf_put_string(out, v);
            continue;
        }
        found = true;
        pgbuf_put_bytes(out, v.p, (size_t)(hit - v.p));
        pgbuf_put_bytes(out, theirs.p, theirs.n);
        pgbuf_put_string(
            out, slice_of(hit + ours.n, (size_t)(v.p + v.n - hit) - ours.n));
    }
    pgbuf_put_u8(out, 0);
    pgbuf_end(out, at);
    return found && !r.bad && !out->failed;
}

bool prepared_fix_error(struct client *c, struct server *s,
                        const struct track_entry *e, struct slice body,
                        struct pgbuf *out)
{
    struct pg_error x;
    struct statement *st = e->extra;
    struct client_stmt *k = e->tag;
    if (!c || !st || !pg_error_parse(body, &x))
        return false;
    if (e->kind == TRACK_BIND && k && pg_error_has_code(&x, "0A000")) {
        /* "cached plan must not change result type": every server must
         * prepare it anew, the next use does. */
        atomic_fetch_add(&st->generation, 1);
        return false;
    }
    if (!k ||
        (!pg_error_has_code(&x, "26000") && !pg_error_has_code(&x, "42P05")))
        return false;
    struct server_stmt *h = have(s, st);
    if (pg_error_has_code(&x, "26000") && h)
        forget(s, h); /* the server lost it, whatever the reason */
    return replace_name(body, stmt_name(st), slice_of(k->name, k->n), out);
}

/* -------------------------------------------------------------- an upgrade */

static void use(struct carrier *k, struct statement *st)
{
    if (k->n_statements == k->cap_statements) {
        k->cap_statements = k->cap_statements * 2 + 8;
        k->statements = realloc(k->statements, (size_t)k->cap_statements *
                                                   sizeof k->statements[0]);
        must(k->statements);
    }
    k->statements[k->n_statements++] = statement_ref(st);
    pgbuf_put_u32(&k->body, st->id);
}

/* At a boundary no name is pending or in use. */
void prepared_pack_client(const struct client *c, struct carrier *k)
{
    struct client_stmt *i, *next;
    bool is_kept = c->unnamed && c->unnamed != &too_big;
    pgbuf_put_u32(&k->body, c->unnamed_seq);
    pgbuf_put_u8(&k->body, is_kept ? 1 : c->unnamed ? 2 : 0);
    if (is_kept)
        use(k, c->unnamed);
    pgbuf_put_u32(&k->body, (uint32_t)prepared_count_client(c));
    if (!c->map)
        return;
    HASH_ITER(hh, c->map->names, i, next)
    {
        if (!i->statement)
            continue;
        pgbuf_put_u8(&k->body, i->n);
        pgbuf_put_bytes(&k->body, i->name, i->n);
        use(k, i->statement);
    }
}

int prepared_unpack_client(struct client *c, struct pgread *r,
                           struct statement_table *t)
{
    c->unnamed_seq = pgread_u32(r);
    uint8_t kind = pgread_u8(r);
    if (kind == 1)
        c->unnamed = statement_imported(t, pgread_u32(r));
    else if (kind == 2)
        c->unnamed = statement_ref(&too_big);
    if (kind > 2 || (kind == 1 && !c->unnamed))
        return ERR_PROTO;
    uint32_t n = pgread_u32(r);
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        struct slice name = pgread_bytes(r, pgread_u8(r));
        struct statement *st = statement_imported(t, pgread_u32(r));
        if (r->bad || !st || name.n > PG_NAME_MAX || name_find(c, name)) {
            statement_unref(st);
            return ERR_PROTO;
        }
        name_set(c, name_add(c, name), st);
    }
    return r->bad ? ERR_PROTO : 0;
}

/* The oldest first. */
void prepared_pack_server(const struct server *s, struct carrier *k)
{
    pgbuf_put_u32(&k->body, s->n_stmts);
    for (struct list *n = s->lru.prev; n != &s->lru; n = n->prev) {
        struct server_stmt *i = list_entry(n, struct server_stmt, node);
        bool is_current = i->generation == i->statement->generation;
        k->is_local = k->is_local || i->statement->id >= STATEMENT_ID_LOCAL;
        pgbuf_put_u8(&k->body, is_current);
        use(k, i->statement);
    }
}

/* ERR_UNSUPPORTED: a name there means something else here. */
int prepared_unpack_server(struct server *s, struct pgread *r,
                           struct statement_table *t)
{
    int rc = 0;
    uint32_t n = pgread_u32(r);
    s->unnamed_of = UNNAMED_UNKNOWN;
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        bool is_current = pgread_u8(r);
        uint32_t id = pgread_u32(r);
        struct statement *st = statement_imported(t, id);
        if (r->bad || !st || have(s, st)) {
            statement_unref(st);
            return ERR_PROTO;
        }
        if (st->id != id)
            rc = ERR_UNSUPPORTED;
        struct server_stmt *k = remember(s, st);
        k->is_confirmed = true;
        k->generation -= !is_current;
        statement_unref(st);
    }
    return r->bad ? ERR_PROTO : rc;
}
