/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/edge_main.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "main/daemon.h"
#include "main/edge_args.h"
#include "main/notify.h"

/* Numbers of the shell. */
enum { EXIT_NOT_FOUND = 127, EXIT_BY_SIGNAL = 128 };

struct edge_app {
    struct edge_args args;
    struct loop *loop;
    struct edge *edge[EDGES_MAX];
    struct io signals;
    char dir[64]; /* of run; "": none */
    pid_t child;
    int status;
};

bool edge_main_is(const char *word)
{
    return !strcmp(word, "edge") || !strcmp(word, "run");
}

/* --- signals and the child --------------------------------------------------
 */

static void reap(struct edge_app *app)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != app->child)
            continue;
        app->child = 0;
        app->status = WIFEXITED(status) ? WEXITSTATUS(status)
                                        : EXIT_BY_SIGNAL + WTERMSIG(status);
        loop_stop(app->loop);
    }
}

static void on_signals(struct io *io, uint32_t events)
{
    struct edge_app *app = container_of(io, struct edge_app, signals);
    struct signalfd_siginfo info;
    while (read(io->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        int signo = (int)info.ssi_signo;
        if (signo == SIGCHLD)
            reap(app);
        else if (app->child)
            (void)kill(app->child, signo); /* it decides */
        else
            loop_stop(app->loop);
    }
}

static sigset_t watched(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    return set;
}

static int watch_signals(struct edge_app *app, struct err *e)
{
    sigset_t set = watched();
    must(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    must(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    app->signals.fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    app->signals.on_event = on_signals;
    if (app->signals.fd < 0 || loop_add(app->loop, &app->signals, EPOLLIN))
        return err_set(e, ERR_IO, "signals: %s", strerror(errno));
    return 0;
}

static void exec_child(struct edge_app *app)
{
    char port[16];
    sigset_t set = watched();
    snprintf(port, sizeof port, "%d", app->args.edge[0].o.port);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    (void)setenv("PGHOST", app->dir, 1);
    (void)setenv("PGPORT", port, 1);
    (void)unsetenv("PGHOSTADDR");
    (void)unsetenv("PGMPTCP"); /* it was for the way that we go */
    execvp(app->args.command[0], app->args.command);
    fprintf(stderr, "pgbraid: %s: %s\n", app->args.command[0], strerror(errno));
    _exit(EXIT_NOT_FOUND);
}

static int start_child(struct edge_app *app, struct err *e)
{
    app->child = fork();
    if (app->child < 0)
        return err_set(e, ERR_IO, "fork: %s", strerror(errno));
    if (app->child == 0)
        exec_child(app);
    return 0;
}

/* --- all of it --------------------------------------------------------------
 */

static int start_log(const struct edge_args *a, struct err *e)
{
    struct log_config c = {
        .to_stderr = !a->is_quiet,
        .verbose = a->verbose,
    };
    return log_start(&c, e);
}

/* A folder of our own for the socket, which only we may enter. */
static int make_dir(struct edge_app *app, struct err *e)
{
    snprintf(app->dir, sizeof app->dir, "/tmp/pgbraid-run-XXXXXX");
    if (!mkdtemp(app->dir)) {
        app->dir[0] = 0;
        return err_set(e, ERR_IO, "/tmp: %s", strerror(errno));
    }
    app->args.edge[0].o.listen = app->dir;
    return 0;
}

static int open_edges(struct edge_app *app, struct err *e)
{
    for (int i = 0; i < app->args.n; i++) {
        const struct edge_plan *p = &app->args.edge[i];
        int rc = edge_open(&app->edge[i], app->loop, &p->o, e);
        if (rc && p->name[0])
            return err_wrap(e, "[edge %s]", p->name);
        if (rc)
            return rc;
    }
    return 0;
}

static int start(struct edge_app *app, struct err *e)
{
    int rc = loop_new(&app->loop, app, e);
    if (rc == 0)
        rc = watch_signals(app, e);
    (void)daemon_raise_files();
    /* The command's own words come first: lines of ours only when asked. */
    if (app->args.mode == EDGE_RUN && !app->args.verbose)
        app->args.is_quiet = true;
    if (rc == 0 && app->args.mode == EDGE_RUN)
        rc = make_dir(app, e);
    if (rc == 0)
        rc = start_log(&app->args, e);
    if (rc == 0)
        rc = open_edges(app, e);
    if (rc == 0 && app->args.mode == EDGE_RUN)
        rc = start_child(app, e);
    return rc;
}

static void tear_down(struct edge_app *app)
{
    for (int i = 0; i < app->args.n; i++)
        edge_close(app->edge[i]);
    if (app->dir[0])
        (void)rmdir(app->dir);
    if (app->signals.fd >= 0)
        close(app->signals.fd);
    if (app->loop)
        loop_free(app->loop);
    log_stop();
}

int edge_main(int argc, char **argv)
{
    struct edge_app app = {.signals.fd = -1};
    struct err e = {0};
    int rc = edge_args_parse(&app.args, argc, argv, &e);
    if (rc) {
        fprintf(stderr, "pgbraid %s: %s\nTry \"pgbraid %s --help\".\n", argv[0],
                e.text, argv[0]);
        edge_args_free(&app.args);
        return 1;
    }
    if (app.args.mode == EDGE_HELP) {
        edge_args_print_help();
        edge_args_free(&app.args);
        return 0;
    }
    if (app.args.is_check) {
        puts("pgbraid edge: configuration is fine");
        edge_args_free(&app.args);
        return 0;
    }
    rc = start(&app, &e);
    if (rc) {
        fprintf(stderr, "pgbraid %s: %s\n", argv[0], e.text);
    } else {
        for (int i = 0; i < app.args.n; i++)
            edge_log(app.edge[i]);
        notify_ready();
        loop_run(app.loop);
        notify_stopping();
    }
    tear_down(&app);
    edge_args_free(&app.args);
    return rc ? 1 : app.status;
}
