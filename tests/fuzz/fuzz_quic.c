/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Datagrams into a listener and into a client. The input is a list of steps,
 * a byte each with what follows it:
 *
 *   0..63     a datagram of the input's own (two bytes of length) to the server
 *   64..95    the next packet of a client is passed on to the server, with one
 *             byte (two bytes of place, one of value) changed
 *   96..127   the same of the server's to the client
 *   128..159  passed on as they are, both ways, for a turn
 *   160..191  the next packet is lost
 *   192..223  the client writes to a stream (one byte of length)
 *   224..255  the client resets, closes, pauses or opens a stream
 *
 * ngtcp2 keeps its asserts: whatever the wire says, none may be reached. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../unit/certs.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/quic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { STREAMS = 8, PACKET_MAX = 65536, STEPS_MAX = 200 };

static struct loop *loop;
static struct quic_shared *shared;
static struct quic_tls *server_tls, *client_tls;

static struct world {
    struct quic_host *host;
    struct quic_listener *listener;
    struct quic_conn *conn;
    struct stream *streams[STREAMS];
    int middle_c, middle_s; /* sockets of the wire */
    struct addr server, client, at;
    bool knows_client;
} w;

/* --- both ends -------------------------------------------------------------
 */

static void on_data(struct stream *s, const char *p, size_t n)
{
    (void)stream_write(s, p, n);
}

static void on_end(struct stream *s)
{
    stream_close(s);
}

static void on_error(struct stream *s, const struct err *e)
{
    stream_close(s);
}

static const struct stream_handler echo = {
    .on_data = on_data, .on_eof = on_end, .on_error = on_error};

static bool on_stream(void *arg, struct stream *s, const struct addr *peer)
{
    stream_set_owner(s, &echo, NULL);
    return true;
}

static void take(struct stream *s, const char *p, size_t n)
{
}

static void lost(struct stream *s, const struct err *e)
{
    *(struct stream **)s->owner = NULL;
    stream_close(s);
}

static void ended(struct stream *s)
{
    *(struct stream **)s->owner = NULL;
    stream_close(s);
}

static const struct stream_handler caller = {
    .on_data = take, .on_eof = ended, .on_error = lost};

static void open_stream(int i)
{
    if (w.conn && !w.streams[i])
        w.streams[i] = quic_open_stream(w.conn, &caller, &w.streams[i]);
}

static void on_up(struct quic_conn *c)
{
    for (int i = 0; i < STREAMS / 2; i++)
        open_stream(i);
}

static void on_down(struct quic_conn *c, const struct err *e)
{
    w.conn = NULL;
}

static const struct quic_conn_handler conn_handler = {.on_up = on_up,
                                                      .on_down = on_down};

/* --- the wire --------------------------------------------------------------
 */

static void stop_turn(struct task *t)
{
    loop_stop(loop);
}

static void turn(void)
{
    static struct task stop = {.run = stop_turn};
    for (int i = 0; i < 2; i++) {
        list_init(&stop.node);
        loop_defer(loop, &stop);
        loop_run(loop);
    }
}

static ssize_t from_client(uint8_t *p)
{
    w.client.len = sizeof(struct sockaddr_un);
    ssize_t n = recvfrom(w.middle_c, p, PACKET_MAX, MSG_DONTWAIT, &w.client.sa,
                         &w.client.len);
    w.knows_client |= n >= 0;
    return n;
}

static ssize_t from_server(uint8_t *p)
{
    return recv(w.middle_s, p, PACKET_MAX, MSG_DONTWAIT);
}

static void to_server(const uint8_t *p, size_t n)
{
    (void)!sendto(w.middle_s, p, n, 0, &w.server.sa, w.server.len);
}

static void to_client(const uint8_t *p, size_t n)
{
    if (w.knows_client)
        (void)!sendto(w.middle_c, p, n, 0, &w.client.sa, w.client.len);
}

static int udp(struct addr *at)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    must(fd >= 0 && addr_parse_ip(slice_str("127.0.0.1"), 0, at));
    must(bind(fd, &at->sa, at->len) == 0 && addr_of_self(fd, at) == 0);
    return fd;
}

/* --- the input -------------------------------------------------------------
 */

struct input {
    const uint8_t *p;
    size_t n;
};

static unsigned next(struct input *in)
{
    if (!in->n)
        return 0;
    in->n--;
    return *in->p++;
}

static void change(struct input *in, uint8_t *p, ssize_t n)
{
    unsigned at = next(in) << 8 | next(in), value = next(in);
    if (n > 0)
        p[at % (unsigned)n] ^= (uint8_t)(value ? value : 1);
}

static void act(unsigned op)
{
    int i = op % STREAMS;
    struct stream *s = w.streams[i];
    if (!s) {
        open_stream(i);
    } else if (op < 232) {
        stream_reset(s);
        w.streams[i] = NULL;
    } else if (op < 240) {
        stream_close(s);
        w.streams[i] = NULL;
    } else if (op < 248) {
        stream_pause(s);
    } else {
        stream_resume(s);
    }
}

static void step(struct input *in)
{
    static uint8_t p[PACKET_MAX];
    unsigned op = next(in);
    ssize_t n;
    if (op < 64) {
        size_t want = (next(in) << 8 | next(in)) % 2000;
        size_t k = MIN(want, in->n);
        to_server(in->p, k);
        in->p += k;
        in->n -= k;
    } else if (op < 96) {
        n = from_client(p);
        change(in, p, n);
        if (n >= 0)
            to_server(p, (size_t)n);
    } else if (op < 128) {
        n = from_server(p);
        change(in, p, n);
        if (n >= 0)
            to_client(p, (size_t)n);
    } else if (op < 160) {
        while ((n = from_client(p)) >= 0)
            to_server(p, (size_t)n);
        turn();
        while ((n = from_server(p)) >= 0)
            to_client(p, (size_t)n);
    } else if (op < 192) {
        (void)(op & 1 ? from_client(p) : from_server(p));
    } else if (op < 224) {
        struct stream *s = w.streams[op % STREAMS];
        unsigned len = next(in);
        memset(p, 'x', len);
        if (s)
            (void)stream_write(s, p, len);
    } else {
        act(op);
    }
    turn();
}

static void begin(void)
{
    struct err e;
    int fd;
    struct addr other;
    memset(&w, 0, sizeof w);
    must(addr_parse_ip(slice_str("127.0.0.1"), 0, &w.server));
    must(quic_host_new(&w.host, loop, &e) == 0);
    must(quic_sockets_open(&fd, 1, false, &w.server, &e) == 0);
    must(addr_of_self(fd, &w.server) == 0);
    struct quic_listener_params p = {
        .fd = fd,
        .n_workers = 1,
        .shared = shared,
        .tls = server_tls,
        .limits = {.windows = {65536, 1 << 20, 1 << 20, 16 << 20},
                   .max_streams = 4,
                   .retry_above = 2,
                   .idle_timeout_us = 10 * 1000000,
                   .handshake_timeout_us = 10 * 1000000},
        .on_stream = on_stream,
    };
    must(quic_listener_new(&w.listener, w.host, &p, &e) == 0);
    w.middle_c = udp(&w.at);
    w.middle_s = udp(&other);
    struct quic_connect_params c = {
        .tls = client_tls,
        .host = "localhost",
        .is_tunnel = true,
        .idle_timeout_us = 10 * 1000000,
        .handshake_timeout_us = 10 * 1000000,
    };
    must(quic_connect(&w.conn, w.host, &w.at, &c, &conn_handler, NULL, &e) ==
         0);
    turn();
}

static void end(void)
{
    for (int i = 0; i < STREAMS; i++)
        if (w.streams[i]) {
            stream_close(w.streams[i]);
            w.streams[i] = NULL;
        }
    quic_host_free(w.host);
    close(w.middle_c);
    close(w.middle_s);
    turn();
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct err e;
    certs_make_dir();
    struct cert cert = cert_new("s", "localhost", "DNS:localhost", NULL, 30);
    struct quic_tls_params s = {
        .prefix = "s", .cert_file = cert.cert_file, .key_file = cert.key_file};
    struct quic_tls_params c = {.prefix = "c", .no_verify = true};
    struct log_config quiet = {.to_stderr = false};
    must(log_start(&quiet, &e) == 0);
    must(loop_new(&loop, NULL, &e) == 0);
    must(quic_shared_new(&shared, NULL, &e) == 0);
    must(quic_tls_new_server(&server_tls, shared, &s, &e) == 0);
    must(quic_tls_new_client(&client_tls, &c, &e) == 0);
    cert_free(&cert);
    certs_remove_dir();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    begin();
    for (int i = 0; in.n && i < STEPS_MAX; i++)
        step(&in);
    end();
    return 0;
}
