/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW CLIENTS, SERVERS, SOCKETS, ACTIVE_SOCKETS and FDS. Each worker writes
 * its rows itself. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "admin/job.h"
#include "base/clock.h"
#include "net/addr.h"
#include "net/mptcp.h"
#include "net/quic.h"
#include "net/stream.h"

/* The number at the end of a Unix socket's path: a server's port, or the one
 * that the client connected to. */
static int unix_port(const struct addr *a)
{
    const char *path = a->un.sun_path;
    size_t n = a->len - MIN(a->len, offsetof(struct sockaddr_un, sun_path));
    size_t start;
    int64_t port;

    while (n > 0 && path[n - 1] == 0)
        n--;
    for (start = n; start > 0 && path[start - 1] != '.';)
        start--;
    if (start == 0 || !slice_to_i64(slice_of(path + start, n - start), &port))
        return 0;
    return port > 0 && port <= UINT16_MAX ? (int)port : 0;
}

struct end {
    char host[ADDR_TEXT_MAX];
    int port;
};

static void describe_end(const struct addr *a, struct end *out)
{
    struct addr x = *a;

    addr_unmap(&x);
    addr_host_text(&x, out->host, sizeof(out->host));
    out->port = addr_is_unix(&x) ? unix_port(&x) : addr_port(&x);
}

/* Of a Unix socket only one end has a name: both get its port. */
static void find_ends(const struct stream *s, struct end *remote,
                      struct end *local)
{
    struct addr peer, self;

    memset(remote, 0, sizeof(*remote));
    memset(local, 0, sizeof(*local));
    if (!s || stream_ends(s, &peer, &self))
        return;
    describe_end(&peer, remote);
    describe_end(&self, local);
    if (remote->port == 0)
        remote->port = local->port;
    if (local->port == 0)
        local->port = remote->port;
}

static void put_time(struct table *t, int64_t age_us)
{
    time_t when = (time_t)((clock_wall_us() - age_us) / 1000000);
    char text[64];
    struct tm tm;

    if (localtime_r(&when, &tm) &&
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S %Z", &tm))
        table_text(t, text);
    else
        table_null(t);
}

static void put_pointer(struct table *t, const void *p)
{
    char text[32] = "";

    if (p)
        snprintf(text, sizeof(text), "0x%" PRIxPTR, (uintptr_t)p);
    table_text(t, text);
}

static const char *or_else(const char *s, const char *other)
{
    return s && s[0] ? s : other;
}

/* PgBouncer's words. */
static const char *state_word(const struct conn_view *v)
{
    if (v->is_client && !v->link && !strcmp(v->state, "active"))
        return "idle";
    if (!v->is_client && !strcmp(v->state, "login"))
        return "new";
    return v->state;
}

/* In the tables of sockets they say which side it is, and an idle client is an
 * active one, as in PgBouncer. */
static const char *socket_state_word(const struct conn_view *v)
{
    static const char *const words[][3] = {
        {"idle", "cl_active", "sv_idle"},
        {"active", "cl_active", "sv_active"},
        {"waiting", "cl_waiting", "sv_waiting"},
        {"login", "cl_login", "sv_login"},
        {"active_cancel_req", "cl_active_cancel_req", "sv_active_cancel"},
        {"being_canceled", "cl_active", "sv_being_canceled"},
        {"used", "cl_active", "sv_used"},
        {"tested", "cl_active", "sv_tested"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (!strcmp(v->state, words[i][0]))
            return words[i][v->is_client ? 1 : 2];
    return v->state;
}

static void put_columns(struct job *j, const struct conn_view *v,
                        const char *state)
{
    struct table *t = &j->table;
    struct end remote, local;

    find_ends(v->stream, &remote, &local);
    table_text(t, v->is_client ? "C" : "S");
    table_text(t, or_else(v->user, "(nouser)"));
    table_text(t, or_else(v->database, "(nodb)"));
    table_text(t, or_else(v->replication, "none"));
    table_text(t, state);
    table_text(t, remote.host);
    table_int(t, remote.port);
    table_text(t, local.host);
    table_int(t, local.port);
    put_time(t, v->connect_age_us);
    put_time(t, v->request_age_us);
    table_int(t, v->wait_us / 1000000);
    table_int(t, v->wait_us % 1000000);
    table_int(t, v->close_needed);
    put_pointer(t, v->ptr);
    put_pointer(t, v->link);
    table_int(t, v->remote_pid);
    table_text(t, or_else(v->tls, ""));
    table_text(t, v->application_name);
    table_int(t, v->prepared_statements);
    table_int(t, (int64_t)v->id);
}

static const char *transport_word(const struct stream *s)
{
    static const char *const words[] = {
        [STREAM_UNIX] = "unix",
        [STREAM_TCP] = "tcp",
        [STREAM_TLS] = "tls",
        [STREAM_QUIC] = "quic",
    };

    if (s->kind != STREAM_UNIX && s->kind != STREAM_QUIC &&
        mptcp_use_of(stream_fd(s)) == MPTCP_USED)
        return "mptcp";
    return words[s->kind];
}

/* Behind PgBouncer's columns. The console's own client may have no stream. */
static void put_transport(struct table *t, const struct stream *s)
{
    uint64_t connection;
    int64_t stream;

    table_text(t, s ? transport_word(s) : "");
    if (s && quic_stream_ids(s, &connection, &stream)) {
        table_int(t, (int64_t)connection);
        table_int(t, stream);
    } else {
        table_null(t);
        table_null(t);
    }
}

static void put_connection(struct job *j, const struct conn_view *v)
{
    table_row(&j->table);
    put_columns(j, v, state_word(v));
    put_transport(&j->table, v->stream);
    table_row_end(&j->table);
}

/* Those that still log in are no sessions yet. */
static void on_client(void *arg, const struct conn_view *v)
{
    if (strcmp(v->state, "login") != 0)
        put_connection(arg, v);
}

static void on_server(void *arg, const struct conn_view *v)
{
    put_connection(arg, v);
}

static void each_client(struct shard *sh, struct job *j)
{
    shard_each_client(sh, on_client, j);
}

static void each_server(struct shard *sh, struct job *j)
{
    shard_each_server(sh, on_server, j);
}

void show_clients(struct job *j)
{
    job_gather(j, each_client, job_done);
}

void show_servers(struct job *j)
{
    job_gather(j, each_server, job_done);
}

/* ------------------------------------------------------------------ sockets */

/* Positions in PgBouncer's buffers have no counterpart: an idle connection has
 * no buffer here, and what could not be sent is all that is held. */
static void put_socket(struct job *j, const struct conn_view *v)
{
    enum { POSITIONS = 6 };
    struct table *t = &j->table;

    table_row(t);
    put_columns(j, v, socket_state_word(v));
    for (int i = 0; i < POSITIONS; i++)
        table_int(t, 0);
    table_int(t, v->stream ? (int64_t)stream_pending(v->stream) : 0);
    put_transport(t, v->stream);
    table_row_end(t);
}

static void on_socket(void *arg, const struct conn_view *v)
{
    put_socket(arg, v);
}

static void on_active_socket(void *arg, const struct conn_view *v)
{
    const char *state = state_word(v);

    if ((strcmp(state, "idle") != 0 && strcmp(state, "used") != 0) ||
        (v->stream && stream_pending(v->stream) > 0))
        put_socket(arg, v);
}

static void each_socket(struct shard *sh, struct job *j)
{
    shard_each_client(sh, on_socket, j);
    shard_each_server(sh, on_socket, j);
}

static void each_active_socket(struct shard *sh, struct job *j)
{
    shard_each_client(sh, on_active_socket, j);
    shard_each_server(sh, on_active_socket, j);
}

void show_sockets(struct job *j)
{
    job_gather(j, each_socket, job_done);
}

void show_active_sockets(struct job *j)
{
    job_gather(j, each_active_socket, job_done);
}

/* Cancel keys and passwords stay where they are: PgBouncer shows them to the
 * process that takes its descriptors over, and nobody does so here. */
static void on_fd(void *arg, const struct conn_view *v)
{
    enum { KEPT_BACK = 9 };
    struct table *t = &((struct job *)arg)->table;
    struct end remote, local;

    if (!v->stream || conf_is_console_db(slice_str(or_else(v->database, ""))))
        return;
    find_ends(v->stream, &remote, &local);
    table_row(t);
    table_int(t, stream_fd(v->stream));
    table_text(t, v->is_client ? "client" : "server");
    table_text(t, v->user);
    table_text(t, v->database);
    table_text(t, remote.host);
    table_int(t, remote.port);
    for (int i = 0; i < KEPT_BACK; i++)
        table_null(t);
    table_row_end(t);
}

static void each_fd(struct shard *sh, struct job *j)
{
    shard_each_client(sh, on_fd, j);
    shard_each_server(sh, on_fd, j);
}

void show_fds(struct job *j)
{
    job_gather(j, each_fd, job_done);
}
