/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Putting another configuration in force: all of it, or the old one stays. Main
 * thread. */
#ifndef MAIN_RELOAD_H
#define MAIN_RELOAD_H

#include "base/err.h"

struct app;
struct conf;

/* on_done(arg) is called on the main loop when all workers have it; not after
 * an error. */
typedef void (*reload_done_cb)(void *arg);

/* Reads the file, certificates and keys anew, and reopens the log. */
NODISCARD int reload_file(struct app *app, reload_done_cb on_done, void *arg,
                          struct err *e);

/* The console's SET. */
NODISCARD int reload_set(struct app *app, const char *key, const char *value,
                         reload_done_cb on_done, void *arg, struct err *e);

/* Watches auth_file, whose changes count without a reload. */
void reload_watch_users(struct app *app);

/* Also used at start. */
void reload_log_warnings(const struct conf *c);
NODISCARD int reload_open_log(const struct app *app, const struct conf *c,
                              bool is_start, struct err *e);

#endif
