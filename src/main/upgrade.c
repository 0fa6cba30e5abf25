/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/upgrade.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "main/app.h"
#include "main/metrics_http.h"
#include "main/notify.h"
#include "main/pidfile.h"
#include "main/stop.h"
#include "main/supervisor.h"
#include "main/upgrade_orders.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

enum {
    START_LIMIT_US = 60 * 1000000, /* of the new program, until it is ready */
    SERVE_LIMIT_US = 10 * 1000000, /* from then on */
    CHILD_FD = 3,
    PROGRAM_ARGS_MAX = 16,
};

extern char **environ;

/* ---------------------------------------------------------------- the start */

/* Not resolved: a link may lead to another version next time. */
static bool find_in_path(const char *name, char out[PATH_MAX])
{
    const char *path = getenv("PATH");
    while (path && *path) {
        int n = (int)strcspn(path, ":");
        int size = snprintf(out, PATH_MAX, "%.*s/%s", n, path, name);
        if (n && path[0] == '/' && size > 0 && size < PATH_MAX &&
            access(out, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

static void use_proc(char out[PATH_MAX])
{
    static const char gone[] = " (deleted)";
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[MAX(n, (ssize_t)0)] = 0;
    size_t len = strlen(path), tail = sizeof gone - 1;
    if (len > tail && !strcmp(path + len - tail, gone))
        path[len - tail] = 0;
    (void)slice_copy(slice_str(path), out, PATH_MAX);
}

void upgrade_find_program(const char *name, char out[PATH_MAX])
{
    char cwd[PATH_MAX];
    int n = -1;
    if (name[0] == '/')
        n = snprintf(out, PATH_MAX, "%s", name);
    else if (strchr(name, '/') && getcwd(cwd, sizeof cwd))
        n = snprintf(out, PATH_MAX, "%s/%s", cwd, name);
    else if (find_in_path(name, out))
        n = 0;
    if (n < 0 || n >= PATH_MAX)
        use_proc(out);
}

void upgrade_note_program(struct app *app, int argc, char **argv)
{
    upgrade_find_program(argv[0], app->program);
}

static char **environment(char variable[64])
{
    int n = 0, at = 0;
    while (environ[n])
        n++;
    char **out = mem_new_array((size_t)n + 2, sizeof *out);
    for (int i = 0; i < n; i++)
        if (strncmp(environ[i], UPGRADE_VARIABLE "=",
                    sizeof UPGRADE_VARIABLE) != 0)
            out[at++] = environ[i];
    snprintf(variable, 64, UPGRADE_VARIABLE "=%d", CHILD_FD);
    out[at] = variable;
    return out;
}

/* The options of our own start, and the file. */
static void arguments(struct app *app, const char *program, const char *file,
                      char *out[PROGRAM_ARGS_MAX], char user[PATH_MAX])
{
    static char quiet[] = "--quiet", verbose[] = "--verbose";
    static char end_of_options[] = "--";
    int n = 0;
    out[n++] = (char *)(uintptr_t)program;
    if (app->args.is_quiet)
        out[n++] = quiet;
    for (int i = 0; i < MIN(app->args.verbose, 4); i++)
        out[n++] = verbose;
    if (app->args.user) {
        snprintf(user, PATH_MAX, "--user=%s", app->args.user);
        out[n++] = user;
    }
    out[n++] = end_of_options;
    out[n++] = (char *)(uintptr_t)file;
    out[n] = NULL;
}

static int spawn(struct app *app, const char *program, const char *file, int fd,
                 struct err *e)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char *argv[PROGRAM_ARGS_MAX], variable[64], user[PATH_MAX];
    char **env = environment(variable);
    pid_t pid = 0;
    arguments(app, program, file, argv, user);
    sigemptyset(&none);
    sigfillset(&all);
    must(posix_spawn_file_actions_init(&actions) == 0 &&
         posix_spawnattr_init(&attr) == 0);
    posix_spawn_file_actions_adddup2(&actions, fd, CHILD_FD);
    posix_spawn_file_actions_addclosefrom_np(&actions, CHILD_FD + 1);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int cause = posix_spawn(&pid, program, &actions, &attr, argv, env);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    free(env);
    if (cause)
        return err_set(e, ERR_CONF, "upgrade: cannot run %.200s: %s", program,
                       strerror(cause));
    app->upgrade.pid = pid;
    return 0;
}

/* ---------------------------------------------------------------- its end */

static void tell(struct app *app, const struct err *e)
{
    control_done_cb done = app->upgrade.done;
    app->upgrade.done = NULL;
    if (done)
        done(app->upgrade.arg, e);
}

/* The new program is nobody's any more: told to end, and waited for. */
static void reap(struct app *app, char *how, size_t cap)
{
    int status;
    how[0] = 0;
    if (!app->upgrade.pid)
        return;
    pid_t pid = app->upgrade.pid;
    for (int i = 0; i < 50 && waitpid(pid, &status, WNOHANG) == 0; i++) {
        if (i == 10)
            (void)kill(pid, SIGKILL);
        (void)usleep(10000);
    }
    app->upgrade.pid = 0;
    if (WIFSIGNALED(status))
        snprintf(how, cap, "; it was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, cap, "; it ended with status %d", WEXITSTATUS(status));
}

static void take_back(struct app *app);

static void accept_again(struct app *app)
{
    listeners_go_on(app->listeners, app->loop);
    quic_listeners_give_away(app->quic, false);
}

/* Everything is as it was. */
static void fail(struct app *app, const char *why)
{
    struct err e;
    char how[64];
    enum upgrade_state was = app->upgrade.state;
    app->upgrade.state = UPGRADE_NONE;
    timer_clear(app->loop, &app->upgrade.timer);
    generation_close(app, GEN_NEWER);
    reap(app, how, sizeof how);
    (void)err_set(&e, ERR_CONF, "upgrade failed: %s; this process goes on",
                  why);
    log_error("%s%s", e.text, how);
    statement_come_back();
    if (was == UPGRADE_COMMITTED)
        take_back(app);
    else if (was == UPGRADE_PAUSING)
        accept_again(app);
    tell(app, &e);
}

static void on_timer(struct timer *t)
{
    struct app *app = container_of(t, struct app, upgrade.timer);
    fail(app, app->upgrade.state == UPGRADE_STARTING
                  ? "the new program was not ready in time"
                  : "the new process did not serve in time");
}

/* ------------------------------------------------------------- the dialogue */

static void begin(struct pgbuf *b)
{
    pgbuf_init(b, FDLINK_BODY_MAX);
}

static void send_state(struct app *app)
{
    struct pgbuf b;
    struct shared *s = app->shared;
    begin(&b);
    pgbuf_put_u8(&b, app->is_background);
    pgbuf_put_u32(&b, statement_leave());
    pgbuf_put_bytes(&b, s->process_key, sizeof s->process_key);
    pgbuf_put_u8(&b, atomic_load(&s->is_paused));
    generation_send(app, GEN_NEWER, GEN_STATE, &b, -1);
}

static void send_sockets(struct app *app)
{
    struct given g = {.at = mem_new_array(GIVEN_MAX, sizeof *g.at)};
    struct pgbuf b;
    listeners_give(app->listeners, &g);
    quic_listeners_give(app->quic, &g);
    for (int i = 0; i < g.n; i++) {
        begin(&b);
        pgbuf_put_u8(&b, (uint8_t)g.at[i].kind);
        pgbuf_put_u32(&b, (uint32_t)g.at[i].worker);
        pgbuf_put_u8(&b, g.at[i].is_file);
        generation_send(app, GEN_NEWER, GEN_SOCKET, &b, g.at[i].fd);
    }
    free(g.at);
    begin(&b);
    pgbuf_put_u8(&b, g.is_activated);
    generation_send(app, GEN_NEWER, GEN_OFFERED, &b, -1);
}

static void on_hello(struct app *app, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice magic = pgread_cstr(&r);
    uint32_t format = pgread_u32(&r);
    app->upgrade.main_pid = (int)pgread_u32(&r);
    app->upgrade.has_supervisor = pgread_u8(&r);
    if (!pgread_done(&r) || !slice_is(magic, GENERATION_MAGIC) ||
        format != GENERATION_FORMAT) {
        fail(app, "the new program speaks another language than this one; "
                  "restart instead");
        return;
    }
    send_state(app);
    send_sockets(app);
}

struct commit {
    struct app *app;
    struct pgbuf *pools;
    int n, cap;
};

static void note_pool(void *arg, struct pool_rec *rec, int n)
{
    struct commit *c = arg;
    const struct pg_params *welcome = atomic_load(&rec->welcome);
    if (n == 0 && !welcome)
        return;
    if (c->n == c->cap) {
        c->cap = c->cap * 2 + 16;
        c->pools = realloc(c->pools, (size_t)c->cap * sizeof *c->pools);
        must(c->pools);
    }
    struct pgbuf *b = &c->pools[c->n++];
    begin(b);
    handover_put_pool(b, rec);
    pgbuf_put_u32(b, (uint32_t)n);
    pgbuf_put_u8(b, welcome != NULL);
    handover_put_params(b, welcome);
}

static void send_users(struct app *app)
{
    struct shared *s = app->shared;
    struct user_rec *first;
    pthread_mutex_lock(&s->records_lock);
    first = s->user_list;
    pthread_mutex_unlock(&s->records_lock);
    for (struct user_rec *u = first; u; u = u->next) {
        struct pgbuf b;
        begin(&b);
        handover_put_user(&b, u);
        generation_send(app, GEN_NEWER, GEN_USER, &b, -1);
    }
}

static void send_databases(struct app *app)
{
    struct shared *s = app->shared;
    struct db_rec *first;
    pthread_mutex_lock(&s->records_lock);
    first = s->db_list;
    pthread_mutex_unlock(&s->records_lock);
    for (struct db_rec *d = first; d; d = d->next) {
        struct pgbuf b;
        if (!atomic_load(&d->is_paused) && !atomic_load(&d->is_disabled))
            continue;
        begin(&b);
        handover_put_text(&b, slice_str(d->name));
        pgbuf_put_u8(&b, atomic_load(&d->is_paused));
        pgbuf_put_u8(&b, atomic_load(&d->is_disabled));
        generation_send(app, GEN_NEWER, GEN_DATABASE, &b, -1);
    }
}

/* From this moment on the budget is the new process's. */
static void commit(void *arg)
{
    struct app *app = arg;
    struct commit c = {.app = app};
    if (app->upgrade.state != UPGRADE_PAUSING)
        return; /* it has failed meanwhile */
    app->upgrade.state = UPGRADE_COMMITTED;
    generation_up(app, GEN_NEWER);
    budget_leave(app->shared, note_pool, &c);
    for (int i = 0; i < c.n; i++)
        generation_send(app, GEN_NEWER, GEN_POOL, &c.pools[i], -1);
    free(c.pools);
    send_users(app);
    send_databases(app);
    metrics_http_leave(app->metrics);
    generation_send(app, GEN_NEWER, GEN_COMMIT, NULL, -1);
    upgrade_orders_close(app);
}

static void on_ready(struct app *app)
{
    app->upgrade.state = UPGRADE_PAUSING;
    timer_set(app->loop, &app->upgrade.timer,
              loop_now_us(app->loop) + SERVE_LIMIT_US);
    quic_listeners_give_away(app->quic, true);
    listeners_pause(app->listeners, app->loop, commit, app);
}

static void on_serving(struct app *app)
{
    timer_clear(app->loop, &app->upgrade.timer);
    app->upgrade.state = UPGRADE_LEAVING;
    if (app->has_pidfile)
        pidfile_release(app->conf->pidfile);
    app->has_pidfile = false;
    supervisor_tell_left(app);
    notify_main_pid(app->upgrade.main_pid);
    log_info("upgrade: process %d serves, this one lets its sessions go",
             app->upgrade.main_pid);
    quic_listeners_drain(app->quic);
    generation_leave(app);
    tell(app, NULL);
}

void upgrade_on_frame(struct app *app, const struct fdlink_frame *f)
{
    char text[ERR_TEXT_MAX];
    enum upgrade_state s = app->upgrade.state;
    if (f->type == GEN_FAILED && s != UPGRADE_NONE && s != UPGRADE_LEAVING) {
        slice_copy(f->body, text, sizeof text);
        fail(app, text);
    } else if (f->type == GEN_HELLO && s == UPGRADE_STARTING) {
        on_hello(app, f->body);
    } else if (f->type == GEN_READY && s == UPGRADE_STARTING) {
        on_ready(app);
    } else if (f->type == GEN_SERVING && s == UPGRADE_COMMITTED) {
        on_serving(app);
    }
}

/* ---------------------------------------------------- the other one is gone */

static void stay_on(struct shard *sh, void *arg)
{
    shard_stay(sh);
}

void upgrade_open_metrics(struct app *app)
{
    struct err e;
    metrics_http_free(app->metrics_before);
    app->metrics_before = app->metrics;
    app->metrics = NULL;
    int rc = metrics_http_open(&app->metrics, app->conf, &e);
    if (rc == 0)
        rc = metrics_http_start(app->metrics, app, &e);
    if (rc)
        log_error("%s; going on without it", e.text);
}

/* Its servers are gone with it, so the budget is ours again. */
static void take_back(struct app *app)
{
    struct err e;
    app->gen.is_leaving = false;
    budget_resume(app->shared);
    team_gather(app->team, app->loop, stay_on, NULL, NULL);
    accept_again(app);
    upgrade_open_metrics(app);
    upgrade_orders_open(app);
    supervisor_tell_back(app);
    if (app->to_supervisor < 0 && pidfile_replace(app->conf->pidfile, &e) == 0)
        app->has_pidfile = true;
    notify_main_pid(app->to_supervisor < 0 ? (int)getpid() : (int)getppid());
}

void upgrade_on_lost(struct app *app, const char *why, bool said_bye)
{
    char how[64];
    enum upgrade_state was = app->upgrade.state;
    if (was == UPGRADE_NONE)
        return;
    if (was != UPGRADE_LEAVING) {
        char text[ERR_TEXT_MAX];
        snprintf(text, sizeof text,
                 was == UPGRADE_STARTING
                     ? "the new program ended before it was ready"
                     : "the new process died (%.100s)",
                 why);
        fail(app, text);
        return;
    }
    if (app->gen.has_finished || app->stop != STOP_NO || said_bye)
        return;
    reap(app, how, sizeof how);
    if (app->upgrade.has_supervisor) {
        log_warning("upgrade: the new process died (%s%s); its supervisor "
                    "starts another, this one ends",
                    why, how);
        budget_resume(app->shared);
        stop_begin(app, SHUTDOWN_WAIT_FOR_SERVERS);
        return;
    }
    log_error("upgrade: the new process died (%s%s): this one goes on in its "
              "place",
              why, how);
    app->upgrade.state = UPGRADE_NONE;
    statement_come_back();
    take_back(app);
}

void upgrade_stop(struct app *app)
{
    if (app->upgrade.state != UPGRADE_NONE &&
        app->upgrade.state != UPGRADE_LEAVING)
        fail(app, "this process was told to end");
}

bool upgrade_has_left(const struct app *app)
{
    return app->upgrade.state == UPGRADE_LEAVING;
}

/* ------------------------------------------------------------------- orders */

static void refuse(struct app *app, control_done_cb done, void *arg,
                   const char *why)
{
    struct err e;
    (void)err_set(&e, ERR_CONF, "%s", why);
    log_error("%s", e.text);
    done(arg, &e);
}

void upgrade_begin(struct app *app, const char *program, const char *file,
                   control_done_cb done, void *arg)
{
    int fd[2];
    struct err e;
    if (app->stop != STOP_NO || atomic_load(&app->shared->is_shutting_down)) {
        refuse(app, done, arg, "upgrade: this process is shutting down");
        return;
    }
    if (app->upgrade.state != UPGRADE_NONE) {
        refuse(app, done, arg,
               app->upgrade.state == UPGRADE_LEAVING
                   ? "upgrade: this process has handed over already"
                   : "upgrade: another one is under way");
        return;
    }
    if (atomic_load(&app->shared->is_suspended)) {
        refuse(app, done, arg, "upgrade: not while suspended; RESUME first");
        return;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd)) {
        refuse(app, done, arg, strerror(errno));
        return;
    }
    program = program ? program : app->program;
    file = file ? file : app->args.file;
    log_info("upgrade: starting %s with %s", program, file);
    int rc = spawn(app, program, file, fd[1], &e);
    close(fd[1]);
    if (rc) {
        close(fd[0]);
        refuse(app, done, arg, e.text);
        return;
    }
    app->upgrade.state = UPGRADE_STARTING;
    app->upgrade.done = done;
    app->upgrade.arg = arg;
    app->gen.has_finished = false;
    generation_open(app, GEN_NEWER, fdlink_new(fd[0]));
    timer_set(app->loop, &app->upgrade.timer,
              loop_now_us(app->loop) + START_LIMIT_US);
}

void upgrade_init(struct app *app)
{
    app->upgrade.timer.on_fire = on_timer;
}
