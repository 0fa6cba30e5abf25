/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Two TLS streams face each other, over streams in memory that can cut the
 * bytes as small as they like, or over a socket pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include "auth/cert.h"
#include "certs.h"
#include "net/tls.h"

static struct cert ca, other_ca, server_cert, client_cert, stranger_cert,
    ip_cert, old_cert;

/* --- streams in memory --------------------------------------------------- */

struct mem {
    struct stream s;
    struct mem *peer; /* NULL when it is closed */
    struct bufq in;
    struct task task;
    size_t chunk; /* bytes of one on_data() */
    bool has_eof;
    int n_writes;
    size_t n_bytes;
};

static bool in_call; /* inside a call into a TLS stream */

static struct mem *mem_of(const struct stream *s)
{
    return container_of(s, struct mem, s);
}

static void mem_deliver(struct task *task)
{
    struct mem *m = container_of(task, struct mem, task);
    struct loop *loop = m->s.loop;
    while (m->in.size && !m->s.is_paused && m->s.handler) {
        char *buf = loop_scratch(loop, 0);
        struct slice front = bufq_front(&m->in);
        size_t n = MIN(front.n, m->chunk);
        memcpy(buf, front.p, n);
        bufq_drop(&m->in, loop_pool(loop), n);
        m->s.handler->on_data(&m->s, buf, n);
        if (m->s.loop != loop)
            return; /* detached */
    }
    if (m->has_eof && !m->in.size && !m->s.is_paused && m->s.handler) {
        m->has_eof = false;
        m->s.handler->on_eof(&m->s);
    }
}

static void mem_wake(struct mem *m)
{
    if (m && m->s.loop)
        loop_defer(m->s.loop, &m->task);
}

static int mem_writev(struct stream *s, const struct iovec *iov, int n)
{
    struct mem *m = mem_of(s);
    if (!m->peer)
        return ERR_CLOSED;
    m->n_writes++;
    for (int i = 0; i < n; i++) {
        m->n_bytes += iov[i].iov_len;
        assert_int_equal(bufq_put(&m->peer->in, loop_pool(s->loop),
                                  iov[i].iov_base, iov[i].iov_len),
                         0);
    }
    mem_wake(m->peer);
    return 0;
}

static void mem_pause(struct stream *s)
{
    s->is_paused = true;
}

static void mem_resume(struct stream *s)
{
    s->is_paused = false;
    mem_wake(mem_of(s));
}

static void mem_shutdown(struct stream *s)
{
    struct mem *m = mem_of(s);
    if (m->peer)
        m->peer->has_eof = true;
    mem_wake(m->peer);
}

static void mem_close(struct stream *s)
{
    struct mem *m = mem_of(s);
    mem_shutdown(s);
    if (m->peer)
        m->peer->peer = NULL;
    s->handler = NULL;
    loop_cancel(&m->task);
    bufq_clear(&m->in, loop_pool(s->loop));
    loop_free_later(s->loop, m);
}

static int mem_detach(struct stream *s)
{
    loop_cancel(&mem_of(s)->task);
    s->loop = NULL;
    return 0;
}

static void mem_attach(struct stream *s, struct loop *loop)
{
    s->loop = loop;
    mem_wake(mem_of(s));
}

static int mem_fd(const struct stream *s)
{
    return -1;
}

static const struct stream_ops mem_ops = {
    .writev = mem_writev,
    .pause = mem_pause,
    .resume = mem_resume,
    .shutdown = mem_shutdown,
    .close = mem_close,
    .detach = mem_detach,
    .attach = mem_attach,
    .fd = mem_fd,
};

static struct mem *mem_stream(struct loop *loop, size_t chunk)
{
    struct mem *m = mem_new(sizeof *m);
    m->s.ops = &mem_ops;
    m->s.loop = loop;
    m->chunk = chunk;
    m->task.run = mem_deliver;
    list_init(&m->task.node);
    return m;
}

/* --- the two ends -------------------------------------------------------- */

struct world;

struct end {
    struct world *w;
    struct stream *s;
    struct mem *mem; /* below, in memory */
    bool is_open, has_eof, has_error;
    struct err err;
    size_t n_got, n_calls, n_drains;
    uint64_t sum; /* of what was got */
    char first[256];
    void (*hook)(struct end *end); /* in on_data() */
    size_t to_send;
    uint64_t sent_sum;
};

struct world {
    struct loop *loop;
    struct end a, b; /* a accepts, b connects */
    struct tls_ctx *actx, *bctx;
    struct task step_task;
    bool (*step)(struct world *w); /* true: end of the test */
    int phase, end_turns;
    size_t chunk;
    bool on_socket;
    const char *host, *alpn;
    bool is_direct;
};

static uint64_t sum_of(uint64_t sum, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum = sum * 31 + (uint8_t)p[i];
    return sum;
}

static void on_open(struct stream *s)
{
    struct end *end = s->owner;
    assert_false(in_call);
    end->is_open = true;
}

static void on_data(struct stream *s, const char *p, size_t n)
{
    struct end *end = s->owner;
    assert_false(in_call);
    assert_true(end->is_open && !end->has_eof && !end->has_error);
    for (size_t i = 0; i < n && end->n_got + i < sizeof end->first - 1; i++)
        end->first[end->n_got + i] = p[i];
    end->n_got += n;
    end->n_calls++;
    end->sum = sum_of(end->sum, p, n);
    if (end->hook)
        end->hook(end);
}

static void on_drain(struct stream *s)
{
    struct end *end = s->owner;
    assert_false(in_call);
    assert_int_equal(stream_pending(s), 0);
    end->n_drains++;
}

static void on_eof(struct stream *s)
{
    struct end *end = s->owner;
    assert_false(in_call || end->has_eof);
    end->has_eof = true;
}

static void on_error(struct stream *s, const struct err *e)
{
    struct end *end = s->owner;
    assert_false(in_call || end->has_error);
    end->has_error = true;
    end->err = *e;
}

static const struct stream_handler handler = {
    .on_open = on_open,
    .on_data = on_data,
    .on_drain = on_drain,
    .on_eof = on_eof,
    .on_error = on_error,
};

static const struct stream_handler no_handler = {0};

static int end_write(struct end *end, const char *p, size_t n)
{
    in_call = true;
    int rc = stream_write(end->s, p, n);
    in_call = false;
    return rc;
}

static void end_close(struct end *end)
{
    in_call = true;
    if (end->s)
        stream_close(end->s);
    end->s = NULL;
    in_call = false;
}

static struct tls_params
params_of(const struct cert *own, const struct cert *issuer, enum tls_mode mode)
{
    return (struct tls_params){.prefix = "t_tls",
                               .mode = mode,
                               .cert_file = own ? own->cert_file : NULL,
                               .key_file = own ? own->key_file : NULL,
                               .ca_file = issuer ? issuer->cert_file : NULL};
}

static void set_server(struct world *w, struct tls_params p)
{
    struct err e = {0};
    if (tls_ctx_new_server(&w->actx, &p, &e))
        fail_msg("%s", e.text);
}

static void set_client(struct world *w, struct tls_params p)
{
    struct err e = {0};
    if (tls_ctx_new_client(&w->bctx, &p, &e))
        fail_msg("%s", e.text);
}

/* Closed sockets linger until the other side has taken their last bytes. */
static void on_end_step(struct task *t)
{
    struct world *w = container_of(t, struct world, step_task);
    if (++w->end_turns < 300)
        loop_defer(w->loop, t);
    else
        loop_stop(w->loop);
}

static void on_step(struct task *t)
{
    struct world *w = container_of(t, struct world, step_task);
    if (w->step(w)) {
        end_close(&w->a);
        end_close(&w->b);
        t->run = on_end_step;
    }
    loop_defer(w->loop, t);
}

static void world_init(struct world *w, bool (*step)(struct world *w))
{
    struct err e;
    *w = (struct world){.step = step, .chunk = 65536};
    w->a.w = w->b.w = w;
    assert_int_equal(loop_new(&w->loop, w, &e), 0);
    list_init(&w->step_task.node);
    w->step_task.run = on_step;
    w->host = "localhost";
}

static void make_lowers(struct world *w, struct stream **a, struct stream **b)
{
    int fd[2];
    if (w->on_socket) {
        assert_int_equal(
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
        *a = sock_accepted(w->loop, fd[0], STREAM_UNIX, &no_handler, NULL);
        *b = sock_accepted(w->loop, fd[1], STREAM_UNIX, &no_handler, NULL);
        return;
    }
    w->a.mem = mem_stream(w->loop, w->chunk);
    w->b.mem = mem_stream(w->loop, w->chunk);
    w->a.mem->peer = w->b.mem;
    w->b.mem->peer = w->a.mem;
    *a = &w->a.mem->s;
    *b = &w->b.mem->s;
}

static void world_connect(struct world *w)
{
    struct stream *a, *b;
    make_lowers(w, &a, &b);
    in_call = true;
    w->a.s =
        tls_accept(a, w->actx, &handler, &w->a, slice_of("", 0), w->is_direct);
    w->b.s = tls_connect(b, w->bctx, w->host, w->alpn, &handler, &w->b);
    in_call = false;
}

static void world_run(struct world *w)
{
    alarm(30);
    loop_defer(w->loop, &w->step_task);
    loop_run(w->loop);
    alarm(0);
    loop_free(w->loop);
    tls_ctx_unref(w->actx);
    tls_ctx_unref(w->bctx);
}

/* --- happy paths --------------------------------------------------------- */

static void echo_hook(struct end *end)
{
    static const char text[] = "pong!";
    if (end->n_got == 5)
        assert_int_equal(end_write(end, text, 5), 0);
}

static bool ping_step(struct world *w)
{
    if (w->phase == 0 && w->b.is_open) {
        assert_int_equal(end_write(&w->b, "ping!", 5), 0);
        w->phase = 1;
    }
    assert_false(w->a.has_error || w->b.has_error);
    return w->b.n_got == 5;
}

static void ping(size_t chunk, bool on_socket)
{
    struct world w;
    world_init(&w, ping_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, &ca, TLS_MODE_VERIFY_FULL));
    w.chunk = chunk;
    w.on_socket = on_socket;
    w.a.hook = echo_hook;
    world_connect(&w);
    world_run(&w);
    assert_string_equal(w.a.first, "ping!");
    assert_string_equal(w.b.first, "pong!");
}

static void pings(void **state)
{
    ping(65536, false);
    ping(65536, true);
}

static void pings_byte_by_byte(void **state)
{
    ping(1, false);
    ping(2, false);
    ping(7, false);
}

static bool info_step(struct world *w)
{
    char name[CERT_NAME_MAX + 1];
    struct err e;
    assert_false(w->a.has_error || w->b.has_error);
    if (!w->a.is_open || !w->b.is_open)
        return false;
    const struct tls_info *a = stream_tls(w->a.s), *b = stream_tls(w->b.s);
    assert_string_equal(a->version, "TLSv1.3");
    assert_string_equal(a->cipher, b->cipher);
    assert_string_equal(a->alpn, "postgresql");
    assert_string_equal(b->alpn, "postgresql");
    assert_true(a->has_client_cert);
    assert_false(b->has_client_cert);
    assert_int_equal(cert_common_name(a->peer_cert, name, &e), 0);
    assert_string_equal(name, "alice");
    assert_int_equal(a->server_end_point.n, 32);
    assert_true(slice_eq(a->server_end_point, b->server_end_point));
    assert_int_equal(w->a.s->kind, STREAM_TLS);
    assert_true(w->on_socket == (stream_fd(w->a.s) >= 0));
    return true;
}

static void tells_what_was_agreed(void **state)
{
    struct world w;
    world_init(&w, info_step);
    set_server(&w, params_of(&server_cert, &ca, TLS_MODE_VERIFY_FULL));
    set_client(&w, params_of(&client_cert, &ca, TLS_MODE_VERIFY_FULL));
    w.alpn = TLS_ALPN_POSTGRESQL;
    w.is_direct = true;
    w.on_socket = true;
    world_connect(&w);
    assert_null(stream_tls(w.a.s));
    world_run(&w);
}

static bool tls12_step(struct world *w)
{
    assert_false(w->a.has_error || w->b.has_error);
    if (!w->a.is_open || !w->b.is_open)
        return false;
    assert_string_equal(stream_tls(w->a.s)->version, "TLSv1.2");
    assert_false(stream_tls(w->a.s)->has_client_cert);
    assert_string_equal(stream_tls(w->a.s)->alpn, "");
    return ping_step(w);
}

static void speaks_tls12(void **state)
{
    struct world w;
    world_init(&w, tls12_step);
    struct tls_params p = params_of(&server_cert, &ca, TLS_MODE_REQUIRE);
    p.protocols = "tlsv1.2";
    p.ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256";
    set_server(&w, p);
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    w.a.hook = echo_hook;
    w.chunk = 1;
    world_connect(&w);
    world_run(&w);
}

/* Direct TLS: the ClientHello was read before anyone knew what it is. */
static bool fed_step(struct world *w)
{
    if (w->phase == 0) {
        char hello[4096];
        size_t n = w->a.mem->in.size;
        assert_true(n > 100 && n < sizeof hello);
        for (size_t i = 0; i < n; i++) {
            hello[i] = *bufq_front(&w->a.mem->in).p;
            bufq_drop(&w->a.mem->in, NULL, 1);
        }
        in_call = true;
        w->a.s = tls_accept(&w->a.mem->s, w->actx, &handler, &w->a,
                            slice_of(hello, n), true);
        in_call = false;
        w->phase = 1;
    }
    assert_false(w->a.has_error || w->b.has_error);
    return w->a.is_open && w->b.is_open;
}

static void takes_bytes_read_before(void **state)
{
    struct world w;
    struct stream *a, *b;
    world_init(&w, fed_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    make_lowers(&w, &a, &b);
    stream_pause(a);
    w.b.s = tls_connect(b, w.bctx, "localhost", TLS_ALPN_POSTGRESQL, &handler,
                        &w.b);
    world_run(&w);
}

/* --- packing ------------------------------------------------------------- */

static bool pack_step(struct world *w)
{
    static char big[40000];
    struct iovec small[3] = {{big, 10}, {big, 20}, {big, 30}};
    struct iovec mixed[3] = {{big, 10}, {big, sizeof big}, {big, 30}};
    struct mem *m = w->b.mem;
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        m->n_writes = 0;
        m->n_bytes = 0;
        assert_int_equal(stream_writev(w->b.s, small, 3), 0);
        assert_int_equal(m->n_writes, 1);
        assert_in_range(m->n_bytes, 60, 60 + 40); /* one record */
        assert_int_equal(stream_writev(w->b.s, mixed, 3), 0);
        assert_int_equal(m->n_writes, 2);
        assert_int_equal(stream_writev(w->b.s, small, 0), 0);
        assert_int_equal(m->n_writes, 2);
        w->phase = 1;
    }
    return w->a.n_got == 60 + 40040;
}

static void packs_records_into_one_write(void **state)
{
    struct world w;
    world_init(&w, pack_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    world_connect(&w);
    world_run(&w);
    /* Both writes arrived in few pieces, not in one a record. */
    assert_in_range(w.a.n_calls, 1, 4);
}

/* --- bulk ---------------------------------------------------------------- */

enum { BULK_BYTES = 24 * 1024 * 1024 };

static void send_more(struct end *end)
{
    static char block[50000];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 7 + end->to_send);
    while (end->to_send && stream_pending(end->s) < STREAM_BACKLOG_HIGH) {
        size_t n = MIN(end->to_send, sizeof block);
        assert_int_equal(end_write(end, block, n), 0);
        end->sent_sum = sum_of(end->sent_sum, block, n);
        end->to_send -= n;
    }
}

/* Pauses often, so that the sender's backlog grows. */
static void pause_hook(struct end *end)
{
    if (end->n_calls % 3 == 0)
        stream_pause(end->s);
}

static bool bulk_step(struct world *w)
{
    assert_false(w->a.has_error || w->b.has_error);
    if (!w->a.is_open || !w->b.is_open)
        return false;
    send_more(&w->a);
    send_more(&w->b);
    if (w->phase++ % 5 == 0) {
        stream_resume(w->a.s);
        stream_resume(w->b.s);
    }
    return w->a.n_got == BULK_BYTES && w->b.n_got == BULK_BYTES &&
           !stream_pending(w->a.s) && !stream_pending(w->b.s);
}

static void carries_bulk_both_ways(void **state)
{
    struct world w;
    world_init(&w, bulk_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    w.on_socket = true;
    w.a.hook = w.b.hook = pause_hook;
    w.a.to_send = w.b.to_send = BULK_BYTES;
    world_connect(&w);
    world_run(&w);
    assert_true(w.a.sum == w.b.sent_sum);
    assert_true(w.b.sum == w.a.sent_sum);
    assert_true(w.a.n_drains > 0 && w.b.n_drains > 0);
}

/* A reader that is paused for good holds the sender back, and no more than a
 * scratch buffer arrives after the pause. */
static void pause_for_good(struct end *end)
{
    if (!end->sent_sum)
        end->sent_sum = end->n_got; /* what was there at the pause */
    stream_pause(end->s);
}

static bool stuck_step(struct world *w)
{
    if (!w->b.is_open)
        return false;
    send_more(&w->b);
    return ++w->phase > 200;
}

static void pause_holds_the_sender_back(void **state)
{
    struct world w;
    world_init(&w, stuck_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    w.on_socket = true;
    w.a.hook = pause_for_good;
    w.b.to_send = BULK_BYTES;
    world_connect(&w);
    world_run(&w);
    assert_true(w.b.to_send > BULK_BYTES / 2);
    assert_true(w.a.n_got - w.a.sent_sum <= LOOP_SCRATCH_BYTES);
}

/* --- ends ---------------------------------------------------------------- */

static bool notify_step(struct world *w)
{
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        assert_int_equal(end_write(&w->b, "bye", 3), 0);
        in_call = true;
        stream_shutdown(w->b.s);
        in_call = false;
        assert_int_equal(end_write(&w->b, "more", 4), ERR_CLOSED);
        w->phase = 1;
    }
    if (w->phase == 1 && w->a.has_eof) {
        /* The other direction still works. */
        assert_int_equal(end_write(&w->a, "answer", 6), 0);
        end_close(&w->a);
        w->phase = 2;
    }
    assert_false(w->a.has_error || w->b.has_error);
    return w->b.has_eof;
}

static void shutdown_ends_one_direction(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world w;
        world_init(&w, notify_step);
        set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
        set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
        w.on_socket = i == 1;
        world_connect(&w);
        world_run(&w);
        assert_string_equal(w.a.first, "bye");
        assert_string_equal(w.b.first, "answer");
    }
}

static bool raw_eof_step(struct world *w)
{
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        mem_shutdown(&w->b.mem->s);
        w->phase = 1;
    }
    return w->a.has_eof;
}

static void takes_an_end_without_notice(void **state)
{
    struct world w;
    world_init(&w, raw_eof_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    world_connect(&w);
    world_run(&w);
    assert_false(w.a.has_error);
}

static void close_hook(struct end *end)
{
    end_close(end);
}

static bool close_step(struct world *w)
{
    static char big[200000];
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        assert_int_equal(end_write(&w->b, big, sizeof big), 0);
        w->phase = 1;
    }
    return w->b.has_eof || w->b.has_error;
}

static void may_be_closed_while_reading(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world w;
        world_init(&w, close_step);
        set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
        set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
        w.on_socket = i == 1;
        w.a.hook = close_hook;
        world_connect(&w);
        world_run(&w);
        assert_int_equal(w.a.n_calls, 1);
    }
}

static bool idle_step(struct world *w)
{
    return ++w->phase > 3;
}

static void may_be_closed_at_once(void **state)
{
    struct world w;
    world_init(&w, idle_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    world_connect(&w);
    assert_int_equal(end_write(&w.b, "early", 5), ERR_CLOSED);
    end_close(&w.a);
    end_close(&w.b);
    world_run(&w);
    assert_false(w.a.has_error || w.b.has_error);
}

/* --- moving between loops ------------------------------------------------ */

static struct loop *elsewhere;

static void detach_hook(struct end *end)
{
    if (end->n_got == 5) {
        in_call = true;
        assert_int_equal(stream_detach(end->s), 0);
        in_call = false;
    }
}

static bool leave_step(struct world *w)
{
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        assert_int_equal(end_write(&w->b, "12345", 5), 0);
        w->phase = 1;
    } else if (w->phase == 1 && w->a.n_got == 5) {
        /* Arrives while the stream belongs to no loop. */
        assert_int_equal(end_write(&w->b, "678", 3), 0);
        assert_int_equal(stream_detach(w->b.s), 0);
        stream_attach(w->b.s, elsewhere);
        stream_attach(w->a.s, elsewhere);
        loop_stop(w->loop);
        w->loop = elsewhere;
        w->phase = 2;
    } else if (w->phase == 2 && w->a.n_got == 8) {
        assert_int_equal(end_write(&w->a, "back", 4), 0);
        w->phase = 3;
    }
    return w->b.n_got == 4;
}

static void moves_to_another_loop(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct world w;
        struct err e;
        world_init(&w, leave_step);
        struct loop *first = w.loop;
        assert_int_equal(loop_new(&elsewhere, NULL, &e), 0);
        set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
        set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
        w.on_socket = i == 1;
        w.a.hook = detach_hook;
        world_connect(&w);
        loop_defer(first, &w.step_task);
        alarm(30);
        loop_run(first);
        assert_int_equal(w.phase, 2);
        loop_free(first);
        world_run(&w);
        assert_string_equal(w.a.first, "12345678");
        assert_string_equal(w.b.first, "back");
    }
}

/* A server connection is lent from thread to thread while it reads: whoever
 * detaches it does not look at it again. */
enum { ROUNDS = 2000 };

struct loan {
    struct message m;
    struct end *end;
};

static struct loop *homes[2];

static void answer_here(struct end *end)
{
    assert_int_equal(stream_write(end->s, "pong!", 5), 0);
}

static void on_loan(struct message *m, void *loop_data)
{
    struct loan *loan = container_of(m, struct loan, m);
    struct end *end = loan->end;
    free(loan);
    stream_attach(end->s, loop_data == NULL ? homes[1] : homes[0]);
    answer_here(end);
}

/* A stream is not detached in its own callback. */
struct lending {
    struct task task;
    struct end *end;
};

static void lend(struct task *t)
{
    struct lending *l = container_of(t, struct lending, task);
    struct end *end = l->end;
    struct loop *at = end->s->loop;
    free(l);
    if (end->n_calls >= ROUNDS && at == homes[0]) {
        end_close(end);
        return;
    }
    if (stream_detach(end->s)) {
        answer_here(end);
        return;
    }
    struct loan *loan = mem_new(sizeof *loan);
    loan->m.handle = on_loan;
    loan->end = end;
    mailbox_send(homes[at == homes[0]], &loan->m);
}

static void lend_hook(struct end *end)
{
    struct lending *l = mem_new(sizeof *l);
    list_init(&l->task.node);
    l->task.run = lend;
    l->end = end;
    loop_defer(end->s->loop, &l->task);
}

static void ping_hook(struct end *end)
{
    assert_int_equal(stream_write(end->s, "ping!", 5), 0);
}

static bool lend_step(struct world *w)
{
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        w->a.hook = lend_hook;
        w->b.hook = ping_hook;
        w->phase = 1;
        assert_int_equal(stream_write(w->b.s, "ping!", 5), 0);
    }
    assert_false(w->b.has_error);
    return w->phase == 1 && w->b.has_eof;
}

static void *run_home(void *arg)
{
    loop_run(arg);
    return NULL;
}

static void moves_between_threads(void **state)
{
    struct world w;
    struct err e;
    pthread_t thread;
    world_init(&w, lend_step);
    homes[0] = w.loop;
    assert_int_equal(loop_new(&homes[1], NULL, &e), 0);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    w.on_socket = true;
    world_connect(&w);
    assert_int_equal(pthread_create(&thread, NULL, run_home, homes[1]), 0);
    world_run(&w);
    assert_true(w.a.n_calls >= ROUNDS);
    loop_stop(homes[1]);
    pthread_join(thread, NULL);
    loop_free(homes[1]);
}

/* --- failures ------------------------------------------------------------ */

static bool failed_step(struct world *w)
{
    if (w->a.has_error && w->phase == 0) {
        end_close(&w->a);
        w->phase = 1;
    }
    if (w->b.has_error && w->phase == 0) {
        end_close(&w->b);
        w->phase = 2;
    }
    return (w->a.has_error || w->a.has_eof || !w->a.s) &&
           (w->b.has_error || w->b.has_eof || !w->b.s) &&
           (w->a.has_error || w->b.has_error);
}

static void expect_text(const struct end *end, const char *text)
{
    if (text && (!end->has_error || !strstr(end->err.text, text)))
        fail_msg("\"%s\" is not in \"%s\"", text,
                 end->has_error ? end->err.text : "(no error)");
}

struct failure {
    struct tls_params server, client;
    const char *host, *alpn;
    bool is_direct;
    const char *a_says, *b_says;
};

static void expect_failure(const struct failure *f)
{
    static const size_t chunks[] = {65536, 1};
    for (size_t i = 0; i < ARRAY_SIZE(chunks); i++) {
        struct world w;
        world_init(&w, failed_step);
        set_server(&w, f->server);
        set_client(&w, f->client);
        w.host = f->host;
        w.alpn = f->alpn;
        w.is_direct = f->is_direct;
        w.chunk = chunks[i];
        world_connect(&w);
        world_run(&w);
        expect_text(&w.a, f->a_says);
        expect_text(&w.b, f->b_says);
    }
}

static void says_why_it_failed(void **state)
{
    struct tls_params server = params_of(&server_cert, NULL, TLS_MODE_REQUIRE);
    struct tls_params asking =
        params_of(&server_cert, &ca, TLS_MODE_VERIFY_FULL);
    struct tls_params any = params_of(NULL, NULL, TLS_MODE_REQUIRE);
    struct tls_params full = params_of(NULL, &ca, TLS_MODE_VERIFY_FULL);
    struct tls_params new_only = server, old_only = any;
    new_only.protocols = "tlsv1.3";
    old_only.protocols = "tlsv1.2";
    struct tls_params optional = asking;
    optional.mode = TLS_MODE_PREFER;
    const struct failure rows[] = {
        {.server = server,
         .client = params_of(NULL, &other_ca, TLS_MODE_VERIFY_CA),
         .host = "localhost",
         .a_says = "the peer refused: unknown CA",
         .b_says = "server certificate verify failed: unable to get"},
        {.server = server,
         .client = full,
         .host = "db.example.com",
         .b_says = "it is not for host \"db.example.com\""},
        {.server = server,
         .client = full,
         .host = "127.0.0.2",
         .b_says = "127.0.0.2"},
        {.server = server,
         .client = full,
         .host = NULL,
         .b_says = "not for host"},
        {.server = params_of(&old_cert, NULL, TLS_MODE_REQUIRE),
         .client = full,
         .host = "localhost",
         .a_says = "certificate expired",
         .b_says = "certificate has expired"},
        {.server = new_only,
         .client = old_only,
         .host = "localhost",
         .a_says = "no TLS version that both sides allow",
         .b_says = "the peer refused: protocol version"},
        {.server = asking,
         .client = any,
         .host = "localhost",
         .a_says = "peer did not return a certificate"},
        {.server = asking,
         .client = params_of(&stranger_cert, NULL, TLS_MODE_REQUIRE),
         .host = "localhost",
         .a_says = "client certificate verify failed"},
        {.server = optional,
         .client = params_of(&stranger_cert, NULL, TLS_MODE_REQUIRE),
         .host = "localhost",
         .a_says = "client certificate verify failed"},
        {.server = server,
         .client = any,
         .host = "localhost",
         .alpn = "h2",
         .a_says = "no application protocol",
         .b_says = "the peer refused: no application protocol"},
        {.server = server,
         .client = any,
         .host = "localhost",
         .is_direct = true,
         .a_says = "direct TLS needs ALPN"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        expect_failure(&rows[i]);
}

static bool verified_step(struct world *w)
{
    if (w->b.has_error)
        fail_msg("%s", w->b.err.text);
    return w->b.is_open;
}

static void verifies(const struct cert *cert, enum tls_mode mode,
                     const char *host)
{
    struct world w;
    world_init(&w, verified_step);
    set_server(&w, params_of(cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, &ca, mode));
    w.host = host;
    world_connect(&w);
    world_run(&w);
}

static void checks_names_as_asked(void **state)
{
    verifies(&server_cert, TLS_MODE_VERIFY_FULL, "localhost");
    verifies(&server_cert, TLS_MODE_VERIFY_FULL, "LOCALHOST");
    verifies(&server_cert, TLS_MODE_VERIFY_FULL, "a.wild.test");
    verifies(&server_cert, TLS_MODE_VERIFY_FULL, "127.0.0.1");
    verifies(&server_cert, TLS_MODE_VERIFY_FULL, "::1");
    verifies(&ip_cert, TLS_MODE_VERIFY_FULL, "10.9.8.7");
    verifies(&server_cert, TLS_MODE_VERIFY_CA, "elsewhere");
    verifies(&server_cert, TLS_MODE_VERIFY_CA, NULL);
    verifies(&old_cert, TLS_MODE_REQUIRE, "elsewhere");
}

static bool garbage_step(struct world *w)
{
    static const char garbage[] = "GET / HTTP/1.0\r\n\r\n";
    struct iovec iov = {(void *)(uintptr_t)garbage, sizeof garbage - 1};
    if (w->phase == 0) {
        assert_int_equal(mem_writev(&w->b.mem->s, &iov, 1), 0);
        w->phase = 1;
    }
    return w->a.has_error;
}

static void refuses_what_is_no_tls(void **state)
{
    struct world w;
    struct stream *a, *b;
    world_init(&w, garbage_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    make_lowers(&w, &a, &b);
    stream_set_owner(b, &no_handler, NULL);
    w.b.s = b;
    b->is_paused = true;
    w.a.s = tls_accept(a, w.actx, &handler, &w.a, slice_of("", 0), false);
    world_run(&w);
    expect_text(&w.a, "the client does not speak TLS");
}

static bool wait_error_step(struct world *w)
{
    return w->a.has_error;
}

/* The error of a start that failed comes from the loop all the same. */
static void bad_first_bytes_are_told_later(void **state)
{
    struct world w;
    struct stream *a, *b;
    world_init(&w, wait_error_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    make_lowers(&w, &a, &b);
    stream_set_owner(b, &no_handler, NULL);
    w.b.s = b;
    b->is_paused = true;
    in_call = true;
    w.a.s = tls_accept(a, w.actx, &handler, &w.a,
                       slice_of("\x16\x03\x01\0\5hello world", 16), true);
    in_call = false;
    assert_false(w.a.has_error);
    world_run(&w);
    expect_text(&w.a, "TLS handshake");
}

static void tells_of_an_end_in_the_handshake(void **state)
{
    struct world w;
    struct stream *a, *b;
    world_init(&w, wait_error_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    make_lowers(&w, &a, &b);
    w.a.s = tls_accept(a, w.actx, &handler, &w.a, slice_of("", 0), false);
    stream_set_owner(b, &no_handler, NULL);
    stream_close(b);
    world_run(&w);
    expect_text(&w.a, "the peer closed the connection");
}

/* A record that was tampered with ends the session. */
static bool tamper_step(struct world *w)
{
    if (w->phase == 0 && w->a.is_open && w->b.is_open) {
        char record[] = "\x17\x03\x03\0\x20................................";
        struct iovec iov = {record, 5 + 32};
        assert_int_equal(end_write(&w->b, "good", 4), 0);
        assert_int_equal(mem_writev(&w->b.mem->s, &iov, 1), 0);
        w->phase = 1;
    }
    if (w->a.has_error && w->phase == 1) {
        assert_int_equal(end_write(&w->a, "x", 1), ERR_CLOSED);
        end_close(&w->a);
        w->phase = 2;
    }
    return w->b.has_error;
}

static void detects_tampering(void **state)
{
    struct world w;
    world_init(&w, tamper_step);
    set_server(&w, params_of(&server_cert, NULL, TLS_MODE_REQUIRE));
    set_client(&w, params_of(NULL, NULL, TLS_MODE_REQUIRE));
    world_connect(&w);
    world_run(&w);
    assert_string_equal(w.a.first, "good");
    expect_text(&w.a, "bad record mac");
    expect_text(&w.b, "the peer refused: bad record mac");
}

/* --- contexts ------------------------------------------------------------ */

static void expect_conf_error(bool server, struct tls_params p,
                              const char *text)
{
    struct tls_ctx *ctx;
    struct err e = {0};
    int rc = server ? tls_ctx_new_server(&ctx, &p, &e)
                    : tls_ctx_new_client(&ctx, &p, &e);
    assert_int_equal(rc, ERR_CONF);
    assert_null(ctx);
    if (!strstr(e.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, e.text);
}

static void names_what_is_wrong_with_options(void **state)
{
    struct tls_params good = params_of(&server_cert, &ca, TLS_MODE_REQUIRE);
    struct tls_params p = good;
    p.key_file = NULL;
    expect_conf_error(true, p, "needs both t_tls_key_file and");
    expect_conf_error(false, p, "t_tls_cert_file: needs t_tls_key_file");
    p = good;
    p.cert_file = "/nonexistent/x.crt";
    expect_conf_error(true, p,
                      "t_tls_cert_file \"/nonexistent/x.crt\": No such file");
    p = good;
    p.cert_file = server_cert.key_file;
    expect_conf_error(true, p, "t_tls_cert_file");
    expect_conf_error(true, p, "no start line");
    p = good;
    p.key_file = client_cert.key_file;
    expect_conf_error(true, p, "key values mismatch");
    p = good;
    p.ca_file = server_cert.key_file;
    expect_conf_error(true, p, "t_tls_ca_file");
    p = good;
    p.protocols = "tlsv1.4";
    expect_conf_error(true, p, "t_tls_protocols \"tlsv1.4\": use");
    p.protocols = "tlsv1.2,";
    expect_conf_error(true, p, "t_tls_protocols");
    p.protocols = "!all";
    expect_conf_error(true, p, "t_tls_protocols");
    p = good;
    p.ciphers = "nonsense";
    expect_conf_error(true, p, "t_tls_ciphers \"nonsense\": no cipher match");
    p = good;
    p.tls13_ciphers = "nonsense";
    expect_conf_error(true, p, "t_tls_tls13_ciphers");
    p = good;
    p.ecdhcurve = "nonsense";
    expect_conf_error(true, p, "t_tls_ecdhcurve \"nonsense\"");
    p = good;
    p.dheparams = "nonsense";
    expect_conf_error(true, p, "t_tls_dheparams \"nonsense\"");
    p = good;
    p.mode = TLS_MODE_VERIFY_CA;
    p.ca_file = "";
    expect_conf_error(true, p, "need t_tls_ca_file");
}

static void takes_the_words_of_the_options(void **state)
{
    static const char *const protocols[] = {
        "secure",  "all", "legacy",          "tlsv1.2",      "tlsv1.2,tlsv1.3",
        "TLSv1.3", "",    "tlsv1.0,tlsv1.3", "all:!tlsv1.0", "!tlsv1.3"};
    static const char *const ciphers[] = {"default", "secure", "fast",
                                          "normal",  "compat", "legacy",
                                          "all",     "HIGH",   ""};
    static const char *const curves[] = {"auto", "none", "prime256v1",
                                         "X25519:P-256", ""};
    static const char *const dhs[] = {"auto", "none", "legacy", ""};
    struct err e = {0};
    for (int i = 0; i < 10; i++) {
        struct tls_ctx *ctx;
        struct tls_params p = params_of(&server_cert, &ca, TLS_MODE_REQUIRE);
        p.protocols = protocols[i];
        p.ciphers = ciphers[i % 9];
        p.ecdhcurve = curves[i % 5];
        p.dheparams = dhs[i % 4];
        if (tls_ctx_new_server(&ctx, &p, &e))
            fail_msg("%s", e.text);
        assert_ptr_equal(tls_ctx_ref(ctx), ctx);
        tls_ctx_unref(ctx);
        tls_ctx_unref(ctx);
        if (tls_ctx_new_client(&ctx, &p, &e))
            fail_msg("%s", e.text);
        tls_ctx_unref(ctx);
    }
}

/* --- session tickets ----------------------------------------------------- */

static int shake_raw(struct world *w, SSL *ssl, BIO *net)
{
    char buf[8192];
    int rc = SSL_do_handshake(ssl);
    int n = BIO_read(net, buf, sizeof buf);
    struct iovec iov = {buf, (size_t)MAX(n, 0)};
    if (n > 0)
        assert_int_equal(mem_writev(&w->b.mem->s, &iov, 1), 0);
    return rc;
}

static SSL *raw_client;
static BIO *raw_net;

static void on_raw_data(struct stream *s, const char *p, size_t n)
{
    assert_int_equal(BIO_write(raw_net, p, (int)n), (int)n);
}

static const struct stream_handler raw_handler = {.on_data = on_raw_data};

static bool ticket_step(struct world *w)
{
    char byte;
    bool is_done = shake_raw(w, raw_client, raw_net) == 1;
    if (w->a.has_error)
        fail_msg("%s", w->a.err.text);
    if (w->a.is_open)
        assert_true(stream_tls(w->a.s)->has_client_cert);
    if (is_done && w->phase < 20) {
        w->phase++; /* the ticket comes after the handshake */
        (void)SSL_read(raw_client, &byte, 1);
    }
    return w->a.is_open && w->phase == 20;
}

static SSL_SESSION *session_with(struct tls_ctx *ctx, SSL_CTX *raw,
                                 SSL_SESSION *old, bool *reused)
{
    struct world w;
    struct stream *a, *b;
    BIO *inner;
    world_init(&w, ticket_step);
    make_lowers(&w, &a, &b);
    w.actx = tls_ctx_ref(ctx);
    w.a.s = tls_accept(a, ctx, &handler, &w.a, slice_of("", 0), false);
    stream_set_owner(b, &raw_handler, NULL);
    raw_client = SSL_new(raw);
    SSL_set_connect_state(raw_client);
    assert_true(BIO_new_bio_pair(&inner, 65536, &raw_net, 65536));
    SSL_set_bio(raw_client, inner, inner);
    if (old)
        SSL_set_session(raw_client, old);
    w.b.s = b;
    world_run(&w);
    *reused = SSL_session_reused(raw_client);
    SSL_SESSION *session = SSL_get1_session(raw_client);
    SSL_shutdown(raw_client);
    SSL_free(raw_client);
    BIO_free(raw_net);
    return session;
}

static void sessions_are_resumed(void **state)
{
    struct tls_ctx *ctx, *after_reload;
    struct err e;
    struct tls_params p = params_of(&server_cert, &ca, TLS_MODE_VERIFY_FULL);
    bool reused;
    assert_int_equal(tls_ctx_new_server(&ctx, &p, &e), 0);
    assert_int_equal(tls_ctx_new_server(&after_reload, &p, &e), 0);
    SSL_CTX *raw = SSL_CTX_new(TLS_client_method());
    SSL_CTX_use_certificate(raw, client_cert.cert);
    SSL_CTX_use_PrivateKey(raw, client_cert.key);
    SSL_SESSION *first = session_with(ctx, raw, NULL, &reused);
    assert_false(reused);
    SSL_SESSION *second = session_with(ctx, raw, first, &reused);
    assert_true(reused);
    SSL_SESSION *third = session_with(after_reload, raw, second, &reused);
    assert_false(reused);
    SSL_SESSION_free(first);
    SSL_SESSION_free(second);
    SSL_SESSION_free(third);
    SSL_CTX_free(raw);
    tls_ctx_unref(ctx);
    tls_ctx_unref(after_reload);
}

static int make_certs(void **state)
{
    certs_make_dir();
    ca = cert_new("ca", "Test CA", NULL, NULL, 10);
    other_ca = cert_new("other", "Other CA", NULL, NULL, 10);
    server_cert =
        cert_new("server", "db",
                 "DNS:localhost,DNS:*.wild.test,IP:127.0.0.1,IP:::1", &ca, 10);
    client_cert = cert_new("client", "alice", NULL, &ca, 10);
    stranger_cert = cert_new("stranger", "alice", NULL, &other_ca, 10);
    ip_cert = cert_new("ip", "10.9.8.7", NULL, &ca, 10);
    old_cert = cert_new("old", "db", "DNS:localhost", &ca, -1);
    return 0;
}

static int remove_certs(void **state)
{
    cert_free(&ca);
    cert_free(&other_ca);
    cert_free(&server_cert);
    cert_free(&client_cert);
    cert_free(&stranger_cert);
    cert_free(&ip_cert);
    cert_free(&old_cert);
    certs_remove_dir();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pings),
        cmocka_unit_test(pings_byte_by_byte),
        cmocka_unit_test(tells_what_was_agreed),
        cmocka_unit_test(speaks_tls12),
        cmocka_unit_test(takes_bytes_read_before),
        cmocka_unit_test(packs_records_into_one_write),
        cmocka_unit_test(carries_bulk_both_ways),
        cmocka_unit_test(pause_holds_the_sender_back),
        cmocka_unit_test(shutdown_ends_one_direction),
        cmocka_unit_test(takes_an_end_without_notice),
        cmocka_unit_test(may_be_closed_while_reading),
        cmocka_unit_test(may_be_closed_at_once),
        cmocka_unit_test(moves_to_another_loop),
        cmocka_unit_test(moves_between_threads),
        cmocka_unit_test(says_why_it_failed),
        cmocka_unit_test(checks_names_as_asked),
        cmocka_unit_test(refuses_what_is_no_tls),
        cmocka_unit_test(bad_first_bytes_are_told_later),
        cmocka_unit_test(tells_of_an_end_in_the_handshake),
        cmocka_unit_test(detects_tampering),
        cmocka_unit_test(names_what_is_wrong_with_options),
        cmocka_unit_test(takes_the_words_of_the_options),
        cmocka_unit_test(sessions_are_resumed),
    };
    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
