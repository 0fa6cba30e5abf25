/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A client's login.
 *
 *   PROXY header of a load balancer
 *   SSLRequest, GSSENCRequest, direct TLS: answered, once each
 *   StartupMessage: database, user, settings; the rules that need no secret
 *   who it is: client_auth.c
 *   limits; the pool; the settings of its servers, for which the first client
 *   of a pool waits until a server has logged in
 *   AuthenticationOk, ParameterStatus..., BackendKeyData, ReadyForQuery
 *
 * Failures end the session with a FATAL ErrorResponse. What depends on whether
 * a user or a database exists is told only after the dialogue. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "auth/userdb.h"
#include "base/log.h"
#include "config.h"
#include "net/proxyproto.h"
#include "net/tls.h"
#include "pg/pg_startup.h"
#include "pool/login.h"

void client_login_free(struct client *c)
{
    struct client_login *l = c->login;
    if (!l)
        return;
    while (l->settings) {
        struct setting *next = l->settings->next;
        free(l->settings);
        l->settings = next;
    }
    auth_client_free(l->auth);
    conf_unref(l->rule_conf);
    auth_secret_fini(&l->secret);
    free(l->user);
    free(l->database);
    list_remove(&l->node);
    limits_host_leave(c->shard->shared, l->host);
    free(l);
    c->login = NULL;
}

bool client_login_runs_query(const struct client *c)
{
    return c->login && c->login->step == STEP_QUERY;
}

void client_login_begin(struct client *c, struct host_count *host)
{
    struct client_login *l = mem_new(sizeof *l);
    c->login = l;
    l->client = c;
    l->step = STEP_STARTUP;
    l->host = host;
    l->settings_end = &l->settings;
    list_init(&l->node);
    list_push_back(&c->shard->logins, &l->node);
}

/* Logins that take too long; the oldest are in front. */
void client_login_expire(struct shard *sh)
{
    int64_t limit = sh->conf->client_login_timeout_us;
    list_for_safe(n, &sh->logins)
    {
        struct client_login *l = list_entry(n, struct client_login, node);
        struct client *c = l->client;
        if (limit <= 0 || shard_now(sh) - c->connect_us < limit)
            return;
        client_close(c, "08P01", "client_login_timeout%s",
                     l->step == STEP_WELCOME || l->step == STEP_QUERY
                         ? " (server down)"
                         : "");
    }
}

const char *client_login_user(const struct client *c)
{
    return c->login && c->login->user ? c->login->user : "(nouser)";
}

const char *client_login_database(const struct client *c)
{
    return c->login && c->login->database ? c->login->database : "(nodb)";
}

static void keep_setting(struct client_login *l, struct slice name,
                         struct slice value)
{
    struct setting *k = mem_new(sizeof *k + name.n + value.n);
    char *p = (char *)(k + 1);
    memcpy(p, name.p, name.n);
    memcpy(p + name.n, value.p, value.n);
    k->name = slice_of(p, name.n);
    k->value = slice_of(p + name.n, value.n);
    *l->settings_end = k;
    l->settings_end = &k->next;
    l->n_settings++;
}

int client_login_settings(const struct client *c,
                          struct pg_pair out[CLIENT_SETTINGS_MAX])
{
    int n = 0;
    for (struct setting *k = c->login->settings; k; k = k->next)
        out[n++] = (struct pg_pair){k->name, k->value};
    return n;
}

/* ------------------------------------------------------------------ welcome */

/* The last messages of the login; the session begins. */
static void send_welcome(struct client *c)
{
    struct pgbuf *b = &c->shard->text;
    c->shard->tally.logins++;
    pgbuf_reset(b);
    pg_put_auth(b, PG_AUTH_OK);
    pg_params_put_all(c->params, b);
    cancel_make_key(c);
    pg_put_backend_key_data(b, pg_get_u32(c->key), c->key + 4, c->key_n - 4u);
    if (c->shard->conf->login_notify_message &&
        *c->shard->conf->login_notify_message)
        pg_put_notice(b, "NOTICE", "00000",
                      c->shard->conf->login_notify_message);
    pg_put_ready(b, PG_TX_IDLE);
    (void)stream_write(c->stream, b->p, b->n);
}

static bool is_tracked(const struct client *c, struct slice name)
{
    return pg_params_is_standard(name) ||
           conf_tracks_parameter(c->shard->conf, name);
}

/* The settings of a fresh session: the server's, changed as the client asked
 * for. */
static bool make_params(struct client *c, const struct pg_params *base)
{
    c->params = pg_params_ref(base);
    for (struct setting *k = c->login->settings; k; k = k->next) {
        /* What the server does not report cannot be kept apart. */
        if (!pg_params_get(base, k->name).p) {
            if (conf_ignores_parameter(c->shard->conf, k->name))
                continue;
            client_close(c, "08P01",
                         "unsupported startup parameter: " SLICE_FMT,
                         SLICE_ARG(k->name));
            return false;
        }
        c->params = pg_params_with(c->params, k->name, k->value);
    }
    return true;
}

static void add_host_to_name(struct client *c)
{
    struct slice name = slice_str("application_name");
    char text[256], at[ADDR_TEXT_MAX] = "unix";
    struct addr a, self;
    if (!c->shard->conf->application_name_add_host)
        return;
    if (!stream_ends(c->stream, &a, &self) && !addr_is_unix(&a))
        addr_text(&a, at, sizeof at);
    struct slice app = pg_params_get(c->params, name);
    snprintf(text, sizeof text, SLICE_FMT " - %s", SLICE_ARG(app), at);
    c->params = pg_params_with(c->params, name, slice_str(text));
}

static void begin_session(struct client *c)
{
    struct pool *p = c->pool;
    if (!make_params(c, atomic_load(&p->rec->welcome)))
        return;
    add_host_to_name(c);
    client_login_free(c);
    send_welcome(c);
    cancel_register(c);
    kill_note_login(c);
    client_set_state(c, CLIENT_IDLE);
    p->stats.client_login_count++;
    c->request_us = shard_now(c->shard);
}

/* Of those that wait for the settings of a server. */
static void leave_waiting(struct client *c)
{
    struct pool *p = c->pool;
    list_remove(&c->node_pool);
    p->n_login_waiting--;
    int64_t waited_us = shard_now(c->shard) - c->wait_us;
    p->stats.wait_time_us += (uint64_t)waited_us;
    latency_add(&p->latency->wait, waited_us);
}

/* The session and its server stay together until one of them ends. */
void client_login_replicate(struct client *c, struct server *s)
{
    struct pool *p = c->pool;
    leave_waiting(c);
    c->params = pg_params_ref(s->params);
    client_login_free(c);
    send_welcome(c);
    cancel_register(c);
    client_set_state(c, CLIENT_IDLE);
    p->stats.client_login_count++;
    link_attach(c, s);
    if (c->in.n)
        client_read_ahead(c);
}

/* Opens the connection of a replication client; when there is no room the next
 * look at the pool tries again. */
static void open_replication(struct client *c)
{
    struct pool *p = c->pool;
    struct budget_limits l = pool_limits(p, false);
    if (c->login->has_server ||
        budget_take(p->shard->shared, p->rec, &l) != BUDGET_OK)
        return;
    c->login->has_server = true;
    server_open(p, c);
}

void client_login_welcome(struct client *c)
{
    if (c->replication) {
        open_replication(c);
        return;
    }
    leave_waiting(c);
    begin_session(c);
    if (c->state == CLIENT_IDLE && c->in.n)
        client_read_ahead(c);
}

void client_login_refuse(struct client *c, const char *sqlstate,
                         const char *text)
{
    if (c->login && c->login->step == STEP_WELCOME) {
        leave_waiting(c);
        c->login->step = STEP_STARTUP;
    }
    client_close(c, sqlstate, "%s", text);
}

bool client_login_is_silent(const struct client *c)
{
    return c->state == CLIENT_LOGIN && c->login && c->login->n_received == 0;
}

void client_login_leave(struct client *c)
{
    if (c->login && c->login->step == STEP_WELCOME)
        leave_waiting(c);
}

/* The console speaks for itself: settings that drivers look for. */
static void begin_console(struct client *c)
{
    static const char *const pairs[][2] = {
        {"server_version", "16.0 (pgbraid " PGBRAID_VERSION ")"},
        {"client_encoding", "UTF8"},
        {"server_encoding", "UTF8"},
        {"DateStyle", "ISO"},
        {"TimeZone", "GMT"},
        {"standard_conforming_strings", "on"},
        {"is_superuser", "on"},
        {"integer_datetimes", "on"},
    };
    c->params = pg_params_empty();
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++)
        c->params = pg_params_with(c->params, slice_str(pairs[i][0]),
                                   slice_str(pairs[i][1]));
    client_login_free(c);
    send_welcome(c);
    cancel_register(c);
    client_set_state(c, CLIENT_CONSOLE);
    c->shard->console->start(c);
}

/* ------------------------------------------------------------ authenticated */

/* The client itself is counted already: so workers that admit at the same time
 * cannot go over a limit together. */
static bool within(atomic_int *n, int limit)
{
    return limit <= 0 || atomic_load(n) <= limit;
}

static void log_login(struct client *c)
{
    static const char *const replication[] = {
        [PG_REPLICATION_OFF] = "no",
        [PG_REPLICATION_PHYSICAL] = "yes",
        [PG_REPLICATION_LOGICAL] = "database",
    };
    char name[CLIENT_NAME_MAX], tls[TLS_TEXT_MAX];
    const struct tls_info *info = stream_tls(c->stream);
    if (!c->shard->conf->log_connections)
        return;
    log_info("%s login attempt: db=%s user=%s tls=%s replication=%s",
             client_name(c, name), c->login->database, c->login->user,
             info ? tls_text(info, tls) : "no", replication[c->replication]);
}

static void register_client(struct client *c)
{
    atomic_fetch_add(&c->db->n_clients, 1);
    atomic_fetch_add(&c->user->n_clients, 1);
    c->is_registered = true;
}

/* Who it is has been proven; may it come in? */
static void admit(struct client *c, const struct conf_db *cdb)
{
    struct shard *sh = c->shard;
    const struct conf *conf = sh->conf;
    const struct conf_user *cuser =
        conf_find_user(conf, slice_str(c->user->name));
    if (atomic_load(&c->db->is_disabled)) {
        client_close(c, "08P01", "database \"%s\" is disabled", c->db->name);
        return;
    }
    register_client(c);
    if (!within(&c->db->n_clients, conf_max_db_client_connections(conf, cdb))) {
        client_close(c, "08P01",
                     "client connections exceeded "
                     "(max_db_client_connections)");
        return;
    }
    if (!within(&c->user->n_clients,
                conf_max_user_client_connections(conf, cuser))) {
        client_close(c, "08P01",
                     "client connections exceeded "
                     "(max_user_client_connections)");
        return;
    }
    struct user_rec *as =
        cdb->user ? shared_user(sh->shared, slice_str(cdb->user)) : c->user;
    c->pool = pool_get(sh, c->db, as);
    if (atomic_load(&c->pool->rec->welcome) && !c->replication) {
        begin_session(c);
        return;
    }
    c->login->step = STEP_WELCOME;
    c->wait_us = shard_now(sh);
    list_push_back(&c->pool->login_waiting, &c->node_pool);
    c->pool->n_login_waiting++;
    if (c->replication)
        open_replication(c);
    else
        pool_dispatch_later(c->pool);
}

/* For later logins, of clients and to servers. */
static void keep_what_was_proven(struct client *c)
{
    struct client_login *l = c->login;
    const struct auth_user *known =
        userdb_find(c->shard->conf->users, user_of(c));
    if (l->secret_found)
        user_rec_set_secret(c->user, &l->secret);
    if (!l->auth)
        return;
    const struct auth_secret *derived = auth_client_derived(l->auth);
    user_rec_set_keys(c->user, auth_client_keys(l->auth));
    if (derived && known)
        user_rec_set_derived(c->user, &known->secret, derived);
}

void client_login_authenticated(struct client *c)
{
    struct client_login *l = c->login;
    const struct conf *conf = c->shard->conf;
    c->user = shared_user(c->shard->shared, user_of(c));
    keep_what_was_proven(c);
    if (l->is_console) {
        c->db = shared_db(c->shard->shared, slice_str(l->database));
        struct slice user = slice_str(c->user->name);
        c->is_admin =
            conf_is_admin_user(conf, user) || conf->auth_type == CONF_AUTH_ANY;
        if (!c->is_admin && !conf_is_stats_user(conf, user)) {
            client_close(c, "08P01", "not allowed");
            return;
        }
        begin_console(c);
        return;
    }
    const struct conf_db *cdb = conf_find_db(conf, slice_str(l->database));
    if (!cdb)
        cdb = conf_fallback_db(conf);
    if (!cdb) {
        client_close(c, "3D000", "no such database: %s", l->database);
        return;
    }
    c->db = shared_db(c->shard->shared, slice_str(l->database));
    admit(c, cdb);
}

/* ------------------------------------------------------------------ start-up
 */

static void refuse_startup(struct client *c, const struct pg_startup *s,
                           const struct err *e)
{
    struct pgbuf *b = &c->shard->text;
    if (s->major < 3 && s->kind == PG_STARTUP_UNSUPPORTED) {
        pgbuf_reset(b);
        pg_put_error_v2(b, "FATAL", e->text);
        (void)stream_write(c->stream, b->p, b->n);
        client_drop(c, "%s", e->text);
        return;
    }
    client_close(c, s->sqlstate ? s->sqlstate : "08P01", "%s", e->text);
}

static void send_negotiation(struct client *c, const struct pg_startup *s)
{
    struct pgbuf *b = &c->shard->text;
    struct slice name, value, unknown[64];
    size_t at = 0, n = 0;
    while (n < ARRAY_SIZE(unknown) && pg_startup_next(s, &at, &name, &value))
        if (pg_startup_is_extension(name))
            unknown[n++] = name;
    pgbuf_reset(b);
    pg_put_negotiate_version(b, pg_startup_minor(s, PG_MINOR_LATEST), unknown,
                             n);
    (void)stream_write(c->stream, b->p, b->n);
}

/* One parameter of the StartupMessage or of its options. */
static bool take_parameter(struct client *c, struct slice name,
                           struct slice value, bool in_options)
{
    const struct conf *conf = c->shard->conf;
    if (c->login->n_settings == CLIENT_SETTINGS_MAX) {
        client_close(c, "08P01", "too many startup parameters (more than %d)",
                     (int)CLIENT_SETTINGS_MAX);
        return false;
    }
    if (is_tracked(c, name) || c->replication) {
        keep_setting(c->login, name, value);
        return true;
    }
    if (conf_ignores_parameter(conf, name) ||
        (c->login->is_console && !in_options))
        return true;
    client_close(c, "08P01", "unsupported startup parameter%s: " SLICE_FMT,
                 in_options ? " in options" : "", SLICE_ARG(name));
    return false;
}

static bool take_options(struct client *c, struct slice options)
{
    struct pg_options o;
    struct pg_option option;
    struct err e;
    char *buf;
    bool ok = true;
    if (conf_ignores_parameter(c->shard->conf, slice_str("options")))
        return true;
    buf = mem_new(options.n + 1);
    pg_options_init(&o, options, buf);
    while (ok) {
        if (pg_options_next(&o, &option, &e)) {
            client_close(c, "42601", "%s", e.text);
            ok = false;
        } else if (option.kind == PG_OPTION_END) {
            break;
        } else if (option.kind == PG_OPTION_SETTING) {
            ok = take_parameter(c, option.name, option.value, true);
        } else {
            client_close(c, "08P01",
                         "unsupported options startup parameter: only '-c "
                         "config=val' and '--config=val' are allowed");
            ok = false;
        }
    }
    free(buf);
    return ok;
}

static bool take_parameters(struct client *c, const struct pg_startup *s)
{
    struct slice name, value;
    size_t at = 0;
    while (pg_startup_next(s, &at, &name, &value)) {
        if (slice_is(name, "user") || slice_is(name, "database") ||
            pg_startup_is_extension(name) ||
            (slice_is(name, "replication") && !c->replication))
            continue;
        if (slice_is(name, "options") && !c->replication
                ? !take_options(c, value)
                : !take_parameter(c, name, value, false))
            return false;
    }
    return true;
}

static bool has_tls_it_must(struct client *c)
{
    if (c->shard->conf->client_tls_sslmode < CONF_SSL_REQUIRE ||
        stream_tls(c->stream) || c->stream->kind == STREAM_UNIX)
        return true;
    client_close(c, "08P01", "SSL required");
    return false;
}

/* max_client_conn is for sessions; whoever may look at the console can still
 * reach it. */
static bool has_room(struct client *c, struct slice user)
{
    const struct conf *conf = c->shard->conf;
    if (atomic_load(&c->shard->shared->n_clients) <= conf->max_client_conn)
        return true;
    if (c->login->is_console && conf_is_admin_user(conf, user))
        return true;
    client_close(c, "08P01", "no more connections allowed (max_client_conn)");
    return false;
}

/* The user who runs the pooler may use its console over the Unix socket. */
static bool is_own_user(const struct client *c, struct slice user)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return c->stream->kind == STREAM_UNIX && slice_is(user, "pgbouncer") &&
           !getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERCRED, &peer,
                       &len) &&
           peer.uid == geteuid();
}

/* While we wait for clients to leave, the listening sockets are closed; what
 * they had accepted by then is still let in. Unix sockets stay open for the
 * console alone, and QUIC has its own way to send sessions elsewhere. */
static bool comes_too_late(const struct client *c)
{
    const struct shard *sh = c->shard;
    bool is_late =
        c->stream->kind == STREAM_UNIX || c->stream->kind == STREAM_QUIC;
    return sh->is_draining ||
           (is_late && atomic_load(&sh->shared->is_shutting_down));
}

static void start_session(struct client *c, const struct pg_startup *s)
{
    struct client_login *l = c->login;
    struct shard *sh = c->shard;
    c->minor = (uint8_t)pg_startup_minor(s, PG_MINOR_LATEST);
    if (pg_startup_must_negotiate(s, PG_MINOR_LATEST))
        send_negotiation(c, s);
    l->database = mem_strndup(s->database.p, s->database.n);
    l->is_console = conf_is_console_db(s->database);
    l->user = mem_strndup(s->user.p, s->user.n);
    if (!has_tls_it_must(c) || !has_room(c, s->user))
        return;
    if (!l->is_console && comes_too_late(c)) {
        client_close(c, "57P03", "pooler is shutting down");
        return;
    }
    c->replication = (uint8_t)s->replication;
    if (!take_parameters(c, s))
        return;
    log_login(c);
    if (l->is_console && is_own_user(c, s->user)) {
        c->is_admin = true;
        c->user = shared_user(sh->shared, s->user);
        c->db = shared_db(sh->shared, s->database);
        begin_console(c);
        return;
    }
    client_auth_begin(c);
}

static void answer_ssl(struct client *c, size_t left)
{
    struct client_login *l = c->login;
    bool can = c->shard->client_tls && c->stream->kind != STREAM_UNIX;
    l->ssl_done = true;
    if (left) {
        client_close(c, "08P01", "received unencrypted data after SSL request");
        return;
    }
    (void)stream_write(c->stream, can ? "S" : "N", 1);
    if (!can)
        return;
    l->step = STEP_TLS;
    c->stream = tls_accept(c->stream, c->shard->client_tls, &client_handler, c,
                           slice_of("", 0), false);
}

static void answer_gss(struct client *c, size_t left)
{
    c->login->gss_done = true;
    if (left) {
        client_close(c, "08P01",
                     "received unencrypted data after GSSAPI encryption "
                     "request");
        return;
    }
    (void)stream_write(c->stream, "N", 1);
}

void client_login_is_secured(struct client *c)
{
    c->login->ssl_done = c->login->gss_done = true;
}

void client_login_secured(struct client *c)
{
    if (c->login)
        c->login->step = STEP_STARTUP;
}

static void start_direct_tls(struct client *c)
{
    struct inbuf in = c->in;
    c->in = (struct inbuf){0};
    c->login->ssl_done = true;
    if (!c->shard->client_tls || c->stream->kind == STREAM_UNIX) {
        client_drop(c, "direct TLS, but client_tls_sslmode is disable");
    } else {
        c->login->step = STEP_TLS;
        c->stream = tls_accept(c->stream, c->shard->client_tls, &client_handler,
                               c, slice_of(in.p, in.n), true);
    }
    inbuf_clear(&in);
}

/* One packet of the start; returns its size, 0 when it is not all there. */
static size_t startup_packet(struct client *c, struct slice in)
{
    struct client_login *l = c->login;
    struct pg_startup s;
    struct err e = {0};
    int need = pg_startup_need(in.p, in.n);
    if (need < 0) {
        client_drop(c, "invalid length of startup packet");
        return 0;
    }
    if (!need || in.n < (size_t)need)
        return 0;
    struct slice packet = slice_of(in.p, (size_t)need);
    if (pg_startup_parse(packet, &s, &e)) {
        if (s.kind == PG_STARTUP_CANCEL)
            client_drop(c, "bad cancel request");
        else
            refuse_startup(c, &s, &e);
        return 0;
    }
    size_t left = in.n - packet.n;
    if ((s.kind == PG_STARTUP_SSL && (l->ssl_done || stream_tls(c->stream))) ||
        (s.kind == PG_STARTUP_GSSENC && l->gss_done)) {
        (void)pg_startup_set_unsupported(&s, &e);
        refuse_startup(c, &s, &e);
    } else if (s.kind == PG_STARTUP_SSL) {
        answer_ssl(c, left);
    } else if (s.kind == PG_STARTUP_GSSENC) {
        answer_gss(c, left);
    } else if (s.kind == PG_STARTUP_CANCEL) {
        client_login_free(c);
        client_set_state(c, CLIENT_CANCEL);
        cancel_request(c, s.cancel_pid, s.cancel_key);
    } else {
        start_session(c, &s);
    }
    return packet.n;
}

void client_login_expect_proxy(struct client *c)
{
    c->login->step = STEP_PROXY;
}

/* From here on the connection counts as the named client's. */
static size_t proxy_header(struct client *c, struct slice in)
{
    struct client_login *l = c->login;
    struct proxyproto header;
    struct err e;
    char name[CLIENT_NAME_MAX];
    int n = proxyproto_parse(in, &header, &e);
    if (n < 0) {
        log_warning("%s: %s, though the address is in proxy_protocol_from",
                    client_name(c, name), e.text);
        client_drop(c, "%s", e.text);
        return 0;
    }
    if (n == 0)
        return 0;
    l->step = STEP_STARTUP;
    if (!header.has_peer)
        return (size_t)n;
    if (!shard_enter_host(c->shard, &header.peer, &l->host)) {
        client_drop(c, "too many connections from one address");
        return 0;
    }
    stream_set_peer(c->stream, &header.peer);
    return (size_t)n;
}

void client_login_data(struct client *c, const char *p, size_t n)
{
    enum { LOGIN_HELD_MAX = 2 * PG_AUTH_MESSAGE_LIMIT };
    c->login->n_received += n;
    if (c->in.n + n > LOGIN_HELD_MAX ||
        c->login->n_received > (size_t)c->shard->conf->login_max_bytes) {
        client_drop(c, "sent too much before authentication");
        return;
    }
    if (inbuf_append(&c->in, p, n)) {
        client_drop(c, "out of memory");
        return;
    }
    while (c->state == CLIENT_LOGIN && c->in.n) {
        struct client_login *l = c->login;
        if (l->step == STEP_STARTUP && !l->ssl_done && !l->gss_done &&
            pg_startup_is_tls(c->in.p, c->in.n)) {
            start_direct_tls(c);
            return;
        }
        struct inbuf in = c->in;
        size_t used = 0;
        c->in = (struct inbuf){0};
        if (l->step == STEP_PROXY)
            used = proxy_header(c, slice_of(in.p, in.n));
        else if (l->step == STEP_STARTUP)
            used = startup_packet(c, slice_of(in.p, in.n));
        else if (l->step == STEP_PASSWORD)
            used = client_auth_message(c, slice_of(in.p, in.n));
        if (c->state == CLIENT_CLOSED || c->state == CLIENT_CANCEL) {
            mem_wipe(in.p, in.n);
            inbuf_clear(&in);
            return;
        }
        inbuf_drop(&in, used);
        c->in = in;
        if (!used)
            return;
    }
    if (c->in.n)
        client_read_ahead(c); /* it did not wait for us */
}
