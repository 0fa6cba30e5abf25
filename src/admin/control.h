/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What the console asks of the process as a whole; main provides it. The
 * functions may be called from any worker's thread; they hand the work over to
 * the main thread and return at once. done(arg, e) is called on the loop of
 * asker when it has happened; e is NULL on success. */
#ifndef ADMIN_CONTROL_H
#define ADMIN_CONTROL_H

#include "base/err.h"

struct loop;
struct team;

enum shutdown_mode {
    SHUTDOWN_NOW,
    SHUTDOWN_WAIT_FOR_SERVERS,
    SHUTDOWN_WAIT_FOR_CLIENTS,
};

typedef void (*control_done_cb)(void *arg, const struct err *e);

struct control {
    struct team *team;
    /* Reads the configuration anew and gives it to all workers. */
    void (*reload)(struct loop *asker, control_done_cb done, void *arg);
    /* The console's SET key = value. */
    void (*set)(struct loop *asker, const char *key, const char *value,
                control_done_cb done, void *arg);
    void (*shutdown)(enum shutdown_mode mode);
    /* Another process, of the program and file as they are now on disk, takes
     * over; done when it serves. */
    void (*upgrade)(struct loop *asker, control_done_cb done, void *arg);
};

/* Set once by main before the workers start. */
void control_set(const struct control *c);
const struct control *control_get(void);

/* The console's operations for shard_new(). */
struct console_ops;
extern const struct console_ops admin_console;

#endif
