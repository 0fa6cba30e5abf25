/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The users of auth_file: name to secret. Built once from the file's text,
 * read-only after that; any thread may read it until its owner frees it. */
#ifndef AUTH_USERDB_H
#define AUTH_USERDB_H

#include "auth/secret.h"

enum { AUTH_USER_NAME_MAX = 127 }; /* bytes, as PgBouncer's */

struct auth_user {
    struct slice name; /* NUL at name.p[name.n] */
    struct auth_secret secret;
};

struct userdb;

/* Lines of "name" "secret", "" for a quote inside, what follows on the line
 * ignored; a line that starts with ; is a comment. A name given twice keeps the
 * last secret. An error names filename and line, and the text that may have
 * been loaded before it is dropped. */
NODISCARD int userdb_parse(struct slice text, const char *filename,
                           struct userdb **out, struct err *e);

/* NULL when there is none; db may be NULL. */
const struct auth_user *userdb_find(const struct userdb *db, struct slice name);
size_t userdb_count(const struct userdb *db);

/* In the order of the file: NULL gives the first, NULL comes after the last. */
const struct auth_user *userdb_next(const struct userdb *db,
                                    const struct auth_user *after);
void userdb_free(struct userdb *db);

#endif
