/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The console's grammar: one statement a text,
 *
 *     VERB [argument]                     PAUSE mydb;
 *     SET key = value | SET key TO value  SET query_timeout = '5s'
 *
 * with "quoted" words, 'quoted' values, SQL comments and trailing semicolons.
 * A bare argument or value may hold anything but blanks, quotes and semicolons.
 * Pure; any thread. */
#ifndef ADMIN_SYNTAX_H
#define ADMIN_SYNTAX_H

#include "base/err.h"
#include "base/slice.h"

enum {
    SYNTAX_VERB_MAX = 32,
    SYNTAX_ARG_MAX = 128,
    SYNTAX_VALUE_MAX = 2048,
};

enum syntax_kind {
    SYNTAX_EMPTY, /* blanks, comments, semicolons */
    SYNTAX_COMMAND,
    SYNTAX_SET,
};

struct syntax {
    enum syntax_kind kind;
    bool has_arg;
    char verb[SYNTAX_VERB_MAX];   /* as written */
    char arg[SYNTAX_ARG_MAX];     /* unquoted; SET: the key */
    char value[SYNTAX_VALUE_MAX]; /* SET only */
};

/* 0, ERR_SYNTAX, or ERR_TOO_LARGE when a word does not fit. */
NODISCARD int syntax_parse(struct slice text, struct syntax *out);

#endif
