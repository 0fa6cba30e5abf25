/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* All listening sockets of the process. Each worker accepts on TCP sockets of
 * its own; what the kernel does not spread (Unix sockets, and sockets that a
 * service manager handed over) is accepted by the main thread and dealt out to
 * the workers in turn. Main thread, but for listeners_close_on(). */
#ifndef MAIN_LISTENERS_H
#define MAIN_LISTENERS_H

#include <sys/types.h>

#include "conf/conf.h"
#include "worker/team.h"

struct listeners;

/* Opens everything that the configuration names, while we may still be root;
 * files are given to owner unless it is (uid_t)-1. */
NODISCARD int listeners_open(struct listeners **out, const struct conf *c,
                             int n_workers, uid_t owner, struct err *e);

/* One line each. */
void listeners_log(const struct listeners *ls);

/* Begins to accept, once the team has started. */
NODISCARD int listeners_start(struct listeners *ls, struct loop *loop,
                              struct team *team, struct err *e);

/* After a reload. */
void listeners_set_defer_accept(struct listeners *ls, int seconds);

/* Closes the TCP sockets; Unix sockets stay, for the console. */
void listeners_close_tcp(struct listeners *ls);

/* Of listeners that were never started: another process goes on with them, or
 * has closed them. */
void listeners_abandon_tcp(struct listeners *ls);

/* On a worker's thread: closes its sockets. */
void listeners_close_on(struct listeners *ls, int worker);

/* After all workers have closed theirs, or never started. */
void listeners_free(struct listeners *ls); /* NULL is fine */

#endif
