/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* `pgbraid edge` and `pgbraid run`: a process of one thread. */
#ifndef MAIN_EDGE_MAIN_H
#define MAIN_EDGE_MAIN_H

#include <stdbool.h>

/* The word is one of the two. */
bool edge_main_is(const char *word);

/* argv[0] is that word. The exit status: of run the command's. */
int edge_main(int argc, char **argv);

#endif
