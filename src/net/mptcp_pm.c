/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/mptcp_pm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/genetlink.h>
#include <linux/mptcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "net/mptcp.h"
#include "net/netlink.h"

enum {
    LOCAL_ID = 1,        /* of the address that the connection has anyway */
    EVENTS_BYTES = 4096, /* nobody reads them */
    SYSCTL_TEXT_MAX = 32,
};

struct mptcp_pm {
    int fd, events_fd;
    int family, events_group; /* of generic netlink */
};

static bool read_sysctl(const char *path, char text[SYSCTL_TEXT_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, SYSCTL_TEXT_MAX - 1);
    close(fd);
    text[MAX(n, 0)] = 0;
    text[strcspn(text, "\n")] = 0;
    return n > 0;
}

/* path_manager came with Linux 6.15, pm_type with 5.19. */
static int check_sysctl(struct err *e)
{
    char text[SYSCTL_TEXT_MAX];
    if (read_sysctl("/proc/sys/net/mptcp/path_manager", text)) {
        if (!strcmp(text, "userspace"))
            return 0;
        return err_set(e, ERR_UNSUPPORTED,
                       "net.mptcp.path_manager is \"%s\"; run: sysctl -w "
                       "net.mptcp.path_manager=userspace (it holds for every "
                       "MPTCP user of this host)",
                       text);
    }
    if (!read_sysctl("/proc/sys/net/mptcp/pm_type", text))
        return err_set(e, ERR_UNSUPPORTED,
                       "this kernel has no userspace path manager "
                       "(net.mptcp.pm_type; it needs Linux 5.19)");
    if (strcmp(text, "1") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "net.mptcp.pm_type is %s; run: sysctl -w "
                       "net.mptcp.pm_type=1 (it holds for every MPTCP user of "
                       "this host)",
                       text);
    return 0;
}

static int check_capability(struct err *e)
{
    struct __user_cap_header_struct head = {.version =
                                                _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    if (syscall(SYS_capget, &head, data) == 0 &&
        (data[CAP_TO_INDEX(CAP_NET_ADMIN)].effective &
         CAP_TO_MASK(CAP_NET_ADMIN)))
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "the process lacks CAP_NET_ADMIN (systemd: "
                   "CapabilityBoundingSet and AmbientCapabilities)");
}

/* --- the family ------------------------------------------------------------
 */

/* One entry of CTRL_ATTR_MCAST_GROUPS. */
static void read_group(struct mptcp_pm *pm, const void *p, size_t n)
{
    size_t name_n, id_n;
    const struct nlattr *name = netlink_find(p, n, CTRL_ATTR_MCAST_GRP_NAME);
    const struct nlattr *id = netlink_find(p, n, CTRL_ATTR_MCAST_GRP_ID);
    if (!name || !id)
        return;
    const char *text = netlink_data(name, &name_n);
    const void *value = netlink_data(id, &id_n);
    if (id_n == sizeof(uint32_t) && name_n == sizeof MPTCP_PM_EV_GRP_NAME &&
        !memcmp(text, MPTCP_PM_EV_GRP_NAME, name_n))
        memcpy(&pm->events_group, value, id_n);
}

static void read_family(void *arg, const struct nlmsghdr *h)
{
    struct mptcp_pm *pm = arg;
    size_t head = NLMSG_LENGTH(GENL_HDRLEN), n, group_n;
    if (h->nlmsg_len < head)
        return;
    const char *p = (const char *)h + head;
    const struct nlattr *a =
        netlink_find(p, h->nlmsg_len - head, CTRL_ATTR_FAMILY_ID);
    const void *value = a ? netlink_data(a, &n) : NULL;
    uint16_t family;
    if (!value || n != sizeof family)
        return;
    memcpy(&family, value, sizeof family);
    pm->family = family;
    a = netlink_find(p, h->nlmsg_len - head, CTRL_ATTR_MCAST_GROUPS);
    const void *groups = a ? netlink_data(a, &n) : NULL;
    for (int i = 1; groups && (a = netlink_find(groups, n, i)); i++) {
        const void *group = netlink_data(a, &group_n);
        read_group(pm, group, group_n);
    }
}

static int find_family(struct mptcp_pm *pm)
{
    struct netlink_request r;
    struct genlmsghdr head = {.cmd = CTRL_CMD_GETFAMILY, .version = 1};
    netlink_begin(&r, GENL_ID_CTRL, 0, &head, sizeof head);
    netlink_put(&r, CTRL_ATTR_FAMILY_NAME, MPTCP_PM_NAME, sizeof MPTCP_PM_NAME);
    return netlink_call(pm->fd, &r, read_family, pm);
}

int mptcp_pm_new(struct mptcp_pm **out, struct err *e)
{
    int rc = check_sysctl(e);
    if (rc == 0)
        rc = check_capability(e);
    if (rc)
        return rc;
    struct mptcp_pm *pm = mem_new(sizeof *pm);
    pm->events_fd = -1;
    pm->fd = netlink_open(NETLINK_GENERIC);
    int cause = pm->fd < 0 ? -errno : find_family(pm);
    if (cause == 0 && !pm->family)
        cause = -ENOENT;
    if (cause) {
        mptcp_pm_free(pm);
        return err_set(e, ERR_UNSUPPORTED,
                       "cannot reach the kernel's path manager: %s",
                       strerror(-cause));
    }
    *out = pm;
    return 0;
}

void mptcp_pm_free(struct mptcp_pm *pm)
{
    if (!pm)
        return;
    if (pm->fd >= 0)
        close(pm->fd);
    if (pm->events_fd >= 0)
        close(pm->events_fd);
    free(pm);
}

int mptcp_pm_let_peers_join(struct mptcp_pm *pm, struct err *e)
{
    int size = EVENTS_BYTES;
    if (pm->events_fd >= 0)
        return 0;
    pm->events_fd = netlink_open(NETLINK_GENERIC);
    if (pm->events_fd >= 0)
        (void)setsockopt(pm->events_fd, SOL_SOCKET, SO_RCVBUF, &size,
                         sizeof size);
    if (pm->events_fd < 0 ||
        setsockopt(pm->events_fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP,
                   &pm->events_group, sizeof pm->events_group))
        return err_set(e, ERR_UNSUPPORTED,
                       "cannot listen to the kernel's path manager, so that "
                       "peers can add no subflows: %s",
                       strerror(errno));
    return 0;
}

/* --- subflows --------------------------------------------------------------
 */

static void put_end(struct netlink_request *r, int type, const struct addr *a,
                    bool is_local)
{
    uint16_t family = a->sa.sa_family, port = (uint16_t)addr_port(a);
    uint8_t id = LOCAL_ID;
    size_t nest = netlink_nest(r, type);
    netlink_put(r, MPTCP_PM_ADDR_ATTR_FAMILY, &family, sizeof family);
    if (family == AF_INET)
        netlink_put(r, MPTCP_PM_ADDR_ATTR_ADDR4, &a->in.sin_addr,
                    sizeof a->in.sin_addr);
    else
        netlink_put(r, MPTCP_PM_ADDR_ATTR_ADDR6, &a->in6.sin6_addr,
                    sizeof a->in6.sin6_addr);
    if (is_local) {
        netlink_put(r, MPTCP_PM_ADDR_ATTR_ID, &id, sizeof id);
        netlink_put_u32(r, MPTCP_PM_ADDR_ATTR_FLAGS,
                        MPTCP_PM_ADDR_FLAG_SUBFLOW);
    } else {
        netlink_put(r, MPTCP_PM_ADDR_ATTR_PORT, &port, sizeof port);
    }
    netlink_nest_end(r, nest);
}

static const char *explain(int cause)
{
    switch (cause) {
    case EINVAL:
        return "the connection was made before net.mptcp.path_manager was set "
               "to userspace";
    case EPERM:
        return "the process lacks CAP_NET_ADMIN";
    default:
        return strerror(cause);
    }
}

int mptcp_pm_add_subflow(struct mptcp_pm *pm, int fd, struct err *e)
{
    struct netlink_request r;
    struct genlmsghdr head = {.cmd = MPTCP_PM_CMD_SUBFLOW_CREATE,
                              .version = MPTCP_PM_VER};
    struct mptcp_conn conn;
    struct addr local, remote;
    if (!mptcp_read(fd, &conn) || addr_of_self(fd, &local) ||
        addr_of_peer(fd, &remote))
        return err_set(e, ERR_UNSUPPORTED, "it does not use Multipath TCP");
    netlink_begin(&r, pm->family, 0, &head, sizeof head);
    netlink_put_u32(&r, MPTCP_PM_ATTR_TOKEN, conn.token);
    put_end(&r, MPTCP_PM_ATTR_ADDR, &local, true);
    put_end(&r, MPTCP_PM_ATTR_ADDR_REMOTE, &remote, false);
    int rc = netlink_call(pm->fd, &r, NULL, NULL);
    if (rc)
        return err_set(e, ERR_IO, "%s", explain(-rc));
    return 0;
}
