/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Log lines in PgBouncer's layout: "time [pid] LEVEL text". Lines are queued
 * and written by a thread of their own, so that a slow disk or terminal never
 * blocks a worker; when the queue is full lines are dropped and the number of
 * them is logged. A line may begin with a tag
 * that says whose it is (log_json.h). Any thread may call. No SQL text,
 * password or key belongs in a line. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/err.h"

enum log_level {
    LOG_LEVEL_FATAL,   /* the process ends */
    LOG_LEVEL_ERROR,   /* an operator must act */
    LOG_LEVEL_WARNING, /* something is not as it should be */
    LOG_LEVEL_INFO,    /* printed as LOG, as PgBouncer and PostgreSQL do */
    LOG_LEVEL_DEBUG,   /* with verbose >= 1 */
    LOG_LEVEL_NOISE,   /* with verbose >= 2 */
};

struct log_config {
    const char *file; /* NULL or "": none */
    bool to_stderr;
    bool to_syslog;
    const char *syslog_ident; /* used when to_syslog */
    const char *syslog_facility;
    int verbose;
    bool as_json; /* to file and stderr */
};

/* Before start lines go straight to stderr. Starts the writing thread; opens
 * the file. */
NODISCARD int log_start(const struct log_config *c, struct err *e);

/* Same, while running: reopens the file. On failure the old sinks stay. */
NODISCARD int log_reconfigure(const struct log_config *c, struct err *e);

void log_set_verbose(int verbose);
bool log_is_on(enum log_level level);

/* Writes what is queued and ends the thread; later lines go to stderr. */
void log_stop(void);

/* Waits until what is queued so far is written; for use before abort. */
void log_flush(void);

void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_fatal(...) log_write(LOG_LEVEL_FATAL, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)                                                         \
    do {                                                                       \
        if (unlikely(log_is_on(LOG_LEVEL_DEBUG)))                              \
            log_write(LOG_LEVEL_DEBUG, __VA_ARGS__);                           \
    } while (0)

#endif
