/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The command line as a value. Pure; the strings belong to argv. */
#ifndef MAIN_ARGS_H
#define MAIN_ARGS_H

#include "base/err.h"

enum args_mode {
    ARGS_RUN,
    ARGS_CHECK,
    ARGS_UPGRADE,
    ARGS_REBOOT, /* ARGS_UPGRADE, or ARGS_RUN when nothing runs */
    ARGS_HELP,
    ARGS_VERSION,
};

struct args {
    enum args_mode mode;
    const char *file; /* not with ARGS_HELP, ARGS_VERSION */
    const char *user; /* NULL: the configuration's */
    bool is_daemon, is_quiet;
    int verbose;
};

/* The error says what is wrong with which option. */
NODISCARD int args_parse(struct args *out, int argc, char **argv,
                         struct err *e);

extern const char args_help[];

#endif
