/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* relay: a bare two-hop relay, the yardstick of bench/poolers.
 *
 * One upstream connection for each client connection, bytes carried as they
 * come, nothing known of PostgreSQL. It makes the fewest system calls that a
 * relay of sockets can do with: epoll edge-triggered and registered once for
 * both directions, one scratch buffer a thread, a short read taken as
 * drained, sent on at once, and only what the peer's socket refuses kept.
 * What a pooler spends beyond this is the price of its being a pooler.
 *
 * It stays as it is, so that figures of different days can be compared.
 *
 *   relay --listen PORT --to HOST:PORT|/path/of/socket [--workers N]
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SCRATCH_BYTES 65536
#define EVENTS_PER_WAIT 128
#define READS_PER_TURN 16
#define WORKERS_MAX 64

/* One socket of a pair. kept: bytes that this socket refused. */
struct end {
    int fd;
    bool is_eof;  /* it has sent all it had to say */
    bool is_shut; /* it was told that the other has */
    bool is_ripe; /* bytes were left unread while the other end was full */
    struct end *other;
    struct pair *pair;
    char *kept;
    size_t kept_len;
    size_t kept_off;
};

struct pair {
    struct end client;
    struct end server;
    struct pair *next_dead;
    bool is_dead;
};

struct worker {
    int epoll_fd;
    int listen_fd;
    struct pair *dead; /* freed when the batch of events is done */
    char scratch[SCRATCH_BYTES];
};

static struct sockaddr_storage target;
static socklen_t target_len;

static void die(const char *what)
{
    fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void pair_kill(struct worker *w, struct pair *p)
{
    if (p->is_dead)
        return;
    p->is_dead = true;
    close(p->client.fd);
    close(p->server.fd);
    p->next_dead = w->dead;
    w->dead = p;
}

static void free_dead(struct worker *w)
{
    while (w->dead) {
        struct pair *p = w->dead;

        w->dead = p->next_dead;
        free(p->client.kept);
        free(p->server.kept);
        free(p);
    }
}

/* Passes an end of file on once all bytes before it are sent. */
static void pass_eof(struct worker *w, struct end *to)
{
    if (!to->other->is_eof || to->kept || to->is_shut)
        return;
    to->is_shut = true;
    shutdown(to->fd, SHUT_WR);
    if (to->other->is_shut)
        pair_kill(w, to->pair);
}

/* Sends at once, keeps what is refused. False: the socket is broken. */
static bool send_or_keep(struct end *to, const char *data, size_t len)
{
    ssize_t n = send(to->fd, data, len, MSG_NOSIGNAL);

    if (n == (ssize_t)len)
        return true;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return false;
        n = 0;
    }
    to->kept_len = len - (size_t)n;
    to->kept_off = 0;
    to->kept = malloc(to->kept_len);
    if (!to->kept)
        return false;
    memcpy(to->kept, data + n, to->kept_len);
    return true;
}

/* Reads until drained, or until the other end is full. is_last: the peer has
 * closed, so a short read does not mean that nothing follows. */
static void carry(struct worker *w, struct end *from, bool is_last)
{
    struct end *to = from->other;

    for (int i = 0; i < READS_PER_TURN; i++) {
        ssize_t n;

        if (from->is_eof)
            return;
        if (to->kept) {
            from->is_ripe = true;
            return;
        }
        n = recv(from->fd, w->scratch, SCRATCH_BYTES, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0 || (n > 0 && !send_or_keep(to, w->scratch, (size_t)n))) {
            pair_kill(w, from->pair);
            return;
        }
        if (n == 0) {
            from->is_eof = true;
            pass_eof(w, to);
            return;
        }
        if (n < SCRATCH_BYTES && !is_last)
            return;
    }
    /* Others have their turn; arming again brings the edge back. */
    struct epoll_event ev = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = from};
    epoll_ctl(w->epoll_fd, EPOLL_CTL_MOD, from->fd, &ev);
}

static void flush_kept(struct worker *w, struct end *to)
{
    while (to->kept_off < to->kept_len) {
        ssize_t n = send(to->fd, to->kept + to->kept_off,
                         to->kept_len - to->kept_off, MSG_NOSIGNAL);

        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR)
                pair_kill(w, to->pair);
            return;
        }
        to->kept_off += (size_t)n;
    }
    free(to->kept);
    to->kept = NULL;
    pass_eof(w, to);
    if (!to->pair->is_dead && to->other->is_ripe) {
        to->other->is_ripe = false;
        carry(w, to->other, true);
    }
}

static int open_upstream(void)
{
    int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;

    if (fd < 0)
        return -1;
    if (target.ss_family != AF_UNIX) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    if (connect(fd, (struct sockaddr *)&target, target_len) < 0 &&
        errno != EINPROGRESS) {
        close(fd);
        return -1;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static bool end_watch(struct worker *w, struct end *e, int fd,
                      struct end *other, struct pair *p)
{
    struct epoll_event ev = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = e};

    e->fd = fd;
    e->other = other;
    e->pair = p;
    return epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

static void take_client(struct worker *w, int client_fd)
{
    int one = 1;
    int server_fd = open_upstream();
    struct pair *p = server_fd < 0 ? NULL : calloc(1, sizeof(*p));

    if (!p) {
        if (server_fd >= 0)
            close(server_fd);
        close(client_fd);
        return;
    }
    setsockopt(client_fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    p->server.fd = server_fd;
    if (!end_watch(w, &p->client, client_fd, &p->server, p) ||
        !end_watch(w, &p->server, server_fd, &p->client, p))
        pair_kill(w, p);
}

static void take_clients(struct worker *w)
{
    int fd;

    while ((fd = accept4(w->listen_fd, NULL, NULL,
                         SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        take_client(w, fd);
}

static void *worker_run(void *arg)
{
    struct worker *w = arg;
    struct epoll_event events[EVENTS_PER_WAIT];

    for (;;) {
        int n = epoll_wait(w->epoll_fd, events, EVENTS_PER_WAIT, -1);

        for (int i = 0; i < n; i++) {
            struct end *e = events[i].data.ptr;
            unsigned what = events[i].events;

            if (!e) {
                take_clients(w);
                continue;
            }
            if ((what & EPOLLOUT) && e->kept && !e->pair->is_dead)
                flush_kept(w, e);
            if ((what & ~(unsigned)EPOLLOUT) && !e->pair->is_dead)
                carry(w, e, what & ~(unsigned)(EPOLLIN | EPOLLOUT));
        }
        free_dead(w);
    }
    return NULL;
}

static void worker_open(struct worker *w, in_port_t *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons(*port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    struct epoll_event ev = {.events = EPOLLIN};
    int one = 1;

    w->listen_fd =
        socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(w->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(w->listen_fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    if (bind(w->listen_fd, (struct sockaddr *)&at, len) < 0 ||
        listen(w->listen_fd, 1024) < 0 ||
        getsockname(w->listen_fd, (struct sockaddr *)&at, &len) < 0)
        die("listen");
    *port = ntohs(at.sin_port);
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->epoll_fd < 0 ||
        epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->listen_fd, &ev) < 0)
        die("epoll");
}

static bool target_parse(char *to)
{
    struct addrinfo *ai = NULL;
    char *colon = strrchr(to, ':');
    struct sockaddr_un *un = (struct sockaddr_un *)&target;

    if (to[0] == '/') {
        if (strlen(to) >= sizeof(un->sun_path))
            return false;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, to, strlen(to) + 1);
        target_len = sizeof(*un);
        return true;
    }
    if (!colon)
        return false;
    *colon = '\0';
    if (getaddrinfo(to, colon + 1, NULL, &ai) != 0)
        return false;
    memcpy(&target, ai->ai_addr, ai->ai_addrlen);
    target_len = ai->ai_addrlen;
    freeaddrinfo(ai);
    return true;
}

int main(int argc, char **argv)
{
    in_port_t port = 0;
    int workers = 1;
    bool has_target = false;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--listen") == 0)
            port = (in_port_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--to") == 0)
            has_target = target_parse(argv[i + 1]);
        else if (strcmp(argv[i], "--workers") == 0)
            workers = atoi(argv[i + 1]);
    }
    if (argc % 2 == 0 || !has_target || workers < 1 || workers > WORKERS_MAX) {
        fprintf(stderr, "usage: relay --listen PORT --to HOST:PORT|/PATH "
                        "[--workers N]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < workers; i++) {
        struct worker *w = calloc(1, sizeof(*w));
        pthread_t thread;

        if (!w)
            die("memory");
        worker_open(w, &port);
        if (pthread_create(&thread, NULL, worker_run, w) != 0)
            die("thread");
    }
    printf("listening %d\n", port);
    fflush(stdout);
    pause();
    return 0;
}
