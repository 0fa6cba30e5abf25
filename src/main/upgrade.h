/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The old process's part of an upgrade: starts the new program, offers its
 * sockets, gives up accepting and the budget when that is ready, and then lets
 * go of its sessions (generation.h). Until the new process serves, every
 * failure leaves everything as it was; if it dies later, this one goes on, too.
 * Main thread. */
#ifndef MAIN_UPGRADE_H
#define MAIN_UPGRADE_H

#include <limits.h>

#include "admin/control.h"
#include "main/listeners.h"
#include "net/fdlink.h"

struct app;

/* In the environment of a program that is to take over: its descriptor. */
#define UPGRADE_VARIABLE "PGBRAID_TAKEOVER"

enum upgrade_state {
    UPGRADE_NONE,
    UPGRADE_STARTING,  /* until it is ready */
    UPGRADE_PAUSING,   /* nobody accepts any more */
    UPGRADE_COMMITTED, /* until it serves */
    UPGRADE_LEAVING,   /* it serves */
};

struct upgrade {
    enum upgrade_state state;
    int pid, main_pid; /* of the program; of the process to be watched */
    bool has_supervisor;
    struct timer timer;
    struct loop *asker;
    control_done_cb done;
    void *arg;
};

/* What argv[0] stands for, before anybody changes the working directory. */
void upgrade_find_program(const char *name, char out[PATH_MAX]);
void upgrade_note_program(struct app *app, int argc, char **argv);

/* program, file: NULL for this one's own. done(arg, e) follows, once, on this
 * loop. */
void upgrade_begin(struct app *app, const char *program, const char *file,
                   control_done_cb done, void *arg);

void upgrade_init(struct app *app);

/* The port was another process's until now. It is not worth a failure. */
void upgrade_open_metrics(struct app *app);

/* From generation.c. */
void upgrade_on_frame(struct app *app, const struct fdlink_frame *f);
void upgrade_on_lost(struct app *app, const char *why, bool said_bye);

/* The process is told to end: an upgrade under way is given up. */
void upgrade_stop(struct app *app);

/* This process has given its place away. */
bool upgrade_has_left(const struct app *app);

#endif
