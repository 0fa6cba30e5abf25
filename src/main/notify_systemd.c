/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/notify.h"

#include <inttypes.h>
#include <stdlib.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* Nothing here fails the service: without a manager the calls do nothing. */

void notify_ready(void)
{
    (void)sd_notify(0, "READY=1");
}

void notify_reloading(int64_t monotonic_us)
{
    (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, monotonic_us);
}

void notify_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1");
}

void notify_main_pid(int pid)
{
    (void)sd_notifyf(0, "MAINPID=%d", pid);
}

void notify_status(const char *text)
{
    (void)sd_notifyf(0, "STATUS=%s", text);
}

/* sd_watchdog_enabled() would say no in the child of a supervisor, which is not
 * the process that the manager started. */
static bool is_for_us(const char *pid)
{
    long n = pid ? strtol(pid, NULL, 10) : 0;
    return n == 0 || n == (long)getpid() || n == (long)getppid();
}

int64_t notify_watchdog_us(void)
{
    const char *us = getenv("WATCHDOG_USEC");
    if (!us || !is_for_us(getenv("WATCHDOG_PID")))
        return 0;
    return MAX(strtoll(us, NULL, 10), 0LL);
}

void notify_alive(void)
{
    (void)sd_notify(0, "WATCHDOG=1");
}

int notify_take_sockets(int *first)
{
    int n = sd_listen_fds(1);
    *first = SD_LISTEN_FDS_START;
    return n > 0 ? n : 0;
}
