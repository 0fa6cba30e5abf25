/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/job.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/control.h"
#include "pool/shared.h"
#include "worker/team.h"

static void set_default_tag(struct job *j)
{
    size_t n = strlen(j->cmd->verb);

    for (size_t i = 0; i < n; i++)
        j->tag[i] = (char)toupper((unsigned char)j->cmd->verb[i]);
}

struct job *job_new(struct console *session, struct client *c,
                    const struct command *cmd, const struct syntax *s,
                    table_formats formats)
{
    struct job *j = mem_new(sizeof(*j));

    j->session = session;
    j->cmd = cmd;
    j->is_admin = client_is_admin(c);
    j->shard = client_shard(c);
    j->shared = shard_shared(j->shard);
    j->loop = shard_loop(j->shard);
    j->conf = shared_conf(j->shared);
    memcpy(j->arg, s->arg, sizeof(j->arg));
    memcpy(j->value, s->value, sizeof(j->value));
    set_default_tag(j);
    pgbuf_init(&j->out, JOB_OUT_MAX);
    table_init(&j->table, &j->out, cmd->table, formats);
    return j;
}

void job_free(struct job *j)
{
    must(!j->is_in_flight);
    timer_clear(j->loop, &j->timer);
    conf_unref(j->conf);
    pgbuf_fini(&j->out);
    if (j->free_data)
        j->free_data(j->data);
    else
        free(j->data);
    free(j);
}

void job_orphan(struct job *j)
{
    j->session = NULL;
    if (!j->is_in_flight)
        job_free(j);
}

void job_run(struct job *j)
{
    if (j->cmd->access == ACCESS_ADMIN && !j->is_admin)
        job_fail(j, "admin access needed");
    else
        j->cmd->run(j);
}

static void end(struct job *j)
{
    if (j->session)
        console_job_ended(j->session, j);
    job_free(j);
}

void job_set_tag(struct job *j, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(j->tag, sizeof(j->tag), fmt, ap);
    va_end(ap);
}

void job_done(struct job *j)
{
    if (j->out.failed)
        job_fail_with(j, err_sqlstate(ERR_TOO_LARGE), NULL,
                      "the result is too large");
    else
        end(j);
}

static void PRINTF_LIKE(4, 0)
    vfail(struct job *j, const char *sqlstate, const char *detail,
          const char *fmt, va_list ap)
{
    j->has_failed = true;
    vsnprintf(j->error, sizeof(j->error), fmt, ap);
    (void)slice_copy(slice_str(sqlstate), j->sqlstate, sizeof(j->sqlstate));
    if (detail)
        (void)slice_copy(slice_str(detail), j->detail, sizeof(j->detail));
    end(j);
}

void job_fail(struct job *j, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfail(j, err_sqlstate(ERR_PROTO), NULL, fmt, ap);
    va_end(ap);
}

void job_fail_with(struct job *j, const char *sqlstate, const char *detail,
                   const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfail(j, sqlstate, detail, fmt, ap);
    va_end(ap);
}

void job_fail_canceled(struct job *j)
{
    job_fail_with(j, "57014", NULL, "canceling statement due to user request");
}

static void begin_cancel(struct job *j)
{
    void (*on_cancel)(struct job * j) = j->on_cancel;

    timer_clear(j->loop, &j->timer);
    j->is_canceled = false;
    j->on_cancel = NULL;
    on_cancel(j);
}

void job_cancel(struct job *j)
{
    if (!j->on_cancel)
        return;
    if (j->is_in_flight)
        j->is_canceled = true;
    else
        begin_cancel(j);
}

/* Back from elsewhere; false when nobody wants to know any more. */
static bool came_home(struct job *j)
{
    j->is_in_flight = false;
    if (!j->session)
        job_free(j);
    else if (j->is_canceled)
        begin_cancel(j);
    else
        return true;
    return false;
}

static void run_each(struct shard *sh, void *arg)
{
    struct job *j = arg;

    j->each(sh, j);
}

static void run_gathered(void *arg)
{
    struct job *j = arg;

    if (came_home(j))
        j->gathered(j);
}

void job_gather(struct job *j, void (*each)(struct shard *sh, struct job *j),
                void (*done)(struct job *j))
{
    must(!j->is_in_flight);
    j->is_in_flight = true;
    j->each = each;
    j->gathered = done;
    team_gather(control_get()->team, j->loop, run_each, run_gathered, j);
}

static void on_fire(struct timer *t)
{
    struct job *j = container_of(t, struct job, timer);

    j->on_time(j);
}

void job_wait(struct job *j, void (*fn)(struct job *j))
{
    j->on_time = fn;
    j->timer.on_fire = on_fire;
    timer_set(j->loop, &j->timer, loop_now_us(j->loop) + JOB_POLL_US);
}

void job_expect(struct job *j, void (*fn)(struct job *j, const struct err *e))
{
    must(!j->is_in_flight);
    j->is_in_flight = true;
    j->called = fn;
}

void job_called_back(void *arg, const struct err *e)
{
    struct job *j = arg;

    if (came_home(j))
        j->called(j, e);
}
