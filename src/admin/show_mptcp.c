/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW MPTCP: a row a subflow of each connection that may use Multipath TCP. A
 * connection without it has one row, which tells of its TCP. */
#include <inttypes.h>
#include <stdio.h>

#include "admin/job.h"
#include "net/mptcp.h"
#include "net/stream.h"

struct flows {
    struct mptcp_conn conn;
    bool is_mptcp;
    struct mptcp_subflow at[MPTCP_SUBFLOWS_MAX];
    int n;
};

/* False for what is no TCP connection, or none any more. */
static bool read_flows(int fd, struct flows *f)
{
    *f = (struct flows){0};
    f->is_mptcp = mptcp_read(fd, &f->conn);
    f->n = mptcp_read_subflows(fd, f->at);
    if (f->conn.has_totals)
        return f->n > 0;
    for (int i = 0; i < f->n; i++) {
        f->conn.sent_bytes += f->at[i].sent_bytes;
        f->conn.received_bytes += f->at[i].received_bytes;
    }
    return f->n > 0;
}

/* The way `ss -M` prints it. */
static void put_token(struct table *t, const struct flows *f)
{
    char text[16];

    snprintf(text, sizeof(text), "%08" PRIx32, f->conn.token);
    table_text(t, f->is_mptcp ? text : NULL);
}

static void put_connection(struct table *t, const struct conn_view *v,
                           const struct flows *f)
{
    table_text(t, v->is_client ? "C" : "S");
    table_int(t, (int64_t)v->id);
    table_text(t, v->user);
    table_text(t, v->database);
    if (v->backend_pid)
        table_int(t, v->backend_pid);
    else
        table_null(t);
    put_token(t, f);
    table_int(t, !f->is_mptcp);
    table_int(t, f->n);
    table_int(t, (int64_t)f->conn.sent_bytes);
    table_int(t, (int64_t)f->conn.received_bytes);
}

static void put_end(struct table *t, const struct addr *a)
{
    char host[ADDR_TEXT_MAX];

    addr_host_text(a, host, sizeof(host));
    table_text(t, host);
    table_int(t, addr_port(a));
}

static void put_subflow(struct table *t, const struct mptcp_subflow *s)
{
    put_end(t, &s->local);
    put_end(t, &s->remote);
    table_int(t, (int64_t)s->sent_bytes);
    table_int(t, (int64_t)s->received_bytes);
    table_int(t, s->rtt_us);
    table_int(t, s->cwnd);
    table_int(t, (int64_t)s->retransmits);
    if (s->backup >= 0)
        table_int(t, s->backup);
    else
        table_null(t);
}

static void on_connection(void *arg, const struct conn_view *v)
{
    struct table *t = &((struct job *)arg)->table;
    struct flows f;

    if (!v->may_use_mptcp || !v->stream ||
        !read_flows(stream_fd(v->stream), &f))
        return;
    for (int i = 0; i < f.n; i++) {
        table_row(t);
        put_connection(t, v, &f);
        table_int(t, i + 1);
        put_subflow(t, &f.at[i]);
        table_row_end(t);
    }
}

static void each_connection(struct shard *sh, struct job *j)
{
    shard_each_client(sh, on_connection, j);
    shard_each_server(sh, on_connection, j);
}

void show_mptcp(struct job *j)
{
    job_gather(j, each_connection, job_done);
}
