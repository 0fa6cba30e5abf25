/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* One command being run for a console session. Made by the session, given to
 * the command's handler, which ends it exactly once, now or later, with
 * job_done() or job_fail() as its last act. It lives on the session's loop; the
 * each() function of job_gather() sees it on the other workers' threads, one at
 * a time. The session may end meanwhile: then the job goes on without one and
 * is dropped when it ends. */
#ifndef ADMIN_JOB_H
#define ADMIN_JOB_H

#include "admin/command.h"
#include "loop/loop.h"
#include "pool/shard.h"

struct console;
struct shared;

enum {
    JOB_OUT_MAX = 256 << 20, /* bytes of a result */
    JOB_TEXT_MAX = 1024,
    JOB_POLL_US = 20000, /* between looks at what is waited for */
};

struct job {
    const struct command *cmd; /* NULL: an empty statement */
    char arg[SYNTAX_ARG_MAX], value[SYNTAX_VALUE_MAX];
    struct table table; /* writes to out */
    struct pgbuf out;   /* rows and notices */
    bool is_admin;

    struct shard *shard; /* the session's */
    struct shared *shared;
    struct loop *loop;
    struct conf *conf; /* a reference, good for the whole command */

    /* For the handler. */
    void *data;                    /* goes with the job */
    void (*free_data)(void *data); /* NULL: free() */
    int64_t count;
    /* Undoes what a command that waits has done, then job_fail_canceled().
     * NULL: it ends soon anyway and cannot be canceled. */
    void (*on_cancel)(struct job *j);

    /* For job.c and the console only. */
    struct console *session; /* NULL: it has ended */
    bool is_in_flight;       /* somebody will call back */
    bool is_canceled;        /* once it is back */
    bool has_failed;
    char tag[SYNTAX_ARG_MAX + SYNTAX_VALUE_MAX + 8];
    char sqlstate[6], error[JOB_TEXT_MAX], detail[ERR_TEXT_MAX];
    struct timer timer;
    void (*on_time)(struct job *j);
    void (*each)(struct shard *sh, struct job *j);
    void (*gathered)(struct job *j);
    void (*called)(struct job *j, const struct err *e);
};

struct job *job_new(struct console *session, struct client *c,
                    const struct command *cmd, const struct syntax *s,
                    table_formats formats);
void job_run(struct job *j);

/* The client wants no more of it. */
void job_cancel(struct job *j);

/* The session has ended. */
void job_orphan(struct job *j);
void job_free(struct job *j);

/* --- for handlers --------------------------------------------------------- */

void job_done(struct job *j);

/* Another tag than the verb in upper case. */
void job_set_tag(struct job *j, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* SQLSTATE 08P01, as PgBouncer's own errors. */
void job_fail(struct job *j, const char *fmt, ...) PRINTF_LIKE(2, 3);
void job_fail_with(struct job *j, const char *sqlstate, const char *detail,
                   const char *fmt, ...) PRINTF_LIKE(4, 5);
void job_fail_canceled(struct job *j);

/* each(sh, j) on every worker's thread in turn, then done(j) at home. */
void job_gather(struct job *j, void (*each)(struct shard *sh, struct job *j),
                void (*done)(struct job *j));

/* fn(j) after JOB_POLL_US. */
void job_wait(struct job *j, void (*fn)(struct job *j));

/* The job is given to somebody who calls job_called_back() (a
 * control_done_cb) once; fn(j, e) follows. */
void job_expect(struct job *j, void (*fn)(struct job *j, const struct err *e));
void job_called_back(void *arg, const struct err *e);

/* In the session: takes the outcome over. Provided by console.c. */
void console_job_ended(struct console *s, struct job *j);

#endif
