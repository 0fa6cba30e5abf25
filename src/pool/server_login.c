/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Logging in to PostgreSQL: choose a host, resolve it, connect, TLS, start-up,
 * authentication, settings, key, ReadyForQuery, connect_query. Over QUIC a
 * stream of a connection that may be open already takes the place of the first
 * steps (server_quic.h).
 *
 * Failures before the start-up packet was answered try the next address and the
 * next host; what the server itself says ends the attempt. Either way the pool
 * is told why, and tries again after server_login_retry. */
#include <stdio.h>
#include <stdlib.h>

#include "auth/auth_server.h"
#include "auth/userdb.h"
#include "base/log.h"
#include "net/tls.h"
#include "pg/pg_error.h"
#include "pg/pg_read.h"
#include "pool/auth_work.h"
#include "pool/server_quic.h"

enum { ADDRS_MAX = 16, LOGIN_MESSAGE_MAX = 65536 };

enum { SUBFLOWS_LOOK_US = 2000, SUBFLOWS_WAIT_US = 1000 * 1000 };

enum login_step {
    STEP_RESOLVE, /* or waits for a stream of QUIC */
    STEP_CONNECT,
    STEP_SSL_ANSWER,
    STEP_TLS,
    STEP_AUTH,
    STEP_WORK,     /* a helper thread hashes the password */
    STEP_READY,    /* AuthenticationOk came */
    STEP_SUBFLOWS, /* logged in; those of mptcp_subflows are on their way */
};

struct server_login {
    enum login_step step;
    int host;       /* of pool->cdb->hosts, as tried now */
    int hosts_left; /* to try after this one */
    struct resolve *question;
    struct quic_ask ask;
    bool is_asking;
    bool has_heard; /* the server has said something */
    uint8_t n_retries;
    struct addr at[ADDRS_MAX];
    int n_at, next_at;
    struct auth_server *auth;
    struct inbuf in;
    bool tls_refused;      /* prefer: goes on without */
    struct server *server; /* whose it is, for the timer */
    struct timer timer;
    int64_t subflows_until_us;
};

/* Streams on dead or drained connections that may be met in a row. */
enum { STREAM_RETRIES_MAX = 8, STREAM_WAIT_US = 15 * 1000 * 1000 };

static void try_host(struct server *s);
static void send_startup(struct server *s);
static void ask_stream(struct server *s);

void server_login_free(struct server *s)
{
    struct server_login *l = s->login;
    if (!l)
        return;
    if (l->question)
        resolve_cancel(l->question);
    if (l->is_asking)
        quic_hub_take_back(&l->ask);
    timer_clear(s->pool->shard->loop, &l->timer);
    auth_server_free(l->auth);
    inbuf_clear(&l->in);
    free(l);
    s->login = NULL;
}

/* The client that a replication connection is made for; NULL when it has gone.
 */
static struct client *replication_client(const struct server *s)
{
    struct client *c = shard_find_client(s->pool->shard, s->replication_client);
    return c && c->login ? c : NULL;
}

void server_login_fail(struct server *s, const char *sqlstate, const char *text)
{
    struct pool *p = s->pool;
    char name[SERVER_NAME_MAX], why[ERR_TEXT_MAX];
    snprintf(why, sizeof why, "%s", text);
    log_warning("%s server login failed: %s", server_name(s, name), why);
    struct client *c = s->is_replication ? replication_client(s) : NULL;
    bool is_replication = s->is_replication;
    p->shard->tally.servers_failed++;
    server_close(s, "login failed");
    if (c)
        client_login_refuse(c, sqlstate, why);
    if (!is_replication)
        pool_server_failed(p, sqlstate, why);
}

static bool is_quic(const struct server *s)
{
    return s->pool->cdb && s->pool->cdb->transport == CONF_TRANSPORT_QUIC;
}

/* The connection could not be had, or broke, before the server said anything:
 * the next address, or the next host. */
void server_login_lost(struct server *s, const struct err *e)
{
    struct server_login *l = s->login;
    char name[SERVER_NAME_MAX];
    if (s->stream) {
        stream_close(s->stream);
        s->stream = NULL;
    }
    if (is_quic(s) && l->step == STEP_AUTH && !l->has_heard &&
        l->n_retries < STREAM_RETRIES_MAX) {
        l->n_retries++;
        ask_stream(s);
        return;
    }
    if (l->step >= STEP_AUTH || (l->next_at >= l->n_at && !l->hosts_left)) {
        char why[ERR_TEXT_MAX];
        slice_copy(slice_str("database server: "), why, sizeof why);
        slice_copy(slice_str(e->text), why + strlen(why),
                   sizeof why - strlen(why));
        server_login_fail(s, err_sqlstate(e->code), why);
        return;
    }
    log_warning("%s %s; trying the next address", server_name(s, name),
                e->text);
    if (l->next_at < l->n_at) {
        server_login_connect(s);
        return;
    }
    l->hosts_left--;
    l->host = (l->host + 1) % s->pool->cdb->n_hosts;
    try_host(s);
}

/* ----------------------------------------------------------------- address */

static struct sock_options options_of(const struct server *s)
{
    const struct conf *conf = s->pool->shard->conf;
    struct sock_options o = shard_sock_options(conf);
    o.mptcp = server_wants_mptcp(s);
    return o;
}

void server_login_connect(struct server *s)
{
    struct server_login *l = s->login;
    struct sock_options o;
    struct err e;
    l->step = STEP_CONNECT;
    s->at = l->at[l->next_at++];
    o = options_of(s);
    s->stream =
        sock_connect(s->pool->shard->loop, &s->at, &o, &server_handler, s, &e);
    if (!s->stream)
        server_login_lost(s, &e);
}

static void on_resolved(void *arg, const struct addr *at, size_t n,
                        const struct err *e)
{
    struct server *s = arg;
    struct server_login *l = s->login;
    int port = s->pool->cdb->hosts[l->host].port;
    l->question = NULL;
    l->n_at = (int)MIN(n, (size_t)ADDRS_MAX);
    l->next_at = 0;
    for (int i = 0; i < l->n_at; i++) {
        /* Rotated, so that a name with many addresses spreads the load. */
        l->at[i] = at[((size_t)i + s->pool->next_host) % n];
        addr_set_port(&l->at[i], port);
    }
    if (!n)
        server_login_lost(s, e);
    else
        server_login_connect(s);
}

static void use_address(struct server *s, const struct addr *a)
{
    s->login->at[0] = *a;
    s->login->n_at = 1;
    s->login->next_at = 0;
    server_login_connect(s);
}

/* --- a stream ---------------------------------------------------------------
 */

static void on_quic_stream(struct quic_ask *a, struct stream *st)
{
    struct server_login *l = container_of(a, struct server_login, ask);
    struct server *s = l->server;
    struct addr self;
    l->is_asking = false;
    s->stream = st;
    stream_set_owner(st, &server_handler, s);
    if (stream_ends(st, &s->at, &self) == 0)
        send_startup(s); /* else on_error() follows */
}

static void on_quic_fail(struct quic_ask *a, const struct err *e)
{
    struct server_login *l = container_of(a, struct server_login, ask);
    l->is_asking = false;
    l->step = STEP_RESOLVE;
    server_login_lost(l->server, e);
}

/* The time-out of the hub comes first, since it knows more. */
static int64_t stream_deadline(const struct server *s)
{
    const struct shard *sh = s->pool->shard;
    int64_t limit = sh->conf->server_connect_timeout_us;
    return shard_now(sh) + (limit > 0 ? limit - limit / 8 : STREAM_WAIT_US);
}

static void ask_stream(struct server *s)
{
    struct server_login *l = s->login;
    const struct conf_db *db = s->pool->cdb;
    const struct conf_host *h = &db->hosts[l->host % db->n_hosts];
    struct quic_hub *hub;
    struct err e;
    l->step = STEP_RESOLVE;
    if (server_quic_hub(s->pool->shard, db, h->host, h->port, &hub, &e)) {
        server_login_fail(s, err_sqlstate(e.code), e.text);
        return;
    }
    l->server = s;
    l->is_asking = true;
    l->ask.on_stream = on_quic_stream;
    l->ask.on_fail = on_quic_fail;
    l->ask.deadline_us = stream_deadline(s);
    quic_hub_ask(hub, &l->ask);
}

static void try_host(struct server *s)
{
    struct server_login *l = s->login;
    struct shard *sh = s->pool->shard;
    const struct conf_host *h = &s->pool->cdb->hosts[l->host];
    const char *host = h->host ? h->host : sh->conf->unix_socket_dir;
    struct addr a;
    struct err e;
    free(s->host_name);
    s->host_name = NULL;
    l->n_at = l->next_at = 0;
    l->step = STEP_RESOLVE;
    if (!host || !*host)
        host = "/tmp";
    if (host[0] == '/' || host[0] == '@') {
        if (addr_unix(slice_str(host), h->port, &a, &e))
            server_login_lost(s, &e);
        else
            use_address(s, &a);
        return;
    }
    s->host_name = mem_strdup(host);
    if (is_quic(s)) {
        ask_stream(s);
        return;
    }
    if (addr_parse_ip(slice_str(host), h->port, &a))
        use_address(s, &a);
    else
        l->question = resolve_start(sh->resolver, host, on_resolved, s);
}

void server_login_start(struct server *s)
{
    struct pool *p = s->pool;
    struct server_login *l = mem_new(sizeof *l);
    s->login = l;
    if (!p->cdb) {
        server_login_fail(s, "08P01", "the database is no longer configured");
        return;
    }
    unsigned n = (unsigned)p->cdb->n_hosts;
    bool balance = p->cdb->load_balance_hosts != CONF_BALANCE_DISABLE;
    if (balance)
        p->next_host++;
    l->host = balance ? (int)(p->next_host % n) : 0;
    l->hosts_left = (int)n - 1;
    try_host(s);
}

/* -------------------------------------------------------------- TLS, start */

static void put_setting(struct pg_pair *pair, int *n, const char *name,
                        const char *value)
{
    if (value && *value)
        pair[(*n)++] = (struct pg_pair){slice_str(name), slice_str(value)};
}

static void send_startup(struct server *s)
{
    struct server_login *l = s->login;
    struct pool *p = s->pool;
    struct pgbuf *b = &p->shard->text;
    struct pg_pair pair[8 + CLIENT_SETTINGS_MAX];
    int n = 0;
    struct slice db = conf_db_dbname(p->cdb, slice_str(p->rec->db->name));
    pair[n++] =
        (struct pg_pair){slice_str("user"), slice_str(p->rec->user->name)};
    pair[n++] = (struct pg_pair){slice_str("database"), db};
    put_setting(pair, &n, "client_encoding", p->cdb->client_encoding);
    put_setting(pair, &n, "datestyle", p->cdb->datestyle);
    put_setting(pair, &n, "timezone", p->cdb->timezone);
    put_setting(pair, &n, "application_name", p->cdb->application_name);
    struct client *c = s->is_replication ? replication_client(s) : NULL;
    if (c)
        n += client_login_settings(c, pair + n);
    pgbuf_reset(b);
    pg_put_startup(b, PG_MINOR_OLDEST, pair, (size_t)n);
    l->step = STEP_AUTH;
    (void)stream_write(s->stream, b->p, b->n);
}

static enum conf_sslmode sslmode_of(const struct server *s)
{
    if (addr_is_unix(&s->at))
        return CONF_SSL_DISABLE;
    return conf_server_sslmode(s->pool->shard->conf, s->pool->cdb);
}

static void start_tls(struct server *s)
{
    struct server_login *l = s->login;
    struct tls_ctx *ctx;
    struct err e;
    if (pool_server_tls(s->pool, &ctx, &e)) {
        server_login_fail(s, "08P01", e.text);
        return;
    }
    l->step = STEP_TLS;
    s->stream = tls_connect(s->stream, ctx, s->host_name, TLS_ALPN_POSTGRESQL,
                            &server_handler, s);
}

void server_login_opened(struct server *s)
{
    struct server_login *l = s->login;
    enum conf_sslmode mode = sslmode_of(s);
    struct err e;
    if (l->step == STEP_CONNECT && server_check_mptcp(s, &e)) {
        server_login_lost(s, &e);
        return;
    }
    if (l->step == STEP_CONNECT && server_wants_mptcp(s) && !s->uses_mptcp) {
        /* What MPTCP refuses (TCP_USER_TIMEOUT), TCP takes. */
        struct sock_options o = options_of(s);
        sock_set_options(stream_fd(s->stream), &o);
    }
    if (l->step == STEP_TLS || mode == CONF_SSL_DISABLE ||
        mode == CONF_SSL_ALLOW) {
        send_startup(s);
        return;
    }
    if (s->pool->cdb->sslnegotiation == CONF_SSLNEG_DIRECT) {
        start_tls(s);
        return;
    }
    struct pgbuf *b = &s->pool->shard->text;
    pgbuf_reset(b);
    pg_put_ssl_request(b);
    l->step = STEP_SSL_ANSWER;
    (void)stream_write(s->stream, b->p, b->n);
}

static void ssl_answer(struct server *s, const char *p, size_t n)
{
    struct err e;
    if (n > 1) {
        err_set(&e, ERR_PROTO, "received unencrypted data after SSL response");
        server_login_lost(s, &e);
        return;
    }
    if (p[0] == 'S') {
        start_tls(s);
    } else if (p[0] == 'N' && sslmode_of(s) == CONF_SSL_PREFER) {
        s->login->tls_refused = true;
        send_startup(s);
    } else if (p[0] == 'N') {
        server_login_fail(s, "08P01",
                          "server refused SSL (server_tls_sslmode asks for "
                          "it)");
    } else {
        err_set(&e, ERR_PROTO, "bad answer to SSLRequest");
        server_login_lost(s, &e);
    }
}

/* ---------------------------------------------------------- authentication */

static struct auth_server *make_auth(struct server *s, struct err *e)
{
    struct pool *p = s->pool;
    const struct conf *conf = p->shard->conf;
    struct slice user = slice_str(p->rec->user->name);
    struct auth_secret fetched = {0};
    struct auth_keys keys = {0};
    const struct tls_info *tls = stream_tls(s->stream);
    struct auth_server_params params = {
        .user = user,
        .has_tls = tls != NULL,
        .tls_server_end_point = tls ? tls->server_end_point : slice_of("", 0),
        .may_work = true,
        .cache = p->shard->auth_cache,
    };
    const struct auth_user *known = userdb_find(conf->users, user);
    const struct auth_secret *secret = known ? &known->secret : NULL;
    if (!secret) {
        user_rec_get_secret(p->rec->user, &fetched);
        secret = &fetched;
    }
    if (p->cdb->user && p->cdb->password)
        params.password = slice_str(p->cdb->password);
    else if (secret->kind == AUTH_SECRET_PLAIN)
        params.password = auth_secret_text(secret);
    else if (secret->kind == AUTH_SECRET_MD5)
        params.md5 = auth_secret_text(secret);
    user_rec_get_keys(p->rec->user, &keys);
    params.keys = &keys;
    struct auth_server *a = auth_server_new(&params);
    auth_secret_fini(&fetched);
    auth_keys_fini(&keys);
    return a;
}

/* What the dialogue says to the server, and what comes of it. */
static void auth_result(struct server *s, int rc, struct pgbuf *b,
                        const struct err *e)
{
    struct server_login *l = s->login;
    if (rc < 0) {
        server_login_fail(s, err_sqlstate(rc), e->text);
        return;
    }
    if (b->n)
        (void)stream_write(s->stream, b->p, b->n);
    pgbuf_wipe(b);
    if (rc == AUTH_OK) {
        l->step = STEP_READY;
    } else if (rc == AUTH_WORK) {
        struct auth_server *auth = l->auth;
        l->auth = NULL;
        l->step = STEP_WORK;
        auth_work_hash_server(s, auth);
    }
}

bool server_login_waits_for_hash(const struct server *s)
{
    return s->login && s->login->step == STEP_WORK;
}

void server_login_hashed(struct server *s, struct auth_server *auth)
{
    struct server_login *l = s->login;
    struct pgbuf *b = &s->pool->shard->text;
    struct err e = {0};
    l->auth = auth;
    l->step = STEP_AUTH;
    pgbuf_reset(b);
    int rc = auth_server_resume(auth, b, &e);
    auth_result(s, rc, b, &e);
}

static void auth_message(struct server *s, struct slice body)
{
    struct server_login *l = s->login;
    struct pgbuf *b = &s->pool->shard->text;
    struct err e = {0};
    if (body.n > AUTH_SERVER_BODY_MAX) {
        server_login_fail(s, "08P01", "authentication request is too long");
        return;
    }
    if (!l->auth)
        l->auth = make_auth(s, &e);
    pgbuf_reset(b);
    int rc = auth_server_step(l->auth, body, b, &e);
    auth_result(s, rc, b, &e);
}

/* ---------------------------------------------------------------- messages */

static void key_message(struct server *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    s->pid = pgread_u32(&r);
    struct slice key = pgread_rest(&r);
    if (r.bad || key.n < PG_CANCEL_KEY_MIN || key.n > PG_CANCEL_KEY_MAX) {
        server_login_fail(s, "08P01", "bad cancel key");
        return;
    }
    memcpy(s->key, key.p, key.n);
    s->key_n = (uint16_t)key.n;
}

/* Logged in, and connect_query was run if there is one. */
void server_login_done(struct server *s)
{
    pool_server_came(s->pool, s->params);
    if (s->state != SERVER_CLOSED)
        pool_give_server(s);
}

/* Which local port it is tells a packet filter, or pg_stat_activity. */
static void log_connection(const struct server *s)
{
    char name[SERVER_NAME_MAX], at[ADDR_TEXT_MAX], tls[TLS_TEXT_MAX];
    const struct tls_info *info = stream_tls(s->stream);
    struct addr peer, self;
    server_name(s, name);
    if (!stream_ends(s->stream, &peer, &self) && !addr_is_unix(&peer)) {
        addr_text(&self, at, sizeof at);
        log_info("%s new connection to server (from %s)", name, at);
    } else {
        log_info("%s new connection to server", name);
    }
    if (info)
        log_info("%s SSL established: %s", name, tls_text(info, tls));
}

static void finish(struct server *s)
{
    struct pool *p = s->pool;
    const char *query = p->cdb ? p->cdb->connect_query : NULL;
    server_login_free(s);
    p->shard->tally.servers_logged_in++;
    if (p->shard->conf->log_connections)
        log_connection(s);
    if (s->is_replication) {
        struct client *c = replication_client(s);
        if (c)
            client_login_replicate(c, s);
        else
            server_close(s, "replication client was closed");
        return;
    }
    s->request_us = shard_now(p->shard);
    if (query && *query) {
        server_set_state(s, SERVER_TESTED);
        server_run_job(s, JOB_CONNECT, slice_str(query));
    } else {
        server_login_done(s);
    }
}

/* What came behind ReadyForQuery goes with it. */
static void finish_later(struct timer *t)
{
    struct server_login *l = container_of(t, struct server_login, timer);
    struct server *s = l->server;
    struct loop *loop = s->pool->shard->loop;
    if (!server_has_subflows(s) && loop_now_us(loop) < l->subflows_until_us) {
        timer_set(loop, t, loop_now_us(loop) + SUBFLOWS_LOOK_US);
        return;
    }
    struct inbuf in = l->in;
    l->in = (struct inbuf){0};
    finish(s);
    if (s->state != SERVER_CLOSED && in.n)
        link_from_server(s, in.p, in.n);
    inbuf_clear(&in);
}

static void ready(struct server *s)
{
    struct server_login *l = s->login;
    struct loop *loop = s->pool->shard->loop;
    if (!server_add_subflows(s)) {
        finish(s);
        return;
    }
    l->step = STEP_SUBFLOWS;
    l->server = s;
    l->timer.on_fire = finish_later;
    l->subflows_until_us = loop_now_us(loop) + SUBFLOWS_WAIT_US;
    timer_set(loop, &l->timer, loop_now_us(loop) + SUBFLOWS_LOOK_US);
}

static void error_message(struct server *s, struct slice body)
{
    struct pg_error x;
    char text[FAIL_TEXT_MAX], code[6] = "08P01";
    if (!pg_error_parse(body, &x)) {
        server_login_fail(s, code, "broken error message from the server");
        return;
    }
    if (x.code.n == 5)
        slice_copy(x.code, code, sizeof code);
    slice_copy(x.message, text, sizeof text);
    server_login_fail(s, code, text);
}

static void one_message(struct server *s, char type, struct slice body)
{
    struct server_login *l = s->login;
    bool is_news;
    switch (type) {
    case PG_MSG_ERROR:
        error_message(s, body);
        return;
    case PG_MSG_NOTICE:
        return;
    case PG_MSG_AUTH:
        if (l->step == STEP_AUTH) {
            auth_message(s, body);
            return;
        }
        break;
    case PG_MSG_PARAMETER_STATUS:
        if (l->step >= STEP_READY) {
            link_note_parameter(s, body, &is_news);
            return;
        }
        break;
    case PG_MSG_BACKEND_KEY_DATA:
        if (l->step == STEP_READY) {
            key_message(s, body);
            return;
        }
        break;
    case PG_MSG_READY:
        if (l->step == STEP_READY) {
            ready(s);
            return;
        }
        break;
    default:
        break;
    }
    server_login_fail(s, "08P01", "unexpected message during login");
}

/* Whole messages from the buffer; stops when the login is over. */
static size_t consume(struct server *s, struct slice in)
{
    size_t at = 0;
    while (s->state != SERVER_CLOSED && s->login) {
        char type;
        struct slice body;
        size_t size;
        int rc = pgread_message(slice_of(in.p + at, in.n - at),
                                LOGIN_MESSAGE_MAX, &type, &body, &size);
        if (rc < 0) {
            server_login_fail(s, "08P01", "invalid message during login");
            break;
        }
        if (rc == 0)
            break;
        at += size;
        one_message(s, type, body);
    }
    return at;
}

void server_login_data(struct server *s, const char *p, size_t n)
{
    struct server_login *l = s->login;
    l->has_heard = true;
    if (l->step == STEP_SSL_ANSWER) {
        ssl_answer(s, p, n);
        return;
    }
    if (inbuf_append(&l->in, p, n)) {
        server_login_fail(s, "53200", "out of memory");
        return;
    }
    struct inbuf in = l->in;
    l->in = (struct inbuf){0};
    size_t used = consume(s, slice_of(in.p, in.n));
    if (s->state != SERVER_CLOSED && s->login) {
        inbuf_drop(&in, used);
        s->login->in = in;
        return;
    }
    /* What came behind ReadyForQuery. */
    if (s->state != SERVER_CLOSED && used < in.n)
        link_from_server(s, in.p + used, in.n - used);
    inbuf_clear(&in);
}
