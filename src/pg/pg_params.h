/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The settings that a server reports by ParameterStatus, as an immutable,
 * interned set: equal sets are one object, so that comparing a client's
 * settings with a server's is comparing two pointers, and thousands of clients
 * with the same settings share one. Any thread; references are counted
 * atomically, interning takes a lock. */
#ifndef PG_PG_PARAMS_H
#define PG_PG_PARAMS_H

#include "base/slice.h"

struct pg_params;
struct pgbuf;

enum {
    PG_PARAMS_MAX = 64,         /* settings in a set */
    PG_PARAM_VALUE_MAX = 16384, /* bytes of a value; search_path can be long */
};

/* The set without any setting. */
const struct pg_params *pg_params_empty(void);

const struct pg_params *pg_params_ref(const struct pg_params *p);
void pg_params_unref(const struct pg_params *p); /* NULL is fine */

/* p with one setting added or changed (names compare without case); takes the
 * reference to p and returns one to the result. When the setting does not fit
 * it is left out. */
NODISCARD const struct pg_params *pg_params_with(const struct pg_params *p,
                                                 struct slice name,
                                                 struct slice value);

/* The value; p == NULL in the slice when it is not in the set. */
struct slice pg_params_get(const struct pg_params *p, struct slice name);

int pg_params_count(const struct pg_params *p);
void pg_params_at(const struct pg_params *p, int i, struct slice *name,
                  struct slice *value);

/* A ParameterStatus for each setting. */
void pg_params_put_all(const struct pg_params *p, struct pgbuf *out);

/* Decides whether a setting belongs to the client and is set again on each
 * server it gets. */
typedef bool (*pg_params_filter)(void *arg, struct slice name);

/* Settings that PostgreSQL reports and that a session can set: those that the
 * pooler replays whether or not they are in track_extra_parameters. */
bool pg_params_is_standard(struct slice name);

/* Appends the SQL that turns a server with settings `have` into one with
 * `want`, for the settings that filter accepts; returns how many differ. */
int pg_params_put_diff(const struct pg_params *want,
                       const struct pg_params *have, pg_params_filter filter,
                       void *arg, struct pgbuf *sql);

#endif
