/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What makes a program a service: its account, the background, the limit on
 * open files. Main thread, before any other thread runs. */
#ifndef MAIN_DAEMON_H
#define MAIN_DAEMON_H

#include <sys/types.h>

#include "base/err.h"

struct daemon_user {
    const char *name; /* NULL: stay who we are */
    uid_t uid;
    gid_t gid;
};

/* Looks up the account to run as; name may be NULL or "". Refuses to run as
 * root. */
NODISCARD int daemon_find_user(const char *name, struct daemon_user *out,
                               struct err *e);

/* Becomes that account for good, with its groups. */
NODISCARD int daemon_become(const struct daemon_user *u, struct err *e);

/* Goes on in a child in the background; *report stays open for
 * daemon_report_up(). The parent waits until the child is up or has ended, and
 * exits with 0 or 1. */
NODISCARD int daemon_fork(int *report, struct err *e);

/* In the child: lets the parent go, and leaves the terminal. */
void daemon_report_up(int *report);

/* Raises the soft limit on open files to the hard one; returns it. */
uint64_t daemon_raise_files(void);

#endif
