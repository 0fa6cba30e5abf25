/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Tells the service manager that we are alive, where it wants to hear so
 * (WatchdogSec= of systemd): each time that a message has been to all workers.
 * Main thread. */
#ifndef MAIN_WATCHDOG_H
#define MAIN_WATCHDOG_H

struct app;

void watchdog_start(struct app *app);

#endif
