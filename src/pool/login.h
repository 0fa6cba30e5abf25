/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A login while it goes on: what client_login.c (start-up, admission) and
 * client_auth.c (who it is) share. Belongs to the client's worker. */
#ifndef POOL_LOGIN_H
#define POOL_LOGIN_H

#include "auth/auth_client.h"
#include "pool/impl.h"

enum login_step {
    STEP_PROXY,   /* a load balancer's header */
    STEP_STARTUP, /* the first packets */
    STEP_TLS,     /* shaking hands */
    STEP_QUERY,   /* auth_query waits or runs */
    STEP_PASSWORD,
    STEP_WORK,    /* a helper thread is at it: auth_work.c */
    STEP_WELCOME, /* waits for the settings of a server */
};

struct setting {
    struct setting *next;
    struct slice name, value; /* behind the struct */
};

struct hba_rule;

struct client_login {
    struct list node; /* in shard.logins, the oldest first */
    struct client *client;
    struct host_count *host; /* limits.c; NULL: not counted */
    enum login_step step;
    bool ssl_done, gss_done;
    bool is_console;
    bool sent_negotiation;
    struct auth_client *auth;
    struct setting *settings;
    struct setting **settings_end;
    int n_settings;
    size_t n_received; /* bytes, for login_max_bytes */
    bool has_server;   /* replication: its connection is being made */
    char *user, *database;
    struct auth_secret secret; /* of auth_query */
    bool secret_found, secret_cached;
    bool query_failed, row_seen;
    enum auth_method method;
    /* With auth_type = hba, and what keeps it alive over a reload. */
    const struct hba_rule *rule;
    struct conf *rule_conf;
};

static inline struct slice user_of(const struct client *c)
{
    return slice_str(c->login->user);
}

/* The StartupMessage was taken: finds the method and begins with it. */
void client_auth_begin(struct client *c);

/* A password or SASL message; returns its size, 0 when it is not all there. */
size_t client_auth_message(struct client *c, struct slice in);

/* A helper thread is done. name is NULL when e says why there is none. */
void client_auth_hashed(struct client *c);
void client_auth_answered(struct client *c, int rc, const struct err *e);
void client_auth_peer(struct client *c, const char *name, const struct err *e);

/* Who it is has been proven. */
void client_login_authenticated(struct client *c);

#endif
