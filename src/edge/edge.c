/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "edge/edge.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "base/log.h"
#include "edge/tunnel.h"
#include "net/listener.h"

enum { LISTENERS_MAX = 2, BACKLOG = 1024, UNIX_MODE = 0700 };

struct edge {
    struct loop *loop;
    struct upstream *up;
    struct tunnels tunnels;
    struct listener *listener[LISTENERS_MAX];
    int n_listeners;
};

struct places {
    struct addr at[LISTENERS_MAX];
    bool is_optional[LISTENERS_MAX];
    int n;
};

static int refuse_place(const char *text, struct err *e)
{
    return err_set(e, ERR_CONF,
                   "--listen \"%.200s\": a folder, a port, or address:port",
                   text);
}

static int port_place(const char *text, int64_t port, struct places *out,
                      struct err *e)
{
    if (port < 1 || port > 65535)
        return refuse_place(text, e);
    must(addr_parse_ip(slice_str("127.0.0.1"), (int)port, &out->at[0]));
    must(addr_parse_ip(slice_str("::1"), (int)port, &out->at[1]));
    out->is_optional[1] = true;
    out->n = 2;
    return 0;
}

static int tcp_place(const char *text, struct places *out, struct err *e)
{
    const char *colon = strrchr(text, ':');
    int64_t port;
    out->n = 1;
    if (!colon || !slice_to_i64(slice_str(colon + 1), &port) || port < 1 ||
        port > 65535)
        return refuse_place(text, e);
    struct slice host = slice_of(text, (size_t)(colon - text));
    if (slice_is(host, "localhost"))
        return port_place(text, port, out, e);
    if (!addr_parse_ip(host, (int)port, &out->at[0]))
        return refuse_place(text, e);
    return 0;
}

static int find_places(const struct edge_options *o, struct places *out,
                       struct err *e)
{
    struct stat st;
    int64_t port;
    *out = (struct places){.n = 1};
    if (slice_to_i64(slice_str(o->listen), &port))
        return port_place(o->listen, port, out, e);
    if (strchr(o->listen, ':') && o->listen[0] != '/')
        return tcp_place(o->listen, out, e);
    if (o->listen[0] != '@' && (stat(o->listen, &st) || !S_ISDIR(st.st_mode)))
        return err_set(e, ERR_CONF, "--listen \"%.200s\" is not a folder",
                       o->listen);
    return addr_unix(slice_str(o->listen), o->port, &out->at[0], e);
}

static void on_accept(void *arg, int fd, const struct addr *peer)
{
    struct edge *d = arg;
    tunnel_accept(&d->tunnels, fd, addr_is_unix(peer));
}

static int open_listeners(struct edge *d, const struct places *places,
                          bool listen_mptcp, struct err *e)
{
    struct listener_options o = {
        .backlog = BACKLOG, .unix_mode = UNIX_MODE, .mptcp = listen_mptcp};
    if (listen_mptcp && addr_is_unix(&places->at[0]))
        log_warning("edge: --listen_mptcp does nothing on a Unix socket");
    for (int i = 0; i < places->n; i++) {
        struct listener *l;
        int rc = listener_open(&l, &places->at[i], &o, e);
        if (rc && places->is_optional[i])
            continue;
        if (rc)
            return rc;
        d->listener[d->n_listeners++] = l;
        rc = listener_start(l, d->loop, on_accept, d, e);
        if (rc)
            return rc;
    }
    return 0;
}

int edge_open(struct edge **out, struct loop *loop,
              const struct edge_options *o, struct err *e)
{
    struct edge *d = mem_new(sizeof *d);
    struct places places;
    d->loop = loop;
    tunnels_init(&d->tunnels, loop, NULL);
    int rc = find_places(o, &places, e);
    if (rc == 0)
        rc = upstream_new(&d->up, loop, &o->up, e);
    d->tunnels.up = d->up;
    if (rc == 0)
        rc = open_listeners(d, &places, o->listen_mptcp, e);
    if (rc) {
        edge_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void edge_log(const struct edge *d)
{
    char where[ADDR_TEXT_MAX];
    for (int i = 0; i < d->n_listeners; i++) {
        addr_text(listener_addr(d->listener[i]), where, sizeof where);
        log_info("edge: listening on %s for %s", where, d->up->text);
    }
}

void edge_close(struct edge *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_listeners; i++)
        listener_close(d->listener[i]);
    tunnels_close(&d->tunnels);
    upstream_free(d->up);
    free(d);
}
