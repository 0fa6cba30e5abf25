/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* idle: holds many PostgreSQL sessions that do nothing.
 *
 * Each connects, starts up without a password, runs one query and stays.
 * When all are there it prints "ready N" and waits for the end of its
 * standard input; then it prints how many were closed by the other side
 * meanwhile ("lost N") and goes. Source addresses 127.0.0.x are used in turn,
 * since one has ports for 28,000 connections only.
 *
 *   idle --port PORT [--clients N] [--user U] [--dbname D] [--sources N]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define AT_ONCE 64 /* sessions on their way at any time */
#define PATIENCE_MS 30000
#define READY_FOR_QUERY 'Z'

enum session_state { STARTING, QUERYING, IDLE, LOST };

/* A reply is walked message by message; nothing but its headers is kept. */
struct session {
    int fd;
    enum session_state state;
    uint32_t skip; /* bytes of the current message still to come */
    unsigned head_len;
    unsigned char head[5];
};

struct options {
    in_port_t port;
    int clients;
    int sources;
    const char *user;
    const char *dbname;
};

static struct session *sessions;
static int epoll_fd;

static void die(const char *what)
{
    fprintf(stderr, "idle: %s: %s\n", what, strerror(errno));
    exit(1);
}

static size_t put_str(char *at, const char *s)
{
    size_t len = strlen(s) + 1;

    memcpy(at, s, len);
    return len;
}

static void send_startup(int fd, const struct options *o)
{
    char buf[512];
    size_t len = 4;
    uint32_t version = htonl(3 << 16), total;

    if (strlen(o->user) + strlen(o->dbname) > 400)
        die("names too long");
    memcpy(buf + len, &version, 4);
    len += 4;
    len += put_str(buf + len, "user");
    len += put_str(buf + len, o->user);
    len += put_str(buf + len, "database");
    len += put_str(buf + len, o->dbname);
    buf[len++] = '\0';
    total = htonl((uint32_t)len);
    memcpy(buf, &total, 4);
    if (send(fd, buf, len, MSG_NOSIGNAL) != (ssize_t)len)
        die("send");
}

static void session_open(int i, const struct options *o)
{
    struct session *s = &sessions[i];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(o->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    int one = 1;

    from.sin_addr.s_addr =
        htonl(INADDR_LOOPBACK + 1 + (uint32_t)(i % o->sources));
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0)
        die("socket");
    setsockopt(s->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(s->fd, (struct sockaddr *)&from, sizeof(from)) < 0)
        die("bind");
    if (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        die("connect");
    send_startup(s->fd, o);
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->fd, &ev) < 0)
        die("epoll_ctl");
}

static void session_ready(struct session *s, int *ready)
{
    static const char query[] = "Q\0\0\0\rSELECT 1";

    if (s->state == STARTING) {
        s->state = QUERYING;
        if (send(s->fd, query, sizeof(query), MSG_NOSIGNAL) != sizeof(query))
            die("send");
    } else if (s->state == QUERYING) {
        s->state = IDLE;
        (*ready)++;
    }
}

static void session_take(struct session *s, const unsigned char *p, size_t n,
                         int *ready)
{
    uint32_t len;

    while (n > 0) {
        if (s->skip > 0) {
            size_t step = n < s->skip ? n : s->skip;

            p += step;
            n -= step;
            s->skip -= (uint32_t)step;
        } else {
            s->head[s->head_len++] = *p++;
            n--;
            if (s->head_len < sizeof(s->head))
                continue;
            memcpy(&len, s->head + 1, 4);
            s->skip = ntohl(len) - 4;
            s->head_len = 0;
        }
        if (s->skip == 0 && s->head_len == 0) {
            if (s->head[0] == READY_FOR_QUERY)
                session_ready(s, ready);
            else if (s->head[0] == 'E')
                fprintf(stderr, "idle: the server sent an error\n");
        }
    }
}

static void session_read(struct session *s, int *ready)
{
    unsigned char buf[4096];
    ssize_t n = recv(s->fd, buf, sizeof(buf), 0);

    if (n > 0) {
        session_take(s, buf, (size_t)n, ready);
        return;
    }
    if (s->state != IDLE) {
        fprintf(stderr, "idle: a session was closed before it was ready\n");
        exit(1);
    }
    s->state = LOST;
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
}

/* Serves the sessions until fewer than most are on their way. */
static void advance(int opened, int *ready, int most)
{
    struct epoll_event events[64];

    while (opened - *ready > most) {
        int n = epoll_wait(epoll_fd, events, 64, PATIENCE_MS);

        if (n == 0) {
            fprintf(stderr, "idle: no progress at %d of %d sessions\n", *ready,
                    opened);
            exit(1);
        }
        for (int i = 0; i < n; i++)
            session_read(&sessions[events[i].data.u32], ready);
    }
}

static void hold(int *ready)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = epoll_fd, .events = POLLIN}};
    struct epoll_event events[64];
    char byte;

    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            die("poll");
        if (fds[0].revents && read(STDIN_FILENO, &byte, 1) <= 0)
            return;
        if (!fds[1].revents)
            continue;
        int n = epoll_wait(epoll_fd, events, 64, 0);

        for (int i = 0; i < n; i++)
            session_read(&sessions[events[i].data.u32], ready);
    }
}

static void raise_fd_limit(int clients)
{
    struct rlimit rl;

    getrlimit(RLIMIT_NOFILE, &rl);
    if (rl.rlim_cur < (rlim_t)clients + 32) {
        rl.rlim_cur = (rlim_t)clients + 32;
        if (rl.rlim_max < rl.rlim_cur)
            rl.rlim_max = rl.rlim_cur;
        if (setrlimit(RLIMIT_NOFILE, &rl) < 0)
            die("raise the limit of descriptors");
    }
}

static bool options_parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--port") == 0)
            o->port = (in_port_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--clients") == 0)
            o->clients = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--sources") == 0)
            o->sources = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--user") == 0)
            o->user = argv[i + 1];
        else if (strcmp(argv[i], "--dbname") == 0)
            o->dbname = argv[i + 1];
        else
            return false;
    }
    return argc % 2 == 1 && o->port != 0 && o->clients > 0 && o->sources > 0;
}

int main(int argc, char **argv)
{
    struct options o = {.clients = 10000,
                        .sources = 8,
                        .user = "postgres",
                        .dbname = "postgres"};
    int ready = 0, lost = 0;

    if (!options_parse(&o, argc, argv)) {
        fprintf(stderr, "usage: idle --port PORT [--clients N] [--user U] "
                        "[--dbname D] [--sources N]\n");
        return 2;
    }
    raise_fd_limit(o.clients);
    sessions = calloc((size_t)o.clients, sizeof(*sessions));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!sessions || epoll_fd < 0)
        die("start");
    for (int i = 0; i < o.clients; i++) {
        session_open(i, &o);
        advance(i + 1, &ready, AT_ONCE);
    }
    advance(o.clients, &ready, 0);
    printf("ready %d\n", ready);
    fflush(stdout);
    hold(&ready);
    for (int i = 0; i < o.clients; i++)
        lost += sessions[i].state == LOST;
    printf("lost %d\n", lost);
    return 0;
}
