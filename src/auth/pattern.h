/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Regular expressions of rule files: POSIX extended, plus \d and \D as
 * PostgreSQL has them. A pattern is made once and then constant; any thread. */
#ifndef AUTH_PATTERN_H
#define AUTH_PATTERN_H

#include "base/err.h"
#include "base/slice.h"

enum {
    PATTERN_TEXT_MAX = 512,
    PATTERN_SUBJECT_MAX = 512, /* a longer name matches nothing */
};

struct pattern;

/* text has no leading slash. */
NODISCARD int pattern_new(struct pattern **out, const char *text,
                          struct err *e);
void pattern_free(struct pattern *p); /* NULL is fine */

/* part is what the first parenthesis matched; its p is NULL when there is
 * none. It may be NULL. Points into subject. */
bool pattern_match(const struct pattern *p, struct slice subject,
                   struct slice *part);

bool pattern_has_part(const struct pattern *p);

#endif
