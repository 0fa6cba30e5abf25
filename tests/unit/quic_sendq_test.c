/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "net/quic_sendq.h"

static int put(struct quic_sendq *q, struct quic_chunks *p, const void *bytes,
               size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    return quic_sendq_put(q, p, &iov, 1);
}

static void test_empty_holds_nothing(void **state)
{
    struct quic_chunks p;
    struct quic_sendq q = {0};
    quic_chunks_init(&p);
    assert_int_equal(put(&q, &p, "hello", 5), 0);
    assert_int_equal(quic_sendq_unsent(&q), 5);
    quic_sendq_mark_sent(&q, 5);
    assert_int_equal(quic_sendq_unsent(&q), 0);
    assert_non_null(q.head);
    quic_sendq_ack(&q, &p, 5);
    assert_null(q.head);
    assert_null(q.tail);
    quic_chunks_fini(&p);
}

/* What was sent stays in its place until it is acknowledged. */
static void test_bytes_do_not_move(void **state)
{
    struct quic_chunks p;
    struct quic_sendq q = {0};
    struct iovec iov[64];
    quic_chunks_init(&p);
    assert_int_equal(put(&q, &p, "abc", 3), 0);
    assert_int_equal(quic_sendq_peek(&q, iov, 64), 1);
    char *first = iov[0].iov_base;
    quic_sendq_mark_sent(&q, 3);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(put(&q, &p, "defghijklm", 10), 0);
    assert_memory_equal(first, "abc", 3);
    quic_sendq_clear(&q, &p);
    assert_int_equal(quic_sendq_unsent(&q), 0);
    quic_chunks_fini(&p);
}

/* Random writing, sending and acknowledging against a plain array. */
static void test_random(void **state)
{
    enum { ALL = 1 << 20 };
    struct quic_chunks p;
    struct quic_sendq q = {0};
    unsigned seed = 3;
    char *all = malloc(ALL);
    assert_non_null(all);
    for (int i = 0; i < ALL; i++)
        all[i] = (char)rand_r(&seed);
    quic_chunks_init(&p);
    while (q.acked < ALL) {
        size_t n = (size_t)(rand_r(&seed) % 5000);
        struct iovec iov[4];
        switch (rand_r(&seed) % 3) {
        case 0:
            n = MIN(n, (size_t)(ALL - q.end));
            assert_int_equal(put(&q, &p, all + q.end, n), 0);
            break;
        case 1: {
            int k = quic_sendq_peek(&q, iov, 4);
            size_t have = 0;
            for (int i = 0; i < k; i++) {
                assert_memory_equal(iov[i].iov_base, all + q.sent + have,
                                    iov[i].iov_len);
                have += iov[i].iov_len;
            }
            assert_true(k > 0 || quic_sendq_unsent(&q) == 0);
            quic_sendq_mark_sent(&q, MIN(n, have));
            break;
        }
        default:
            quic_sendq_ack(&q, &p,
                           q.acked + MIN(n, (size_t)(q.sent - q.acked)));
        }
    }
    assert_null(q.head);
    quic_chunks_fini(&p);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_holds_nothing),
        cmocka_unit_test(test_bytes_do_not_move),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
