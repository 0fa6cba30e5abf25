/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Console sessions over two stand-in workers: what the console calls below it
 * is defined here. Gathering and timers wait until the test lets them go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* After what cmocka.h needs. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "admin/console.h"
#include "admin/control.h"
#include "admin/stats.h"
#include "base/log.h"
#include "loop/thrpool.h"
#include "net/quic.h"
#include "pg/pg_read.h"
#include "pool/shard_dns.h"
#include "pool/shared.h"
#include "pool/suspend.h"
#include "worker/team.h"

enum { SHARDS = 2, NOW_US = 1000000000 };

struct shard {
    int index, busy, killed, resumed;
    unsigned n_clients;
};

struct client {
    void *console;
    bool is_admin, has_ended, is_full;
};

static struct shard shards[SHARDS];
static struct client client;
static struct shared *shared;
static struct pgbuf sent;
static struct timer *timer;
static size_t fills_at; /* a reply of this size makes the client full */
static bool holds;      /* gathers and control calls wait for go_on() */

/* ----------------------------------------------------- what lies below it */

void client_console_send(struct client *c, const struct pgbuf *b)
{
    pgbuf_put_bytes(&sent, b->p, b->n);
    c->is_full = fills_at && b->n >= fills_at;
}

bool client_console_is_full(const struct client *c)
{
    return c->is_full;
}

void client_console_set(struct client *c, void *state)
{
    c->console = state;
}

void *client_console_get(const struct client *c)
{
    return c->console;
}

struct shard *client_shard(const struct client *c)
{
    return &shards[0];
}

bool client_is_admin(const struct client *c)
{
    return c->is_admin;
}

void client_console_end(struct client *c)
{
    c->has_ended = true;
    admin_console.end(c);
}

struct shared *shard_shared(const struct shard *sh)
{
    return shared;
}

struct loop *shard_loop(const struct shard *sh)
{
    return NULL;
}

int shard_index(const struct shard *sh)
{
    return sh->index;
}

int64_t loop_now_us(const struct loop *loop)
{
    return NOW_US;
}

const struct loop_stats *loop_stats(const struct loop *loop)
{
    static const struct loop_stats stats = {1, 2, 3, 4};

    return &stats;
}

void timer_set(struct loop *loop, struct timer *t, int64_t deadline_us)
{
    timer = t;
}

void timer_clear(struct loop *loop, struct timer *t)
{
    if (timer == t)
        timer = NULL;
}

/* shared.c owns helper threads, which no console needs. */
struct thrpool *thrpool_new(const char *name, int max_threads, int max_jobs)
{
    return NULL;
}

void thrpool_stop(struct thrpool *p)
{
}

void thrpool_free(struct thrpool *p)
{
}

void shard_each_pool(struct shard *sh, pool_view_cb cb, void *arg)
{
    struct pool_view v = {
        .rec = shared_pool(shared, shared_db(shared, slice_str("db1")),
                           shared_user(shared, slice_str("joe"))),
        .mode = CONF_POOL_TRANSACTION,
        .cl_active = 1 + sh->index,
        .maxwait_us = 1500000 * sh->index,
        .stats = {.xact_count = 10, .xact_time_us = 50},
    };

    cb(arg, &v);
}

void shard_each_client(struct shard *sh, conn_view_cb cb, void *arg)
{
    struct conn_view v = {
        .is_client = true,
        .user = "joe",
        .database = "db1",
        .state = "active",
        .ptr = sh,
    };

    for (unsigned i = 0; i < sh->n_clients; i++) {
        v.id = 100 * (unsigned)sh->index + i;
        cb(arg, &v);
    }
    v.state = "login";
    cb(arg, &v);
}

void shard_each_server(struct shard *sh, conn_view_cb cb, void *arg)
{
    struct conn_view v = {
        .database = "db1",
        .state = "login",
        .close_needed = sh->busy > 0,
    };

    cb(arg, &v);
}

void shard_suspend(struct shard *sh)
{
}

int shard_suspend_left(struct shard *sh, bool must_end)
{
    return must_end ? 0 : sh->busy;
}

void shard_each_dns(struct shard *sh, resolve_entry_cb cb, void *arg)
{
}

void shard_each_zone(struct shard *sh, resolve_zone_cb cb, void *arg)
{
}

void shard_get_counts(struct shard *sh, struct shard_counts *out)
{
    memset(out, 0, sizeof(*out));
    out->clients = out->used_clients = 5;
}

struct quic_host *shard_quic(const struct shard *sh)
{
    return NULL;
}

void quic_host_get_counts(const struct quic_host *h,
                          struct quic_host_counts *out)
{
}

bool quic_stream_ids(const struct stream *s, uint64_t *conn, int64_t *stream)
{
    return false;
}

struct quic_host *shard_quic_out(const struct shard *sh)
{
    return NULL;
}

void quic_host_each(struct quic_host *host,
                    void (*cb)(void *arg, const struct quic_conn_view *v),
                    void *arg)
{
}

struct peer_counts shard_peer_counts(const struct shard *sh, int id)
{
    return (struct peer_counts){0};
}

void shard_drain_servers(struct shard *sh, const char *db)
{
}

int shard_busy_servers(const struct shard *sh, const char *db)
{
    return sh->busy;
}

void shard_resume_all(struct shard *sh)
{
    sh->resumed++;
}

void shard_reconnect(struct shard *sh, const char *db)
{
}

void shard_kill(struct shard *sh, const char *db)
{
    sh->killed++;
}

bool shard_kill_client(struct shard *sh, uint64_t id)
{
    return sh->index == 1 && id == 42;
}

static struct {
    void (*each)(struct shard *sh, void *arg);
    void (*done)(void *arg);
    void *arg;
    control_done_cb called;
    void *called_arg;
    struct err error;
    int shutdown;
} pending;

static void go_on(void)
{
    if (pending.done) {
        void (*done)(void *arg) = pending.done;

        pending.done = NULL;
        for (int i = 0; i < SHARDS; i++)
            pending.each(&shards[i], pending.arg);
        done(pending.arg);
    } else if (pending.called) {
        control_done_cb called = pending.called;

        pending.called = NULL;
        called(pending.called_arg, pending.error.code ? &pending.error : NULL);
    } else {
        struct timer *t = timer;

        assert_non_null(t);
        timer = NULL;
        t->on_fire(t);
    }
}

void team_gather(struct team *t, struct loop *asker,
                 void (*each)(struct shard *sh, void *arg),
                 void (*done)(void *arg), void *arg)
{
    assert_null(pending.done);
    pending.each = each;
    pending.done = done;
    pending.arg = arg;
    if (!holds)
        go_on();
}

static void fake_reload(struct loop *asker, control_done_cb done, void *arg)
{
    pending.called = done;
    pending.called_arg = arg;
    if (!holds)
        go_on();
}

static void fake_set(struct loop *asker, const char *key, const char *value,
                     control_done_cb done, void *arg)
{
    fake_reload(asker, done, arg);
}

static void fake_shutdown(enum shutdown_mode mode)
{
    pending.shutdown = mode + 1;
}

/* ---------------------------------------------------------------- session */

static struct conf *load_conf(void)
{
    char path[] = "/tmp/admin_console_test.XXXXXX";
    static const char text[] = "[databases]\n"
                               "db1 = host=a,b port=5433 pool_size=3\n"
                               "zz = dbname=real user=u password=hush\n"
                               "[users]\n"
                               "joe = pool_mode=session pool_size=7\n"
                               "[pgbouncer]\n"
                               "listen_port = 6432\n"
                               "auth_type = any\n";
    int fd = mkstemp(path);
    struct conf *conf;
    struct err e;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    close(fd);
    assert_int_equal(conf_load(path, &conf, &e), 0);
    unlink(path);
    return conf;
}

static int set_up(void **state)
{
    static const struct control control = {
        .reload = fake_reload,
        .set = fake_set,
        .shutdown = fake_shutdown,
    };

    memset(shards, 0, sizeof(shards));
    memset(&pending, 0, sizeof(pending));
    for (int i = 0; i < SHARDS; i++)
        shards[i].index = i;
    client = (struct client){.is_admin = true};
    timer = NULL;
    holds = false;
    fills_at = 0;
    shared = shared_new(load_conf(), SHARDS);
    pgbuf_init(&sent, 1 << 28);
    control_set(&control);
    admin_console.start(&client);
    assert_int_equal(console_count(), 1);
    return 0;
}

static int tear_down(void **state)
{
    if (client.console)
        admin_console.end(&client);
    assert_int_equal(console_count(), 0);
    assert_null(timer);
    pgbuf_fini(&sent);
    shared_free(shared);
    return 0;
}

static void say(void (*put)(struct pgbuf *b, struct slice s), const char *text)
{
    struct pgbuf b;
    struct slice body;
    size_t size;
    char type;

    pgbuf_init(&b, 1 << 20);
    put(&b, slice_str(text));
    assert_int_equal(
        pgread_message(pgbuf_slice(&b), 1 << 20, &type, &body, &size), 1);
    admin_console.message(&client, type, body);
    pgbuf_fini(&b);
}

static void query(const char *text)
{
    say(pg_put_query, text);
}

/* The types of all messages sent so far, DataRows in a row as one 'D'. */
static const char *types(void)
{
    static char out[256];
    struct slice rest = pgbuf_slice(&sent);
    size_t n = 0;

    while (rest.n) {
        struct slice body;
        size_t size;
        char type;

        assert_int_equal(pgread_message(rest, 1 << 28, &type, &body, &size), 1);
        if (type != 'D' || n == 0 || out[n - 1] != 'D')
            out[n++] = type;
        assert_true(n < sizeof(out));
        rest = slice_of(rest.p + size, rest.n - size);
    }
    out[n] = 0;
    return out;
}

static bool was_sent(const char *text)
{
    return memmem(sent.p, sent.n, text, strlen(text)) != NULL;
}

static void expect(const char *want, const char *text)
{
    assert_string_equal(types(), want);
    if (text && !was_sent(text))
        fail_msg("'%s' was not sent", text);
    pgbuf_reset(&sent);
}

static void query_gives(const char *q, const char *want, const char *text)
{
    query(q);
    expect(want, text);
}

/* ------------------------------------------------------------------ tests */

static void every_show(void **state)
{
    const struct command *c;
    char q[128];

    shards[0].n_clients = shards[1].n_clients = 3;
    for (size_t i = 0; (c = command_at(i)); i++) {
        if (!c->object || c->table == TABLE_NONE)
            continue;
        snprintf(q, sizeof(q), "Show %s;", c->object);
        query(q);
        if (c->table == TABLE_PEERS || c->table == TABLE_PEER_POOLS ||
            c->table == TABLE_MPTCP || c->table == TABLE_QUIC ||
            c->table == TABLE_FDS || c->table == TABLE_DNS_HOSTS ||
            c->table == TABLE_DNS_ZONES)
            expect("TCZ", "SHOW");
        else
            expect("TDCZ", "SHOW");
    }
    query_gives("select POOLS", "TDCZ", "db1");
    query_gives("SHOW HELP", "NCZ", "RECONNECT [db]");
}

static void simple(void **state)
{
    query_gives("", "IZ", NULL);
    query_gives(" ; -- x", "IZ", NULL);
    query_gives("hello", "EZ", "invalid command 'hello', use SHOW HELP;");
    query_gives("show pools; show stats", "EZ", "08P01");
    query_gives("show", "EZ", "invalid command");
    query_gives("reload now", "EZ", "invalid command");
    query_gives("pause x x", "EZ", "invalid command");
    query_gives("set client_encoding = 'utf8'", "NCZ", "SET ignored");
}

static void contents(void **state)
{
    query("show pools");
    assert_true(was_sent("db1"));
    assert_true(was_sent("transaction"));
    assert_true(was_sent("round-robin"));
    assert_true(was_sent("500000")); /* maxwait_us */
    expect("TDCZ", "statement");
    query("show databases");
    assert_true(was_sent("a,b"));
    assert_true(was_sent("real"));
    assert_false(was_sent("hush"));
    expect("TDCZ", "5433");
    query_gives("show users", "TDCZ", "        7");
    query_gives("show version", "TDCZ", "pgbraid ");
    shards[1].n_clients = 2;
    query("show clients");
    assert_false(was_sent("login"));
    expect("TDCZ", "idle");
    query_gives("show servers", "TDCZ", "new");
}

static void only_stats(void **state)
{
    client.is_admin = false;
    query_gives("show pools", "TDCZ", NULL);
    query_gives("pause", "EZ", "admin access needed");
    query_gives("reload", "EZ", "admin access needed");
    query_gives("set verbose = 1", "EZ", "admin access needed");
    query_gives("show fds", "EZ", "admin access needed");
    query_gives("set datestyle = iso", "NCZ", "SET ignored");
}

static void pause_waits(void **state)
{
    shards[1].busy = 1;
    query("PAUSE");
    query("show state");
    expect("", NULL);
    go_on();
    expect("", NULL);
    shards[1].busy = 0;
    go_on();
    query_gives("pause", "CZTDCZEZ", "already suspended/paused");
    query_gives("RESUME", "CZ", "RESUME");
    assert_int_equal(shards[1].resumed, 1);
    query_gives("RESUME", "EZ", "pooler is not paused/suspended");
}

static void pause_ends(void **state)
{
    shards[0].busy = 1;
    query("PAUSE db1");
    expect("", NULL);
    atomic_store(&shared_db(shared, slice_str("db1"))->is_paused, false);
    go_on();
    expect("EZ", "RESUME came");
    query("PAUSE db1");
    assert_non_null(timer);
    admin_console.end(&client); /* in the middle */
    assert_null(timer);
}

static void pause_is_canceled(void **state)
{
    admin_console.cancel(&client); /* nothing runs */
    shards[0].busy = 1;
    query("PAUSE");
    query("show version");
    admin_console.cancel(&client);
    expect("EZTDCZ", "57014");
    assert_false(atomic_load(&shared->is_paused));
    assert_int_equal(shards[1].resumed, 1);
    assert_null(timer);
    query_gives("resume", "EZ", "not paused");
    holds = true; /* while the workers are asked */
    query("PAUSE db1");
    admin_console.cancel(&client);
    admin_console.cancel(&client);
    expect("", NULL);
    go_on();
    expect("", NULL);
    admin_console.cancel(&client);
    go_on();
    expect("EZ", "57014");
    query("show pools");
    admin_console.cancel(&client); /* ends by itself */
    go_on();
    expect("TDCZ", NULL);
}

static void suspend_waits(void **state)
{
    shards[1].busy = 1;
    query("SUSPEND");
    expect("", NULL);
    query("show state");
    go_on();
    expect("", NULL);
    shards[1].busy = 0;
    go_on();
    expect("CZTDCZ", "SUSPEND");
    query_gives("pause", "EZ", "already suspended/paused");
    query_gives("suspend", "EZ", "already suspended/paused");
    query_gives("RESUME", "CZ", "RESUME");
    query_gives("pause db1", "CZ", "PAUSE");
    query_gives("suspend", "EZ", "cannot suspend with paused databases");
    query_gives("resume", "CZ", "RESUME");
    shards[1].busy = 1;
    query("SUSPEND");
    admin_console.cancel(&client);
    expect("EZ", "57014");
    assert_false(atomic_load(&shared->is_paused));
}

static void wait_close_is_canceled(void **state)
{
    shards[0].busy = 1;
    query("WAIT_CLOSE");
    expect("", NULL);
    admin_console.cancel(&client);
    expect("EZ", "57014");
    atomic_store(&shared->is_shutting_down, true);
    query("PAUSE");
    admin_console.cancel(&client);
    expect("EZ", "57014");
    assert_true(atomic_load(&shared->is_paused));
}

static void databases(void **state)
{
    query_gives("pause db1", "CZ", "PAUSE");
    query_gives("resume zz", "EZ", "database zz is not paused");
    query_gives("resume db1", "CZ", "RESUME");
    query_gives("pause nope", "EZ", "no such database: nope");
    query_gives("pause pgbouncer", "EZ", "cannot pause admin db");
    query_gives("disable", "EZ", "a database is required");
    query_gives("disable db1", "CZ", "DISABLE");
    assert_true(atomic_load(&shared_db(shared, slice_str("db1"))->is_disabled));
    query_gives("enable db1", "CZ", "ENABLE");
    query_gives("kill db1", "CZ", "KILL");
    assert_int_equal(shards[1].killed, 1);
    query_gives("resume", "CZ", "RESUME");
    query_gives("reconnect db1", "CZ", "RECONNECT");
    assert_int_equal(
        atomic_load(&shared_db(shared, slice_str("db1"))->server_epoch), 1);
    shards[0].busy = 1;
    query_gives("wait_close", "", NULL);
    shards[0].busy = 0;
    go_on();
    expect("CZ", "WAIT_CLOSE");
    query_gives("kill_client 42", "CZ", "KILL_CLIENT");
    query_gives("kill_client 43", "EZ", "client not found");
    query_gives("kill_client", "EZ", "invalid client pointer supplied");
    query_gives("kill_client x", "EZ", "invalid client pointer supplied");
}

static void process(void **state)
{
    query_gives("reload", "CZ", "RELOAD");
    query_gives("set a = 'b c'", "CZ", "SET a=b c");
    (void)err_set(&pending.error, ERR_CONF, "line 3 is wrong");
    query_gives("reload", "EZ", "F0000");
    query_gives("set a = b", "EZ", "line 3 is wrong");
    query_gives("shutdown never", "EZ", "invalid command");
    assert_int_equal(pending.shutdown, 0);
    query_gives("shutdown wait_for_servers", "CZ", "SHUTDOWN");
    assert_int_equal(pending.shutdown, SHUTDOWN_WAIT_FOR_SERVERS + 1);
    query_gives("shutdown", "", NULL);
    assert_int_equal(pending.shutdown, SHUTDOWN_NOW + 1);
}

static void order_is_kept(void **state)
{
    holds = true;
    query("show pools");
    query("");
    query("hello");
    query("show stats");
    query("show version");
    expect("", NULL);
    go_on();
    expect("TDCZIZEZ", NULL);
    go_on();
    expect("TDCZTDCZ", NULL);
}

static void session_vanishes(void **state)
{
    holds = true;
    query("show stats");
    query("show pools");
    admin_console.end(&client);
    go_on();
    expect("", NULL);
    admin_console.start(&client);
    query("reload");
    admin_console.end(&client);
    go_on();
    expect("", NULL);
}

/* The client does not read its replies: its commands wait. */
static void backlog(void **state)
{
    client.is_full = true;
    query("show version");
    query("show help");
    expect("", NULL);
    client.is_full = false;
    admin_console.drain(&client);
    expect("TDCZNCZ", NULL);
    admin_console.drain(&client);
    expect("", NULL);
    holds = true;
    query("show pools");
    client.is_full = true;
    query("show version");
    go_on();
    expect("TDCZ", NULL);
    client.is_full = false;
    admin_console.drain(&client);
    expect("TDCZ", "pgbraid");
}

/* Many small commands with large replies are sent in pieces. */
static void pieces(void **state)
{
    client.is_full = true;
    for (int i = 0; i < 200; i++)
        query("show help");
    client.is_full = false;
    fills_at = 1;
    admin_console.drain(&client);
    assert_in_range(sent.n, CONSOLE_FLUSH_BYTES, 2 * CONSOLE_FLUSH_BYTES);
    while (client.is_full) {
        client.is_full = false;
        admin_console.drain(&client);
    }
    assert_true(sent.n > 4 * CONSOLE_FLUSH_BYTES);
    pgbuf_reset(&sent);
}

static void too_much_waits(void **state)
{
    char text[60000];

    memset(text, ' ', sizeof(text));
    text[sizeof(text) - 1] = 0;
    holds = true;
    query("show pools");
    for (int i = 0; i < 30 && !client.has_ended; i++)
        query(text);
    assert_true(client.has_ended);
    expect("E", "too much");
    go_on();
}

/* --------------------------------------------------------------- extended */

static void put(struct pgbuf *b, char type, const char *body, size_t n)
{
    struct slice s;
    size_t at, size;

    pgbuf_init(b, 1 << 20);
    at = pgbuf_begin(b, type);
    pgbuf_put_bytes(b, body, n);
    pgbuf_end(b, at);
    assert_int_equal(pgread_message(pgbuf_slice(b), 1 << 20, &type, &s, &size),
                     1);
    admin_console.message(&client, type, s);
    pgbuf_fini(b);
}

#define SAY(type, body)                                                        \
    do {                                                                       \
        struct pgbuf b_;                                                       \
        put(&b_, type, body, sizeof(body) - 1);                                \
    } while (0)

static void extended(void **state)
{
    SAY('P', "\0show databases\0\0\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('D', "P\0");
    SAY('E', "\0\0\0\0\0");
    SAY('S', "");
    expect("12TDCZ", "db1");
    SAY('P', "s1\0show lists\0\0\1\0\0\0\0");
    SAY('D', "Ss1\0");
    SAY('H', "");
    expect("1tT", "items");
    SAY('B', "\0s1\0\0\0\0\0\0\1\0\1");
    SAY('D', "P\0");
    SAY('E', "\0\0\0\0\2");
    expect("2TDs", "databases");
    SAY('E', "\0\0\0\0\0");
    SAY('C', "Ss1\0");
    SAY('C', "Ss1\0");
    SAY('C', "P\0");
    SAY('S', "");
    expect("DC333Z", "dns_pending");
    SAY('P', "\0\0\0\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('D', "P\0");
    SAY('E', "\0\0\0\0\0");
    SAY('S', "");
    expect("12nIZ", NULL);
    SAY('P', "\0pause db1\0\0\0");
    SAY('D', "S\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('E', "\0\0\0\0\0");
    SAY('S', "");
    expect("1tn2CZ", "PAUSE");
}

static void extended_waits(void **state)
{
    holds = true;
    SAY('P', "\0show pools\0\0\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('E', "\0\0\0\0\0");
    SAY('S', "");
    query("show version");
    expect("12", NULL);
    go_on();
    expect("DCZTDCZ", NULL);
}

static void extended_errors(void **state)
{
    SAY('P', "\0hello\0\0\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('E', "\0\0\0\0\0");
    query("show version");
    SAY('S', "");
    expect("EZ", "invalid command 'hello'");
    SAY('P', "x\0show pools\0\0\0");
    SAY('P', "x\0show pools\0\0\0");
    SAY('S', "");
    expect("1EZ", "42P05");
    SAY('B', "\0y\0\0\0\0\0\0\0");
    SAY('S', "");
    expect("EZ", "26000");
    SAY('E', "p\0\0\0\0\0");
    SAY('S', "");
    expect("EZ", "34000");
    SAY('B', "\0x\0\0\0\0\1\0\0\0\0011\0\0");
    SAY('S', "");
    expect("EZ", "no parameters");
    SAY('B', "\0x\0\0\0\0\0\0\2\0\0\0\0");
    SAY('S', "");
    expect("EZ", "invalid Bind");
    SAY('B', "\0x\0\0\0\0\0\0\1\0\2");
    SAY('S', "");
    expect("EZ", "invalid Bind");
    SAY('P', "\0show");
    SAY('D', "");
    SAY('S', "");
    expect("EZ", "invalid Parse");
    SAY('D', "Zx\0");
    SAY('S', "");
    expect("EZ", "invalid Describe");
    SAY('P', "\0kill nope\0\0\0");
    SAY('B', "\0\0\0\0\0\0\0\0");
    SAY('E', "\0\0\0\0\0");
    SAY('E', "\0\0\0\0\0");
    SAY('S', "");
    expect("12EZ", "no such database");
    SAY('F', "");
    expect("EZ", "0A000");
    SAY('d', "x");
    expect("", NULL);
    SAY('!', "x");
    expect("E", "unsupported message");
    assert_true(client.has_ended);
}

static void bad_query(void **state)
{
    SAY('Q', "show pools");
    expect("E", "invalid Query");
    assert_true(client.has_ended);
}

static void many_names(void **state)
{
    char name[16];
    struct pgbuf b;

    for (int i = 0; i < CONSOLE_NAMES_MAX + 1; i++) {
        char body[64];
        int n = snprintf(name, sizeof(name), "s%d", i);

        memset(body, 0, sizeof(body));
        memcpy(body, name, (size_t)n);
        memcpy(body + n + 1, "show pools", 10);
        put(&b, 'P', body, (size_t)n + 1 + 11 + 2);
    }
    assert_true(was_sent("one too many"));
}

static void averages(void **state)
{
    struct stats_set set = {0};
    struct pool_stats sum, avg;
    struct db_rec *db = shared_db(shared, slice_str("db1"));

    stats_start(0);
    for (int i = 0; i < SHARDS; i++)
        stats_collect(&set, &shards[i]);
    stats_sum(&set, &sum);
    assert_int_equal(sum.xact_count, 20);
    stats_average(db, &sum, 9000000, &avg);
    assert_int_equal(avg.xact_count, 2);
    assert_int_equal(avg.xact_time_us, 5);
    assert_int_equal(avg.query_count, 0);
    stats_rotate(&set, 10000000);
    stats_rotate(&set, 20000000); /* nothing then: an empty snapshot */
    sum.xact_count = 120;
    sum.xact_time_us = 100 + 700;
    stats_average(db, &sum, 30000000, &avg);
    assert_int_equal(avg.xact_count, 5);
    assert_int_equal(avg.xact_time_us, 7);
    stats_rotate(&set, 30000000);
    stats_rotate(&set, 40000000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_show),
        TEST(simple),
        TEST(contents),
        TEST(only_stats),
        TEST(pause_waits),
        TEST(pause_ends),
        TEST(databases),
        TEST(process),
        TEST(order_is_kept),
        TEST(session_vanishes),
        TEST(too_much_waits),
        TEST(backlog),
        TEST(pause_is_canceled),
        TEST(suspend_waits),
        TEST(wait_close_is_canceled),
        TEST(pieces),
        TEST(extended),
        TEST(extended_waits),
        TEST(extended_errors),
        TEST(bad_query),
        TEST(many_names),
        TEST(averages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
