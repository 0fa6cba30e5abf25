/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Commands about the servers of one database or of all: PAUSE, RESUME, KILL,
 * RECONNECT, WAIT_CLOSE, DISABLE, ENABLE. The state is a flag in the shared
 * record; the workers are then told to look at it. */
#include <stdlib.h>

#include "admin/job.h"
#include "admin/names.h"
#include "base/log.h"
#include "pool/kill.h"
#include "pool/shared.h"

/* NULL: all databases. */
static const char *database(const struct job *j)
{
    return j->arg[0] ? j->arg : NULL;
}

static void log_command(const struct job *j)
{
    if (database(j))
        log_info("%s '%s' command issued", j->tag, j->arg);
    else
        log_info("%s command issued", j->tag);
}

/* The record of the database that the command names. Ends the job and returns
 * NULL when there is none, or when it is the console's own. */
static struct db_rec *find_database(struct job *j, const char *verb)
{
    struct slice name = slice_str(j->arg);
    struct db_rec *rec = shared_find_db(j->shared, name);

    if (conf_is_console_db(name))
        job_fail(j, "cannot %s admin db: %s", verb, j->arg);
    else if (rec)
        return rec;
    else if (names_find_db(j->conf, name))
        return shared_db(j->shared, name);
    else
        job_fail(j, "no such database: %s", j->arg);
    return NULL;
}

/* ---------------------------------------------------------------- PAUSE */

static atomic_bool *pause_flag(const struct job *j)
{
    struct db_rec *rec = j->data;

    return rec ? &rec->is_paused : &j->shared->is_paused;
}

static void drain(struct shard *sh, struct job *j)
{
    shard_drain_servers(sh, database(j));
    j->count += shard_busy_servers(sh, database(j));
}

static void look_whether_drained(struct job *j);

static void drained(struct job *j)
{
    if (j->count == 0)
        job_done(j);
    else if (!atomic_load(pause_flag(j)))
        job_fail(j, "RESUME came before all servers were released");
    else
        job_wait(j, look_whether_drained);
}

static void look_whether_drained(struct job *j)
{
    j->count = 0;
    job_gather(j, drain, drained);
}

static void resume(struct shard *sh, struct job *j)
{
    shard_resume_all(sh);
}

/* As in PgBouncer, whoever cancels PAUSE gets the opposite. */
static void undo_pause(struct job *j)
{
    if (atomic_load(&j->shared->is_shutting_down)) {
        job_fail_canceled(j);
        return;
    }
    atomic_store(pause_flag(j), false);
    job_gather(j, resume, job_fail_canceled);
}

/* j->data names a record, which is not the job's to free. */
static void keep(void *data)
{
}

void cmd_pause(struct job *j)
{
    struct db_rec *rec = NULL;

    if (atomic_load(&j->shared->is_paused)) {
        job_fail(j, "already suspended/paused");
        return;
    }
    if (database(j)) {
        rec = find_database(j, "pause");
        if (!rec)
            return;
    }
    log_command(j);
    j->data = rec;
    j->free_data = keep;
    j->on_cancel = undo_pause;
    atomic_store(pause_flag(j), true);
    look_whether_drained(j);
}

/* --------------------------------------------------------------- RESUME */

static struct db_rec *first_db(struct shared *s)
{
    struct db_rec *db;

    pthread_mutex_lock(&s->records_lock);
    db = s->db_list;
    pthread_mutex_unlock(&s->records_lock);
    return db;
}

/* After KILL each database is paused by itself; true when one was. */
static bool resume_databases(struct shared *s)
{
    bool was_paused = false;

    for (struct db_rec *db = first_db(s); db; db = db->next)
        was_paused |= atomic_exchange(&db->is_paused, false);
    return was_paused;
}

static void resume_all(struct job *j)
{
    if (atomic_load(&j->shared->is_shutting_down))
        job_fail(j, "pooler is shutting down");
    else if (!atomic_exchange(&j->shared->is_paused, false) &&
             !resume_databases(j->shared))
        job_fail(j, "pooler is not paused/suspended");
    else
        job_gather(j, resume, job_done);
}

static void resume_database(struct job *j)
{
    struct db_rec *rec = shared_find_db(j->shared, slice_str(j->arg));

    if (!rec && !names_find_db(j->conf, slice_str(j->arg)))
        job_fail(j, "no such database: %s", j->arg);
    else if (!rec || !atomic_exchange(&rec->is_paused, false))
        job_fail(j, "database %s is not paused", j->arg);
    else
        job_gather(j, resume, job_done);
}

void cmd_resume(struct job *j)
{
    log_command(j);
    if (database(j))
        resume_database(j);
    else
        resume_all(j);
}

/* ----------------------------------------------------------------- KILL */

static void kill_servers(struct shard *sh, struct job *j)
{
    shard_kill(sh, database(j));
}

void cmd_kill(struct job *j)
{
    struct db_rec *rec;

    if (atomic_load(&j->shared->is_paused)) {
        job_fail(j, "already suspended/paused");
        return;
    }
    if (database(j)) {
        rec = find_database(j, "kill");
        if (!rec)
            return;
        atomic_store(&rec->is_paused, true);
    } else {
        for (rec = first_db(j->shared); rec; rec = rec->next) {
            if (!conf_is_console_db(slice_str(rec->name)))
                atomic_store(&rec->is_paused, true);
        }
    }
    log_command(j);
    kill_begin(j->shared, database(j) ? rec : NULL);
    job_gather(j, kill_servers, job_done);
}

struct kill_client {
    struct shared *shared;
    uint64_t id;
    int slot;
    bool is_second_round;
};

static void free_kill_client(void *data)
{
    struct kill_client *k = data;

    kill_end_client(k->shared, k->slot);
    free(k);
}

static void kill_client(struct shard *sh, struct job *j)
{
    const struct kill_client *k = j->data;

    if (j->count == 0)
        j->count = shard_kill_client(sh, k->id);
}

static void client_killed(struct job *j)
{
    struct kill_client *k = j->data;

    if (j->count || kill_was_met(j->shared, k->slot)) {
        job_done(j);
    } else if (!k->is_second_round) {
        k->is_second_round = true;
        job_gather(j, kill_client, client_killed);
    } else {
        job_fail(j, "client not found");
    }
}

void cmd_kill_client(struct job *j)
{
    struct kill_client *k;
    int64_t n;

    if (!slice_to_i64(slice_str(j->arg), &n) || n < 0) {
        job_fail(j, "invalid client pointer supplied");
        return;
    }
    j->data = k = mem_new(sizeof(*k));
    j->free_data = free_kill_client;
    *k =
        (struct kill_client){.shared = j->shared,
                             .id = (uint64_t)n,
                             .slot = kill_begin_client(j->shared, (uint64_t)n)};
    log_command(j);
    job_gather(j, kill_client, client_killed);
}

/* ------------------------------------------------- RECONNECT, WAIT_CLOSE */

static void reconnect(struct shard *sh, struct job *j)
{
    shard_reconnect(sh, database(j));
}

void cmd_reconnect(struct job *j)
{
    if (database(j) && !find_database(j, "reconnect"))
        return;
    log_command(j);
    struct db_rec *db =
        database(j) ? shared_find_db(j->shared, slice_str(j->arg)) : NULL;
    if (db)
        atomic_fetch_add(&db->server_epoch, 1);
    else if (!database(j))
        atomic_fetch_add(&j->shared->server_epoch, 1);
    job_gather(j, reconnect, job_done);
}

static void count_leaving(void *arg, const struct conn_view *v)
{
    struct job *j = arg;

    if (v->close_needed &&
        (!database(j) || (v->database && !strcmp(v->database, j->arg))))
        j->count++;
}

static void look_for_leaving(struct shard *sh, struct job *j)
{
    shard_each_server(sh, count_leaving, j);
}

static void look_whether_closed(struct job *j);

static void looked_for_leaving(struct job *j)
{
    if (j->count == 0)
        job_done(j);
    else
        job_wait(j, look_whether_closed);
}

static void look_whether_closed(struct job *j)
{
    j->count = 0;
    job_gather(j, look_for_leaving, looked_for_leaving);
}

void cmd_wait_close(struct job *j)
{
    if (database(j) && !find_database(j, "wait in"))
        return;
    log_command(j);
    j->on_cancel = job_fail_canceled;
    look_whether_closed(j);
}

/* ------------------------------------------------------ DISABLE, ENABLE */

void cmd_disable(struct job *j)
{
    struct db_rec *rec;

    if (!database(j)) {
        job_fail(j, "a database is required");
        return;
    }
    rec = find_database(j, "disable");
    if (!rec)
        return;
    log_command(j);
    atomic_store(&rec->is_disabled, true);
    job_done(j);
}

void cmd_enable(struct job *j)
{
    struct db_rec *rec;

    if (!database(j)) {
        job_fail(j, "a database is required");
        return;
    }
    rec = find_database(j, "enable");
    if (!rec)
        return;
    log_command(j);
    atomic_store(&rec->is_disabled, false);
    job_gather(j, resume, job_done);
}
