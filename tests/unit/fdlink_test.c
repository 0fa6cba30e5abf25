/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/fdlink.h"

static void make_pair(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
}

static void test_frames_and_descriptors(void **state)
{
    int fd[2], pipe_fd[2];
    struct fdlink_frame f;
    struct err e;
    char c = 'x', got = 0;
    make_pair(fd);
    assert_int_equal(pipe(pipe_fd), 0);
    struct fdlink *a = fdlink_new(fd[0]), *b = fdlink_new(fd[1]);
    fdlink_send(a, 7, slice_str("hello"), -1);
    fdlink_send(a, 8, slice_of("", 0), pipe_fd[1]); /* taken */
    fdlink_send(a, 9, slice_str("bye"), -1);
    assert_int_equal(fdlink_receive(b, 1000, &f, &e), 0);
    assert_int_equal(f.type, 7);
    assert_true(slice_is(f.body, "hello") && f.fd < 0);
    assert_int_equal(fdlink_receive(b, 1000, &f, &e), 0);
    assert_true(f.type == 8 && f.body.n == 0 && f.fd >= 0);
    assert_int_equal(write(f.fd, &c, 1), 1);
    assert_int_equal(read(pipe_fd[0], &got, 1), 1);
    assert_int_equal(got, 'x');
    close(f.fd);
    assert_int_equal(read(pipe_fd[0], &got, 1), 0); /* no other is open */
    assert_int_equal(fdlink_receive(b, 1000, &f, &e), 0);
    assert_int_equal(f.type, 9);
    assert_int_equal(fdlink_receive(b, 10, &f, &e), ERR_TIMEOUT);
    fdlink_close(a);
    assert_int_equal(fdlink_receive(b, 1000, &f, &e), ERR_CLOSED);
    fdlink_close(b);
    close(pipe_fd[0]);
}

/* Sizes are what the peer says, not what is there. */
static void test_nonsense(void **state)
{
    static const uint8_t bad[][8] = {
        {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0}, /* too large */
        {0, 0, 0, 0, 1, 1, 0, 0},             /* a descriptor that is not */
        {0, 0, 0, 0, 1, 2, 0, 0},
        {0, 0, 0, 0, 1, 0, 1, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        int fd[2];
        struct fdlink_frame f;
        struct err e;
        make_pair(fd);
        struct fdlink *b = fdlink_new(fd[1]);
        assert_int_equal(write(fd[0], bad[i], sizeof bad[i]), 8);
        assert_int_equal(fdlink_receive(b, 1000, &f, &e), ERR_PROTO);
        fdlink_close(b);
        close(fd[0]);
    }
}

struct end {
    struct loop *loop;
    struct fdlink *link;
    int n_frames, n_lost;
    size_t n_bytes;
};

static void on_frame(void *arg, const struct fdlink_frame *f)
{
    struct end *end = arg;
    end->n_frames++;
    end->n_bytes += f->body.n;
    if (f->fd >= 0)
        close(f->fd);
}

static void on_lost(void *arg, const char *why)
{
    struct end *end = arg;
    end->n_lost++;
    fdlink_close(end->link);
    loop_stop(end->loop);
}

static const struct fdlink_handler handler = {on_frame, on_lost};

/* A process sends all it has and ends, while we still write to it: what it sent
 * counts, and then its end. */
static void test_what_was_sent_counts(void **state)
{
    enum { FRAMES = 5, BYTES = 3 << 20 };
    int fd[2];
    struct err e;
    struct end end = {0};
    char *body = calloc(1, BYTES);
    make_pair(fd);
    assert_int_equal(loop_new(&end.loop, NULL, &e), 0);
    end.link = fdlink_new(fd[1]);
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[1]);
        struct fdlink *a = fdlink_new(fd[0]);
        for (int i = 0; i < FRAMES; i++)
            fdlink_send(a, 1, slice_of(body, BYTES), i % 2 ? -1 : dup(2));
        fdlink_close(a);
        _exit(0);
    }
    close(fd[0]);
    fdlink_start(end.link, end.loop, &handler, &end);
    for (int i = 0; i < 100; i++)
        fdlink_send(end.link, 2, slice_of(body, BYTES / 16), -1);
    loop_run(end.loop);
    assert_int_equal(end.n_frames, FRAMES);
    assert_int_equal(end.n_bytes, (size_t)FRAMES * BYTES);
    assert_int_equal(end.n_lost, 1);
    loop_free(end.loop);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_and_descriptors),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_what_was_sent_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
