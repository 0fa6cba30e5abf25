/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The file that names the running process. path may be NULL or "": no file.
 * Main thread. */
#ifndef MAIN_PIDFILE_H
#define MAIN_PIDFILE_H

#include "base/err.h"

/* Removes the file of a process that is gone; an error when it lives. */
NODISCARD int pidfile_check(const char *path, struct err *e);

/* Appears whole, and only if nobody else's is there. */
NODISCARD int pidfile_write(const char *path, struct err *e);

/* In place of whatever is there: the process that it named has made way. */
NODISCARD int pidfile_replace(const char *path, struct err *e);

void pidfile_remove(const char *path);

/* Only if it still names this process. */
void pidfile_release(const char *path);

#endif
