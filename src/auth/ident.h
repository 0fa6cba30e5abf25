/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The user name maps of auth_ident_file:
 *
 *   MAP  SYSTEM-NAME  ROLE
 *
 * SYSTEM-NAME is a name or a /regular expression; ROLE is a name, in which \1
 * stands for what the expression's first parenthesis matched, a /regular
 * expression, or all (not quoted), which is every role. A map is all lines
 * with its name. Built once from the file's text, constant after that; any
 * thread may read it until its owner frees it. */
#ifndef AUTH_IDENT_H
#define AUTH_IDENT_H

#include "base/err.h"
#include "base/slice.h"

struct ident;
struct ident_map;

/* Lines that cannot be understood grant nothing: skipped is told "file:line:
 * why" and the rest holds, as in PgBouncer. skipped may be NULL. An error means
 * that the text is none. */
NODISCARD int ident_parse(struct slice text, const char *file,
                          void (*skipped)(void *arg, const char *text),
                          void *arg, struct ident **out, struct err *e);
void ident_free(struct ident *i); /* NULL is fine */

/* NULL when there is none; i may be NULL. */
const struct ident_map *ident_find(const struct ident *i, struct slice name);
const char *ident_map_name(const struct ident_map *m);

/* Whether whom the system calls by this name may log in as role. */
bool ident_map_allows(const struct ident_map *m, struct slice system_name,
                      struct slice role);

#endif
