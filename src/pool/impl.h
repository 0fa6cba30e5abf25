/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The objects of one worker, for the files of this folder only; others use
 * shard.h. Everything here belongs to the worker's thread.
 *
 *   shard   all that one worker has
 *   pool    its part of a pool (a database and a user)
 *   client  a session from a driver
 *   server  a connection to PostgreSQL
 *   link    client->server and server->client, set together by link.c
 */
#ifndef POOL_IMPL_H
#define POOL_IMPL_H

#include "base/log_json.h"
#include "net/mptcp_own.h"
#include "net/resolve.h"
#include "net/stream.h"
#include "net/tls_conf.h"
#include "pg/pg_params.h"
#include "pg/pg_track.h"
#include "pg/pg_write.h"
#include "pool/latency.h"
#include "pool/outv.h"
#include "pool/shard.h"
#include "pool/shared.h"
#include "pool/statement.h"
#include "pool/tally.h"

struct pgread;

/* Bytes kept of an input until they can be acted on. Empty: no memory. */
struct inbuf {
    char *p;
    uint32_t n, cap;
};

NODISCARD int inbuf_append(struct inbuf *b, const char *p, size_t n);
void inbuf_drop(struct inbuf *b, size_t n); /* from the front */
void inbuf_clear(struct inbuf *b);

/* How many bytes complete the message that b begins with, as far as that is
 * known: first its header, then all of it. */
size_t inbuf_missing(const struct inbuf *b);

enum {
    HOLD_BYTES = 65536,   /* a client that waits is read up to this */
    CANCEL_KEY_SIZE = 32, /* of a protocol 3.2 key */
    CANCEL_KEY_MAX = 4 + CANCEL_KEY_SIZE, /* with the pid before it */
    REPLY_HELD_MAX = 65536,    /* a reply looked at whole; longer ones stream */
    PARSE_HELD_MAX = 64 << 20, /* text of a named prepared statement */
    NAMES_MAX = 8192,          /* portal and statement name of one Bind */
};

/* ---------------------------------------------------------------- client */

enum client_state {
    CLIENT_LOGIN,   /* until ReadyForQuery was sent */
    CLIENT_IDLE,    /* no server */
    CLIENT_WAITING, /* for a server */
    CLIENT_ACTIVE,  /* linked */
    CLIENT_CONSOLE, /* talks to ourselves */
    CLIENT_CANCEL,  /* delivers a CancelRequest */
    CLIENT_CLOSED,
};

enum body_mode {
    BODY_FORWARD, /* the rest of the message goes on to the peer */
    BODY_DISCARD,
};

struct client_login; /* client_login.c; only while logging in */
struct host_count;   /* limits.c */
struct client_map;   /* prepared.c: names of prepared statements */

struct client {
    struct list node_all;  /* in shard.clients */
    struct list node_pool; /* in pool.waiting */
    struct shard *shard;
    struct pool *pool; /* NULL before the login knows it; console */
    struct stream *stream;
    struct server *server; /* the link */
    struct client_login *login;
    struct client_map *map;
    struct statement *unnamed; /* prepared.c: its last unnamed Parse */
    struct outv *sending;      /* amid consume_client(): taken, not yet sent */
    const struct pg_params *params;
    struct db_rec *db;
    struct user_rec *user; /* who logged in */
    void *console;         /* the console's state of this session */
    struct inbuf in;
    uint32_t held;       /* bytes of in that statement_hold() counts */
    uint32_t body_left;  /* of a message that is streamed */
    uint8_t state;       /* enum client_state */
    uint8_t body_mode;   /* enum body_mode */
    uint8_t minor;       /* protocol 3.x */
    bool is_stalled;     /* waits for replies before it goes on */
    bool is_admin;       /* console: may change things */
    uint8_t replication; /* enum pg_replication; not OFF: a server of its own */
    bool is_registered;  /* counted in db, user and shared */
    bool wants_close;    /* after what it sent is answered */
    bool is_notified;    /* query_wait_notify was sent */
    bool is_left_cancelled; /* cancel_left() was called */
    bool is_gone;     /* its connection broke; what it asked for goes on */
    bool is_skipping; /* its batch was canceled: up to the next Sync */
    bool is_chosen;   /* balance.c: to go to another worker */
    bool uses_mptcp;  /* as of its arrival */
    uint8_t key_n;
    uint8_t key[CANCEL_KEY_MAX]; /* pid and key */
    uint32_t unnamed_seq;        /* raised by every change of unnamed */
    unsigned kills_seen;         /* kill.c: as of the login */
    uint64_t id;
    int64_t connect_us, request_us; /* request: of its last activity */
    int64_t wait_us;                /* since when it waits */
    int64_t left_us;                /* when it went without Terminate */
    int64_t query_us, xact_us;      /* since when they run; 0: none */
    bool has_key;                   /* registered in shard.keys */
    struct client *next_key;        /* in its bucket */
    struct client *next_id;         /* in its bucket of shard.ids */
};

/* ---------------------------------------------------------------- server */

enum server_state {
    SERVER_LOGIN,
    SERVER_IDLE,
    SERVER_USED,     /* idle for so long that it is tested before use */
    SERVER_TESTED,   /* check or reset query running */
    SERVER_ACTIVE,   /* linked */
    SERVER_CANCELED, /* free, but a cancel may still be on its way to it */
    SERVER_CLOSED,
    SERVER_STATES,
};

/* A query of our own that runs on a server. */
enum server_job {
    JOB_NONE,
    JOB_SET,     /* the client's settings, before its first message */
    JOB_RESET,   /* server_reset_query */
    JOB_CHECK,   /* server_check_query */
    JOB_CONNECT, /* connect_query */
    JOB_AUTH,    /* auth_query, for a client that logs in */
};

struct auth_server;
struct server_login; /* server_login.c */
struct server_stmt;  /* prepared.c */

struct server {
    struct list node; /* in pool.servers[state] */
    struct pool *pool;
    struct stream *stream;
    struct client *client; /* the link */
    struct server_login *login;
    const struct pg_params *params;
    struct pg_track track;
    struct inbuf in;
    uint32_t body_left;
    uint8_t state;     /* enum server_state */
    uint8_t body_mode; /* enum body_mode */
    uint8_t job;       /* enum server_job */
    bool job_failed, job_ended;
    bool is_broken;         /* the connection ended from the other side */
    bool was_used;          /* a client had it */
    bool was_running;       /* a query, when its client went away */
    bool is_amid_message;   /* its client left in the middle of one: no byte of
                             * ours may complete it */
    bool said_fatal;        /* FATAL was passed on: nothing more need be said */
    bool needs_close;       /* once it is released */
    bool is_other_user;     /* SET SESSION AUTHORIZATION is in force */
    bool needs_reset;       /* server_reset_query before the next client */
    bool has_barrier_bound; /* a Bind of DEALLOCATE or DISCARD is open */
    bool may_begin;         /* a transaction, by what is not answered yet */
    bool has_unflushed;     /* sent something that asks for no reply yet */
    bool is_replication;    /* belongs to one client, from login to end */
    struct server_stmt *stmts; /* by statement */
    struct list lru;           /* of stmts, the latest first */
    unsigned n_stmts;
    size_t stmts_bytes;     /* of their texts */
    unsigned n_closing;     /* Closes of them that are not answered */
    uint64_t unnamed_of;    /* client id: whose unnamed statement it has */
    uint32_t unnamed_seq;   /* that client's, at that time */
    uint32_t unnamed_epoch; /* of the request that made it so */
    bool is_unnamed_sure;   /* that request was answered */
    uint32_t n_unnamed;     /* requests of its client that change it, pending */
    uint32_t n_unnamed_barriers; /* of them, those that replaced a statement
                                  * which may drop all others */
    uint32_t n_cancels; /* CancelRequests on their way to this server */
    uint32_t pid;
    uint16_t key_n;
    uint8_t key[PG_CANCEL_KEY_MAX];
    uint64_t id;
    unsigned epoch;              /* pool_epoch() when it was opened */
    uint64_t replication_client; /* whose it is, while it logs in */
    int64_t connect_us;
    int64_t request_us; /* linked since, or last used */
    struct addr at;     /* where it is connected */
    char *host_name;    /* for certificates; NULL for a Unix socket */
    char *job_error;    /* text of the error of a job */
    /* server_mptcp.c */
    bool uses_mptcp; /* as of the login */
    struct mptcp_own own_subflows;
};

/* ------------------------------------------------------------------ pool */

struct pool {
    struct list node; /* in shard.pools */
    struct pool_rec *rec;
    struct shard *shard;
    const struct conf_db *cdb;     /* of shard.conf; NULL: line is gone */
    const struct conf_user *cuser; /* NULL: no line */
    enum conf_pool_mode mode;
    bool tracks_statements;
    struct list servers[SERVER_STATES];
    int n_servers[SERVER_STATES];
    struct list waiting;
    int n_waiting, n_clients, n_active;
    int n_login_waiting; /* clients whose login needs a server's settings */
    struct list login_waiting;
    struct tls_ctx *tls; /* where the line has TLS options of its own */
    unsigned next_host;  /* round robin */
    int64_t evict_asked_us;
    int64_t unused_us; /* since when nothing is in it; 0: something is */
    struct pool_stats stats, stats_sent; /* sent: to the next process */
    int n_staying;               /* handover.c: clients that cannot move */
    struct latency_set *latency; /* of its database, on this worker */
    struct task dispatch;        /* pool_dispatch() from the loop */
    struct list cancels; /* cancel.c: on their way to a server, or waiting */
    int n_cancels;       /* of them on their way */
};

/* ----------------------------------------------------------------- shard */

enum { KEY_BUCKETS = 4096, ID_BUCKETS = 4096 };

enum { BALANCE_MOVES_MAX = 64 }; /* clients that a worker gives in a second */

struct balance {
    int64_t (*cpu_clock)(void); /* of the worker's thread; NULL: no balance */
    int64_t cpu_us, wall_us;    /* at the last look */
    struct task task;
    int to; /* where the chosen go */
    int n_chosen;
    struct client *chosen[BALANCE_MOVES_MAX];
};

struct shard {
    int index;
    struct shared *shared;
    struct loop *loop;
    _Atomic(struct loop *) loop_shown; /* the same, for other threads */
    struct conf *conf;                 /* a reference */
    struct list pools, clients;
    int n_clients;
    struct tls_ctx *client_tls, *server_tls;
    struct resolver *resolver;
    struct quic_host *quic;     /* of the listeners */
    struct quic_host *quic_out; /* server_quic.c; NULL: not needed yet */
    struct list quic_ways;
    struct auth_cache *auth_cache;
    struct timer tick;
    struct statement_cache statements;
    struct client *keys[KEY_BUCKETS];
    struct client *ids[ID_BUCKETS];
    const struct console_ops *console;
    struct pgbuf text; /* for putting messages together */
    bool is_draining;  /* close clients as they become idle */
    bool is_suspended;
    bool is_leaving; /* handover.c: for the next process */
    bool has_ready_client;
    shard_idle_cb on_empty;
    struct tally tally;
    uint64_t n_lent, n_borrowed;
    int64_t longest_wait_us; /* of a client for a server */
    struct list logins;      /* of struct client_login, the oldest first */
    struct list peers;       /* peers.c */
    struct balance balance;
    uint64_t n_moved_in, n_moved_out;
    int64_t slow_tick_us;          /* janitor.c */
    int64_t sweep_us;              /* the same, of worker 0 */
    struct mptcp_pm *path_manager; /* NULL without mptcp_subflows */
};

/* The loop of another worker; NULL while it does not run. */
static inline struct loop *shard_loop_now(struct shard *sh)
{
    return atomic_load_explicit(&sh->loop_shown, memory_order_acquire);
}

/* The tcp_* options, for clients and servers alike. */
struct sock_options shard_sock_options(const struct conf *conf);

static inline int64_t shard_now(const struct shard *sh)
{
    return loop_now_us(sh->loop);
}

/* ------------------------------------------------------ client.c,
 * client_login.c */

void client_set_state(struct client *c, enum client_state to);

/* Ends the session: ErrorResponse (unless sqlstate is NULL), one log line, the
 * server closed or released. c is dead when it returns; its memory goes at the
 * end of the turn. */
void client_close(struct client *c, const char *sqlstate, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Same without an ErrorResponse. */
void client_drop(struct client *c, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Terminate or end of input: ends the session once what it asked for has been
 * answered, at once when nothing is outstanding. */
void client_finish(struct client *c, const char *why);

/* "C-0x..: db/user@addr" for the beginning of log lines, and for nothing else
 * (log_tag_make()); buf is returned. */
enum { CLIENT_NAME_MAX = LOG_TAG_MAX };
const char *client_name(const struct client *c, char buf[CLIENT_NAME_MAX]);

/* Reads or stops reading, according to the backlogs. */
void client_update_flow(struct client *c);

/* Input that came with the end of the login. */
void client_read_ahead(struct client *c);

/* After a change of c->in: counts what is long against statement_max_bytes.
 * False when that is exceeded. */
bool client_count_held(struct client *c);

/* Reads held input again, now that something it waited for has happened. */
void client_go_on(struct client *c);

extern const struct stream_handler client_handler;

/* Among the clients of a worker, or no longer. */
void client_enter(struct client *c, struct shard *sh);
void client_leave(struct client *c);

/* A fresh connection; takes fd and, also on failure, host (limits.c). */
struct client *client_accept(struct shard *sh, int fd, const struct addr *peer,
                             struct host_count *host);

/* The same for a stream that is secured by its transport and can say who its
 * peer is; the client becomes its owner. */
struct client *client_accept_stream(struct shard *sh, struct stream *st,
                                    struct host_count *host);

void client_login_begin(struct client *c, struct host_count *host);
void client_login_data(struct client *c, const char *p, size_t n);
/* A load balancer says first whose connection it is. */
void client_login_expect_proxy(struct client *c);
void client_login_secured(struct client *c);
/* The transport is secured: no request for TLS or GSSAPI is granted. */
void client_login_is_secured(struct client *c);
void client_login_leave(struct client *c);
/* Nothing was said yet: who connects and leaves like this only looks whether
 * somebody listens, and is no line of the log worth. */
bool client_login_is_silent(const struct client *c);
void client_login_free(struct client *c);
void client_login_expire(struct shard *sh);
const char *client_login_user(const struct client *c);
const char *client_login_database(const struct client *c);
/* The pool's settings are known, or the reason why not. */
void client_login_welcome(struct client *c);
void client_login_refuse(struct client *c, const char *sqlstate,
                         const char *text);
/* A replication connection of c's own has logged in. */
void client_login_replicate(struct client *c, struct server *s);
/* What the client set at start-up, for such a connection. */
enum { CLIENT_SETTINGS_MAX = 32 };
int client_login_settings(const struct client *c,
                          struct pg_pair out[CLIENT_SETTINGS_MAX]);

/* A server for auth_query was assigned, said something, or was lost. */
void client_login_query_start(struct client *c);
void client_login_query_reply(struct client *c, char type, struct slice body);
void client_login_query_done(struct client *c);
bool client_login_runs_query(const struct client *c);

/* ------------------------------------------------------ server.c,
 * server_login.c */

void server_set_state(struct server *s, enum server_state to);

/* Opens a connection whose place in the budget was taken by the caller. */
void server_open(struct pool *pool, const struct client *for_replication);

/* Closes: unlinks (the client, if any, is closed with an error naming the
 * reason), gives the place back. Memory goes at the end of the turn. */
void server_close(struct server *s, const char *fmt, ...) PRINTF_LIKE(2, 3);

enum { SERVER_NAME_MAX = LOG_TAG_MAX };
const char *server_name(const struct server *s, char buf[SERVER_NAME_MAX]);

void server_update_flow(struct server *s);

/* Runs a query of ours; server_job_done() (server.c) follows its end. */
void server_run_job(struct server *s, enum server_job job, struct slice sql);
void server_job_done(struct server *s);

void server_run_auth_query(struct server *s, struct slice sql,
                           struct slice user);
const char *server_state_name(const struct server *s);

/* The login, up to the first ReadyForQuery; what the stream says meanwhile. */
void server_login_start(struct server *s);
void server_login_connect(struct server *s);
void server_login_opened(struct server *s);
void server_login_data(struct server *s, const char *p, size_t n);
void server_login_lost(struct server *s, const struct err *e);
void server_login_fail(struct server *s, const char *sqlstate,
                       const char *text);
void server_login_done(struct server *s);
void server_login_free(struct server *s);

/* server_mptcp.c: whether mptcp= of its line asks for MPTCP; whether the
 * connection that was just opened is what it asks for; the subflows of
 * mptcp_subflows, asked for after the login, counted later, and asked for again
 * when they break. */
bool server_wants_mptcp(const struct server *s);
NODISCARD int server_check_mptcp(struct server *s, struct err *e);
/* True when some are on their way. */
bool server_add_subflows(struct server *s);
bool server_has_subflows(const struct server *s); /* all were answered */
void server_watch_subflows(struct server *s);

/* Opens or closes the path manager, as the configuration says. */
void shard_open_path_manager(struct shard *sh);
/* A helper thread hashes its password, and has done so. */
bool server_login_waits_for_hash(const struct server *s);
void server_login_hashed(struct server *s, struct auth_server *auth);
extern const struct stream_handler server_handler;

/* ---------------------------------- link.c, link_client.c, link_server.c */

void link_attach(struct client *c, struct server *s);
/* Both go on without each other. */
void link_detach(struct client *c);

/* To o, the replies that we owe c and that no reply of the server stands
 * before.
 */
enum { LINK_SCRATCH_TO_CLIENT = 4 };
void link_make_local(struct client *c, struct server *s, struct outv *o);
static inline void link_answer_local(struct client *c, struct server *s,
                                     struct outv *o)
{
    if (unlikely(pg_track_has_local(&s->track)))
        link_make_local(c, s, o);
}

/* The end of the run of whole messages of one type, shorter than max, that
 * begins at p[at], where a good one is. Rows come in thousands. */
size_t link_run_end(const char *p, size_t at, size_t n, uint32_t max);

void link_from_client(struct client *c, const char *p, size_t n);
void link_from_server(struct server *s, const char *p, size_t n);

/* The request that c waits with is given up: its messages, up to the
 * ReadyForQuery that it expects, are dropped, and that is answered. */
void link_skip_request(struct client *c);

/* All that the linked client sent will be answered, whatever else it does. */
bool link_will_answer(const struct client *c);

/* Sends to the server of c, which is there, what of the input at hand was
 * taken: one of the two is about to go, and what was asked before is asked. */
void link_flush_requests(struct client *c);

/* A message of the client's was passed on in part. */
static inline bool link_is_amid_request(const struct client *c)
{
    return c->body_left != 0 && c->body_mode != BODY_DISCARD;
}

/* A message of s was passed on in part: the client expects the rest. */
static inline bool link_is_amid_reply(const struct server *s)
{
    return s->body_left && s->body_mode == BODY_FORWARD;
}

/* Gives the server back if it is free and its mode says so. */
void link_release_if_idle(struct server *s);

/* A ParameterStatus for the server's settings. */
void link_note_parameter(struct server *s, struct slice body,
                         bool *is_news_for_client);

/* -------------------------------------------------------------- prepared.c */

enum step {
    STEP_DONE,   /* the message, or its beginning, was dealt with */
    STEP_MORE,   /* more of it must be there */
    STEP_HOLD,   /* wait: for a server, for a reply */
    STEP_CLOSED, /* the client is gone */
};

struct message_in {
    const char *p; /* at the type byte */
    size_t have;   /* bytes at p */
    size_t total;  /* of the message */
    size_t used;   /* out: bytes of it dealt with */
};

enum step prepared_parse(struct client *c, struct outv *o,
                         struct message_in *m);
enum step prepared_bind(struct client *c, struct outv *o, struct message_in *m);
enum step prepared_describe(struct client *c, struct outv *o,
                            struct message_in *m);
enum step prepared_close(struct client *c, struct outv *o,
                         struct message_in *m);

/* A simple Query goes out: it drops the unnamed statement. */
void prepared_push_query(struct client *c, struct server *s);

/* Same for a query of ours, which no client sees. */
void prepared_note_own_query(struct server *s);
/* A query of ours leaves an unnamed statement. */
void prepared_note_own_parse(struct server *s);

enum outcome { OUTCOME_DONE, OUTCOME_FAILED, OUTCOME_SKIPPED };

/* An entry of the track was answered, failed, or is skipped. c may be NULL. */
void prepared_settle(struct client *c, struct server *s,
                     const struct track_entry *e, enum outcome how);

/* The server forgot all (DISCARD ALL, DEALLOCATE ALL); so does the client if
 * it asked for it. */
void prepared_forget_all(struct client *c, struct server *s);

/* An error told about the statement of e: puts the client's name for it in
 * place of ours, or notes that it must be prepared anew. Returns true when
 * out was filled with another ErrorResponse. */
bool prepared_fix_error(struct client *c, struct server *s,
                        const struct track_entry *e, struct slice body,
                        struct pgbuf *out);

void prepared_free_client(struct client *c);
void prepared_free_server(struct server *s);
int prepared_count_client(const struct client *c);

/* ------------------------------------------------------------------ pool.c */

struct pool *pool_get(struct shard *sh, struct db_rec *db,
                      struct user_rec *user);
/* Nobody may be in it. Its statistics go with it. */
void pool_free(struct pool *p);
bool pool_is_unused(const struct pool *p);
void pool_refresh(struct pool *p); /* after a new configuration */

/* Links c with a server or lets it wait; true when it is linked and may send.
 */
bool pool_want_server(struct client *c);
void pool_stop_waiting(struct client *c);

/* s has no client and nothing outstanding: cleaned, tested, lent or idle. */
void pool_give_server(struct server *s);

/* Serves those who wait, opens servers when that is needed. */
void pool_dispatch(struct pool *p);
void pool_dispatch_later(struct pool *p);

/* The place of a closed server is free: whoever waits for one may open. */
void pool_budget_freed(struct shard *sh);

/* The pool cannot get servers: whoever cannot wait is told. */
void pool_server_failed(struct pool *p, const char *sqlstate, const char *text);
/* A server logged in: its settings, if they are the first. */
void pool_server_came(struct pool *p, const struct pg_params *welcome);

/* The TLS settings towards the pool's servers; borrowed. Not for sslmode
 * disable. */
NODISCARD int pool_server_tls(struct pool *p, struct tls_ctx **out,
                              struct err *e);
struct budget_limits pool_limits(const struct pool *p, bool with_reserve);
/* Its servers can move to another worker (a stream of QUIC cannot). */
bool pool_can_lend(const struct pool *p);
/* The budget has a place left for one more server, without the reserve. */
bool pool_has_room(const struct pool *p);
/* Servers opened under another epoch are to be replaced. */
unsigned pool_epoch(const struct pool *p);
bool pool_is_paused(const struct pool *p);
int pool_count_servers(const struct pool *p);
void pool_publish(struct pool *p);

/* ------------------------------------------------------------------ lend.c */

/* Another worker's client has waited longer: s goes there. True when it did. */
bool lend_if_wanted(struct server *s);
/* c begins to wait: asks the workers that hold an idle server. True when one
 * was asked. */
bool lend_ask(struct pool *p);
void lend_wake_all(struct shard *sh);
bool lend_evict(struct pool *p, enum budget_verdict why);

/* ---------------------------------------------------------------- cancel.c */

void cancel_make_key(struct client *c);
void cancel_register(struct client *c);
void cancel_unregister(struct client *c);
/* c sent a CancelRequest. */
void cancel_request(struct client *c, uint32_t pid, struct slice key);
/* The client went away some time ago and its query still runs: it is cancelled,
 * and its server free after that. */
void cancel_left(struct client *c);

/* s is about to be closed with a query running: PostgreSQL is asked to end it,
 * which it would not notice before the query's end. */
void cancel_abandoned(struct server *s);

/* s is closed: requests for it have nothing to wait for. */
void cancel_server_gone(struct server *s);
void cancel_expire(struct pool *p);
void cancel_count(const struct pool *p, int *active, int *waiting);
void cancel_stop(struct pool *p); /* at the end of the worker */
/* The request of that client (of worker from) has had its effect, or has none:
 * its connection is closed. */
void cancel_tell_requester(struct shard *sh, int from, uint64_t requester);

/* ----------------------------------------------------------------- peers.c */

/* Passes the request on to a node; cancel_tell_requester() follows. */
void peers_forward(struct client *requester, int id, const uint8_t *key,
                   size_t n);
void peers_expire(struct shard *sh);
void peers_stop(struct shard *sh); /* at the end of the worker */

/* --------------------------------------------------------------- balance.c */

void balance_start(struct shard *sh);
void balance_stop(struct shard *sh);
void balance_tick(struct shard *sh); /* once a second */
/* A chosen client is without a server, or closed. */
void balance_client_idle(struct client *c);
void balance_forget(struct client *c);
void balance_forget_all(struct shard *sh);

/* -------------------------------------------------------------- handover.c */

/* What is put together for another process. */
struct carrier {
    struct pgbuf body;
    int fd;
    struct statement **statements; /* that body names; references */
    int n_statements, cap_statements;
    bool is_local; /* some number of them is not for other processes */
};

void prepared_pack_client(const struct client *c, struct carrier *k);
NODISCARD int prepared_unpack_client(struct client *c, struct pgread *r,
                                     struct statement_table *names);
void prepared_pack_server(const struct server *s, struct carrier *k);
NODISCARD int prepared_unpack_server(struct server *s, struct pgread *r,
                                     struct statement_table *names);

/* It goes on in another process; its stream is gone already. */
void client_vanish(struct client *c);
void server_vanish(struct server *s);
/* Idle, on a connection that another process made; NULL: it cannot be watched.
 */
struct server *server_adopt(struct pool *p, int fd, enum stream_kind kind);

/* A server for the other process's client. */
bool handover_lend(struct server *s, enum generation to);
void handover_run(struct shard *sh);
bool lend_evict_here(struct shard *sh, struct pool_rec *rec,
                     enum budget_verdict why);

/* --------------------------------------------------------------- janitor.c */

void janitor_start(struct shard *sh);
void janitor_stop(struct shard *sh);

/* ---------------------------------------------------------------- limits.c */

/* One more connection from this address that has not logged in; false when it
 * has too many (then it is not counted). *out is NULL when nothing is counted.
 */
bool limits_host_enter(struct shared *s, const struct addr *peer, int max,
                       struct host_count **out);
void limits_host_leave(struct shared *s, struct host_count *h); /* NULL: fine */

/* limits_host_enter() by the configuration in force, with a line in the log. */
bool shard_enter_host(struct shard *sh, const struct addr *peer,
                      struct host_count **out);

#endif
