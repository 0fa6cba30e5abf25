/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The page of GET /metrics. A scrape makes an object, sends it round the
 * workers (team_gather() with metrics_collect()), and writes the page from what
 * came home, on whatever thread it likes: no worker is waited for or made to
 * wait. One thread has the object at a time. */
#ifndef ADMIN_METRICS_H
#define ADMIN_METRICS_H

#include "pg/pg_write.h"
#include "pool/shard.h"

struct metrics;
struct shared;

enum { METRICS_PAGE_MAX = 256 << 20 };

struct metrics *metrics_new(struct shared *shared);
void metrics_free(struct metrics *m);

/* Adds what this worker has; on its thread. */
void metrics_collect(struct shard *sh, void *m);

/* Writes the page; out->failed when it is too large. */
void metrics_put(struct metrics *m, struct pgbuf *out);

/* How an attempt to read the configuration went, the one at start included. Any
 * thread. */
void metrics_note_reload(bool is_good);

/* Of process_*: metrics_process.c. */
void metrics_put_process(struct pgbuf *out);

#endif
