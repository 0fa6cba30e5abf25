/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The snapshot: options, sections, precedence, SET, reload, auth_file. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "auth/userdb.h"
#include "conf/conf_private.h"

/* Without files */

static int read_text(void *arg, const char *path, char **text, size_t *n,
                     struct err *e)
{
    if (strcmp(path, "p.ini") != 0)
        return err_set(e, ERR_CONF, "cannot read file \"%s\"", path);
    *text = mem_strdup(arg);
    *n = strlen(arg);
    return 0;
}

static int build(const char *text, struct conf **c, struct err *e)
{
    struct conf_reader r = {read_text, (void *)(uintptr_t)text};
    struct conf_sink sink = {.cb = NULL};

    return conf_build(&r, "p.ini", &sink, c, e);
}

static struct conf *good(const char *text)
{
    struct conf *c = NULL;
    struct err e = {0};

    if (build(text, &c, &e) < 0)
        fail_msg("%s", e.text);
    return c;
}

static void bad(const char *text, const char *expected)
{
    struct conf *c = NULL;
    struct err e = {0};

    assert_true(build(text, &c, &e) < 0);
    assert_int_equal(e.code, ERR_CONF);
    assert_string_equal(e.text, expected);
}

#define db_of(c, name) conf_find_db(c, slice_str(name))
#define user_of(c, name) conf_find_user(c, slice_str(name))

static void test_defaults(void **state)
{
    struct conf *c = good("[pgbouncer]\n");

    assert_int_equal(c->listen_port, 6432);
    assert_int_equal(c->pool_mode, CONF_POOL_SESSION);
    assert_int_equal(c->default_pool_size, 20);
    assert_int_equal(c->max_client_conn, 100);
    assert_int_equal(c->query_wait_timeout_us, 120 * 1000000LL);
    assert_int_equal(c->auth_type, CONF_AUTH_MD5);
    assert_int_equal(c->server_tls_sslmode, CONF_SSL_PREFER);
    assert_int_equal(c->unix_socket_mode, 0777);
    assert_int_equal(c->workers, CONF_WORKERS_AUTO);
    assert_int_equal(c->verbose, 0);
    assert_null(c->auth_file);
    assert_null(c->auth_hba_file);
    assert_string_equal(c->unix_socket_dir, "/tmp");
    assert_string_equal(c->conffile, "p.ini");
    assert_string_equal(conf_server_check_query(c), "");
    assert_int_equal(c->listen_addr.n, 0);
    assert_true(conf_tracks_parameter(c, slice_str("intervalstyle")));
    assert_int_equal(conf_warning_count(c), 0);
    conf_unref(c);
}

static void test_values(void **state)
{
    struct conf *c = good("[pgbouncer]\n"
                          "listen_addr = 127.0.0.1, ::1,\n"
                          "pool_mode = Transaction\n"
                          "server_check_delay = 0.25\n"
                          "query_timeout = 1.5000009\n"
                          "unix_socket_mode = 0700\n"
                          "log_stats = off\n"
                          "workers = 3\n"
                          "service_name = x\n"
                          "server_check_query =\n"
                          "unix_socket_dir =\n"
                          "admin_users = a, b c\n"
                          "ignore_startup_parameters = options\n");

    assert_int_equal(c->listen_addr.n, 2);
    assert_string_equal(c->listen_addr.items[1], "::1");
    assert_int_equal(c->pool_mode, CONF_POOL_TRANSACTION);
    assert_int_equal(c->server_check_delay_us, 250000);
    assert_int_equal(c->query_timeout_us, 1500000);
    assert_int_equal(c->unix_socket_mode, 0700);
    assert_false(c->log_stats);
    assert_int_equal(c->workers, 3);
    assert_string_equal(c->job_name, "x");
    assert_null(conf_server_check_query(c));
    assert_null(c->unix_socket_dir);
    assert_true(conf_is_admin_user(c, slice_str("c")));
    assert_false(conf_is_admin_user(c, slice_str("A")));
    assert_true(conf_ignores_parameter(c, slice_str("OPTIONS")));
    conf_unref(c);
}

static void test_mistakes(void **state)
{
    bad("", "p.ini: there is no [pgbouncer] section");
    bad("[pgbouncer]\n\npool_mode = transacton\n",
        "p.ini:3: pool_mode = \"transacton\": expected session, transaction or "
        "statement");
    bad("[pgbouncer]\npool_mod = x\n",
        "p.ini:2: unknown option \"pool_mod\"; did you mean pool_mode?");
    bad("[pgbouncer]\nzzz = x\n", "p.ini:2: unknown option \"zzz\"");
    bad("[pgbouncer]\nlisten_port = 70000\n",
        "p.ini:2: listen_port = \"70000\": expected a number from 1 to 65535");
    bad("[pgbouncer]\nlisten_port =\n",
        "p.ini:2: listen_port = \"\": expected a number from 1 to 65535");
    bad("[pgbouncer]\nquery_timeout = 5s\n",
        "p.ini:2: query_timeout = \"5s\": expected seconds, such as 30 or 0.5");
    bad("[pgbouncer]\nquery_timeout = 99999999999999999999\n",
        "p.ini:2: query_timeout = \"99999999999999999999\": expected seconds, "
        "such as 30 or 0.5");
    bad("[pgbouncer]\nlog_stats = maybe\n",
        "p.ini:2: log_stats = \"maybe\": expected 0 or 1");
    bad("[pgbouncer]\nworkers = 0\n",
        "p.ini:2: workers = \"0\": expected auto or a number from 1 to 256");
    bad("[pgbouncr]\n", "p.ini:1: unknown section [pgbouncr]; expected "
                        "[pgbouncer], [databases], [users] or [peers]");
    bad("[pgbouncer]\nsyslog_facility = local8\n",
        "p.ini:2: syslog_facility = \"local8\": expected auth, authpriv, "
        "daemon, user, or local0 to local7");
    bad("[pgbouncer]\nclient_tls_sslmode = require\n",
        "p.ini:2: client_tls_sslmode = \"require\": needs client_tls_key_file "
        "and client_tls_cert_file");
    bad("[pgbouncer]\nclient_tls_protocols = tlsv1.2,tlsv1.4\n",
        "p.ini:2: client_tls_protocols = \"tlsv1.2,tlsv1.4\": expected a list "
        "of tlsv1.0, tlsv1.1, tlsv1.2 and tlsv1.3, or secure, or all");
    bad("[pgbouncer]\nunix_socket_dir =\n",
        "listen_addr = \"\": nowhere to listen; set it or unix_socket_dir");
    bad("[pgbouncer]\nauth_dbname = pgbouncer\n",
        "p.ini:2: auth_dbname = \"pgbouncer\": that is the console's name");
}

static void test_database(void **state)
{
    struct conf *c = good(
        "[databases]\n"
        "plain =\n"
        "app = host=h1,h2 port=5433 dbname=d user=u password='a''b c' "
        "pool_size=5 reserve_pool=2 pool_mode=statement server_lifetime=1.5 "
        "load_balance_hosts=disable connect_query='select 1' timezone=UTC "
        "sslmode=require sslnegotiation=direct\n"
        "two = host=/run,::1 port=1,2\n"
        "\"odd name\" = host=x\n"
        "[pgbouncer]\n");
    const struct conf_db *db = db_of(c, "app");

    assert_int_equal(conf_db_count(c), 4);
    assert_string_equal(conf_db_at(c, 0)->name, "plain");
    assert_non_null(db_of(c, "odd name"));
    assert_null(db_of(c, "ap"));
    assert_null(db_of(c, "appp"));
    assert_null(conf_fallback_db(c));
    assert_int_equal(db->n_hosts, 2);
    assert_string_equal(db->hosts[1].host, "h2");
    assert_int_equal(db->hosts[1].port, 5433);
    assert_string_equal(db->host, "h1,h2");
    assert_string_equal(db->dbname, "d");
    assert_string_equal(db->password, "a'b c");
    assert_string_equal(db->place, "p.ini:3");
    assert_int_equal(db->reserve_pool_size, 2);
    assert_int_equal(db->pool_mode, CONF_POOL_STATEMENT);
    assert_int_equal(db->server_lifetime_us, 1500000);
    assert_int_equal(db->load_balance_hosts, CONF_BALANCE_DISABLE);
    assert_int_equal(db->min_pool_size, -1);
    assert_int_equal(db->query_wait_timeout_us, -1);
    assert_int_equal(db->sslnegotiation, CONF_SSLNEG_DIRECT);
    assert_int_equal(conf_server_sslmode(c, db), CONF_SSL_REQUIRE);

    db = db_of(c, "plain");
    assert_int_equal(db->n_hosts, 1);
    assert_null(db->hosts[0].host);
    assert_int_equal(db->port, 5432);
    assert_string_equal(db->dbname, "plain");
    assert_int_equal(conf_server_sslmode(c, db), CONF_SSL_PREFER);

    db = db_of(c, "two");
    assert_string_equal(db->hosts[0].host, "/run");
    assert_string_equal(db->hosts[1].host, "::1");
    assert_int_equal(db->hosts[1].port, 2);
    conf_unref(c);
}

static void test_fallback(void **state)
{
    struct conf *c = good("[databases]\n* = host=x user=u\n[pgbouncer]\n");
    const struct conf_db *db = conf_fallback_db(c);

    assert_int_equal(conf_db_count(c), 0);
    assert_null(db_of(c, "*"));
    assert_true(db->is_auto);
    assert_null(db->dbname);
    assert_true(slice_is(conf_db_dbname(db, slice_str("asked")), "asked"));
    conf_unref(c);
    c = good("[databases]\n* = host=x dbname=one\n[pgbouncer]\n");
    db = conf_fallback_db(c);
    assert_true(slice_is(conf_db_dbname(db, slice_str("asked")), "one"));
    conf_unref(c);
}

#define DB(line) "[pgbouncer]\n[databases]\n" line "\n"

static void test_database_mistakes(void **state)
{
    bad(DB("a = pool_mode=fast"),
        "p.ini:3: [databases] a: pool_mode = \"fast\": expected session, "
        "transaction or statement");
    bad(DB("a = hots=x"), "p.ini:3: [databases] a: unknown key of [databases] "
                          "\"hots\"; did you mean host?");
    bad(DB("a = port=0"), "p.ini:3: [databases] a: port = \"0\": expected a "
                          "number from 1 to 65535");
    bad(DB("a = host=x,y,z port=1,2"),
        "p.ini:3: [databases] a: port: 2 ports for 3 hosts; expected one for "
        "all or one for each");
    bad(DB("a = host=x,,y"),
        "p.ini:3: [databases] a: host: a host in the list is empty");
    bad(DB("a = pool_size=many"),
        "p.ini:3: [databases] a: pool_size = \"many\": expected a number from "
        "-1 to 1000000");
    bad(DB("pgbouncer = host=x"),
        "p.ini:3: [databases] pgbouncer: that name is reserved for the "
        "console; use another");
    bad(DB("a = password=top secret=x"),
        "p.ini:3: [databases] a: unknown key after password; a value that "
        "holds a blank goes in single quotes");
    bad(DB("a = sslnegotiation=direct"),
        "p.ini:3: [databases] a: sslnegotiation = direct needs sslmode = "
        "require, verify-ca or verify-full");
    bad(DB("[users]\nu = pool_sise=3"),
        "p.ini:4: [users] u: unknown key of [users] \"pool_sise\"; did you "
        "mean pool_size?");
    bad(DB("[peers]\n0 = host=x"),
        "p.ini:4: [peers] 0: expected a peer's number, 1 to 16383");
    bad(DB("[peers]\n1 = port=5"), "p.ini:4: [peers] 1: a peer needs host=");
}

static void test_last_line_holds(void **state)
{
    struct conf *c = good("[databases]\na = host=1\nb = host=2\na = host=3\n"
                          "[pgbouncer]\n");

    assert_int_equal(conf_db_count(c), 2);
    assert_string_equal(conf_db_at(c, 0)->name, "b");
    assert_string_equal(db_of(c, "a")->host, "3");
    assert_int_equal(conf_warning_count(c), 1);
    assert_string_equal(conf_warning(c, 0),
                        "\"a\" is given more than once in a section: the last "
                        "line holds");
    conf_unref(c);
}

static void test_peers(void **state)
{
    struct conf *c = good("[pgbouncer]\npeer_id=1\n[peers]\n1 = host=/x\n"
                          "20 = host=y port=5 pool_size=7\n");

    assert_int_equal(conf_peer_count(c), 2);
    assert_int_equal(conf_find_peer(c, 1)->port, 6432);
    assert_int_equal(conf_peer_pool_size(c, conf_find_peer(c, 1)), 20);
    assert_int_equal(conf_peer_pool_size(c, conf_find_peer(c, 20)), 7);
    assert_null(conf_find_peer(c, 2));
    conf_unref(c);
}

static void test_precedence(void **state)
{
    struct conf *c = good("[pgbouncer]\n"
                          "pool_mode=transaction\nquery_wait_timeout=10\n"
                          "query_timeout=9\nmax_db_connections=50\n"
                          "[databases]\n"
                          "d = pool_size=3 pool_mode=session "
                          "query_wait_timeout=20 max_db_connections=0 "
                          "min_pool_size=0 server_lifetime=0\n"
                          "e =\n"
                          "[users]\n"
                          "u = pool_size=0 pool_mode=statement "
                          "query_wait_timeout=0 query_timeout=0\n"
                          "v = query_timeout=1.5 max_user_connections=4\n");
    const struct conf_db *d = db_of(c, "d"), *e = db_of(c, "e");
    const struct conf_user *u = user_of(c, "u"), *v = user_of(c, "v");

    assert_int_equal(conf_pool_mode(c, NULL, NULL), CONF_POOL_TRANSACTION);
    assert_int_equal(conf_pool_mode(c, e, v), CONF_POOL_TRANSACTION);
    assert_int_equal(conf_pool_mode(c, d, v), CONF_POOL_SESSION);
    assert_int_equal(conf_pool_mode(c, d, u), CONF_POOL_STATEMENT);
    assert_int_equal(conf_pool_size(c, e, v), 20);
    assert_int_equal(conf_pool_size(c, d, v), 3);
    assert_int_equal(conf_pool_size(c, d, u), 0);
    assert_int_equal(conf_query_wait_timeout_us(c, e, v), 10000000);
    assert_int_equal(conf_query_wait_timeout_us(c, d, v), 20000000);
    assert_int_equal(conf_query_wait_timeout_us(c, d, u), 0);
    assert_int_equal(conf_query_timeout_us(c, u), 9000000);
    assert_int_equal(conf_query_timeout_us(c, v), 1500000);
    assert_int_equal(conf_max_db_connections(c, d), 50);
    assert_int_equal(conf_max_user_connections(c, v), 4);
    assert_int_equal(conf_max_user_connections(c, NULL), 0);
    assert_int_equal(conf_server_lifetime_us(c, d), 3600000000LL);
    conf_unref(c);
}

static void test_same_server(void **state)
{
    struct conf *c = good("[pgbouncer]\n[databases]\n"
                          "a = host=x dbname=d pool_size=1\n"
                          "b = host=x dbname=d pool_size=2\n"
                          "e = host=x dbname=d port=5433\n"
                          "f = host=x dbname=d password=p\n");

    assert_true(conf_db_same_server(db_of(c, "a"), db_of(c, "b")));
    assert_false(conf_db_same_server(db_of(c, "a"), db_of(c, "e")));
    assert_false(conf_db_same_server(db_of(c, "a"), db_of(c, "f")));
    assert_true(conf_same_server_tls(c, c));
    conf_unref(c);
}

/* What a transport makes of sslmode: never less than it says itself. */
static void test_transport(void **state)
{
    static const struct {
        const char *line;
        enum conf_sslmode mode;
    } lines[] = {
        {"host=x", CONF_SSL_PREFER},
        {"host=x transport=tcp", CONF_SSL_DISABLE},
        {"host=x transport=tls", CONF_SSL_VERIFY_FULL},
        {"host=x transport=quic", CONF_SSL_VERIFY_FULL},
        {"host=x transport=quic sslmode=require", CONF_SSL_REQUIRE},
        {"host=x transport=tls sslmode=verify-ca", CONF_SSL_VERIFY_CA},
    };
    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        char text[128];
        snprintf(text, sizeof(text), "[pgbouncer]\n[databases]\na = %s\n",
                 lines[i].line);
        struct conf *c = good(text);
        assert_int_equal(conf_warning_count(c), 0);
        assert_int_equal(conf_server_sslmode(c, conf_db_at(c, 0)),
                         lines[i].mode);
        conf_unref(c);
    }
}

static void test_mptcp_over_unix(void **state)
{
    struct conf *c = good("[pgbouncer]\nlisten_addr = *\nlisten_mptcp = 1\n"
                          "[databases]\na = host=x,/tmp mptcp=on\n"
                          "b = host=/tmp,@x mptcp=off\n");

    assert_int_equal(conf_warning_count(c), 0);
    conf_unref(c);
    c = good("[pgbouncer]\nlisten_mptcp = 1\n[databases]\na = mptcp=on\n"
             "b = host=@x mptcp=require\n");
    assert_int_equal(conf_warning_count(c), 1);
    assert_string_equal(conf_warning(c, 0),
                        "Multipath TCP has no effect on Unix sockets: "
                        "listen_mptcp without listen_addr, a (in "
                        "[databases]), b (in [databases])");
    conf_unref(c);
}

/* SHOW CONFIG */

struct shown {
    int n;
    char first[64], last_theirs[64];
    bool secret_leaked;
};

static void on_option(void *arg, const char *key, const char *value,
                      const char *deflt, bool is_changeable)
{
    struct shown *s = arg;

    if (s->n++ == 0)
        snprintf(s->first, sizeof(s->first), "%s", key);
    if (strcmp(key, "auth_ldap_options") == 0)
        assert_string_equal(value, "<hidden>");
    if (strcmp(key, "listen_port") == 0) {
        assert_string_equal(value, "6432");
        assert_false(is_changeable);
    }
    if (strcmp(key, "server_check_delay") == 0) {
        assert_string_equal(value, "0.25");
        assert_string_equal(deflt, "30");
        assert_true(is_changeable);
    }
    if (strcmp(key, "logfile") == 0)
        assert_string_equal(value, "");
    if (strcmp(key, "auth_user") == 0)
        assert_null(value);
    if (strcmp(key, "query_timeout") == 0)
        assert_string_equal(value, "0");
    if (strcmp(key, "unix_socket_mode") == 0)
        assert_string_equal(value, "511");
    if (strcmp(key, "workers") == 0)
        assert_string_equal(value, "auto");
}

static void test_show(void **state)
{
    struct shown s = {0};
    char buf[32];
    struct conf *c = good("[pgbouncer]\nserver_check_delay=0.250\n"
                          "auth_ldap_options=ldapbindpasswd=x\n");

    conf_each_option(c, on_option, &s);
    assert_int_equal(s.n, option_table.n);
    assert_string_equal(s.first, "admin_users");
    assert_true(conf_get_text(c, slice_str("pool_mode"), buf, sizeof(buf)));
    assert_string_equal(buf, "session");
    assert_false(conf_get_text(c, slice_str("nope"), buf, sizeof(buf)));
    conf_unref(c);
}

/* SET */

static void test_set(void **state)
{
    struct conf *c = good("[pgbouncer]\nverbose=1\n[databases]\nd=\n");
    struct conf *n = NULL;
    struct err e;

    assert_int_equal(
        conf_set(c, slice_str("pool_mode"), slice_str("transaction"), &n, &e),
        0);
    assert_int_equal(n->pool_mode, CONF_POOL_TRANSACTION);
    assert_int_equal(c->pool_mode, CONF_POOL_SESSION);
    assert_int_equal(n->verbose, 1);
    assert_string_equal(n->conffile, "p.ini");
    conf_unref(c);
    assert_non_null(db_of(n, "d")); /* outlives the one it came from */

    assert_true(conf_set(n, slice_str("listen_port"), slice_str("1"), &c, &e) <
                0);
    assert_string_equal(e.text, "listen_port is fixed at start: change it in "
                                "the file and restart");
    assert_true(conf_set(n, slice_str("pool_mode"), slice_str("x"), &c, &e) <
                0);
    assert_true(conf_set(n, slice_str("polmode"), slice_str("x"), &c, &e) < 0);
    assert_true(conf_set(n, slice_str("client_tls_sslmode"),
                         slice_str("require"), &c, &e) < 0);
    conf_unref(n);
}

/* With files */

static char dir[64];

static const char *path_of(const char *name)
{
    static char path[2][128];
    static int turn;

    turn = !turn;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", dir, name);
    return path[turn];
}

static void put_file(const char *name, const char *text)
{
    FILE *f = fopen(path_of(name), "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static struct conf *load(const char *text)
{
    struct conf *c = NULL;
    struct err e = {0};

    put_file("p.ini", text);
    if (conf_load(path_of("p.ini"), &c, &e) < 0)
        fail_msg("%s", e.text);
    return c;
}

static void test_reload(void **state)
{
    struct conf *c = load("[pgbouncer]\nlisten_port=7000\nworkers=2\n"
                          "[databases]\na=\n");
    struct conf *n = NULL;
    struct err e;

    put_file("p.ini", "[pgbouncer]\nlisten_port=7001\nworkers=2\n"
                      "default_pool_size=5\nlisten_addr=*\n"
                      "track_extra_parameters=x\n[databases]\nb=\n");
    assert_int_equal(conf_reload(c, &n, &e), 0);
    assert_int_equal(n->listen_port, 7000);
    assert_int_equal(n->default_pool_size, 5);
    assert_int_equal(n->listen_addr.n, 0);
    assert_true(conf_tracks_parameter(n, slice_str("IntervalStyle")));
    assert_null(db_of(n, "a"));
    assert_non_null(db_of(n, "b"));
    assert_non_null(db_of(c, "a"));
    assert_int_equal(conf_warning_count(n), 1);
    assert_string_equal(conf_warning(n, 0),
                        "changed in the file, but fixed until the next start: "
                        "listen_addr, listen_port, track_extra_parameters");
    conf_unref(c);

    put_file("p.ini", "[pgbouncer]\nnope=1\n");
    assert_true(conf_reload(n, &c, &e) < 0);
    assert_non_null(strstr(e.text, "p.ini:2: unknown option \"nope\""));
    conf_unref(n);
}

static void test_include_file(void **state)
{
    char text[256];
    struct conf *c;

    put_file("inc.ini", "d = host=included\n");
    snprintf(text, sizeof(text),
             "[databases]\n%%include %s\n[pgbouncer]\npool_mode=statement\n",
             path_of("inc.ini"));
    c = load(text);
    assert_string_equal(db_of(c, "d")->host, "included");
    conf_unref(c);
}

static void test_missing_file(void **state)
{
    struct conf *c = NULL;
    struct err e;

    assert_true(conf_load("/nonexistent/p.ini", &c, &e) < 0);
    assert_string_equal(e.text, "cannot read file \"/nonexistent/p.ini\": No "
                                "such file or directory");
}

static struct conf *load_with_users(const char *users)
{
    char text[256];

    if (users)
        put_file("users.txt", users);
    else
        unlink(path_of("users.txt"));
    snprintf(text, sizeof(text), "[pgbouncer]\nauth_file=%s\n",
             path_of("users.txt"));
    return load(text);
}

static void test_auth_file(void **state)
{
    struct conf *c = load_with_users("\"u\" \"secret\"\n");
    struct conf *n = NULL;
    struct err e;

    assert_non_null(userdb_find(c->users, slice_str("u")));
    assert_false(conf_users_changed(c));
    put_file("users.txt", "\"longer\" \"secret\"\n");
    assert_true(conf_users_changed(c));
    assert_int_equal(conf_reload_users(c, &n, &e), 0);
    assert_non_null(userdb_find(n->users, slice_str("longer")));
    assert_null(userdb_find(n->users, slice_str("u")));
    assert_false(conf_users_changed(n));
    conf_unref(c);

    /* The file goes away: its users stay, and it is said once. */
    unlink(path_of("users.txt"));
    assert_true(conf_users_changed(n));
    assert_int_equal(conf_reload_users(n, &c, &e), 0);
    assert_int_equal(conf_warning_count(c), 1);
    assert_non_null(userdb_find(c->users, slice_str("longer")));
    assert_false(conf_users_changed(c));
    conf_unref(n);
    assert_int_equal(conf_reload(c, &n, &e), 0);
    assert_non_null(userdb_find(n->users, slice_str("longer")));
    conf_unref(c);
    conf_unref(n);
}

static void test_auth_file_missing(void **state)
{
    struct conf *c = load_with_users(NULL);

    assert_null(c->users);
    assert_int_equal(conf_warning_count(c), 1);
    assert_non_null(strstr(conf_warning(c, 0), "auth_file: cannot read file"));
    conf_unref(c);
}

struct checked {
    int errors, warnings;
};

static void on_check(void *arg, bool is_error, const char *text)
{
    struct checked *k = arg;

    if (is_error)
        k->errors++;
    else
        k->warnings++;
}

static void test_check(void **state)
{
    struct checked k = {0};

    put_file("p.ini", "[pgbouncer]\nnope=1\npool_mode=x\n"
                      "client_tls_sslmode=require\n[databases]\na=port=x\n"
                      "b = mptcp=on\n");
    assert_int_equal(conf_check(path_of("p.ini"), on_check, &k), 4);
    assert_int_equal(k.errors, 4);
    assert_int_equal(k.warnings, 1);
    assert_int_equal(conf_check("/nonexistent", on_check, &k), 1);
}

static int set_up(void **state)
{
    snprintf(dir, sizeof(dir), "/tmp/conf_load_test_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"p.ini", "inc.ini", "users.txt"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        unlink(path_of(names[i]));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_database),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_database_mistakes),
        cmocka_unit_test(test_last_line_holds),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_same_server),
        cmocka_unit_test(test_transport),
        cmocka_unit_test(test_mptcp_over_unix),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_include_file),
        cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_auth_file),
        cmocka_unit_test(test_auth_file_missing),
        cmocka_unit_test(test_check),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
