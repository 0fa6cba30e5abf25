/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/crash.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/altstack.h"
#include "base/base.h"
#include "config.h"

enum { FRAMES_MAX = 64 };

static atomic_int log_fd = -1;

static const struct {
    int number;
    const char *text;
} signals[] = {
    {SIGSEGV, "SIGSEGV (bad memory access)"},
    {SIGBUS, "SIGBUS (bad memory access)"},
    {SIGFPE, "SIGFPE (arithmetic)"},
    {SIGILL, "SIGILL (bad instruction)"},
    {SIGABRT, "SIGABRT (a check failed)"},
};

static void say(int fd, const char *s)
{
    /* Nothing can be done about a failure here. */
    if (write(fd, s, strlen(s)) < 0)
        return;
}

static void tell(int fd, int signo, void *const *frames, int n)
{
    const char *text = "a signal";
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
        if (signals[i].number == signo)
            text = signals[i].text;
    say(fd, "FATAL pgbraid " PGBRAID_VERSION " crashed: ");
    say(fd, text);
    say(fd, "; backtrace:\n");
    backtrace_symbols_fd(frames, n, fd);
}

static void on_last_line(const char *line, size_t n)
{
    int fd = atomic_load(&log_fd);
    if (fd >= 0 && write(fd, line, n) < 0)
        return;
}

/* Only what may be called in a signal handler. SA_RESETHAND: raising the signal
 * again ends the process, with a core dump if the system makes any. */
static void on_crash(int signo)
{
    void *frames[FRAMES_MAX];
    int n = backtrace(frames, FRAMES_MAX);
    tell(STDERR_FILENO, signo, frames, n);
    int fd = atomic_load(&log_fd);
    if (fd >= 0)
        tell(fd, signo, frames, n);
    raise(signo);
}

void crash_install(void)
{
    /* The first call loads a library, which a signal handler must not. */
    void *frame;
    (void)backtrace(&frame, 1);
    altstack_start();
    must_set_hook(on_last_line);
    for (size_t i = 0; i < ARRAY_SIZE(signals); i++) {
        struct sigaction old, sa = {.sa_handler = on_crash};
        sa.sa_flags = (int)(SA_RESETHAND | SA_NODEFER | SA_ONSTACK);
        if (sigaction(signals[i].number, NULL, &old) == 0 &&
            !(old.sa_flags & SA_SIGINFO) && old.sa_handler == SIG_DFL)
            (void)sigaction(signals[i].number, &sa, NULL);
    }
}

void crash_set_logfile(const char *path)
{
    int fd = -1;
    if (path && *path)
        fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    int old = atomic_exchange(&log_fd, fd);
    if (old >= 0)
        close(old);
}
