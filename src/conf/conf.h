/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The configuration as an immutable snapshot. A snapshot is made by conf_load,
 * conf_reload or conf_set and never changes again, so any thread that holds a
 * reference may read it; the reference count is atomic. RELOAD and SET swap the
 * snapshot for a new one; readers keep the old one as long as they hold it.
 *
 * Every option of option.def is a field of struct conf by its own name; times
 * are microseconds and end in _us (query_timeout -> query_timeout_us). Strings
 * are NULL when not set. Everything reachable lives as long as the snapshot.
 *
 * Files are read (conf_load, conf_reload, conf_check); no clock, no socket. */
#ifndef CONF_CONF_H
#define CONF_CONF_H

#include "base/err.h"
#include "base/slice.h"

enum conf_pool_mode {
    CONF_POOL_SESSION,
    CONF_POOL_TRANSACTION,
    CONF_POOL_STATEMENT,
};

enum conf_auth_type {
    CONF_AUTH_ANY,
    CONF_AUTH_TRUST,
    CONF_AUTH_PLAIN,
    CONF_AUTH_MD5,
    CONF_AUTH_SCRAM,
    CONF_AUTH_CERT,
    CONF_AUTH_HBA,
    CONF_AUTH_PAM,
    CONF_AUTH_LDAP,
};

enum conf_sslmode {
    CONF_SSL_DISABLE,
    CONF_SSL_ALLOW,
    CONF_SSL_PREFER,
    CONF_SSL_REQUIRE,
    CONF_SSL_VERIFY_CA,
    CONF_SSL_VERIFY_FULL,
};

enum conf_sslnegotiation {
    CONF_SSLNEG_POSTGRES,
    CONF_SSLNEG_DIRECT,
};

enum conf_load_balance {
    CONF_BALANCE_ROUND_ROBIN,
    CONF_BALANCE_DISABLE,
};

enum conf_transport {
    CONF_TRANSPORT_TCP,
    CONF_TRANSPORT_TLS,
    CONF_TRANSPORT_QUIC,
};

enum conf_congestion {
    CONF_CONGESTION_CUBIC,
    CONF_CONGESTION_RENO,
    CONF_CONGESTION_BBR,
};

enum conf_log_format {
    CONF_LOG_PLAIN,
    CONF_LOG_JSON,
};

enum conf_supervisor {
    CONF_SUPERVISOR_OFF,
    CONF_SUPERVISOR_ON,
    CONF_SUPERVISOR_AUTO, /* as a daemon */
};

enum conf_mptcp {
    CONF_MPTCP_OFF,
    CONF_MPTCP_ON,
    CONF_MPTCP_REQUIRE,
};

enum conf_upgrade_tls {
    CONF_UPGRADE_WAIT,
    CONF_UPGRADE_END,
};

enum { CONF_WORKERS_AUTO = 0 };

/* A list that was separated by commas or blanks. */
struct conf_list {
    const char *text; /* as written; NULL when not set */
    char **items;
    int n;
};

/* The field that a row of option.def makes in struct conf. */
#define CONF_FIELD_STR(name) const char *name;
#define CONF_FIELD_LIST(name) struct conf_list name;
#define CONF_FIELD_INT(name) int name;
#define CONF_FIELD_WORKERS(name) int name;
#define CONF_FIELD_BOOL(name) bool name;
#define CONF_FIELD_TIME(name) int64_t name##_us;
#define CONF_FIELD_POOL_MODE(name) enum conf_pool_mode name;
#define CONF_FIELD_AUTH_TYPE(name) enum conf_auth_type name;
#define CONF_FIELD_SSLMODE(name) enum conf_sslmode name;
#define CONF_FIELD_LOG_FORMAT(name) enum conf_log_format name;
#define CONF_FIELD_CONGESTION(name) enum conf_congestion name;
#define CONF_FIELD_UPGRADE_TLS(name) enum conf_upgrade_tls name;
#define CONF_FIELD_SUPERVISOR(name) enum conf_supervisor name;

/* The field that a row of section.def makes: choices are int, so that -1 can
 * say "not set". */
#define CONF_KEY_FIELD_STR(name) const char *name;
#define CONF_KEY_FIELD_HOSTS(name) const char *name;
#define CONF_KEY_FIELD_PORTS(name) const char *name##_text;
#define CONF_KEY_FIELD_INT(name) int name;
#define CONF_KEY_FIELD_TIME(name) int64_t name##_us;
#define CONF_KEY_FIELD_POOL_MODE(name) int name;
#define CONF_KEY_FIELD_SSLMODE(name) int name;
#define CONF_KEY_FIELD_SSLNEGOTIATION(name) int name;
#define CONF_KEY_FIELD_LOAD_BALANCE(name) int name;
#define CONF_KEY_FIELD_TRANSPORT(name) int name;
#define CONF_KEY_FIELD_MPTCP(name) int name;

/* Where a server may be. host is NULL (Unix socket in unix_socket_dir), begins
 * with '/' or '@' (Unix socket), or is a name or address. */
struct conf_host {
    const char *host;
    int port;
};

/* A line of [databases]. Numbers and choices that the line does not give are
 * -1, strings NULL; the functions below know the value in force. */
struct conf_db {
    const char *name; /* "*" for the fallback */
    bool is_auto;     /* the fallback: dbname may be NULL, see conf_db_dbname */
    const char *place;             /* file:line, for messages */
    const struct conf_host *hosts; /* at least one */
    int n_hosts;
    int port; /* the first host's, for SHOW DATABASES */
#define DB_KEY(type, key, ...) CONF_KEY_FIELD_##type(key)
#include "conf/section.def"
#undef DB_KEY
};

/* A line of [users]. */
struct conf_user {
    const char *name;
#define USER_KEY(type, key, ...) CONF_KEY_FIELD_##type(key)
#include "conf/section.def"
#undef USER_KEY
};

/* A line of [peers]; port is set (6432 when the line has none). */
struct conf_peer {
    int id; /* 1 to 16383 */
#define PEER_KEY(type, key, ...) CONF_KEY_FIELD_##type(key)
#include "conf/section.def"
#undef PEER_KEY
};

struct hba;
struct userdb;
struct conf_sections; /* conf_sections.h; shared by snapshots made by SET */
struct conf_texts;    /* the options as text, private to conf.c */

struct conf {
#define OPT(type, name, ...) CONF_FIELD_##type(name)
#include "conf/option.def"
#undef OPT
    const struct userdb *users; /* from auth_file; NULL when there is none */
    const struct hba *hba;      /* with auth_type = hba; NULL: no rules */

    struct conf_sections *sections;
    struct conf_texts *texts;
    int refs; /* atomic */
};

/* Reads the file and what it includes, and auth_file. *out has one reference.
 * The first mistake ends it: e names file, line, key and what would be right.
 * An auth_file or auth_hba_file that cannot be read is a warning, as in
 * PgBouncer, and so is a rule that cannot be understood, unless it rejects. */
NODISCARD int conf_load(const char *path, struct conf **out, struct err *e);

/* Reads old->conffile anew. Options that are fixed at start keep their old
 * value, and a warning names those that the file would have changed. */
NODISCARD int conf_reload(const struct conf *old, struct conf **out,
                          struct err *e);

/* The console's SET: a snapshot that differs in one option, which lasts until
 * the next reload. Refuses an unknown key, a bad value and an option that is
 * fixed at start. */
NODISCARD int conf_set(const struct conf *old, struct slice key,
                       struct slice value, struct conf **out, struct err *e);

/* Reads the file as conf_load does and reports every mistake, one line each,
 * then every warning. Returns the number of mistakes. */
typedef void (*conf_check_cb)(void *arg, bool is_error, const char *text);
int conf_check(const char *path, conf_check_cb cb, void *arg);

/* Whether auth_file is another than the one that was read (looks at the file's
 * size and times), and the snapshot with its new content; as PgBouncer does, a
 * changed auth_file counts without a reload. If it cannot be read the old users
 * stay, with a warning. */
bool conf_users_changed(const struct conf *c);
NODISCARD int conf_reload_users(const struct conf *old, struct conf **out,
                                struct err *e);

struct conf *conf_ref(const struct conf *c);
void conf_unref(const struct conf *c); /* NULL is fine */

/* One line each, to be logged by whoever made the snapshot. */
int conf_warning_count(const struct conf *c);
const char *conf_warning(const struct conf *c, int i);

/* SHOW CONFIG: every option in PgBouncer's order, ours after them. value and
 * deflt may be NULL; the value of an option that holds a secret is hidden. */
typedef void (*conf_option_cb)(void *arg, const char *key, const char *value,
                               const char *deflt, bool is_changeable);
void conf_each_option(const struct conf *c, conf_option_cb cb, void *arg);

/* The value of one option as SHOW CONFIG prints it; false if there is no such
 * option. */
bool conf_get_text(const struct conf *c, struct slice key, char *buf,
                   size_t cap);

/* Whether the list has the word: exactly, or with ASCII case folded (names of
 * server parameters). */
bool conf_list_has(const struct conf_list *l, struct slice word);
bool conf_list_has_nocase(const struct conf_list *l, struct slice word);

bool conf_is_admin_user(const struct conf *c, struct slice user);
bool conf_is_stats_user(const struct conf *c, struct slice user);
/* Whether connections from this address begin with a PROXY header; an IPv4
 * address must not be a mapped one. */
bool conf_is_proxy(const struct conf *c, const uint8_t *ip, size_t n);
bool conf_ignores_parameter(const struct conf *c, struct slice name);
bool conf_tracks_parameter(const struct conf *c, struct slice name);

/* Whether clients ask this name to reach the console. */
bool conf_is_console_db(struct slice name);

/* Sections, in the order of the file. */
int conf_db_count(const struct conf *c); /* without the fallback */
const struct conf_db *conf_db_at(const struct conf *c, int i);
int conf_user_count(const struct conf *c);
const struct conf_user *conf_user_at(const struct conf *c, int i);
int conf_peer_count(const struct conf *c);
const struct conf_peer *conf_peer_at(const struct conf *c, int i);

/* NULL when the section has no such line. conf_find_db does not fall back. */
const struct conf_db *conf_find_db(const struct conf *c, struct slice name);
const struct conf_db *conf_fallback_db(const struct conf *c);
const struct conf_user *conf_find_user(const struct conf *c, struct slice name);
const struct conf_peer *conf_find_peer(const struct conf *c, int id);

/* The server's database: the line's dbname=, else the name asked for. */
struct slice conf_db_dbname(const struct conf_db *db, struct slice asked);

/* Whether server connections made for one line may serve the other; if not,
 * a reload closes them once they are released. Pool sizes and limits do not
 * matter here. */
bool conf_db_same_server(const struct conf_db *a, const struct conf_db *b);
/* The same number where both would say so, for another process. */
uint64_t conf_server_print(const struct conf *c, const struct conf_db *db);
bool conf_same_server_tls(const struct conf *a, const struct conf *b);
bool conf_same_client_tls(const struct conf *a, const struct conf *b);

/* The value in force: the user's, else the database's, else the global one.
 * db and user may be NULL. */
enum conf_pool_mode conf_pool_mode(const struct conf *c,
                                   const struct conf_db *db,
                                   const struct conf_user *user);
int conf_pool_size(const struct conf *c, const struct conf_db *db,
                   const struct conf_user *user); /* 0: no limit */
int conf_min_pool_size(const struct conf *c, const struct conf_db *db);
int conf_reserve_pool_size(const struct conf *c, const struct conf_db *db,
                           const struct conf_user *user);
int conf_max_db_connections(const struct conf *c, const struct conf_db *db);
int conf_max_db_client_connections(const struct conf *c,
                                   const struct conf_db *db);
int conf_max_user_connections(const struct conf *c,
                              const struct conf_user *user);
int conf_max_user_client_connections(const struct conf *c,
                                     const struct conf_user *user);
int64_t conf_server_lifetime_us(const struct conf *c, const struct conf_db *db);
int64_t conf_query_wait_timeout_us(const struct conf *c,
                                   const struct conf_db *db,
                                   const struct conf_user *user);
int64_t conf_query_timeout_us(const struct conf *c,
                              const struct conf_user *user);
int64_t conf_idle_transaction_timeout_us(const struct conf *c,
                                         const struct conf_user *user);
int64_t conf_transaction_timeout_us(const struct conf *c,
                                    const struct conf_user *user);
int64_t conf_client_idle_timeout_us(const struct conf *c,
                                    const struct conf_user *user);
int conf_peer_pool_size(const struct conf *c, const struct conf_peer *peer);

/* The database's, else the global one; NULL when neither is set. */
const char *conf_auth_user(const struct conf *c, const struct conf_db *db);
const char *conf_auth_query(const struct conf *c, const struct conf_db *db);
const char *conf_auth_dbname(const struct conf *c, const struct conf_db *db);

/* TLS towards the server of a database. */
enum conf_sslmode conf_server_sslmode(const struct conf *c,
                                      const struct conf_db *db);
const char *conf_server_ca_file(const struct conf *c, const struct conf_db *db);
const char *conf_server_cert_file(const struct conf *c,
                                  const struct conf_db *db);
const char *conf_server_key_file(const struct conf *c,
                                 const struct conf_db *db);

/* What to send to test an idle server: NULL when the check is off, "" for an
 * empty query (`<empty>`). */
const char *conf_server_check_query(const struct conf *c);

#endif
