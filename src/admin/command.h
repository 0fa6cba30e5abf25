/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The rows of command.def and how a statement finds its own. Pure; any thread.
 */
#ifndef ADMIN_COMMAND_H
#define ADMIN_COMMAND_H

#include "admin/syntax.h"
#include "admin/table.h"

struct job;

enum command_arg { ARG_NONE, ARG_OPTIONAL, ARG_REQUIRED };
enum command_access { ACCESS_STATS, ACCESS_ADMIN };

struct command {
    const char *verb;
    const char *object; /* behind SHOW; NULL for other verbs */
    enum command_arg arg;
    enum command_access access;
    enum table_id table;
    void (*run)(struct job *j); /* ends with job_done() or job_fail(), now or
                                 * later */
    const char *usage, *help;   /* usage NULL: not listed */
};

/* NULL: no such command, or it does not take that argument. */
const struct command *command_find(const struct syntax *s);

/* In the order of the file; NULL after the last. */
const struct command *command_at(size_t i);

#define CMD(verb, object, arg, access, table, run, usage, help)                \
    void run(struct job *j);
#include "admin/command.def"
#undef CMD

#endif
