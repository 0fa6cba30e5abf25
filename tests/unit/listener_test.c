/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/listener.h"

static const struct listener_options defaults = {.backlog = 128,
                                                 .unix_mode = 0777};

static struct addr ip(const char *text, int port)
{
    struct addr a;
    assert_true(addr_parse_ip(slice_str(text), port, &a));
    return a;
}

static struct listener *open_ok(const struct addr *at,
                                const struct listener_options *o)
{
    struct listener *l = NULL;
    struct err e = {0};
    if (listener_open(&l, at, o, &e))
        fail_msg("%s", e.text);
    return l;
}

static void expect_code(const struct addr *at, const struct listener_options *o,
                        int code, const char *text)
{
    struct listener *l;
    struct err e = {0};
    assert_int_equal(listener_open(&l, at, o, &e), code);
    if (!strstr(e.text, text))
        fail_msg("\"%s\" is not in \"%s\"", text, e.text);
}

static void expect_error(const struct addr *at,
                         const struct listener_options *o, const char *text)
{
    expect_code(at, o, ERR_CONF, text);
}

/* --- accepting ----------------------------------------------------------- */

enum { CLIENTS = 200 };

struct world {
    struct loop *loop;
    struct listener *l;
    int client[CLIENTS];
    int n_accepted, n_wanted, close_at;
    struct timer timer;
    struct rlimit old_limit;
};

static struct world w;

static void world_init(const struct addr *at, const struct listener_options *o)
{
    struct err e;
    w = (struct world){.l = open_ok(at, o)};
    assert_int_equal(loop_new(&w.loop, NULL, &e), 0);
}

static void connect_clients(int n)
{
    const struct addr *at = listener_addr(w.l);
    for (int i = 0; i < n; i++) {
        w.client[i] = socket(at->sa.sa_family, SOCK_STREAM, 0);
        assert_true(w.client[i] >= 0);
        assert_int_equal(connect(w.client[i], &at->sa, at->len), 0);
    }
    w.n_wanted = n;
}

static void on_accept(void *arg, int fd, const struct addr *peer)
{
    struct addr self;
    assert_ptr_equal(arg, &w);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(addr_of_self(w.client[w.n_accepted], &self), 0);
    assert_true(addr_same_host(peer, &self));
    assert_true(addr_is_unix(peer) || addr_port(peer) > 0);
    close(fd);
    w.n_accepted++;
    if (w.n_accepted == w.close_at) {
        listener_close(w.l);
        w.l = NULL;
        loop_stop(w.loop);
    } else if (w.n_accepted == w.n_wanted) {
        loop_stop(w.loop);
    }
}

static void start(void)
{
    struct err e = {0};
    if (listener_start(w.l, w.loop, on_accept, &w, &e))
        fail_msg("%s", e.text);
}

static void run(void)
{
    alarm(20);
    loop_run(w.loop);
    alarm(0);
    if (w.l)
        listener_close(w.l);
    loop_free(w.loop);
    for (int i = 0; i < w.n_wanted; i++)
        close(w.client[i]);
}

static void accept_from(const struct addr *at)
{
    world_init(at, &defaults);
    connect_clients(100);
    start();
    run();
    assert_int_equal(w.n_accepted, 100);
}

static char dir[] = "/tmp/pgbraid-listen-XXXXXX";

static struct addr unix_at(const char *where, int port)
{
    struct addr a;
    struct err e;
    assert_int_equal(addr_unix(slice_str(where), port, &a, &e), 0);
    return a;
}

/* More than a turn's share, all waiting before the start. */
static void accepts_all_that_wait(void **state)
{
    char abstract[64];
    struct addr a = ip("127.0.0.1", 0);
    accept_from(&a);
    a = ip("::1", 0);
    accept_from(&a);
    a = unix_at(dir, 1);
    accept_from(&a);
    assert_int_equal(access(a.un.sun_path, F_OK), -1);
    snprintf(abstract, sizeof abstract, "@%s", dir + 1);
    a = unix_at(abstract, 1);
    accept_from(&a);
}

static void may_be_closed_while_accepting(void **state)
{
    struct addr a = ip("127.0.0.1", 0);
    world_init(&a, &defaults);
    w.close_at = 3;
    connect_clients(10);
    start();
    run();
    assert_int_equal(w.n_accepted, 3);
}

static void on_restart_timer(struct timer *t)
{
    assert_int_equal(w.n_accepted, 0);
    start();
}

static void stops_and_starts_again(void **state)
{
    struct addr a = ip("127.0.0.1", 0);
    world_init(&a, &defaults);
    start();
    listener_stop(w.l);
    listener_stop(w.l);
    connect_clients(3);
    w.timer.on_fire = on_restart_timer;
    timer_set(w.loop, &w.timer, loop_now_us(w.loop) + 20000);
    run();
    assert_int_equal(w.n_accepted, 3);
}

/* Out of descriptors: waits without spinning, and goes on by itself. */
static void on_limit_timer(struct timer *t)
{
    assert_int_equal(w.n_accepted, 0);
    assert_true(loop_stats(w.loop)->turns < 10);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &w.old_limit), 0);
}

static void backs_off_without_descriptors(void **state)
{
    struct addr a = ip("127.0.0.1", 0);
    struct rlimit limit;
    world_init(&a, &defaults);
    start();
    connect_clients(5);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    w.old_limit = limit;
    limit.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    w.timer.on_fire = on_limit_timer;
    timer_set(w.loop, &w.timer, loop_now_us(w.loop) + 50000);
    run();
    assert_int_equal(w.n_accepted, 5);
}

/* --- addresses in use ---------------------------------------------------- */

static void names_what_is_wrong(void **state)
{
    struct addr a = ip("127.0.0.1", 0);
    struct listener *l = open_ok(&a, &defaults);
    char text[200];
    a = *listener_addr(l);
    assert_true(addr_port(&a) > 0);
    snprintf(text, sizeof text,
             "listen_addr 127.0.0.1 port %d: cannot bind: Address already in "
             "use; is another pooler running?",
             addr_port(&a));
    expect_error(&a, &defaults, text);
    listener_close(l);
    a = ip("192.0.2.1", 6432);
    expect_code(&a, &defaults, ERR_NOTFOUND,
                "192.0.2.1 port 6432: cannot bind: ");
    a = unix_at("/nonexistent", 1);
    expect_error(&a, &defaults, "listening on unix:/nonexistent/.s.PGSQL.1: ");
}

static void workers_share_a_port(void **state)
{
    struct listener_options o = defaults;
    o.reuseport = true;
    struct addr a = ip("127.0.0.1", 0);
    struct listener *first = open_ok(&a, &o);
    struct listener *second = open_ok(listener_addr(first), &o);
    assert_true(addr_eq(listener_addr(first), listener_addr(second)));
    /* The same port of the other family is free: IPV6_V6ONLY. */
    a = ip("::", addr_port(listener_addr(first)));
    struct listener *third = open_ok(&a, &o);
    listener_close(first);
    listener_close(second);
    listener_close(third);
}

static void replaces_a_stale_socket_only(void **state)
{
    struct addr a = unix_at(dir, 2);
    struct listener *l = open_ok(&a, &defaults);
    expect_error(&a, &defaults, "Address already in use");
    assert_int_equal(access(a.un.sun_path, F_OK), 0);
    listener_keep_file(l);
    listener_close(l);
    assert_int_equal(access(a.un.sun_path, F_OK), 0);
    l = open_ok(&a, &defaults);
    listener_close(l);
    assert_int_equal(access(a.un.sun_path, F_OK), -1);
}

static void leaves_other_files_alone(void **state)
{
    char lock[200];
    struct addr a = unix_at(dir, 3);
    int fd = creat(a.un.sun_path, 0600);
    assert_true(fd >= 0);
    close(fd);
    expect_error(&a, &defaults, "the file is not a socket");
    assert_int_equal(unlink(a.un.sun_path), 0);

    snprintf(lock, sizeof lock, "%s.lock", a.un.sun_path);
    close(creat(lock, 0600));
    expect_error(&a, &defaults, "PostgreSQL listens on this port");
    assert_int_equal(unlink(lock), 0);
}

static void sets_the_rights_of_the_file(void **state)
{
    struct listener_options o = defaults;
    char gid[20];
    struct stat st;
    struct addr a = unix_at(dir, 4);
    o.unix_mode = 0640;
    snprintf(gid, sizeof gid, "%u", (unsigned)getgid());
    o.unix_group = gid;
    struct listener *l = open_ok(&a, &o);
    assert_int_equal(stat(a.un.sun_path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(st.st_gid, getgid());
    listener_close(l);
    o.unix_group = "no such group";
    expect_error(&a, &o, "unix_socket_group \"no such group\": no such group");
    assert_int_equal(access(a.un.sun_path, F_OK), -1);
}

static void sets_tcp_options(void **state)
{
    struct listener_options o = defaults;
    int n = 0;
    socklen_t len = sizeof n;
    o.defer_accept_s = 1;
    struct addr a = ip("127.0.0.1", 0);
    struct listener *l = open_ok(&a, &o);
    int fd = listener_fd(l);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &n, &len),
                     0);
    assert_true(n > 0);
    listener_set_defer_accept(l, 0);
    assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &n, &len),
                     0);
    assert_int_equal(n, 0);
    listener_close(l);
}

static void adopts_what_listens(void **state)
{
    struct addr a = ip("127.0.0.1", 0);
    struct listener *l, *second;
    struct err e = {0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(listener_adopt(&l, fd, &e), ERR_CONF);
    assert_non_null(strstr(e.text, "not a listening socket"));
    assert_int_equal(listener_adopt(&l, -1, &e), ERR_CONF);
    close(fd);

    l = open_ok(&a, &defaults);
    fd = dup(listener_fd(l));
    assert_int_equal(listener_adopt(&second, fd, &e), 0);
    assert_true(addr_eq(listener_addr(l), listener_addr(second)));
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    listener_close(l);
    listener_close(second);
}

static int make_dir(void **state)
{
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_all_that_wait),
        cmocka_unit_test(may_be_closed_while_accepting),
        cmocka_unit_test(stops_and_starts_again),
        cmocka_unit_test(backs_off_without_descriptors),
        cmocka_unit_test(names_what_is_wrong),
        cmocka_unit_test(workers_share_a_port),
        cmocka_unit_test(replaces_a_stale_socket_only),
        cmocka_unit_test(leaves_other_files_alone),
        cmocka_unit_test(sets_the_rights_of_the_file),
        cmocka_unit_test(sets_tcp_options),
        cmocka_unit_test(adopts_what_listens),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
