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

/* A socket that goes from process to process in an upgrade. */
enum given_kind { GIVEN_STREAM, GIVEN_UDP };

struct given_socket {
    int fd; /* -1: taken */
    int kind;
    int worker;   /* GIVEN_UDP */
    bool is_file; /* ours to remove */
};

enum { GIVEN_MAX = 4096 };

struct given {
    struct given_socket *at;
    int n;
    bool is_activated; /* by a service manager: all are served, as they are */
};

/* Opens everything that the configuration names, while we may still be root;
 * files are given to owner unless it is (uid_t)-1. In an upgrade what is given
 * is used where it fits (NULL: no upgrade). */
NODISCARD int listeners_open(struct listeners **out, const struct conf *c,
                             int n_workers, uid_t owner, struct given *given,
                             struct err *e);

/* One line each. */
void listeners_log(const struct listeners *ls);

/* Begins to accept, once the team has started. */
NODISCARD int listeners_start(struct listeners *ls, struct loop *loop,
                              struct team *team, struct err *e);

/* The other way: all that listens, for a newer process. */
void listeners_give(const struct listeners *ls, struct given *out);

/* Stops accepting, then done(arg) on loop: connections wait in the kernel. The
 * files are another process's, until it goes on. */
void listeners_pause(struct listeners *ls, struct loop *loop,
                     void (*done)(void *arg), void *arg);
/* The files of Unix sockets that were given are ours from now on. */
void listeners_own_files(struct listeners *ls);
void listeners_go_on(struct listeners *ls, struct loop *loop);

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
