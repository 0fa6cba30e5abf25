/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The databases and users that there are: those of the configuration and those
 * that clients brought along. Any thread. */
#ifndef ADMIN_NAMES_H
#define ADMIN_NAMES_H

#include "conf/conf.h"

struct shared;

/* The name that the console goes by in its own tables, as PgBouncer's does. */
#define CONSOLE_DB "pgbouncer"

struct names {
    struct slice *at; /* sorted, each once; borrowed from conf and records */
    size_t n, cap;
};

/* The console's own is among them. */
void names_of_databases(struct names *n, struct shared *s,
                        const struct conf *conf);
void names_of_users(struct names *n, struct shared *s, const struct conf *conf);
void names_fini(struct names *n);

/* A database that a command may name: its line, or that of the fallback; NULL
 * when there is neither. */
const struct conf_db *names_find_db(const struct conf *conf, struct slice name);

#endif
