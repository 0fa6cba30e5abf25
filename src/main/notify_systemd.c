/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/notify.h"

#include <inttypes.h>
#include <systemd/sd-daemon.h>

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

int notify_take_sockets(int *first)
{
    int n = sd_listen_fds(1);
    *first = SD_LISTEN_FDS_START;
    return n > 0 ? n : 0;
}
