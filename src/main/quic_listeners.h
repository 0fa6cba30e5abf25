/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The UDP sockets of QUIC, one a worker and address, made once and kept: the
 * kernel steers by their order. Main thread, but for what says otherwise. */
#ifndef MAIN_QUIC_LISTENERS_H
#define MAIN_QUIC_LISTENERS_H

#include "conf/conf.h"
#include "main/listeners.h"
#include "worker/team.h"

struct quic_listeners;

/* *out is NULL when the configuration has no QUIC. Reads keys, binds ports:
 * while we may still be root. */
NODISCARD int quic_listeners_open(struct quic_listeners **out,
                                  const struct conf *c, int n_workers,
                                  struct given *given, struct err *e);

/* All of these do nothing with NULL. */
/* Whether the certificates that a configuration names can be used. */
NODISCARD int quic_listeners_check(const struct conf *c, struct err *e);

void quic_listeners_log(const struct quic_listeners *q);
void quic_listeners_start(struct quic_listeners *q, struct team *team);

/* Keys and limits of a new configuration: for connections to come. On failure
 * the old ones stay in force. */
NODISCARD int quic_listeners_reload(struct quic_listeners *q,
                                    const struct conf *c, struct err *e);

/* For a newer process, which needs as many workers: a connection ID names one.
 */
void quic_listeners_give(const struct quic_listeners *q, struct given *out);

/* That one receives now, or we do again. */
void quic_listeners_give_away(struct quic_listeners *q, bool is_given_away);

/* No new connections and sessions; edges are told to go elsewhere. */
void quic_listeners_drain(struct quic_listeners *q);

/* On a worker's thread: ends what is left. */
void quic_listeners_close_on(struct quic_listeners *q, struct shard *sh);

void quic_listeners_free(struct quic_listeners *q);

#endif
