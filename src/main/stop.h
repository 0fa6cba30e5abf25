/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Pausing and ending, at the word of a signal or of the console. Main thread.
 *
 *   WAIT_FOR_CLIENTS  TCP sockets are closed, sessions go on until they leave
 *   WAIT_FOR_SERVERS  TCP sockets are closed, nobody gets a server any more;
 *                     ends when all servers in use were released
 *   NOW               ends
 *
 * Meanwhile the Unix socket takes console sessions. */
#ifndef MAIN_STOP_H
#define MAIN_STOP_H

#include "admin/control.h"

struct app;

void stop_begin(struct app *app, enum shutdown_mode mode);

/* Ends after an upgrade: the service goes on elsewhere. */
void stop_quietly(struct app *app);

/* SIGUSR1 and SIGUSR2. */
void stop_pause(struct app *app);
void stop_resume(struct app *app);

#endif
