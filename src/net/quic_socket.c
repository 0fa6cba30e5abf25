/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* UDP: opening with steering, receiving in batches, sending with GSO. */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "net/quic_impl.h"

enum {
    BUFFER_BYTES = 4 << 20,
    RX_ROUNDS = 8,  /* batches of one turn */
    STUCK_MAX = 64, /* sends that wait for the socket; more are lost */
    TOLD_PER_SECOND = 50,
    SECOND_US = 1000000,
};

/* Also when a process of another account has it, with so_reuseport. */
#define IN_USE                                                                 \
    "; to share the port of another process set so_reuseport = 1 in both, "    \
    "else quic_listen_port"

/* --- opening ----------------------------------------------------------------
 */

static int set(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

/* Packets say their own size to the path (RFC 9000, 14): never fragmented, and
 * not held back by what the kernel believes of the path. */
static void set_options(int fd, int family, bool is_listening)
{
    (void)set(fd, SOL_SOCKET, SO_RCVBUF, BUFFER_BYTES);
    (void)set(fd, SOL_SOCKET, SO_SNDBUF, BUFFER_BYTES);
    (void)set(fd, SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES); /* if allowed */
    (void)set(fd, SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES);
    (void)set(fd, SOL_UDP, UDP_GRO, 1);
    if (family == AF_INET6) {
        (void)set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
        (void)set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
        if (is_listening)
            (void)set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    } else {
        (void)set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
        if (is_listening)
            (void)set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    }
}

static int open_one(const struct addr *at, bool shares, struct err *e)
{
    char text[ADDR_TEXT_MAX];
    addr_text(at, text, sizeof text);
    int fd =
        socket(at->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "UDP socket for %s: %s", text,
                       strerror(errno));
    set_options(fd, at->sa.sa_family, true);
    if ((shares && set(fd, SOL_SOCKET, SO_REUSEPORT, 1)) ||
        bind(fd, &at->sa, at->len)) {
        int cause = errno;
        close(fd);
        return err_set(e, ERR_CONF, "cannot listen on UDP %s: %s%s", text,
                       strerror(cause), cause == EADDRINUSE ? IN_USE : "");
    }
    return fd;
}

/* Index of the socket, in the order of binding: the first byte of the
 * destination connection ID, modulo n, or as it is when n is 0; an index that
 * no socket has leaves it to the kernel's hash. It is byte 6 of a long header
 * and byte 1 of a short one. */
static int steer(int fd, int n)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x80, 0, 2),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 6),
        BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0),
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 1),
        BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, n ? (unsigned)n : 256),
        BPF_STMT(BPF_RET | BPF_A, 0),
    };
    struct sock_fprog p = {ARRAY_SIZE(code), code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &p, sizeof p);
}

/* Without so_reuseport nobody else may have the port, or the order of the
 * sockets would not be ours. */
static int check_alone(struct addr *at, struct err *e)
{
    int probe = open_one(at, false, e);
    if (probe < 0)
        return probe;
    int rc = addr_of_self(probe, at);
    close(probe);
    return rc ? err_set(e, ERR_IO, "UDP socket: %s", strerror(errno)) : 0;
}

int quic_sockets_open(int *fds, int n, bool shares_port, const struct addr *at,
                      struct err *e)
{
    struct addr real = *at;
    bool is_group = n > 1 || shares_port;
    int opened = 0, rc = shares_port ? 0 : check_alone(&real, e);
    while (opened < n && rc == 0) {
        fds[opened] = open_one(&real, is_group, e);
        if (fds[opened] < 0) {
            rc = fds[opened];
            break;
        }
        if (opened++ > 0)
            continue;
        if (addr_of_self(fds[0], &real) ||
            (is_group && steer(fds[0], shares_port ? 0 : n)))
            rc = err_set(e, ERR_IO, "steering of UDP sockets: %s",
                         strerror(errno));
    }
    while (rc && opened > 0)
        close(fds[--opened]);
    return rc;
}

int quic_udp_connect(const struct addr *to, struct err *e)
{
    char text[ADDR_TEXT_MAX];
    addr_text(to, text, sizeof text);
    int fd =
        socket(to->sa.sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "UDP socket for %s: %s", text,
                       strerror(errno));
    set_options(fd, to->sa.sa_family, false);
    if (connect(fd, &to->sa, to->len)) {
        int cause = errno;
        close(fd);
        return err_set(e, ERR_CONNECT, "UDP to %s: %s", text, strerror(cause));
    }
    return fd;
}

/* --- receiving --------------------------------------------------------------
 */

struct rx {
    struct mmsghdr mm[QUIC_RX_BATCH];
    struct iovec iov[QUIC_RX_BATCH];
    struct addr from[QUIC_RX_BATCH];
    union {
        struct cmsghdr align;
        char p[128];
    } control[QUIC_RX_BATCH];
};

static void prepare(struct rx *rx, char *buffer)
{
    for (int i = 0; i < QUIC_RX_BATCH; i++) {
        rx->iov[i] = (struct iovec){buffer + (size_t)i * QUIC_DATAGRAM_MAX,
                                    QUIC_DATAGRAM_MAX};
        rx->mm[i].msg_hdr = (struct msghdr){
            .msg_name = &rx->from[i].sa,
            .msg_namelen = sizeof(struct sockaddr_un),
            .msg_iov = &rx->iov[i],
            .msg_iovlen = 1,
            .msg_control = rx->control[i].p,
            .msg_controllen = sizeof rx->control[i].p,
        };
    }
}

/* The size of the packets that were merged, and the address they came to. */
static void read_control(struct msghdr *h, const struct quic_socket *s,
                         size_t *seg, struct addr *to)
{
    for (struct cmsghdr *m = CMSG_FIRSTHDR(h); m; m = CMSG_NXTHDR(h, m)) {
        if (m->cmsg_level == SOL_UDP && m->cmsg_type == UDP_GRO) {
            int n;
            memcpy(&n, CMSG_DATA(m), sizeof n);
            if (n > 0)
                *seg = (size_t)n;
        } else if (s->is_any && m->cmsg_level == IPPROTO_IP &&
                   m->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo i;
            memcpy(&i, CMSG_DATA(m), sizeof i);
            to->in.sin_addr = i.ipi_addr;
        } else if (s->is_any && m->cmsg_level == IPPROTO_IPV6 &&
                   m->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo i;
            memcpy(&i, CMSG_DATA(m), sizeof i);
            to->in6.sin6_addr = i.ipi6_addr;
            to->in6.sin6_scope_id =
                IN6_IS_ADDR_LINKLOCAL(&i.ipi6_addr) ? i.ipi6_ifindex : 0;
        }
    }
}

static void take(struct quic_socket *s, struct rx *rx, int i)
{
    struct msghdr *h = &rx->mm[i].msg_hdr;
    size_t n = rx->mm[i].msg_len, seg = MAX(n, (size_t)1);
    struct addr to = s->local;
    uint8_t *p = rx->iov[i].iov_base;
    if (h->msg_flags & MSG_TRUNC)
        return;
    rx->from[i].len = h->msg_namelen;
    read_control(h, s, &seg, &to);
    for (size_t at = 0; at < n && !s->is_closed; at += seg)
        quic_demux(s, &rx->from[i], &to, p + at, MIN(seg, n - at), false);
}

static void receive(struct quic_socket *s)
{
    struct rx rx;
    for (int round = 0; round < RX_ROUNDS && !s->is_closed; round++) {
        prepare(&rx, s->host->rx);
        int n = recvmmsg(s->io.fd, rx.mm, QUIC_RX_BATCH, MSG_DONTWAIT, NULL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN && s->client) {
            quic_conn_refused(s->client, errno);
            return;
        }
        if (n < 0 && errno != EAGAIN && round + 1 < RX_ROUNDS)
            continue; /* an ICMP error about a packet sent earlier */
        for (int i = 0; i < n; i++)
            take(s, &rx, i);
        if (n < QUIC_RX_BATCH)
            return;
    }
    if (!s->is_closed)
        loop_defer(s->host->loop, &s->rx);
}

static void on_rx_task(struct task *t)
{
    receive(container_of(t, struct quic_socket, rx));
}

/* --- sending ----------------------------------------------------------------
 */

struct quic_batch {
    struct quic_batch *next;
    struct addr to, from;
    size_t n, seg;
    uint8_t p[];
};

static size_t put_pktinfo(const struct quic_socket *s, struct cmsghdr *m,
                          const struct sockaddr *from)
{
    if (!s->is_any || !from)
        return 0;
    if (from->sa_family == AF_INET) {
        struct in_pktinfo i = {0};
        i.ipi_spec_dst = ((const struct sockaddr_in *)from)->sin_addr;
        m->cmsg_level = IPPROTO_IP;
        m->cmsg_type = IP_PKTINFO;
        m->cmsg_len = CMSG_LEN(sizeof i);
        memcpy(CMSG_DATA(m), &i, sizeof i);
        return CMSG_SPACE(sizeof i);
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
    struct in6_pktinfo i = {.ipi6_addr = in6->sin6_addr,
                            .ipi6_ifindex = in6->sin6_scope_id};
    m->cmsg_level = IPPROTO_IPV6;
    m->cmsg_type = IPV6_PKTINFO;
    m->cmsg_len = CMSG_LEN(sizeof i);
    memcpy(CMSG_DATA(m), &i, sizeof i);
    return CMSG_SPACE(sizeof i);
}

static size_t put_segment(struct cmsghdr *m, size_t seg)
{
    uint16_t size = (uint16_t)seg;
    m->cmsg_level = SOL_UDP;
    m->cmsg_type = UDP_SEGMENT;
    m->cmsg_len = CMSG_LEN(sizeof size);
    memcpy(CMSG_DATA(m), &size, sizeof size);
    return CMSG_SPACE(sizeof size);
}

/* One system call. 0, or errno. */
static int try_send(const struct quic_socket *s, const struct sockaddr *to,
                    socklen_t to_len, const struct sockaddr *from,
                    const uint8_t *p, size_t n, size_t seg)
{
    union {
        struct cmsghdr align;
        char p[CMSG_SPACE(sizeof(struct in6_pktinfo)) +
               CMSG_SPACE(sizeof(uint16_t))];
    } control;
    struct iovec iov = {(void *)(uintptr_t)p, n};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t used;
    memset(&control, 0, sizeof control);
    if (!s->is_connected) {
        h.msg_name = (void *)(uintptr_t)to;
        h.msg_namelen = to_len;
    }
    used = put_pktinfo(s, (struct cmsghdr *)control.p, from);
    if (n > seg)
        used += put_segment((struct cmsghdr *)(control.p + used), seg);
    if (used) {
        h.msg_control = control.p;
        h.msg_controllen = used;
    }
    while (sendmsg(s->io.fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

static bool is_full(int cause)
{
    return cause == EAGAIN || cause == ENOBUFS;
}

static uint32_t base_events(const struct quic_socket *s)
{
    return s->is_given_away ? 0 : EPOLLIN;
}

static void keep(struct quic_socket *s, const ngtcp2_path *path,
                 const uint8_t *p, size_t n, size_t seg)
{
    struct quic_batch *b = malloc(sizeof *b + n);
    int count = 0;
    for (const struct quic_batch *i = s->stuck; i; i = i->next)
        count++;
    if (!b || count >= STUCK_MAX) {
        free(b); /* lost, like on any wire */
        return;
    }
    b->next = NULL;
    b->n = n;
    b->seg = seg;
    b->to.len = path->remote.addrlen;
    memcpy(&b->to.sa, path->remote.addr, path->remote.addrlen);
    b->from.len = path->local.addrlen;
    memcpy(&b->from.sa, path->local.addr, path->local.addrlen);
    memcpy(b->p, p, n);
    *s->stuck_end = b;
    s->stuck_end = &b->next;
    loop_mod(s->host->loop, &s->io, base_events(s) | EPOLLOUT);
}

/* What fails for good is lost, like on any wire: too large for the path, no
 * route, a firewall. */
static void send_single(struct quic_socket *s, const ngtcp2_path *path,
                        const uint8_t *p, size_t n, size_t seg)
{
    for (size_t at = 0; at < n; at += seg) {
        size_t k = MIN(seg, n - at);
        int cause = try_send(s, path->remote.addr, path->remote.addrlen,
                             path->local.addr, p + at, k, k);
        if (is_full(cause)) {
            keep(s, path, p + at, n - at, seg);
            return;
        }
    }
}

void quic_socket_send(struct quic_socket *s, const ngtcp2_path *path,
                      const uint8_t *p, size_t n, size_t seg)
{
    int cause;
    if (s->stuck) {
        keep(s, path, p, n, seg);
        return;
    }
    if (s->no_gso) {
        send_single(s, path, p, n, seg);
        return;
    }
    cause = try_send(s, path->remote.addr, path->remote.addrlen,
                     path->local.addr, p, n, seg);
    if (is_full(cause)) {
        keep(s, path, p, n, seg);
    } else if (n > seg && (cause == EIO || cause == EINVAL)) {
        s->no_gso = true; /* no checksum offload on the way out */
        send_single(s, path, p, n, seg);
    } else if (n > seg && cause == EMSGSIZE) {
        send_single(s, path, p, n, seg);
    }
}

bool quic_socket_is_full(const struct quic_socket *s)
{
    return s->stuck != NULL;
}

static void send_stuck(struct quic_socket *s)
{
    while (s->stuck) {
        struct quic_batch *b = s->stuck;
        int cause =
            try_send(s, &b->to.sa, b->to.len, &b->from.sa, b->p, b->n, b->seg);
        if (is_full(cause))
            return;
        s->stuck = b->next;
        free(b);
    }
    s->stuck_end = &s->stuck;
    loop_mod(s->host->loop, &s->io, base_events(s));
    list_for(i, &s->conns)
        quic_conn_mark_dirty(list_entry(i, struct quic_conn, node));
}

/* --- life -------------------------------------------------------------------
 */

static void on_event(struct io *io, uint32_t events)
{
    struct quic_socket *s = container_of(io, struct quic_socket, io);
    if (s->stuck && (events & EPOLLOUT))
        send_stuck(s);
    if (!s->is_given_away && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
        receive(s);
}

static bool is_any(const struct addr *a)
{
    return a->sa.sa_family == AF_INET6
               ? IN6_IS_ADDR_UNSPECIFIED(&a->in6.sin6_addr)
               : a->in.sin_addr.s_addr == htonl(INADDR_ANY);
}

int quic_socket_new(struct quic_socket **out, struct quic_host *h, int fd,
                    struct err *e)
{
    struct quic_socket *s = mem_new(sizeof *s);
    s->host = h;
    s->io.fd = fd;
    s->io.on_event = on_event;
    s->rx.run = on_rx_task;
    s->stuck_end = &s->stuck;
    list_init(&s->rx.node);
    list_init(&s->node);
    list_init(&s->conns);
    if (addr_of_self(fd, &s->local) || loop_add(h->loop, &s->io, EPOLLIN)) {
        int cause = errno;
        close(fd);
        free(s);
        return err_set(e, ERR_IO, "UDP socket: %s", strerror(cause));
    }
    s->is_any = is_any(&s->local);
    list_push_back(&h->sockets, &s->node);
    *out = s;
    return 0;
}

void quic_socket_give_away(struct quic_socket *s, bool is_given_away)
{
    s->is_given_away = is_given_away;
    loop_cancel(&s->rx);
    loop_mod(s->host->loop, &s->io,
             base_events(s) | (s->stuck ? (uint32_t)EPOLLOUT : 0));
    if (!is_given_away)
        loop_defer(s->host->loop, &s->rx); /* what waits there already */
}

void quic_socket_close(struct quic_socket *s)
{
    while (!list_empty(&s->conns))
        quic_conn_destroy(
            list_entry(list_first(&s->conns), struct quic_conn, node));
    while (s->stuck) {
        struct quic_batch *b = s->stuck;
        s->stuck = b->next;
        free(b);
    }
    quic_cids_clear(&s->cids);
    s->is_closed = true;
    loop_cancel(&s->rx);
    loop_del(s->host->loop, &s->io);
    close(s->io.fd);
    list_remove(&s->node);
    loop_free_later(s->host->loop, s);
}

bool quic_socket_may_tell(struct quic_socket *s)
{
    int64_t now = loop_now_us(s->host->loop);
    if (now >= s->quiet_until_us) {
        s->quiet_until_us = now + SECOND_US;
        s->n_told = 0;
    }
    return s->n_told++ < TOLD_PER_SECOND;
}
