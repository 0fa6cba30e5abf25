/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The extended protocol of the console: Parse looks a command up, Bind asks for
 * the format of its columns, Execute runs it. After an error everything up to
 * the Sync is skipped. Portals live until the Sync, since the console knows no
 * transactions. */
#include <stdio.h>
#include <stdlib.h>

#include "admin/console.h"
#include "pg/pg_read.h"

static void put_error(struct console *s, const char *sqlstate,
                      const char *message)
{
    pg_put_error(&s->out, "ERROR", sqlstate, message);
    s->skips = true;
}

/* "statement "x" does not exist" and the like. */
static void put_name_error(struct console *s, const char *sqlstate,
                           const char *what, struct slice name,
                           const char *problem)
{
    char line[CONSOLE_NAME_MAX + 64];

    snprintf(line, sizeof(line), "%s \"%.*s\" %s", what,
             (int)MIN(name.n, (size_t)CONSOLE_NAME_MAX), name.p, problem);
    put_error(s, sqlstate, line);
}

static void put_invalid(struct console *s, const char *message)
{
    char line[64];

    snprintf(line, sizeof(line), "invalid %s message", message);
    put_error(s, err_sqlstate(ERR_PROTO), line);
}

/* Whether the session may have a statement or portal of that name more. */
static bool may_add(struct console *s, const char *what, struct slice name,
                    int n)
{
    if (name.n >= CONSOLE_NAME_MAX) {
        put_name_error(s, err_sqlstate(ERR_TOO_LARGE), what, name,
                       "has too long a name");
        return false;
    }
    if (n >= CONSOLE_NAMES_MAX) {
        put_name_error(s, err_sqlstate(ERR_LIMIT), what, name,
                       "is one too many for the console");
        return false;
    }
    return true;
}

/* -------------------------------------------------------------- statements */

static struct console_stmt *find_statement(struct console *s, struct slice name)
{
    for (struct console_stmt *x = s->stmts; x; x = x->next) {
        if (slice_is(name, x->name))
            return x;
    }
    return NULL;
}

void extended_drop_statement(struct console *s, struct slice name)
{
    for (struct console_stmt **at = &s->stmts; *at; at = &(*at)->next) {
        struct console_stmt *x = *at;

        if (slice_is(name, x->name)) {
            *at = x->next;
            free(x);
            return;
        }
    }
}

static bool may_add_statement(struct console *s, struct slice name)
{
    int n = 0;

    if (name.n == 0)
        extended_drop_statement(s, name);
    if (find_statement(s, name)) {
        put_name_error(s, "42P05", "prepared statement", name,
                       "already exists");
        return false;
    }
    for (struct console_stmt *x = s->stmts; x; x = x->next)
        n++;
    return may_add(s, "prepared statement", name, n);
}

static void on_parse(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice name = pgread_cstr(&r), text = pgread_cstr(&r);
    struct console_stmt *x;
    uint16_t n_types = pgread_u16(&r);
    int rc;

    (void)pgread_bytes(&r, 4 * (size_t)n_types); /* no place for parameters */
    if (!pgread_done(&r)) {
        put_invalid(s, "Parse");
        return;
    }
    if (!may_add_statement(s, name))
        return;
    x = mem_new(sizeof(*x));
    rc = syntax_parse(text, &x->syntax);
    if (!rc && x->syntax.kind != SYNTAX_EMPTY)
        x->cmd = command_find(&x->syntax);
    if (rc || (!x->cmd && x->syntax.kind != SYNTAX_EMPTY)) {
        console_put_syntax_error(s, rc, text);
        s->skips = true;
        free(x);
        return;
    }
    (void)slice_copy(name, x->name, sizeof(x->name)); /* it fits */
    x->next = s->stmts;
    s->stmts = x;
    pg_put_empty(&s->out, PG_MSG_PARSE_COMPLETE);
}

/* ----------------------------------------------------------------- portals */

static struct console_portal *find_portal(struct console *s, struct slice name)
{
    for (struct console_portal *x = s->portals; x; x = x->next) {
        if (slice_is(name, x->name))
            return x;
    }
    return NULL;
}

static void free_portal(struct console_portal *x)
{
    pgbuf_fini(&x->rows);
    free(x->tag);
    free(x);
}

static void drop_portal(struct console *s, struct slice name)
{
    for (struct console_portal **at = &s->portals; *at; at = &(*at)->next) {
        struct console_portal *x = *at;

        if (slice_is(name, x->name)) {
            *at = x->next;
            free_portal(x);
            return;
        }
    }
}

void extended_drop_portals(struct console *s)
{
    while (s->portals) {
        struct console_portal *x = s->portals;

        s->portals = x->next;
        free_portal(x);
    }
    s->portal = NULL;
}

static bool may_add_portal(struct console *s, struct slice name)
{
    int n = 0;

    if (name.n == 0)
        drop_portal(s, name);
    if (find_portal(s, name)) {
        put_name_error(s, "42P03", "portal", name, "already exists");
        return false;
    }
    for (struct console_portal *x = s->portals; x; x = x->next)
        n++;
    return may_add(s, "portal", name, n);
}

static table_formats all_columns(size_t n)
{
    return n < TABLE_COLS_MAX ? ((table_formats)1 << n) - 1 : UINT64_MAX;
}

/* The result formats at the end of Bind: none, one for all columns, or one
 * each. False when they make no sense. */
static bool read_formats(struct pgread *r, const struct command *cmd,
                         table_formats *out)
{
    size_t n_cols, n = pgread_u16(r);

    *out = 0;
    (void)table_columns(cmd ? cmd->table : TABLE_NONE, &n_cols);
    if (n > 1 && n != n_cols)
        return false;
    for (size_t i = 0; i < n; i++) {
        uint16_t format = pgread_u16(r);

        if (format > 1)
            return false;
        if (format)
            *out |= n == 1 ? all_columns(n_cols) : (table_formats)1 << i;
    }
    return true;
}

static void on_bind(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice name = pgread_cstr(&r), stmt_name = pgread_cstr(&r);
    struct console_stmt *stmt;
    struct console_portal *x;
    uint16_t n_formats, n_params;
    table_formats formats;

    n_formats = pgread_u16(&r);
    (void)pgread_bytes(&r, 2 * (size_t)n_formats);
    n_params = pgread_u16(&r);
    if (r.bad) {
        put_invalid(s, "Bind");
        return;
    }
    stmt = find_statement(s, stmt_name);
    if (!stmt) {
        put_name_error(s, "26000", "prepared statement", stmt_name,
                       "does not exist");
        return;
    }
    if (n_params) {
        put_error(s, err_sqlstate(ERR_PROTO),
                  "commands of the console take no parameters: write the value "
                  "into the text");
        return;
    }
    if (!read_formats(&r, stmt->cmd, &formats) || !pgread_done(&r)) {
        put_invalid(s, "Bind");
        return;
    }
    if (!may_add_portal(s, name))
        return;
    x = mem_new(sizeof(*x));
    x->cmd = stmt->cmd;
    x->syntax = stmt->syntax;
    x->formats = formats;
    pgbuf_init(&x->rows, JOB_OUT_MAX);
    (void)slice_copy(name, x->name, sizeof(x->name)); /* it fits */
    x->next = s->portals;
    s->portals = x;
    pg_put_empty(&s->out, PG_MSG_BIND_COMPLETE);
}

/* ---------------------------------------------------- describe, close, sync */

static void put_description(struct console *s, const struct command *cmd,
                            table_formats formats)
{
    if (cmd && cmd->table != TABLE_NONE)
        table_describe(&s->out, cmd->table, formats);
    else
        pg_put_empty(&s->out, PG_MSG_NO_DATA);
}

static void describe_statement(struct console *s, struct slice name)
{
    struct console_stmt *x = find_statement(s, name);

    if (!x) {
        put_name_error(s, "26000", "prepared statement", name,
                       "does not exist");
        return;
    }
    pg_put_parameter_description(&s->out, NULL, 0);
    put_description(s, x->cmd, 0);
}

static void describe_portal(struct console *s, struct slice name)
{
    struct console_portal *x = find_portal(s, name);

    if (x)
        put_description(s, x->cmd, x->formats);
    else
        put_name_error(s, "34000", "portal", name, "does not exist");
}

static void on_describe(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    char target = (char)pgread_u8(&r);
    struct slice name = pgread_cstr(&r);

    if (!pgread_done(&r))
        put_invalid(s, "Describe");
    else if (target == PG_TARGET_STATEMENT)
        describe_statement(s, name);
    else if (target == PG_TARGET_PORTAL)
        describe_portal(s, name);
    else
        put_invalid(s, "Describe");
}

static void on_close(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    char target = (char)pgread_u8(&r);
    struct slice name = pgread_cstr(&r);

    if (!pgread_done(&r) ||
        (target != PG_TARGET_STATEMENT && target != PG_TARGET_PORTAL)) {
        put_invalid(s, "Close");
        return;
    }
    if (target == PG_TARGET_STATEMENT)
        extended_drop_statement(s, name);
    else
        drop_portal(s, name);
    pg_put_empty(&s->out, PG_MSG_CLOSE_COMPLETE);
}

static void on_sync(struct console *s)
{
    s->skips = false;
    extended_drop_portals(s);
    pg_put_ready(&s->out, PG_TX_IDLE);
}

/* ----------------------------------------------------------------- execute */

/* Length of the messages from at on that hold up to max_rows rows, what stands
 * between them included; max_rows 0: all. */
static size_t rows_size(const struct pgbuf *rows, size_t at, uint32_t max_rows)
{
    size_t end = at;
    uint32_t n = 0;

    if (max_rows == 0)
        return rows->n - at;
    while (end < rows->n && n < max_rows) {
        if (rows->p[end] == PG_MSG_DATA_ROW)
            n++;
        end += 1 + pg_get_u32(rows->p + end + 1);
    }
    return end - at;
}

static void send_rows(struct console *s, struct console_portal *x)
{
    size_t n = rows_size(&x->rows, x->sent, s->max_rows);

    pgbuf_put_bytes(&s->out, x->rows.p + x->sent, n);
    x->sent += n;
    if (x->sent < x->rows.n) {
        pg_put_empty(&s->out, PG_MSG_PORTAL_SUSPENDED);
        return;
    }
    pgbuf_fini(&x->rows);
    pgbuf_init(&x->rows, JOB_OUT_MAX);
    x->sent = 0;
    pg_put_command_complete(&s->out, x->tag);
}

void extended_job_ended(struct console *s, struct job *j)
{
    struct console_portal *x = s->portal;

    s->portal = NULL;
    x->state = PORTAL_RUN;
    if (j->has_failed) {
        s->skips = true;
        return;
    }
    x->tag = mem_strdup(j->tag);
    pgbuf_fini(&x->rows);
    x->rows = j->out;
    pgbuf_init(&j->out, JOB_OUT_MAX);
    send_rows(s, x);
}

static void on_execute(struct console *s, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice name = pgread_cstr(&r);
    uint32_t max_rows = pgread_u32(&r);
    struct console_portal *x;

    if (!pgread_done(&r)) {
        put_invalid(s, "Execute");
        return;
    }
    x = find_portal(s, name);
    if (!x) {
        put_name_error(s, "34000", "portal", name, "does not exist");
        return;
    }
    s->max_rows = max_rows > INT32_MAX ? 0 : max_rows; /* negative: no limit */
    if (!x->cmd) {
        pg_put_empty(&s->out, PG_MSG_EMPTY_QUERY);
    } else if (x->state == PORTAL_RUN) {
        send_rows(s, x);
    } else {
        s->portal = x;
        s->is_simple = false;
        console_run(s, x->cmd, &x->syntax, x->formats);
    }
}

bool extended_message(struct console *s, char type, struct slice body)
{
    switch (type) {
    case PG_MSG_PARSE:
        on_parse(s, body);
        return true;
    case PG_MSG_BIND:
        on_bind(s, body);
        return true;
    case PG_MSG_DESCRIBE:
        on_describe(s, body);
        return true;
    case PG_MSG_EXECUTE:
        on_execute(s, body);
        return true;
    case PG_MSG_CLOSE:
        on_close(s, body);
        return true;
    case PG_MSG_SYNC:
        on_sync(s);
        return true;
    default:
        return false;
    }
}

void extended_fini(struct console *s)
{
    extended_drop_portals(s);
    while (s->stmts) {
        struct console_stmt *x = s->stmts;

        s->stmts = x->next;
        free(x);
    }
}
