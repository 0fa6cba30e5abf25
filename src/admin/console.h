/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A console session: a client whose server is ourselves. It speaks the simple
 * and the extended protocol; one command runs at a time, and what the client
 * sends meanwhile waits in order. Belongs to the client's worker. For the files
 * of this folder. */
#ifndef ADMIN_CONSOLE_H
#define ADMIN_CONSOLE_H

#include "admin/job.h"

enum {
    CONSOLE_NAME_MAX = 128,        /* of a statement or portal */
    CONSOLE_NAMES_MAX = 256,       /* statements, and portals, of a session */
    CONSOLE_QUEUE_MAX = 1 << 20,   /* bytes that wait for a command's end */
    CONSOLE_REPLY_MAX = 1 << 30,   /* bytes of replies at once */
    CONSOLE_FLUSH_BYTES = 1 << 16, /* replies are sent from this size on */
    CONSOLE_KEEP_BYTES = 1 << 16,  /* a larger buffer is not kept */
};

/* What Parse made. */
struct console_stmt {
    struct console_stmt *next;
    char name[CONSOLE_NAME_MAX];
    const struct command *cmd; /* NULL: empty */
    struct syntax syntax;
};

enum portal_state { PORTAL_NEW, PORTAL_RUN };

/* What Bind made; its rows once it has run, until they are all sent. */
struct console_portal {
    struct console_portal *next;
    char name[CONSOLE_NAME_MAX];
    const struct command *cmd;
    struct syntax syntax;
    table_formats formats;
    enum portal_state state;
    struct pgbuf rows;
    size_t sent; /* bytes of rows */
    char *tag;
};

struct console {
    struct client *client;
    struct pgbuf out;   /* replies not sent yet */
    struct pgbuf queue; /* whole messages that wait */
    size_t queue_at;    /* the first of them */
    struct job *job;    /* runs now */
    bool is_simple;     /* the job: of a Query; else of an Execute */
    bool is_processing; /* messages are being worked off further up the stack */
    bool skips;         /* everything up to the Sync, after an error */
    bool is_ending;     /* once out is sent */
    uint32_t max_rows;  /* of the Execute */
    struct console_portal *portal; /* of the Execute */
    struct console_stmt *stmts;
    struct console_portal *portals;
};

/* Sessions in the process. */
int console_count(void);

/* Starts a command: s->job until console_job_ended(). */
void console_run(struct console *s, const struct command *cmd,
                 const struct syntax *syntax, table_formats formats);

/* An ErrorResponse for text that is no command. */
void console_put_syntax_error(struct console *s, int rc, struct slice text);

/* --- extended.c ----------------------------------------------------------- */

/* Parse, Bind, Describe, Execute, Close, Sync; false: not one of them. */
bool extended_message(struct console *s, char type, struct slice body);

/* The job of an Execute ended. */
void extended_job_ended(struct console *s, struct job *j);

/* At Sync and before a simple Query. */
void extended_drop_portals(struct console *s);
void extended_drop_statement(struct console *s, struct slice name);
void extended_fini(struct console *s);

#endif
