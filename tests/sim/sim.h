/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A world without sockets, threads or clocks, in which the pooler's own code
 * runs between made-up clients and made-up PostgreSQLs. Everything that happens
 * follows from one seed. One thread.
 *
 * sim_loop.c and sim_sock.c stand in for src/loop/loop.c, src/base/{clock,
 * rand,log}.c, src/net/{stream_sock,resolve}.c: the linker takes theirs. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/list.h"
#include "net/addr.h"
#include "net/stream.h"

/* --- chance ----------------------------------------------------------- */

extern uint64_t sim_seed; /* of this run */
extern bool sim_verbose;
extern int64_t sim_now_us;

void sim_srand(uint64_t seed);
uint32_t rnd(uint32_t below);
bool chance(unsigned percent);

NORETURN void sim_fail(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* --- bytes ------------------------------------------------------------ */

struct bytes {
    char *p;
    size_t n, cap;
};

void bytes_add(struct bytes *b, const void *p, size_t n);
void bytes_drop(struct bytes *b, size_t n); /* from the front */
void bytes_free(struct bytes *b);

/* --- connections ------------------------------------------------------ */

/* A connection: the pooler's end is a struct stream, the other end belongs to a
 * client or a backend of the simulation, which reads wire and adds to in. */
struct conn {
    struct list node;           /* in conns */
    struct fake_stream *stream; /* NULL once the pooler closed it */
    struct bytes in;            /* for the pooler, not delivered yet */
    struct bytes wire;          /* from the pooler, taken by the transport */
    struct bytes backlog;       /* from the pooler, not taken yet */
    bool open_due, refused;
    bool peer_shut;  /* nothing follows in */
    bool peer_reset; /* reading and writing fail */
    bool peer_gone;  /* the peer let go of it */
    bool told_end;
    bool tiny;  /* everything one byte at a time */
    bool stays; /* cannot move between workers, like a stream of QUIC */
    int fd;
    struct addr to; /* of an outgoing one */
    void *peer;     /* the other end's own */
};

extern struct list conns;

/* One accepted by the pooler; its number for shard_accept(). */
struct conn *conn_accept(void);

/* The pooler opened k; backends listen here. */
extern void (*conn_on_connect)(struct conn *k);

void conn_send(struct conn *k, const void *p, size_t n);
void conn_release(struct conn *k); /* the peer is done with it */
void conns_sweep(void);            /* frees those that both ends left */
struct stream *conn_stream(const struct conn *k); /* NULL: closed */
bool conn_is_closed(const struct conn *k);

/* Lets one thing happen to a connection of this loop; false if nothing can. */
bool conn_step(struct conn *k, struct loop *loop);
bool conn_is_of(const struct conn *k, const struct loop *loop);

extern bool sim_detach_may_fail, sim_writes_may_fail;

/* --- loops ------------------------------------------------------------ */

struct loop *sim_loop_new(void);
void sim_loop_free(struct loop *l);
/* Begins a turn: the time is now. */
void sim_loop_tick(struct loop *l);
/* Mail, timers and tasks; false when there was nothing to do. */
bool sim_loop_work(struct loop *l, bool with_timers);
void sim_loop_end_turn(struct loop *l);

#endif
