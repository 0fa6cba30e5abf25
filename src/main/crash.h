/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The last words of a process that crashes: what was found false, the signal
 * and a backtrace, on standard error and in the log file. Main thread. */
#ifndef MAIN_CRASH_H
#define MAIN_CRASH_H

/* Leaves signals alone that somebody else (a sanitizer) handles already. */
void crash_install(void);

/* Opens the file anew; NULL or "" closes it. */
void crash_set_logfile(const char *path);

#endif
