/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The parent waits for three things: signals, which it passes on; a byte of the
 * child, which says that it is up or is about to end in good order; the child's
 * end. It forks, so a new child begins with the sockets and the configuration
 * of the start, then reads the file anew.
 *
 *   child ends with 0, or while stopping    so does the parent
 *   first child ends before it is up        so does the parent, with its status
 *   anything else is a crash                the next child, at once or after a
 *                                           pause that grows with each crash
 *
 * The parent has one thread and no log file of its own: the next child writes
 * down what became of the last one. */
#include "main/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "main/app.h"
#include "main/pidfile.h"

enum {
    CALM_US = 10 * 1000000, /* a life as long as this: no pause after it */
    PAUSE_FIRST_MS = 100,
    PAUSE_MAX_MS = 5000,
    WHY_MAX = 200,
};

enum { SAY_UP = 'U', SAY_STOPPING = 'S', SAY_LEFT = 'L', SAY_BACK = 'B' };

struct supervisor {
    struct app *app;
    int signal_fd;
    int from_child; /* -1: it has closed its end */
    pid_t child;    /* 0: none now */
    bool has_been_up, is_stopping, has_left;
    int64_t start_us;
    int crashes, pause_ms;
    char why[WHY_MAX];
};

/* In the foreground somebody is watching who may not expect two processes: a
 * service manager that takes messages from one only, a container, a debugger.
 */
void supervisor_settle(struct app *app)
{
    if (app->conf->supervisor == CONF_SUPERVISOR_AUTO)
        app->conf->supervisor =
            app->args.is_daemon ? CONF_SUPERVISOR_ON : CONF_SUPERVISOR_OFF;
}

static sigset_t watched(void)
{
    static const int number[] = {SIGHUP,  SIGINT,  SIGTERM, SIGQUIT,
                                 SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(number); i++)
        sigaddset(&set, number[i]);
    return set;
}

NORETURN static void finish(struct supervisor *s, int status)
{
    if (s->app->has_pidfile)
        pidfile_release(s->app->conf->pidfile);
    _exit(status);
}

/* ---------------------------------------------------------------- the child */

static void become_child(struct supervisor *s, int to_parent)
{
    sigset_t chld;
    close(s->signal_fd);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    (void)pthread_sigmask(SIG_UNBLOCK, &chld, NULL);
    /* Signals come from the parent, not also from the terminal: the second one
     * means haste. */
    (void)setpgid(0, 0);
    /* Without a parent nobody has the pid file: end in good order. */
    (void)prctl(PR_SET_PDEATHSIG, SIGINT);
    s->app->to_supervisor = to_parent;
    s->app->has_pidfile = false;
}

/* True in the child. */
static bool fork_child(struct supervisor *s)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC))
        fd[0] = fd[1] = -1; /* then nothing is said */
    s->start_us = clock_now_us();
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        become_child(s, fd[1]);
        return true;
    }
    close(fd[1]);
    takeover_drop(s->app);
    if (pid < 0) {
        close(fd[0]);
        snprintf(s->why, sizeof s->why, "cannot fork: %s", strerror(errno));
        fd[0] = -1;
    }
    s->child = MAX(pid, 0);
    s->from_child = fd[0];
    return false;
}

/* ------------------------------------------------------------------ its end */

static void set_pause(struct supervisor *s)
{
    int64_t life = clock_now_us() - s->start_us;
    s->crashes++;
    if (s->crashes == 1 || life >= CALM_US)
        s->pause_ms = 0;
    else if (s->pause_ms == 0)
        s->pause_ms = PAUSE_FIRST_MS;
    else
        s->pause_ms = MIN(s->pause_ms * 2, (int)PAUSE_MAX_MS);
}

static void child_ended(struct supervisor *s, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    bool has_crashed = WIFSIGNALED(status);
    if (s->from_child >= 0)
        close(s->from_child);
    s->from_child = -1;
    if (s->is_stopping || s->has_left || (!has_crashed && code == 0))
        finish(s, code);
    if (!s->has_been_up && s->crashes == 0)
        finish(s, code);
    set_pause(s);
    if (has_crashed)
        snprintf(s->why, sizeof s->why,
                 "process %d was ended by signal %d (%s)", (int)s->child,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(s->why, sizeof s->why, "process %d ended with status %d",
                 (int)s->child, code);
    fprintf(stderr, "pgbraid: %s; starting another\n", s->why);
    s->child = 0;
}

static void reap(struct supervisor *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == s->child)
            child_ended(s, status);
}

/* --------------------------------------------------------------- the parent */

static void on_signal(struct supervisor *s, int signo)
{
    bool ends = signo == SIGTERM || signo == SIGINT || signo == SIGQUIT;
    if (signo == SIGCHLD) {
        reap(s);
        return;
    }
    s->is_stopping = s->is_stopping || ends;
    if (s->child)
        (void)kill(s->child, signo);
    else if (ends)
        finish(s, 0);
}

static void read_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(s, (int)info.ssi_signo);
}

/* The process that it named has made way. */
static void take_pidfile(struct supervisor *s)
{
    struct err e;
    s->app->has_pidfile = pidfile_replace(s->app->conf->pidfile, &e) == 0;
    if (!s->app->has_pidfile)
        fprintf(stderr, "pgbraid: %s\n", e.text);
}

static void read_child(struct supervisor *s)
{
    char c;
    ssize_t n = read(s->from_child, &c, 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        close(s->from_child);
        s->from_child = -1;
    } else if (c == SAY_UP) {
        if (!s->has_been_up && s->app->takes_over)
            take_pidfile(s);
        s->has_been_up = true;
        daemon_report_up(&s->app->report);
    } else if (c == SAY_STOPPING) {
        /* Or connections would wait where nobody accepts any more. */
        s->is_stopping = true;
        listeners_abandon_tcp(s->app->listeners);
    } else if (c == SAY_LEFT) {
        s->has_left = true;
    } else if (c == SAY_BACK) {
        s->has_left = false;
        take_pidfile(s);
    }
}

static void wait_for_something(struct supervisor *s, int timeout_ms)
{
    struct pollfd p[] = {{.fd = s->signal_fd, .events = POLLIN},
                         {.fd = s->from_child, .events = POLLIN}};
    if (poll(p, ARRAY_SIZE(p), timeout_ms) <= 0)
        return;
    if (p[1].revents)
        read_child(s); /* before its end */
    if (p[0].revents)
        read_signals(s);
}

/* Signals that come in a pause must not shorten it. */
static void pause_now(struct supervisor *s)
{
    int64_t end = clock_now_us() + (int64_t)s->pause_ms * 1000, left;
    while ((left = end - clock_now_us()) > 0)
        wait_for_something(s, (int)(left / 1000) + 1);
}

void supervisor_run(struct app *app, char *why, size_t why_cap)
{
    struct supervisor s = {.app = app, .from_child = -1};
    sigset_t set = watched();
    must(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    s.signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    must(s.signal_fd >= 0);
    for (;;) {
        if (!s.child) {
            pause_now(&s);
            if (fork_child(&s))
                break;
            if (!s.child)
                set_pause(&s);
        } else {
            wait_for_something(&s, -1);
        }
    }
    slice_copy(slice_str(s.why), why, why_cap);
}

/* ---------------------------------------------------------- the child's word
 */

static void say(struct app *app, char c)
{
    if (app->to_supervisor < 0)
        return;
    while (write(app->to_supervisor, &c, 1) < 0 && errno == EINTR)
        ;
}

void supervisor_tell_up(struct app *app)
{
    say(app, SAY_UP);
}

void supervisor_tell_left(struct app *app)
{
    say(app, SAY_LEFT);
}

void supervisor_tell_back(struct app *app)
{
    say(app, SAY_BACK);
}

void supervisor_tell_stopping(struct app *app)
{
    say(app, SAY_STOPPING);
}
