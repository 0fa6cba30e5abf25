/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The lines of [databases], [users] and [peers]. Built by one thread, sealed,
 * then shared by all snapshots that have the same file behind them. */
#ifndef CONF_CONF_SECTIONS_H
#define CONF_CONF_SECTIONS_H

#include "conf/conf.h"
#include "conf/ini.h"
#include "conf/strpool.h"

struct section_item {
    const char *name;
    int order; /* in the file */
    void *what;
};

struct section_set {
    struct section_item *items; /* order of the file */
    struct section_item *by_name;
    int n, room;
};

struct conf_sections {
    int refs;
    struct strpool pool;
    struct section_set dbs, users, peers;
    struct conf_db *fallback;
    unsigned long
        later_keys; /* bit i: key i of [databases] has no effect yet */
};

enum section_kind {
    SECTION_UNKNOWN,
    SECTION_OPTIONS, /* [pgbouncer] */
    SECTION_DATABASES,
    SECTION_USERS,
    SECTION_PEERS,
};

enum section_kind section_kind_of(struct slice name);

struct conf_sections *conf_sections_new(void);
struct conf_sections *conf_sections_ref(struct conf_sections *s);
void conf_sections_unref(struct conf_sections *s);

/* Adds one line; the error's text is for ini.h to put the place before. */
NODISCARD int conf_sections_add(struct conf_sections *s, enum section_kind kind,
                                const struct ini_place *at, struct slice name,
                                struct slice value, struct err *e);

/* Sorts; of lines with the same name the last one holds. Calls dup for each
 * name that was given more than once. */
void conf_sections_seal(struct conf_sections *s,
                        void (*dup)(void *arg, const char *name), void *arg);

void *section_set_find(const struct section_set *set, struct slice name);

#endif
