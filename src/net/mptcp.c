/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The kernel copies as much of each struct as both sides know, so definitions
 * that are older or younger than the kernel do no harm. */
#include "net/mptcp.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/mptcp.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "net/netlink.h"

/* MPTCP_INFO up to Linux 6.5, whatever the installed header knows of it. */
struct info {
    uint8_t subflows, signalled, accepted;
    uint8_t subflows_max, signalled_max, accepted_max;
    uint32_t flags, token;
    uint64_t write_seq, snd_una, rcv_nxt;
    uint8_t local_addr_used, local_addr_max, csum_enabled;
    /* Linux 6.5: */
    uint32_t retransmits;
    uint64_t bytes_retrans, bytes_sent, bytes_received, bytes_acked;
};
_Static_assert(sizeof(struct info) == 80, "the kernel's layout");

/* Of netinet/tcp.h, which linux/tcp.h bars. */
enum {
    TCP_ESTABLISHED_STATE = 1,
    TCP_SYN_SENT_STATE = 2,
    TCP_CLOSE_STATE = 7,
};

/* Header of both subflow arrays, and an array behind it. */
#define SUBFLOW_ARRAY(type)                                                    \
    struct {                                                                   \
        struct mptcp_subflow_data head;                                        \
        type item[MPTCP_SUBFLOWS_MAX];                                         \
    }

bool mptcp_is_missing(int cause)
{
    return cause == ENOPROTOOPT || cause == EPROTONOSUPPORT || cause == EINVAL;
}

int mptcp_check(struct err *e)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_MPTCP);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    if (errno == ENOPROTOOPT)
        return err_set(e, ERR_UNSUPPORTED,
                       "Multipath TCP is turned off; run: sysctl -w "
                       "net.mptcp.enabled=1");
    if (mptcp_is_missing(errno))
        return err_set(e, ERR_UNSUPPORTED,
                       "this kernel has no Multipath TCP (there is no sysctl "
                       "net.mptcp.enabled; it needs Linux 5.6 with "
                       "CONFIG_MPTCP)");
    return err_set(e, ERR_UNSUPPORTED, "cannot make a Multipath TCP socket: %s",
                   strerror(errno));
}

static bool read_info(int fd, struct info *out, socklen_t *n)
{
    *out = (struct info){0};
    *n = sizeof *out;
    return getsockopt(fd, SOL_MPTCP, MPTCP_INFO, out, n) == 0 &&
           !(out->flags & MPTCP_INFO_FLAG_FALLBACK);
}

static bool is_made_as_mptcp(int fd)
{
    int protocol = 0;
    socklen_t n = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) == 0 &&
           protocol == IPPROTO_MPTCP;
}

/* A socket that fell back refuses MPTCP_INFO or sets its flag, depending on
 * when that happened. */
enum mptcp_use mptcp_use_of(int fd)
{
    struct info info;
    socklen_t n;
    if (!is_made_as_mptcp(fd))
        return MPTCP_UNUSED;
    return read_info(fd, &info, &n) ? MPTCP_USED : MPTCP_FELL_BACK;
}

bool mptcp_read(int fd, struct mptcp_conn *out)
{
    struct info info;
    socklen_t n;
    if (!is_made_as_mptcp(fd) || !read_info(fd, &info, &n))
        return false;
    *out = (struct mptcp_conn){
        .token = info.token,
        .extra_subflows = info.subflows,
        .has_totals = n >= sizeof info,
        .sent_bytes = info.bytes_sent,
        .received_bytes = info.bytes_received,
    };
    return true;
}

/* --- subflows ------------------------------------------------------------- */

static void copy_addr(struct addr *to, const void *from)
{
    *to = (struct addr){0};
    memcpy(&to->sa.sa_family, from, sizeof to->sa.sa_family);
    to->len = to->sa.sa_family == AF_INET6 ? sizeof to->in6 : sizeof to->in;
    memcpy(&to->sa, from, to->len);
    addr_unmap(to);
}

static void describe(struct mptcp_subflow *out, const struct tcp_info *tcp)
{
    *out = (struct mptcp_subflow){
        .sent_bytes = tcp->tcpi_bytes_sent - tcp->tcpi_bytes_retrans,
        .received_bytes = tcp->tcpi_bytes_received,
        .retransmits = tcp->tcpi_total_retrans,
        .rtt_us = tcp->tcpi_rtt,
        .cwnd = tcp->tcpi_snd_cwnd,
        .backup = -1,
    };
}

static int read_plain(int fd, struct mptcp_subflow *out)
{
    struct tcp_info tcp = {0};
    socklen_t n = sizeof tcp;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &n))
        return 0;
    describe(out, &tcp);
    return addr_of_self(fd, &out->local) || addr_of_peer(fd, &out->remote) ? 0
                                                                           : 1;
}

bool mptcp_is_settled(int fd)
{
    SUBFLOW_ARRAY(struct tcp_info) tcp = {0};
    socklen_t n = sizeof tcp;
    tcp.head.size_subflow_data = sizeof tcp.head;
    tcp.head.size_user = sizeof tcp.item[0];
    if (getsockopt(fd, SOL_MPTCP, MPTCP_TCPINFO, &tcp, &n))
        return true;
    for (uint32_t i = 0; i < MIN(tcp.head.num_subflows, MPTCP_SUBFLOWS_MAX);
         i++)
        if (tcp.item[i].tcpi_state == TCP_SYN_SENT_STATE)
            return false;
    return true;
}

int mptcp_count_subflows(int fd)
{
    SUBFLOW_ARRAY(struct tcp_info) tcp = {0};
    socklen_t n = sizeof tcp;
    struct info info;
    socklen_t info_n;
    int count = 0;
    if (!is_made_as_mptcp(fd) || !read_info(fd, &info, &info_n))
        return -1;
    tcp.head.size_subflow_data = sizeof tcp.head;
    tcp.head.size_user = sizeof tcp.item[0];
    if (getsockopt(fd, SOL_MPTCP, MPTCP_TCPINFO, &tcp, &n))
        return info.subflows + 1;
    for (uint32_t i = 0; i < MIN(tcp.head.num_subflows, MPTCP_SUBFLOWS_MAX);
         i++)
        count += tcp.item[i].tcpi_state == TCP_ESTABLISHED_STATE;
    return count;
}

/* The flags of a subflow are told by sock_diag(7) only. */
static void read_flags(void *arg, const struct nlmsghdr *h)
{
    struct mptcp_subflow *s = arg;
    size_t head = NLMSG_LENGTH(sizeof(struct inet_diag_msg));
    size_t n;
    if (h->nlmsg_len < head)
        return;
    const struct nlattr *a = netlink_find(
        (const char *)h + head, h->nlmsg_len - head, INET_DIAG_ULP_INFO);
    const void *p = a ? netlink_data(a, &n) : NULL;
    a = p ? netlink_find(p, n, INET_ULP_INFO_MPTCP) : NULL;
    p = a ? netlink_data(a, &n) : NULL;
    a = p ? netlink_find(p, n, MPTCP_SUBFLOW_ATTR_FLAGS) : NULL;
    p = a ? netlink_data(a, &n) : NULL;
    if (!p || n != sizeof(uint32_t))
        return;
    uint32_t flags;
    memcpy(&flags, p, sizeof flags);
    s->backup =
        (flags & (MPTCP_SUBFLOW_FLAG_BKUP_REM | MPTCP_SUBFLOW_FLAG_BKUP_LOC)) !=
        0;
}

static void put_ends(struct inet_diag_sockid *id, const struct addr *local,
                     const struct addr *remote)
{
    if (local->sa.sa_family == AF_INET) {
        id->idiag_src[0] = local->in.sin_addr.s_addr;
        id->idiag_dst[0] = remote->in.sin_addr.s_addr;
    } else {
        memcpy(id->idiag_src, &local->in6.sin6_addr, sizeof id->idiag_src);
        memcpy(id->idiag_dst, &remote->in6.sin6_addr, sizeof id->idiag_dst);
    }
    id->idiag_sport = htons((uint16_t)addr_port(local));
    id->idiag_dport = htons((uint16_t)addr_port(remote));
    id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

static void read_backup(int diag, struct mptcp_subflow *s)
{
    struct netlink_request r;
    struct inet_diag_req_v2 q = {
        .sdiag_family = (uint8_t)s->local.sa.sa_family,
        .sdiag_protocol = IPPROTO_TCP,
        .idiag_ext = 1 << (INET_DIAG_INFO - 1),
        .idiag_states = ~0u,
    };
    put_ends(&q.id, &s->local, &s->remote);
    netlink_begin(&r, SOCK_DIAG_BY_FAMILY, 0, &q, sizeof q);
    (void)netlink_call(diag, &r, read_flags, s); /* else it stays unknown */
}

/* The two arrays are read one after the other: a subflow that comes or goes in
 * between may leave one of them longer. */
int mptcp_read_subflows(int fd, struct mptcp_subflow out[MPTCP_SUBFLOWS_MAX])
{
    SUBFLOW_ARRAY(struct tcp_info) tcp = {0};
    SUBFLOW_ARRAY(struct mptcp_subflow_addrs) at = {0};
    socklen_t tcp_n = sizeof tcp, at_n = sizeof at;
    tcp.head.size_subflow_data = at.head.size_subflow_data = sizeof tcp.head;
    tcp.head.size_user = sizeof tcp.item[0];
    at.head.size_user = sizeof at.item[0];
    if (getsockopt(fd, SOL_MPTCP, MPTCP_TCPINFO, &tcp, &tcp_n) ||
        getsockopt(fd, SOL_MPTCP, MPTCP_SUBFLOW_ADDRS, &at, &at_n))
        return read_plain(fd, out);
    int n = (int)MIN(tcp.head.num_subflows, at.head.num_subflows);
    n = MIN(n, (int)MPTCP_SUBFLOWS_MAX);
    int diag = netlink_open(NETLINK_SOCK_DIAG), alive = 0;
    for (int i = 0; i < n; i++) {
        if (tcp.item[i].tcpi_state == TCP_CLOSE_STATE)
            continue;
        struct mptcp_subflow *s = &out[alive++];
        describe(s, &tcp.item[i]);
        copy_addr(&s->local, &at.item[i].ss_local);
        copy_addr(&s->remote, &at.item[i].ss_remote);
        if (diag >= 0)
            read_backup(diag, s);
    }
    if (diag >= 0)
        close(diag);
    return alive;
}
