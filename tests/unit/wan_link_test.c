/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The emulator's links, with a clock of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "bench/wan_ip.h"
#include "bench/wan_link.h"

#define MS INT64_C(1000000)

enum { SIZE = 1000 };

static struct wan_link *link;

static int set_up(void **state)
{
    link = wan_link_new();
    return 0;
}

static int tear_down(void **state)
{
    wan_link_free(link);
    return 0;
}

static void set(const char *name, const char *value)
{
    assert_true(wan_settings_set(wan_link_settings(link), name, value));
}

/* A UDP packet of 10.0.0.1 to 10.0.0.2, its number in its last bytes. */
static void put(int number, uint8_t flow, int64_t now)
{
    struct wan_packet *p = wan_packet_new(SIZE);
    memset(p->data, 0, SIZE);
    const uint8_t head[] = {0x45, 0,  SIZE >> 8, SIZE & 255, 0,  0,    0, 0,
                            64,   17, 0,         0,          10, 0,    0, 1,
                            10,   0,  0,         2,          0,  flow, 0, 53};
    memcpy(p->data, head, sizeof head);
    memcpy(p->data + SIZE - sizeof number, &number, sizeof number);
    wan_link_put(link, p, now);
}

/* The number of the packet that is due, -1 for none. */
static int take(int64_t now)
{
    int number;
    struct wan_packet *p = wan_link_take(link, now);
    if (!p)
        return -1;
    memcpy(&number, p->data + p->n - sizeof number, sizeof number);
    free(p);
    return number;
}

static int take_all(int64_t now)
{
    int n = 0;
    while (take(now) >= 0)
        n++;
    return n;
}

static const struct wan_counts *count(void)
{
    return wan_link_counts(link);
}

static void test_delay(void **state)
{
    assert_true(wan_link_next_ns(link) == INT64_MAX);
    set("delay", "15");
    put(1, 1, 0);
    put(2, 1, 1 * MS);
    assert_true(wan_link_next_ns(link) == 15 * MS);
    assert_int_equal(take(15 * MS - 1), -1);
    assert_int_equal(take(15 * MS), 1);
    assert_true(wan_link_next_ns(link) == 16 * MS);
    assert_int_equal(take(20 * MS), 2);
    assert_int_equal(count()->out_bytes, 2 * SIZE);
    assert_int_equal(count()->held, 0);
}

static void test_jitter_keeps_order(void **state)
{
    set("delay", "10");
    set("jitter", "10");
    for (int i = 0; i < 200; i++)
        put(i, 1, i * MS / 10);
    assert_int_equal(take(10 * MS - 1), -1);
    for (int i = 0; i < 200; i++)
        assert_int_equal(take(40 * MS), i);
}

static void test_jitter_without_order(void **state)
{
    int out_of_order = 0;
    set("jitter", "10");
    set("unordered", "1");
    for (int i = 0; i < 200; i++)
        put(i, 1, i * MS / 10);
    for (int i = 0, last = -1; i < 200; i++) {
        int n = take(40 * MS);
        out_of_order += n < last;
        last = n;
    }
    assert_in_range(out_of_order, 50, 150);
}

/* 8 Mbit/s is 1000 bytes a millisecond. */
static void test_rate(void **state)
{
    set("rate", "8");
    set("delay", "5");
    for (int i = 0; i < 10; i++)
        put(i, (uint8_t)i, 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(take((6 + i) * MS - 1), -1);
        assert_int_equal(take((6 + i) * MS), i);
    }
    put(10, 1, 1000 * MS); /* nothing was saved up */
    assert_int_equal(take(1006 * MS - 1), -1);
    assert_int_equal(take(1006 * MS), 10);
}

static void test_rate_drops(void **state)
{
    set("rate", "8");
    set("queue-ms", "20");
    for (int i = 0; i < 100; i++)
        put(i, 1, 0);
    assert_int_equal(take_all(1000 * MS), 21);
    assert_int_equal(count()->queue_drops, 79);
    assert_int_equal(count()->held, 0);
}

static void test_path_mtu(void **state)
{
    put(1, 1, 0);
    set("path-mtu", "20");
    put(2, 1, 0);
    set("path-mtu", "0");
    put(3, 1, 0);
    assert_int_equal(take_all(1 * MS), 2);
    assert_int_equal(count()->too_large, 1);
}

static void test_flow_rate(void **state)
{
    set("flow-rate", "8");
    set("flow-queue-ms", "20");
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 100; j++)
            put(100 * i + j, (uint8_t)i, 0);
    assert_int_equal(take_all(10 * MS), 40); /* each has its own */
    assert_int_equal(take_all(1000 * MS), 4 * 11);
    assert_int_equal(count()->flow_queue_drops, 4 * 79);
    assert_int_equal(count()->flows, 4);
}

/* Both caps: four flows of 8 Mbit/s over a link of 16. */
static void test_flow_rate_and_rate(void **state)
{
    set("flow-rate", "8");
    set("rate", "16");
    for (int i = 0; i < 400; i++)
        put(i, (uint8_t)(i % 4), i * MS / 4);
    assert_in_range(take_all(100 * MS), 195, 200);
}

static void test_loss(void **state)
{
    set("loss", "10");
    for (int i = 0; i < 10000; i++)
        put(i, 1, 0);
    int n = take_all(0);
    assert_in_range(n, 8800, 9200);
    assert_int_equal(count()->lost, 10000 - n);
}

static void test_loss_in_bursts(void **state)
{
    int lost = 0, bursts = 0, last = -1;
    set("loss", "10:5");
    for (int i = 0; i < 50000; i++)
        put(i, 1, 0);
    for (int n; (n = take(0)) >= 0; last = n) {
        lost += n - last - 1;
        bursts += n > last + 1;
    }
    assert_in_range(lost, 4000, 6000);
    assert_in_range(10 * lost / bursts, 40, 60);
}

static void test_same_seed(void **state)
{
    int kept[2] = {0, 0};
    for (int round = 0; round < 2; round++) {
        struct wan_link *old = link;
        link = wan_link_new();
        wan_link_seed(link, 7);
        set("loss", "50");
        for (int i = 0; i < 30; i++)
            put(i, 1, 0);
        for (int n; (n = take(0)) >= 0;)
            kept[round] |= 1 << n;
        wan_link_free(link);
        link = old;
    }
    assert_int_equal(kept[0], kept[1]);
    assert_int_not_equal(kept[0], 0);
}

static void test_duplicates(void **state)
{
    set("dup", "100");
    put(1, 1, 0);
    assert_int_equal(take(0), 1);
    assert_int_equal(take(0), 1);
    assert_int_equal(take(0), -1);
    assert_int_equal(count()->duplicated, 1);
    assert_int_equal(count()->held, 0);
}

static void test_reordering(void **state)
{
    set("reorder", "100:5");
    put(1, 1, 0);
    set("reorder", "0");
    put(2, 1, 0);
    assert_int_equal(take(0), 2);
    assert_int_equal(take(5 * MS), 1);
}

static void test_blocks(void **state)
{
    assert_true(wan_link_block(link, "10.0.0.2:53"));
    put(1, 1, 0);
    assert_int_equal(take(0), -1);
    assert_int_equal(count()->blocked, 1);
    wan_link_unblock(link);
    assert_true(wan_link_block(link, "10.0.0.2:54"));
    assert_true(wan_link_block(link, "10.0.0.3"));
    assert_true(wan_link_block(link, "[fd00::1]:53"));
    put(2, 1, 0);
    assert_int_equal(take(0), 2);
    assert_true(wan_link_block(link, "10.0.0.1"));
    put(3, 1, 0);
    assert_int_equal(take(0), -1);
    assert_false(wan_link_block(link, "10.0.0"));
    assert_false(wan_link_block(link, "10.0.0.1:"));
    assert_false(wan_link_block(link, "10.0.0.1:70000"));
    wan_link_unblock(link);
    set("down", "1");
    put(4, 1, 0);
    assert_int_equal(take(0), -1);
}

static void test_bad_settings(void **state)
{
    static const char *const bad[][2] = {
        {"delay", ""},    {"delay", "x"},   {"delay", "-1"}, {"delay", "nan"},
        {"delay", "1:2"}, {"delay", "1 "},  {"loss", "1:"},  {"loss", "1:x"},
        {"nothing", "1"}, {"rate", "1e99"},
    };
    struct wan_settings before = *wan_link_settings(link);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        assert_false(
            wan_settings_set(wan_link_settings(link), bad[i][0], bad[i][1]));
    assert_memory_equal(&before, wan_link_settings(link), sizeof before);
}

/* --- the MPTCP option -------------------------------------------------------
 */

static uint16_t checksum(const uint8_t *ip, size_t n)
{
    size_t tcp = (size_t)(ip[0] & 15) * 4;
    uint32_t sum = 6 + (uint32_t)(n - tcp);
    for (size_t i = 12; i < n; i += 2) {
        if (i == 20)
            i = tcp;
        sum += (uint32_t)(ip[i] << 8) + (i + 1 < n ? ip[i + 1] : 0);
    }
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* A SYN with MSS, an MPTCP option at an odd place, and a byte of data. */
static const uint8_t syn[] = {
    0x45, 0,  0,   61,  0,    0,    0,    0,    64,  6, 0, 0,   10,   0,  0,  1,
    10,   0,  0,   2,   0x30, 0x39, 0x15, 0x38, 0,   0, 0, 1,   0,    0,  0,  0,
    0xa0, 2,  255, 255, 0,    0,    0,    0,    2,   4, 5, 180, 1,    30, 12, 1,
    0x11, 33, 7,   200, 3,    9,    77,   255,  128, 1, 0, 0,   0x5a,
};

static void test_strip(void **state)
{
    uint8_t p[sizeof syn];
    memcpy(p, syn, sizeof p);
    uint16_t sum = checksum(p, sizeof p);
    p[36] = (uint8_t)(sum >> 8);
    p[37] = (uint8_t)sum;
    assert_int_equal(checksum(p, sizeof p), 0);
    assert_true(wan_strip_mptcp(p, sizeof p));
    assert_int_equal(checksum(p, sizeof p), 0);
    for (int i = 45; i < 57; i++)
        assert_int_equal(p[i], 1);
    assert_memory_equal(p + 40, syn + 40, 5); /* MSS is untouched */
    assert_int_equal(p[60], 0x5a);
    assert_false(wan_strip_mptcp(p, sizeof p));
}

/* Cut anywhere, and with every length that an option can claim. */
static void test_strip_odd_packets(void **state)
{
    for (size_t n = 0; n <= sizeof syn; n++) {
        uint8_t *p = malloc(n + 1);
        assert_non_null(p);
        memcpy(p, syn, n);
        (void)wan_strip_mptcp(p, n);
        struct wan_flow_key key;
        wan_flow_of(p, n, &key);
        free(p);
    }
    for (int size = 0; size < 256; size++) {
        uint8_t p[sizeof syn];
        memcpy(p, syn, sizeof p);
        p[46] = (uint8_t)size;
        (void)wan_strip_mptcp(p, sizeof p);
        assert_int_equal(p[60], 0x5a);
    }
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_delay),
        TEST(test_jitter_keeps_order),
        TEST(test_jitter_without_order),
        TEST(test_rate),
        TEST(test_rate_drops),
        TEST(test_path_mtu),
        TEST(test_flow_rate),
        TEST(test_flow_rate_and_rate),
        TEST(test_loss),
        TEST(test_loss_in_bursts),
        TEST(test_same_seed),
        TEST(test_duplicates),
        TEST(test_reordering),
        TEST(test_blocks),
        TEST(test_bad_settings),
        TEST(test_strip),
        TEST(test_strip_odd_packets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
