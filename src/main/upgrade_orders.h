/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Where `pgbraid --upgrade FILE` reaches the running process: a Unix socket
 * beside its pid file, else in unix_socket_dir, for the account that it runs
 * as and root. What is asked for is a program and its file; the running process
 * starts it, so that the new process has the place of the old one: account,
 * limits, control group. Main thread. */
#ifndef MAIN_UPGRADE_ORDERS_H
#define MAIN_UPGRADE_ORDERS_H

#include "base/err.h"

struct app;
struct args;

/* Without a place for it, or when it cannot be had, the console's UPGRADE is
 * the only way; the log says so. */
void upgrade_orders_open(struct app *app);
/* Without removing the file: it is the next process's. */
void upgrade_orders_close(struct app *app);
/* At the end of the process. */
void upgrade_orders_remove(struct app *app);

/* The command line's part: 0 when the new process serves, ERR_NOTFOUND when
 * nothing runs. */
NODISCARD int upgrade_order(const struct args *args, const char *program,
                            struct err *e);

#endif
