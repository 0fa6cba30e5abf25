/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The queue of what a server owes, step by step, and against a small server
 * that follows the protocol's rules on random streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "pg/pg_proto.h"
#include "pg/pg_track.h"

static struct pg_track t;

static int set_up(void **state)
{
    pg_track_init(&t);
    return 0;
}

static int tear_down(void **state)
{
    pg_track_fini(&t);
    return 0;
}

static bool push(enum track_kind kind, unsigned flags)
{
    return pg_track_push(&t, (struct track_entry){.kind = (uint8_t)kind,
                                                  .flags = (uint8_t)flags});
}

static struct track_reply reply(char type)
{
    struct track_reply r;
    assert_int_equal(pg_track_reply(&t, type, 'I', &r), 0);
    return r;
}

static void ready(char status)
{
    struct track_reply r;
    assert_int_equal(pg_track_reply(&t, 'Z', status, &r), 0);
    assert_true(r.has_entry);
}

static void refused(char type)
{
    struct track_reply r;
    assert_int_equal(pg_track_reply(&t, type, 'I', &r), ERR_PROTO);
}

static void answers(char type, enum track_kind kind)
{
    struct track_reply r = reply(type);
    assert_true(r.has_entry);
    assert_false(r.has_failed);
    assert_int_equal(r.entry.kind, kind);
}

static void skips(const char *kinds)
{
    struct track_entry e;
    for (; *kinds; kinds++) {
        assert_true(pg_track_skip(&t, &e));
        assert_int_equal(e.kind, *kinds - '0');
    }
    assert_false(pg_track_skip(&t, &e));
}

static void test_simple_query(void **state)
{
    assert_true(pg_track_is_idle(&t));
    assert_true(push(TRACK_QUERY, TRACK_BARRIER));
    assert_false(pg_track_is_idle(&t));
    assert_int_equal(t.n_barriers, 1);
    assert_false(reply('T').has_entry);
    assert_false(reply('D').has_entry);
    assert_false(reply('C').has_entry);
    assert_false(reply('I').has_entry);
    assert_false(reply('E').has_failed);
    ready('T');
    assert_false(pg_track_is_idle(&t));
    assert_int_equal(t.n_barriers, 0);
    assert_true(push(TRACK_QUERY, 0));
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

static void test_batch(void **state)
{
    push(TRACK_PARSE, 0);
    push(TRACK_BIND, 0);
    push(TRACK_DESCRIBE, 0);
    push(TRACK_EXECUTE, 0);
    push(TRACK_EXECUTE, 0);
    push(TRACK_EXECUTE, 0);
    push(TRACK_DESCRIBE, 0);
    push(TRACK_CLOSE, 0);
    assert_true(t.has_unsynced);
    push(TRACK_SYNC, 0);
    assert_false(t.has_unsynced);
    answers('1', TRACK_PARSE);
    answers('2', TRACK_BIND);
    assert_false(reply('t').has_entry);
    answers('T', TRACK_DESCRIBE);
    assert_false(reply('D').has_entry);
    assert_false(reply('N').has_entry);
    assert_false(reply('S').has_entry);
    assert_false(reply('A').has_entry);
    answers('C', TRACK_EXECUTE);
    answers('s', TRACK_EXECUTE);
    answers('I', TRACK_EXECUTE);
    answers('n', TRACK_DESCRIBE);
    answers('3', TRACK_CLOSE);
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

static void test_error_skips_to_sync(void **state)
{
    push(TRACK_PARSE, 0);
    push(TRACK_BIND, TRACK_BARRIER);
    push(TRACK_QUERY, TRACK_BARRIER);
    push(TRACK_SYNC, 0);
    push(TRACK_PARSE, 0);
    push(TRACK_SYNC, 0);
    assert_int_equal(t.n_barriers, 2);
    struct track_reply r = reply('E');
    assert_true(r.has_entry && r.has_failed);
    assert_int_equal(r.entry.kind, TRACK_PARSE);
    skips("04"); /* Query, Bind: the newest first */
    assert_int_equal(t.n_barriers, 0);
    assert_false(t.is_skipping);
    ready('I');
    answers('1', TRACK_PARSE);
    ready('I');
}

static void test_error_before_the_sync_is_sent(void **state)
{
    push(TRACK_PARSE, 0);
    push(TRACK_BIND, 0);
    assert_true(reply('E').has_failed);
    skips("4");
    assert_true(t.is_skipping);
    assert_false(pg_track_is_idle(&t));
    assert_false(push(TRACK_EXECUTE, 0));
    assert_false(push(TRACK_QUERY, TRACK_BARRIER));
    assert_int_equal(t.n_barriers, 0);
    assert_true(push(TRACK_SYNC, 0));
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

static void test_virtual_replies_keep_their_place(void **state)
{
    struct track_entry e;
    push(TRACK_PARSE, TRACK_VIRTUAL);
    push(TRACK_BIND, 0);
    push(TRACK_CLOSE, TRACK_VIRTUAL);
    push(TRACK_PARSE, TRACK_VIRTUAL);
    push(TRACK_SYNC, 0);
    assert_true(pg_track_pop_local(&t, &e));
    assert_int_equal(e.kind, TRACK_PARSE);
    assert_false(pg_track_pop_local(&t, &e));
    answers('2', TRACK_BIND);
    assert_true(pg_track_pop_local(&t, &e));
    assert_int_equal(e.kind, TRACK_CLOSE);
    assert_true(pg_track_pop_local(&t, &e));
    assert_false(pg_track_pop_local(&t, &e));
    ready('I');
}

static void test_virtual_is_skipped_with_its_batch(void **state)
{
    push(TRACK_BIND, 0);
    push(TRACK_PARSE, TRACK_VIRTUAL);
    push(TRACK_SYNC, 0);
    assert_true(reply('E').has_failed);
    skips("3");
    ready('I');
}

static void test_copy_in_by_query(void **state)
{
    struct track_entry e;
    push(TRACK_QUERY, 0);
    assert_false(reply('G').has_entry);
    assert_true(t.in_copy_in);
    assert_false(push(TRACK_SYNC, 0)); /* ignored by the server */
    assert_false(push(TRACK_COPY_END, 0));
    assert_false(t.in_copy_in);
    assert_false(push(TRACK_COPY_END, 0)); /* a second one: kept for later */
    reply('C');
    ready('I');
    while (pg_track_pop_local(&t, &e))
        ;
    assert_true(pg_track_is_idle(&t));
}

/* As libpq does it: Sync behind Execute, ignored, and one behind CopyDone. */
static void test_copy_in_extended(void **state)
{
    push(TRACK_EXECUTE, 0);
    push(TRACK_SYNC, 0);
    push(TRACK_COPY_END, 0);
    push(TRACK_SYNC, 0);
    reply('G');
    assert_false(t.in_copy_in);
    answers('C', TRACK_EXECUTE);
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

/* The same, with the COPY still running when it is reported. */
static void test_copy_in_sync_taken_out(void **state)
{
    push(TRACK_EXECUTE, 0);
    push(TRACK_SYNC, 0);
    reply('G');
    assert_true(t.in_copy_in);
    assert_true(t.has_unsynced);
    assert_false(push(TRACK_COPY_END, 0));
    assert_true(push(TRACK_SYNC, 0));
    answers('C', TRACK_EXECUTE);
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

/* COPY that never began: its data and its end mean nothing. */
static void test_copy_end_without_copy(void **state)
{
    struct track_entry e;
    push(TRACK_QUERY, 0);
    push(TRACK_COPY_END, 0);
    push(TRACK_QUERY, 0);
    reply('E');
    ready('I');
    assert_true(pg_track_pop_local(&t, &e));
    assert_int_equal(e.kind, TRACK_COPY_END);
    ready('I');
    assert_true(pg_track_is_idle(&t));
    assert_false(push(TRACK_COPY_END, 0));
    assert_true(pg_track_is_idle(&t));
}

static void test_copy_fails(void **state)
{
    push(TRACK_EXECUTE, 0);
    reply('G');
    assert_true(reply('E').has_failed);
    skips("");
    assert_false(t.in_copy_in);
    assert_true(t.is_skipping);
    assert_false(push(TRACK_COPY_END, 0));
    assert_true(push(TRACK_SYNC, 0));
    ready('I');
    assert_true(pg_track_is_idle(&t));
}

static void test_refuses_what_was_not_asked(void **state)
{
    for (const char *p = "123TDCIsntGHWdcVZ"; *p; p++)
        refused(*p);
    for (const char *p = "xRKv\xff@"; *p; p++)
        refused(*p);
    reply('N');
    reply('S');
    reply('A');
    push(TRACK_BIND, 0);
    refused('1');
    refused('3');
    refused('Z');
    push(TRACK_SYNC, 0);
    answers('2', TRACK_BIND);
    refused('2');
    ready('I');
}

static void test_find(void **state)
{
    struct track_entry e;
    push(TRACK_PARSE, TRACK_UNNAMED);
    push(TRACK_PARSE, TRACK_UNNAMED | TRACK_OURS);
    push(TRACK_SYNC, 0);
    push(TRACK_CLOSE, TRACK_UNNAMED);
    assert_ptr_equal(pg_track_find(&t, TRACK_UNNAMED, TRACK_OURS),
                     pg_track_front(&t));
    assert_int_equal(pg_track_find(&t, TRACK_UNNAMED | TRACK_OURS, 0)->kind,
                     TRACK_PARSE);
    assert_null(pg_track_find(&t, TRACK_DUP, 0));
    reply('E');
    /* What is being skipped is not found. */
    assert_true(pg_track_skip(&t, &e));
    assert_int_equal(pg_track_find(&t, TRACK_UNNAMED, TRACK_OURS)->kind,
                     TRACK_CLOSE);
    assert_false(pg_track_skip(&t, &e));
    assert_int_equal(pg_track_find(&t, TRACK_UNNAMED, TRACK_OURS)->kind,
                     TRACK_CLOSE);
}

static void test_growth_keeps_order(void **state)
{
    struct track_entry e;
    uintptr_t in = 0, out = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < 5 + round * 7; i++)
            pg_track_push(&t, (struct track_entry){.kind = TRACK_BIND,
                                                   .tag = (void *)in++});
        for (int i = 0; i < 3 + round * 5; i++) {
            struct track_reply r = reply('2');
            assert_ptr_equal(r.entry.tag, (void *)out++);
        }
    }
    while (pg_track_drain(&t, &e))
        assert_ptr_equal(e.tag, (void *)--in);
    assert_int_equal(in, out);
}

static void test_serials_differ(void **state)
{
    push(TRACK_PARSE, 0);
    struct track_reply a, b;
    push(TRACK_PARSE, 0);
    a = reply('1');
    b = reply('1');
    assert_int_equal(a.entry.epoch, b.entry.epoch);
    assert_int_not_equal(a.entry.serial, b.entry.serial);
    assert_int_equal(b.entry.serial, t.serial);
}

/* ------------------------------------------------------- against a server */

static uint32_t state32;

static unsigned dice(unsigned n)
{
    state32 = state32 * 1664525 + 1013904223;
    return (state32 >> 8) % n;
}

/* Requests on their way, and a server that answers in order. */
static struct {
    uint8_t kind[64];
    int n;
    bool is_skipping;
} sv;

static void send_one(void)
{
    static const enum track_kind kinds[] = {
        TRACK_QUERY, TRACK_FUNCTION, TRACK_SYNC,  TRACK_SYNC,   TRACK_PARSE,
        TRACK_BIND,  TRACK_DESCRIBE, TRACK_CLOSE, TRACK_EXECUTE};
    enum track_kind k = kinds[dice(ARRAY_SIZE(kinds))];
    bool is_virtual = (k == TRACK_PARSE || k == TRACK_CLOSE) && dice(3) == 0;
    push(k, is_virtual ? TRACK_VIRTUAL : 0);
    if (!is_virtual)
        sv.kind[sv.n++] = (uint8_t)k;
}

static void take_local(void)
{
    struct track_entry e;
    while (pg_track_pop_local(&t, &e))
        assert_true(e.flags & TRACK_VIRTUAL);
}

static void serve_one(void)
{
    static const char done[] = {
        [TRACK_PARSE] = '1', [TRACK_BIND] = '2', [TRACK_CLOSE] = '3'};
    enum track_kind k = sv.kind[0];
    struct track_entry e;
    memmove(sv.kind, sv.kind + 1, (size_t)--sv.n);
    if (sv.is_skipping && k != TRACK_SYNC)
        return;
    sv.is_skipping = false;
    take_local();
    if (k <= TRACK_SYNC) {
        if (k != TRACK_SYNC && dice(4) == 0)
            assert_false(reply('E').has_failed);
        ready('I');
        return;
    }
    if (dice(5) == 0) {
        struct track_reply r = reply('E');
        assert_true(r.has_failed);
        assert_int_equal(r.entry.kind, k);
        while (pg_track_skip(&t, &e))
            assert_int_not_equal(e.kind, TRACK_SYNC);
        sv.is_skipping = true;
        return;
    }
    if (k == TRACK_DESCRIBE)
        answers(dice(2) ? 'T' : 'n', k);
    else if (k == TRACK_EXECUTE)
        answers("CIs"[dice(3)], k);
    else
        answers(done[k], k);
}

static void test_random_streams(void **state)
{
    for (uint32_t seed = 1; seed <= 3000; seed++) {
        state32 = seed;
        sv.n = 0;
        sv.is_skipping = false;
        pg_track_fini(&t);
        for (int i = 0; i < 200; i++) {
            if (sv.n < 40 && dice(2))
                send_one();
            else if (sv.n)
                serve_one();
        }
        push(TRACK_SYNC, 0);
        sv.kind[sv.n++] = TRACK_SYNC;
        while (sv.n)
            serve_one();
        take_local();
        if (!pg_track_is_idle(&t))
            fail_msg("seed %u: not idle at the end", seed);
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_simple_query),
        T(test_batch),
        T(test_error_skips_to_sync),
        T(test_error_before_the_sync_is_sent),
        T(test_virtual_replies_keep_their_place),
        T(test_virtual_is_skipped_with_its_batch),
        T(test_copy_in_by_query),
        T(test_copy_in_extended),
        T(test_copy_in_sync_taken_out),
        T(test_copy_end_without_copy),
        T(test_copy_fails),
        T(test_refuses_what_was_not_asked),
        T(test_find),
        T(test_growth_keeps_order),
        T(test_serials_differ),
        T(test_random_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
