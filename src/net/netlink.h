/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* As much of netlink as is needed to ask the kernel one thing and get its
 * answer: a request put together in place, sent, and every message of the
 * answer shown to a callback. The kernel answers before send() returns, so no
 * call waits for anything. Any thread, one at a time for each descriptor. */
#ifndef NET_NETLINK_H
#define NET_NETLINK_H

#include <linux/netlink.h>

#include "base/base.h"

enum { NETLINK_REQUEST_MAX = 512 };

struct netlink_request {
    _Alignas(struct nlmsghdr) char buf[NETLINK_REQUEST_MAX];
    size_t n;
};

/* A netlink socket of this protocol; -1 with errno. */
int netlink_open(int protocol);

/* head is what follows the netlink header (genlmsghdr, ...). */
void netlink_begin(struct netlink_request *r, int type, int flags,
                   const void *head, size_t n);
void netlink_put(struct netlink_request *r, int type, const void *p, size_t n);
void netlink_put_u32(struct netlink_request *r, int type, uint32_t value);

/* Attributes put between the two are inside one of this type. */
size_t netlink_nest(struct netlink_request *r, int type);
void netlink_nest_end(struct netlink_request *r, size_t nest);

/* 0, or the negative errno that the kernel answered with. cb may be NULL. */
typedef void (*netlink_cb)(void *arg, const struct nlmsghdr *h);
int netlink_call(int fd, struct netlink_request *r, netlink_cb cb, void *arg);

/* The attribute of this type among the n bytes at p; NULL if there is none.
 * Its length lies within them. */
const struct nlattr *netlink_find(const void *p, size_t n, int type);
const void *netlink_data(const struct nlattr *a, size_t *n);

#endif
