/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The inside of a snapshot, for the files of this folder and their tests. It is
 * filled by one thread and constant once it is handed out. */
#ifndef CONF_CONF_PRIVATE_H
#define CONF_CONF_PRIVATE_H

#include <sys/stat.h>

#include "conf/conf.h"
#include "conf/option.h"
#include "conf/strpool.h"

enum { CONF_FILE_MAX = 16 << 20 }; /* bytes of one file */

/* Where files come from; tests bring their own. */
struct conf_reader {
    int (*read)(void *arg, const char *path, char **text, size_t *n,
                struct err *e);
    void *arg;
};

extern const struct conf_reader conf_file_reader;

/* Where mistakes go. Without a callback the first one ends the reading. */
struct conf_sink {
    conf_check_cb cb;
    void *arg;
    int count;
    struct err first;
};

/* Counts it; 0 to go on, else its code. */
int conf_sink_add(struct conf_sink *s, const struct err *e);

/* auth_file as read; shared by the snapshots that SET makes. */
struct conf_users {
    int refs;
    struct userdb *db; /* NULL when the file could not be read */
};

/* auth_hba_file and auth_ident_file as read, shared in the same way. */
struct conf_rules {
    int refs;
    struct hba *hba; /* NULL when the file could not be read */
    struct ident *ident;
};

struct conf_texts {
    struct strpool pool;
    const char **value; /* of option_table; NULL when not set */
    const char **place; /* file:line, or NULL when the file has it not */
    const char **warnings;
    int n_warnings;
    struct conf_users *users;
    struct conf_rules *rules; /* NULL: auth_type is not hba */
    struct stat users_seen;   /* of auth_file when it was read; zero: no file */
};

/* A snapshot with every option at its default, without sections. */
struct conf *conf_new(void);

/* Sets option number i; value NULL is "not set". */
NODISCARD int conf_put(struct conf *c, int i, const char *value, struct err *e);

void conf_warn(struct conf *c, const char *text);

/* Reads path and all that belongs to it. */
NODISCARD int conf_build(const struct conf_reader *r, const char *path,
                         struct conf_sink *sink, struct conf **out,
                         struct err *e);

/* Reads auth_file, if there is one; trouble is a warning. */
void conf_load_users(struct conf *c, const struct conf_reader *r);
void conf_share_users(struct conf *c, const struct conf *from);

/* Reads the rules when auth_type = hba. Trouble is a warning, but for a broken
 * line that rejects. */
NODISCARD int conf_load_rules(struct conf *c, const struct conf_reader *r,
                              struct err *e);
void conf_share_rules(struct conf *c, const struct conf *from);
void conf_unref_rules(struct conf_rules *r); /* NULL is fine */

/* What only shows when all values are there. Mistakes go to the sink; returns
 * non-zero when it wants to stop. */
int conf_verify(struct conf *c, struct conf_sink *sink);

/* The one line about what is set but not in force. */
void conf_warn_later(struct conf *c);
void conf_warn_mptcp(struct conf *c);

#endif
