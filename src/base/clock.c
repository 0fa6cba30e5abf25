/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/clock.h"

#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec ts;
    clock_gettime(id, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_thread_cpu_us(void)
{
    return read_us(CLOCK_THREAD_CPUTIME_ID);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}
