/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SHOW QUIC: the connections that carry sessions as streams. Each worker writes
 * its rows itself. */
#include "admin/job.h"
#include "net/quic.h"

struct row {
    struct job *job;
    int worker;
};

static void put_connection(void *arg, const struct quic_conn_view *v)
{
    struct row *r = arg;
    struct table *t = &r->job->table;
    char host[ADDR_TEXT_MAX];
    uint64_t packets = MAX(v->packets_out, (uint64_t)1);

    addr_host_text(&v->peer, host, sizeof host);
    table_row(t);
    table_int(t, r->worker);
    table_text(t, v->is_server ? "server" : "client");
    table_text(t, v->is_draining ? "draining" : v->is_up ? "up" : "handshake");
    table_text(t, host);
    table_int(t, addr_port(&v->peer));
    table_text(t, v->alpn);
    table_text(t, !v->is_up ? "" : v->is_resumed ? "resumed" : "full");
    table_int(t, v->age_us / 1000000);
    table_int(t, v->streams);
    table_int(t, v->max_streams);
    table_int(t, v->srtt_us);
    table_int(t, v->min_rtt_us);
    table_int(t, (int64_t)v->cwnd);
    table_int(t, (int64_t)v->in_flight);
    table_int(t, (int64_t)v->bytes_in);
    table_int(t, (int64_t)v->bytes_out);
    table_int(t, (int64_t)v->packets_in);
    table_int(t, (int64_t)v->packets_out);
    table_int(t, (int64_t)v->sends);
    table_int(t, (int64_t)(v->frames_out * 100 / packets));
    table_int(t, (int64_t)v->rebindings);
    table_int(t, (int64_t)v->id);
    table_int(t, (int64_t)v->packet_size);
    table_int(t, (int64_t)v->black_holes);
    table_row_end(t);
}

static void put_worker(struct shard *sh, struct job *j)
{
    struct row r = {j, shard_index(sh)};

    if (shard_quic(sh))
        quic_host_each(shard_quic(sh), put_connection, &r);
    if (shard_quic_out(sh))
        quic_host_each(shard_quic_out(sh), put_connection, &r);
}

void show_quic(struct job *j)
{
    job_gather(j, put_worker, job_done);
}
