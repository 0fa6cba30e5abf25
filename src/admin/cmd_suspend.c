/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* SUSPEND. It is a PAUSE that does not wait for servers to be released but for
 * buffers to be sent, and stops reading clients; RESUME ends both. */
#include "admin/job.h"
#include "base/log.h"
#include "pool/shared.h"
#include "pool/suspend.h"

struct wait {
    int64_t since_us, limit_us; /* limit 0: for ever */
    bool must_end;
};

static bool has_paused_database(struct shared *s)
{
    struct db_rec *db;

    pthread_mutex_lock(&s->records_lock);
    db = s->db_list;
    pthread_mutex_unlock(&s->records_lock);
    while (db && !atomic_load(&db->is_paused))
        db = db->next;
    return db != NULL;
}

static void suspend(struct shard *sh, struct job *j)
{
    const struct wait *w = j->data;

    shard_suspend(sh);
    j->count += shard_suspend_left(sh, w->must_end);
}

static void look_whether_sent(struct job *j);

static void looked_whether_sent(struct job *j)
{
    struct wait *w = j->data;
    int64_t waited = loop_now_us(j->loop) - w->since_us;

    if (!atomic_load(&j->shared->is_paused))
        job_fail(j, "RESUME came before all buffers were sent");
    else if (j->count == 0 || w->must_end)
        job_done(j);
    else {
        w->must_end = w->limit_us > 0 && waited >= w->limit_us;
        job_wait(j, look_whether_sent);
    }
}

static void look_whether_sent(struct job *j)
{
    j->count = 0;
    job_gather(j, suspend, looked_whether_sent);
}

static void resume(struct shard *sh, struct job *j)
{
    shard_resume_all(sh);
}

static void undo_suspend(struct job *j)
{
    atomic_store(&j->shared->is_paused, false);
    job_gather(j, resume, job_fail_canceled);
}

void cmd_suspend(struct job *j)
{
    struct wait *w;

    if (atomic_load(&j->shared->is_paused)) {
        job_fail(j, "already suspended/paused");
        return;
    }
    if (has_paused_database(j->shared)) {
        job_fail(j, "cannot suspend with paused databases");
        return;
    }
    log_info("SUSPEND command issued");
    j->data = w = mem_new(sizeof(*w));
    w->since_us = loop_now_us(j->loop);
    w->limit_us = j->conf->suspend_timeout_us;
    j->on_cancel = undo_suspend;
    atomic_store(&j->shared->is_suspended, true);
    atomic_store(&j->shared->is_paused, true);
    look_whether_sent(j);
}
