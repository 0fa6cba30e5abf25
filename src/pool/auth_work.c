/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/auth_work.h"

#include <stdlib.h>

#include "auth/auth_server.h"
#include "auth/hba.h"
#include "auth/ldap_options.h"
#include "base/log.h"
#include "loop/thrpool.h"
#include "pool/external.h"
#include "pool/login.h"

struct auth_job {
    struct thrpool_job job;
    struct shard *shard;
    uint64_t id;              /* of the client, or of the server */
    struct auth_client *auth; /* of a hash: the dialogue, else NULL */
    struct auth_server *to;   /* the same towards a server */

    char *user, *password, *service;
    char host[ADDR_TEXT_MAX];
    struct ldap_options ldap;
    uid_t uid;

    /* the answer */
    int rc;
    struct err err;
    char name[EXTERNAL_NAME_MAX];
};

static void free_job(struct auth_job *w)
{
    auth_client_free(w->auth);
    auth_server_free(w->to);
    if (w->password)
        mem_wipe(w->password, strlen(w->password));
    free(w->user);
    free(w->password);
    free(w->service);
    ldap_options_fini(&w->ldap);
    free(w);
}

static void drop(struct thrpool_job *j)
{
    free_job(container_of(j, struct auth_job, job));
}

/* The client that the job was for, if it still waits. */
static struct client *client_of(struct auth_job *w)
{
    struct client *c = shard_find_client(w->shard, w->id);
    return c && c->login && c->login->step == STEP_WORK ? c : NULL;
}

static struct auth_job *new_job(struct client *c)
{
    struct auth_job *w = mem_new(sizeof *w);
    w->shard = c->shard;
    w->id = c->id;
    w->job.drop = drop;
    return w;
}

static void start(struct client *c, struct auth_job *w, struct thrpool *pool,
                  void (*run)(struct thrpool_job *j),
                  void (*done)(struct thrpool_job *j))
{
    w->job.run = run;
    w->job.done = done;
    c->login->step = STEP_WORK;
    if (!thrpool_start(pool, c->shard->loop, &w->job))
        return;
    free_job(w);
    client_close(c, "53300", "too many logins are being checked at once");
}

/* --- hashes ------------------------------------------------------------ */

static void hash_run(struct thrpool_job *j)
{
    auth_client_work(container_of(j, struct auth_job, job)->auth);
}

static void hash_done(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct client *c = client_of(w);
    if (c) {
        c->login->auth = w->auth;
        w->auth = NULL;
        client_auth_hashed(c);
    }
    free_job(w);
}

/* Those of one address take turns with those of others. */
static uint64_t party_of(const struct client *c)
{
    struct addr peer, self;
    const uint8_t *ip;
    uint64_t h = 0;
    if (stream_ends(c->stream, &peer, &self))
        return 0;
    size_t n = addr_ip(&peer, &ip);
    for (size_t i = 0; i < n; i++)
        h = (h ^ ip[i]) * 0x100000001b3u;
    return h;
}

void auth_work_hash(struct client *c)
{
    struct auth_job *w = new_job(c);
    w->job.party = party_of(c);
    w->auth = c->login->auth;
    c->login->auth = NULL;
    start(c, w, c->shard->shared->hashing, hash_run, hash_done);
}

static void server_run(struct thrpool_job *j)
{
    auth_server_work(container_of(j, struct auth_job, job)->to);
}

/* The server that the job was for, if it still waits. */
static struct server *server_of(const struct auth_job *w)
{
    list_for(n, &w->shard->pools)
    {
        struct pool *p = list_entry(n, struct pool, node);
        list_for(m, &p->servers[SERVER_LOGIN])
        {
            struct server *s = list_entry(m, struct server, node);
            if (s->id == w->id && server_login_waits_for_hash(s))
                return s;
        }
    }
    return NULL;
}

static void server_done(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct server *s = server_of(w);
    struct auth_server *to = w->to;
    if (s) {
        w->to = NULL;
        server_login_hashed(s, to);
    }
    free_job(w);
}

void auth_work_hash_server(struct server *s, struct auth_server *auth)
{
    struct shard *sh = s->pool->shard;
    struct auth_job *w = mem_new(sizeof *w);
    *w = (struct auth_job){.shard = sh, .id = s->id, .to = auth};
    w->job.party = (uintptr_t)s->pool->rec;
    w->job.run = server_run;
    w->job.done = server_done;
    w->job.drop = drop;
    if (!thrpool_start(sh->shared->hashing_servers, sh->loop, &w->job))
        return;
    free_job(w);
    server_login_fail(s, "53300", "too many logins are being hashed at once");
}

/* --- PAM, LDAP --------------------------------------------------------- */

static struct external_question question_of(const struct auth_job *w)
{
    return (struct external_question){w->user, w->password, w->host,
                                      w->service};
}

static void pam_run(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct external_question q = question_of(w);
    w->rc = external_ask_pam(&q, &w->err);
}

static void ldap_run(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct external_question q = question_of(w);
    w->rc = external_ask_ldap(&q, &w->ldap, &w->err);
}

static void ask_done(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct client *c = client_of(w);
    if (c)
        client_auth_answered(c, w->rc, &w->err);
    free_job(w);
}

static int read_ldap_options(struct client *c, struct auth_job *w,
                             struct err *e)
{
    const struct hba_rule *rule = c->login->rule;
    const char *words = c->shard->conf->auth_ldap_options;
    if (rule)
        return ldap_options_parse(rule->options, &w->ldap, e);
    if (!words || !*words)
        return err_set(e, ERR_CONF, "auth_ldap_options is null");
    return ldap_options_parse_words(words, &w->ldap, e);
}

/* "pamservice=name" of an HBA line; PgBouncer's own name else. */
static char *pam_service_of(const struct client *c)
{
    static const char option[] = "pamservice=";
    const struct hba_rule *rule = c->login->rule;
    const char *at =
        rule && rule->options ? strstr(rule->options, option) : NULL;
    if (!at || (at > rule->options && at[-1] != '\n'))
        return mem_strdup("pgbouncer");
    at += sizeof option - 1;
    return mem_strndup(at, strcspn(at, "\n"));
}

static void name_host(const struct client *c, char host[ADDR_TEXT_MAX])
{
    struct addr a, self;
    if (stream_ends(c->stream, &a, &self) || addr_is_unix(&a))
        slice_copy(slice_str("localhost"), host, ADDR_TEXT_MAX);
    else
        addr_host_text(&a, host, ADDR_TEXT_MAX);
}

void auth_work_ask(struct client *c)
{
    struct auth_job *w = new_job(c);
    struct slice password = auth_client_password(c->login->auth);
    bool is_ldap = c->login->method == AUTH_METHOD_LDAP;
    struct err e;
    char name[CLIENT_NAME_MAX];
    w->user = mem_strdup(c->login->user);
    w->password = mem_strndup(password.p, password.n);
    w->service = pam_service_of(c);
    name_host(c, w->host);
    if (is_ldap && read_ldap_options(c, w, &e)) {
        log_error("%s %s", client_name(c, name), e.text);
        free_job(w);
        client_close(c, "08P01", "bouncer config error");
        return;
    }
    start(c, w, c->shard->shared->asking, is_ldap ? ldap_run : pam_run,
          ask_done);
}

/* --- peer -------------------------------------------------------------- */

static void peer_run(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    w->rc = external_user_name(w->uid, w->name, &w->err);
}

static void peer_done(struct thrpool_job *j)
{
    struct auth_job *w = container_of(j, struct auth_job, job);
    struct client *c = client_of(w);
    if (c)
        client_auth_peer(c, w->rc ? NULL : w->name, &w->err);
    free_job(w);
}

void auth_work_name_peer(struct client *c)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    struct err e;
    if (c->stream->kind != STREAM_UNIX ||
        getsockopt(stream_fd(c->stream), SOL_SOCKET, SO_PEERCRED, &peer,
                   &len)) {
        err_set(&e, ERR_AUTHZ, "not a Unix socket");
        client_auth_peer(c, NULL, &e);
        return;
    }
    struct auth_job *w = new_job(c);
    w->uid = peer.uid;
    start(c, w, c->shard->shared->asking, peer_run, peer_done);
}
