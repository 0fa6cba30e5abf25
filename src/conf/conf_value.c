/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Look-ups, and the value in force where user, database and the global option
 * may each have one. What counts as "not set" follows PgBouncer, key by key. */

#include "conf/cidr.h"
#include "conf/conf.h"
#include "conf/conf_sections.h"

/* Lists */

bool conf_list_has(const struct conf_list *l, struct slice word)
{
    for (int i = 0; i < l->n; i++)
        if (slice_is(word, l->items[i]))
            return true;
    return false;
}

bool conf_list_has_nocase(const struct conf_list *l, struct slice word)
{
    for (int i = 0; i < l->n; i++)
        if (slice_is_nocase(word, l->items[i]))
            return true;
    return false;
}

bool conf_is_admin_user(const struct conf *c, struct slice user)
{
    return conf_list_has(&c->admin_users, user);
}

bool conf_is_proxy(const struct conf *c, const uint8_t *ip, size_t n)
{
    for (int i = 0; i < c->proxy_protocol_from.n; i++) {
        struct cidr range;

        if (cidr_parse(slice_str(c->proxy_protocol_from.items[i]), &range) &&
            cidr_has(&range, ip, n))
            return true;
    }
    return false;
}

bool conf_is_stats_user(const struct conf *c, struct slice user)
{
    return conf_list_has(&c->stats_users, user);
}

bool conf_ignores_parameter(const struct conf *c, struct slice name)
{
    return conf_list_has_nocase(&c->ignore_startup_parameters, name);
}

bool conf_tracks_parameter(const struct conf *c, struct slice name)
{
    return conf_list_has_nocase(&c->track_extra_parameters, name);
}

bool conf_is_console_db(struct slice name)
{
    return slice_is(name, "pgbouncer") || slice_is(name, "pgbraid");
}

/* Sections */

int conf_db_count(const struct conf *c)
{
    return c->sections->dbs.n;
}

const struct conf_db *conf_db_at(const struct conf *c, int i)
{
    return c->sections->dbs.items[i].what;
}

int conf_user_count(const struct conf *c)
{
    return c->sections->users.n;
}

const struct conf_user *conf_user_at(const struct conf *c, int i)
{
    return c->sections->users.items[i].what;
}

int conf_peer_count(const struct conf *c)
{
    return c->sections->peers.n;
}

const struct conf_peer *conf_peer_at(const struct conf *c, int i)
{
    return c->sections->peers.items[i].what;
}

const struct conf_db *conf_find_db(const struct conf *c, struct slice name)
{
    return section_set_find(&c->sections->dbs, name);
}

const struct conf_db *conf_fallback_db(const struct conf *c)
{
    return c->sections->fallback;
}

const struct conf_user *conf_find_user(const struct conf *c, struct slice name)
{
    return section_set_find(&c->sections->users, name);
}

const struct conf_peer *conf_find_peer(const struct conf *c, int id)
{
    for (int i = 0; i < conf_peer_count(c); i++)
        if (conf_peer_at(c, i)->id == id)
            return conf_peer_at(c, i);
    return NULL;
}

struct slice conf_db_dbname(const struct conf_db *db, struct slice asked)
{
    return db->dbname ? slice_str(db->dbname) : asked;
}

/* Comparison */

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_hosts(const struct conf_db *a, const struct conf_db *b)
{
    if (a->n_hosts != b->n_hosts)
        return false;
    for (int i = 0; i < a->n_hosts; i++)
        if (a->hosts[i].port != b->hosts[i].port ||
            !same(a->hosts[i].host, b->hosts[i].host))
            return false;
    return true;
}

static bool same_login(const struct conf_db *a, const struct conf_db *b)
{
    return same(a->dbname, b->dbname) && same(a->user, b->user) &&
           same(a->password, b->password) &&
           same(a->connect_query, b->connect_query) &&
           same(a->client_encoding, b->client_encoding) &&
           same(a->datestyle, b->datestyle) && same(a->timezone, b->timezone) &&
           same(a->application_name, b->application_name);
}

bool conf_db_same_server(const struct conf_db *a, const struct conf_db *b)
{
    return same_hosts(a, b) && same_login(a, b) &&
           same(a->auth_dbname, b->auth_dbname) &&
           same(a->auth_query, b->auth_query) &&
           a->load_balance_hosts == b->load_balance_hosts &&
           a->sslmode == b->sslmode && same(a->sslrootcert, b->sslrootcert) &&
           same(a->sslcert, b->sslcert) && same(a->sslkey, b->sslkey) &&
           a->sslnegotiation == b->sslnegotiation &&
           a->transport == b->transport && a->mptcp == b->mptcp;
}

/* FNV-1a; only ever compared with those of a process of the same account. */
static void print_bytes(uint64_t *h, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ b[i]) * 0x100000001b3u;
}

static void print_text(uint64_t *h, const char *s)
{
    print_bytes(h, s ? "1" : "0", 1);
    if (s)
        print_bytes(h, s, strlen(s) + 1);
}

static void print_number(uint64_t *h, int64_t n)
{
    print_bytes(h, &n, sizeof n);
}

/* What conf_db_same_server() and conf_same_server_tls() compare. */
uint64_t conf_server_print(const struct conf *c, const struct conf_db *db)
{
    uint64_t h = 0xcbf29ce484222325u;
    if (!db)
        return 0;
    const char *const text[] = {db->dbname,
                                db->user,
                                db->password,
                                db->connect_query,
                                db->client_encoding,
                                db->datestyle,
                                db->timezone,
                                db->application_name,
                                db->auth_dbname,
                                db->auth_query,
                                db->sslrootcert,
                                db->sslcert,
                                db->sslkey,
                                c->server_tls_ca_file,
                                c->server_tls_cert_file,
                                c->server_tls_key_file,
                                c->server_tls_protocols,
                                c->server_tls_ciphers,
                                c->server_tls13_ciphers};
    const int number[] = {
        db->load_balance_hosts, db->sslmode, db->sslnegotiation,
        db->transport,          db->mptcp,   c->server_tls_sslmode};
    for (int i = 0; i < db->n_hosts; i++) {
        print_text(&h, db->hosts[i].host);
        print_number(&h, db->hosts[i].port);
    }
    for (size_t i = 0; i < ARRAY_SIZE(text); i++)
        print_text(&h, text[i]);
    for (size_t i = 0; i < ARRAY_SIZE(number); i++)
        print_number(&h, number[i]);
    return h;
}

bool conf_same_server_tls(const struct conf *a, const struct conf *b)
{
    return a->server_tls_sslmode == b->server_tls_sslmode &&
           same(a->server_tls_ca_file, b->server_tls_ca_file) &&
           same(a->server_tls_cert_file, b->server_tls_cert_file) &&
           same(a->server_tls_key_file, b->server_tls_key_file) &&
           same(a->server_tls_protocols, b->server_tls_protocols) &&
           same(a->server_tls_ciphers, b->server_tls_ciphers) &&
           same(a->server_tls13_ciphers, b->server_tls13_ciphers);
}

bool conf_same_client_tls(const struct conf *a, const struct conf *b)
{
    return a->client_tls_sslmode == b->client_tls_sslmode &&
           same(a->client_tls_ca_file, b->client_tls_ca_file) &&
           same(a->client_tls_cert_file, b->client_tls_cert_file) &&
           same(a->client_tls_key_file, b->client_tls_key_file) &&
           same(a->client_tls_protocols, b->client_tls_protocols) &&
           same(a->client_tls_ciphers, b->client_tls_ciphers) &&
           same(a->client_tls13_ciphers, b->client_tls13_ciphers) &&
           same(a->client_tls_dheparams, b->client_tls_dheparams) &&
           same(a->client_tls_ecdhcurve, b->client_tls_ecdhcurve);
}

/* In force: -1 is not set; for limits and time-outs where it says so 0 too. */

enum conf_pool_mode conf_pool_mode(const struct conf *c,
                                   const struct conf_db *db,
                                   const struct conf_user *user)
{
    if (user && user->pool_mode >= 0)
        return (enum conf_pool_mode)user->pool_mode;
    if (db && db->pool_mode >= 0)
        return (enum conf_pool_mode)db->pool_mode;
    return c->pool_mode;
}

int conf_pool_size(const struct conf *c, const struct conf_db *db,
                   const struct conf_user *user)
{
    if (user && user->pool_size >= 0)
        return user->pool_size;
    if (db && db->pool_size >= 0)
        return db->pool_size;
    return c->default_pool_size;
}

int conf_min_pool_size(const struct conf *c, const struct conf_db *db)
{
    return db && db->min_pool_size >= 0 ? db->min_pool_size : c->min_pool_size;
}

int conf_reserve_pool_size(const struct conf *c, const struct conf_db *db,
                           const struct conf_user *user)
{
    if (user && user->reserve_pool_size >= 0)
        return user->reserve_pool_size;
    if (db && db->reserve_pool_size >= 0)
        return db->reserve_pool_size;
    return c->reserve_pool_size;
}

int conf_max_db_connections(const struct conf *c, const struct conf_db *db)
{
    return db && db->max_db_connections > 0 ? db->max_db_connections
                                            : c->max_db_connections;
}

int conf_max_db_client_connections(const struct conf *c,
                                   const struct conf_db *db)
{
    return db && db->max_db_client_connections > 0
               ? db->max_db_client_connections
               : c->max_db_client_connections;
}

int conf_max_user_connections(const struct conf *c,
                              const struct conf_user *user)
{
    return user && user->max_user_connections > 0 ? user->max_user_connections
                                                  : c->max_user_connections;
}

int conf_max_user_client_connections(const struct conf *c,
                                     const struct conf_user *user)
{
    return user && user->max_user_client_connections > 0
               ? user->max_user_client_connections
               : c->max_user_client_connections;
}

int64_t conf_server_lifetime_us(const struct conf *c, const struct conf_db *db)
{
    return db && db->server_lifetime_us > 0 ? db->server_lifetime_us
                                            : c->server_lifetime_us;
}

int64_t conf_query_wait_timeout_us(const struct conf *c,
                                   const struct conf_db *db,
                                   const struct conf_user *user)
{
    if (user && user->query_wait_timeout_us >= 0)
        return user->query_wait_timeout_us;
    if (db && db->query_wait_timeout_us >= 0)
        return db->query_wait_timeout_us;
    return c->query_wait_timeout_us;
}

int64_t conf_query_timeout_us(const struct conf *c,
                              const struct conf_user *user)
{
    return user && user->query_timeout_us > 0 ? user->query_timeout_us
                                              : c->query_timeout_us;
}

int64_t conf_idle_transaction_timeout_us(const struct conf *c,
                                         const struct conf_user *user)
{
    return user && user->idle_transaction_timeout_us > 0
               ? user->idle_transaction_timeout_us
               : c->idle_transaction_timeout_us;
}

int64_t conf_transaction_timeout_us(const struct conf *c,
                                    const struct conf_user *user)
{
    return user && user->transaction_timeout_us > 0
               ? user->transaction_timeout_us
               : c->transaction_timeout_us;
}

int64_t conf_client_idle_timeout_us(const struct conf *c,
                                    const struct conf_user *user)
{
    return user && user->client_idle_timeout_us > 0
               ? user->client_idle_timeout_us
               : c->client_idle_timeout_us;
}

int conf_peer_pool_size(const struct conf *c, const struct conf_peer *peer)
{
    return peer->pool_size >= 0 ? peer->pool_size : c->default_pool_size;
}

const char *conf_auth_user(const struct conf *c, const struct conf_db *db)
{
    return db && db->auth_user ? db->auth_user : c->auth_user;
}

const char *conf_auth_query(const struct conf *c, const struct conf_db *db)
{
    return db && db->auth_query ? db->auth_query : c->auth_query;
}

const char *conf_auth_dbname(const struct conf *c, const struct conf_db *db)
{
    return db && db->auth_dbname ? db->auth_dbname : c->auth_dbname;
}

enum conf_sslmode conf_server_sslmode(const struct conf *c,
                                      const struct conf_db *db)
{
    enum conf_sslmode mode = db && db->sslmode >= 0
                                 ? (enum conf_sslmode)db->sslmode
                                 : c->server_tls_sslmode;
    if (!db || db->transport < 0)
        return mode;
    if (db->transport == CONF_TRANSPORT_TCP)
        return CONF_SSL_DISABLE;
    return mode < CONF_SSL_REQUIRE ? CONF_SSL_VERIFY_FULL : mode;
}

const char *conf_server_ca_file(const struct conf *c, const struct conf_db *db)
{
    return db && db->sslrootcert ? db->sslrootcert : c->server_tls_ca_file;
}

const char *conf_server_cert_file(const struct conf *c,
                                  const struct conf_db *db)
{
    return db && db->sslcert ? db->sslcert : c->server_tls_cert_file;
}

const char *conf_server_key_file(const struct conf *c, const struct conf_db *db)
{
    return db && db->sslkey ? db->sslkey : c->server_tls_key_file;
}

const char *conf_server_check_query(const struct conf *c)
{
    if (c->server_check_query && strcmp(c->server_check_query, "<empty>") == 0)
        return "";
    return c->server_check_query;
}
