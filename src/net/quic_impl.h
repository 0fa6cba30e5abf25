/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The objects of QUIC, for the quic_*.c files only; others use quic.h.
 *
 *   quic_shared.c   secrets, connections per address
 *   quic_socket.c   opening, steering, receiving, sending UDP
 *   quic_host.c     the turn of the loop: who is told what, what is written
 *   quic_demux.c    a datagram to its connection, or the answer to a stranger
 *   quic_cid.c      connection IDs
 *   quic_group.c    datagrams that came to the wrong worker or process
 *   quic_conn.c     a connection: callbacks of ngtcp2, timer, end
 *   quic_mtu.c      paths that swallow large packets
 *   quic_write.c    packing what the streams have to say
 *   quic_stream.c   a stream
 *   quic_tls.c      GnuTLS
 *
 * ngtcp2 in Debian keeps its asserts: a wrong call or a clock read backwards
 * ends the process. So the clock is read by quic_now() alone, and ngtcp2 is
 * called from quic_conn.c, quic_write.c and quic_demux.c alone, never from
 * inside a call into a stream. */
#ifndef NET_QUIC_IMPL_H
#define NET_QUIC_IMPL_H

#include <netinet/in.h>
#include <ngtcp2/ngtcp2.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/quic.h"
#include "net/quic_cid.h"
#include "net/quic_sendq.h"
#include "net/quic_tls.h"

enum {
    QUIC_RX_BATCH = 16,        /* datagrams, each of them possibly merged */
    QUIC_DATAGRAM_MAX = 65536, /* GRO puts so much together */
    QUIC_TX_BYTES = 65536,     /* one GSO send */
    QUIC_PACKET_MAX = 1452,    /* UDP payload over IPv4 and IPv6 Ethernet */
    QUIC_GSO_MAX = 60,         /* packets of one send; the kernel takes 64 */
    QUIC_SMALL_BYTES = 8192,   /* up to here a stream goes before bulk */
    QUIC_SMALL_RUN = 32,       /* small frames between two of bulk */
    QUIC_FLUSH_BYTES = 512 * 1024, /* of one connection in one turn */
    QUIC_LINGER_US = 5 * 1000000,  /* to get rid of a closed stream's rest */
    QUIC_CLOSE_MAX = 256,          /* size of the last packet */
    QUIC_INITIAL_RTT_MS = 30,
};

/* Of a client: it asked for what comes. */
static const struct quic_windows quic_client_windows = {
    .stream = 256 * 1024,
    .stream_max = 8 << 20,
    .conn = 16 << 20,
    .conn_max = 16 << 20,
};

/* Of the control stream: docs/quic-protocol.md. */
enum { QUIC_CONTROL_STREAM = 0x50, QUIC_CONTROL_DRAIN = 0x01 };

/* Keeps packets at one size when more follow, from ngtcp2 1.12 on. */
#ifdef NGTCP2_WRITE_STREAM_FLAG_PADDING
#define QUIC_WRITE_FLAG_PADDING NGTCP2_WRITE_STREAM_FLAG_PADDING
#else
#define QUIC_WRITE_FLAG_PADDING 0x00u
#endif

/* Nanoseconds for ngtcp2: never back, for all connections of a thread. */
static inline ngtcp2_tstamp quic_now(void)
{
    return (ngtcp2_tstamp)clock_now_us() * NGTCP2_MICROSECONDS;
}

/* --- shared ----------------------------------------------------------------
 */

/* For tokens and stateless resets. */
struct slice quic_shared_secret(const struct quic_shared *s);

/* Drawn at its making; tells this process from others of the port. */
uint32_t quic_shared_process(const struct quic_shared *s);

/* One more or less connection of this address; false when it has max. */
bool quic_shared_enter(struct quic_shared *s, const struct addr *peer, int max);
void quic_shared_leave(struct quic_shared *s, const struct addr *peer);

/* --- UDP --------------------------------------------------------------------
 */

struct quic_batch; /* waits for the socket to take it */

struct quic_socket {
    struct quic_host *host;
    struct list node; /* in host.sockets */
    struct io io;
    struct task rx; /* more to receive than one turn takes */
    struct addr local;
    bool is_any;       /* bound to no address: each datagram says its own */
    bool is_connected; /* of an outgoing connection */
    bool is_closed;
    bool is_given_away; /* another process reads it */
    bool no_gso;
    struct quic_batch *stuck, **stuck_end;
    struct list conns;
    int n_half_open;
    struct quic_conn *client;       /* is_connected: whose it is */
    struct quic_listener *listener; /* else */
    struct quic_cids cids;
    uint64_t n_strangers; /* packets that belong to no connection */
    int64_t quiet_until_us;
    int n_told; /* log lines and answers to strangers of this second */
};

/* A descriptor that talks to one address, or a negative code. */
NODISCARD int quic_udp_connect(const struct addr *to, struct err *e);

/* Registers fd, which it owns from then on. */
NODISCARD int quic_socket_new(struct quic_socket **out, struct quic_host *h,
                              int fd, struct err *e);
void quic_socket_close(struct quic_socket *s);

/* From now on, or no longer, another process receives; we go on sending, and
 * hear of what is ours by the relay of quic_group.c. */
void quic_socket_give_away(struct quic_socket *s, bool is_given_away);

/* Sends n bytes as packets of seg bytes, the last one possibly shorter; what
 * the socket does not take is kept for later. */
void quic_socket_send(struct quic_socket *s, const ngtcp2_path *path,
                      const uint8_t *p, size_t n, size_t seg);
bool quic_socket_is_full(const struct quic_socket *s);

/* At most so many answers to strangers and log lines about them a second. */
bool quic_socket_may_tell(struct quic_socket *s);

/* quic_demux.c: one datagram; another socket may have received it for us. */
void quic_demux(struct quic_socket *s, const struct addr *from,
                const struct addr *to, uint8_t *p, size_t n, bool is_passed_on);

/* --- host -------------------------------------------------------------------
 */

struct quic_host {
    struct loop *loop;
    struct task task;
    bool has_yielded;  /* of the task, once before it flushes */
    struct list dirty; /* connections to write */
    struct list owed;  /* streams whose owner is to be told something */
    struct list sockets;
    struct quic_chunks chunks;
    struct quic_host_counts counts;
    char *rx, *tx;
    struct quic_totals totals; /* traffic: of connections that are gone */
};

void quic_host_wake(struct quic_host *h);

/* c is about to go: what it counted stays. */
void quic_host_keep_counts(const struct quic_conn *c);

/* --- listener ---------------------------------------------------------------
 */

struct quic_listener {
    struct quic_socket *socket;
    struct quic_listener_params p;
    struct quic_relay *relay; /* where other processes pass on to */
    uint8_t steer, found;     /* on a shared port: see quic_group.c */
    uint8_t secret[8];
    int64_t seek_after_us;
    bool is_draining;
};

/* What its connection IDs say. */
struct quic_place quic_listener_place(const struct quic_listener *l);

/* quic_group.c. Joining finds the place of a listener on a shared port. */
NODISCARD int quic_group_join(struct quic_listener *l, struct err *e);
void quic_group_leave(struct quic_listener *l);

/* Takes a datagram that is another worker's or process's; false: it is ours, or
 * a stranger's. */
bool quic_group_pass_on(struct quic_listener *l, const ngtcp2_version_cid *vc,
                        const struct addr *from, const struct addr *to,
                        const uint8_t *p, size_t n);

/* Looks for the place again, at most once a second; a datagram that tells. */
void quic_group_seek(struct quic_listener *l);
bool quic_group_found(struct quic_listener *l, const uint8_t *p, size_t n);

/* --- connection -------------------------------------------------------------
 */

enum quic_conn_state {
    QUIC_CONN_HANDSHAKE,
    QUIC_CONN_UP,
    QUIC_CONN_CLOSING,  /* we said goodbye, and say it again when asked */
    QUIC_CONN_DRAINING, /* the peer did, or nobody is there */
    QUIC_CONN_GONE,     /* memory goes at the end of the turn */
};

/* See quic_mtu.c; times of the loop, 0: none. */
struct quic_mtu {
    int64_t large_us; /* a large packet left */
    int64_t look_us, again_us, pause_us;
    bool is_small;
};

struct quic_conn {
    uint64_t id; /* in this process */
    ngtcp2_conn *q;
    struct quic_host *host;
    struct quic_socket *socket;
    struct list node;       /* in socket.conns */
    struct list node_dirty; /* in host.dirty */
    struct timer timer;
    struct list streams;     /* struct quic_stream.node */
    struct list small, bulk; /* those with something to say */
    struct list doomed; /* closed ones that still have a rest, the oldest first
                         */
    int n_streams;
    uint8_t state; /* enum quic_conn_state */
    bool is_server, is_half_open, is_counted, is_paced;
    bool is_draining;   /* no new sessions, from either side */
    bool has_orders;    /* of closed streams, for the flush */
    uint8_t alert;      /* we refused the handshake for; 0: did not */
    uint8_t control_at; /* of the peer's control stream: what comes next */
    uint8_t control_skip;
    uint8_t n_small; /* in a row */
    struct quic_session *tls;
    struct quic_identity who;
    const struct quic_conn_handler *handler;
    void *owner;
    struct quic_memory *memory;
    size_t held, owed_window; /* bytes of paused streams; credit kept back */
    size_t held_max;          /* above it credit is kept back */
    int64_t drain_stream;     /* -1: none */
    size_t drain_sent;
    int64_t close_code;        /* to be sent by the next flush; -1: none */
    struct addr peer, counted; /* now; when it was counted */
    int64_t start_us;
    struct err why; /* it ended */
    uint8_t *last;  /* the closing packet */
    size_t last_n;
    unsigned n_last_asked;
    uint64_t bytes_in, bytes_out, packets_in, packets_out, frames_out, sends;
    uint64_t rebindings, black_holes;
    struct quic_mtu mtu;
};

/* A datagram from a stranger that begins a connection. token_type and odcid
 * say what its token proved. */
struct quic_accept {
    const ngtcp2_pkt_hd *hd;
    const ngtcp2_cid *odcid; /* after a Retry; NULL: none */
    ngtcp2_token_type token_type;
    const ngtcp2_path *path;
    const struct addr *peer;
};
struct quic_conn *quic_conn_accept(struct quic_socket *s,
                                   const struct quic_accept *a);

void quic_conn_read(struct quic_conn *c, const ngtcp2_path *path, uint8_t *p,
                    size_t n);
void quic_conn_mark_dirty(struct quic_conn *c);

/* Writes everything that may be written now; sets the timer. */
void quic_conn_flush(struct quic_conn *c);

/* rv of ngtcp2, or 0 with an application code: tells the streams and the owner,
 * says goodbye, lingers. */
void quic_conn_fail(struct quic_conn *c, int rv);
void quic_conn_end(struct quic_conn *c, uint64_t code, const struct err *why);

/* The peer's ICMP said that nobody listens. */
void quic_conn_refused(struct quic_conn *c, int cause);
void quic_conn_say_drain(struct quic_conn *c);
void quic_conn_set_timer(struct quic_conn *c);

/* At once, without a word. */
void quic_conn_destroy(struct quic_conn *c);

/* quic_mtu.c: how large a packet may be; one of n bytes was written; look for
 * silence before the next; the path is another. */
size_t quic_mtu_limit(const struct quic_conn *c, size_t max);
void quic_mtu_note_packet(struct quic_conn *c, size_t n);
void quic_mtu_watch(struct quic_conn *c);
void quic_mtu_new_path(struct quic_conn *c);

/* Bytes arrived, or left a paused stream: the connection's window. */
void quic_conn_credit(struct quic_conn *c, size_t n);

/* --- stream -----------------------------------------------------------------
 */

struct quic_stream {
    struct stream s;
    struct quic_conn *conn; /* NULL: lost */
    struct list node, node_ready, node_owed, node_doomed;
    int64_t id;
    struct quic_sendq out;
    struct bufq in;   /* of a paused stream */
    size_t kept_back; /* bytes the owner took whose credit was not given */
    int64_t doomed_us;
    int64_t waits_us; /* for an acknowledgement since then; 0: does not */
    int error;        /* a code of err.def to be told; 0: none */
    bool is_gone;     /* ngtcp2 has closed it */
    bool is_owned;    /* between its making and stream_close() */
    bool is_blocked;  /* by the peer's window */
    bool fin_wanted, fin_sent;
    bool fin_received, eof_told, error_told;
    bool is_cut;     /* reset or STOP_SENDING by the peer, or reset by us */
    bool wants_stop; /* STOP_SENDING to be sent */
    bool wants_reset;
    uint16_t reset_code;
};

struct quic_stream *quic_stream_new(struct quic_conn *c, int64_t id);
void quic_stream_receive(struct quic_stream *t, const uint8_t *p, size_t n,
                         bool is_last);
void quic_stream_acked(struct quic_stream *t, uint64_t offset);
void quic_stream_tell_error(struct quic_stream *t, int code, const char *text);
void quic_stream_gone(struct quic_stream *t);
void quic_stream_lost(struct quic_stream *t, const struct err *why);
void quic_stream_deliver(struct quic_stream *t);
void quic_stream_mark_ready(struct quic_stream *t);
void quic_stream_note_sent(struct quic_stream *t, size_t n);
/* Nothing is left of it on either side: memory goes. */
void quic_stream_forget(struct quic_stream *t);
void quic_stream_refuse(struct quic_stream *t, enum quic_code code);

#endif
