/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Datagrams that came to the wrong socket. The kernel steers by the first byte
 * of the connection ID, and errs when it merges datagrams of two connections of
 * one peer, when a process has joined or left the port, or for a while after a
 * restart. The connection ID names the owner:
 *
 *   another worker    gets it by its mailbox
 *   another process   gets it by a socket of an abstract Unix address, which is
 *                     made of what the ID says: there is nothing to look up.
 *                     It shares the port, or came before us (an upgrade), or
 *                     before those
 *
 * Neither is passed on twice. What does not fit is lost, like on any wire, and
 * counted.
 *
 * On a port of its own the filter takes the first byte modulo the number of
 * workers. A port shared with other processes has more sockets than one of them
 * knows of; there the first byte is the socket's place in the group as it is.
 * A listener finds its place by sending itself small datagrams, one to each
 * place (quic_group_seek()), and the first that arrives tells: those to places
 * that no socket has come by chance, behind it. Until it has found it, and when
 * the byte names no socket, the kernel spreads by address. A datagram that came
 * by a detour says that places have changed: it looks again. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rand.h"
#include "net/quic_impl.h"

enum {
    PARCELS_MAX = 1024, /* on their way to one worker */
    PLACES = 128,       /* of a group that are looked at */
    SEEK_PAUSE_US = 1000000,
    RELAY_VERSION = 1,
    RELAY_ROUNDS = 64,
    HEAD_BYTES = 3,
    NOWHERE = 0x80, /* with this bit a steering byte names no socket */
};

struct quic_group {
    struct quic_shared *shared;
    int n_workers;
    bool shares_port;
    struct member {
        struct loop *loop;
        struct quic_listener *listener; /* of that loop's thread */
        _Atomic int n_parcels;
    } * at;
};

struct quic_group *quic_group_new(struct quic_shared *s, int n_workers,
                                  bool shares_port)
{
    struct quic_group *g = mem_new(sizeof *g);
    must(n_workers > 0 && n_workers <= 256);
    g->shared = s;
    g->n_workers = n_workers;
    g->shares_port = shares_port;
    g->at = mem_new_array((size_t)n_workers, sizeof *g->at);
    return g;
}

void quic_group_free(struct quic_group *g)
{
    if (!g)
        return;
    free(g->at);
    free(g);
}

void quic_group_set_loop(struct quic_group *g, int worker, struct loop *loop)
{
    g->at[worker].loop = loop;
}

/* --- to another worker ------------------------------------------------------
 */

struct parcel {
    struct message m;
    struct quic_group *group;
    int worker;
    struct addr from, to;
    size_t n;
    uint8_t p[];
};

static void on_parcel(struct message *m, void *loop_data)
{
    struct parcel *k = container_of(m, struct parcel, m);
    struct member *me = &k->group->at[k->worker];
    struct quic_listener *l = me->listener;
    atomic_fetch_sub(&me->n_parcels, 1);
    if (l) {
        l->socket->host->counts.forwarded++;
        quic_group_seek(l);
        quic_demux(l->socket, &k->from, &k->to, k->p, k->n, true);
    }
    free(k);
}

static bool to_worker(struct quic_group *g, int worker, const struct addr *from,
                      const struct addr *to, const uint8_t *p, size_t n)
{
    struct member *to_whom = &g->at[worker];
    if (!to_whom->loop ||
        atomic_fetch_add(&to_whom->n_parcels, 1) >= PARCELS_MAX) {
        if (to_whom->loop)
            atomic_fetch_sub(&to_whom->n_parcels, 1);
        return false;
    }
    struct parcel *k = malloc(sizeof *k + n);
    if (!k) {
        atomic_fetch_sub(&to_whom->n_parcels, 1);
        return false;
    }
    k->m = (struct message){.handle = on_parcel};
    k->group = g;
    k->worker = worker;
    k->from = *from;
    k->to = *to;
    k->n = n;
    memcpy(k->p, p, n);
    mailbox_send(to_whom->loop, &k->m);
    return true;
}

/* --- to another process -----------------------------------------------------
 */

struct quic_relay {
    struct io io;
    struct quic_listener *listener;
};

/* Abstract: it vanishes with the socket, and any process of the network
 * namespace may use it. What it may do with it, it may do over UDP. */
static socklen_t relay_name(struct sockaddr_un *out, const struct addr *local,
                            const struct quic_place *at)
{
    char where[ADDR_TEXT_MAX];
    addr_text(local, where, sizeof where);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1,
                     "pgbraid/quic/%08x/%d/%s", at->process, at->worker, where);
    n = MIN(n, (int)sizeof out->sun_path - 2);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static size_t put_addr(uint8_t *p, const struct addr *a)
{
    memcpy(p, &a->sa, a->len);
    return a->len;
}

/* False when there is no such process any more. */
static bool to_process(struct quic_listener *l, const struct quic_place *whose,
                       const struct addr *from, const struct addr *to,
                       const uint8_t *p, size_t n)
{
    uint8_t head[HEAD_BYTES + 2 * sizeof(struct sockaddr_in6)];
    struct sockaddr_un name;
    size_t head_n = HEAD_BYTES;
    if (from->len > sizeof(struct sockaddr_in6) ||
        to->len > sizeof(struct sockaddr_in6))
        return false;
    head[0] = RELAY_VERSION;
    head[1] = (uint8_t)from->len;
    head[2] = (uint8_t)to->len;
    head_n += put_addr(head + head_n, from);
    head_n += put_addr(head + head_n, to);
    struct iovec iov[2] = {{head, head_n}, {(void *)(uintptr_t)p, n}};
    struct msghdr h = {
        .msg_name = &name,
        .msg_namelen = relay_name(&name, &l->socket->local, whose),
        .msg_iov = iov,
        .msg_iovlen = 2,
    };
    if (sendmsg(l->relay->io.fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return true;
    if (errno == ECONNREFUSED || errno == ENOENT)
        return false;
    l->socket->host->counts.lost++;
    return true;
}

static bool get_addr(struct addr *out, const uint8_t **p, size_t *n, size_t len)
{
    if (len > *n || len > sizeof(struct sockaddr_in6) ||
        len < sizeof(struct sockaddr_in))
        return false;
    *out = (struct addr){.len = (socklen_t)len};
    memcpy(&out->sa, *p, len);
    *p += len;
    *n -= len;
    return (out->sa.sa_family == AF_INET &&
            len == sizeof(struct sockaddr_in)) ||
           (out->sa.sa_family == AF_INET6 &&
            len == sizeof(struct sockaddr_in6));
}

/* The sender is of our account, or root's. */
static bool is_trusted(struct msghdr *h)
{
    for (struct cmsghdr *m = CMSG_FIRSTHDR(h); m; m = CMSG_NXTHDR(h, m)) {
        struct ucred who;
        if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_CREDENTIALS)
            continue;
        memcpy(&who, CMSG_DATA(m), sizeof who);
        return who.uid == geteuid() || who.uid == 0;
    }
    return false;
}

static void take_relayed(struct quic_listener *l, uint8_t *p, size_t n)
{
    struct addr from, to;
    const uint8_t *at = p + HEAD_BYTES;
    if (n < HEAD_BYTES || p[0] != RELAY_VERSION)
        return;
    size_t left = n - HEAD_BYTES;
    if (!get_addr(&from, &at, &left, p[1]) || !get_addr(&to, &at, &left, p[2]))
        return;
    l->socket->host->counts.relayed++;
    quic_group_seek(l);
    quic_demux(l->socket, &from, &to, p + (n - left), left, true);
}

static void on_relay(struct io *io, uint32_t events)
{
    struct quic_relay *r = container_of(io, struct quic_relay, io);
    struct quic_listener *l = r->listener;
    for (int i = 0; i < RELAY_ROUNDS && l->relay == r; i++) {
        union {
            struct cmsghdr align;
            char p[CMSG_SPACE(sizeof(struct ucred))];
        } control;
        struct iovec iov = {l->socket->host->rx, QUIC_DATAGRAM_MAX};
        struct msghdr h = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.p,
                           .msg_controllen = sizeof control.p};
        ssize_t n = recvmsg(io->fd, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
            return;
        if (!(h.msg_flags & MSG_TRUNC) && is_trusted(&h))
            take_relayed(l, iov.iov_base, (size_t)n);
    }
}

static int open_relay(struct quic_listener *l, struct err *e)
{
    struct quic_place me = quic_listener_place(l);
    struct sockaddr_un name;
    socklen_t name_n = relay_name(&name, &l->socket->local, &me);
    int on = 1;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "relay for QUIC: %s", strerror(errno));
    struct quic_relay *r = mem_new(sizeof *r);
    r->listener = l;
    r->io.fd = fd;
    r->io.on_event = on_relay;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        bind(fd, (struct sockaddr *)&name, name_n) ||
        loop_add(l->socket->host->loop, &r->io, EPOLLIN)) {
        int cause = errno;
        close(fd);
        free(r);
        return err_set(e, ERR_IO, "relay for QUIC: %s", strerror(cause));
    }
    l->relay = r;
    return 0;
}

static void close_relay(struct quic_listener *l)
{
    struct quic_relay *r = l->relay;
    if (!r)
        return;
    l->relay = NULL;
    loop_del(l->socket->host->loop, &r->io);
    close(r->io.fd);
    loop_free_later(l->socket->host->loop, r);
}

/* --- whose it is ------------------------------------------------------------
 */

bool quic_group_pass_on(struct quic_listener *l, const ngtcp2_version_cid *vc,
                        const struct addr *from, const struct addr *to,
                        const uint8_t *p, size_t n)
{
    struct quic_group *g = l->p.group;
    struct quic_place whose;
    int worker = -1;
    if (!g)
        return false;
    bool is_place = quic_cid_read(&whose, vc->dcid, vc->dcidlen);
    if (is_place && whose.process == quic_shared_process(g->shared) &&
        whose.worker < g->n_workers) {
        worker = whose.worker;
    } else if (is_place && l->relay) {
        if (whose.process != quic_shared_process(g->shared) &&
            to_process(l, &whose, from, to, p, n))
            return true;
    }
    if (worker < 0 && !g->shares_port && vc->dcidlen > 0)
        worker = vc->dcid[0] % g->n_workers;
    if (worker < 0 || worker == l->p.worker)
        return false;
    if (!to_worker(g, worker, from, to, p, n))
        l->socket->host->counts.lost++;
    return true;
}

/* --- the place in the group -------------------------------------------------
 */

void quic_group_seek(struct quic_listener *l)
{
    struct quic_group *g = l->p.group;
    struct quic_place me = quic_listener_place(l);
    struct addr to = l->socket->local;
    int64_t now = loop_now_us(l->socket->host->loop);
    ngtcp2_cid cid;
    if (!g || !g->shares_port || now < l->seek_after_us)
        return;
    l->seek_after_us = now + SEEK_PAUSE_US;
    if (l->socket->is_any && to.sa.sa_family == AF_INET6)
        to.in6.sin6_addr = in6addr_loopback;
    else if (l->socket->is_any)
        to.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    l->found = UINT8_MAX;
    rand_bytes(l->secret, sizeof l->secret);
    quic_cid_make(&cid, &me);
    memcpy(cid.data + QUIC_CID_RANDOM, l->secret, sizeof l->secret);
    for (int i = 0; i < PLACES; i++) {
        uint8_t p[1 + QUIC_CID_BYTES] = {0}; /* no packet of QUIC begins so */
        cid.data[0] = (uint8_t)i;
        memcpy(p + 1, cid.data, QUIC_CID_BYTES);
        if (sendto(l->socket->io.fd, p, sizeof p, MSG_DONTWAIT, &to.sa,
                   to.len) < 0)
            return;
    }
}

bool quic_group_found(struct quic_listener *l, const uint8_t *p, size_t n)
{
    struct quic_place at, me = quic_listener_place(l);
    if (n == 0 || p[0] & 0xc0)
        return false;
    if (n == 1 + QUIC_CID_BYTES && quic_cid_read(&at, p + 1, QUIC_CID_BYTES) &&
        at.process == me.process && at.worker == me.worker &&
        memcmp(p + 1 + QUIC_CID_RANDOM, l->secret, sizeof l->secret) == 0)
        l->steer = l->found = MIN(l->found, at.steer);
    return true;
}

struct quic_place quic_listener_place(const struct quic_listener *l)
{
    const struct quic_listener_params *p = &l->p;
    bool shares = p->group && p->group->shares_port;
    return (struct quic_place){
        .process = quic_shared_process(p->shared),
        .worker = p->worker,
        .steer = shares ? l->steer : quic_cid_steer(p->worker, p->n_workers),
    };
}

int quic_group_join(struct quic_listener *l, struct err *e)
{
    struct quic_group *g = l->p.group;
    l->steer = NOWHERE;
    if (!g)
        return 0;
    int rc = open_relay(l, e);
    if (rc)
        return rc;
    g->at[l->p.worker].listener = l;
    quic_group_seek(l);
    return 0;
}

void quic_group_leave(struct quic_listener *l)
{
    if (!l->p.group)
        return;
    l->p.group->at[l->p.worker].listener = NULL;
    close_relay(l);
}
