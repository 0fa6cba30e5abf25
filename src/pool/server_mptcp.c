/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Multipath TCP to servers: what mptcp= of the database line asks for, and the
 * subflows of mptcp_subflows.
 *
 * A connection that fell back is plain TCP from its first packet on, so that is
 * known as soon as it is connected. Subflows are opened once the login has
 * shown that data goes both ways; the login waits until they are answered,
 * since a transfer that begins earlier is queued on the first one. How many
 * came of it, and whether they last, is watched (net/mptcp_own.h).
 */
#include "base/log.h"
#include "net/mptcp.h"
#include "pool/impl.h"
#include "pool/targets.h"

enum { COUNT_AFTER_US = 2 * 1000 * 1000 };

static enum conf_mptcp wanted(const struct server *s)
{
    const struct conf_db *db = s->pool->cdb;
    if (!db || db->mptcp < 0 || db->transport == CONF_TRANSPORT_QUIC ||
        addr_is_unix(&s->at))
        return CONF_MPTCP_OFF;
    return (enum conf_mptcp)db->mptcp;
}

bool server_wants_mptcp(const struct server *s)
{
    return wanted(s) != CONF_MPTCP_OFF;
}

/* Which side it is that has none. */
static int explain(const struct server *s, enum mptcp_use use, struct err *e)
{
    char at[ADDR_TEXT_MAX];
    struct err ours;
    addr_text(&s->at, at, sizeof at);
    if (use == MPTCP_UNUSED && mptcp_check(&ours))
        return err_set(e, ERR_CONNECT, "no Multipath TCP to %s: %s", at,
                       ours.text);
    return err_set(e, ERR_CONNECT,
                   "no Multipath TCP to %s: the server answers with plain TCP; "
                   "it does not listen with MPTCP, or something on the way "
                   "removes the option",
                   at);
}

static void note_use(const struct server *s, enum mptcp_use use)
{
    struct targets *targets = s->pool->shard->shared->targets;
    char at[ADDR_TEXT_MAX];
    struct err e;
    if (!targets_note(targets, &s->at, TARGET_MPTCP, (int)use))
        return;
    addr_text(&s->at, at, sizeof at);
    if (use == MPTCP_USED) {
        log_info("Multipath TCP to %s", at);
        return;
    }
    (void)explain(s, use, &e); /* the text is what counts */
    log_warning("%s; going on with TCP", e.text);
}

int server_check_mptcp(struct server *s, struct err *e)
{
    enum conf_mptcp want = wanted(s);
    if (want == CONF_MPTCP_OFF)
        return 0;
    enum mptcp_use use = mptcp_use_of(stream_fd(s->stream));
    s->uses_mptcp = use == MPTCP_USED;
    s->pool->shard->tally.mptcp_servers += s->uses_mptcp;
    s->pool->shard->tally.mptcp_fallbacks += !s->uses_mptcp;
    if (want == CONF_MPTCP_REQUIRE && use != MPTCP_USED) {
        (void)explain(s, use, e);
        return err_wrap(e, "mptcp = require");
    }
    note_use(s, use);
    return 0;
}

/* ---------------------------------------------------------------- subflows */

void shard_open_path_manager(struct shard *sh)
{
    struct err e;
    int rc = 0;
    if (sh->conf->mptcp_subflows == 0) {
        mptcp_pm_free(sh->path_manager);
        sh->path_manager = NULL;
        return;
    }
    if (!sh->path_manager)
        rc = mptcp_pm_new(&sh->path_manager, &e);
    if (rc == 0 && sh->index == 0 && sh->conf->listen_mptcp)
        rc = mptcp_pm_let_peers_join(sh->path_manager, &e);
    if (rc && sh->index == 0) /* the others would say the same */
        log_error("mptcp_subflows = %d: %s", sh->conf->mptcp_subflows, e.text);
}

static void note_subflows(const struct server *s, int n, const char *why)
{
    struct shard *sh = s->pool->shard;
    char at[ADDR_TEXT_MAX];
    if (!targets_note(sh->shared->targets, &s->at, TARGET_EXTRA_SUBFLOWS, n))
        return;
    addr_text(&s->at, at, sizeof at);
    if (why)
        log_warning("%d of %d extra subflows to %s: %s", n,
                    sh->conf->mptcp_subflows, at, why);
    else
        log_info("%d extra subflows to %s", n, at);
}

bool server_add_subflows(struct server *s)
{
    struct shard *sh = s->pool->shard;
    struct err e;
    if (!sh->path_manager || !s->uses_mptcp)
        return false;
    if (mptcp_own_open(&s->own_subflows, sh->path_manager, stream_fd(s->stream),
                       sh->conf->mptcp_subflows, shard_now(sh), &e))
        return true;
    note_subflows(s, 0, e.text);
    return false;
}

bool server_has_subflows(const struct server *s)
{
    return mptcp_is_settled(stream_fd(s->stream));
}

void server_watch_subflows(struct server *s)
{
    struct shard *sh = s->pool->shard;
    struct mptcp_own *own = &s->own_subflows;
    enum mptcp_own_news news = mptcp_own_look(
        own, sh->path_manager, stream_fd(s->stream), shard_now(sh));
    if (news == MPTCP_OWN_FELL_BACK)
        note_use(s, MPTCP_FELL_BACK);
    else if (news == MPTCP_OWN_CHANGED)
        note_subflows(s, own->n,
                      own->n < own->wanted ? mptcp_own_why(own) : NULL);
}

/* ------------------------------------------------------------------- counts */

static int count_subflows(const struct stream *st)
{
    struct mptcp_conn conn;
    return st && mptcp_read(stream_fd(st), &conn) ? 1 + conn.extra_subflows : 0;
}

static void count_servers(const struct pool *p, struct shard_mptcp *out)
{
    for (int i = 0; i < SERVER_CLOSED; i++)
        for (struct list *n = p->servers[i].next; n != &p->servers[i];
             n = n->next) {
            const struct server *s = list_entry(n, struct server, node);
            int flows = s->uses_mptcp ? count_subflows(s->stream) : 0;
            out->servers += flows > 0;
            out->server_subflows += flows;
        }
}

void shard_count_mptcp(struct shard *sh, struct shard_mptcp *out)
{
    *out = (struct shard_mptcp){0};
    list_for(n, &sh->pools)
        count_servers(list_entry(n, struct pool, node), out);
    if (!sh->conf->listen_mptcp)
        return;
    list_for(n, &sh->clients)
    {
        const struct client *c = list_entry(n, struct client, node_all);
        int flows = c->uses_mptcp ? count_subflows(c->stream) : 0;
        out->clients += flows > 0;
        out->client_subflows += flows;
    }
}
