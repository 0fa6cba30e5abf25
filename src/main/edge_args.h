/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The command line of `pgbraid edge` and `pgbraid run`, and the file of the
 * former, as a value. conf/edge.def has the options. */
#ifndef MAIN_EDGE_ARGS_H
#define MAIN_EDGE_ARGS_H

#include "edge/edge.h"

enum { EDGES_MAX = 64, EDGE_SETTINGS_MAX = 1024, EDGE_NAME_MAX = 63 };

enum edge_mode { EDGE_SERVE, EDGE_RUN, EDGE_HELP };

enum edge_mptcp {
    EDGE_MPTCP_UNSET,
    EDGE_MPTCP_OFF,
    EDGE_MPTCP_ON,
    EDGE_MPTCP_REQUIRE
};

struct edge_plan {
    char name[EDGE_NAME_MAX + 1]; /* "": it has none */
    struct edge_options o;
    enum edge_mptcp mptcp; /* as it was given */
};

/* As it was given. The owner of the strings is the value. */
struct edge_setting {
    int of; /* number of the edge, or one of the two below */
    int id;
    char *value; /* NULL: a switch */
};
enum { EDGE_OF_ALL = -1, EDGE_OF_COMMAND_LINE = -2 };

struct edge_args {
    enum edge_mode mode;
    int n;
    struct edge_plan edge[EDGES_MAX];
    char **command; /* of run; ends with NULL */
    int verbose;
    bool is_quiet, is_check;
    struct edge_setting setting[EDGE_SETTINGS_MAX];
    int n_settings;
    int section; /* while the file is read: as setting.of */
};

/* argv[0] is "edge" or "run". To be freed also after a failure. */
NODISCARD int edge_args_parse(struct edge_args *out, int argc, char **argv,
                              struct err *e);
void edge_args_free(struct edge_args *a);

void edge_args_print_help(void);

#endif
