/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/log_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/utf8.h"

enum { NAME_MAX_BYTES = 110 };

/* --- tags ------------------------------------------------------------------
 */

/* A stranger's name must not look like the marks around it. */
static void copy_name(char to[NAME_MAX_BYTES + 1], const char *name)
{
    snprintf(to, NAME_MAX_BYTES + 1, "%s", name);
    for (; *to; to++)
        if ((unsigned char)*to < 0x20)
            *to = ' ';
}

const char *log_tag_make(char buf[LOG_TAG_MAX], char kind, const void *id,
                         const char *database, const char *user,
                         const char *address)
{
    char db[NAME_MAX_BYTES + 1], who[NAME_MAX_BYTES + 1];
    copy_name(db, database);
    copy_name(who, user);
    snprintf(buf, LOG_TAG_MAX, "%c-%p%c: %c%s%c/%c%s%c@%c%.140s%c", kind, id,
             LOG_MARK, LOG_MARK, db, LOG_MARK, LOG_MARK, who, LOG_MARK,
             LOG_MARK, address, LOG_MARK);
    return buf;
}

/* Up to the next mark, which is passed; false when there is none. */
static bool next_part(const char **at, struct slice *part)
{
    const char *end = strchr(*at, LOG_MARK);
    if (!end)
        return false;
    if (part)
        *part = slice_of(*at, (size_t)(end - *at));
    *at = end + 1;
    return true;
}

bool log_tag_split(const char *text, struct log_tag *out)
{
    const char *at = text;
    *out = (struct log_tag){.message = slice_str(text)};
    if ((text[0] != 'C' && text[0] != 'S') || text[1] != '-')
        return false;
    struct log_tag t;
    if (!next_part(&at, &t.id) || !next_part(&at, NULL) ||
        !next_part(&at, &t.database) || !next_part(&at, NULL) ||
        !next_part(&at, &t.user) || !next_part(&at, NULL) ||
        !next_part(&at, &t.address))
        return false;
    t.message = slice_trim(slice_str(at));
    *out = t;
    return true;
}

/* --- JSON ------------------------------------------------------------------
 */

struct json {
    char *p;
    size_t n, cap;
};

static void put(struct json *j, const void *p, size_t n)
{
    must(n <= j->cap - j->n);
    memcpy(j->p + j->n, p, n);
    j->n += n;
}

static void put_text(struct json *j, const char *s)
{
    put(j, s, strlen(s));
}

static void put_string(struct json *j, struct slice s)
{
    char escaped[8];
    put_text(j, "\"");
    for (size_t i = 0; i < s.n;) {
        size_t n = utf8_char(s.p + i, s.n - i);
        unsigned char c = (unsigned char)s.p[i];
        if (n == 0)
            snprintf(escaped, sizeof escaped, "\\\\x%02x", c);
        else if (c == '"' || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        else
            escaped[0] = 0;
        if (escaped[0])
            put_text(j, escaped);
        else
            put(j, s.p + i, n);
        i += n ? n : 1;
    }
    put_text(j, "\"");
}

static void put_member(struct json *j, const char *key, struct slice value)
{
    put_text(j, ",\"");
    put_text(j, key);
    put_text(j, "\":");
    put_string(j, value);
}

/* RFC 3339, with the offset of the local time. */
static void put_time(struct json *j, int64_t wall_us)
{
    time_t sec = (time_t)(wall_us / 1000000);
    char when[32], text[80];
    struct tm tm;
    localtime_r(&sec, &tm);
    long minutes = tm.tm_gmtoff / 60;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, sizeof text, "{\"timestamp\":\"%s.%03d%c%02ld:%02ld\"", when,
             (int)(wall_us / 1000 % 1000), minutes < 0 ? '-' : '+',
             labs(minutes) / 60, labs(minutes) % 60);
    put_text(j, text);
}

/* "10.0.0.5:6432", "[::1]:6432"; a Unix socket has no port. */
static void put_address(struct json *j, struct slice a)
{
    const char *colon = a.n ? memrchr(a.p, ':', a.n) : NULL;
    struct slice host = a, port = {0};
    int64_t number;
    if (colon && !(a.n > 4 && !memcmp(a.p, "unix", 4))) {
        port = slice_of(colon + 1, a.n - (size_t)(colon + 1 - a.p));
        host = slice_of(a.p, (size_t)(colon - a.p));
        if (host.n > 2 && host.p[0] == '[' && host.p[host.n - 1] == ']')
            host = slice_of(host.p + 1, host.n - 2);
    }
    if (!slice_to_i64(port, &number)) {
        put_member(j, "remote_host", a);
        return;
    }
    put_member(j, "remote_host", host);
    put_text(j, ",\"remote_port\":");
    put(j, port.p, port.n);
}

size_t log_json_put(char *out, size_t cap, const struct log_json_line *line)
{
    struct json j = {.p = out, .cap = cap};
    struct log_tag tag;
    char pid[32];
    put_time(&j, line->wall_us);
    snprintf(pid, sizeof pid, ",\"pid\":%d", line->pid);
    put_text(&j, pid);
    put_member(&j, "error_severity", slice_str(line->level));
    if (log_tag_split(line->text, &tag)) {
        put_member(&j, tag.id.p[0] == 'C' ? "client" : "server",
                   slice_of(tag.id.p + 2, tag.id.n - 2));
        put_member(&j, "dbname", tag.database);
        put_member(&j, "user", tag.user);
        if (tag.address.n)
            put_address(&j, tag.address);
    }
    put_member(&j, "message", tag.message);
    put_text(&j, "}\n");
    return j.n;
}
