/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The words: SELECT n ..., NOTHING ..., BEGIN, COMMIT, ROLLBACK, ERR (fails
 * when run), SYNTAX (fails when parsed), SET "name" TO 'value', DISCARD ALL,
 * DEALLOCATE ALL, COPYIN, COPYOUT n, NOTICE, SLEEP, FATAL. A Query may hold
 * several, with semicolons between them. */
#include "backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "pg/pg_read.h"
#include "pg/pg_write.h"

static const char *const names[N_SETTINGS] = {"application_name", "TimeZone",
                                              "search_path"};
static const char *const defaults[N_SETTINGS] = {"", "GMT", "public"};

static struct text text_of(const char *p, size_t n)
{
    struct text t = {.n = MIN(n, sizeof t.p - 1)};
    if (t.n)
        memcpy(t.p, p, t.n);
    return t;
}

static bool same(const struct text *a, const struct text *b)
{
    return a->n == b->n && !memcmp(a->p, b->p, a->n);
}

static bool starts(const struct text *t, const char *word)
{
    return t->n >= strlen(word) && !memcmp(t->p, word, strlen(word));
}

static int marker(const char *p)
{
    const char *m = strstr(p, "c#");
    return m ? atoi(m + 2) : 0;
}

void backend_init(struct backend *b, bool in_startup)
{
    static uint32_t last_pid = 1000;
    memset(b, 0, sizeof *b);
    b->in_startup = in_startup;
    b->tx = 'I';
    b->pid = ++last_pid;
    memcpy(b->key, &b->pid, 4);
    for (int i = 0; i < N_SETTINGS; i++)
        b->setting[i] = b->saved[i] = b->told[i] =
            text_of(defaults[i], strlen(defaults[i]));
}

static void drop_unnamed(struct backend *b)
{
    free(b->unnamed);
    b->unnamed = NULL;
}

static void drop_stmts(struct backend *b)
{
    while (b->stmts) {
        struct backend_stmt *s = b->stmts;
        b->stmts = s->next;
        free(s);
    }
}

static void drop_portals(struct backend *b)
{
    while (b->portals) {
        struct backend_portal *p = b->portals;
        b->portals = p->next;
        free(p);
    }
}

void backend_free(struct backend *b)
{
    drop_unnamed(b);
    drop_stmts(b);
    drop_portals(b);
    bytes_free(&b->in);
    bytes_free(&b->held);
    bytes_free(&b->out);
}

/* ------------------------------------------------------------------- output */

static void flush(struct backend *b)
{
    bytes_add(&b->out, b->held.p, b->held.n);
    b->held.n = 0;
    b->n_flushed = b->n_said;
}

static void say(struct backend *b, struct pgbuf *m)
{
    must(!m->failed);
    bytes_add(&b->held, m->p, m->n);
    b->n_said += m->n;
    pgbuf_fini(m);
    if (b->flushes_early && chance(20))
        flush(b);
}

static struct pgbuf message(void)
{
    struct pgbuf m;
    pgbuf_init(&m, 1 << 20);
    return m;
}

static void say_empty(struct backend *b, char type)
{
    struct pgbuf m = message();
    pg_put_empty(&m, type);
    say(b, &m);
}

static void say_tag(struct backend *b, const char *tag)
{
    struct pgbuf m = message();
    pg_put_command_complete(&m, tag);
    say(b, &m);
}

static void say_notice(struct backend *b, const char *what)
{
    struct pgbuf m = message();
    pg_put_notice(&m, "NOTICE", "00000", what);
    say(b, &m);
    flush(b);
}

static void say_fatal(struct backend *b, const char *code, const char *what)
{
    struct pgbuf m = message();
    pg_put_error(&m, "FATAL", code, what);
    say(b, &m);
    flush(b);
    b->is_ended = true;
}

static void say_setting(struct backend *b, int i)
{
    struct pgbuf m = message();
    pg_put_parameter_status(&m, slice_str(names[i]),
                            slice_of(b->setting[i].p, b->setting[i].n));
    b->told[i] = b->setting[i];
    say(b, &m);
}

static void say_settings(struct backend *b)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (!same(&b->setting[i], &b->told[i]))
            say_setting(b, i);
}

static void say_ready(struct backend *b)
{
    struct pgbuf m = message();
    say_settings(b);
    pg_put_ready(&m, b->tx);
    say(b, &m);
    if (b->tx == 'I')
        b->owner = 0;
    flush(b);
}

/* ------------------------------------------------------------- transactions */

static void commit(struct backend *b)
{
    memcpy(b->saved, b->setting, sizeof b->saved);
    drop_portals(b);
    b->in_implicit = false;
    b->tx = 'I';
}

static void roll_back(struct backend *b)
{
    memcpy(b->setting, b->saved, sizeof b->setting);
    drop_portals(b);
    b->in_implicit = false;
    b->tx = 'I';
}

static void fail(struct backend *b, const char *code, const char *text)
{
    struct pgbuf m = message();
    pg_put_error(&m, "ERROR", code, text);
    say(b, &m);
    flush(b); /* as PostgreSQL does behind every error and notice */
    if (b->tx == 'I') {
        roll_back(b);
    } else {
        b->tx = 'E';
        memcpy(b->setting, b->saved, sizeof b->setting);
    }
    b->in_copy = false;
    b->rest.n = 0;
    if (b->in_extended)
        b->is_skipping = true;
    else
        say_ready(b);
}

static void end_implicit(struct backend *b)
{
    if (b->tx == 'I')
        commit(b);
    b->has_executed = false;
}

/* ---------------------------------------------------------------- statements
 */

enum result { OK, FAILED, PAUSED };

static bool is_exit(const struct text *t)
{
    return starts(t, "COMMIT") || starts(t, "ROLLBACK");
}

static bool gives_rows(const struct text *t)
{
    return starts(t, "SELECT");
}

static void say_columns(struct backend *b, const struct text *sql)
{
    struct pgbuf m = message();
    size_t at = pgbuf_begin(&m, PG_MSG_ROW_DESCRIPTION);
    pgbuf_put_u16(&m, 1);
    pgbuf_put_string(&m, slice_of(sql->p, sql->n));
    pgbuf_put_u32(&m, 0);
    pgbuf_put_u16(&m, 0);
    pgbuf_put_u32(&m, 25);
    pgbuf_put_u16(&m, 65535);
    pgbuf_put_u32(&m, 0xffffffff);
    pgbuf_put_u16(&m, 0);
    pgbuf_end(&m, at);
    say(b, &m);
}

/* Everything that a wrong server or a wrong statement would change. */
static void say_row(struct backend *b, const struct text *sql,
                    const struct text *arg, int i)
{
    char row[1000];
    struct pgbuf m = message();
    int n = snprintf(row, sizeof row, "%s|%s|%d|%s|%s|%s", sql->p, arg->p, i,
                     b->setting[0].p, b->setting[1].p, b->setting[2].p);
    size_t at = pgbuf_begin(&m, PG_MSG_DATA_ROW);
    pgbuf_put_u16(&m, 1);
    if (strstr(sql->p, "WIDE")) {
        char *wide = mem_new(20000);
        memset(wide, 'w', 20000);
        pgbuf_put_u32(&m, (uint32_t)n + 20000);
        pgbuf_put_bytes(&m, wide, 20000);
        free(wide);
    } else {
        pgbuf_put_u32(&m, (uint32_t)n);
    }
    pgbuf_put_bytes(&m, row, (size_t)n);
    pgbuf_end(&m, at);
    say(b, &m);
}

static void put_copy_start(struct backend *b, char type)
{
    struct pgbuf m = message();
    size_t at = pgbuf_begin(&m, type);
    pgbuf_put_u8(&m, 0);
    pgbuf_put_u16(&m, 0);
    pgbuf_end(&m, at);
    say(b, &m);
}

/* As the pooler and the clients write it: SET "name" TO 'value', E'' too. */
static bool parse_set(const struct text *t, struct text *name,
                      struct text *value)
{
    const char *p = t->p + 4, *q;
    bool call = starts(t, "SELECT pg_catalog.set_config");
    if (call) {
        *name = text_of("search_path", 11);
        p = strstr(t->p, ", ") + 2;
    } else {
        if (*p != '"' || !(q = strchr(p + 1, '"')))
            return false;
        *name = text_of(p + 1, (size_t)(q - p - 1));
        p = q + 5;
    }
    bool escaped = *p == 'E';
    p += escaped;
    if (*p++ != '\'')
        return false;
    *value = (struct text){0};
    while (*p && value->n < sizeof value->p - 1) {
        if (*p == '\'' && p[1] != '\'')
            return true;
        if (*p == '\'' || (*p == '\\' && escaped))
            p++;
        value->p[value->n++] = *p++;
    }
    return false;
}

static enum result set(struct backend *b, const struct text *t)
{
    struct text name, value;
    if (!parse_set(t, &name, &value)) {
        fail(b, "42601", "syntax error in SET");
        return FAILED;
    }
    for (int i = 0; i < N_SETTINGS; i++)
        if (slice_is_nocase(slice_of(name.p, name.n), names[i])) {
            if (i == 1) /* PostgreSQL has its own spelling of time zones */
                for (size_t k = 0; k < value.n; k++)
                    if (value.p[k] >= 'a' && value.p[k] <= 'z')
                        value.p[k] = (char)(value.p[k] - 32);
            b->setting[i] = value;
            if (starts(t, "SELECT"))
                say_tag(b, "SELECT 1");
            else
                say_tag(b, "SET");
            return OK;
        }
    fail(b, "42704", "unrecognized configuration parameter");
    return FAILED;
}

static enum result discard_all(struct backend *b, bool in_many)
{
    if (b->tx != 'I' || in_many || b->has_executed) {
        fail(b, "25001", "DISCARD ALL cannot run inside a transaction block");
        return FAILED;
    }
    for (int i = 0; i < N_SETTINGS; i++)
        b->setting[i] = b->saved[i] = text_of(defaults[i], strlen(defaults[i]));
    drop_stmts(b);
    say_tag(b, "DISCARD ALL");
    return OK;
}

static enum result copy_out(struct backend *b, const struct text *t)
{
    int n = atoi(t->p + 7);
    put_copy_start(b, PG_MSG_COPY_OUT);
    for (int i = 0; i < n; i++) {
        struct pgbuf m = message();
        size_t at = pgbuf_begin(&m, PG_MSG_COPY_DATA);
        pgbuf_put_bytes(&m, t->p, t->n);
        pgbuf_end(&m, at);
        say(b, &m);
    }
    say_empty(b, PG_MSG_COPY_DONE);
    say_tag(b, "COPY");
    return OK;
}

static enum result transaction_word(struct backend *b, const struct text *t)
{
    if (starts(t, "BEGIN")) {
        if (b->tx == 'T')
            say_notice(b, "there is already a transaction in progress");
        b->tx = 'T';
        say_tag(b, "BEGIN");
    } else if (b->tx == 'I') {
        say_notice(b, "there is no transaction in progress");
        say_tag(b, starts(t, "COMMIT") ? "COMMIT" : "ROLLBACK");
    } else if (starts(t, "COMMIT") && b->tx == 'T') {
        commit(b);
        say_tag(b, "COMMIT");
    } else {
        roll_back(b);
        say_tag(b, "ROLLBACK");
    }
    return OK;
}

/* Runs everything but SELECT. */
static enum result run(struct backend *b, const struct text *t, bool in_many)
{
    if (b->tx == 'E' && !is_exit(t)) {
        fail(b, "25P02", "current transaction is aborted");
        return FAILED;
    }
    if (starts(t, "BEGIN") || is_exit(t))
        return transaction_word(b, t);
    if (starts(t, "ERR")) {
        fail(b, "22012", t->p);
        return FAILED;
    }
    if (starts(t, "SET ") || starts(t, "SELECT pg_catalog"))
        return set(b, t);
    if (starts(t, "DISCARD ALL"))
        return discard_all(b, in_many);
    if (starts(t, "DEALLOCATE ALL")) {
        drop_stmts(b);
        say_tag(b, "DEALLOCATE ALL");
        return OK;
    }
    if (starts(t, "COPYOUT"))
        return copy_out(b, t);
    if (starts(t, "COPYIN")) {
        put_copy_start(b, PG_MSG_COPY_IN);
        flush(b);
        b->in_copy = true;
        b->copy_is_simple = !b->in_extended;
        b->copy_rows = 0;
        return PAUSED;
    }
    if (starts(t, "SLEEP")) {
        b->is_sleeping = true;
        return PAUSED;
    }
    if (starts(t, "FATAL")) {
        say_fatal(b, "57P01", "terminating connection");
        return PAUSED;
    }
    if (starts(t, "NOTICE"))
        say_notice(b, t->p);
    say_tag(b, "NOTHING");
    return OK;
}

static bool is_bad(const struct text *t)
{
    return starts(t, "SYNTAX");
}

static struct text next_statement(struct text *from)
{
    char *p = from->p, *end;
    while (*p == ' ' || *p == ';')
        p++;
    bool quoted = false;
    for (end = p; *end && (quoted || *end != ';'); end++)
        if (*end == '\'')
            quoted = !quoted;
    struct text t = text_of(p, (size_t)(end - p));
    while (*end == ' ' || *end == ';')
        end++;
    struct text left = text_of(end, strlen(end));
    *from = left;
    return t;
}

static void select_all(struct backend *b, const struct text *t)
{
    struct text none = {0};
    char tag[32];
    int rows = atoi(t->p + 7);
    say_columns(b, t);
    for (int i = 0; i < rows; i++)
        say_row(b, t, &none, i);
    snprintf(tag, sizeof tag, "SELECT %d", rows);
    say_tag(b, tag);
}

/* What is left of a Query. */
static void run_rest(struct backend *b, bool in_many)
{
    while (b->rest.n) {
        struct text t = next_statement(&b->rest);
        in_many = in_many || b->rest.n;
        if (!t.n)
            continue;
        bool is_config = starts(&t, "SELECT pg_catalog");
        if (gives_rows(&t) && !is_config && b->tx != 'E') {
            select_all(b, &t);
            continue;
        }
        if (run(b, &t, in_many) != OK)
            return;
    }
    end_implicit(b);
    say_ready(b);
}

static void query(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct slice sql = pgread_cstr(&r);
    drop_unnamed(b);
    if (b->tx == 'I')
        end_implicit(b); /* of an unsynced batch: its portals go with it */
    b->rest = text_of(sql.p, sql.n);
    struct text all = b->rest;
    if (strstr(all.p, "SYNTAX")) {
        fail(b, "42601", all.p);
        return;
    }
    struct text probe = all;
    (void)next_statement(&probe);
    if (!all.n) {
        say_empty(b, PG_MSG_EMPTY_QUERY);
        say_ready(b);
        return;
    }
    run_rest(b, probe.n > 0);
}

/* ------------------------------------------------------------------ extended
 */

static struct backend_stmt *find_stmt(const struct backend *b, const char *name)
{
    struct backend_stmt *s = b->stmts;
    if (!*name)
        return b->unnamed;
    while (s && strcmp(s->name, name))
        s = s->next;
    return s;
}

bool backend_has_stmt(const struct backend *b, const char *name)
{
    return find_stmt(b, name) != NULL;
}

static struct backend_portal *find_portal(const struct backend *b,
                                          const char *name)
{
    struct backend_portal *p = b->portals;
    while (p && strcmp(p->name, name))
        p = p->next;
    return p;
}

static void close_portal(struct backend *b, const char *name)
{
    for (struct backend_portal **p = &b->portals; *p; p = &(*p)->next)
        if (!strcmp((*p)->name, name)) {
            struct backend_portal *gone = *p;
            *p = gone->next;
            free(gone);
            return;
        }
}

static void close_stmt(struct backend *b, const char *name)
{
    if (!*name)
        drop_unnamed(b);
    for (struct backend_stmt **s = &b->stmts; *s; s = &(*s)->next)
        if (!strcmp((*s)->name, name)) {
            struct backend_stmt *gone = *s;
            *s = gone->next;
            free(gone);
            return;
        }
}

static void name_of(struct pgread *r, char name[64])
{
    struct slice s = pgread_cstr(r);
    slice_copy(s, name, 64);
}

static void parse(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    char name[64], text[160];
    name_of(&r, name);
    struct slice sql = pgread_cstr(&r);
    struct text t = text_of(sql.p, sql.n);
    if (!*name)
        drop_unnamed(b);
    if (is_bad(&t)) {
        fail(b, "42601", t.p);
        return;
    }
    if (b->tx == 'E' && !is_exit(&t)) {
        fail(b, "25P02", "current transaction is aborted");
        return;
    }
    if (*name && find_stmt(b, name)) {
        snprintf(text, sizeof text, "prepared statement \"%s\" already exists",
                 name);
        fail(b, "42P05", text);
        return;
    }
    struct backend_stmt *s = mem_new(sizeof *s);
    memcpy(s->name, name, sizeof name);
    s->sql = t;
    s->owner = marker(t.p);
    if (*name) {
        s->next = b->stmts;
        b->stmts = s;
    } else {
        b->unnamed = s;
    }
    say_empty(b, PG_MSG_PARSE_COMPLETE);
}

static const struct backend_stmt *stmt_or_error(struct backend *b,
                                                const char *name)
{
    char text[160];
    const struct backend_stmt *s = find_stmt(b, name);
    if (s)
        return s;
    if (*name)
        snprintf(text, sizeof text, "prepared statement \"%s\" does not exist",
                 name);
    else
        snprintf(text, sizeof text,
                 "unnamed prepared statement does not exist");
    fail(b, "26000", text);
    return NULL;
}

static void bind_message(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    char portal[64], name[64];
    name_of(&r, portal);
    name_of(&r, name);
    for (uint16_t n = pgread_u16(&r); n > 0 && !r.bad; n--)
        (void)pgread_u16(&r);
    uint16_t n_args = pgread_u16(&r);
    struct text arg = {0};
    if (n_args) {
        int32_t n = pgread_i32(&r);
        struct slice v = pgread_bytes(&r, (size_t)MAX(n, 0));
        arg = text_of(v.p, v.n);
    }
    if (r.bad) {
        fail(b, "08P01", "invalid Bind message");
        return;
    }
    const struct backend_stmt *s = stmt_or_error(b, name);
    if (!s)
        return;
    if (b->checks && s->owner && marker(arg.p) && s->owner != marker(arg.p))
        sim_fail("Bind of client %d meets a statement of client %d (%s)",
                 marker(arg.p), s->owner, b->what);
    if (b->tx == 'E' && !is_exit(&s->sql)) {
        fail(b, "25P02", "current transaction is aborted");
        return;
    }
    if (strstr(arg.p, "BADARG")) {
        fail(b, "22P02", "invalid input syntax");
        return;
    }
    if (*portal && find_portal(b, portal)) {
        fail(b, "42P03", "cursor already exists");
        return;
    }
    close_portal(b, portal);
    struct backend_portal *p = mem_new(sizeof *p);
    memcpy(p->name, portal, sizeof portal);
    p->sql = s->sql;
    p->arg = arg;
    p->next = b->portals;
    b->portals = p;
    say_empty(b, PG_MSG_BIND_COMPLETE);
}

static void say_result_of(struct backend *b, const struct text *sql)
{
    if (gives_rows(sql))
        say_columns(b, sql);
    else
        say_empty(b, PG_MSG_NO_DATA);
}

static void describe(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    char target = (char)pgread_u8(&r), name[64];
    name_of(&r, name);
    if (target == 'P') {
        struct backend_portal *p = find_portal(b, name);
        if (!p)
            fail(b, "34000", "portal does not exist");
        else if (b->tx == 'E')
            fail(b, "25P02", "current transaction is aborted");
        else
            say_result_of(b, &p->sql);
        return;
    }
    const struct backend_stmt *s = stmt_or_error(b, name);
    if (!s)
        return;
    if (b->tx == 'E' && gives_rows(&s->sql)) {
        fail(b, "25P02", "current transaction is aborted");
        return;
    }
    struct pgbuf m = message();
    uint32_t oid = 25;
    pg_put_parameter_description(&m, &oid, 1);
    say(b, &m);
    say_result_of(b, &s->sql);
}

static void execute_select(struct backend *b, struct backend_portal *p,
                           int max_rows)
{
    int rows = atoi(p->sql.p + 7), sent = 0;
    char tag[32];
    for (; p->at < rows && (!max_rows || sent < max_rows); sent++)
        say_row(b, &p->sql, &p->arg, p->at++);
    if (max_rows && sent == max_rows) {
        say_empty(b, PG_MSG_PORTAL_SUSPENDED);
        return;
    }
    snprintf(tag, sizeof tag, "SELECT %d", sent);
    say_tag(b, tag);
}

static void execute(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    char name[64];
    name_of(&r, name);
    int max_rows = pgread_i32(&r);
    struct backend_portal *p = find_portal(b, name);
    if (!p) {
        fail(b, "34000", "portal does not exist");
        return;
    }
    if (b->tx == 'E' && !is_exit(&p->sql)) {
        fail(b, "25P02", "current transaction is aborted");
        return;
    }
    if (!p->sql.n) {
        say_empty(b, PG_MSG_EMPTY_QUERY);
        return;
    }
    if (gives_rows(&p->sql)) {
        execute_select(b, p, max_rows);
        b->has_executed = true;
        return;
    }
    if (p->is_done) {
        fail(b, "55000", "portal cannot be run");
        return;
    }
    p->is_done = true;
    struct text sql = p->sql;
    (void)run(b, &sql, false);
    b->has_executed = true;
}

static void close_message(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    char target = (char)pgread_u8(&r), name[64];
    name_of(&r, name);
    if (target == 'P')
        close_portal(b, name);
    else
        close_stmt(b, name);
    say_empty(b, PG_MSG_CLOSE_COMPLETE);
}

static void function_call(struct backend *b)
{
    struct pgbuf m = message();
    if (b->tx == 'I')
        end_implicit(b);
    if (b->tx == 'E') {
        fail(b, "25P02", "current transaction is aborted");
        return;
    }
    size_t at = pgbuf_begin(&m, PG_MSG_FUNCTION_RESULT);
    pgbuf_put_u32(&m, 0xffffffff);
    pgbuf_end(&m, at);
    say(b, &m);
    end_implicit(b);
    say_ready(b);
}

/* ---------------------------------------------------------------------- COPY
 */

static void copy_message(struct backend *b, char type, struct slice body)
{
    char text[64];
    switch (type) {
    case PG_MSG_COPY_DATA:
        b->copy_rows++;
        if (memmem(body.p, body.n, "BAD", 3))
            fail(b, "22P04", "bad COPY data");
        return;
    case PG_MSG_FLUSH:
    case PG_MSG_SYNC:
        return;
    case PG_MSG_COPY_FAIL:
        fail(b, "57014", "COPY from stdin failed");
        return;
    case PG_MSG_COPY_DONE:
        b->in_copy = false;
        snprintf(text, sizeof text, "COPY %d", b->copy_rows);
        say_tag(b, text);
        if (b->copy_is_simple)
            run_rest(b, true);
        return;
    default:
        snprintf(text, sizeof text, "unexpected message type 0x%02X", type);
        fail(b, "08P01", text);
        say_fatal(b, "08P01", "protocol synchronization was lost");
        return;
    }
}

/* ------------------------------------------------------------------- the loop
 */

void backend_wake(struct backend *b, bool canceled)
{
    if (!b->is_sleeping)
        return;
    b->is_sleeping = false;
    if (canceled) {
        fail(b, "57014", "canceling statement due to user request");
    } else {
        say_tag(b, "SLEEP");
        if (!b->in_extended)
            run_rest(b, true);
    }
    backend_feed(b, NULL, 0);
}

static void one_message(struct backend *b, char type, struct slice body)
{
    if (type == 'X') {
        b->is_ended = true;
        return;
    }
    if (b->in_copy) {
        copy_message(b, type, body);
        return;
    }
    if (strchr("PBEDCH", type))
        b->in_extended = true;
    else if (strchr("QFSX", type) || strchr("dcf", type))
        b->in_extended = false;
    if (type == 'S')
        b->is_skipping = false;
    if (b->is_skipping)
        return;
    switch (type) {
    case 'Q':
        query(b, body);
        break;
    case 'P':
        parse(b, body);
        break;
    case 'B':
        bind_message(b, body);
        break;
    case 'D':
        describe(b, body);
        break;
    case 'E':
        execute(b, body);
        break;
    case 'C':
        close_message(b, body);
        break;
    case 'S':
        end_implicit(b);
        say_ready(b);
        break;
    case 'H':
        flush(b);
        break;
    case 'F':
        function_call(b);
        break;
    case 'd':
    case 'c':
    case 'f':
        break;
    default:
        sim_fail("a backend got message type %d", type);
    }
}

/* All messages of one transaction are of one client. Parse is left out: its
 * text may have been prepared for another client once. */
static void check_owner(struct backend *b, char type, struct slice body)
{
    char text[600];
    if (!strchr("QBd", type))
        return;
    size_t n = MIN(body.n, sizeof text - 1);
    for (size_t i = 0; i < n; i++)
        text[i] = body.p[i] ? body.p[i] : ' ';
    text[n] = 0;
    int m = marker(text);
    if (!m)
        return;
    if (b->owner && b->owner != m && b->tx != 'I')
        sim_fail("client %d speaks in client %d's transaction: %s (%s)", m,
                 b->owner, text, b->what);
    b->owner = m;
}

static void note(struct backend *b, char type, struct slice body)
{
    char item[32];
    char text[9] = "";
    for (size_t i = 0; i < MIN(body.n, (size_t)8); i++)
        text[i] = body.p[i] > 32 ? body.p[i] : '_';
    int n = snprintf(item, sizeof item, "%c:%s ", type, text);
    size_t have = strlen(b->what);
    if (have + (size_t)n >= sizeof b->what) {
        memmove(b->what, b->what + n, have - (size_t)n + 1);
        have -= (size_t)n;
    }
    memcpy(b->what + have, item, (size_t)n + 1);
}

static void startup(struct backend *b, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct pgbuf m = message();
    uint32_t code = pgread_u32(&r);
    if (code == PG_CANCEL_REQUEST_CODE) {
        b->pid = pgread_u32(&r);
        b->is_cancel = b->is_ended = true;
        return;
    }
    must(code == PG_PROTOCOL_3_0);
    for (struct slice k = pgread_cstr(&r); k.n && !r.bad; k = pgread_cstr(&r)) {
        struct slice v = pgread_cstr(&r);
        if (slice_is(k, "database"))
            slice_copy(v, b->database, sizeof b->database);
    }
    pg_put_auth(&m, PG_AUTH_OK);
    say(b, &m);
    for (int i = 0; i < N_SETTINGS; i++)
        say_setting(b, i);
    m = message();
    pg_put_backend_key_data(&m, b->pid, b->key, sizeof b->key);
    say(b, &m);
    b->in_startup = false;
    say_ready(b);
}

void backend_feed(struct backend *b, const void *p, size_t n)
{
    size_t at = 0;
    bytes_add(&b->in, p, n);
    while (!b->is_ended && !b->is_sleeping) {
        size_t left = b->in.n - at, head = b->in_startup ? 0 : 1;
        if (left < head + 4)
            break;
        size_t total = pg_get_u32(b->in.p + at + head) + head;
        if (left < total)
            break;
        const char *m = b->in.p + at;
        struct slice body = slice_of(m + head + 4, total - head - 4);
        at += total;
        b->n_messages++;
        if (b->in_startup) {
            startup(b, body);
            continue;
        }
        note(b, m[0], body);
        if (b->checks)
            check_owner(b, m[0], body);
        one_message(b, m[0], body);
    }
    bytes_drop(&b->in, at);
}
