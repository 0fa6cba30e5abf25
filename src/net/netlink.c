/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/netlink.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MAX = 16384 };

int netlink_open(int protocol)
{
    struct sockaddr_nl self = {.nl_family = AF_NETLINK};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        return -1;
    if (bind(fd, (struct sockaddr *)&self, sizeof self)) {
        int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

static void *append(struct netlink_request *r, size_t n)
{
    size_t at = NLMSG_ALIGN(r->n);
    must(at + n <= sizeof r->buf);
    memset(r->buf + r->n, 0, at + n - r->n);
    r->n = at + n;
    return r->buf + at;
}

void netlink_begin(struct netlink_request *r, int type, int flags,
                   const void *head, size_t n)
{
    r->n = 0;
    struct nlmsghdr *h = append(r, sizeof *h);
    h->nlmsg_type = (uint16_t)type;
    h->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    memcpy(append(r, n), head, n);
}

void netlink_put(struct netlink_request *r, int type, const void *p, size_t n)
{
    struct nlattr *a = append(r, NLA_HDRLEN);
    a->nla_type = (uint16_t)type;
    a->nla_len = (uint16_t)(NLA_HDRLEN + n);
    memcpy(append(r, n), p, n);
}

void netlink_put_u32(struct netlink_request *r, int type, uint32_t value)
{
    netlink_put(r, type, &value, sizeof value);
}

size_t netlink_nest(struct netlink_request *r, int type)
{
    size_t at = NLMSG_ALIGN(r->n);
    netlink_put(r, type | NLA_F_NESTED, "", 0);
    return at;
}

void netlink_nest_end(struct netlink_request *r, size_t nest)
{
    struct nlattr *a = (struct nlattr *)(r->buf + nest);
    a->nla_len = (uint16_t)(r->n - nest);
}

/* True when it was the last message of the answer. */
static bool take(const struct nlmsghdr *h, int *rc, netlink_cb cb, void *arg)
{
    if (h->nlmsg_type == NLMSG_ERROR) {
        const struct nlmsgerr *e = NLMSG_DATA(h);
        bool is_whole = h->nlmsg_len >= NLMSG_LENGTH(sizeof e->error);
        *rc = is_whole ? e->error : -EPROTO;
        return true;
    }
    if (h->nlmsg_type == NLMSG_DONE)
        return true;
    if (cb)
        cb(arg, h);
    return false;
}

/* An acknowledgement is asked for, so that each answer has an end. */
int netlink_call(int fd, struct netlink_request *r, netlink_cb cb, void *arg)
{
    _Alignas(struct nlmsghdr) char buf[ANSWER_MAX];
    struct nlmsghdr *h = (struct nlmsghdr *)r->buf;
    int rc = 0;
    h->nlmsg_len = (uint32_t)r->n;
    h->nlmsg_flags |= NLM_F_ACK;
    if (send(fd, r->buf, r->n, 0) < 0)
        return -errno;
    for (;;) {
        ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        size_t left = (size_t)n;
        h = (struct nlmsghdr *)buf;
        while (NLMSG_OK(h, left)) {
            if (take(h, &rc, cb, arg))
                return rc;
            h = NLMSG_NEXT(h, left);
        }
    }
}

const struct nlattr *netlink_find(const void *p, size_t n, int type)
{
    const char *at = p;
    while (n >= NLA_HDRLEN) {
        const struct nlattr *a = (const struct nlattr *)at;
        size_t size = NLA_ALIGN(a->nla_len);
        if (a->nla_len < NLA_HDRLEN || a->nla_len > n)
            return NULL;
        if ((a->nla_type & NLA_TYPE_MASK) == type)
            return a;
        if (size >= n)
            return NULL;
        at += size;
        n -= size;
    }
    return NULL;
}

const void *netlink_data(const struct nlattr *a, size_t *n)
{
    *n = (size_t)(a->nla_len - NLA_HDRLEN);
    return (const char *)a + NLA_HDRLEN;
}
