/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Look-ups against a name server that lives in the same loop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "net/resolve.h"

/* --- the name server ----------------------------------------------------- */

enum {
    TYPE_A = 1,
    TYPE_SOA = 6,
    TYPE_AAAA = 28,
    RCODE_NXDOMAIN = 3,
    MESSAGE_MAX = 4096
};

struct query {
    uint8_t text[MESSAGE_MAX]; /* header and question, then the answers */
    size_t n;
    char name[256];
    int type;
    int n_answers;
};

static struct {
    struct loop *loop;
    struct io udp, tcp, conn;
    int port;
    int n_queries, n_tcp;
    uint8_t serial; /* of zone.test; its host's address ends with it */
    int n_soa;
} server;

static bool parse_query(struct query *q, const uint8_t *p, size_t n)
{
    size_t at = 12, len = 0;
    if (n < 17)
        return false;
    while (at < n && p[at]) {
        if (len)
            q->name[len++] = '.';
        memcpy(q->name + len, p + at + 1, p[at]);
        len += p[at];
        at += p[at] + 1u;
    }
    q->name[len] = '\0';
    q->type = p[at + 1] << 8 | p[at + 2];
    q->n = at + 5;
    q->n_answers = 0;
    memcpy(q->text, p, q->n);
    memset(q->text + 4, 0, 8); /* the four counts */
    q->text[2] = 0x84;
    q->text[3] = 0x80;
    q->text[5] = 1;
    return true;
}

static void answer(struct query *q, int type, const void *data, size_t n,
                   uint32_t ttl)
{
    uint8_t head[12] = {0xc0, 12, 0, (uint8_t)type, 0, 1};
    if (type != q->type)
        return;
    for (int i = 0; i < 4; i++)
        head[6 + i] = (uint8_t)(ttl >> (24 - 8 * i));
    head[11] = (uint8_t)n;
    memcpy(q->text + q->n, head, sizeof head);
    memcpy(q->text + q->n + sizeof head, data, n);
    q->n += sizeof head + n;
    q->text[7] = (uint8_t)++q->n_answers;
}

static void answer_a(struct query *q, uint8_t last, uint32_t ttl)
{
    uint8_t ip[4] = {10, 0, 0, last};
    answer(q, TYPE_A, ip, sizeof ip, ttl);
}

/* Two empty names, five numbers; the first is the serial. */
static void answer_soa(struct query *q)
{
    uint8_t soa[22] = {0, 0, 0, 0, 0, server.serial};
    answer(q, TYPE_SOA, soa, sizeof soa, 60);
    /* A new version is there when the next question comes. */
    server.serial = ++server.n_soa < 3 ? 1 : 2;
}

/* False: says nothing. */
static bool fill_answer(struct query *q, bool by_tcp)
{
    static const uint8_t ip6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 1};
    if (strcmp(q->name, "one.test") == 0) {
        answer_a(q, 1, 60);
    } else if (strcmp(q->name, "two.test") == 0) {
        answer_a(q, 1, 60);
        answer_a(q, 2, 60);
        answer(q, TYPE_AAAA, ip6, sizeof ip6, 60);
    } else if (strcmp(q->name, "big.test") == 0) {
        if (by_tcp)
            for (uint8_t i = 1; i <= 100; i++)
                answer_a(q, i, 60);
        else
            q->text[2] |= 2; /* TC: ask by TCP */
    } else if (strcmp(q->name, "host.zone.test") == 0) {
        answer_a(q, server.serial, 60);
    } else if (strcmp(q->name, "zone.test") == 0) {
        answer_soa(q);
    } else if (strcmp(q->name, "mute.test") == 0) {
        return false;
    } else if (strcmp(q->name, "empty.test") != 0) {
        q->text[3] |= RCODE_NXDOMAIN;
    }
    return true;
}

static void on_udp(struct io *io, uint32_t events)
{
    uint8_t p[MESSAGE_MAX];
    struct query q;
    struct addr from = {.len = sizeof from.un};
    ssize_t n;
    while ((n = recvfrom(io->fd, p, sizeof p, MSG_DONTWAIT, &from.sa,
                         &from.len)) > 0) {
        server.n_queries++;
        if (parse_query(&q, p, (size_t)n) && fill_answer(&q, false))
            assert_true(sendto(io->fd, q.text, q.n, 0, &from.sa, from.len) > 0);
        from.len = sizeof from.un;
    }
}

/* Queries come whole on loopback; two of them may come at once. */
static void on_conn(struct io *io, uint32_t events)
{
    uint8_t p[MESSAGE_MAX];
    struct query q;
    ssize_t n = recv(io->fd, p, sizeof p, MSG_DONTWAIT);
    for (ssize_t at = 0; at + 2 < n;) {
        size_t len = (size_t)(p[at] << 8 | p[at + 1]);
        server.n_tcp++;
        assert_true(parse_query(&q, p + at + 2, len));
        assert_true(fill_answer(&q, true));
        uint8_t head[2] = {(uint8_t)(q.n >> 8), (uint8_t)q.n};
        assert_int_equal(send(io->fd, head, 2, MSG_MORE), 2);
        assert_int_equal(send(io->fd, q.text, q.n, 0), q.n);
        at += 2 + (ssize_t)len;
    }
}

static void on_tcp(struct io *io, uint32_t events)
{
    server.conn.fd = accept(io->fd, NULL, NULL);
    assert_true(server.conn.fd >= 0);
    server.conn.on_event = on_conn;
    assert_int_equal(loop_add(server.loop, &server.conn, EPOLLIN), 0);
}

static void server_start(struct loop *loop)
{
    struct addr a;
    assert_true(addr_parse_ip(slice_str("127.0.0.1"), 0, &a));
    memset(&server, 0, sizeof server);
    server.loop = loop;
    server.conn.fd = -1;
    for (;;) { /* the same port for both */
        server.tcp.fd = socket(AF_INET, SOCK_STREAM, 0);
        server.udp.fd = socket(AF_INET, SOCK_DGRAM, 0);
        addr_set_port(&a, 0);
        assert_int_equal(bind(server.tcp.fd, &a.sa, a.len), 0);
        assert_int_equal(addr_of_self(server.tcp.fd, &a), 0);
        if (bind(server.udp.fd, &a.sa, a.len) == 0)
            break;
        close(server.tcp.fd);
        close(server.udp.fd);
    }
    assert_int_equal(listen(server.tcp.fd, 10), 0);
    server.port = addr_port(&a);
    server.udp.on_event = on_udp;
    server.tcp.on_event = on_tcp;
    assert_int_equal(loop_add(loop, &server.udp, EPOLLIN), 0);
    assert_int_equal(loop_add(loop, &server.tcp, EPOLLIN), 0);
}

static void server_stop(void)
{
    close(server.udp.fd);
    close(server.tcp.fd);
    if (server.conn.fd >= 0)
        close(server.conn.fd);
}

/* --- asking -------------------------------------------------------------- */

static char resolv_conf[] = "/tmp/pgbraid-resolv-XXXXXX";

struct result {
    int n_calls;
    size_t n;
    struct addr at[128];
    struct err err;
};

static struct {
    struct loop *loop;
    struct resolver *r;
    struct result results[8];
    int n_wanted, n_done;
    void (*when_done)(void); /* NULL: the end */
    int phase;
} w;

static bool in_call;

static void world_init(int64_t max_ttl_us, int64_t nxdomain_ttl_us)
{
    char servers[40];
    struct err e = {0};
    memset(&w, 0, sizeof w);
    assert_int_equal(loop_new(&w.loop, NULL, &e), 0);
    server_start(w.loop);
    snprintf(servers, sizeof servers, "127.0.0.1:%d", server.port);
    struct resolver_options o = {.max_ttl_us = max_ttl_us,
                                 .nxdomain_ttl_us = nxdomain_ttl_us,
                                 .resolv_conf = resolv_conf,
                                 .servers = servers};
    if (resolver_new(&w.r, w.loop, &o, &e))
        fail_msg("%s", e.text);
}

static void on_result(void *arg, const struct addr *at, size_t n,
                      const struct err *e)
{
    struct result *result = arg;
    assert_false(in_call);
    assert_true((n == 0) == (e != NULL));
    result->n_calls++;
    result->n = n;
    if (e)
        result->err = *e;
    else
        memcpy(result->at, at, n * sizeof *at);
    if (++w.n_done < w.n_wanted)
        return;
    if (w.when_done)
        w.when_done();
    else
        loop_stop(w.loop);
}

static struct resolve *ask(int i, const char *name)
{
    in_call = true;
    struct resolve *q = resolve_start(w.r, name, on_result, &w.results[i]);
    in_call = false;
    return q;
}

static void run(void)
{
    alarm(20);
    loop_run(w.loop);
    alarm(0);
    resolver_free(w.r);
    loop_free(w.loop);
    server_stop();
}

static bool result_has(int i, const char *ip)
{
    struct addr a;
    assert_true(addr_parse_ip(slice_str(ip), 0, &a));
    for (size_t k = 0; k < w.results[i].n; k++)
        if (addr_eq(&a, &w.results[i].at[k]))
            return true;
    return false;
}

static void finds_addresses(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 4;
    ask(0, "one.test");
    ask(1, "two.test");
    ask(2, "none.test");
    ask(3, "empty.test");
    run();
    assert_int_equal(w.results[0].n, 1);
    assert_true(result_has(0, "10.0.0.1"));
    assert_int_equal(w.results[1].n, 3);
    assert_true(result_has(1, "10.0.0.1"));
    assert_true(result_has(1, "10.0.0.2"));
    assert_true(result_has(1, "2001:db8::1"));
    assert_int_equal(w.results[2].n, 0);
    assert_non_null(
        strstr(w.results[2].err.text, "cannot resolve host \"none.test\": "));
    assert_int_equal(w.results[3].n, 0);
}

static void knows_etc_hosts(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 1;
    ask(0, "localhost");
    run();
    assert_true(result_has(0, "127.0.0.1") || result_has(0, "::1"));
    assert_int_equal(server.n_queries, 0);
}

/* A long answer comes by TCP, where c-ares reads a piece at a time. */
static void falls_back_to_tcp(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 1;
    ask(0, "big.test");
    run();
    assert_true(server.n_tcp > 0);
    assert_int_equal(w.results[0].n, 64); /* the most that is kept */
}

static void ask_again(void)
{
    if (w.phase++ == 0) {
        w.n_wanted++;
        ask(3, "ONE.test");
    } else {
        loop_stop(w.loop);
    }
}

static void shares_and_remembers(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 3;
    w.when_done = ask_again;
    ask(0, "one.test");
    ask(1, "one.test");
    ask(2, "One.Test");
    assert_int_equal(resolver_n_waiting(w.r), 3);
    run();
    for (int i = 0; i < 4; i++) {
        assert_int_equal(w.results[i].n_calls, 1);
        assert_true(result_has(i, "10.0.0.1"));
    }
    assert_int_equal(server.n_queries, 2); /* A and AAAA */
}

static void ask_failing_again(void)
{
    if (w.phase++ == 0) {
        w.n_wanted++;
        ask(1, "none.test");
    } else {
        loop_stop(w.loop);
    }
}

static void forgets_failures_by_their_own_time(void **state)
{
    for (int64_t ttl_us = 0; ttl_us <= 15000000; ttl_us += 15000000) {
        world_init(15000000, ttl_us);
        w.n_wanted = 1;
        w.when_done = ask_failing_again;
        ask(0, "none.test");
        run();
        assert_int_equal(w.results[1].n_calls, 1);
        assert_int_equal(w.results[1].n, 0);
        assert_int_equal(server.n_queries, ttl_us ? 2 : 4);
    }
}

static void count_entry(void *arg, const struct resolve_entry *e)
{
    int *count = arg;
    (*count)++;
    assert_string_equal(e->host, "one.test");
    assert_int_equal(e->n, 1);
    assert_true(e->expires_us > loop_now_us(w.loop));
}

static void flush_and_ask(void)
{
    int count = 0;
    if (w.phase++ == 0) {
        resolver_for_each(w.r, count_entry, &count);
        assert_int_equal(count, 1);
        assert_int_equal(resolver_n_cached(w.r), 1);
        resolver_flush(w.r);
        w.n_wanted++;
        ask(1, "one.test");
    } else {
        assert_int_equal(resolver_n_waiting(w.r), 0);
        loop_stop(w.loop);
    }
}

static void lists_and_flushes(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 1;
    w.when_done = flush_and_ask;
    ask(0, "one.test");
    run();
    assert_int_equal(server.n_queries, 4);
}

static struct resolve *victim;

static void cancel_victim(void)
{
    if (w.phase++ == 0) {
        resolve_cancel(victim); /* is ready to be told */
        victim = NULL;
        w.n_wanted++;
        ask(3, "two.test");
    } else {
        loop_stop(w.loop);
    }
}

static void canceled_questions_get_no_answer(void **state)
{
    world_init(15000000, 15000000);
    w.n_wanted = 1;
    w.when_done = cancel_victim;
    resolve_cancel(ask(2, "one.test")); /* before the look-up */
    ask(0, "one.test");
    victim = ask(1, "one.test");
    ask(4, "mute.test"); /* dropped by resolver_free() */
    run();
    assert_int_equal(w.results[0].n_calls, 1);
    assert_int_equal(w.results[1].n_calls, 0);
    assert_int_equal(w.results[2].n_calls, 0);
    assert_int_equal(w.results[3].n_calls, 1);
    assert_int_equal(w.results[4].n_calls, 0);
}

static struct timer reconfigure_timer;

static void on_reconfigure(struct timer *t)
{
    char servers[40];
    struct err e = {0};
    struct resolver_options o = {.max_ttl_us = 1,
                                 .nxdomain_ttl_us = 1,
                                 .resolv_conf = "/nonexistent",
                                 .servers = servers};
    snprintf(servers, sizeof servers, "127.0.0.1:%d", server.port);
    assert_int_equal(resolver_reconfigure(w.r, &o, &e), ERR_CONF);
    assert_non_null(strstr(e.text, "resolv_conf \"/nonexistent\": No such"));
    o.resolv_conf = resolv_conf;
    in_call = true;
    assert_int_equal(resolver_reconfigure(w.r, &o, &e), 0);
    in_call = false;
}

/* A question that hangs at a dead server is asked again of the new one. */
static void reload_asks_again(void **state)
{
    struct err e;
    world_init(15000000, 15000000);
    struct resolver_options dead = {.max_ttl_us = 1,
                                    .nxdomain_ttl_us = 1,
                                    .resolv_conf = resolv_conf,
                                    .servers = "127.0.0.1:9"};
    int mute = socket(AF_INET, SOCK_DGRAM, 0);
    struct addr a;
    char servers[ADDR_TEXT_MAX];
    assert_true(addr_parse_ip(slice_str("127.0.0.1"), 0, &a));
    assert_int_equal(bind(mute, &a.sa, a.len), 0);
    assert_int_equal(addr_of_self(mute, &a), 0);
    addr_text(&a, servers, sizeof servers);
    dead.servers = servers;
    assert_int_equal(resolver_reconfigure(w.r, &dead, &e), 0);
    w.n_wanted = 1;
    ask(0, "one.test");
    reconfigure_timer = (struct timer){.on_fire = on_reconfigure};
    timer_set(w.loop, &reconfigure_timer, loop_now_us(w.loop) + 30000);
    run();
    assert_true(result_has(0, "10.0.0.1"));
    close(mute);
}

static struct addr gone;

static void on_gone(void *arg, const char *host, const struct addr *at)
{
    assert_ptr_equal(arg, &gone);
    assert_string_equal(host, "host.zone.test");
    gone = *at;
    loop_stop(w.loop);
}

static void see_zone(void *arg, const struct resolve_zone *z)
{
    assert_string_equal(z->name, "zone.test");
    assert_int_equal(z->n_names, 1);
    *(uint32_t *)arg = z->serial;
}

static void see_entry(void *arg, const struct resolve_entry *e)
{
    assert_string_equal(e->host, "host.zone.test");
    assert_int_equal(e->n, 1);
    *(struct addr *)arg = e->at[0];
}

static void wait_for_news(void)
{
}

/* A new serial has the names looked up again, long before they expire. */
static void watches_zones(void **state)
{
    struct err e;
    struct addr now;
    uint32_t serial = 0;
    char servers[40], text[ADDR_TEXT_MAX];
    world_init(1, 1);
    resolver_free(w.r);
    server.serial = 1;
    snprintf(servers, sizeof servers, "127.0.0.1:%d", server.port);
    struct resolver_options o = {.max_ttl_us = 15000000,
                                 .nxdomain_ttl_us = 15000000,
                                 .zone_check_us = 10000,
                                 .on_gone = on_gone,
                                 .arg = &gone,
                                 .resolv_conf = resolv_conf,
                                 .servers = servers};
    assert_int_equal(resolver_new(&w.r, w.loop, &o, &e), 0);
    w.n_wanted = 1;
    w.when_done = wait_for_news;
    ask(0, "host.zone.test");
    alarm(20);
    loop_run(w.loop);
    assert_true(result_has(0, "10.0.0.1"));
    addr_host_text(&gone, text, sizeof text);
    assert_string_equal(text, "10.0.0.1");
    resolver_for_each(w.r, see_entry, &now);
    addr_host_text(&now, text, sizeof text);
    assert_string_equal(text, "10.0.0.2");
    resolver_for_each_zone(w.r, see_zone, &serial);
    assert_int_equal(serial, 2);
    assert_int_equal(resolver_n_zones(w.r), 1);
    o.zone_check_us = 0;
    assert_int_equal(resolver_reconfigure(w.r, &o, &e), 0);
    w.n_wanted++;
    w.when_done = NULL;
    ask(1, "one.test");
    run();
}

static int make_file(void **state)
{
    int fd = mkstemp(resolv_conf);
    if (fd < 0 || write(fd, "nameserver 127.0.0.1\n", 21) != 21)
        return -1;
    return close(fd);
}

static int remove_file(void **state)
{
    return unlink(resolv_conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_addresses),
        cmocka_unit_test(knows_etc_hosts),
        cmocka_unit_test(falls_back_to_tcp),
        cmocka_unit_test(shares_and_remembers),
        cmocka_unit_test(forgets_failures_by_their_own_time),
        cmocka_unit_test(lists_and_flushes),
        cmocka_unit_test(canceled_questions_get_no_answer),
        cmocka_unit_test(reload_asks_again),
        cmocka_unit_test(watches_zones),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
