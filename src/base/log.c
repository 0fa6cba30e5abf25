/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "base/altstack.h"
#include "base/clock.h"
#include "base/log_json.h"

enum {
    LINE_MAX_BYTES = 2048,
    QUEUE_BYTES = 1 << 20, /* lines beyond this are dropped and counted */
};

static const struct {
    const char *name;
    int priority;
} levels[] = {
    [LOG_LEVEL_FATAL] = {"FATAL", LOG_CRIT},
    [LOG_LEVEL_ERROR] = {"ERROR", LOG_ERR},
    [LOG_LEVEL_WARNING] = {"WARNING", LOG_WARNING},
    [LOG_LEVEL_INFO] = {"LOG", LOG_INFO},
    [LOG_LEVEL_DEBUG] = {"DEBUG", LOG_DEBUG},
    [LOG_LEVEL_NOISE] = {"NOISE", LOG_DEBUG},
};

/* The queue: lines as struct head + text, in one buffer that the writing
 * thread swaps for an empty one. */
struct head {
    uint32_t size;
    uint32_t level;
    int64_t wall_us;
};

static struct {
    pthread_mutex_t lock; /* guards everything below but verbose */
    pthread_cond_t filled, written;
    char *buf;
    size_t n;
    unsigned dropped;
    bool running, stopping, writing;
    int fd; /* log file or -1 */
    bool to_stderr, to_syslog, as_json;
    char *ident; /* openlog() keeps the pointer */
    pthread_t thread;
} g = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .filled = PTHREAD_COND_INITIALIZER,
    .written = PTHREAD_COND_INITIALIZER,
    .fd = -1,
    .to_stderr = true,
};

static atomic_int verbose_level;

void log_set_verbose(int verbose)
{
    atomic_store_explicit(&verbose_level, verbose, memory_order_relaxed);
}

bool log_is_on(enum log_level level)
{
    int v = atomic_load_explicit(&verbose_level, memory_order_relaxed);
    return (int)level <= (int)LOG_LEVEL_INFO + v;
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

/* Where lines go, as it was when they were taken out of the queue. */
struct sinks {
    int fd;
    bool to_stderr, to_syslog, as_json;
};

static struct sinks sinks_now(void)
{
    return (struct sinks){g.fd, g.to_stderr, g.to_syslog, g.as_json};
}

/* A line as people read it: without the marks of its tag. */
static void copy_plain(char *to, const char *text)
{
    for (; *text; text++)
        if (*text != LOG_MARK)
            *to++ = *text;
    *to = 0;
}

static size_t format_plain(char *line, size_t cap, const struct head *h,
                           const char *text)
{
    time_t sec = (time_t)(h->wall_us / 1000000);
    struct tm tm;
    localtime_r(&sec, &tm);
    char when[64], zone[16];
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    strftime(zone, sizeof zone, "%Z", &tm);
    int n = snprintf(line, cap, "%s.%03d %s [%d] %s %s\n", when,
                     (int)(h->wall_us / 1000 % 1000), zone, (int)getpid(),
                     levels[h->level].name, text);
    return MIN((size_t)MAX(n, 0), cap - 1);
}

static void emit(const struct head *h, const char *text, const struct sinks *to)
{
    char line[LINE_MAX_BYTES * LOG_JSON_PER_BYTE + LOG_JSON_HEAD];
    char plain[LINE_MAX_BYTES];
    size_t n;
    copy_plain(plain, text);
    if (to->as_json) {
        const struct log_json_line json = {h->wall_us, levels[h->level].name,
                                           (int)getpid(), text};
        n = log_json_put(line, sizeof line, &json);
    } else {
        n = format_plain(line, sizeof line, h, plain);
    }
    if (to->fd >= 0)
        write_all(to->fd, line, n);
    if (to->to_stderr)
        write_all(STDERR_FILENO, line, n);
    if (to->to_syslog)
        syslog(levels[h->level].priority, "%s", plain);
}

static void emit_batch(const char *buf, size_t n, unsigned dropped,
                       const struct sinks *to)
{
    for (size_t at = 0; at < n;) {
        struct head h;
        memcpy(&h, buf + at, sizeof h);
        emit(&h, buf + at + sizeof h, to);
        at += sizeof h + h.size;
    }
    if (dropped) {
        char text[80];
        snprintf(text, sizeof text, "log: %u lines dropped, writing too slow",
                 dropped);
        struct head h = {0, LOG_LEVEL_WARNING, clock_wall_us()};
        emit(&h, text, to);
    }
}

static void *writer(void *spare)
{
    char *other = spare;
    altstack_start();
    pthread_mutex_lock(&g.lock);
    for (;;) {
        while (!g.n && !g.stopping)
            pthread_cond_wait(&g.filled, &g.lock);
        if (!g.n)
            break;
        char *buf = g.buf;
        size_t n = g.n;
        unsigned dropped = g.dropped;
        g.buf = other;
        g.n = 0;
        g.dropped = 0;
        g.writing = true;
        struct sinks to = sinks_now();
        pthread_mutex_unlock(&g.lock);
        emit_batch(buf, n, dropped, &to);
        other = buf;
        pthread_mutex_lock(&g.lock);
        g.writing = false;
        pthread_cond_broadcast(&g.written);
    }
    pthread_mutex_unlock(&g.lock);
    free(other);
    altstack_stop();
    return NULL;
}

static void wait_written(void)
{
    while (g.running && (g.n || g.writing))
        pthread_cond_wait(&g.written, &g.lock);
}

void log_flush(void)
{
    pthread_mutex_lock(&g.lock);
    wait_written();
    pthread_mutex_unlock(&g.lock);
}

static int open_sinks(const struct log_config *c, struct err *e)
{
    int fd = -1;
    if (c->file && *c->file) {
        fd = open(c->file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
        if (fd < 0)
            return err_set(e, ERR_CONF, "logfile %s: cannot open: %s", c->file,
                           strerror(errno));
    }
    char *ident = c->to_syslog ? strdup(c->syslog_ident) : NULL;
    pthread_mutex_lock(&g.lock);
    wait_written();
    if (g.fd >= 0)
        close(g.fd);
    g.fd = fd;
    g.to_stderr = c->to_stderr;
    g.to_syslog = c->to_syslog;
    g.as_json = c->as_json;
    if (c->to_syslog) {
        static const struct {
            const char *name;
            int code;
        } facility[] = {
            {"auth", LOG_AUTH},     {"authpriv", LOG_AUTHPRIV},
            {"daemon", LOG_DAEMON}, {"user", LOG_USER},
            {"local0", LOG_LOCAL0}, {"local1", LOG_LOCAL1},
            {"local2", LOG_LOCAL2}, {"local3", LOG_LOCAL3},
            {"local4", LOG_LOCAL4}, {"local5", LOG_LOCAL5},
            {"local6", LOG_LOCAL6}, {"local7", LOG_LOCAL7},
        };
        int code = LOG_DAEMON;
        for (size_t i = 0; i < ARRAY_SIZE(facility); i++)
            if (c->syslog_facility &&
                !strcmp(facility[i].name, c->syslog_facility))
                code = facility[i].code;
        openlog(ident, LOG_PID, code);
    }
    free(g.ident);
    g.ident = ident;
    pthread_mutex_unlock(&g.lock);
    log_set_verbose(c->verbose);
    return 0;
}

int log_start(const struct log_config *c, struct err *e)
{
    int rc = open_sinks(c, e);
    if (rc)
        return rc;
    g.buf = mem_new(QUEUE_BYTES);
    char *spare = mem_new(QUEUE_BYTES);
    g.running = true;
    must(pthread_create(&g.thread, NULL, writer, spare) == 0);
    return 0;
}

int log_reconfigure(const struct log_config *c, struct err *e)
{
    return open_sinks(c, e);
}

void log_stop(void)
{
    pthread_mutex_lock(&g.lock);
    bool running = g.running;
    g.stopping = true;
    pthread_cond_signal(&g.filled);
    pthread_mutex_unlock(&g.lock);
    if (!running)
        return;
    pthread_join(g.thread, NULL);
    pthread_mutex_lock(&g.lock);
    g.running = g.stopping = false;
    free(g.buf);
    g.buf = NULL;
    g.n = 0;
    pthread_mutex_unlock(&g.lock);
}

static void enqueue(const struct head *h, const char *text)
{
    size_t need = sizeof *h + h->size;
    if (g.n + need > QUEUE_BYTES) {
        g.dropped++;
        return;
    }
    memcpy(g.buf + g.n, h, sizeof *h);
    memcpy(g.buf + g.n + sizeof *h, text, h->size);
    if (!g.n)
        pthread_cond_signal(&g.filled);
    g.n += need;
}

/* One event is one line: a peer's line feed must not forge another, nor its
 * bytes the marks of a tag. */
static void make_one_line(char *s)
{
    struct log_tag tag;
    char *rest = s + (log_tag_split(s, &tag) ? tag.message.p - s : 0);
    for (; *rest; rest++)
        if ((unsigned char)*rest < 0x20)
            *rest = ' ';
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if (!log_is_on(level))
        return;
    char text[LINE_MAX_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    make_one_line(text);
    struct head h = {(uint32_t)strlen(text) + 1, level, clock_wall_us()};
    pthread_mutex_lock(&g.lock);
    bool queued = g.running;
    struct sinks to = sinks_now();
    if (queued)
        enqueue(&h, text);
    pthread_mutex_unlock(&g.lock);
    if (!queued)
        emit(&h, text, &to);
}
