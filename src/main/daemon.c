/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int daemon_find_user(const char *name, struct daemon_user *out, struct err *e)
{
    *out = (struct daemon_user){0};
    if (!name || !*name) {
        if (geteuid() == 0)
            return err_set(e, ERR_CONF,
                           "cannot run as root: set user in the configuration "
                           "or give --user");
        return 0;
    }
    errno = 0;
    const struct passwd *pw = getpwnam(name);
    if (!pw)
        return err_set(e, ERR_CONF, "user \"%.64s\": %s", name,
                       errno ? strerror(errno) : "no such account");
    if (pw->pw_uid == 0)
        return err_set(e, ERR_CONF, "user \"%.64s\": cannot run as root", name);
    if (geteuid() == pw->pw_uid)
        return 0;
    if (geteuid() != 0)
        return err_set(e, ERR_CONF,
                       "user \"%.64s\": only root can change to another "
                       "account",
                       name);
    *out = (struct daemon_user){
        .name = name, .uid = pw->pw_uid, .gid = pw->pw_gid};
    return 0;
}

int daemon_become(const struct daemon_user *u, struct err *e)
{
    if (!u->name)
        return 0;
    if (initgroups(u->name, u->gid) || setgid(u->gid) || setuid(u->uid))
        return err_set(e, ERR_CONF, "user \"%.64s\": cannot change to it: %s",
                       u->name, strerror(errno));
    must(getuid() == u->uid && geteuid() == u->uid && setuid(0) != 0);
    return 0;
}

/* Of the first process: waits for a byte (the service is up) or the end. */
NORETURN static void wait_for_report(int fd)
{
    char up;
    ssize_t n;
    while ((n = read(fd, &up, 1)) < 0 && errno == EINTR)
        ;
    _exit(n == 1 ? 0 : 1);
}

int daemon_fork(int *report, struct err *e)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC))
        return err_set(e, ERR_IO, "daemon: cannot make a pipe: %s",
                       strerror(errno));
    pid_t pid = fork();
    if (pid < 0) {
        int cause = errno;
        close(fd[0]);
        close(fd[1]);
        return err_set(e, ERR_IO, "daemon: cannot fork: %s", strerror(cause));
    }
    if (pid > 0) {
        close(fd[1]);
        wait_for_report(fd[0]);
    }
    close(fd[0]);
    *report = fd[1];
    if (setsid() < 0)
        return err_set(e, ERR_IO, "daemon: cannot make a session: %s",
                       strerror(errno));
    /* Once more: who leads no session gets no terminal by opening one. */
    pid = fork();
    if (pid < 0)
        return err_set(e, ERR_IO, "daemon: cannot fork: %s", strerror(errno));
    if (pid > 0)
        _exit(0);
    return 0;
}

void daemon_report_up(int *report)
{
    if (*report < 0)
        return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        (void)dup2(null, fd);
    if (null > 2)
        close(null);
    char up = 1;
    while (write(*report, &up, 1) < 0 && errno == EINTR)
        ;
    close(*report);
    *report = -1;
}

uint64_t daemon_raise_files(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l))
        return UINT64_MAX;
    if (l.rlim_cur < l.rlim_max) {
        rlim_t soft = l.rlim_cur;
        l.rlim_cur = l.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &l))
            return soft;
    }
    return l.rlim_cur;
}
