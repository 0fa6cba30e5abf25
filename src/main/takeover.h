/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The new process's part of an upgrade, up to the moment when it serves; see
 * generation.h. Main thread, before its loop runs. With app->takeover == NULL,
 * an ordinary start, all of these do nothing. */
#ifndef MAIN_TAKEOVER_H
#define MAIN_TAKEOVER_H

#include "base/err.h"
#include "main/listeners.h"

struct app;
struct takeover;

/* Whether the environment says so: sets app->takeover. Call once, first. */
NODISCARD int takeover_look(struct app *app, struct err *e);

/* After the configuration was read: what the old process offers. */
NODISCARD int takeover_begin(struct app *app, struct err *e);
struct given *takeover_given(struct app *app);

/* After shared_new(). */
void takeover_apply_state(struct app *app);

/* Everything is ready but for accepting. */
NODISCARD int takeover_commit(struct app *app, struct err *e);

/* We accept. */
void takeover_serving(struct app *app);

/* Tells the old process why not. */
void takeover_fail(struct app *app, const char *why);

/* In a supervisor: the link is its child's. */
void takeover_drop(struct app *app);

#endif
