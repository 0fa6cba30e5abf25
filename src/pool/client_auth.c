/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Who a client is.
 *
 *   method: auth_type, or the HBA rule that fits
 *   secret: auth_file, else auth_query through a server of the auth user
 *   dialogue (auth_client), certificate, or the peer of a Unix socket
 *
 * What depends on whether a user exists is told only at the end. */
#include <stdio.h>
#include <stdlib.h>

#include "auth/cert.h"
#include "auth/hba.h"
#include "auth/userdb.h"
#include "base/log.h"
#include "net/tls.h"
#include "pg/pg_read.h"
#include "pg/pg_startup.h"
#include "pool/auth_work.h"
#include "pool/login.h"
#include "pool/secret_cache.h"

static void auth_failed(struct client *c, int rc, const struct err *e)
{
    char name[CLIENT_NAME_MAX];
    if (c->login->secret_cached)
        secret_cache_drop(c->shard->shared->secrets,
                          slice_str(c->login->database), user_of(c));
    if (rc == ERR_AUTH) {
        log_warning("%s authentication failed: %s", client_name(c, name),
                    e->text);
        client_close(c, "28P01",
                     "password authentication failed for user "
                     "\"%s\"",
                     c->login->user);
        return;
    }
    client_close(c, err_sqlstate(rc), "%s", e->text);
}

/* What the dialogue says to the client, and what comes of it. */
static void auth_result(struct client *c, int rc, struct pgbuf *out,
                        const struct err *e)
{
    if (out->n)
        (void)stream_write(c->stream, out->p, out->n);
    pgbuf_wipe(out);
    switch (rc) {
    case AUTH_OK:
        client_login_authenticated(c);
        break;
    case AUTH_MORE:
        break;
    case AUTH_WORK:
        auth_work_hash(c);
        break;
    case AUTH_EXTERNAL:
        auth_work_ask(c);
        break;
    default:
        auth_failed(c, rc, e);
        break;
    }
}

/* Input that came while a helper thread was at work. */
static void go_on(struct client *c)
{
    if (c->state == CLIENT_CLOSED || !c->in.n)
        return;
    if (c->state == CLIENT_LOGIN)
        client_login_data(c, "", 0);
    else
        client_read_ahead(c);
}

void client_auth_hashed(struct client *c)
{
    struct pgbuf *b = &c->shard->text;
    struct err e = {0};
    c->login->step = STEP_PASSWORD;
    pgbuf_reset(b);
    int rc = auth_client_resume(c->login->auth, b, &e);
    auth_result(c, rc, b, &e);
    go_on(c);
}

void client_auth_answered(struct client *c, int rc, const struct err *e)
{
    char name[CLIENT_NAME_MAX];
    c->login->step = STEP_PASSWORD;
    if (rc == ERR_UNSUPPORTED) {
        client_close(c, "0A000", "%s", e->text);
    } else if (rc) {
        log_warning("%s %s", client_name(c, name), e->text);
        client_close(c, "08P01", "%s authentication failed",
                     c->login->method == AUTH_METHOD_LDAP ? "LDAP" : "PAM");
    } else {
        client_login_authenticated(c);
        go_on(c);
    }
}

static const struct auth_secret *
secret_of(struct client *c, struct auth_secret *cached, struct slice *plain)
{
    struct client_login *l = c->login;
    const struct auth_user *known =
        userdb_find(c->shard->conf->users, user_of(c));
    struct user_rec *rec = shared_find_user(c->shard->shared, user_of(c));
    if (!known)
        return l->secret_found ? &l->secret : NULL;
    if (l->method == AUTH_METHOD_SCRAM && rec &&
        known->secret.kind == AUTH_SECRET_PLAIN &&
        user_rec_get_derived(rec, &known->secret, cached)) {
        *plain = auth_secret_text(&known->secret);
        return cached;
    }
    return &known->secret;
}

static void start_dialogue(struct client *c)
{
    struct client_login *l = c->login;
    struct shard *sh = c->shard;
    const struct tls_info *tls = stream_tls(c->stream);
    struct auth_secret cached = {0};
    struct err e = {0};
    struct pgbuf *b = &sh->text;
    struct auth_client_params params = {
        .method = l->method,
        .user = user_of(c),
        .process_key =
            slice_of(sh->shared->process_key, sizeof sh->shared->process_key),
        .scram_iterations = sh->conf->scram_iterations,
        .may_work = true,
        .has_tls = tls != NULL,
        .allow_plus = tls != NULL,
        .tls_server_end_point = tls ? tls->server_end_point : slice_of("", 0),
    };
    params.secret = secret_of(c, &cached, &params.plain);
    l->auth = auth_client_new(&params);
    auth_secret_fini(&cached);
    l->step = STEP_PASSWORD;
    pgbuf_reset(b);
    int rc = auth_client_start(l->auth, b, &e);
    auth_result(c, rc, b, &e);
}

/* Has a secret, if only to say that there is such a user: as in PgBouncer,
 * neither a certificate nor an account of the system makes one. */
static bool is_known(const struct client *c)
{
    return c->login->secret_found ||
           userdb_find(c->shard->conf->users, user_of(c));
}

static const struct ident_map *map_of(const struct client *c)
{
    return c->login->rule ? c->login->rule->map : NULL;
}

static bool map_allows(void *map, struct slice name, struct slice role)
{
    return ident_map_allows(map, name, role);
}

/* A certificate stands for the password. */
static void check_certificate(struct client *c)
{
    const struct tls_info *tls = stream_tls(c->stream);
    struct err e = {0};
    if (!tls || !tls->has_client_cert) {
        client_close(c, "28000",
                     "connection requires a valid client certificate");
        return;
    }
    const struct ident_map *map = map_of(c);
    int rc =
        cert_check_role(tls->peer_cert, user_of(c), map ? map_allows : NULL,
                        (void *)(uintptr_t)map, &e);
    if (rc == 0 && !is_known(c))
        rc = err_set(&e, ERR_AUTHZ, "the user is unknown");
    if (rc) {
        char name[CLIENT_NAME_MAX];
        log_warning("%s certificate: %s", client_name(c, name), e.text);
        client_close(c, "28000", "certificate authentication failed");
        return;
    }
    client_login_authenticated(c);
}

/* The account at the other end of a Unix socket stands for the password. */
void client_auth_peer(struct client *c, const char *name, const struct err *e)
{
    char who[CLIENT_NAME_MAX];
    const struct ident_map *map = map_of(c);
    bool fits = name && is_known(c) &&
                (map ? ident_map_allows(map, slice_str(name), user_of(c))
                     : slice_is(user_of(c), name));
    c->login->step = STEP_PASSWORD;
    if (fits) {
        client_login_authenticated(c);
        go_on(c);
        return;
    }
    client_name(c, who);
    if (!name)
        log_warning("%s peer: %s", who, e->text);
    else if (!is_known(c))
        log_warning("%s peer: the user is unknown", who);
    else
        log_warning("%s peer: account \"%s\" may not log in as this user%s%s",
                    who, name, map ? " by map " : "",
                    map ? ident_map_name(map) : "");
    client_close(c, "08P01", "unix socket login rejected");
}

/* With `any` no name is known; the pool's user must be a forced one. */
static void accept_anybody(struct client *c)
{
    const struct conf *conf = c->shard->conf;
    const struct conf_db *cdb =
        conf_find_db(conf, slice_str(c->login->database));
    if (!cdb)
        cdb = conf_fallback_db(conf);
    if (!c->login->is_console && cdb && !cdb->user) {
        client_close(c, "08P01",
                     "auth_type=any requires a forced user: set user= for "
                     "database \"%s\"",
                     c->login->database);
        return;
    }
    client_login_authenticated(c);
}

static void authenticate(struct client *c)
{
    switch (c->login->method) {
    case AUTH_METHOD_ANY:
        accept_anybody(c);
        break;
    case AUTH_METHOD_CERT:
        check_certificate(c);
        break;
    case AUTH_METHOD_PEER:
        auth_work_name_peer(c);
        break;
    case AUTH_METHOD_REJECT:
        client_close(c, "08P01", "login rejected");
        break;
    default:
        start_dialogue(c);
        break;
    }
}

/* --------------------------------------------------------------- auth_query */

/* True when the user must be looked up in the database. */
static bool needs_query(const struct client *c, const struct conf_db *cdb)
{
    const struct conf *conf = c->shard->conf;
    const char *auth_user = conf_auth_user(conf, cdb);
    if (!auth_user || !*auth_user || c->login->is_console)
        return false;
    enum auth_method m = c->login->method;
    if (m == AUTH_METHOD_ANY || m == AUTH_METHOD_REJECT ||
        m == AUTH_METHOD_PAM || m == AUTH_METHOD_LDAP ||
        !conf_auth_query(conf, cdb))
        return false;
    return !userdb_find(conf->users, user_of(c));
}

static bool find_in_cache(struct client *c)
{
    struct client_login *l = c->login;
    int64_t ttl = c->shard->conf->auth_query_cache_ttl_us;
    if (ttl <= 0)
        return false;
    l->secret_cached =
        secret_cache_find(c->shard->shared->secrets, slice_str(l->database),
                          user_of(c), shard_now(c->shard) - ttl, &l->secret);
    l->secret_found |= l->secret_cached;
    return l->secret_cached;
}

static void put_in_cache(struct client *c)
{
    struct client_login *l = c->login;
    if (l->secret_found && c->shard->conf->auth_query_cache_ttl_us > 0)
        secret_cache_put(c->shard->shared->secrets, slice_str(l->database),
                         user_of(c), shard_now(c->shard), &l->secret);
}

static void start_query(struct client *c, const struct conf_db *cdb)
{
    struct shard *sh = c->shard;
    const char *in_db = conf_auth_dbname(sh->conf, cdb);
    struct slice db =
        in_db && *in_db ? slice_str(in_db) : slice_str(c->login->database);
    const struct conf_db *adb = conf_find_db(sh->conf, db);
    struct slice user = slice_str(conf_auth_user(sh->conf, cdb));
    if (!adb && !conf_fallback_db(sh->conf)) {
        client_close(c, "08P01",
                     "auth_dbname: no database \"" SLICE_FMT "\" is "
                     "configured",
                     SLICE_ARG(db));
        return;
    }
    c->login->step = STEP_QUERY;
    c->pool =
        pool_get(sh, shared_db(sh->shared, db), shared_user(sh->shared, user));
    (void)pool_want_server(c);
}

void client_login_query_start(struct client *c)
{
    const struct conf *conf = c->shard->conf;
    const struct conf_db *cdb =
        conf_find_db(conf, slice_str(c->login->database));
    if (!cdb)
        cdb = conf_fallback_db(conf);
    const char *sql = conf_auth_query(conf, cdb);
    server_run_auth_query(c->server, slice_str(sql ? sql : ""), user_of(c));
}

/* Columns name and secret; a NULL secret (expired) is no password at all. */
static void read_row(struct client_login *l, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice value[2] = {{0}};
    uint16_t n = pgread_u16(&r);
    for (int i = 0; i < 2 && n >= 2; i++) {
        int32_t len = pgread_i32(&r);
        if (len >= 0)
            value[i] = pgread_bytes(&r, (size_t)len);
    }
    if (n < 2 || r.bad || l->row_seen) {
        l->query_failed = true;
        return;
    }
    l->row_seen = true;
    auth_secret_fini(&l->secret);
    l->secret_found =
        value[0].p && value[1].p && !auth_secret_parse(value[1], &l->secret);
}

void client_login_query_reply(struct client *c, char type, struct slice body)
{
    struct client_login *l = c->login;
    if (type == PG_MSG_DATA_ROW)
        read_row(l, body);
    else if (type == PG_MSG_ERROR)
        l->query_failed = true;
}

void client_login_query_done(struct client *c)
{
    struct client_login *l = c->login;
    struct server *s = c->server;
    char name[SERVER_NAME_MAX];
    if (l->query_failed)
        log_error("%s auth_query failed: %s", server_name(s, name),
                  s->job_error ? s->job_error
                               : "it must return one row of name and secret");
    link_detach(c);
    c->pool = NULL;
    pool_give_server(s);
    if (l->query_failed) {
        client_close(c, "08P01", "bouncer config error");
        return;
    }
    put_in_cache(c);
    authenticate(c);
    go_on(c);
}

/* ------------------------------------------------------------------- method */

static enum auth_method method_of(const struct conf *conf)
{
    static const enum auth_method methods[] = {
        [CONF_AUTH_ANY] = AUTH_METHOD_ANY,
        [CONF_AUTH_TRUST] = AUTH_METHOD_TRUST,
        [CONF_AUTH_PLAIN] = AUTH_METHOD_PLAIN,
        [CONF_AUTH_MD5] = AUTH_METHOD_MD5,
        [CONF_AUTH_SCRAM] = AUTH_METHOD_SCRAM,
        [CONF_AUTH_CERT] = AUTH_METHOD_CERT,
        [CONF_AUTH_HBA] = AUTH_METHOD_HBA,
        [CONF_AUTH_PAM] = AUTH_METHOD_PAM,
        [CONF_AUTH_LDAP] = AUTH_METHOD_LDAP,
    };
    return methods[conf->auth_type];
}

static enum hba_via via_of(const struct client *c)
{
    if (c->stream->kind == STREAM_UNIX)
        return HBA_UNIX;
    return stream_tls(c->stream) ? HBA_TLS : HBA_PLAIN;
}

/* The rule that fits; false when none does. */
static bool find_rule(struct client *c)
{
    struct client_login *l = c->login;
    const struct tls_info *tls = stream_tls(c->stream);
    struct addr from = {0}, self;
    struct hba_client who = {
        .via = via_of(c),
        .addr = &from.sa,
        .is_replication = c->replication == PG_REPLICATION_PHYSICAL,
        .database = slice_str(l->database),
        .user = user_of(c),
    };
    if (stream_ends(c->stream, &from, &self))
        from.sa.sa_family = AF_UNSPEC; /* it has gone: only "all" fits */
    addr_unmap(&from);
    l->rule_conf = conf_ref(c->shard->conf);
    l->rule = hba_match(l->rule_conf->hba, &who);
    if (!l->rule)
        return false;
    l->method = l->rule->method;
    if (tls && tls->is_tunnel && l->method == AUTH_METHOD_TRUST) {
        log_warning("HBA line %d trusts an address; user=%s comes through a "
                    "tunnel, whose address says nothing of its clients",
                    l->rule->line, l->user);
        return false;
    }
    log_debug("HBA line %d fits db=%s user=%s", l->rule->line, l->database,
              l->user);
    return true;
}

void client_auth_begin(struct client *c)
{
    struct shard *sh = c->shard;
    c->login->method = method_of(sh->conf);
    if (c->login->method == AUTH_METHOD_HBA && !find_rule(c)) {
        client_close(c, "08P01", "no authentication method is found");
        return;
    }
    const struct conf_db *cdb =
        conf_find_db(sh->conf, slice_str(c->login->database));
    if (!cdb)
        cdb = conf_fallback_db(sh->conf);
    if (cdb && needs_query(c, cdb) && !find_in_cache(c))
        start_query(c, cdb);
    else
        authenticate(c);
}

size_t client_auth_message(struct client *c, struct slice in)
{
    struct client_login *l = c->login;
    struct pgbuf *b = &c->shard->text;
    struct err e = {0};
    char type;
    struct slice body;
    size_t size;
    size_t max = auth_client_body_max(l->auth) + 4;
    if (in.n && in.p[0] != PG_MSG_PASSWORD) {
        client_close(c, "08P01",
                     "expected password response, got message type %u",
                     (unsigned char)in.p[0]);
        return 0;
    }
    int rc = pgread_message(in, max, &type, &body, &size);
    if (rc < 0)
        client_close(c, "08P01", "invalid password packet size");
    if (rc <= 0)
        return 0;
    pgbuf_reset(b);
    rc = auth_client_step(l->auth, body, b, &e);
    auth_result(c, rc, b, &e);
    return size;
}
