/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The only callers of clock_gettime(). Any thread. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/base.h"

/* Monotonic microseconds; never goes back. */
int64_t clock_now_us(void);

/* Processor time of the calling thread, in microseconds. */
int64_t clock_thread_cpu_us(void);

/* Microseconds since the epoch, for people. */
int64_t clock_wall_us(void);

#endif
