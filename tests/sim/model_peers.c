/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Clients ask "q MARK SEQ" (by itself), "b MARK SEQ" (begins a transaction) and
 * "e MARK SEQ" (ends it). A backend runs each until a die says that it ends, or
 * a CancelRequest comes. */
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

/* -------------------------------------------------------------------- both */

static struct pgbuf *fresh(void)
{
    static struct pgbuf b;
    if (!b.max)
        pgbuf_init(&b, 1 << 16);
    pgbuf_reset(&b);
    return &b;
}

static void send_buf(struct conn *k, const struct pgbuf *b)
{
    must(!b->failed);
    conn_send(k, b->p, b->n);
}

/* The first message that is there as a whole; false without one. */
static bool next_message(const struct bytes *in, size_t head, size_t *total)
{
    if (in->n < head + 4)
        return false;
    *total = pg_get_u32(in->p + head) + head;
    return in->n >= *total;
}

static void take_wire(struct conn *k, struct bytes *to)
{
    bytes_add(to, k->wire.p, k->wire.n);
    bytes_drop(&k->wire, k->wire.n);
}

/* ----------------------------------------------------------------- clients */

static const struct client *client_in_pooler(const struct peer_client *d)
{
    const struct stream *st = conn_stream(d->k);
    return st ? st->owner : NULL;
}

struct peer_client *client_of_mark(int mark)
{
    list_for(n, &w.clients)
    {
        struct peer_client *d = list_entry(n, struct peer_client, node);
        if (d->mark == mark)
            return d;
    }
    return NULL;
}

void client_connect(void)
{
    struct peer_client *d = mem_new(sizeof *d);
    struct addr peer;
    char db[16];
    const char *user = chance(50) ? "a" : "b";
    int i = (int)rnd((uint32_t)w.n_shards);
    snprintf(db, sizeof db, "d%u", rnd((uint32_t)w.n_dbs));
    must(addr_parse_ip(slice_str("10.0.0.1"), 5000, &peer));
    d->k = conn_accept();
    d->k->peer = d;
    d->k->stays = chance(15);
    d->mark = ++w.last_mark;
    d->left = w.is_long ? 1000 : 1 + (int)rnd(5);
    list_init(&d->node);
    list_push_back(&w.clients, &d->node);
    w.n_clients++;
    sim_loop_tick(w.loop[i]);
    shard_accept(w.shard[i], d->k->fd, &peer);
    struct stream *st = conn_stream(d->k);
    if (d->k->stays && st)
        st->kind = STREAM_QUIC;
    struct pg_pair pair[2] = {{slice_str("user"), slice_str(user)},
                              {slice_str("database"), slice_str(db)}};
    struct pgbuf *b = fresh();
    pg_put_startup(b, 0, pair, 2);
    send_buf(d->k, b);
    note_event("connects", d->mark, i);
    model_totals->clients++;
}

void client_release(struct peer_client *d)
{
    conn_release(d->k);
    d->k->peer = NULL;
    list_remove(&d->node);
    bytes_free(&d->got);
    w.n_clients--;
    free(d);
}

static void ask(struct peer_client *d)
{
    char sql[48];
    char kind = 'q';
    if (d->in_tx)
        kind = chance(60) ? 'e' : 'q';
    else if (chance(30))
        kind = 'b';
    d->seq++;
    d->is_asking = true;
    if (kind != 'q')
        d->in_tx = kind == 'b';
    snprintf(sql, sizeof sql, "%c %d %u", kind, d->mark, d->seq);
    struct pgbuf *b = fresh();
    pg_put_query(b, slice_str(sql));
    send_buf(d->k, b);
    note_event("asks", d->mark, (int)d->seq);
    model_totals->queries++;
}

static bool has_open_cancel(int mark)
{
    list_for(n, &w.cancels)
    {
        if (list_entry(n, struct peer_cancel, node)->mark == mark)
            return true;
    }
    return false;
}

static void read_reply(struct peer_client *d, size_t total)
{
    char type = d->got.p[0];
    bool is_fatal = memmem(d->got.p, total, "SFATAL", 6) != NULL;
    if (type == 'K')
        memcpy(d->key, d->got.p + 5, 8);
    if (type == 'E' && is_fatal && !d->may_be_cut && !w.has_faults)
        sim_fail("client %d was ended: %.60s", d->mark, d->got.p + 12);
    if (type == 'E' && !is_fatal && d->is_in && !d->was_canceled)
        sim_fail("query %u of client %d was canceled, which it did not ask for",
                 d->seq, d->mark);
    if (type == 'C' && d->is_in &&
        (int)pg_get_u32(d->got.p + 5) != (int)(d->seq & 0xffff) + 'A')
        sim_fail("client %d got another reply than its own", d->mark);
    if (type != 'Z')
        return;
    if (!d->is_in) {
        d->is_in = true;
        return;
    }
    if (!d->is_asking)
        sim_fail("client %d: a ReadyForQuery too many", d->mark);
    d->in_tx = d->got.p[5] != 'I';
    d->is_asking = false;
    d->was_canceled = has_open_cancel(d->mark);
    note_event("is answered", d->mark, (int)d->seq);
}

static void read_all(struct peer_client *d)
{
    size_t total;
    take_wire(d->k, &d->got);
    while (next_message(&d->got, 1, &total)) {
        read_reply(d, total);
        bytes_drop(&d->got, total);
    }
}

/* True when it is gone. */
static bool leave(struct peer_client *d)
{
    bool rudely = chance(20);
    note_event("leaves", d->mark, rudely);
    if (rudely) {
        d->k->peer_reset = chance(50);
    } else {
        struct pgbuf *b = fresh();
        pg_put_terminate(b);
        send_buf(d->k, b);
    }
    client_release(d);
    return true;
}

static bool one_client(struct peer_client *d)
{
    if (d->k->wire.n && chance(70))
        read_all(d);
    if (conn_is_closed(d->k) && !d->k->wire.n) {
        if (!d->may_be_cut && !w.has_faults)
            sim_fail("client %d was closed without a word", d->mark);
        note_event("is closed", d->mark, 0);
        client_release(d);
        return true;
    }
    if (!d->is_in)
        return false;
    if (d->is_asking)
        return rnd(20000) < 3 ? leave(d) : false;
    if ((d->left <= 0 || w.is_ending) && !d->in_tx)
        return chance(30) ? leave(d) : false;
    if (chance(w.is_long ? 80 : 30)) {
        d->left--;
        ask(d);
    }
    return false;
}

void clients_step(void)
{
    list_for_safe(n, &w.clients)
    {
        struct peer_client *d = list_entry(n, struct peer_client, node);
        bool is_here = !one_client(d);
        if (is_here && d->is_asking && rnd(10000) < w.cancel)
            client_cancel(d);
    }
}

/* ----------------------------------------------------------------- cancels */

static struct peer_server *server_running(int mark, uint32_t seq)
{
    list_for(n, &w.servers)
    {
        struct peer_server *s = list_entry(n, struct peer_server, node);
        if (s->is_running && s->owner == mark && s->seq == seq)
            return s;
    }
    return NULL;
}

static bool is_waiting(const struct peer_client *d)
{
    const struct client *c = client_in_pooler(d);
    return c && c->state == CLIENT_WAITING;
}

void client_cancel(struct peer_client *d)
{
    struct peer_cancel *r = mem_new(sizeof *r);
    struct addr peer;
    char head[8];
    int i = (int)rnd((uint32_t)w.n_shards);
    r->k = conn_accept();
    r->mark = d->mark;
    r->was_running = server_running(d->mark, d->seq) != NULL;
    r->seq = r->was_running || is_waiting(d) ? d->seq : 0;
    r->is_excused = w.crash > 0; /* its connection may be refused */
    list_init(&r->node);
    list_push_back(&w.cancels, &r->node);
    d->was_canceled = true;
    pg_set_u32(head, 16);
    pg_set_u32(head + 4, PG_CANCEL_REQUEST_CODE);
    must(addr_parse_ip(slice_str("10.0.0.2"), 5000, &peer));
    sim_loop_tick(w.loop[i]);
    shard_accept(w.shard[i], r->k->fd, &peer);
    conn_send(r->k, head, sizeof head);
    conn_send(r->k, d->key, sizeof d->key);
    note_event("is to be canceled", d->mark, (int)d->seq);
    model_totals->cancels++;
}

void cancel_release(struct peer_cancel *r)
{
    conn_release(r->k);
    list_remove(&r->node);
    free(r);
}

/* Nothing will come of it any more: what it was for must have ended. */
static void check_closed(const struct peer_cancel *r)
{
    const struct peer_client *d = client_of_mark(r->mark);
    if (!d || !d->is_asking || d->seq != r->seq || r->is_excused ||
        conn_is_closed(d->k))
        return;
    if (server_running(r->mark, r->seq))
        sim_fail("the cancel of query %u of client %d is lost: it still runs",
                 r->seq, r->mark);
    if (!r->was_running && is_waiting(d))
        sim_fail("the cancel of query %u of client %d is lost: it still waits",
                 r->seq, r->mark);
}

void cancels_step(void)
{
    list_for_safe(n, &w.cancels)
    {
        struct peer_cancel *r = list_entry(n, struct peer_cancel, node);
        if (!conn_is_closed(r->k))
            continue;
        note_event("cancel is done", r->mark, (int)r->seq);
        check_closed(r);
        cancel_release(r);
    }
}

/* ----------------------------------------------------------------- servers */

void server_accept(struct conn *k)
{
    static uint32_t last_pid = 1000;
    struct peer_server *s = mem_new(sizeof *s);
    s->k = k;
    k->peer = s;
    k->stays = w.servers_stay;
    k->refused = w.crash && chance(3);
    w.has_faults |= k->refused;
    s->in_startup = true;
    s->pid = ++last_pid;
    list_init(&s->node);
    list_push_back(&w.servers, &s->node);
}

void server_release(struct peer_server *s)
{
    conn_release(s->k);
    s->k->peer = NULL;
    list_remove(&s->node);
    bytes_free(&s->in);
    free(s);
}

static void say_ready(struct peer_server *s)
{
    struct pgbuf *b = fresh();
    pg_put_ready(b, s->in_tx ? 'T' : 'I');
    send_buf(s->k, b);
}

/* The tag names the query, so that a reply on the wrong way is seen. */
static void say_tag(struct peer_server *s)
{
    char tag[5];
    struct pgbuf *b = fresh();
    size_t at = pgbuf_begin(b, 'C');
    pgbuf_put_u32(b, (s->seq & 0xffff) + 'A');
    snprintf(tag, sizeof tag, "x");
    pgbuf_put_cstr(b, tag);
    (void)pgbuf_end(b, at);
    send_buf(s->k, b);
}

static void end_query(struct peer_server *s, bool is_canceled)
{
    s->is_running = false;
    note_event(is_canceled ? "query is canceled" : "query ends", s->owner,
               (int)s->seq);
    if (is_canceled) {
        struct pgbuf *b = fresh();
        pg_put_error(b, "ERROR", "57014", "canceled");
        send_buf(s->k, b);
        s->in_tx = false;
    } else {
        say_tag(s);
    }
    if (!s->in_tx)
        s->owner = 0;
    say_ready(s);
}

static void log_in(struct peer_server *s, size_t total)
{
    struct pgbuf *b = fresh();
    if (total == 16 && pg_get_u32(s->in.p + 4) == PG_CANCEL_REQUEST_CODE) {
        s->is_cancel = true;
        s->cancel_pid = pg_get_u32(s->in.p + 8);
        s->cancel_delay = (int)rnd(40);
        return;
    }
    s->in_startup = false;
    pg_put_auth(b, 0);
    pg_put_parameter_status(b, slice_str("server_version"), slice_str("16"));
    pg_put_backend_key_data(b, s->pid, &s->pid, 4);
    pg_put_ready(b, 'I');
    send_buf(s->k, b);
}

static void run_query(struct peer_server *s, const char *sql)
{
    char kind;
    int mark;
    uint32_t seq;
    if (sscanf(sql, "%c %d %u", &kind, &mark, &seq) != 3) {
        /* one of the pooler's own */
        if (s->in_tx)
            sim_fail("the pooler's query meets client %d's transaction",
                     s->owner);
        struct pgbuf *b = fresh();
        pg_put_command_complete(b, "X");
        send_buf(s->k, b);
        say_ready(s);
        return;
    }
    if (s->owner && s->owner != mark)
        sim_fail("client %d meets the transaction of client %d", mark,
                 s->owner);
    s->owner = mark;
    s->seq = seq;
    s->is_running = true;
    if (kind != 'q')
        s->in_tx = kind == 'b';
    note_event("query runs", mark, (int)seq);
    if (chance(w.run_percent))
        end_query(s, false);
}

static void read_messages(struct peer_server *s)
{
    size_t total;
    take_wire(s->k, &s->in);
    while (!s->is_running && !s->is_cancel &&
           next_message(&s->in, !s->in_startup, &total)) {
        if (s->in_startup)
            log_in(s, total);
        else if (s->in.p[0] == 'Q')
            run_query(s, s->in.p + 5);
        else if (s->in.p[0] != 'X')
            sim_fail("a backend got a message of type %c", s->in.p[0]);
        bytes_drop(&s->in, total);
    }
}

/* The signal; then PostgreSQL closes the connection. */
static void signal_backend(const struct peer_server *from)
{
    list_for(n, &w.servers)
    {
        struct peer_server *s = list_entry(n, struct peer_server, node);
        if (s->pid != from->cancel_pid)
            continue;
        if (!s->is_running) {
            /* It had not begun: PostgreSQL forgets such a signal as well. */
            list_for(m, &w.cancels)
            {
                struct peer_cancel *r = list_entry(m, struct peer_cancel, node);
                r->is_excused |= !r->was_running;
            }
            return;
        }
        if (client_of_mark(s->owner) && !conn_is_closed(s->k) &&
            !has_open_cancel(s->owner))
            sim_fail("a cancel reached query %u of client %d, which did not "
                     "ask for it",
                     s->seq, s->owner);
        model_totals->hits++;
        end_query(s, true);
        return;
    }
}

static void one_server(struct peer_server *s)
{
    if (s->is_cancel) {
        if (s->cancel_delay-- > 0)
            return;
        signal_backend(s);
        server_release(s);
        return;
    }
    if (rnd(10000) < w.crash) {
        note_event("server dies", (int)s->pid, s->owner);
        s->k->peer_reset = true;
        w.has_faults = true;
        model_totals->crashes++;
        server_release(s);
        return;
    }
    if (s->is_running && chance(12))
        end_query(s, false);
    if (chance(70))
        read_messages(s);
    if (conn_is_closed(s->k) && !s->k->wire.n && !s->is_running)
        server_release(s);
}

void servers_step(void)
{
    list_for_safe(n, &w.servers)
    {
        one_server(list_entry(n, struct peer_server, node));
    }
}
