/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Client and server in one loop, over loopback UDP, with a wire between them
 * that can lose, double, delay and re-route datagrams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <sys/socket.h>

#include "auth/cert.h"
#include "base/clock.h"
#include "certs.h"
#include "net/quic.h"
#include "net/tls.h"

static struct cert ca, other_ca, server_cert, client_cert, stranger_cert,
    old_cert;
static struct loop *loop;
static struct quic_shared *shared;

/* --- running the loop ------------------------------------------------------
 */

static bool (*waits_for)(void);
static struct timer poll_timer, limit_timer;
static bool timed_out;

static void on_limit(struct timer *t)
{
    timed_out = true;
    loop_stop(loop);
}

static struct task look;

static void on_look(struct task *t)
{
    if (waits_for())
        loop_stop(loop);
    else
        timer_set(loop, &poll_timer, clock_now_us() + 1000);
}

static void on_poll(struct timer *t)
{
    loop_defer(loop, &look);
}

/* A loop stops for good, so that each case makes its own; within one, turns are
 * run until something holds. */
static void run_until(bool (*holds)(void));

/* --- the wire --------------------------------------------------------------
 */

enum { DELAYED_MAX = 4096 };

static struct list delayed = {&delayed, &delayed};

struct delayed {
    struct list node;
    struct timer timer;
    bool to_server;
    size_t n;
    char p[2048];
};

static struct wire {
    struct io client_side, server_side;
    struct addr at, server, client;
    int lose_percent, double_percent, delay_percent;
    bool is_cut, is_one_way;
    size_t max_bytes; /* of a datagram; 0: any */
    uint64_t to_server_bytes, to_client_bytes;
    int n_retries; /* packets that the server sent */
    unsigned seed;
} wire;

static unsigned chance(void)
{
    wire.seed = wire.seed * 1103515245u + 12345u;
    return wire.seed / 65536u % 100u;
}

static void pass(bool to_server, const void *p, size_t n)
{
    if (to_server)
        (void)sendto(wire.server_side.fd, p, n, 0, &wire.server.sa,
                     wire.server.len);
    else
        (void)sendto(wire.client_side.fd, p, n, 0, &wire.client.sa,
                     wire.client.len);
}

static void on_delayed(struct timer *t)
{
    struct delayed *d = container_of(t, struct delayed, timer);
    pass(d->to_server, d->p, d->n);
    list_remove(&d->node);
    loop_free_later(loop, d);
}

static void carry(bool to_server, const char *p, size_t n)
{
    *(to_server ? &wire.to_server_bytes : &wire.to_client_bytes) += n;
    wire.n_retries += !to_server && n && ((unsigned char)p[0] & 0xf0) == 0xf0;
    if (wire.is_cut || (wire.is_one_way && !to_server) ||
        (wire.max_bytes && n > wire.max_bytes) ||
        chance() < (unsigned)wire.lose_percent)
        return;
    if (chance() < (unsigned)wire.double_percent)
        pass(to_server, p, n);
    if (n <= 2048 && chance() < (unsigned)wire.delay_percent) {
        struct delayed *d = mem_new(sizeof *d);
        d->timer.on_fire = on_delayed;
        list_push_back(&delayed, &d->node);
        d->to_server = to_server;
        d->n = n;
        memcpy(d->p, p, n);
        timer_set(loop, &d->timer, clock_now_us() + chance() * 50);
        return;
    }
    pass(to_server, p, n);
}

static void on_client_side(struct io *io, uint32_t events)
{
    char p[65536];
    ssize_t n;
    for (;;) {
        wire.client.len = sizeof(struct sockaddr_un);
        n = recvfrom(io->fd, p, sizeof p, MSG_DONTWAIT, &wire.client.sa,
                     &wire.client.len);
        if (n < 0)
            return;
        carry(true, p, (size_t)n);
    }
}

static void on_server_side(struct io *io, uint32_t events)
{
    char p[65536];
    ssize_t n;
    while ((n = recv(io->fd, p, sizeof p, MSG_DONTWAIT)) >= 0)
        carry(false, p, (size_t)n);
}

static int udp(struct addr *at)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_true(addr_parse_ip(slice_str("127.0.0.1"), 0, at));
    assert_int_equal(bind(fd, &at->sa, at->len), 0);
    assert_int_equal(addr_of_self(fd, at), 0);
    int size = 4 << 20;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    return fd;
}

static void wire_open(const struct addr *server)
{
    struct addr other;
    memset(&wire, 0, sizeof wire);
    wire.seed = 1;
    wire.server = *server;
    wire.client_side.fd = udp(&wire.at);
    wire.client_side.on_event = on_client_side;
    wire.server_side.fd = udp(&other);
    wire.server_side.on_event = on_server_side;
    assert_int_equal(loop_add(loop, &wire.client_side, EPOLLIN), 0);
    assert_int_equal(loop_add(loop, &wire.server_side, EPOLLIN), 0);
}

static void wire_close(void)
{
    while (!list_empty(&delayed)) {
        struct delayed *d =
            list_entry(list_first(&delayed), struct delayed, node);
        timer_clear(loop, &d->timer);
        list_remove(&d->node);
        free(d);
    }
    loop_del(loop, &wire.client_side);
    loop_del(loop, &wire.server_side);
    close(wire.client_side.fd);
    close(wire.server_side.fd);
}

/* A NAT that gives the client another port. */
static void wire_rebind(void)
{
    struct addr other;
    loop_del(loop, &wire.server_side);
    close(wire.server_side.fd);
    wire.server_side.fd = udp(&other);
    wire.server_side.on_event = on_server_side;
    assert_int_equal(loop_add(loop, &wire.server_side, EPOLLIN), 0);
}

/* --- the server: an echo, with some manners --------------------------------
 */

struct session {
    struct stream *s;
    bool is_paused_by_test;
    size_t got;
};

static struct server {
    struct quic_host *host;
    struct quic_listener *listener;
    struct quic_tls *tls;
    struct addr at;
    int n_sessions, n_open, n_errors, n_eofs;
    size_t bytes;
    bool refuses, holds, swallows;
    struct session *last;
    char error[ERR_TEXT_MAX];
    bool has_cert;
    char alpn[TLS_ALPN_MAX];
    size_t end_point_n;
    char cn[CERT_NAME_MAX + 1];
} server;

static void session_end(struct session *k)
{
    stream_close(k->s);
    server.n_open--;
    if (server.last == k)
        server.last = NULL;
    loop_free_later(loop, k);
}

static void session_data(struct stream *s, const char *p, size_t n)
{
    struct session *k = s->owner;
    k->got += n;
    server.bytes += n;
    if (!server.swallows)
        assert_int_equal(stream_write(s, p, n), 0);
    if (stream_pending(s) > STREAM_BACKLOG_HIGH)
        stream_pause(s);
}

static void session_drain(struct stream *s)
{
    struct session *k = s->owner;
    if (!k->is_paused_by_test)
        stream_resume(s);
}

static void session_eof(struct stream *s)
{
    server.n_eofs++;
    session_end(s->owner);
}

static void session_error(struct stream *s, const struct err *e)
{
    server.n_errors++;
    snprintf(server.error, sizeof server.error, "%s", e->text);
    session_end(s->owner);
}

static const struct stream_handler session_handler = {
    .on_data = session_data,
    .on_drain = session_drain,
    .on_eof = session_eof,
    .on_error = session_error,
};

static bool on_session(void *arg, struct stream *s, const struct addr *peer)
{
    const struct tls_info *tls = stream_tls(s);
    if (server.refuses)
        return false;
    struct session *k = mem_new(sizeof *k);
    k->s = s;
    k->is_paused_by_test = server.holds;
    stream_set_owner(s, &session_handler, k);
    if (server.holds)
        stream_pause(s);
    server.last = k;
    server.n_sessions++;
    server.n_open++;
    assert_non_null(tls);
    assert_string_equal(tls->version, "TLSv1.3");
    server.has_cert = tls->has_client_cert;
    server.end_point_n = tls->server_end_point.n;
    snprintf(server.alpn, sizeof server.alpn, "%s", tls->alpn);
    server.cn[0] = 0;
    if (tls->peer_cert)
        assert_int_equal(cert_common_name(tls->peer_cert, server.cn, NULL), 0);
    return true;
}

static struct quic_limits limits(void)
{
    return (struct quic_limits){
        .windows = {65536, 1 << 20, 1 << 20, 16 << 20},
        .max_streams = 1000,
        .max_conns_per_host = 0,
        .retry_above = 1000,
        .idle_timeout_us = 30 * 1000000,
        .handshake_timeout_us = 5 * 1000000,
    };
}

static void server_listen(const struct cert *cert, const struct cert *trust,
                          const struct quic_limits *l)
{
    struct err e;
    int fd;
    struct quic_tls_params tp = {
        .prefix = "quic_tls",
        .cert_file = cert->cert_file,
        .key_file = cert->key_file,
        .ca_file = trust ? trust->cert_file : NULL,
    };
    memset(&server, 0, sizeof server);
    assert_true(addr_parse_ip(slice_str("127.0.0.1"), 0, &server.at));
    assert_int_equal(quic_tls_new_server(&server.tls, shared, &tp, &e), 0);
    assert_int_equal(quic_host_new(&server.host, loop, &e), 0);
    assert_int_equal(quic_sockets_open(&fd, 1, false, &server.at, &e), 0);
    assert_int_equal(addr_of_self(fd, &server.at), 0);
    struct quic_listener_params p = {
        .fd = fd,
        .n_workers = 1,
        .shared = shared,
        .tls = server.tls,
        .limits = *l,
        .on_stream = on_session,
    };
    assert_int_equal(quic_listener_new(&server.listener, server.host, &p, &e),
                     0);
    wire_open(&server.at);
}

static void server_close(void)
{
    quic_host_free(server.host);
    quic_tls_unref(server.tls);
    wire_close();
}

/* --- the client ------------------------------------------------------------
 */

struct call {
    struct stream *s;
    size_t got;
    unsigned sum;
    bool is_eof, is_error, is_drained;
    char error[ERR_TEXT_MAX];
};

static struct client {
    struct quic_host *host;
    struct quic_conn *conn;
    struct quic_tls *tls;
    struct quic_memory memory;
    bool is_up, is_down, is_draining;
    struct err down;
    struct call calls[1000];
    int n_calls;
    size_t got;
} client;

static void call_data(struct stream *s, const char *p, size_t n)
{
    struct call *k = s->owner;
    k->got += n;
    client.got += n;
    for (size_t i = 0; i < n; i++)
        k->sum = k->sum * 31 + (unsigned char)p[i];
}

static void call_drain(struct stream *s)
{
    ((struct call *)s->owner)->is_drained = true;
}

static void call_eof(struct stream *s)
{
    ((struct call *)s->owner)->is_eof = true;
}

static void call_error(struct stream *s, const struct err *e)
{
    struct call *k = s->owner;
    k->is_error = true;
    snprintf(k->error, sizeof k->error, "%s", e->text);
}

static const struct stream_handler call_handler = {
    .on_data = call_data,
    .on_drain = call_drain,
    .on_eof = call_eof,
    .on_error = call_error,
};

static void on_up(struct quic_conn *c)
{
    client.is_up = true;
}

static void on_down(struct quic_conn *c, const struct err *e)
{
    client.is_down = true;
    client.down = *e;
    client.conn = NULL;
}

static void on_drain(struct quic_conn *c)
{
    client.is_draining = true;
}

static const struct quic_conn_handler conn_handler = {
    .on_up = on_up, .on_down = on_down, .on_drain = on_drain};

static void client_init(const struct cert *trust, const struct cert *own)
{
    struct err e;
    struct quic_tls_params tp = {
        .prefix = "tls",
        .ca_file = trust->cert_file,
        .cert_file = own ? own->cert_file : NULL,
        .key_file = own ? own->key_file : NULL,
    };
    memset(&client, 0, sizeof client);
    assert_int_equal(quic_tls_new_client(&client.tls, &tp, &e), 0);
    assert_int_equal(quic_host_new(&client.host, loop, &e), 0);
}

static void client_dial(const char *host, const char *alpn, bool is_tunnel)
{
    struct err e;
    struct quic_connect_params p = {
        .tls = client.tls,
        .host = host,
        .alpn = alpn,
        .is_tunnel = is_tunnel,
        .memory = &client.memory,
        .idle_timeout_us = 30 * 1000000,
        .handshake_timeout_us = 2 * 1000000,
    };
    client.is_up = client.is_down = false;
    assert_int_equal(quic_connect(&client.conn, client.host, &wire.at, &p,
                                  &conn_handler, NULL, &e),
                     0);
}

static void client_close(void)
{
    quic_host_free(client.host);
    quic_tls_unref(client.tls);
    quic_memory_clear(&client.memory);
}

static struct call *call(void)
{
    struct call *k = &client.calls[client.n_calls++];
    memset(k, 0, sizeof *k);
    k->s = quic_open_stream(client.conn, &call_handler, k);
    return k;
}

/* --- conditions ------------------------------------------------------------
 */

static int64_t wait_end_us;
static size_t want_got, want_bytes;
static int want_sessions;

static bool is_up_or_down(void)
{
    return client.is_up || client.is_down;
}

static bool is_down(void)
{
    return client.is_down;
}

static bool has_got(void)
{
    return client.got >= want_got || client.is_down;
}

static bool has_ended(void)
{
    struct call *k = &client.calls[client.n_calls - 1];
    return k->is_eof || k->is_error;
}

static bool time_is_up(void)
{
    return clock_now_us() >= wait_end_us;
}

static bool server_has_ended_all(void)
{
    return server.n_sessions >= want_sessions && server.n_open == 0;
}

static bool server_has_bytes(void)
{
    return server.bytes >= want_bytes;
}

static void run_until(bool (*holds)(void))
{
    waits_for = holds;
    timed_out = false;
    timer_set(loop, &limit_timer, clock_now_us() + 20 * 1000000);
    loop_defer(loop, &look);
    loop_run(loop);
    timer_clear(loop, &limit_timer);
    timer_clear(loop, &poll_timer);
    loop_cancel(&look);
    assert_false(timed_out);
}

static void run_for_ms(int ms)
{
    wait_end_us = clock_now_us() + ms * 1000;
    run_until(time_is_up);
}

static void connect_plainly(void)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
}

static void end_both(void)
{
    client_close();
    server_close();
    run_for_ms(0);
}

/* --- cases -----------------------------------------------------------------
 */

static void test_echo(void **state)
{
    connect_plainly();
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "hello", 5), 0);
    want_got = 5;
    run_until(has_got);
    assert_string_equal(server.alpn, "pgsql/3");
    assert_int_equal(server.end_point_n, 32);
    assert_false(server.has_cert);
    stream_shutdown(k->s);
    run_until(has_ended);
    assert_true(k->is_eof);
    assert_int_equal(k->got, 5);
    assert_int_equal(server.n_eofs, 1);
    stream_close(k->s);
    run_for_ms(5);
    assert_int_equal(quic_conn_streams(client.conn), 0);
    end_both();
}

static uint64_t packets, frames;

static void count_packets(void *arg, const struct quic_conn_view *v)
{
    packets += v->packets_out;
    frames += v->frames_out;
}

static void test_many_streams_share_packets(void **state)
{
    enum { STREAMS = 500, BYTES = 100 };
    char p[BYTES] = {1};
    connect_plainly();
    for (int i = 0; i < STREAMS; i++)
        assert_int_equal(stream_write(call()->s, p, sizeof p), 0);
    want_got = (size_t)STREAMS * BYTES;
    run_until(has_got);
    packets = frames = 0;
    quic_host_each(client.host, count_packets, NULL);
    assert_true(frames >= STREAMS);
    assert_true(packets < STREAMS / 4);
    for (int i = 0; i < STREAMS; i++)
        stream_close(client.calls[i].s);
    want_sessions = STREAMS;
    run_until(server_has_ended_all);
    end_both();
}

static void bulk(size_t total)
{
    static char p[100000];
    unsigned sum = 0;
    struct call *k = call();
    size_t sent = 0;
    for (size_t i = 0; i < sizeof p; i++)
        p[i] = (char)(i * 7 + i / 251);
    while (sent < total) {
        size_t n = MIN(sizeof p, total - sent);
        assert_int_equal(stream_write(k->s, p, n), 0);
        for (size_t i = 0; i < n; i++)
            sum = sum * 31 + (unsigned char)p[i];
        sent += n;
    }
    stream_shutdown(k->s);
    run_until(has_ended);
    assert_true(k->is_eof);
    assert_int_equal(k->got, total);
    assert_int_equal(k->sum, sum);
    stream_close(k->s);
}

static void test_bulk(void **state)
{
    connect_plainly();
    bulk(10 << 20);
    end_both();
}

static void test_bad_wire(void **state)
{
    connect_plainly();
    wire.lose_percent = 5;
    wire.double_percent = 5;
    wire.delay_percent = 20;
    bulk(1 << 20);
    end_both();
}

static void test_handshake_on_bad_wire(void **state)
{
    struct quic_limits l = limits();
    for (unsigned seed = 1; seed <= 20; seed++) {
        server_listen(&server_cert, NULL, &l);
        wire.seed = seed;
        wire.lose_percent = 20;
        wire.double_percent = 10;
        wire.delay_percent = 20;
        client_init(&ca, NULL);
        client_dial("localhost", NULL, false);
        run_until(is_up_or_down);
        if (client.is_up) {
            struct call *k = call();
            assert_int_equal(stream_write(k->s, "x", 1), 0);
            want_got = 1;
            run_until(has_got);
            stream_close(k->s);
        }
        end_both();
    }
}

/* A path that carries 1280-byte packets only: 1232 of UDP payload. */
static void test_small_path(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    wire.max_bytes = 1232;
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    bulk(1 << 20);
    end_both();
}

static uint64_t black_holes;
static size_t packet_size;

static void count_black_holes(void *arg, const struct quic_conn_view *v)
{
    black_holes += v->black_holes;
    packet_size = MAX(packet_size, v->packet_size);
}

static void look_at_paths(void)
{
    black_holes = packet_size = 0;
    quic_host_each(server.host, count_black_holes, NULL);
    quic_host_each(client.host, count_black_holes, NULL);
}

/* It carries large packets first, then swallows them. */
static void test_path_shrinks(void **state)
{
    connect_plainly();
    bulk(1 << 20);
    look_at_paths();
    assert_true(packet_size > 1232);
    assert_int_equal(black_holes, 0);
    wire.max_bytes = 1232;
    bulk(1 << 20);
    look_at_paths();
    assert_true(packet_size <= 1232);
    assert_true(black_holes >= 2); /* each end for itself */
    assert_false(client.is_down);
    end_both();
}

/* Four readers that stopped stop nobody else, and are bounded. */
static void test_paused_streams(void **state)
{
    static char p[300000];
    connect_plainly();
    server.holds = true;
    for (int i = 0; i < 4; i++)
        assert_int_equal(stream_write(call()->s, p, sizeof p), 0);
    run_for_ms(50);
    server.holds = false;
    assert_int_equal(server.bytes, 0);
    for (int i = 0; i < 4; i++)
        assert_true(stream_pending(client.calls[i].s) > 100000);
    struct call *k = call();
    assert_int_equal(stream_write(k->s, p, 100000), 0);
    want_got = 100000;
    run_until(has_got);
    assert_int_equal(k->got, 100000);
    /* One of them goes on. */
    assert_non_null(server.last);
    for (int i = 0; i < 5; i++)
        stream_close(client.calls[i].s);
    end_both();
}

static void test_pause_and_resume(void **state)
{
    static char p[300000];
    connect_plainly();
    server.holds = true;
    struct call *k = call();
    assert_int_equal(stream_write(k->s, p, sizeof p), 0);
    stream_shutdown(k->s);
    run_for_ms(30);
    assert_int_equal(k->got, 0);
    assert_int_equal(server.n_eofs, 0);
    assert_non_null(server.last);
    server.last->is_paused_by_test = false;
    stream_resume(server.last->s);
    run_until(has_ended);
    assert_int_equal(k->got, sizeof p);
    assert_true(k->is_drained);
    stream_close(k->s);
    end_both();
}

static void test_reset_by_client(void **state)
{
    connect_plainly();
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "hello", 5), 0);
    want_bytes = 5;
    run_until(server_has_bytes);
    stream_reset(k->s);
    want_sessions = 1;
    run_until(server_has_ended_all);
    assert_int_equal(server.n_errors, 1);
    assert_string_equal(server.error,
                        "the session broke on the peer's other side");
    run_for_ms(5);
    assert_int_equal(quic_conn_streams(client.conn), 0);
    end_both();
}

static void test_refused_session(void **state)
{
    connect_plainly();
    server.refuses = true;
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "hello", 5), 0);
    run_until(has_ended);
    assert_true(k->is_error);
    assert_string_equal(k->error, "the peer refused the session: a limit");
    stream_close(k->s);
    end_both();
}

static void test_stream_limit(void **state)
{
    struct quic_limits l = limits();
    l.max_streams = 3;
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    for (int round = 0; round < 3; round++) {
        int first = client.n_calls;
        for (int i = 0; i < 3; i++) {
            struct call *k = call();
            assert_non_null(k->s);
            assert_int_equal(stream_write(k->s, "x", 1), 0);
        }
        assert_int_equal(quic_conn_room(client.conn), 0);
        assert_null(quic_open_stream(client.conn, &call_handler, NULL));
        want_got = client.got + 3;
        run_until(has_got);
        for (int i = first; i < first + 3; i++)
            stream_close(client.calls[i].s);
        run_for_ms(20);
        assert_int_equal(quic_conn_room(client.conn), 3);
    }
    end_both();
}

static void expect_refusal(const char *words)
{
    run_until(is_down);
    if (!strstr(client.down.text, words))
        fail_msg("\"%s\" does not say \"%s\"", client.down.text, words);
}

static void test_untrusted_server(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&other_ca, NULL);
    client_dial("localhost", NULL, false);
    expect_refusal("issuer is unknown");
    end_both();
}

static void test_wrong_name(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("elsewhere.example", NULL, false);
    expect_refusal("does not match");
    end_both();
}

static void test_expired_server(void **state)
{
    struct quic_limits l = limits();
    server_listen(&old_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, false);
    expect_refusal("expired");
    end_both();
}

static void test_alpn(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", "h3", false);
    expect_refusal("TLS alert 120");
    client_dial("localhost", "", false);
    expect_refusal("TLS alert 120");
    client_dial("localhost", "postgresql", false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    end_both();
}

static void test_client_certificate(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, &ca, &l);
    client_init(&ca, &client_cert);
    for (int i = 0; i < 2; i++) { /* the second one is resumed */
        client_dial("localhost", NULL, true);
        run_until(is_up_or_down);
        assert_true(client.is_up);
        struct call *k = call();
        assert_int_equal(stream_write(k->s, "x", 1), 0);
        want_got = client.got + 1;
        run_until(has_got);
        assert_true(server.has_cert);
        assert_string_equal(server.cn, "alice");
        assert_string_equal(server.alpn, "pgbraid/1");
        assert_int_equal(server.end_point_n, 0); /* a tunnel binds nothing */
        stream_close(k->s);
        run_for_ms(20);
        quic_conn_close(client.conn, QUIC_CODE_NONE);
        run_for_ms(5);
    }
    assert_non_null(client.memory.ticket);
    assert_non_null(client.memory.token);
    end_both();
}

/* Asked for, not insisted on. */
static void test_no_client_certificate(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, &ca, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    assert_int_equal(stream_write(call()->s, "x", 1), 0);
    want_got = 1;
    run_until(has_got);
    assert_false(server.has_cert);
    stream_close(client.calls[0].s);
    end_both();
}

static void test_strange_client_certificate(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, &ca, &l);
    client_init(&ca, &stranger_cert);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    run_until(is_down);
    assert_non_null(strstr(client.down.text, "TLS alert"));
    assert_int_equal(server.n_sessions, 0);
    end_both();
}

static void test_expired_client_certificate(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, &ca, &l);
    client_init(&ca, &old_cert);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    run_until(is_down);
    assert_non_null(strstr(client.down.text, "TLS alert"));
    assert_int_equal(server.n_sessions, 0);
    end_both();
}

static int n_resumed;

static void count_resumed(void *arg, const struct quic_conn_view *v)
{
    n_resumed += v->is_resumed;
}

static bool has_ticket_and_token(void)
{
    return client.memory.ticket && client.memory.token;
}

static void test_resumption(void **state)
{
    connect_plainly();
    run_until(has_ticket_and_token);
    quic_conn_close(client.conn, QUIC_CODE_NONE);
    run_for_ms(5);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    run_for_ms(20);
    n_resumed = 0;
    quic_host_each(server.host, count_resumed, NULL);
    assert_int_equal(n_resumed, 1);
    end_both();
}

/* While a handshake is open that never ends, a newcomer has to prove its
 * address; one that was here before has a token for that. */
static void test_retry(void **state)
{
    struct quic_limits l = limits();
    l.retry_above = 1;
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    wire.is_one_way = true;
    client_dial("localhost", NULL, false);
    run_for_ms(20);
    wire.is_cut = true; /* nor does the server hear that it was given up */
    quic_conn_close(client.conn, QUIC_CODE_NONE);
    run_for_ms(20);
    wire.is_cut = wire.is_one_way = false;
    assert_int_equal(wire.n_retries, 0);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    assert_int_equal(wire.n_retries, 1);
    run_until(has_ticket_and_token);
    quic_conn_close(client.conn, QUIC_CODE_NONE);
    run_for_ms(5);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    assert_true(client.is_up);
    assert_int_equal(wire.n_retries, 1);
    end_both();
}

static void test_connections_per_address(void **state)
{
    struct quic_limits l = limits();
    l.max_conns_per_host = 1;
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, false);
    run_until(is_up_or_down);
    struct quic_conn *first = client.conn;
    client_dial("localhost", NULL, false);
    expect_refusal("too many connections from this address");
    client.conn = first;
    end_both();
}

static void test_drain(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    client_dial("localhost", NULL, true);
    run_until(is_up_or_down);
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "x", 1), 0);
    want_got = 1;
    run_until(has_got);
    quic_listener_drain(server.listener);
    run_for_ms(20);
    assert_true(client.is_draining);
    assert_null(quic_open_stream(client.conn, &call_handler, NULL));
    /* What runs goes on. */
    assert_int_equal(stream_write(k->s, "y", 1), 0);
    want_got = 2;
    run_until(has_got);
    stream_close(k->s);
    quic_listener_close(server.listener);
    expect_refusal("shutting down");
    assert_int_equal(client.down.code, ERR_SHUTDOWN);
    end_both();
}

static void test_connection_lost(void **state)
{
    connect_plainly();
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "x", 1), 0);
    want_got = 1;
    run_until(has_got);
    quic_conn_close(client.conn, QUIC_CODE_NONE);
    want_sessions = 1;
    run_until(server_has_ended_all);
    assert_int_equal(server.n_errors, 1);
    assert_true(k->is_error);
    assert_int_equal(stream_write(k->s, "x", 1), ERR_CLOSED);
    stream_close(k->s);
    end_both();
}

/* The server has forgotten everything: its successor says so at once. */
static void test_stateless_reset(void **state)
{
    connect_plainly();
    struct quic_limits l = limits();
    struct addr at = server.at;
    struct err e;
    int fd;
    /* The wire is cut while the old one says goodbye. */
    wire.is_cut = true;
    quic_listener_close(server.listener);
    assert_int_equal(quic_sockets_open(&fd, 1, false, &at, &e), 0);
    struct quic_listener_params p = {.fd = fd,
                                     .n_workers = 1,
                                     .shared = shared,
                                     .tls = server.tls,
                                     .limits = l,
                                     .on_stream = on_session};
    assert_int_equal(quic_listener_new(&server.listener, server.host, &p, &e),
                     0);
    run_for_ms(5);
    wire.is_cut = false;
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "hello", 5), 0);
    int64_t from = clock_now_us();
    run_until(is_down);
    stream_close(k->s);
    assert_true(clock_now_us() - from < 1000000);
    assert_string_equal(client.down.text,
                        "the peer has forgotten the connection");
    end_both();
}

static uint64_t rebindings;

static void count_rebindings(void *arg, const struct quic_conn_view *v)
{
    rebindings += v->rebindings;
}

static void test_rebinding(void **state)
{
    connect_plainly();
    struct call *k = call();
    for (size_t i = 1; i <= 5; i++) {
        assert_int_equal(stream_write(k->s, "x", 1), 0);
        want_got = i;
        run_until(has_got);
        run_for_ms(20);
        wire_rebind();
    }
    rebindings = 0;
    quic_host_each(server.host, count_rebindings, NULL);
    assert_true(rebindings >= 3);
    assert_false(client.is_down);
    stream_close(k->s);
    end_both();
}

static void test_nobody_there(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    wire.is_cut = true;
    client_dial("localhost", NULL, false);
    expect_refusal("no answer over UDP");
    /* A closed port says so itself. */
    wire_close();
    client_dial("localhost", NULL, false);
    expect_refusal("Connection refused");
    wire_open(&server.at);
    end_both();
}

/* Before the client has shown that it lives there, at most three times what it
 * sent. */
static void test_amplification(void **state)
{
    struct quic_limits l = limits();
    server_listen(&server_cert, NULL, &l);
    client_init(&ca, NULL);
    wire.is_one_way = true;
    client_dial("localhost", NULL, false);
    run_for_ms(1500);
    assert_true(wire.to_client_bytes > 0);
    assert_true(wire.to_client_bytes <= 3 * wire.to_server_bytes);
    end_both();
}

static void test_garbage(void **state)
{
    struct addr me;
    connect_plainly();
    int fd = udp(&me);
    unsigned seed = 7;
    for (int i = 0; i < 20000; i++) {
        unsigned char p[1400];
        size_t n = (size_t)(rand_r(&seed) % (int)sizeof p);
        for (size_t k = 0; k < n; k++)
            p[k] = (unsigned char)rand_r(&seed);
        if (n > 5 && i % 4 == 0) { /* looks like version 1 */
            p[0] |= 0xc0;
            p[1] = p[2] = p[3] = 0;
            p[4] = 1;
        }
        (void)sendto(fd, p, n, 0, &server.at.sa, server.at.len);
        if (i % 500 == 0)
            run_for_ms(0);
    }
    struct call *k = call();
    assert_int_equal(stream_write(k->s, "hello", 5), 0);
    want_got = 5;
    run_until(has_got);
    stream_close(k->s);
    close(fd);
    end_both();
}

static void test_version_negotiation(void **state)
{
    struct quic_limits l = limits();
    struct addr me;
    unsigned char p[1200] = {0xc0, 0x0a, 0x0a, 0x0a, 0x0a, 8, 1, 2, 3, 4,
                             5,    6,    7,    8,    4,    9, 9, 9, 9};
    unsigned char got[1500];
    server_listen(&server_cert, NULL, &l);
    int fd = udp(&me);
    (void)sendto(fd, p, sizeof p, 0, &server.at.sa, server.at.len);
    run_for_ms(5);
    ssize_t n = recv(fd, got, sizeof got, MSG_DONTWAIT);
    assert_true(n > 7 && n < (ssize_t)sizeof p);
    assert_true(got[0] & 0x80);
    assert_int_equal(got[1] | got[2] | got[3] | got[4], 0);
    /* Too small to be answered. */
    (void)sendto(fd, p, 100, 0, &server.at.sa, server.at.len);
    run_for_ms(5);
    assert_true(recv(fd, got, sizeof got, MSG_DONTWAIT) < 0);
    close(fd);
    quic_host_free(server.host);
    quic_tls_unref(server.tls);
    wire_close();
    run_for_ms(0);
}

/* --- set-up ----------------------------------------------------------------
 */

static int make_all(void **state)
{
    struct err e;
    certs_make_dir();
    ca = cert_new("ca", "Test CA", NULL, NULL, 30);
    other_ca = cert_new("other", "Other CA", NULL, NULL, 30);
    server_cert =
        cert_new("server", "localhost", "DNS:localhost,IP:127.0.0.1", &ca, 30);
    client_cert = cert_new("client", "alice", NULL, &ca, 30);
    stranger_cert = cert_new("stranger", "alice", NULL, &other_ca, 30);
    old_cert = cert_new("old", "localhost", "DNS:localhost", &ca, -1);
    poll_timer.on_fire = on_poll;
    limit_timer.on_fire = on_limit;
    look.run = on_look;
    list_init(&look.node);
    return quic_shared_new(&shared, server_cert.key_file, &e);
}

static int remove_all(void **state)
{
    struct cert *all[] = {&ca,          &other_ca,      &server_cert,
                          &client_cert, &stranger_cert, &old_cert};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        cert_free(all[i]);
    certs_remove_dir();
    quic_shared_free(shared);
    return 0;
}

static int make_loop(void **state)
{
    struct err e;
    return loop_new(&loop, NULL, &e);
}

static int free_loop(void **state)
{
    loop_free(loop);
    return 0;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_loop, free_loop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_echo),
        CASE(test_many_streams_share_packets),
        CASE(test_bulk),
        CASE(test_bad_wire),
        CASE(test_handshake_on_bad_wire),
        CASE(test_small_path),
        CASE(test_path_shrinks),
        CASE(test_paused_streams),
        CASE(test_pause_and_resume),
        CASE(test_reset_by_client),
        CASE(test_refused_session),
        CASE(test_stream_limit),
        CASE(test_untrusted_server),
        CASE(test_wrong_name),
        CASE(test_expired_server),
        CASE(test_alpn),
        CASE(test_client_certificate),
        CASE(test_no_client_certificate),
        CASE(test_strange_client_certificate),
        CASE(test_expired_client_certificate),
        CASE(test_resumption),
        CASE(test_retry),
        CASE(test_connections_per_address),
        CASE(test_drain),
        CASE(test_connection_lost),
        CASE(test_stateless_reset),
        CASE(test_rebinding),
        CASE(test_nobody_there),
        CASE(test_amplification),
        CASE(test_garbage),
        CASE(test_version_negotiation),
    };
    if (!quic_is_built())
        return 77; /* skipped */
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
