/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/console.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/control.h"
#include "pg/pg_read.h"

static atomic_int n_consoles;

int console_count(void)
{
    return atomic_load_explicit(&n_consoles, memory_order_relaxed);
}

/* ----------------------------------------------------------------- replies */

static void trim(struct pgbuf *b, size_t max)
{
    if (b->cap <= CONSOLE_KEEP_BYTES) {
        pgbuf_reset(b);
        return;
    }
    pgbuf_fini(b);
    pgbuf_init(b, max);
}

/* May end the session: then it is gone and the result false. */
static bool flush(struct console *s)
{
    struct client *c = s->client;
    bool is_ending = s->is_ending;
    struct pgbuf out = s->out;

    pgbuf_init(&s->out, CONSOLE_REPLY_MAX);
    if (out.failed) {
        pgbuf_reset(&out);
        pg_put_error(&out, "FATAL", err_sqlstate(ERR_NOMEM),
                     "the reply of the console is too large");
        is_ending = true;
    }
    if (out.n)
        client_console_send(c, &out);
    pgbuf_fini(&out);
    if (is_ending)
        client_console_end(c);
    return !is_ending;
}

static void put_fatal(struct console *s, int code, const char *text)
{
    pg_put_error(&s->out, "FATAL", err_sqlstate(code), text);
    s->is_ending = true;
}

void console_put_syntax_error(struct console *s, int rc, struct slice text)
{
    char line[JOB_TEXT_MAX];

    if (rc == ERR_TOO_LARGE)
        snprintf(line, sizeof(line), "bad arguments");
    else
        snprintf(line, sizeof(line), "invalid command '%.*s', use SHOW HELP;",
                 (int)MIN(text.n, (size_t)JOB_TEXT_MAX - 64), text.p);
    pg_put_error(&s->out, "ERROR", err_sqlstate(ERR_PROTO), line);
}

/* ---------------------------------------------------------------- commands */

void console_run(struct console *s, const struct command *cmd,
                 const struct syntax *syntax, table_formats formats)
{
    s->job = job_new(s, s->client, cmd, syntax, formats);
    job_run(s->job);
}

static void process(struct console *s);

static void simple_job_ended(struct console *s, struct job *j)
{
    if (!j->has_failed) {
        if (j->cmd->table != TABLE_NONE)
            table_describe(&s->out, j->cmd->table, 0);
        pgbuf_put_bytes(&s->out, j->out.p, j->out.n);
        pg_put_command_complete(&s->out, j->tag);
    }
    pg_put_ready(&s->out, PG_TX_IDLE);
}

void console_job_ended(struct console *s, struct job *j)
{
    must(s->job == j);
    s->job = NULL;
    if (j->has_failed) {
        struct pg_error_text t = {"ERROR", j->sqlstate, j->error,
                                  j->detail[0] ? j->detail : NULL, NULL};

        pg_put_error_full(&s->out, &t);
    }
    if (s->is_simple)
        simple_job_ended(s, j);
    else
        extended_job_ended(s, j);
    if (!s->is_processing)
        process(s);
}

static void on_query(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice text = pgread_cstr(&r);
    const struct command *cmd = NULL;
    struct syntax syntax;
    int rc;

    if (!pgread_done(&r)) {
        put_fatal(s, ERR_PROTO, "invalid Query message");
        return;
    }
    extended_drop_portals(s);
    extended_drop_statement(s, slice_str(""));
    rc = syntax_parse(text, &syntax);
    if (!rc && syntax.kind == SYNTAX_EMPTY) {
        pg_put_empty(&s->out, PG_MSG_EMPTY_QUERY);
        pg_put_ready(&s->out, PG_TX_IDLE);
        return;
    }
    if (!rc)
        cmd = command_find(&syntax);
    if (!cmd) {
        console_put_syntax_error(s, rc, text);
        pg_put_ready(&s->out, PG_TX_IDLE);
        return;
    }
    s->is_simple = true;
    console_run(s, cmd, &syntax, 0);
}

/* ---------------------------------------------------------------- messages */

static void on_other(struct console *s, char type)
{
    switch (type) {
    case PG_MSG_FLUSH: /* everything leaves at the end of the turn anyway */
    case PG_MSG_COPY_DATA:
    case PG_MSG_COPY_DONE:
    case PG_MSG_COPY_FAIL:
        break; /* ignored outside COPY, as in PostgreSQL */
    case PG_MSG_FUNCTION_CALL:
        pg_put_error(&s->out, "ERROR", err_sqlstate(ERR_UNSUPPORTED),
                     "the console has no functions to call");
        pg_put_ready(&s->out, PG_TX_IDLE);
        break;
    case PG_MSG_TERMINATE:
        s->is_ending = true;
        break;
    default:
        put_fatal(s, ERR_PROTO, "unsupported message for the console");
    }
}

static void handle(struct console *s, char type, struct slice body)
{
    if (s->skips && type != PG_MSG_SYNC && type != PG_MSG_TERMINATE)
        return;
    if (type == PG_MSG_QUERY)
        on_query(s, body);
    else if (!extended_message(s, type, body))
        on_other(s, type);
}

static bool take_queued(struct console *s, char *type, struct slice *body)
{
    struct slice rest;
    size_t size;

    if (s->queue_at == s->queue.n) {
        s->queue_at = 0;
        trim(&s->queue, CONSOLE_QUEUE_MAX);
        return false;
    }
    rest = slice_of(s->queue.p + s->queue_at, s->queue.n - s->queue_at);
    must(pgread_message(rest, CONSOLE_QUEUE_MAX, type, body, &size) == 1);
    s->queue_at += size;
    return true;
}

/* True when it stopped only to send what it has. */
static bool work_off(struct console *s)
{
    struct slice body;
    char type;

    s->is_processing = true;
    while (!s->job && !s->is_ending && s->out.n < CONSOLE_FLUSH_BYTES &&
           take_queued(s, &type, &body))
        handle(s, type, body);
    s->is_processing = false;
    return !s->job && s->queue_at < s->queue.n;
}

/* Works off what waits, as far as no command runs and the client reads, and
 * sends the replies. */
static void process(struct console *s)
{
    struct client *c = s->client;
    bool has_more;

    do {
        has_more = !client_console_is_full(c) && work_off(s);
    } while (flush(s) && has_more);
}

static void on_message(struct client *c, char type, struct slice body)
{
    struct console *s = client_console_get(c);
    size_t at;

    if (!s || s->is_ending)
        return;
    if (!s->job && s->queue.n == s->queue_at && !client_console_is_full(c)) {
        s->is_processing = true;
        handle(s, type, body);
        process(s);
        return;
    }
    at = pgbuf_begin(&s->queue, type);
    pgbuf_put_bytes(&s->queue, body.p, body.n);
    pgbuf_end(&s->queue, at);
    if (s->queue.failed) {
        put_fatal(s, ERR_LIMIT, "too much was sent while a command runs");
        (void)flush(s); /* ends it */
    }
}

static void on_drain(struct client *c)
{
    struct console *s = client_console_get(c);

    if (s && !s->job)
        process(s);
}

/* -------------------------------------------------------------------- life */

static void on_start(struct client *c)
{
    struct console *s = mem_new(sizeof(*s));

    s->client = c;
    pgbuf_init(&s->out, CONSOLE_REPLY_MAX);
    pgbuf_init(&s->queue, CONSOLE_QUEUE_MAX);
    atomic_fetch_add(&n_consoles, 1);
    client_console_set(c, s);
}

static void on_cancel(struct client *c)
{
    struct console *s = client_console_get(c);

    if (s && s->job)
        job_cancel(s->job);
}

static void on_end(struct client *c)
{
    struct console *s = client_console_get(c);

    if (!s)
        return;
    client_console_set(c, NULL);
    atomic_fetch_sub(&n_consoles, 1);
    if (s->job)
        job_orphan(s->job);
    extended_fini(s);
    pgbuf_fini(&s->out);
    pgbuf_fini(&s->queue);
    free(s);
}

const struct console_ops admin_console = {
    .start = on_start,
    .message = on_message,
    .drain = on_drain,
    .cancel = on_cancel,
    .end = on_end,
};
