/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Sockets of the loopback device. What needs another network namespace runs in
 * a child of its own and is left out without the rights to make one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/listener.h"
#include "net/mptcp.h"
#include "net/mptcp_pm.h"
#include "net/netlink.h"

struct pair {
    int listener, client, server;
};

static bool has_mptcp(void)
{
    struct err e;
    return mptcp_check(&e) == 0;
}

static void need(bool ok, const char *what)
{
    if (!ok) {
        print_message("errno %d: %s\n", errno, what);
        abort();
    }
}

static int make_socket(bool mptcp)
{
    int fd =
        socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, mptcp ? IPPROTO_MPTCP : 0);
    need(fd >= 0, "socket");
    return fd;
}

/* Connected, and each side has heard from the other. */
static struct pair connect_pair(bool client_mptcp, bool server_mptcp)
{
    struct addr at = {.len = sizeof at.in};
    struct pair p;
    char byte;
    at.in.sin_family = AF_INET;
    at.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p.listener = make_socket(server_mptcp);
    need(!bind(p.listener, &at.sa, at.len) && !listen(p.listener, 1), "listen");
    need(addr_of_self(p.listener, &at) == 0, "address");
    p.client = make_socket(client_mptcp);
    need(connect(p.client, &at.sa, at.len) == 0, "connect");
    p.server = accept4(p.listener, NULL, NULL, SOCK_CLOEXEC);
    need(p.server >= 0, "accept");
    need(write(p.client, "?", 1) == 1 && read(p.server, &byte, 1) == 1, "ask");
    need(write(p.server, "!", 1) == 1 && read(p.client, &byte, 1) == 1, "say");
    return p;
}

static void close_pair(const struct pair *p)
{
    close(p->client);
    close(p->server);
    close(p->listener);
}

static void expect_use(bool client, bool server, enum mptcp_use of_client,
                       enum mptcp_use of_server)
{
    struct pair p = connect_pair(client, server);
    struct mptcp_conn conn;
    assert_int_equal(mptcp_use_of(p.client), of_client);
    assert_int_equal(mptcp_use_of(p.server), of_server);
    assert_int_equal(mptcp_read(p.client, &conn), of_client == MPTCP_USED);
    close_pair(&p);
}

static void test_use(void **state)
{
    if (!has_mptcp())
        skip();
    expect_use(true, true, MPTCP_USED, MPTCP_USED);
    expect_use(true, false, MPTCP_FELL_BACK, MPTCP_UNUSED);
    expect_use(false, true, MPTCP_UNUSED, MPTCP_UNUSED);
    expect_use(false, false, MPTCP_UNUSED, MPTCP_UNUSED);
}

static void test_use_of_unix(void **state)
{
    int fd[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(mptcp_use_of(fd[0]), MPTCP_UNUSED);
    close(fd[0]);
    close(fd[1]);
    assert_int_equal(mptcp_use_of(-1), MPTCP_UNUSED);
}

static void test_one_subflow(void **state)
{
    struct mptcp_subflow s[MPTCP_SUBFLOWS_MAX];
    struct mptcp_conn conn;
    struct addr self, peer;
    if (!has_mptcp())
        skip();
    struct pair p = connect_pair(true, true);
    assert_true(mptcp_read(p.client, &conn));
    assert_int_equal(conn.extra_subflows, 0);
    assert_true(conn.token != 0);
    assert_int_equal(mptcp_read_subflows(p.client, s), 1);
    assert_int_equal(addr_of_self(p.client, &self), 0);
    assert_int_equal(addr_of_peer(p.client, &peer), 0);
    assert_true(addr_eq(&s[0].local, &self));
    assert_true(addr_eq(&s[0].remote, &peer));
    assert_int_equal(s[0].sent_bytes, 1);
    assert_int_equal(s[0].received_bytes, 1);
    assert_int_equal(s[0].retransmits, 0);
    assert_int_not_equal(s[0].cwnd, 0);
    assert_int_equal(s[0].backup, 0);
    close_pair(&p);
}

static void test_listener(void **state)
{
    const struct listener_options o = {
        .backlog = 1, .mptcp = true, .defer_accept_s = 1};
    int seconds = -1;
    socklen_t n = sizeof seconds;
    struct addr at;
    struct listener *l;
    struct err e;
    if (!has_mptcp())
        skip();
    assert_true(addr_parse_ip(slice_str("127.0.0.1"), 0, &at));
    assert_int_equal(listener_open(&l, &at, &o, &e), 0);
    /* It would hold back the subflows that join. */
    listener_set_defer_accept(l, 1);
    assert_int_equal(
        getsockopt(listener_fd(l), IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, &n),
        0);
    assert_int_equal(seconds, 0);
    for (int is_mptcp = 0; is_mptcp < 2; is_mptcp++) {
        int fd = make_socket(is_mptcp);
        at = *listener_addr(l);
        assert_int_equal(connect(fd, &at.sa, at.len), 0);
        assert_int_equal(mptcp_use_of(fd),
                         is_mptcp ? MPTCP_USED : MPTCP_UNUSED);
        close(fd);
    }
    listener_close(l);
}

static void test_subflows_of_tcp(void **state)
{
    struct mptcp_subflow s[MPTCP_SUBFLOWS_MAX];
    struct addr peer;
    int fd[2];
    for (int is_mptcp = 0; is_mptcp < 2; is_mptcp++) {
        if (is_mptcp && !has_mptcp())
            break;
        struct pair p = connect_pair(is_mptcp, false);
        assert_int_equal(mptcp_read_subflows(p.client, s), 1);
        assert_int_equal(addr_of_peer(p.client, &peer), 0);
        assert_true(addr_eq(&s[0].remote, &peer));
        assert_int_equal(s[0].received_bytes, 1);
        assert_int_equal(s[0].backup, -1);
        close_pair(&p);
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(mptcp_read_subflows(fd[0], s), 0);
    close(fd[0]);
    close(fd[1]);
}

/* --- in a namespace of its own -------------------------------------------- */

static void set_sysctl(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    need(fd >= 0, path);
    need(write(fd, value, strlen(value)) == (ssize_t)strlen(value), path);
    close(fd);
}

static void bring_lo_up(void)
{
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    need(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &r) == 0, "lo");
    close(fd);
}

/* Runs it in a child with a network namespace; skips without the rights. */
enum { CHILD_OK, CHILD_SKIP = 77 };

static void in_namespace(int (*body)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNET))
            _exit(CHILD_SKIP);
        bring_lo_up();
        _exit(body());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_SKIP)
        skip();
    assert_int_equal(WEXITSTATUS(status), CHILD_OK);
}

static struct addr loopback(void)
{
    struct addr at;
    need(addr_parse_ip(slice_str("127.0.0.1"), 0, &at), "address");
    return at;
}

static int turned_off(void)
{
    const struct listener_options o = {.backlog = 1, .mptcp = true};
    struct addr at = loopback();
    struct listener *l;
    struct err e;
    if (access("/proc/sys/net/mptcp/enabled", F_OK))
        return CHILD_SKIP;
    set_sysctl("/proc/sys/net/mptcp/enabled", "0");
    need(mptcp_check(&e) == ERR_UNSUPPORTED, "check");
    need(strstr(e.text, "sysctl -w net.mptcp.enabled=1") != NULL, e.text);
    need(socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP) < 0, "socket");
    need(mptcp_is_missing(errno), "errno");
    need(listener_open(&l, &at, &o, &e) < 0, "listener");
    need(strstr(e.text, "listen_mptcp = 1: ") != NULL, e.text);
    need(strstr(e.text, "sysctl -w net.mptcp.enabled=1") != NULL, e.text);
    return CHILD_OK;
}

static void test_turned_off(void **state)
{
    in_namespace(turned_off);
}

static int kernel_manages(void)
{
    struct mptcp_pm *pm;
    struct err e;
    if (!has_mptcp())
        return CHILD_SKIP;
    need(mptcp_pm_new(&pm, &e) == ERR_UNSUPPORTED, "new");
    need(strstr(e.text, "net.mptcp.p") != NULL, e.text);
    return CHILD_OK;
}

static void test_kernel_manages(void **state)
{
    in_namespace(kernel_manages);
}

static int wait_for_subflows(int fd, int wanted)
{
    struct mptcp_conn conn = {0};
    for (int i = 0; i < 200; i++) {
        if (mptcp_read(fd, &conn) && conn.extra_subflows >= wanted)
            break;
        poll(NULL, 0, 5);
    }
    return conn.extra_subflows;
}

static int adds_subflows(void)
{
    struct mptcp_subflow s[MPTCP_SUBFLOWS_MAX];
    struct mptcp_pm *pm = NULL;
    struct err e = {0};
    if (!has_mptcp() || access("/proc/sys/net/mptcp/pm_type", F_OK))
        return CHILD_SKIP;
    set_sysctl("/proc/sys/net/mptcp/pm_type", "1");
    need(mptcp_pm_new(&pm, &e) == 0, e.text);
    need(mptcp_pm_let_peers_join(pm, &e) == 0, e.text);
    struct pair p = connect_pair(true, true);
    for (int i = 0; i < 3; i++)
        need(mptcp_pm_add_subflow(pm, p.client, &e) == 0, e.text);
    need(wait_for_subflows(p.client, 3) == 3, "three subflows");
    need(mptcp_read_subflows(p.client, s) == 4, "four in all");
    need(!addr_eq(&s[0].local, &s[3].local), "ports of their own");
    need(addr_eq(&s[0].remote, &s[3].remote), "the same server");
    close_pair(&p);
    p = connect_pair(false, false);
    need(mptcp_pm_add_subflow(pm, p.client, &e) == ERR_UNSUPPORTED, "TCP");
    close_pair(&p);
    mptcp_pm_free(pm);
    return CHILD_OK;
}

static void test_adds_subflows(void **state)
{
    in_namespace(adds_subflows);
}

/* --- netlink ---------------------------------------------------------------
 */

static void test_attributes(void **state)
{
    struct netlink_request r;
    size_t n, inner_n;
    uint32_t value;
    netlink_begin(&r, 0, 0, "", 0);
    size_t start = r.n, nest = netlink_nest(&r, 5);
    netlink_put_u32(&r, 1, 77);
    netlink_put(&r, 2, "abc", 3);
    netlink_nest_end(&r, nest);
    netlink_put_u32(&r, 6, 88);

    const char *p = r.buf + start;
    const struct nlattr *a = netlink_find(p, r.n - start, 5);
    assert_non_null(a);
    const void *inner = netlink_data(a, &inner_n);
    a = netlink_find(inner, inner_n, 2);
    assert_non_null(a);
    assert_memory_equal(netlink_data(a, &n), "abc", 3);
    assert_int_equal(n, 3);
    a = netlink_find(p, r.n - start, 6);
    assert_non_null(a);
    memcpy(&value, netlink_data(a, &n), sizeof value);
    assert_int_equal(value, 88);
    assert_null(netlink_find(p, r.n - start, 9));
}

/* Lengths that leave the bytes there are, or do not move on. */
static void test_bad_attributes(void **state)
{
    _Alignas(4) char buf[8] = {0};
    struct nlattr *a = (struct nlattr *)buf;
    a->nla_type = 1;
    for (unsigned n = 0; n < 16; n++) {
        a->nla_len = (uint16_t)n;
        bool is_good = n >= NLA_HDRLEN && n <= sizeof buf;
        assert_true((netlink_find(buf, sizeof buf, 1) != NULL) == is_good);
        assert_null(netlink_find(buf, sizeof buf, 2));
    }
    assert_null(netlink_find(buf, 3, 1));
    assert_null(netlink_find(buf, 0, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_use),
        cmocka_unit_test(test_use_of_unix),
        cmocka_unit_test(test_one_subflow),
        cmocka_unit_test(test_subflows_of_tcp),
        cmocka_unit_test(test_listener),
        cmocka_unit_test(test_turned_off),
        cmocka_unit_test(test_kernel_manages),
        cmocka_unit_test(test_adds_subflows),
        cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_bad_attributes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
