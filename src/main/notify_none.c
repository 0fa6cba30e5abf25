/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/notify.h"

void notify_ready(void)
{
}

void notify_reloading(int64_t monotonic_us)
{
}

void notify_stopping(void)
{
}

void notify_main_pid(int pid)
{
}

void notify_status(const char *text)
{
}

int64_t notify_watchdog_us(void)
{
    return 0;
}

void notify_alive(void)
{
}

int notify_take_sockets(int *first)
{
    *first = -1;
    return 0;
}
