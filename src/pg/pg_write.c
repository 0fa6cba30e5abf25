/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "pg/pg_write.h"

#include <stdlib.h>

enum { PGBUF_FIRST = 256 };

void pgbuf_init(struct pgbuf *b, size_t max)
{
    *b = (struct pgbuf){.max = max};
}

void pgbuf_fini(struct pgbuf *b)
{
    free(b->p);
    *b = (struct pgbuf){.max = b->max};
}

void pgbuf_reset(struct pgbuf *b)
{
    b->n = 0;
    b->failed = false;
}

void pgbuf_wipe(struct pgbuf *b)
{
    if (b->p)
        mem_wipe(b->p, b->cap);
    pgbuf_reset(b);
}

char *pgbuf_take(struct pgbuf *b, size_t *n)
{
    char *p = NULL;

    *n = 0;
    if (!b->failed && b->n > 0) {
        p = b->p;
        *n = b->n;
        b->p = NULL;
    }
    pgbuf_fini(b);
    return p;
}

/* Moves to a larger block by hand, not by realloc(), so that no copy of a
 * password is left behind in freed memory. */
static bool grow(struct pgbuf *b, size_t more)
{
    size_t cap = b->cap ? b->cap : PGBUF_FIRST;
    char *p;

    if (more > b->max - b->n)
        return false;
    while (cap - b->n < more)
        cap = cap > b->max / 2 ? b->max : cap * 2;
    cap = MIN(cap, b->max);
    p = malloc(cap);
    if (!p)
        return false;
    if (b->p) {
        memcpy(p, b->p, b->n);
        mem_wipe(b->p, b->n);
        free(b->p);
    }
    b->p = p;
    b->cap = cap;
    return true;
}

/* Room for n more bytes, already counted; NULL when failed. */
static char *room(struct pgbuf *b, size_t n)
{
    if (unlikely(b->failed))
        return NULL;
    if (unlikely(b->cap - b->n < n) && !grow(b, n)) {
        b->failed = true;
        return NULL;
    }
    b->n += n;
    return b->p + b->n - n;
}

void pgbuf_put_u8(struct pgbuf *b, uint8_t v)
{
    char *p = room(b, 1);

    if (p)
        *p = (char)v;
}

void pgbuf_put_u16(struct pgbuf *b, uint16_t v)
{
    char *p = room(b, 2);

    if (p)
        pg_set_u16(p, v);
}

void pgbuf_put_u32(struct pgbuf *b, uint32_t v)
{
    char *p = room(b, 4);

    if (p)
        pg_set_u32(p, v);
}

void pgbuf_put_bytes(struct pgbuf *b, const void *p, size_t n)
{
    char *to;

    if (n == 0)
        return;
    to = room(b, n);
    if (to)
        memcpy(to, p, n);
}

void pgbuf_put_cstr(struct pgbuf *b, const char *s)
{
    pgbuf_put_bytes(b, s, strlen(s) + 1);
}

void pgbuf_put_string(struct pgbuf *b, struct slice s)
{
    if (s.n > 0 && memchr(s.p, 0, s.n)) {
        b->failed = true;
        return;
    }
    pgbuf_put_bytes(b, s.p, s.n);
    pgbuf_put_u8(b, 0);
}

size_t pgbuf_begin(struct pgbuf *b, char type)
{
    if (type)
        pgbuf_put_u8(b, (uint8_t)type);
    pgbuf_put_u32(b, 0);
    return b->n - 4;
}

/* `at` is where the length word stands. */
size_t pgbuf_end(struct pgbuf *b, size_t at)
{
    size_t len;

    if (b->failed)
        return 0;
    len = b->n - at;
    if (len > PG_LARGE_MESSAGE_LIMIT) {
        b->failed = true;
        return 0;
    }
    pg_set_u32(b->p + at, (uint32_t)len);
    return len;
}

void pg_put_empty(struct pgbuf *b, char type)
{
    pgbuf_end(b, pgbuf_begin(b, type));
}

/* A count in front of a list is 16 bits wide. */
static void put_count(struct pgbuf *b, size_t n)
{
    if (n > UINT16_MAX)
        b->failed = true;
    pgbuf_put_u16(b, (uint16_t)n);
}

static void put_oids(struct pgbuf *b, const uint32_t *oids, size_t n)
{
    put_count(b, n);
    for (size_t i = 0; i < n; i++)
        pgbuf_put_u32(b, oids[i]);
}

static void put_field(struct pgbuf *b, char field, const char *s)
{
    if (!s)
        return;
    pgbuf_put_u8(b, (uint8_t)field);
    pgbuf_put_cstr(b, s);
}

static void put_report(struct pgbuf *b, char type,
                       const struct pg_error_text *t)
{
    size_t at = pgbuf_begin(b, type);

    put_field(b, 'S', t->severity);
    put_field(b, 'V', t->severity);
    put_field(b, 'C', t->sqlstate);
    put_field(b, 'M', t->message);
    put_field(b, 'D', t->detail);
    put_field(b, 'H', t->hint);
    pgbuf_put_u8(b, 0);
    pgbuf_end(b, at);
}

void pg_put_error(struct pgbuf *b, const char *severity, const char *sqlstate,
                  const char *message)
{
    put_report(
        b, PG_MSG_ERROR,
        &(struct pg_error_text){severity, sqlstate, message, NULL, NULL});
}

void pg_put_error_full(struct pgbuf *b, const struct pg_error_text *t)
{
    put_report(b, PG_MSG_ERROR, t);
}

void pg_put_notice(struct pgbuf *b, const char *severity, const char *sqlstate,
                   const char *message)
{
    put_report(
        b, PG_MSG_NOTICE,
        &(struct pg_error_text){severity, sqlstate, message, NULL, NULL});
}

void pg_put_notice_full(struct pgbuf *b, const struct pg_error_text *t)
{
    put_report(b, PG_MSG_NOTICE, t);
}

void pg_put_error_v2(struct pgbuf *b, const char *severity, const char *message)
{
    pgbuf_put_u8(b, PG_MSG_ERROR);
    pgbuf_put_bytes(b, severity, strlen(severity));
    pgbuf_put_bytes(b, ":  ", 3);
    pgbuf_put_bytes(b, message, strlen(message));
    pgbuf_put_bytes(b, "\n", 2);
}

void pg_put_auth(struct pgbuf *b, uint32_t code)
{
    pg_put_auth_data(b, code, (struct slice){0});
}

void pg_put_auth_data(struct pgbuf *b, uint32_t code, struct slice data)
{
    size_t at = pgbuf_begin(b, PG_MSG_AUTH);

    pgbuf_put_u32(b, code);
    pgbuf_put_bytes(b, data.p, data.n);
    pgbuf_end(b, at);
}

void pg_put_parameter_status(struct pgbuf *b, struct slice name,
                             struct slice value)
{
    size_t at = pgbuf_begin(b, PG_MSG_PARAMETER_STATUS);

    pgbuf_put_string(b, name);
    pgbuf_put_string(b, value);
    pgbuf_end(b, at);
}

void pg_put_backend_key_data(struct pgbuf *b, uint32_t pid, const void *key,
                             size_t key_len)
{
    size_t at = pgbuf_begin(b, PG_MSG_BACKEND_KEY_DATA);

    must(key_len <= PG_CANCEL_KEY_MAX);
    pgbuf_put_u32(b, pid);
    pgbuf_put_bytes(b, key, key_len);
    pgbuf_end(b, at);
}

void pg_put_ready(struct pgbuf *b, char status)
{
    size_t at = pgbuf_begin(b, PG_MSG_READY);

    pgbuf_put_u8(b, (uint8_t)status);
    pgbuf_end(b, at);
}

void pg_put_command_complete(struct pgbuf *b, const char *tag)
{
    size_t at = pgbuf_begin(b, PG_MSG_COMMAND_COMPLETE);

    pgbuf_put_cstr(b, tag);
    pgbuf_end(b, at);
}

/* PostgreSQL sends the whole version number, not the minor one alone. */
void pg_put_negotiate_version(struct pgbuf *b, unsigned newest_minor,
                              const struct slice *unknown, size_t n)
{
    size_t at = pgbuf_begin(b, PG_MSG_NEGOTIATE_VERSION);

    pgbuf_put_u32(b, PG_VERSION(PG_PROTOCOL_MAJOR, newest_minor));
    pgbuf_put_u32(b, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        pgbuf_put_string(b, unknown[i]);
    pgbuf_end(b, at);
}

void pg_put_parameter_description(struct pgbuf *b, const uint32_t *oids,
                                  size_t n)
{
    size_t at = pgbuf_begin(b, PG_MSG_PARAMETER_DESCRIPTION);

    put_oids(b, oids, n);
    pgbuf_end(b, at);
}

void pg_put_startup(struct pgbuf *b, unsigned minor,
                    const struct pg_pair *pairs, size_t n)
{
    size_t at = pgbuf_begin(b, 0);

    pgbuf_put_u32(b, PG_VERSION(PG_PROTOCOL_MAJOR, minor));
    for (size_t i = 0; i < n; i++) {
        if (pairs[i].name.n == 0)
            continue;
        pgbuf_put_string(b, pairs[i].name);
        pgbuf_put_string(b, pairs[i].value);
    }
    pgbuf_put_u8(b, 0);
    pgbuf_end(b, at);
}

static void put_request(struct pgbuf *b, uint32_t code)
{
    size_t at = pgbuf_begin(b, 0);

    pgbuf_put_u32(b, code);
    pgbuf_end(b, at);
}

void pg_put_cancel_request(struct pgbuf *b, uint32_t pid, const void *key,
                           size_t key_len)
{
    size_t at = pgbuf_begin(b, 0);

    must(key_len <= PG_CANCEL_KEY_MAX);
    pgbuf_put_u32(b, PG_CANCEL_REQUEST_CODE);
    pgbuf_put_u32(b, pid);
    pgbuf_put_bytes(b, key, key_len);
    pgbuf_end(b, at);
}

void pg_put_ssl_request(struct pgbuf *b)
{
    put_request(b, PG_SSL_REQUEST_CODE);
}

void pg_put_gssenc_request(struct pgbuf *b)
{
    put_request(b, PG_GSSENC_REQUEST_CODE);
}

void pg_put_password(struct pgbuf *b, struct slice password)
{
    size_t at = pgbuf_begin(b, PG_MSG_PASSWORD);

    pgbuf_put_string(b, password);
    pgbuf_end(b, at);
}

void pg_put_sasl_initial(struct pgbuf *b, const char *mechanism,
                         struct slice data)
{
    size_t at = pgbuf_begin(b, PG_MSG_SASL_INITIAL);

    pgbuf_put_cstr(b, mechanism);
    pgbuf_put_u32(b, (uint32_t)data.n);
    pgbuf_put_bytes(b, data.p, data.n);
    pgbuf_end(b, at);
}

void pg_put_sasl_response(struct pgbuf *b, struct slice data)
{
    size_t at = pgbuf_begin(b, PG_MSG_SASL_RESPONSE);

    pgbuf_put_bytes(b, data.p, data.n);
    pgbuf_end(b, at);
}

void pg_put_query(struct pgbuf *b, struct slice sql)
{
    size_t at = pgbuf_begin(b, PG_MSG_QUERY);

    pgbuf_put_string(b, sql);
    pgbuf_end(b, at);
}

void pg_put_parse(struct pgbuf *b, struct slice name, struct slice sql,
                  const uint32_t *oids, size_t n_oids)
{
    size_t at = pgbuf_begin(b, PG_MSG_PARSE);

    pgbuf_put_string(b, name);
    pgbuf_put_string(b, sql);
    put_oids(b, oids, n_oids);
    pgbuf_end(b, at);
}

void pg_put_bind(struct pgbuf *b, struct slice portal, struct slice statement,
                 const struct slice *values, size_t n_values)
{
    size_t at = pgbuf_begin(b, PG_MSG_BIND);

    pgbuf_put_string(b, portal);
    pgbuf_put_string(b, statement);
    pgbuf_put_u16(b, 0); /* no parameter formats: text */
    put_count(b, n_values);
    for (size_t i = 0; i < n_values; i++) {
        pgbuf_put_u32(b, values[i].p ? (uint32_t)values[i].n : UINT32_MAX);
        if (values[i].p)
            pgbuf_put_bytes(b, values[i].p, values[i].n);
    }
    pgbuf_put_u16(b, 0); /* no result formats: text */
    pgbuf_end(b, at);
}

void pg_put_execute(struct pgbuf *b, struct slice portal, uint32_t max_rows)
{
    size_t at = pgbuf_begin(b, PG_MSG_EXECUTE);

    pgbuf_put_string(b, portal);
    pgbuf_put_u32(b, max_rows);
    pgbuf_end(b, at);
}

static void put_target(struct pgbuf *b, char type, char target,
                       struct slice name)
{
    size_t at = pgbuf_begin(b, type);

    pgbuf_put_u8(b, (uint8_t)target);
    pgbuf_put_string(b, name);
    pgbuf_end(b, at);
}

void pg_put_describe(struct pgbuf *b, char target, struct slice name)
{
    put_target(b, PG_MSG_DESCRIBE, target, name);
}

void pg_put_close(struct pgbuf *b, char target, struct slice name)
{
    put_target(b, PG_MSG_CLOSE, target, name);
}

void pg_put_copy_fail(struct pgbuf *b, const char *reason)
{
    size_t at = pgbuf_begin(b, PG_MSG_COPY_FAIL);

    pgbuf_put_cstr(b, reason);
    pgbuf_end(b, at);
}

void pg_put_sync(struct pgbuf *b)
{
    pg_put_empty(b, PG_MSG_SYNC);
}

void pg_put_flush(struct pgbuf *b)
{
    pg_put_empty(b, PG_MSG_FLUSH);
}

void pg_put_terminate(struct pgbuf *b)
{
    pg_put_empty(b, PG_MSG_TERMINATE);
}
