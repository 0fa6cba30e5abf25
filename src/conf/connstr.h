/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The right-hand side of a line of [databases], [users] or [peers]:
 *
 *   key=value key = value key='quoted, '' is one quote'
 *
 * An unquoted value ends at a blank; a value may not be empty. Pure. Errors
 * never show a value, which may be part of a password. */
#ifndef CONF_CONNSTR_H
#define CONF_CONNSTR_H

#include "base/err.h"
#include "base/slice.h"

struct connstr {
    struct slice rest;
    struct slice last_key;
    char *buf; /* where values are unquoted */
};

/* buf has room for text.n + 1 bytes and lives as long as the values. */
void connstr_init(struct connstr *c, struct slice text, char *buf);

/* 1: got a pair (value ends in NUL); 0: the end; or an error. */
NODISCARD int connstr_next(struct connstr *c, struct slice *key,
                           struct slice *value, struct err *e);

#endif
