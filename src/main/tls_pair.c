/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/tls_pair.h"

#include <string.h>

#include "base/log.h"

_Static_assert((int)TLS_MODE_VERIFY_FULL == (int)CONF_SSL_VERIFY_FULL,
               "tls_mode and conf_sslmode have the same order");

static int load_client(struct tls_ctx **out, const struct conf *c,
                       struct err *e)
{
    *out = NULL;
    if (c->client_tls_sslmode == CONF_SSL_DISABLE)
        return 0;
    struct tls_params p = {
        .prefix = "client_tls",
        .mode = (enum tls_mode)c->client_tls_sslmode,
        .key_file = c->client_tls_key_file,
        .cert_file = c->client_tls_cert_file,
        .ca_file = c->client_tls_ca_file,
        .protocols = c->client_tls_protocols,
        .ciphers = c->client_tls_ciphers,
        .tls13_ciphers = c->client_tls13_ciphers,
        .ecdhcurve = c->client_tls_ecdhcurve,
        .dheparams = c->client_tls_dheparams,
    };
    return tls_ctx_new_server(out, &p, e);
}

/* All server connections share one context, though a database may have TLS
 * settings of its own: it takes those of the strictest, so that no server goes
 * unchecked that should be checked. NULL: the global settings. */
static const struct conf_db *strictest(const struct conf *c)
{
    const struct conf_db *best = NULL;
    for (int i = -1; i < conf_db_count(c); i++) {
        const struct conf_db *db =
            i < 0 ? conf_fallback_db(c) : conf_db_at(c, i);
        if (db && conf_server_sslmode(c, db) > conf_server_sslmode(c, best))
            best = db;
    }
    return best;
}

static bool same_file(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

static bool suits(const struct conf *c, const struct conf_db *db,
                  const struct conf_db *best)
{
    enum conf_sslmode mode = conf_server_sslmode(c, db);
    if (mode < CONF_SSL_PREFER)
        return true; /* no TLS */
    enum conf_sslmode used = conf_server_sslmode(c, best);
    if (used >= CONF_SSL_VERIFY_CA &&
        (mode != used ||
         !same_file(conf_server_ca_file(c, db), conf_server_ca_file(c, best))))
        return false;
    return same_file(conf_server_cert_file(c, db),
                     conf_server_cert_file(c, best));
}

static void warn_of_others(const struct conf *c, const struct conf_db *best)
{
    for (int i = 0; i < conf_db_count(c); i++) {
        const struct conf_db *db = conf_db_at(c, i);
        if (!suits(c, db, best))
            log_warning("%s: database \"%s\": TLS settings that differ from "
                        "those of %s%s are not supported yet: it uses those",
                        db->place, db->name, best ? "database " : "server_tls",
                        best ? best->name : "");
    }
}

static int load_server(struct tls_ctx **out, const struct conf *c,
                       struct err *e)
{
    const struct conf_db *db = strictest(c);
    enum conf_sslmode mode = conf_server_sslmode(c, db);
    *out = NULL;
    if (mode == CONF_SSL_DISABLE)
        return 0;
    struct tls_params p = {
        .prefix = "server_tls",
        .mode = (enum tls_mode)mode,
        .key_file = conf_server_key_file(c, db),
        .cert_file = conf_server_cert_file(c, db),
        .ca_file = conf_server_ca_file(c, db),
        .protocols = c->server_tls_protocols,
        .ciphers = c->server_tls_ciphers,
        .tls13_ciphers = c->server_tls13_ciphers,
    };
    warn_of_others(c, db);
    return tls_ctx_new_client(out, &p, e);
}

int tls_pair_load(struct tls_pair *out, const struct conf *c, struct err *e)
{
    *out = (struct tls_pair){NULL, NULL};
    int rc = load_client(&out->client, c, e);
    if (rc == 0)
        rc = load_server(&out->server, c, e);
    if (rc)
        tls_pair_unref(out);
    return rc;
}

struct tls_pair tls_pair_ref(const struct tls_pair *p)
{
    return (struct tls_pair){
        .client = p->client ? tls_ctx_ref(p->client) : NULL,
        .server = p->server ? tls_ctx_ref(p->server) : NULL,
    };
}

void tls_pair_unref(struct tls_pair *p)
{
    tls_ctx_unref(p->client);
    tls_ctx_unref(p->server);
    *p = (struct tls_pair){NULL, NULL};
}
