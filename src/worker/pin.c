/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "worker/pin.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "base/log.h"

enum { CPUS_MAX = 8192 };

/* Number of the index-th processor of the set; -1 for an empty one. */
static int nth_cpu(const cpu_set_t *set, size_t size, int index)
{
    int n = CPU_COUNT_S(size, set);
    int left = n > 0 ? index % n : -1;
    for (int cpu = 0; cpu < CPUS_MAX && left >= 0; cpu++)
        if (CPU_ISSET_S(cpu, size, set) && left-- == 0)
            return cpu;
    return -1;
}

void pin_thread(int index)
{
    size_t size = CPU_ALLOC_SIZE(CPUS_MAX);
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    must(set);
    int cpu = sched_getaffinity(0, size, set) ? -1 : nth_cpu(set, size, index);
    if (cpu >= 0) {
        CPU_ZERO_S(size, set);
        CPU_SET_S(cpu, size, set);
    }
    if (cpu < 0 || sched_setaffinity(0, size, set))
        log_warning("worker %d: cannot be tied to a processor: %s", index,
                    strerror(errno));
    else
        log_info("worker %d runs on processor %d", index, cpu);
    CPU_FREE(set);
}
