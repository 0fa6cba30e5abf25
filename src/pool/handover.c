/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What goes, and when. A client goes when it has no server and nothing is
 * outstanding, or while it waits, with what it asked; only plain sockets can,
 * since TLS and QUIC have keys and states that stay. An idle server goes, too,
 * unless clients that stay may soon need it.
 *
 * Formats are those of one version of the program on one machine: the number in
 * the greeting (main/generation.h) is raised with every change. */
#include "pool/handover.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "net/fdlink.h"
#include "pg/pg_read.h"
#include "pg/pg_startup.h"
#include "pool/impl.h"

enum {
    BODY_MAX = FDLINK_BODY_MAX - 1024, /* who has more stays */
    KEPT_IDLE_US = 1000 * 1000,
    NAME_TEXT_MAX = 65536,
};

struct handover *handover_new(struct loop *loop,
                              void (*on_parcel)(struct message *m, void *data))
{
    struct handover *h = mem_new(sizeof *h);
    h->loop = loop;
    h->on_parcel = on_parcel;
    for (int i = 0; i < GEN_COUNT; i++)
        h->names[i] = statement_table_new();
    return h;
}

void handover_free(struct handover *h)
{
    if (!h)
        return;
    for (int i = 0; i < GEN_COUNT; i++)
        statement_table_free(h->names[i]);
    free(h);
}

void handover_parcel_free(struct handover_parcel *p)
{
    for (int i = 0; i < p->n_statements; i++)
        statement_unref(p->statements[i]);
    free(p->statements);
    if (p->body)
        mem_wipe(p->body, p->n);
    if (p->fd >= 0)
        close(p->fd);
    free(p);
}

struct handover_parcel *handover_parcel_new(const struct handover_parcel *from)
{
    struct handover_parcel *p = mem_new(sizeof *p + from->n);
    *p = *from;
    if (!from->body)
        return p;
    p->body = memcpy((char *)(p + 1), from->body, from->n);
    mem_wipe(from->body, from->n);
    free(from->body);
    return p;
}

static void post(struct shared *s, struct handover_parcel body)
{
    struct handover_parcel *p = handover_parcel_new(&body);
    p->m.handle = s->handover->on_parcel;
    mailbox_send(s->handover->loop, &p->m);
}

/* ---------------------------------------------------------------- the parts */

void handover_put_text(struct pgbuf *b, struct slice s)
{
    pgbuf_put_u32(b, (uint32_t)s.n);
    pgbuf_put_bytes(b, s.p, s.n);
}

struct slice handover_get_text(struct pgread *r)
{
    uint32_t n = pgread_u32(r);
    if (n > NAME_TEXT_MAX)
        r->bad = true;
    return r->bad ? slice_of("", 0) : pgread_bytes(r, n);
}

void handover_put_i64(struct pgbuf *b, int64_t v)
{
    pgbuf_put_u32(b, (uint32_t)((uint64_t)v >> 32));
    pgbuf_put_u32(b, (uint32_t)(uint64_t)v);
}

int64_t handover_get_i64(struct pgread *r)
{
    uint64_t high = pgread_u32(r);
    return (int64_t)(high << 32 | pgread_u32(r));
}

void handover_put_params(struct pgbuf *b, const struct pg_params *p)
{
    int n = p ? pg_params_count(p) : 0;
    pgbuf_put_u8(b, (uint8_t)n);
    for (int i = 0; i < n; i++) {
        struct slice name, value;
        pg_params_at(p, i, &name, &value);
        handover_put_text(b, name);
        handover_put_text(b, value);
    }
}

const struct pg_params *handover_get_params(struct pgread *r)
{
    const struct pg_params *p = pg_params_empty();
    int n = pgread_u8(r);
    for (int i = 0; i < n && !r->bad; i++) {
        struct slice name = handover_get_text(r);
        struct slice value = handover_get_text(r);
        if (!r->bad)
            p = pg_params_with(p, name, value);
    }
    return p;
}

void handover_put_pool(struct pgbuf *b, const struct pool_rec *rec)
{
    handover_put_text(b, slice_str(rec->db->name));
    handover_put_text(b, slice_str(rec->user->name));
}

struct pool_rec *handover_get_pool(struct pgread *r, struct shared *s)
{
    struct slice db = handover_get_text(r), user = handover_get_text(r);
    if (r->bad)
        return NULL;
    return shared_pool(s, shared_db(s, db), shared_user(s, user));
}

static void put_addr(struct pgbuf *b, const struct addr *a)
{
    handover_put_text(b, a ? slice_of(&a->sa, a->len) : slice_of("", 0));
}

static void get_addr(struct pgread *r, struct addr *a)
{
    struct slice s = handover_get_text(r);
    *a = (struct addr){0};
    if (s.n > sizeof a->un)
        r->bad = true;
    if (r->bad || s.n == 0)
        return;
    memcpy(&a->sa, s.p, s.n);
    a->len = (socklen_t)s.n;
}

static void put_secret(struct pgbuf *b, const struct auth_secret *s)
{
    char text[AUTH_SCRAM_TEXT_SIZE];
    struct slice out = slice_of("", 0);
    if (s->kind == AUTH_SECRET_SCRAM)
        out = slice_of(text, auth_secret_scram_text(s, text));
    else if (s->kind != AUTH_SECRET_NONE)
        out = auth_secret_text(s);
    handover_put_text(b, out);
    mem_wipe(text, sizeof text);
}

void handover_put_user(struct pgbuf *b, struct user_rec *u)
{
    struct auth_keys k;
    struct auth_secret s;
    user_rec_get_keys(u, &k);
    user_rec_get_secret(u, &s);
    handover_put_text(b, slice_str(u->name));
    pgbuf_put_u8(b, k.has_scram);
    pgbuf_put_bytes(b, k.client_key, sizeof k.client_key);
    pgbuf_put_bytes(b, k.server_key, sizeof k.server_key);
    pgbuf_put_u8(b, k.password != NULL);
    handover_put_text(b, slice_of(k.password ? k.password : "",
                                  k.password ? k.password_n : 0));
    put_secret(b, &s);
    auth_keys_fini(&k);
    auth_secret_fini(&s);
}

static void get_keys(struct pgread *r, struct auth_keys *k)
{
    *k = (struct auth_keys){.has_scram = pgread_u8(r)};
    struct slice ck = pgread_bytes(r, sizeof k->client_key);
    struct slice sk = pgread_bytes(r, sizeof k->server_key);
    bool has_password = pgread_u8(r);
    struct slice password = handover_get_text(r);
    if (r->bad)
        return;
    memcpy(k->client_key, ck.p, ck.n);
    memcpy(k->server_key, sk.p, sk.n);
    if (has_password) {
        k->password = mem_strndup(password.p, password.n);
        k->password_n = password.n;
    }
}

void handover_get_user(struct pgread *r, struct shared *s)
{
    struct auth_keys k;
    struct auth_secret secret;
    struct slice name = handover_get_text(r);
    get_keys(r, &k);
    struct slice text = handover_get_text(r);
    if (!r->bad) {
        struct user_rec *u = shared_user(s, name);
        user_rec_set_keys(u, &k);
        if (text.n && !auth_secret_parse(text, &secret)) {
            user_rec_set_secret(u, &secret);
            auth_secret_fini(&secret);
        }
    }
    auth_keys_fini(&k);
}

struct budget_limits handover_limits(const struct conf *c,
                                     const struct pool_rec *rec)
{
    const struct conf_db *db = conf_find_db(c, slice_str(rec->db->name));
    const struct conf_user *u = conf_find_user(c, slice_str(rec->user->name));
    if (!db)
        db = conf_fallback_db(c);
    return (struct budget_limits){
        .pool_size = conf_pool_size(c, db, u),
        .max_db = conf_max_db_connections(c, db),
        .max_user = conf_max_user_connections(c, u),
    };
}

/* ------------------------------------------------------------------ packing */

static void carrier_begin(struct carrier *k)
{
    *k = (struct carrier){.fd = -1};
    pgbuf_init(&k->body, BODY_MAX);
}

static void carrier_drop(struct carrier *k)
{
    for (int i = 0; i < k->n_statements; i++)
        statement_unref(k->statements[i]);
    free(k->statements);
    pgbuf_wipe(&k->body);
    pgbuf_fini(&k->body);
}

static void carrier_post(struct carrier *k, struct shared *s,
                         enum generation to, enum handover_kind kind)
{
    struct handover_parcel p = {.to = to,
                                .kind = kind,
                                .fd = k->fd,
                                .statements = k->statements,
                                .n_statements = k->n_statements};
    p.body = pgbuf_take(&k->body, &p.n);
    post(s, p);
}

static void pack_client(struct client *c, struct carrier *k)
{
    struct pgbuf *b = &k->body;
    struct addr peer, self;
    bool has_peer = !stream_ends(c->stream, &peer, &self);
    handover_put_text(b, slice_str(c->db->name));
    handover_put_user(b, c->user);
    pgbuf_put_u8(b, c->stream->kind);
    put_addr(b, has_peer ? &peer : NULL);
    pgbuf_put_u8(b, c->minor);
    pgbuf_put_u8(b, c->key_n);
    pgbuf_put_bytes(b, c->key, c->key_n);
    handover_put_i64(b, c->connect_us);
    handover_put_i64(b, c->request_us);
    handover_put_params(b, c->params);
    prepared_pack_client(c, k);
    pgbuf_put_u32(b, c->in.n);
    pgbuf_put_bytes(b, c->in.p, c->in.n);
}

static void pack_server(struct server *s, struct carrier *k)
{
    struct pgbuf *b = &k->body;
    const struct shard *sh = s->pool->shard;
    handover_put_pool(b, s->pool->rec);
    pgbuf_put_u8(b, s->stream->kind);
    handover_put_i64(b, (int64_t)conf_server_print(sh->conf, s->pool->cdb));
    put_addr(b, &s->at);
    pgbuf_put_u8(b, s->host_name != NULL);
    handover_put_text(b, slice_str(s->host_name ? s->host_name : ""));
    pgbuf_put_u32(b, s->pid);
    handover_put_text(b, slice_of(s->key, s->key_n));
    handover_put_i64(b, s->connect_us);
    handover_put_i64(b, s->request_us);
    pgbuf_put_u8(b, s->was_used);
    pgbuf_put_u8(b, s->needs_reset);
    pgbuf_put_u8(b, s->uses_mptcp);
    handover_put_params(b, s->params);
    prepared_pack_server(s, k);
}

/* ------------------------------------------------------------------ leaving */

static bool has_plain_socket(const struct stream *st)
{
    return st->kind == STREAM_TCP || st->kind == STREAM_UNIX;
}

static bool is_movable(const struct client *c)
{
    return has_plain_socket(c->stream) &&
           c->replication == PG_REPLICATION_OFF && c->pool && !c->login;
}

static bool is_at_boundary(const struct client *c)
{
    return (c->state == CLIENT_WAITING ||
            (c->state == CLIENT_IDLE && !c->in.n)) &&
           !c->body_left && !c->is_stalled && !c->is_skipping &&
           !c->wants_close && !c->is_gone;
}

/* False: it stays, for now. */
static bool hand_over_client(struct client *c)
{
    struct shard *sh = c->shard;
    struct carrier k;
    if (stream_detach(c->stream))
        return false;
    carrier_begin(&k);
    pack_client(c, &k);
    if (k.body.failed) {
        carrier_drop(&k);
        stream_attach(c->stream, sh->loop);
        return false;
    }
    k.fd = sock_take_fd(c->stream, sh->loop);
    sh->n_moved_out++;
    pool_stop_waiting(c);
    client_vanish(c);
    carrier_post(&k, sh->shared, GEN_NEWER, HANDOVER_CLIENT);
    return true;
}

/* False: it is as it was. */
static bool hand_over_server(struct server *s, enum generation to)
{
    struct pool *p = s->pool;
    struct shard *sh = p->shard;
    struct carrier k;
    if (!has_plain_socket(s->stream) || s->is_replication ||
        stream_detach(s->stream))
        return false;
    carrier_begin(&k);
    pack_server(s, &k);
    if (k.body.failed || k.is_local) {
        carrier_drop(&k);
        stream_attach(s->stream, sh->loop);
        return false;
    }
    k.fd = sock_take_fd(s->stream, sh->loop);
    s->stream = NULL;
    server_set_state(s, SERVER_CLOSED);
    pool_publish(p);
    sh->n_lent++;
    server_vanish(s);
    budget_hand_over(sh->shared, p->rec, to);
    carrier_post(&k, sh->shared, to, HANDOVER_SERVER);
    return true;
}

bool handover_lend(struct server *s, enum generation to)
{
    return hand_over_server(s, to);
}

void handover_send_place(struct shared *s, struct pool_rec *rec)
{
    struct carrier k;
    if (!s->handover || !atomic_load(&s->handover->has[GEN_NEWER]))
        return;
    carrier_begin(&k);
    handover_put_pool(&k.body, rec);
    carrier_post(&k, s, GEN_NEWER, HANDOVER_PLACE);
}

/* TLS and QUIC, between two transactions. */
static bool may_end(const struct client *c)
{
    const struct server *s = c->server;
    if (has_plain_socket(c->stream) || c->replication || !c->pool || c->login)
        return false;
    if (c->state == CLIENT_IDLE || c->state == CLIENT_WAITING)
        return true;
    return c->state == CLIENT_ACTIVE && s && s->job == JOB_NONE &&
           pg_track_is_idle(&s->track) && !c->body_left;
}

/* True when it is gone. */
static bool let_go(struct client *c)
{
    if (is_movable(c))
        return is_at_boundary(c) && hand_over_client(c);
    if (c->shard->conf->upgrade_tls != CONF_UPGRADE_END || !may_end(c))
        return false;
    client_close(c, "57P01",
                 "terminating connection due to administrator command");
    return true;
}

static void let_clients_go(struct shard *sh, struct leave_count *out)
{
    list_for(m, &sh->pools) list_entry(m, struct pool, node)->n_staying = 0;
    list_for_safe(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        if (c->state == CLIENT_CANCEL)
            continue;
        if (c->state == CLIENT_CONSOLE) {
            out->consoles++;
            continue;
        }
        if (let_go(c))
            continue;
        out->clients++;
        if (c->pool && !is_movable(c))
            c->pool->n_staying++;
        c->is_chosen = is_movable(c); /* we hear of its next boundary */
    }
}

/* Also those that are tested before their next use: the other process does. */
static void let_servers_go(struct shard *sh, struct pool *p)
{
    static const enum server_state idle[] = {SERVER_IDLE, SERVER_USED};
    int64_t now = shard_now(sh);
    for (size_t i = 0; i < ARRAY_SIZE(idle); i++)
        list_for_safe(n, &p->servers[idle[i]])
        {
            struct server *s = list_entry(n, struct server, node);
            bool is_fresh = now - s->request_us < KEPT_IDLE_US;
            if (p->n_waiting || (p->n_staying && is_fresh))
                continue;
            if (!hand_over_server(s, GEN_NEWER) &&
                !(is_fresh && has_plain_socket(s->stream)))
                server_close(s, "upgrade: it cannot move");
        }
}

void shard_leave_now(struct shard *sh, struct leave_count *out)
{
    let_clients_go(sh, out);
    list_for_safe(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        let_servers_go(sh, p);
        out->servers += pool_count_servers(p);
        atomic_store(&p->rec->slot[sh->index].logins, p->n_login_waiting);
    }
}

/* Some client that can move is at its boundary, or some server is idle. */
void handover_run(struct shard *sh)
{
    struct leave_count count = {0};
    bool any = sh->has_ready_client;
    sh->has_ready_client = false;
    if (any)
        let_clients_go(sh, &count);
    list_for_safe(n, &sh->pools)
        let_servers_go(sh, list_entry(n, struct pool, node));
}

void shard_leave(struct shard *sh)
{
    struct leave_count count = {0};
    balance_forget_all(sh);
    sh->is_leaving = true;
    shard_leave_now(sh, &count);
}

void shard_stay(struct shard *sh)
{
    sh->is_leaving = false;
    list_for(n, &sh->clients) list_entry(n, struct client, node_all)
        ->is_chosen = false;
    list_for(m, &sh->pools)
    {
        struct pool *p = list_entry(m, struct pool, node);
        atomic_store(&p->rec->slot[sh->index].logins, 0);
        pool_dispatch_later(p);
    }
}

/* ---------------------------------------------------------------- receiving */

static struct client *make_client(struct shard *sh, int fd,
                                  enum stream_kind kind)
{
    struct client *c = mem_new(sizeof *c);
    c->shard = sh;
    c->id = ++sh->shared->last_client_id;
    c->state = CLIENT_IDLE;
    list_init(&c->node_all);
    list_init(&c->node_pool);
    c->stream = sock_accepted(sh->loop, fd, kind, &client_handler, c);
    if (!c->stream) {
        free(c);
        return NULL;
    }
    return c;
}

static const struct conf_db *find_line(const struct conf *conf,
                                       const struct db_rec *db)
{
    const struct conf_db *cdb = conf_find_db(conf, slice_str(db->name));
    return cdb ? cdb : conf_fallback_db(conf);
}

static int unpack_client(struct client *c, struct pgread *r,
                         struct statement_table *names)
{
    struct addr peer;
    get_addr(r, &peer);
    c->minor = pgread_u8(r);
    c->key_n = pgread_u8(r);
    if (c->key_n < 8 || c->key_n > CANCEL_KEY_MAX)
        return ERR_PROTO;
    struct slice key = pgread_bytes(r, c->key_n);
    if (!r->bad)
        memcpy(c->key, key.p, key.n);
    c->connect_us = handover_get_i64(r);
    c->request_us = handover_get_i64(r);
    c->params = handover_get_params(r);
    int rc = prepared_unpack_client(c, r, names);
    uint32_t n = pgread_u32(r);
    struct slice in = pgread_bytes(r, n);
    if (rc || r->bad || pgread_left(r))
        return ERR_PROTO;
    if (peer.len && !addr_is_unix(&peer))
        stream_set_peer(c->stream, &peer);
    if (n && inbuf_append(&c->in, in.p, in.n))
        return ERR_NOMEM;
    (void)client_count_held(c);
    return 0;
}

static void enter(struct client *c)
{
    struct shard *sh = c->shard;
    atomic_fetch_add(&c->db->n_clients, 1);
    atomic_fetch_add(&c->user->n_clients, 1);
    atomic_fetch_add(&sh->shared->n_clients, 1);
    c->is_registered = true;
    kill_note_login(c);
    client_enter(c, sh);
    sh->n_moved_in++;
}

static void begin_here(struct client *c)
{
    struct shard *sh = c->shard;
    const struct conf_db *cdb = find_line(sh->conf, c->db);
    if (!cdb) {
        client_close(c, "3D000", "no such database: %s", c->db->name);
        return;
    }
    struct user_rec *as =
        cdb->user ? shared_user(sh->shared, slice_str(cdb->user)) : c->user;
    c->pool = pool_get(sh, c->db, as);
    c->pool->n_clients++;
    cancel_register(c);
    kill_note_login(c); /* a KILL of ours came before it */
    if (c->in.n)
        client_read_ahead(c);
}

void shard_receive_client(struct shard *sh, enum generation from,
                          struct slice body, int fd)
{
    struct shared *s = sh->shared;
    struct pgread r = pgread_of(body), name;
    struct slice db = handover_get_text(&r);
    name = r;
    struct slice user = handover_get_text(&name);
    handover_get_user(&r, s);
    uint8_t kind = pgread_u8(&r);
    if (r.bad || name.bad || (kind != STREAM_TCP && kind != STREAM_UNIX)) {
        log_error("upgrade: a session came that cannot be read");
        close(fd);
        return;
    }
    struct client *c = make_client(sh, fd, kind);
    if (!c)
        return;
    c->db = shared_db(s, db);
    c->user = shared_user(s, user);
    int rc = unpack_client(c, &r, s->handover->names[from]);
    enter(c);
    if (rc)
        client_close(c, "57P01", "session could not be taken over");
    else
        begin_here(c);
}

static int unpack_server(struct server *s, struct pgread *r, uint64_t *print,
                         struct statement_table *names)
{
    *print = (uint64_t)handover_get_i64(r);
    get_addr(r, &s->at);
    bool has_name = pgread_u8(r);
    struct slice name = handover_get_text(r);
    if (has_name && !r->bad)
        s->host_name = mem_strndup(name.p, name.n);
    s->pid = pgread_u32(r);
    struct slice key = handover_get_text(r);
    if (key.n > sizeof s->key)
        return ERR_PROTO;
    memcpy(s->key, key.p, key.n);
    s->key_n = (uint16_t)key.n;
    s->connect_us = handover_get_i64(r);
    s->request_us = handover_get_i64(r);
    s->was_used = pgread_u8(r);
    s->needs_reset = pgread_u8(r);
    s->uses_mptcp = pgread_u8(r);
    pg_params_unref(s->params);
    s->params = handover_get_params(r);
    int rc = prepared_unpack_server(s, r, names);
    return rc || !pgread_done(r) ? ERR_PROTO : 0;
}

static void take_server(struct server *s, int rc, uint64_t print)
{
    struct pool *p = s->pool;
    struct shard *sh = p->shard;
    if (rc) {
        server_close(s, "upgrade: its statements are named otherwise here");
        return;
    }
    if (!p->cdb || print != conf_server_print(sh->conf, p->cdb)) {
        server_close(s, "upgrade: the database line has changed");
        return;
    }
    pool_server_came(p, s->params);
    if (pool_is_paused(p)) {
        server_close(s, "paused");
        return;
    }
    pool_publish(p);
    pool_dispatch(p);
}

void shard_receive_server(struct shard *sh, enum generation from,
                          struct slice body, int fd)
{
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, sh->shared);
    uint8_t kind = pgread_u8(&r);
    uint64_t print = 0;
    if (!rec || r.bad || (kind != STREAM_TCP && kind != STREAM_UNIX)) {
        log_error("upgrade: a server came that cannot be read");
        close(fd);
        if (rec)
            budget_give(sh->shared, rec);
        return;
    }
    struct server *s = server_adopt(pool_get(sh, rec->db, rec->user), fd, kind);
    if (!s) {
        budget_give(sh->shared, rec);
        return;
    }
    sh->n_borrowed++;
    int rc = unpack_server(s, &r, &print, sh->shared->handover->names[from]);
    take_server(s, rc, print);
}

/* --------------------------------------------------------------------- else */

void shard_wake_pool(struct shard *sh, struct pool_rec *rec)
{
    struct pool *p = rec->pool[sh->index];
    if (p)
        pool_dispatch_later(p);
}

void shard_wake_all(struct shard *sh)
{
    pool_budget_freed(sh);
}

bool shard_evict(struct shard *sh, struct pool_rec *rec,
                 enum budget_verdict why)
{
    return lend_evict_here(sh, rec, why);
}

enum { N_STATS = sizeof(struct pool_stats) / sizeof(uint64_t) };

void shard_take_stats(struct shard *sh,
                      void (*each)(void *arg, struct pool_rec *rec,
                                   const struct pool_stats *s),
                      void *arg)
{
    list_for(n, &sh->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        struct pool_stats d = p->stats;
        uint64_t *to = (uint64_t *)&d, *sent = (uint64_t *)&p->stats_sent;
        bool any = false;
        for (int i = 0; i < N_STATS; i++) {
            to[i] -= sent[i];
            sent[i] += to[i];
            any = any || to[i];
        }
        if (any)
            each(arg, p->rec, &d);
    }
}

void shard_add_stats(struct shard *sh, struct pool_rec *rec,
                     const struct pool_stats *s)
{
    struct pool *p = pool_get(sh, rec->db, rec->user);
    uint64_t *to = (uint64_t *)&p->stats;
    const uint64_t *from = (const uint64_t *)s;
    for (int i = 0; i < N_STATS; i++)
        to[i] += from[i];
}
