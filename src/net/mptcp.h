/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Multipath TCP on a socket: whether the kernel has it, whether a connection
 * uses it, and what its subflows do. A socket that carries MPTCP is read,
 * written and polled as any other; these are the questions that only it
 * answers. Any thread; no state, and no call waits. */
#ifndef NET_MPTCP_H
#define NET_MPTCP_H

#include "net/addr.h"

/* 0, or ERR_UNSUPPORTED and what has to be done about it. */
NODISCARD int mptcp_check(struct err *e);

/* socket(2) gave this errno for IPPROTO_MPTCP because there is no MPTCP. */
bool mptcp_is_missing(int cause);

enum mptcp_use {
    MPTCP_UNUSED,    /* TCP that is accepted or opened as such; Unix */
    MPTCP_FELL_BACK, /* asked for, and the other side or the path has it not */
    MPTCP_USED,
};

/* Of a connected socket. A client that speaks plain TCP to an MPTCP listener
 * counts as MPTCP_UNUSED. */
enum mptcp_use mptcp_use_of(int fd);

struct mptcp_conn {
    uint32_t token;
    int extra_subflows; /* beside the first; a dead path counts as well */
    bool has_totals;    /* the kernel knows those below (Linux 6.5) */
    uint64_t sent_bytes, received_bytes;
};

/* False unless it is MPTCP_USED. */
bool mptcp_read(int fd, struct mptcp_conn *out);

enum { MPTCP_SUBFLOWS_MAX = 16 };

struct mptcp_subflow {
    struct addr local, remote;
    uint64_t sent_bytes, received_bytes; /* sent: without what was repeated */
    uint64_t retransmits;                /* segments */
    uint32_t rtt_us, cwnd;
    int backup; /* 1, 0; -1: unknown */
};

/* False while a subflow that this side asked for was not answered yet. */
bool mptcp_is_settled(int fd);

/* How many subflows carry data now, the first one included; -1 when it does not
 * use Multipath TCP. A dead path counts until the kernel gives it up. */
int mptcp_count_subflows(int fd);

/* How many there are, at most MPTCP_SUBFLOWS_MAX; those that have ended, of
 * which the kernel keeps the first, are left out. A TCP connection without
 * MPTCP has one, whose backup is -1; any other descriptor none. */
int mptcp_read_subflows(int fd, struct mptcp_subflow out[MPTCP_SUBFLOWS_MAX]);

#endif
