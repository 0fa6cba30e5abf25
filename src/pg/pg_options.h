/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The start-up parameter `options`: a command line, split at blanks, backslash
 * takes the next byte as it is, then read as PostgreSQL reads its own. The
 * caller owns everything. Any thread; no state. */
#ifndef PG_PG_OPTIONS_H
#define PG_PG_OPTIONS_H

#include "base/err.h"
#include "base/slice.h"

struct pg_options {
    const char *p, *end; /* what is left to split */
    char *buf;           /* the caller's; unescaped words go here */
    size_t n, cap;       /* used, given */
    struct slice word;   /* of switches, "-ec" */
    size_t at;           /* how far into it */
};

enum pg_option_kind {
    PG_OPTION_END,
    PG_OPTION_SETTING, /* -c name=value, --name=value */
    PG_OPTION_SWITCH,  /* any other: its letter is the name, its argument, if
                        * it takes one, the value */
};

struct pg_option {
    enum pg_option_kind kind;
    struct slice name; /* of a setting: '-' replaced by '_', as PostgreSQL */
    struct slice value;
};

/* buf holds what next() returns: it must have room for options.n bytes and
 * live as long as the slices are used. */
void pg_options_init(struct pg_options *o, struct slice options, char *buf);

/* 0 and the next one in *out, PG_OPTION_END after the last. ERR_SYNTAX (42601)
 * with PostgreSQL's text where PostgreSQL would refuse; call no further. */
NODISCARD int pg_options_next(struct pg_options *o, struct pg_option *out,
                              struct err *e);

#endif
