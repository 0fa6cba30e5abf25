/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* KILL and KILL_CLIENT go from worker to worker, and a client that moves
 * meanwhile could pass them. So it is looked at once more where it arrives
 * (balance.c): whoever logged in before a KILL of its database began, or is
 * named by a KILL_CLIENT under way, ends there. Any thread.
 *
 * For KILL that is all: its round meets everybody who is on a worker, and who
 * is on the way meets it at the arrival. KILL_CLIENT wants to know whether the
 * client was found: a second round comes to a worker after all that had left
 * before the first one was over, mailboxes being in order. */
#ifndef POOL_KILL_H
#define POOL_KILL_H

#include "base/base.h"

struct client;
struct db_rec;
struct shared;

enum { KILLS_AT_ONCE = 8 };

/* Before shard_kill() on each worker; db NULL: of all databases. */
void kill_begin(struct shared *s, struct db_rec *db);

/* Before shard_kill_client() on each worker, twice if need be: a number for the
 * others, or -1: too many at once, and one that moves may escape. */
int kill_begin_client(struct shared *s, uint64_t id);
bool kill_was_met(const struct shared *s, int slot);
void kill_end_client(struct shared *s, int slot);

/* A login is complete. */
void kill_note_login(struct client *c);
/* c arrives on another worker and is to be ended. */
bool kill_meets(const struct client *c);

#endif
