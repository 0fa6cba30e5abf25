/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The command line of `pgbraid edge` and `pgbraid run` as a value. Strings
 * belong to argv, or to the value when they come from a file. */
#ifndef MAIN_EDGE_ARGS_H
#define MAIN_EDGE_ARGS_H

#include "edge/edge.h"

enum { EDGE_KEYS_MAX = 64 };

enum edge_mode { EDGE_SERVE, EDGE_RUN, EDGE_HELP };

struct edge_args {
    enum edge_mode mode;
    struct edge_options edge;
    bool has_target, has_listen;
    enum edge_mptcp {
        EDGE_MPTCP_UNSET,
        EDGE_MPTCP_OFF,
        EDGE_MPTCP_ON,
        EDGE_MPTCP_REQUIRE
    } mptcp;        /* as it was given */
    char **command; /* of run; ends with NULL */
    int verbose;
    bool is_quiet, is_check;
    char *kept[EDGE_KEYS_MAX]; /* values of the ini file */
    int n_kept;
};

/* argv[0] is "edge" or "run". */
NODISCARD int edge_args_parse(struct edge_args *out, int argc, char **argv,
                              struct err *e);
void edge_args_free(struct edge_args *a);

extern const char edge_args_help[];

#endif
