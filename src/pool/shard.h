/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Everything about clients and servers that one worker has, behind one handle.
 * Made before its thread starts, then used by that thread only. */
#ifndef POOL_SHARD_H
#define POOL_SHARD_H

#include "base/err.h"
#include "base/slice.h"
#include "conf/conf.h"
#include "loop/loop.h"

struct addr;
struct client;
struct pgbuf;
struct pool_rec;
struct shard;
struct shared;
struct stream;

struct pool_stats {
    uint64_t xact_count, query_count, server_assignment_count;
    uint64_t received, sent; /* bytes from and to clients */
    uint64_t xact_time_us, query_time_us, wait_time_us;
    uint64_t client_parse_count, server_parse_count, bind_count;
    uint64_t client_login_count;
};
void pool_stats_add(struct pool_stats *to, const struct pool_stats *s);

/* The console, which stands above this layer: a client that logs in to the
 * database pgbouncer or pgbraid is handed to it. */
struct console_ops {
    /* The client is logged in; writes what it is greeted with to out. */
    void (*start)(struct client *c);
    /* A whole message. */
    void (*message)(struct client *c, char type, struct slice body);
    /* What was sent has left: it may go on after client_console_is_full(). */
    void (*drain)(struct client *c);
    /* A CancelRequest for what it runs. */
    void (*cancel)(struct client *c);
    void (*end)(struct client *c);
};

/* The last client left a draining shard. */
typedef void (*shard_idle_cb)(void *arg);

struct tls_ctx;

NODISCARD int shard_new(struct shard **out, struct shared *shared, int index,
                        const struct console_ops *console, struct err *e);

/* How to read the processor time of the worker's thread; without it the worker
 * keeps the clients that it has. Before the start. */
void shard_set_cpu_clock(struct shard *sh, int64_t (*cpu_clock)(void));

/* On the worker's thread, once: the loop it lives on. */
NODISCARD int shard_start(struct shard *sh, struct loop *loop, struct err *e);

/* Closes everything without a word; on the worker's thread. */
void shard_stop(struct shard *sh);
void shard_free(struct shard *sh);

/* What worker threads of QUIC have, for the console; NULL: none. Not used by
 * the shard itself. */
struct quic_host;
void shard_set_quic(struct shard *sh, struct quic_host *host);
struct quic_host *shard_quic(const struct shard *sh);
/* The same of the connections to servers. */
struct quic_host *shard_quic_out(const struct shard *sh);

/* Ends the sessions of such transports, with a word to each. */
void shard_close_streams(struct shard *sh);

/* An accepted socket. */
void shard_accept(struct shard *sh, int fd, const struct addr *peer);

/* A new session on a transport that carries many (QUIC). NULL: refused, and the
 * stream is still the caller's. */
struct client *shard_accept_stream(struct shard *sh, struct stream *st,
                                   const struct addr *peer);

/* Takes the references. tls may be NULL: no TLS on that side. */
void shard_set_conf(struct shard *sh, struct conf *conf,
                    struct tls_ctx *client_tls, struct tls_ctx *server_tls);

struct loop *shard_loop(const struct shard *sh);
struct shared *shard_shared(const struct shard *sh);
const struct conf *shard_conf(const struct shard *sh);
int shard_index(const struct shard *sh);

/* --- what the console does, on this worker's part --------------------- */

void shard_resume_all(struct shard *sh); /* after RESUME, ENABLE */

/* Drops the idle servers of a database (NULL: of all) that is paused. */
void shard_drain_servers(struct shard *sh, const char *db);

/* Servers in use by the database (NULL: all), for PAUSE to wait for; not those
 * that replicate without an end. */
int shard_busy_servers(const struct shard *sh, const char *db);

/* Servers of the database (NULL: all): closed
 * now when idle, else once released. */
void shard_reconnect(struct shard *sh, const char *db);

/* KILL: closes all clients and servers of the database (NULL: of all). */
void shard_kill(struct shard *sh, const char *db);
bool shard_kill_client(struct shard *sh, uint64_t id);

/* Clients are closed as they become idle; calls back when none is left. */
void shard_drain_clients(struct shard *sh);

/* Clients that a shutdown waits for: all but those whose replication has no
 * end, as PostgreSQL does it. */
int shard_count_to_leave(const struct shard *sh);
int shard_count_servers(const struct shard *sh);

/* --- looking at it, on the worker's thread ------------------------------ */

struct pool_view {
    const char *database, *user;
    struct pool_rec *rec;
    enum conf_pool_mode mode;
    const struct conf_db *cdb;
    int cl_active, cl_waiting, cl_active_cancel, cl_waiting_cancel;
    int sv_active, sv_active_cancel, sv_being_canceled, sv_idle, sv_used,
        sv_tested, sv_login;
    int64_t maxwait_us;
    struct pool_stats stats;
};

struct conn_view {
    bool is_client;
    const char *user, *database, *state, *replication;
    const struct stream *stream; /* for addresses; NULL: none yet */
    int64_t connect_age_us, request_age_us, wait_us; /* ages */
    bool close_needed;
    const void *ptr, *link;
    uint32_t remote_pid;  /* servers */
    uint32_t backend_pid; /* of the server, or of the one that it has */
    bool may_use_mptcp;   /* the listener, or the database line, says so */
    const char *tls;      /* "TLSv1.3/cipher" or "" */
    char application_name[64];
    int prepared_statements;
    uint64_t id;
};

typedef void (*pool_view_cb)(void *arg, const struct pool_view *v);
typedef void (*conn_view_cb)(void *arg, const struct conn_view *v);
void shard_each_pool(struct shard *sh, pool_view_cb cb, void *arg);
void shard_each_client(struct shard *sh, conn_view_cb cb, void *arg);
void shard_each_server(struct shard *sh, conn_view_cb cb, void *arg);

/* Cancel requests on their way to a peer, as far as this worker passes them
 * on. */
struct peer_counts {
    int waiting, connecting, sent;
};
struct peer_counts shard_peer_counts(const struct shard *sh, int id);

struct shard_counts {
    int clients, login_clients, used_clients;
    int pools, servers;
    uint64_t lent, borrowed;
    uint64_t moved_in, moved_out; /* clients */
    int64_t cpu_us;
    int load_permille;       /* of a processor, lately */
    int64_t maxwait_us;      /* of the client that waits longest now */
    int64_t longest_wait_us; /* for a server, since the start */
    uint64_t xacts;          /* of the pools that there are */
    size_t dns_names, dns_zones, dns_pending;
    size_t client_size, server_size, pool_size; /* of one, without buffers */
    size_t buffer_bytes, spare_bytes; /* held for somebody, kept for reuse */
};
void shard_get_counts(struct shard *sh, struct shard_counts *out);

struct tally;
const struct tally *shard_tally(const struct shard *sh);

/* Connections with Multipath TCP, and their subflows; asks the kernel about
 * each of them. */
struct shard_mptcp {
    int clients, client_subflows, servers, server_subflows;
};
void shard_count_mptcp(struct shard *sh, struct shard_mptcp *out);

/* --- a console session --------------------------------------------------- */

void client_console_send(struct client *c, const struct pgbuf *b);
/* The client does not read: commands wait until it has. */
bool client_console_is_full(const struct client *c);
void client_console_set(struct client *c, void *state);
void *client_console_get(const struct client *c);
struct shard *client_shard(const struct client *c);
uint64_t client_id(const struct client *c);
bool client_is_admin(const struct client *c);
const char *client_user(const struct client *c);
/* NULL when that client has gone meanwhile. */
struct client *shard_find_client(struct shard *sh, uint64_t id);
/* Ends the session without an error. */
void client_console_end(struct client *c);

#endif
