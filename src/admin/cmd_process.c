/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Commands about the process: RELOAD, SET, SHUTDOWN. main does the work. */
#include "admin/control.h"
#include "admin/job.h"
#include "base/log.h"

/* ------------------------------------------------------------------- RELOAD */

static void reloaded(struct job *j, const struct err *e)
{
    if (!e) {
        job_done(j);
        return;
    }
    log_error("RELOAD failed: %s", e->text);
    job_fail_with(j, err_sqlstate(ERR_CONF), e->text,
                  "RELOAD failed, see logs for additional details");
}

void cmd_reload(struct job *j)
{
    log_info("RELOAD command issued");
    job_expect(j, reloaded);
    control_get()->reload(j->loop, job_called_back, j);
}

/* ---------------------------------------------------------------------- SET */

/* Settings of a PostgreSQL session that drivers set without asking. */
static bool is_session_setting(const char *key)
{
    static const char *const keys[] = {
        "client_encoding",
        "default_transaction_isolation",
        "standard_conforming_strings",
        "datestyle",
        "timezone",
        "application_name",
        "extra_float_digits",
    };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        if (slice_is_nocase(slice_str(key), keys[i]))
            return true;
    }
    return false;
}

static void was_set(struct job *j, const struct err *e)
{
    if (e) {
        job_fail_with(j, err_sqlstate(ERR_PROTO), e->text, "SET failed");
        return;
    }
    job_set_tag(j, "SET %s=%s", j->arg, j->value);
    job_done(j);
}

void cmd_set(struct job *j)
{
    if (is_session_setting(j->arg)) {
        pg_put_notice(&j->out, "NOTICE", "00000", "SET ignored");
        job_done(j);
        return;
    }
    if (!j->is_admin) {
        job_fail(j, "admin access needed");
        return;
    }
    log_info("SET %s command issued", j->arg);
    job_expect(j, was_set);
    control_get()->set(j->loop, j->arg, j->value, job_called_back, j);
}

/* ------------------------------------------------------------------ UPGRADE */

static void upgraded(struct job *j, const struct err *e)
{
    if (e)
        job_fail_with(j, err_sqlstate(ERR_CONF),
                      "see the log of the new program", "%s", e->text);
    else
        job_done(j);
}

void cmd_upgrade(struct job *j)
{
    log_info("UPGRADE command issued");
    job_expect(j, upgraded);
    control_get()->upgrade(j->loop, job_called_back, j);
}

/* ----------------------------------------------------------------- SHUTDOWN */

/* At once: no reply, the session lasts until the process is gone, so that its
 * end tells. */
void cmd_shutdown(struct job *j)
{
    const struct control *control = control_get();

    if (j->arg[0] == 0) {
        log_info("SHUTDOWN command issued");
        control->shutdown(SHUTDOWN_NOW);
    } else if (slice_is_nocase(slice_str(j->arg), "wait_for_servers")) {
        log_info("SHUTDOWN WAIT_FOR_SERVERS command issued");
        control->shutdown(SHUTDOWN_WAIT_FOR_SERVERS);
        job_done(j);
    } else if (slice_is_nocase(slice_str(j->arg), "wait_for_clients")) {
        log_info("SHUTDOWN WAIT_FOR_CLIENTS command issued");
        control->shutdown(SHUTDOWN_WAIT_FOR_CLIENTS);
        job_done(j);
    } else {
        job_fail(j, "invalid command '%s %s', use SHOW HELP;", j->tag, j->arg);
    }
}
