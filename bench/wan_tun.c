/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "bench/wan_tun.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "net/netlink.h"

/* The ring in front of the device drops what is beyond it without a word. */
enum { QUEUE_PACKETS = 10000 };

/* --- NAMESPACE,DEVICE,ADDRESS/BITS -----------------------------------------
 */

static int parse_address(struct wan_side *s, struct slice word, struct err *e)
{
    const char *slash = memchr(word.p, '/', word.n);
    int64_t bits = -1;
    size_t n = slash ? (size_t)(slash - word.p) : word.n;
    if (s->n == WAN_ADDRS_MAX)
        return err_set(e, ERR_CONF, "more than %d addresses", WAN_ADDRS_MAX);
    struct addr *at = &s->at[s->n];
    if (!slash || !addr_parse_ip(slice_of(word.p, n), 0, at) ||
        !slice_to_i64(slice_of(slash + 1, word.n - n - 1), &bits) || bits < 0 ||
        bits > (at->sa.sa_family == AF_INET ? 32 : 128))
        return err_set(e, ERR_CONF, "\"" SLICE_FMT "\" is not ADDRESS/BITS",
                       SLICE_ARG(word));
    s->prefix[s->n++] = (int)bits;
    return 0;
}

static void name_namespace(struct wan_side *s, struct slice word)
{
    int n = (int)MIN(word.n, (size_t)200);
    if (word.n > 4 && !memcmp(word.p, "pid:", 4))
        snprintf(s->namespace, sizeof s->namespace, "/proc/%.*s/ns/net", n - 4,
                 word.p + 4);
    else if (memchr(word.p, '/', word.n))
        snprintf(s->namespace, sizeof s->namespace, "%.*s", n, word.p);
    else
        snprintf(s->namespace, sizeof s->namespace, "/run/netns/%.*s", n,
                 word.p);
}

int wan_side_parse(struct wan_side *s, const char *text, struct err *e)
{
    *s = (struct wan_side){.n = 0};
    for (int i = 0; *text || i < 2; i++) {
        struct slice word = slice_of(text, strcspn(text, ","));
        int rc = 0;
        text += word.n;
        text += *text == ',';
        if (word.n == 0)
            return err_set(e, ERR_CONF,
                           "expected NAMESPACE,DEVICE,ADDRESS/BITS,...");
        if (i == 0)
            name_namespace(s, word);
        else if (i > 1)
            rc = parse_address(s, word, e);
        else if (!slice_copy(word, s->device, sizeof s->device))
            rc = err_set(e, ERR_CONF, "device \"" SLICE_FMT "\": too long",
                         SLICE_ARG(word));
        if (rc)
            return rc;
    }
    return 0;
}

/* --- the device ------------------------------------------------------------
 */

static int fail(const char *device, const char *what, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s: %s", device, what, strerror(errno));
}

static int make_device(const struct wan_side *s, int *fd, struct err *e)
{
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    memcpy(r.ifr_name, s->device, sizeof r.ifr_name);
    *fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return fail(s->device, "/dev/net/tun", e);
    if (ioctl(*fd, TUNSETIFF, &r)) {
        int rc = fail(s->device, "cannot make the device", e);
        close(*fd);
        return rc;
    }
    return 0;
}

static int bring_up(int control, const char *device, int mtu, struct err *e)
{
    struct ifreq r = {0};
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", device);
    r.ifr_mtu = mtu;
    if (mtu && ioctl(control, SIOCSIFMTU, &r))
        return fail(device, "cannot set its MTU", e);
    r.ifr_qlen = QUEUE_PACKETS;
    if (mtu && ioctl(control, SIOCSIFTXQLEN, &r))
        return fail(device, "cannot set its queue", e);
    r.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &r))
        return fail(device, "cannot bring it up", e);
    return 0;
}

static int add_address(int netlink, const struct wan_side *s, int i,
                       struct err *e)
{
    const struct addr *a = &s->at[i];
    bool is_v4 = a->sa.sa_family == AF_INET;
    const void *ip =
        is_v4 ? (const void *)&a->in.sin_addr : (const void *)&a->in6.sin6_addr;
    struct ifaddrmsg head = {
        .ifa_family = (uint8_t)a->sa.sa_family,
        .ifa_prefixlen = (uint8_t)s->prefix[i],
        .ifa_flags = IFA_F_NODAD,
        .ifa_index = if_nametoindex(s->device),
    };
    struct netlink_request r;
    netlink_begin(&r, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head,
                  sizeof head);
    netlink_put(&r, IFA_LOCAL, ip, is_v4 ? 4 : 16);
    netlink_put(&r, IFA_ADDRESS, ip, is_v4 ? 4 : 16);
    int rc = netlink_call(netlink, &r, NULL, NULL);
    if (rc == 0)
        return 0;
    errno = -rc;
    return fail(s->device, "cannot add an address", e);
}

static int configure(const struct wan_side *s, int mtu, struct err *e)
{
    int netlink = netlink_open(NETLINK_ROUTE);
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int rc = 0;
    if (netlink < 0 || control < 0)
        rc = fail(s->device, "cannot make a socket", e);
    if (rc == 0)
        rc = bring_up(control, "lo", 0, e);
    if (rc == 0)
        rc = bring_up(control, s->device, mtu, e);
    for (int i = 0; i < s->n && rc == 0; i++)
        rc = add_address(netlink, s, i, e);
    if (netlink >= 0)
        close(netlink);
    if (control >= 0)
        close(control);
    return rc;
}

static int open_inside(const struct wan_side *s, int mtu, int *fd,
                       struct err *e)
{
    int rc = make_device(s, fd, e);
    if (rc)
        return rc;
    rc = configure(s, mtu, e);
    if (rc)
        close(*fd);
    return rc;
}

int wan_tun_open(const struct wan_side *s, int mtu, int *fd, struct err *e)
{
    int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    int there = open(s->namespace, O_RDONLY | O_CLOEXEC);
    int rc = 0;
    if (home < 0 || there < 0 || setns(there, CLONE_NEWNET))
        rc = fail(s->namespace, "cannot enter the namespace", e);
    if (rc == 0) {
        rc = open_inside(s, mtu, fd, e);
        must(setns(home, CLONE_NEWNET) == 0);
    }
    if (home >= 0)
        close(home);
    if (there >= 0)
        close(there);
    return rc;
}
