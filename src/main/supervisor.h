/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* With `supervisor` the process that was started does not serve: it holds the
 * listening sockets and the pid file, and its child serves. A child that
 * crashes is followed by another on the same sockets; what clients ask for
 * meanwhile waits in the kernel. Called by the main thread before any other
 * runs; then each side has its part. */
#ifndef MAIN_SUPERVISOR_H
#define MAIN_SUPERVISOR_H

#include "base/err.h"

struct app;

/* Decides what `auto` means, before the option is looked at. */
void supervisor_settle(struct app *app);

/* Returns in the child, each time that one begins to serve: why is "" for the
 * first, else what became of the one before. The parent never returns: it ends
 * with its child. */
void supervisor_run(struct app *app, char *why, size_t why_cap);

/* In the child. Nothing happens without a supervisor. */
void supervisor_tell_up(struct app *app);
void supervisor_tell_stopping(struct app *app);
/* The service goes on in another process (an upgrade); it came back. */
void supervisor_tell_left(struct app *app);
void supervisor_tell_back(struct app *app);

#endif
