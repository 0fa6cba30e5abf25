/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The engine of the option tables: a row knows how to read its value from text
 * into a struct and how to print it. Pure. The tables are constant; any thread
 * may read them. */
#ifndef CONF_OPTION_H
#define CONF_OPTION_H

#include "base/err.h"
#include "base/slice.h"
#include "conf/strpool.h"

enum option_type {
    OPTION_STR,
    OPTION_LIST,
    OPTION_INT,
    OPTION_BOOL,
    OPTION_TIME,
    OPTION_WORKERS,
    OPTION_HOSTS,
    OPTION_PORTS,
    OPTION_POOL_MODE, /* from here on: choices of enum.def */
    OPTION_AUTH_TYPE,
    OPTION_SSLMODE,
    OPTION_SSLNEGOTIATION,
    OPTION_LOAD_BALANCE,
    OPTION_TRANSPORT,
    OPTION_MPTCP,
    OPTION_CONGESTION,
    OPTION_LOG_FORMAT,
    OPTION_UPGRADE_TLS,
    OPTION_SUPERVISOR,
};

enum {
    OPT_NR = 1,     /* fixed at start */
    OPT_LATER = 2,  /* accepted, no effect yet */
    OPT_SECRET = 4, /* its value is never shown */
    OPT_OURS = 8,   /* PgBouncer does not know it */
    KEY_LATER = OPT_LATER,
    KEY_SECRET = OPT_SECRET,
    KEY_OURS = OPT_OURS,
};

/* A row of option.def or section.def. */
struct option {
    const char *name;
    enum option_type type;
    const char *group; /* NULL for a key of a section */
    const char *deflt; /* as text; in words for a key of a section */
    int64_t min, max;
    unsigned flags;
    size_t offset; /* of its field */
    const char *help;
};

/* A table of them. */
struct option_table {
    const struct option *rows;
    int n;
};

extern const struct option_table option_table; /* [pgbouncer] */
extern const struct option_table db_key_table;
extern const struct option_table user_key_table;
extern const struct option_table peer_key_table;

/* Names of the groups, for people. */
const char *option_group_title(const char *group);

const struct option *option_find(const struct option_table *t,
                                 struct slice name);

/* ERR_CONF with the nearest name of the table; what names the thing ("option",
 * "key of [users]"). */
int option_unknown(const struct option_table *t, const char *what,
                   struct slice name, struct err *e);

/* Sets every field of a section's struct to "not given": -1 or NULL. */
void option_unset_all(const struct option_table *t, void *base);

/* Reads text into the field of o in base; copies come from pool. The error
 * says: name = "text": expected ... */
NODISCARD int option_read(const struct option *o, struct slice text, void *base,
                          struct strpool *pool, struct err *e);

/* The field as SHOW CONFIG prints it; NULL when not set. May point to buf. */
const char *option_print(const struct option *o, const void *base, char *buf,
                         size_t cap);

/* The word of a choice. */
const char *option_word(enum option_type type, int value);

#endif
