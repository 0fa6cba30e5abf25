/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What a service manager is told, and the sockets that it hands over:
 * notify_systemd.c, or notify_none.c in a build without libsystemd. Main
 * thread. */
#ifndef MAIN_NOTIFY_H
#define MAIN_NOTIFY_H

#include "base/base.h"

void notify_ready(void);
void notify_reloading(int64_t monotonic_us);
void notify_stopping(void);
/* The service goes on in another process. */
void notify_main_pid(int pid);
void notify_status(const char *text);

/* How often it wants to hear that we are alive; 0: it does not. */
int64_t notify_watchdog_us(void);
void notify_alive(void);

/* How many listening sockets were handed over; *first is the first, the others
 * follow it. Later calls return 0. */
int notify_take_sockets(int *first);

#endif
