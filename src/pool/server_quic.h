/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Servers that are reached over QUIC: a pooler behind this one, to which each
 * server connection is a stream. Each worker has connections of its own, shared
 * by all its pools that lead to the same place with the same certificates. For
 * the files of this folder; the worker's thread only. */
#ifndef POOL_SERVER_QUIC_H
#define POOL_SERVER_QUIC_H

#include "conf/conf.h"
#include "net/quic_hub.h"

struct shard;

/* The connections to host and port as the line says; made when first asked
 * for. Borrowed: good for a question now. */
NODISCARD int server_quic_hub(struct shard *sh, const struct conf_db *db,
                              const char *host, int port, struct quic_hub **out,
                              struct err *e);

/* A new configuration: connections that it does not want get no new sessions.
 * With is_anew all, since files may have changed. */
void server_quic_set_conf(struct shard *sh, bool is_anew);

/* Frees what was given up and is unused by now; once a second. */
void server_quic_sweep(struct shard *sh);

/* At the end of the worker, when nobody asks any more. */
void server_quic_stop(struct shard *sh);

#endif
