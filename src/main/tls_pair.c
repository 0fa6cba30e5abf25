/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/tls_pair.h"

#include "net/quic.h"

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

static int new_server_ctx(struct tls_ctx **out, const struct conf *c,
                          const struct conf_db *db, struct err *e)
{
    struct tls_params p = {
        .prefix = "server_tls",
        .mode = (enum tls_mode)conf_server_sslmode(c, db),
        .key_file = conf_server_key_file(c, db),
        .cert_file = conf_server_cert_file(c, db),
        .ca_file = conf_server_ca_file(c, db),
        .protocols = c->server_tls_protocols,
        .ciphers = c->server_tls_ciphers,
        .tls13_ciphers = c->server_tls13_ciphers,
    };
    *out = NULL;
    if (p.mode == TLS_MODE_DISABLE)
        return 0;
    return tls_ctx_new_client(out, &p, e);
}

static int check_quic(const struct conf *c, const struct conf_db *db,
                      struct err *e)
{
    struct quic_tls *tls;
    struct quic_tls_params p = {
        .prefix = "server_tls",
        .ca_file = conf_server_ca_file(c, db),
        .cert_file = conf_server_cert_file(c, db),
        .key_file = conf_server_key_file(c, db),
    };
    int rc = quic_tls_new_client(&tls, &p, e);
    if (rc == 0)
        quic_tls_unref(tls);
    return rc;
}

/* A database whose line has TLS options of its own makes its context when it is
 * first needed (pool_server_tls()); a mistake in it is found here. */
static int check_databases(const struct conf *c, struct err *e)
{
    for (int i = -1; i < conf_db_count(c); i++) {
        const struct conf_db *db =
            i < 0 ? conf_fallback_db(c) : conf_db_at(c, i);
        struct tls_ctx *ctx = NULL;
        if (!db)
            continue;
        if (db->transport == CONF_TRANSPORT_QUIC
                ? check_quic(c, db, e)
                : new_server_ctx(&ctx, c, db, e))
            return err_wrap(e, "%s: database \"%s\"", db->place, db->name);
        tls_ctx_unref(ctx);
    }
    return 0;
}

static int load_server(struct tls_ctx **out, const struct conf *c,
                       struct err *e)
{
    int rc = new_server_ctx(out, c, NULL, e);
    return rc ? rc : check_databases(c, e);
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
