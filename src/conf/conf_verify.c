/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Checks that need more than one value, and the warnings about values that have
 * no effect. */

#include <stdio.h>

#include "conf/cidr.h"
#include "conf/conf_private.h"
#include "conf/conf_sections.h"

static int number_of(const char *name)
{
    const struct option *o = option_find(&option_table, slice_str(name));

    must(o);
    return (int)(o - option_table.rows);
}

/* Reports a mistake of an option, with its place when it came from a file. */
static int mistake(struct conf *c, struct conf_sink *sink, const char *option,
                   const char *expected)
{
    int i = number_of(option);
    const char *place = c->texts->place[i];
    const char *value = c->texts->value[i];
    struct err e;

    err_set(&e, ERR_CONF, "%s = \"%.64s\": %s", option, value ? value : "",
            expected);
    if (place)
        err_wrap(&e, "%s", place);
    return conf_sink_add(sink, &e);
}

static bool is_one_of(struct slice word, const char *const *words)
{
    for (; *words; words++)
        if (slice_is_nocase(word, *words))
            return true;
    return false;
}

/* Each word of a list with commas or colons, as OpenSSL-minded people write
 * it. */
static bool are_protocols(const char *text)
{
    static const char *const known[] = {
        "tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3", "all",
        "secure",  "legacy",  "default", NULL,
    };
    struct slice rest = slice_str(text);

    while (rest.n > 0) {
        size_t n = 0;

        while (n < rest.n && !strchr(",: ", rest.p[n]))
            n++;
        if (n > 0 && !is_one_of(slice_of(rest.p, n), known))
            return false;
        n = MIN(n + 1, rest.n);
        rest = slice_of(rest.p + n, rest.n - n);
    }
    return true;
}

static int check_protocols(struct conf *c, struct conf_sink *sink,
                           const char *option, const char *value)
{
    if (!value || are_protocols(value))
        return 0;
    return mistake(c, sink, option,
                   "expected a list of tlsv1.0, tlsv1.1, tlsv1.2 and tlsv1.3, "
                   "or secure, or all");
}

static int check_words(struct conf *c, struct conf_sink *sink)
{
    static const char *const facilities[] = {
        "auth",   "authpriv", "daemon", "user",   "local0", "local1", "local2",
        "local3", "local4",   "local5", "local6", "local7", NULL,
    };
    static const char *const dhe[] = {"none", "auto", "legacy", NULL};
    int rc = 0;

    if (c->syslog_facility &&
        !is_one_of(slice_str(c->syslog_facility), facilities))
        rc = mistake(c, sink, "syslog_facility",
                     "expected auth, authpriv, daemon, user, or local0 to "
                     "local7");
    if (rc == 0 && c->client_tls_dheparams &&
        !is_one_of(slice_str(c->client_tls_dheparams), dhe))
        rc = mistake(c, sink, "client_tls_dheparams",
                     "expected auto, legacy or none");
    if (rc == 0)
        rc = check_protocols(c, sink, "client_tls_protocols",
                             c->client_tls_protocols);
    if (rc == 0)
        rc = check_protocols(c, sink, "server_tls_protocols",
                             c->server_tls_protocols);
    return rc;
}

static int check_tls(struct conf *c, struct conf_sink *sink)
{
    int rc = 0;

    if (c->client_tls_sslmode != CONF_SSL_DISABLE &&
        (!c->client_tls_key_file || !c->client_tls_cert_file))
        rc = mistake(c, sink, "client_tls_sslmode",
                     "needs client_tls_key_file and client_tls_cert_file");
    if (rc == 0 && c->auth_type == CONF_AUTH_CERT &&
        c->client_tls_sslmode < CONF_SSL_VERIFY_CA)
        rc = mistake(c, sink, "auth_type",
                     "needs client_tls_sslmode = verify-ca or verify-full");
    if (rc == 0 && !c->server_tls_key_file != !c->server_tls_cert_file)
        rc = mistake(c, sink,
                     c->server_tls_key_file ? "server_tls_key_file"
                                            : "server_tls_cert_file",
                     "server_tls_key_file and server_tls_cert_file go "
                     "together");
    return rc;
}

static int check_proxies(struct conf *c, struct conf_sink *sink)
{
    struct cidr range;
    int rc = 0;

    for (int i = 0; i < c->proxy_protocol_from.n && rc == 0; i++)
        if (!cidr_parse(slice_str(c->proxy_protocol_from.items[i]), &range))
            rc = mistake(c, sink, "proxy_protocol_from",
                         "expected IP addresses, each as it is or with the "
                         "number of bits that count, such as 10.1.0.0/16");
    return rc;
}

static int check_names(struct conf *c, struct conf_sink *sink)
{
    int rc = 0;

    if (c->auth_dbname && conf_is_console_db(slice_str(c->auth_dbname)))
        rc = mistake(c, sink, "auth_dbname", "that is the console's name");
    if (rc == 0 && c->listen_addr.n == 0 && !c->unix_socket_dir)
        rc = mistake(c, sink, "listen_addr",
                     "nowhere to listen; set it or unix_socket_dir");
    return rc;
}

/* What does not go with the transport of a line; NULL: nothing. */
static const char *find_contradiction(const struct conf_db *db)
{
    bool is_tcp = db->transport == CONF_TRANSPORT_TCP;
    if (db->transport < 0)
        return NULL;
    if (is_tcp && db->sslmode > CONF_SSL_PREFER)
        return "transport = tcp is without TLS: say transport = tls, or leave "
               "it to sslmode";
    if (is_tcp)
        return NULL;
    if (db->sslmode >= 0 && db->sslmode < CONF_SSL_REQUIRE)
        return "transport = tls and quic need sslmode = require, verify-ca or "
               "verify-full";
    if (db->transport == CONF_TRANSPORT_QUIC && db->mptcp > CONF_MPTCP_OFF)
        return "transport = quic goes over UDP: mptcp is for the others";
    for (int i = 0; i < db->n_hosts; i++)
        if (!db->hosts[i].host || strchr("/@", db->hosts[i].host[0]))
            return "transport = tls and quic need host = a name or an address";
    return NULL;
}

static int check_db(struct conf *c, const struct conf_db *db,
                    struct conf_sink *sink)
{
    const char *why = find_contradiction(db);
    struct err e;

    if (why) {
        err_set(&e, ERR_CONF, "%s: [databases] %s: %s", db->place, db->name,
                why);
        return conf_sink_add(sink, &e);
    }
    if (db->sslnegotiation == CONF_SSLNEG_DIRECT &&
        conf_server_sslmode(c, db) < CONF_SSL_REQUIRE) {
        err_set(&e, ERR_CONF,
                "%s: [databases] %s: sslnegotiation = direct needs sslmode = "
                "require, verify-ca or verify-full",
                db->place, db->name);
        return conf_sink_add(sink, &e);
    }
    if (!db->sslcert != !db->sslkey) {
        err_set(&e, ERR_CONF,
                "%s: [databases] %s: sslcert and sslkey go together", db->place,
                db->name);
        return conf_sink_add(sink, &e);
    }
    return 0;
}

static int check_dbs(struct conf *c, struct conf_sink *sink)
{
    const struct conf_db *fallback = conf_fallback_db(c);
    int rc = fallback ? check_db(c, fallback, sink) : 0;

    for (int i = 0; rc == 0 && i < conf_db_count(c); i++)
        rc = check_db(c, conf_db_at(c, i), sink);
    return rc;
}

int conf_verify(struct conf *c, struct conf_sink *sink)
{
    static int (*const checks[])(struct conf *, struct conf_sink *) = {
        check_words, check_tls, check_names, check_proxies, check_dbs,
    };

    for (size_t i = 0; i < ARRAY_SIZE(checks); i++) {
        int rc = checks[i](c, sink);

        if (rc < 0)
            return rc;
    }
    return 0;
}

/* What has no effect yet */

static size_t add_name(char *buf, size_t cap, size_t at, const char *name,
                       const char *where)
{
    int n =
        snprintf(buf + at, cap - at, "%s%s%s", at > 0 ? ", " : "", name, where);

    return MIN(at + (size_t)n, cap - 1);
}

static bool differs(const struct conf *c, int i)
{
    const char *value = c->texts->value[i];
    const char *deflt = option_table.rows[i].deflt;

    return strcmp(value ? value : "", deflt ? deflt : "") != 0;
}

void conf_warn_later(struct conf *c)
{
    char names[1024];
    size_t at = 0;

    for (int i = 0; i < option_table.n; i++)
        if ((option_table.rows[i].flags & OPT_LATER) && c->texts->place[i] &&
            differs(c, i))
            at = add_name(names, sizeof(names), at, option_table.rows[i].name,
                          "");
    for (int i = 0; i < db_key_table.n; i++)
        if (c->sections->later_keys & (1UL << i))
            at = add_name(names, sizeof(names), at, db_key_table.rows[i].name,
                          " (in [databases])");
    if (at > 0)
        conf_warn(c,
                  strpool_printf(&c->texts->pool,
                                 "accepted but not in force yet: %s", names));
}

/* Multipath TCP on Unix sockets */

static bool is_unix_only(const struct conf_db *db)
{
    for (int i = 0; i < db->n_hosts; i++) {
        const char *host = db->hosts[i].host;

        if (host && host[0] != '/' && host[0] != '@')
            return false;
    }
    return true;
}

static size_t add_mptcp_db(char *buf, size_t cap, size_t at,
                           const struct conf_db *db)
{
    if (!db || db->mptcp <= CONF_MPTCP_OFF || !is_unix_only(db))
        return at;
    return add_name(buf, cap, at, db->name, " (in [databases])");
}

void conf_warn_mptcp(struct conf *c)
{
    char names[1024];
    size_t at = 0;

    if (c->listen_mptcp && c->listen_addr.n == 0)
        at = add_name(names, sizeof(names), at, "listen_mptcp",
                      " without listen_addr");
    at = add_mptcp_db(names, sizeof(names), at, conf_fallback_db(c));
    for (int i = 0; i < conf_db_count(c); i++)
        at = add_mptcp_db(names, sizeof(names), at, conf_db_at(c, i));
    if (at > 0)
        conf_warn(c, strpool_printf(&c->texts->pool,
                                    "Multipath TCP has no effect on Unix "
                                    "sockets: %s",
                                    names));
}
