/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* QUIC: connections over UDP whose bidirectional streams are struct stream
 * (net/stream.h), so that whoever owns one need not know. docs/quic-protocol.md
 * says what goes over the wire.
 *
 *   shared     secrets and counts of the whole process; any thread
 *   tls        certificates, trust, tickets; counted, then only read
 *   host       buffers and the flush of one loop; its thread
 *   listener   one worker's UDP socket of one address; its thread
 *   conn       a connection, accepted or opened; its thread
 *   stream     a session; its thread
 *
 * Everything that the streams of a connection say in one turn of the loop is
 * written by a task at the turn's end, in as few packets as it fits. Callbacks
 * come from the loop only. In a build without QUIC the makers fail with
 * ERR_UNSUPPORTED and the rest is never reached (quic_none.c). */
#ifndef NET_QUIC_H
#define NET_QUIC_H

#include "net/addr.h"
#include "net/stream.h"

struct quic_shared;
struct quic_tls;
struct quic_host;
struct quic_listener;
struct quic_conn;

/* Application error codes, of streams and connections. */
enum quic_code {
    QUIC_CODE_NONE = 0,     /* an ordinary end */
    QUIC_CODE_SHUTDOWN = 1, /* the pooler goes away: try another */
    QUIC_CODE_LOST = 2,     /* the next hop of the session broke */
    QUIC_CODE_REFUSED = 3,  /* a limit; the session may be tried again */
    QUIC_CODE_PROTOCOL = 4, /* this page was not followed */
    QUIC_CODE_TIMEOUT = 5,  /* what was left did not get away in time */
};

/* The words of ALPN, the first being what both ends of pgbraid speak: its
 * sessions come through a tunnel, and a drain is announced. */
#define QUIC_ALPN_EDGE "pgbraid/1"
#define QUIC_ALPN_PGSQL "pgsql/3"
#define QUIC_ALPN_POSTGRESQL "postgresql"

bool quic_is_built(void);
/* "ngtcp2 1.11.0, GnuTLS 3.7.9" or "none". */
const char *quic_version(void);

/* --- shared ------------------------------------------------------------- */

/* The secrets are derived from a private key's file, so that a restart, and
 * another node with that key, knows the tickets, the tokens, and the
 * connections that it has to reset. NULL: random ones. */
NODISCARD int quic_shared_new(struct quic_shared **out, const char *key_file,
                              struct err *e);
void quic_shared_free(struct quic_shared *s); /* NULL is fine */

/* --- TLS ---------------------------------------------------------------- */

struct quic_tls_params {
    const char *prefix;    /* of the options, for errors: "quic_tls" */
    const char *ca_prefix; /* of ca_file's option; NULL: the same */
    const char *cert_file, *key_file;
    const char *ca_file; /* "system", or PEM; NULL, "": none */
    /* Listening: clients without a certificate are refused. Connecting: the
     * server's certificate is not looked at. */
    bool require_cert, no_verify;
    bool no_name; /* connecting: the certificate may be for any host */
};

NODISCARD int quic_tls_new_server(struct quic_tls **out, struct quic_shared *s,
                                  const struct quic_tls_params *p,
                                  struct err *e);
/* Without a CA file the system's store vouches for servers. */
NODISCARD int quic_tls_new_client(struct quic_tls **out,
                                  const struct quic_tls_params *p,
                                  struct err *e);
struct quic_tls *quic_tls_ref(struct quic_tls *t);
void quic_tls_unref(struct quic_tls *t); /* NULL is fine */

/* --- host ---------------------------------------------------------------- */

NODISCARD int quic_host_new(struct quic_host **out, struct loop *loop,
                            struct err *e);

/* Writes what is queued, closes all that is left. */
void quic_host_free(struct quic_host *h);

/* --- listening ----------------------------------------------------------- */

/* Binds n UDP sockets to one address, steered by connection ID: descriptor i
 * is worker i's for as long as the process lives, since closing one would
 * reshuffle the others. shares_port: with other processes of this account
 * (so_reuseport). */
NODISCARD int quic_sockets_open(int *fds, int n, bool shares_port,
                                const struct addr *at, struct err *e);

/* The listeners of one address, one for each worker. A datagram that comes to
 * one of them and is another's, or another process's of that port, is passed
 * on. Made before the listeners, freed when their threads are gone; each loop
 * is set before any of them listens. */
struct quic_group;
struct quic_group *quic_group_new(struct quic_shared *s, int n_workers,
                                  bool shares_port);
void quic_group_set_loop(struct quic_group *g, int worker, struct loop *loop);
void quic_group_free(struct quic_group *g); /* NULL is fine */

/* Congestion control of what we send. */
enum quic_congestion {
    QUIC_CONGESTION_CUBIC,
    QUIC_CONGESTION_RENO,
    QUIC_CONGESTION_BBR,
};

/* Flow control of what we receive: bytes to begin with, and what it may grow
 * to while the path could carry more. */
struct quic_windows {
    uint64_t stream, stream_max, conn, conn_max;
};

struct quic_limits {
    enum quic_congestion congestion;
    struct quic_windows windows;
    int max_streams;              /* of a connection, at once */
    int max_conns_per_host;       /* of the process; 0: no limit */
    int retry_above;              /* half-open connections of a worker */
    int64_t idle_timeout_us;      /* a connection without a word */
    int64_t handshake_timeout_us; /* from the first packet on */
};

struct quic_listener_params {
    int fd, worker, n_workers;
    struct quic_group *group; /* NULL: alone */
    struct quic_shared *shared;
    struct quic_tls *tls; /* a reference of the listener's own is taken */
    struct quic_limits limits;
    /* A new session: sets the stream's owner, or returns false to refuse. */
    bool (*on_stream)(void *arg, struct stream *s, const struct addr *peer);
    void *arg;
};

NODISCARD int quic_listener_new(struct quic_listener **out,
                                struct quic_host *host,
                                const struct quic_listener_params *p,
                                struct err *e);

/* For connections to come. */
void quic_listener_set(struct quic_listener *l, struct quic_tls *tls,
                       const struct quic_limits *limits);

/* Takes no new connections and sessions, and says so to those there are. */
void quic_listener_drain(struct quic_listener *l);

/* An upgrade: another process of this account receives from the socket, passes
 * on what is ours, and takes all new connections; or that has ended, and we do
 * so again. */
void quic_listener_give_away(struct quic_listener *l, bool is_given_away);

/* Closes the connections and the socket. */
void quic_listener_close(struct quic_listener *l);

/* --- connecting ----------------------------------------------------------- */

struct quic_conn_handler {
    /* Shaken hands: streams may be opened. */
    void (*on_up)(struct quic_conn *c);
    /* Refused, lost or closed; the streams have been told. c is gone when this
     * returns. */
    void (*on_down)(struct quic_conn *c, const struct err *e);
    /* The peer wants no new sessions here. */
    void (*on_drain)(struct quic_conn *c);
    /* A stream has ended, or the peer allows more of them. */
    void (*on_room)(struct quic_conn *c);
};

/* What is kept of one connection for the next to the same server. Zero to
 * begin with. */
struct quic_memory {
    void *ticket, *token;
    size_t ticket_n, token_n;
};
void quic_memory_clear(struct quic_memory *m);

struct quic_connect_params {
    struct quic_tls *tls;
    const char *host; /* for SNI and the check of the certificate */
    bool is_tunnel;   /* offers QUIC_ALPN_EDGE before the others */
    const char *alpn; /* NULL: the usual ones; "": none, for tests */
    enum quic_congestion congestion;
    struct quic_memory *memory; /* outlives the connection; NULL: none */
    int64_t idle_timeout_us, handshake_timeout_us;
};

NODISCARD int quic_connect(struct quic_conn **out, struct quic_host *host,
                           const struct addr *to,
                           const struct quic_connect_params *p,
                           const struct quic_conn_handler *h, void *owner,
                           struct err *e);

/* NULL when there is no room, or not yet a connection. */
struct stream *quic_open_stream(struct quic_conn *c,
                                const struct stream_handler *h, void *owner);

/* Another stream of the connection that s is on; NULL as above, or when that
 * was lost. */
struct stream *quic_open_beside(struct stream *s,
                                const struct stream_handler *h, void *owner);

/* The peer takes no new sessions on the connection of s. */
bool quic_stream_is_draining(const struct stream *s);

void *quic_conn_owner(const struct quic_conn *c);
bool quic_conn_is_up(const struct quic_conn *c);
bool quic_conn_is_draining(const struct quic_conn *c);
int quic_conn_streams(const struct quic_conn *c);
/* Streams that the peer lets us open now. */
uint64_t quic_conn_room(const struct quic_conn *c);

/* Says goodbye; no callback follows. */
void quic_conn_close(struct quic_conn *c, enum quic_code code);

/* --- looking at it ---------------------------------------------------------
 */

/* Which connection (SHOW QUIC tells its id), and which of its streams; false
 * for a stream of another kind, or of a connection that is lost. */
bool quic_stream_ids(const struct stream *s, uint64_t *conn, int64_t *stream);

/* Datagrams of a worker that came to the wrong socket. */
struct quic_host_counts {
    uint64_t forwarded; /* to us by another worker */
    uint64_t relayed;   /* to us by another process */
    uint64_t lost;      /* by us to somebody who had no room */
};
void quic_host_get_counts(const struct quic_host *h,
                          struct quic_host_counts *out);

struct quic_conn_view {
    uint64_t id; /* in this process */
    bool is_server, is_up, is_draining, is_resumed;
    const char *alpn;
    struct addr peer;
    int streams, max_streams;
    int64_t age_us, srtt_us, min_rtt_us;
    uint64_t cwnd, in_flight;
    uint64_t bytes_in, bytes_out, packets_in, packets_out;
    uint64_t frames_out; /* stream frames, for frames per packet */
    uint64_t sends;      /* system calls */
    uint64_t rebindings;
    uint64_t packet_size; /* UDP payload that the path takes, as far as known */
    uint64_t black_holes; /* times that large packets got nowhere */
};
void quic_host_each(struct quic_host *h,
                    void (*cb)(void *arg, const struct quic_conn_view *v),
                    void *arg);

/* Since the host was made, over all its connections. */
struct quic_totals {
    uint64_t full, resumed, failed; /* handshakes */
    uint64_t refused, retries;      /* of strangers */
    uint64_t bytes_in, bytes_out, packets_in, packets_out, sends;
    uint64_t rebindings;
};
void quic_host_totals(const struct quic_host *h, struct quic_totals *out);

#endif
