/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

#include "pg/pg_write.h"

enum { EXPECTED_MAX = 400000, BIG = 70000 };

/* ------------------------------------------------------------------ requests
 */

static struct pgbuf msg;

static void emit(struct driver *d)
{
    must(!msg.failed);
    d->is_synced = strchr("SQF", msg.p[0]) && !d->direct.in_copy;
    bytes_add(&d->send, msg.p, msg.n);
    backend_feed(&d->direct, msg.p, msg.n);
    bytes_add(&d->expected, d->direct.out.p, d->direct.out.n);
    bytes_add(&d->expected, d->direct.held.p, d->direct.held.n);
    d->direct.out.n = d->direct.held.n = 0;
    d->n_messages++;
    pgbuf_reset(&msg);
}

static const char *stmt_name(void)
{
    static const char *const names[] = {
        "s1", "s2", "s3", "a_rather_long_name_for_a_statement_0123456789",
        "PGBRAID_1"};
    return names[rnd(ARRAY_SIZE(names))];
}

/* A statement: one that all clients share, or one of this client's own. */
static void random_text(struct driver *d, char *text, size_t cap)
{
    static const char *const shared[] = {"SELECT 1 alpha", "SELECT 3 beta",
                                         "NOTHING gamma", "SELECT 0 delta",
                                         "SELECT 2 WIDE"};
    uint32_t dice = rnd(100);
    if (dice < 50)
        snprintf(text, cap, "%s", shared[rnd(ARRAY_SIZE(shared))]);
    else if (dice < 75)
        snprintf(text, cap, "SELECT %u c#%d own%u", rnd(4), d->mark, rnd(3));
    else if (dice < 80)
        snprintf(text, cap, "ERR c#%d", d->mark);
    else if (dice < 84)
        snprintf(text, cap, "SYNTAX c#%d", d->mark);
    else if (dice < 87 && d->has_transactions)
        snprintf(text, cap, "BEGIN");
    else if (dice < 91 && d->has_transactions)
        snprintf(text, cap, chance(50) ? "COMMIT" : "ROLLBACK");
    else if (dice < 93)
        snprintf(text, cap, "NOTICE c#%d", d->mark);
    else if (dice < 94)
        snprintf(text, cap, "DEALLOCATE ALL");
    else if (dice < 95)
        snprintf(text, cap, " /* x */ DISCARD ALL");
    else if (dice < 97)
        snprintf(text, cap, "COPYOUT %u c#%d", rnd(4), d->mark);
    else if (dice < 98)
        snprintf(text, cap, "%s", "");
    else
        snprintf(text, cap, "SET \"TimeZone\" TO 'z%u'", rnd(4));
}

static void set_text(struct driver *d, char *text, size_t cap)
{
    static const char *const values[] = {"x", "it''s", "a\\b", "", "p,q"};
    static const char *const names[] = {"application_name", "TimeZone",
                                        "search_path"};
    snprintf(text, cap, "SET \"%s\" TO '%s%u'", names[rnd(3)],
             values[rnd(ARRAY_SIZE(values))], rnd(3));
}

static void gen_query(struct driver *d)
{
    char text[180], one[60];
    size_t n = 0;
    int parts = chance(80) ? 1 : 1 + (int)rnd(3);
    for (int i = 0; i < parts; i++) {
        if (chance(20))
            set_text(d, one, sizeof one);
        else
            random_text(d, one, sizeof one);
        if (!strncmp(one, " /* x */", 8)) /* the model knows no comments */
            memmove(one, one + 9, strlen(one + 9) + 1);
        if (!d->has_transactions && parts > 1 && strstr(one, "DISCARD"))
            continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ";" : "",
                              one);
    }
    pg_put_query(&msg, slice_of(text, n));
    emit(d);
}

static bool is_taken(const struct driver *d, const char *name)
{
    return backend_has_stmt(&d->direct, name);
}

/* A name like the pooler's own is told with a "?" in front. */
static bool is_like_ours(const struct driver *d, const char *name)
{
    return !strncmp(name, "PGBRAID_", 8) && !is_taken(d, name);
}

static bool has_big_unnamed(const struct driver *d)
{
    return d->direct.unnamed && d->direct.unnamed->sql.n > 190;
}

/* In a failed transaction our own Parse fails where PostgreSQL would still
 * describe. */
static bool is_unusable(const struct driver *d, const char *name)
{
    if (d->direct.tx != 'E' || d->direct.is_skipping || !is_taken(d, name))
        return false;
    const struct backend_stmt *k = d->direct.unnamed;
    if (*name)
        for (k = d->direct.stmts; strcmp(k->name, name); k = k->next)
            ;
    return strncmp(k->sql.p, "COMMIT", 6) && strncmp(k->sql.p, "ROLLBACK", 8);
}

static void gen_parse(struct driver *d, const char *name)
{
    char text[64];
    bool skipped = d->direct.is_skipping;
    random_text(d, text, sizeof text);
    if (!strncmp(text, " /* x */", 8))
        memmove(text, text + 9, strlen(text + 9) + 1);
    if (*name && is_taken(d, name) && strstr(text, "SYNTAX"))
        return; /* which of the two errors comes differs */
    if (*name && d->direct.tx == 'E' && !skipped)
        return; /* a ParseComplete of ours where an error would come */
    pg_put_parse(&msg, slice_str(name), slice_str(text), NULL, 0);
    emit(d);
}

static void gen_big_parse(struct driver *d)
{
    char *text = mem_new(BIG);
    int n = snprintf(text, BIG, "SELECT 2 c#%d big", d->mark);
    memset(text + n, 'b', BIG - (size_t)n - 1);
    pg_put_parse(&msg, slice_of("", 0), slice_of(text, BIG - 1), NULL, 0);
    free(text);
    emit(d);
}

static void gen_bind(struct driver *d, const char *portal, const char *name)
{
    char arg[64];
    struct slice v;
    if ((!*name && has_big_unnamed(d)) || is_like_ours(d, name))
        return;
    snprintf(arg, sizeof arg, "c#%d%s", d->mark, chance(5) ? " BADARG" : "");
    v = slice_str(arg);
    pg_put_bind(&msg, slice_str(portal), slice_str(name), &v, 1);
    emit(d);
}

/* Behind Execute of COPYIN, or a Query of it. */
static void gen_copy_data(struct driver *d, bool sync_first)
{
    if (sync_first) {
        pg_put_sync(&msg);
        emit(d);
    }
    for (int n = (int)rnd(5); n > 0; n--) {
        char data[400];
        uint32_t size = rnd(sizeof data);
        memset(data, 'r', size);
        /* With a Sync behind the Execute the pooler cannot know whether that
         * was read before the failure, and closes both. */
        if (!sync_first && chance(4))
            memcpy(data, "BAD", MIN(size, 3u));
        size_t at = pgbuf_begin(&msg, PG_MSG_COPY_DATA);
        pgbuf_put_bytes(&msg, data, size);
        pgbuf_end(&msg, at);
        emit(d);
        if (chance(5)) {
            pg_put_flush(&msg);
            emit(d);
        }
    }
    if (chance(75))
        pg_put_empty(&msg, PG_MSG_COPY_DONE);
    else
        pg_put_copy_fail(&msg, "no");
    emit(d);
}

static void gen_copy(struct driver *d)
{
    char text[64];
    snprintf(text, sizeof text, "COPYIN c#%d", d->mark);
    if (chance(50)) {
        if (chance(30))
            memcpy(text + strlen(text), ";SELECT 1 x", 12);
        pg_put_query(&msg, slice_str(text));
        emit(d);
        gen_copy_data(d, false);
        return;
    }
    pg_put_parse(&msg, slice_of("", 0), slice_str(text), NULL, 0);
    emit(d);
    struct slice v = slice_of("", 0);
    pg_put_bind(&msg, v, v, &v, 1);
    emit(d);
    pg_put_execute(&msg, v, 0);
    emit(d);
    gen_copy_data(d, chance(50));
    pg_put_sync(&msg);
    emit(d);
}

static const char *some_stmt(struct driver *d)
{
    return chance(35) || !d->has_statements ? "" : stmt_name();
}

/* Whoever goes on in COPY with something else loses its session. */
static void gen_execute(struct driver *d, const char *portal, uint32_t rows)
{
    for (const struct backend_portal *p = d->direct.portals; p; p = p->next)
        if (!strcmp(p->name, portal) && !strncmp(p->sql.p, "COPYIN", 6))
            return;
    pg_put_execute(&msg, slice_str(portal), rows);
    emit(d);
}

static const char *some_portal(void)
{
    return chance(80) ? "" : chance(50) ? "p1" : "p2";
}

static void gen_one_extended(struct driver *d)
{
    uint32_t dice = rnd(100);
    if (dice < 25) {
        gen_parse(d, some_stmt(d));
    } else if (dice < 50) {
        gen_bind(d, some_portal(), some_stmt(d));
    } else if (dice < 70) {
        gen_execute(d, some_portal(), chance(30) ? 1 : 0);
    } else if (dice < 78) {
        const char *name = some_stmt(d);
        if ((!*name && has_big_unnamed(d)) || is_like_ours(d, name) ||
            is_unusable(d, name))
            return;
        pg_put_describe(&msg, PG_TARGET_STATEMENT, slice_str(name));
        emit(d);
    } else if (dice < 82) {
        pg_put_describe(&msg, PG_TARGET_PORTAL, slice_str(some_portal()));
        emit(d);
    } else if (dice < 88) {
        pg_put_close(&msg, PG_TARGET_STATEMENT, slice_str(some_stmt(d)));
        emit(d);
    } else if (dice < 90) {
        pg_put_close(&msg, PG_TARGET_PORTAL, slice_str(some_portal()));
        emit(d);
    } else if (dice < 95) {
        pg_put_flush(&msg);
        emit(d);
    } else if (dice < 97) {
        gen_query(d);
    } else if (dice < 98) {
        size_t at = pgbuf_begin(&msg, PG_MSG_FUNCTION_CALL);
        pgbuf_put_u32(&msg, 1);
        pgbuf_put_u16(&msg, 0);
        pgbuf_put_u16(&msg, 0);
        pgbuf_put_u16(&msg, 0);
        pgbuf_end(&msg, at);
        emit(d);
    } else if (dice < 99) {
        gen_big_parse(d);
        gen_bind(d, "", ""); /* not: it is big */
        struct slice v = slice_of("", 0);
        pg_put_bind(&msg, v, v, &v, 1);
        emit(d);
        pg_put_execute(&msg, v, 0);
        emit(d);
    } else {
        pg_put_sync(&msg);
        emit(d);
    }
}

static void gen_usual(struct driver *d)
{
    const char *name = d->has_statements && chance(70) ? stmt_name() : "";
    if (!*name || !is_taken(d, name) || chance(10))
        gen_parse(d, name);
    gen_bind(d, "", name);
    if (chance(50)) {
        pg_put_describe(&msg, PG_TARGET_PORTAL, slice_of("", 0));
        emit(d);
    }
    gen_execute(d, "", 0);
    pg_put_sync(&msg);
    emit(d);
}

static void gen_pipeline(struct driver *d)
{
    for (int n = 1 + (int)rnd(8); n > 0; n--)
        gen_one_extended(d);
    if (chance(90))
        pg_put_sync(&msg);
    else
        pg_put_flush(&msg);
    emit(d);
}

static void gen_transaction_word(struct driver *d)
{
    const char *word = d->direct.tx == 'I' ? "BEGIN"
                       : chance(50)        ? "COMMIT"
                                           : "ROLLBACK";
    pg_put_query(&msg, slice_str(word));
    emit(d);
}

/* Whatever bytes: messages at the wrong time, wrong lengths. */
static void gen_nonsense(struct driver *d)
{
    static const char types[] = "QPBEDCSHFXdcf!z";
    char body[40];
    size_t n = rnd(sizeof body);
    for (size_t i = 0; i < n; i++)
        body[i] = (char)(chance(50) ? 0 : rnd(256));
    char head[5] = {types[rnd(sizeof types - 1)]};
    pg_set_u32(head + 1, (uint32_t)(4 + n) + (chance(10) ? rnd(100000) : 0));
    bytes_add(&d->send, head, 5);
    bytes_add(&d->send, body, n);
    d->is_leaving = d->is_wild = true;
}

static void gen_batch(struct driver *d)
{
    uint32_t dice = rnd(100);
    if (d->kind == DRIVER_CHAOS && chance(2)) {
        gen_nonsense(d);
        return;
    }
    if (d->direct.in_copy)
        gen_copy_data(d, false);
    if (dice < 25)
        gen_query(d);
    else if (dice < 55)
        gen_usual(d);
    else if (dice < 85)
        gen_pipeline(d);
    else if (dice < 90)
        gen_copy(d);
    else if (d->has_transactions)
        gen_transaction_word(d);
    if (d->kind == DRIVER_CHAOS && chance(3)) {
        pg_put_query(&msg, slice_str("FATAL"));
        emit(d);
        d->is_leaving = true;
    }
}

static void sleep_query(struct driver *d)
{
    char text[64];
    snprintf(text, sizeof text, "SLEEP c#%d", d->mark);
    pg_put_query(&msg, slice_str(text));
    bytes_add(&d->send, msg.p, msg.n);
    pgbuf_reset(&msg);
    d->n_messages++;
    d->n_asked++;
}

/* ------------------------------------------------------------------- replies
 */

static void dump(const char *what, const char *p, size_t n)
{
    fprintf(stderr, "%s:", what);
    for (size_t i = 0; i < MIN(n, (size_t)200); i++)
        fprintf(stderr, p[i] >= 32 && p[i] < 127 ? "%c" : "<%02x>",
                (unsigned char)p[i]);
    fputc('\n', stderr);
}

/* An ErrorResponse of the pooler's in place of what was expected. */
static bool is_farewell(const char *p, size_t n)
{
    return n >= 11 && p[0] == 'E' && !memcmp(p + 5, "SFATAL", 6);
}

static void differ(struct driver *d, const char *p, size_t n)
{
    dump("expected", d->expected.p, d->expected.n);
    dump("received", p, n);
    fprintf(stderr, "its last messages: %s\n", d->direct.what);
    sim_fail("client %d: reply differs", d->mark);
}

static void finish(struct driver *d)
{
    conn_release(d->k);
    d->k = NULL;
    d->is_done = true;
}

/* Message by message, so that a farewell is found at a message boundary. */
static void compare(struct driver *d)
{
    while (d->got.n >= 5 && !d->is_done) {
        size_t total = pg_get_u32(d->got.p + 1) + 1;
        if (d->got.n < total)
            return;
        if (d->expected.n >= total && !memcmp(d->expected.p, d->got.p, total)) {
            bytes_drop(&d->expected, total);
            bytes_drop(&d->got, total);
            d->n_got += total;
            continue;
        }
        if (!is_farewell(d->got.p, d->got.n) || !d->may_be_cut)
            differ(d, d->got.p, d->got.n);
        finish(d);
    }
}

static void read_login(struct driver *d)
{
    while (d->got.n >= 5 && !d->is_in) {
        size_t total = pg_get_u32(d->got.p + 1) + 1;
        if (d->got.n < total)
            return;
        char type = d->got.p[0];
        if (type == 'E' && !d->may_be_cut) {
            dump("login", d->got.p, d->got.n);
            sim_fail("client %d cannot log in", d->mark);
        }
        if (type == 'E') {
            finish(d);
            return;
        }
        if (type == 'K')
            memcpy(d->key, d->got.p + 5, 8);
        d->is_in = type == 'Z';
        bytes_drop(&d->got, total);
    }
}

static void read_cancel(struct driver *d)
{
    while (d->got.n >= 5 && !d->is_done) {
        size_t total = pg_get_u32(d->got.p + 1) + 1;
        if (d->got.n < total)
            return;
        if (is_farewell(d->got.p, d->got.n)) {
            if (!d->may_be_cut)
                differ(d, d->got.p, d->got.n);
            finish(d);
            return;
        }
        if (d->got.p[0] == 'Z') {
            if (++d->n_answered > d->n_asked || d->got.p[5] != 'I')
                sim_fail("client %d: a ReadyForQuery too many", d->mark);
        } else if (d->got.p[0] == 'E') {
            if (!memmem(d->got.p, total, "57014", 5))
                differ(d, d->got.p, d->got.n);
        } else if (d->got.p[0] != 'C') {
            differ(d, d->got.p, d->got.n);
        }
        bytes_drop(&d->got, total);
    }
}

static void receive(struct driver *d, uint64_t step)
{
    struct conn *k = d->k;
    size_t n = k->wire.n;
    if (!n)
        return;
    if (chance(50))
        n = 1 + rnd((uint32_t)MIN(n, (size_t)5000));
    bytes_add(&d->got, k->wire.p, n);
    bytes_drop(&k->wire, n);
    d->progress_step = step;
    if (!d->is_in)
        read_login(d);
    if (!d->is_in || d->is_done)
        return;
    if (d->kind == DRIVER_CANCEL)
        read_cancel(d);
    else if (!d->is_wild)
        compare(d);
}

/* --------------------------------------------------------------------- life */

static void start(struct driver *d)
{
    struct pg_pair pair[2] = {{slice_str("user"), slice_str("somebody")},
                              {slice_str("database"), slice_str(d->database)}};
    pg_put_startup(&msg, 0, pair, 2);
    bytes_add(&d->send, msg.p, msg.n);
    pgbuf_reset(&msg);
}

struct driver *driver_new(enum driver_kind kind, int mark, const char *database,
                          const struct driver_rules *rules, struct conn *k)
{
    struct driver *d = mem_new(sizeof *d);
    d->kind = kind;
    d->mark = mark;
    d->k = k;
    snprintf(d->database, sizeof d->database, "%s", database);
    d->has_transactions = rules->has_transactions;
    d->has_statements = rules->has_statements;
    d->may_be_cut = rules->may_be_cut || kind == DRIVER_CHAOS;
    d->batches_left = 1 + (int)rnd(60);
    d->leave_after = kind == DRIVER_CHAOS && chance(50) ? (int)rnd(3000) : -1;
    backend_init(&d->direct, false);
    if (!msg.max)
        pgbuf_init(&msg, 1 << 20);
    start(d);
    return d;
}

void driver_free(struct driver *d)
{
    if (d->k)
        conn_release(d->k);
    backend_free(&d->direct);
    bytes_free(&d->send);
    bytes_free(&d->expected);
    bytes_free(&d->got);
    free(d);
}

static void transmit(struct driver *d)
{
    size_t n = d->send.n;
    size_t most = chance(50) ? 20 : 20000;
    if (chance(50))
        n = 1 + rnd((uint32_t)MIN(n, most));
    if (d->leave_after >= 0 && (size_t)d->leave_after <= n) {
        conn_send(d->k, d->send.p, (size_t)d->leave_after);
        if (chance(50))
            d->k->peer_reset = true;
        finish(d);
        return;
    }
    if (d->leave_after >= 0)
        d->leave_after -= (int)n;
    conn_send(d->k, d->send.p, n);
    bytes_drop(&d->send, n);
}

static bool has_what_is_due(const struct driver *d)
{
    if (d->kind == DRIVER_CANCEL)
        return d->n_answered == d->n_asked;
    return d->n_got >= d->direct.n_flushed;
}

/* Nothing more to ask: leaves, politely or not. */
static void leave(struct driver *d)
{
    if (d->is_leaving)
        return;
    d->is_leaving = true;
    if (d->kind == DRIVER_CHAOS && chance(50)) {
        finish(d);
        return;
    }
    pg_put_terminate(&msg);
    bytes_add(&d->send, msg.p, msg.n);
    pgbuf_reset(&msg);
}

static void ask_more(struct driver *d)
{
    if (d->waits && !has_what_is_due(d))
        return;
    if (d->expected.n > EXPECTED_MAX)
        return;
    if (d->is_leaving)
        return;
    if (d->batches_left-- <= 0) {
        /* Terminate right behind the last batch, if that is complete. */
        if (!has_what_is_due(d) || chance(50)) {
            if (!has_what_is_due(d) && !d->is_synced) {
                d->waits = true;
                return;
            }
        }
        leave(d);
        return;
    }
    if (d->kind == DRIVER_CANCEL)
        sleep_query(d);
    else
        gen_batch(d);
    d->waits = chance(60);
}

void driver_step(struct driver *d, uint64_t step)
{
    if (d->is_done)
        return;
    receive(d, step);
    if (d->is_done)
        return;
    if (conn_is_closed(d->k) && !d->k->wire.n) {
        bool all_here =
            d->n_got >= d->direct.n_flushed || d->kind == DRIVER_CANCEL;
        if (!d->may_be_cut && (!d->is_leaving || !all_here))
            sim_fail("client %d was closed without a word (got %llu of %llu)",
                     d->mark, (unsigned long long)d->n_got,
                     (unsigned long long)d->direct.n_flushed);
        finish(d);
        return;
    }
    if (d->kind == DRIVER_CHAOS && d->is_leaving && !d->send.n &&
        rnd(300) == 0) {
        finish(d);
        return;
    }
    if (d->send.n)
        transmit(d);
    else if (d->is_in && chance(70))
        ask_more(d);
}

bool driver_is_stuck(const struct driver *d, uint64_t step, uint64_t patience)
{
    return !d->is_done && !d->send.n && step > d->progress_step + patience;
}
