/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One direction of an emulated WAN: IP packets and the time go in, packets that
 * are due come out. Delay, jitter, loss, duplicates, reordering, a cap for each
 * flow and one for all, blocked addresses, and a middlebox that removes the
 * MPTCP option. No I/O and no clock; chance comes from a seed, so the same
 * packets at the same times give the same result. One thread. */
#ifndef BENCH_WAN_LINK_H
#define BENCH_WAN_LINK_H

#include "base/base.h"

struct wan_packet {
    int64_t due_ns;
    uint64_t seq; /* of packets that are due together, the first goes first */
    size_t n;
    unsigned char data[];
};

struct wan_packet *wan_packet_new(size_t n);

/* Shares are 0 to 1; rates bytes per nanosecond, 0 is no cap. */
struct wan_settings {
    double delay_ns, jitter_ns;
    double loss, loss_burst; /* burst: packets lost in a row, on average */
    double dup;
    double reorder, reorder_ns; /* that share is held back for so long */
    double rate, flow_rate;
    double queue_ns, flow_queue_ns; /* a longer wait for a cap is a drop */
    double is_unordered;            /* jitter may change the order */
    double is_down, strips_mptcp;
    double path_mtu; /* larger packets vanish without a word; 0: none */
};

struct wan_counts {
    uint64_t in, in_bytes, out, out_bytes;
    uint64_t lost, blocked, too_large, queue_drops, flow_queue_drops;
    uint64_t duplicated, reordered, stripped;
    size_t held, held_most, flows;
};

struct wan_link;

struct wan_link *wan_link_new(void);
void wan_link_free(struct wan_link *l);
void wan_link_seed(struct wan_link *l, uint64_t seed);

/* May be changed at any time; holds for packets from then on. */
struct wan_settings *wan_link_settings(struct wan_link *l);
const struct wan_counts *wan_link_counts(const struct wan_link *l);

/* Drops what comes from or goes to this address; port 0 is every port. False
 * when text is not ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT, or there are too
 * many. */
bool wan_link_block(struct wan_link *l, const char *text);
void wan_link_unblock(struct wan_link *l);

/* Takes the packet. now_ns must not go back. */
void wan_link_put(struct wan_link *l, struct wan_packet *p, int64_t now_ns);

/* The next packet that is due, to be freed by the caller; NULL for now. */
struct wan_packet *wan_link_take(struct wan_link *l, int64_t now_ns);

/* When to come back; INT64_MAX without any packet. */
int64_t wan_link_next_ns(const struct wan_link *l);

/* Sets one setting by its name (delay, loss, flow-rate, ...) from text such as
 * "15" or "1:5", in the units people use: ms, percent, Mbit/s. */
bool wan_settings_set(struct wan_settings *s, const char *name,
                      const char *text);

#endif
