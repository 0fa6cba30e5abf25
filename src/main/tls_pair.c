/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/tls_pair.h"

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

static int load_server(struct tls_ctx **out, const struct conf *c,
                       struct err *e)
{
    *out = NULL;
    if (c->server_tls_sslmode == CONF_SSL_DISABLE)
        return 0;
    struct tls_params p = {
        .prefix = "server_tls",
        .mode = (enum tls_mode)c->server_tls_sslmode,
        .key_file = c->server_tls_key_file,
        .cert_file = c->server_tls_cert_file,
        .ca_file = c->server_tls_ca_file,
        .protocols = c->server_tls_protocols,
        .ciphers = c->server_tls_ciphers,
        .tls13_ciphers = c->server_tls13_ciphers,
    };
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
