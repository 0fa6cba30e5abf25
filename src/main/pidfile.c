/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/pidfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/slice.h"

enum { PID_TEXT_MAX = 32, STAT_TEXT_MAX = 256 };

/* 0: there is no file; -1: it cannot be read (errno); else the length. */
static ssize_t read_file(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    ssize_t n = read(fd, buf, cap);
    int cause = errno;
    close(fd);
    errno = cause;
    return n;
}

/* Ended, but not yet waited for by its parent, which in a container may take
 * its time: state Z in /proc/PID/stat, after the name in parentheses (proc(5)).
 */
static bool is_zombie(int64_t pid)
{
    char path[48], buf[STAT_TEXT_MAX];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    ssize_t n = read_file(path, buf, sizeof buf - 1);
    if (n <= 0)
        return false;
    buf[n] = 0;
    const char *end = strrchr(buf, ')');
    return end && !strncmp(end, ") Z", 3);
}

/* A file without a number is somebody else's: hands off. */
static bool may_be_alive(const char *buf, size_t n)
{
    int64_t pid;
    if (!slice_to_i64(slice_trim(slice_of(buf, n)), &pid) || pid <= 0 ||
        pid > INT_MAX)
        return true;
    if (pid == getpid())
        return false; /* of our number's last owner: containers */
    if (kill((pid_t)pid, 0) && errno == ESRCH)
        return false;
    return !is_zombie(pid);
}

int pidfile_check(const char *path, struct err *e)
{
    char buf[PID_TEXT_MAX];
    if (!path || !*path)
        return 0;
    ssize_t n = read_file(path, buf, sizeof buf);
    if (n < 0)
        return err_set(e, ERR_CONF, "pidfile %s: cannot read: %s", path,
                       strerror(errno));
    if (n == 0 && access(path, F_OK))
        return 0;
    if (may_be_alive(buf, (size_t)n))
        return err_set(e, ERR_CONF,
                       "pidfile %s exists: is another pooler running? If not, "
                       "remove the file",
                       path);
    if (unlink(path))
        return err_set(e, ERR_CONF, "pidfile %s is stale: cannot remove: %s",
                       path, strerror(errno));
    log_info("pidfile %s was stale, removed", path);
    return 0;
}

static int write_number(const char *path)
{
    char text[PID_TEXT_MAX];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return errno;
    int cause = 0;
    if (write(fd, text, (size_t)n) != n)
        cause = errno ? errno : ENOSPC;
    if (close(fd) && !cause)
        cause = errno;
    return cause;
}

static int publish(const char *path, bool replaces, struct err *e)
{
    char temp[PATH_MAX];
    if (!path || !*path)
        return 0;
    int n = snprintf(temp, sizeof temp, "%s.%d", path, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof temp)
        return err_set(e, ERR_CONF, "pidfile: the name is too long");
    (void)unlink(temp); /* of our number's last owner */
    int cause = write_number(temp);
    if (!cause && (replaces ? rename(temp, path) : link(temp, path)))
        cause = errno;
    (void)unlink(temp); /* its link stays */
    if (cause)
        return err_set(e, ERR_CONF, "pidfile %s: cannot write: %s%s", path,
                       strerror(cause),
                       cause == EEXIST ? "; is another pooler running?" : "");
    return 0;
}

int pidfile_write(const char *path, struct err *e)
{
    return publish(path, false, e);
}

int pidfile_replace(const char *path, struct err *e)
{
    return publish(path, true, e);
}

void pidfile_release(const char *path)
{
    char buf[PID_TEXT_MAX];
    int64_t pid;
    if (!path || !*path)
        return;
    ssize_t n = read_file(path, buf, sizeof buf);
    if (n > 0 && slice_to_i64(slice_trim(slice_of(buf, (size_t)n)), &pid) &&
        pid == getpid())
        pidfile_remove(path);
}

void pidfile_remove(const char *path)
{
    if (path && *path && unlink(path))
        log_warning("pidfile %s: cannot remove: %s", path, strerror(errno));
}
