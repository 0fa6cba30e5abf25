/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/listeners.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "main/addresses.h"
#include "main/notify.h"
#include "net/listener.h"
#include "net/mptcp.h"
#include "pool/shared.h"

enum {
    SHARED_MAX = 64 + SHARDS_MAX, /* Unix and handed-over sockets */
};

struct listeners {
    int n_workers, n_tcp;
    /* [worker * ADDRESSES_MAX + address]: touched by that worker only, once
     * they are started. NULL: closed. */
    struct listener **tcp;
    struct listener *dealt[SHARED_MAX];
    int n_dealt;
    struct addr where[ADDRESSES_MAX]; /* of the TCP sockets, for the log */
    struct team *team;
    int next_worker;
    bool is_activated; /* a service manager has opened them */
};

/* --- opening ----------------------------------------------------------------
 */

static struct listener **tcp_slot(const struct listeners *ls, int worker,
                                  int address)
{
    return &ls->tcp[worker * ADDRESSES_MAX + address];
}

/* The workers' sockets share the port, which would let any process of this
 * account share it too: so look first whether somebody has it. */
static int check_alone(const struct addr *at, const struct conf *c,
                       struct err *e)
{
    struct listener_options o = {.only_bind = true};
    struct listener *probe;
    int rc = listener_open(&probe, at, &o, e);
    if (rc == 0)
        listener_close(probe);
    return rc;
}

static int open_tcp(struct listeners *ls, const struct addr *at,
                    const struct conf *c, struct err *e)
{
    struct listener_options o = {
        .backlog = c->listen_backlog,
        .reuseport = ls->n_workers > 1 || c->so_reuseport,
        .defer_accept_s = c->tcp_defer_accept,
        .mptcp = c->listen_mptcp,
    };
    int rc = 0;
    if (ls->n_workers > 1 && !c->so_reuseport)
        rc = check_alone(at, c, e);
    for (int i = 0; i < ls->n_workers && rc == 0; i++)
        rc = listener_open(tcp_slot(ls, i, ls->n_tcp), at, &o, e);
    if (rc == 0)
        ls->where[ls->n_tcp] = *at;
    for (int i = 0; i < ls->n_workers && rc; i++) {
        struct listener **l = tcp_slot(ls, i, ls->n_tcp);
        if (*l)
            listener_close(*l);
        *l = NULL;
    }
    ls->n_tcp += rc == 0;
    return rc;
}

/* ------------------------------------------------------------- an upgrade */

static struct given_socket *find_given(struct given *g, const struct addr *at)
{
    struct addr a;
    for (int i = 0; g && i < g->n; i++) {
        struct given_socket *k = &g->at[i];
        if (k->fd >= 0 && k->kind == GIVEN_STREAM && !addr_of_self(k->fd, &a) &&
            addr_eq(&a, at))
            return k;
    }
    return NULL;
}

static int take_given(struct listener **out, struct given_socket *k,
                      const struct conf *c, struct err *e)
{
    int rc = listener_adopt(out, k->fd, e);
    if (rc)
        return rc;
    k->fd = -1;
    listener_keep_file(*out); /* until we serve */
    listener_set_backlog(*out, c->listen_backlog);
    return 0;
}

static int count_given(struct given *g, const struct addr *at)
{
    struct addr a;
    int n = 0;
    for (int i = 0; g && i < g->n; i++)
        n += g->at[i].fd >= 0 && g->at[i].kind == GIVEN_STREAM &&
             !addr_of_self(g->at[i].fd, &a) && addr_eq(&a, at);
    return n;
}

/* One for each worker; where there are more or fewer, the kernel spreads
 * connections over sockets that must all be served: so the main thread deals
 * out. */
static int take_tcp(struct listeners *ls, struct given *g, int n,
                    const struct addr *at, const struct conf *c, struct err *e)
{
    int rc = 0;
    bool fits = n == ls->n_workers;
    if (!fits && ls->n_dealt + n > SHARED_MAX)
        return err_set(e, ERR_CONF,
                       "upgrade: more than %d sockets to take over",
                       SHARED_MAX);
    for (int i = 0; i < n && rc == 0; i++) {
        struct listener **to =
            fits ? tcp_slot(ls, i, ls->n_tcp) : &ls->dealt[ls->n_dealt];
        rc = take_given(to, find_given(g, at), c, e);
        ls->n_dealt += rc == 0 && !fits;
    }
    if (fits)
        ls->where[ls->n_tcp++] = *at;
    return rc;
}

static int take_all(struct listeners *ls, struct given *g, const struct conf *c,
                    struct err *e)
{
    ls->is_activated = true;
    for (int i = 0; i < g->n; i++) {
        if (g->at[i].kind != GIVEN_STREAM)
            continue;
        if (ls->n_dealt == SHARED_MAX)
            return err_set(e, ERR_CONF, "upgrade: too many sockets");
        int rc = take_given(&ls->dealt[ls->n_dealt], &g->at[i], c, e);
        if (rc)
            return rc;
        ls->n_dealt++;
    }
    return 0;
}

static void give_one(struct given *out, const struct listener *l, bool is_file)
{
    int fd = fcntl(listener_fd(l), F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || out->n == GIVEN_MAX)
        return;
    out->at[out->n++] = (struct given_socket){
        .fd = fd, .kind = GIVEN_STREAM, .is_file = is_file};
}

void listeners_give(const struct listeners *ls, struct given *out)
{
    out->is_activated = ls->is_activated;
    for (int a = 0; a < ls->n_tcp; a++)
        for (int w = 0; w < ls->n_workers; w++)
            if (*tcp_slot(ls, w, a))
                give_one(out, *tcp_slot(ls, w, a), false);
    for (int i = 0; i < ls->n_dealt; i++)
        give_one(out, ls->dealt[i],
                 !ls->is_activated &&
                     addr_is_unix(listener_addr(ls->dealt[i])));
}

/* An address that is elsewhere for now, as of a pair of machines the one that
 * moves between them, does not keep the others from serving. */
static int open_all_tcp(struct listeners *ls, const struct conf *c,
                        struct given *given, struct err *e)
{
    struct addresses as;
    int rc =
        addresses_find(&as, "listen_addr", &c->listen_addr, c->listen_port, e);
    struct err missing = {0};
    for (int i = 0; i < as.n && rc == 0; i++) {
        int n = count_given(given, &as.at[i]);
        rc = n ? take_tcp(ls, given, n, &as.at[i], c, e)
               : open_tcp(ls, &as.at[i], c, e);
        if (rc && as.is_optional[i]) {
            log_warning("%s; going on without IPv6", e->text);
            rc = 0;
        } else if (rc == ERR_NOTFOUND) {
            log_warning("%s", e->text);
            missing = *e;
            rc = 0;
        }
    }
    if (rc == 0 && missing.text[0] && ls->n_tcp == 0) {
        *e = missing;
        rc = ERR_NOTFOUND;
    }
    return rc;
}

static int open_unix(struct listeners *ls, const struct conf *c, uid_t owner,
                     struct given *given, struct err *e)
{
    struct addr at;
    struct listener_options o = {
        .backlog = c->listen_backlog,
        .unix_mode = c->unix_socket_mode,
        .unix_group = c->unix_socket_group,
    };
    if (!c->unix_socket_dir || !*c->unix_socket_dir)
        return 0;
    int rc = addr_unix(slice_str(c->unix_socket_dir), c->listen_port, &at, e);
    struct given_socket *k = rc ? NULL : find_given(given, &at);
    if (k) {
        rc = take_given(&ls->dealt[0], k, c, e);
        ls->n_dealt = rc == 0;
        return rc;
    }
    if (rc == 0)
        rc = listener_open(&ls->dealt[0], &at, &o, e);
    if (rc)
        return rc;
    ls->n_dealt = 1;
    /* Whoever we become must be able to remove it at the end. */
    if (owner != (uid_t)-1 && at.un.sun_path[0] &&
        chown(at.un.sun_path, owner, (gid_t)-1))
        return err_set(e, ERR_CONF, "%s: cannot change its owner: %s",
                       at.un.sun_path, strerror(errno));
    return 0;
}

static void warn_without_mptcp(const struct listener *l)
{
    char where[ADDR_TEXT_MAX];
    if (addr_is_unix(listener_addr(l)) ||
        mptcp_use_of(listener_fd(l)) == MPTCP_USED)
        return;
    addr_text(listener_addr(l), where, sizeof where);
    log_warning("listen_mptcp has no effect on %s: the socket was handed over "
                "without it (systemd: SocketProtocol=mptcp)",
                where);
}

static int adopt(struct listeners *ls, const struct conf *c, int first, int n,
                 struct err *e)
{
    if (n > SHARED_MAX)
        return err_set(e, ERR_CONF, "%d sockets handed over; %d are too many",
                       n, SHARED_MAX + 1);
    for (int i = 0; i < n; i++) {
        int rc = listener_adopt(&ls->dealt[i], first + i, e);
        if (rc)
            return rc;
        listener_keep_file(ls->dealt[i]);
        if (c->listen_mptcp)
            warn_without_mptcp(ls->dealt[i]);
        ls->n_dealt++;
    }
    ls->is_activated = true;
    return 0;
}

int listeners_open(struct listeners **out, const struct conf *c, int n_workers,
                   uid_t owner, struct given *given, struct err *e)
{
    struct listeners *ls = mem_new(sizeof *ls);
    int first;
    int n_given = notify_take_sockets(&first);
    ls->n_workers = n_workers;
    ls->tcp = mem_new_array((size_t)n_workers * ADDRESSES_MAX, sizeof *ls->tcp);
    int rc;
    if (given && given->is_activated)
        rc = take_all(ls, given, c, e);
    else if (n_given)
        rc = adopt(ls, c, first, n_given, e);
    else
        rc = open_unix(ls, c, owner, given, e);
    if (rc == 0 && !ls->is_activated)
        rc = open_all_tcp(ls, c, given, e);
    if (rc == 0 && ls->n_tcp + ls->n_dealt == 0)
        rc = err_set(e, ERR_CONF,
                     "nowhere to listen: neither listen_addr nor "
                     "unix_socket_dir is set");
    if (rc) {
        listeners_free(ls);
        return rc;
    }
    *out = ls;
    return 0;
}

void listeners_log(const struct listeners *ls)
{
    char where[ADDR_TEXT_MAX];
    for (int i = 0; i < ls->n_tcp; i++) {
        addr_text(&ls->where[i], where, sizeof where);
        log_info("listening on %s", where);
    }
    for (int i = 0; i < ls->n_dealt; i++) {
        addr_text(listener_addr(ls->dealt[i]), where, sizeof where);
        log_info("listening on %s", where);
    }
}

/* --- accepting --------------------------------------------------------------
 */

static void on_accept(void *arg, int fd, const struct addr *peer)
{
    shard_accept(arg, fd, peer);
}

static void start_on(struct shard *sh, void *arg)
{
    struct listeners *ls = arg;
    for (int i = 0; i < ls->n_tcp; i++) {
        struct err e;
        struct listener *l = *tcp_slot(ls, shard_index(sh), i);
        if (l && listener_start(l, shard_loop(sh), on_accept, sh, &e))
            log_error("worker %d: %s", shard_index(sh), e.text);
    }
}

/* A client that the main thread accepted, on its way to a worker. */
struct parcel {
    int fd;
    struct addr peer;
};

static void open_parcel(struct shard *sh, void *arg)
{
    struct parcel *p = arg;
    shard_accept(sh, p->fd, &p->peer);
    free(p);
}

static void on_accept_to_deal(void *arg, int fd, const struct addr *peer)
{
    struct listeners *ls = arg;
    struct parcel *p = mem_new(sizeof *p);
    *p = (struct parcel){fd, *peer};
    team_run_on(ls->team, ls->next_worker, open_parcel, p);
    ls->next_worker = (ls->next_worker + 1) % ls->n_workers;
}

int listeners_start(struct listeners *ls, struct loop *loop, struct team *team,
                    struct err *e)
{
    ls->team = team;
    for (int i = 0; i < ls->n_workers; i++)
        team_run_on(team, i, start_on, ls);
    for (int i = 0; i < ls->n_dealt; i++) {
        int rc = listener_start(ls->dealt[i], loop, on_accept_to_deal, ls, e);
        if (rc)
            return rc;
    }
    return 0;
}

struct pause {
    struct listeners *ls;
    struct loop *loop;
    void (*done)(void *arg);
    void *arg;
};

static void pause_on(struct shard *sh, void *arg)
{
    struct pause *p = arg;
    for (int i = 0; i < p->ls->n_tcp; i++) {
        struct listener *l = *tcp_slot(p->ls, shard_index(sh), i);
        if (l)
            listener_stop(l);
    }
}

static void end_pause(void *arg)
{
    struct pause p = *(struct pause *)arg;
    free(arg);
    p.done(p.arg);
}

void listeners_pause(struct listeners *ls, struct loop *loop,
                     void (*done)(void *arg), void *arg)
{
    struct pause *p = mem_new(sizeof *p);
    *p = (struct pause){ls, loop, done, arg};
    for (int i = 0; i < ls->n_dealt; i++) {
        listener_stop(ls->dealt[i]);
        listener_keep_file(ls->dealt[i]);
    }
    team_gather(ls->team, loop, pause_on, end_pause, p);
}

void listeners_own_files(struct listeners *ls)
{
    for (int i = 0; i < ls->n_dealt; i++)
        if (!ls->is_activated)
            listener_own_file(ls->dealt[i]);
}

void listeners_go_on(struct listeners *ls, struct loop *loop)
{
    struct err e;
    listeners_own_files(ls);
    if (listeners_start(ls, loop, ls->team, &e))
        log_error("%s", e.text);
}

struct defer_accept {
    struct listeners *ls;
    int seconds;
};

static void set_defer_on(struct shard *sh, void *arg)
{
    struct defer_accept *d = arg;
    for (int i = 0; i < d->ls->n_tcp; i++) {
        struct listener *l = *tcp_slot(d->ls, shard_index(sh), i);
        if (l)
            listener_set_defer_accept(l, d->seconds);
    }
    free(d);
}

void listeners_set_defer_accept(struct listeners *ls, int seconds)
{
    for (int i = 0; i < ls->n_workers; i++) {
        struct defer_accept *d = mem_new(sizeof *d);
        *d = (struct defer_accept){ls, seconds};
        team_run_on(ls->team, i, set_defer_on, d);
    }
    for (int i = 0; i < ls->n_dealt; i++)
        listener_set_defer_accept(ls->dealt[i], seconds);
}

/* --- closing ----------------------------------------------------------------
 */

void listeners_close_on(struct listeners *ls, int worker)
{
    for (int i = 0; i < ls->n_tcp; i++) {
        struct listener **l = tcp_slot(ls, worker, i);
        if (*l)
            listener_close(*l);
        *l = NULL;
    }
}

static void close_on(struct shard *sh, void *arg)
{
    listeners_close_on(arg, shard_index(sh));
}

static void close_dealt_tcp(struct listeners *ls)
{
    int kept = 0;
    for (int i = 0; i < ls->n_dealt; i++) {
        if (addr_is_unix(listener_addr(ls->dealt[i])))
            ls->dealt[kept++] = ls->dealt[i];
        else
            listener_close(ls->dealt[i]);
    }
    ls->n_dealt = kept;
}

void listeners_close_tcp(struct listeners *ls)
{
    for (int i = 0; i < ls->n_workers; i++)
        team_run_on(ls->team, i, close_on, ls);
    close_dealt_tcp(ls);
}

void listeners_abandon_tcp(struct listeners *ls)
{
    for (int i = 0; i < ls->n_workers; i++)
        listeners_close_on(ls, i);
    close_dealt_tcp(ls);
}

void listeners_free(struct listeners *ls)
{
    if (!ls)
        return;
    for (int i = 0; i < ls->n_workers; i++)
        listeners_close_on(ls, i);
    for (int i = 0; i < ls->n_dealt; i++)
        listener_close(ls->dealt[i]);
    free(ls->tcp);
    free(ls);
}
