/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The process as the kernel sees it, under the names that Prometheus' own
 * libraries use. What /proc does not tell is left out. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "admin/metric_text.h"
#include "admin/metrics.h"

/* Of /proc/self/stat: see proc(5). */
struct stat_line {
    uint64_t ticks, vsize, start_ticks;
    int64_t rss_pages;
};

static bool read_stat(struct stat_line *s)
{
    char text[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    uint64_t user = 0, system = 0;
    if (f)
        fclose(f);
    text[n] = 0;
    char *behind_name = strrchr(text, ')');
    if (!behind_name)
        return false;
    int got = sscanf(behind_name + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64
                     " %" SCNu64 " %*d %*d %*d %*d %*d %*d %" SCNu64 " %" SCNu64
                     " %" SCNd64,
                     &user, &system, &s->start_ticks, &s->vsize, &s->rss_pages);
    s->ticks = user + system;
    return got == 5;
}

static int count_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = -3; /* ".", "..", and the one for looking */
    if (!d)
        return -1;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* When the machine started, in seconds; 0: unknown. */
static int64_t boot_time_s(void)
{
    char line[256];
    int64_t at = 0;
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "btime %" SCNd64, &at) == 1)
            break;
    if (f)
        fclose(f);
    return at;
}

static void put_stat(struct pgbuf *out, const struct stat_line *s)
{
    int64_t hz = sysconf(_SC_CLK_TCK), boot_s = boot_time_s();
    metric_begin(out, METRIC_P_CPU);
    metric_put_us(out, METRIC_P_CPU, NULL, 0, (int64_t)s->ticks * 1000000 / hz);
    metric_put_single(out, METRIC_P_RSS,
                      s->rss_pages * (int64_t)sysconf(_SC_PAGESIZE));
    metric_put_single(out, METRIC_P_VSIZE, (int64_t)s->vsize);
    if (!boot_s)
        return;
    metric_begin(out, METRIC_P_START);
    metric_put_us(out, METRIC_P_START, NULL, 0,
                  boot_s * 1000000 + (int64_t)s->start_ticks * 1000000 / hz);
}

void metrics_put_process(struct pgbuf *out)
{
    struct stat_line s;
    struct rlimit limit;
    int n = count_files();
    if (read_stat(&s))
        put_stat(out, &s);
    if (n >= 0)
        metric_put_single(out, METRIC_P_FDS, n);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        limit.rlim_cur != RLIM_INFINITY)
        metric_put_single(out, METRIC_P_MAX_FDS, (int64_t)limit.rlim_cur);
}
