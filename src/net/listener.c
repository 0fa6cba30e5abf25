/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "net/mptcp.h"

enum {
    ACCEPTS_PER_TURN = 64,
    BACK_OFF_US = 200 * 1000,
    LOG_EVERY_US = 10 * 1000 * 1000,
};

/* What the loop knows of a listener that accepts; its memory lives to the end
 * of the turn, whatever becomes of the listener. */
struct acceptor {
    struct listener *l;
    struct io io;
    struct timer back_off;
    struct task more; /* the turn's share of accepts was used up */
};

struct listener {
    int fd;
    struct addr at;
    struct loop *loop;         /* NULL: not accepting */
    struct acceptor *acceptor; /* same */
    listener_accept_cb on_accept;
    void *arg;
    int64_t logged_us;
    bool has_file; /* ours to remove */
    bool *gone;    /* of the frame that accepts: set by stop and close */
};

/* --- opening ------------------------------------------------------------- */

static int fail(const struct addr *at, const char *what, int cause,
                struct err *e)
{
    bool is_missing = cause == EADDRNOTAVAIL || cause == EAFNOSUPPORT;
    char where[ADDR_TEXT_MAX];
    if (addr_is_unix(at)) {
        addr_text(at, where, sizeof where);
        return err_set(e, ERR_CONF, "listening on %s: cannot %s: %s%s", where,
                       what, strerror(cause),
                       cause == EADDRINUSE ? "; is another pooler running?"
                                           : "");
    }
    const char *advice = "";
    if (cause == EADDRINUSE)
        advice = "; is another pooler running?";
    else if (cause == EADDRNOTAVAIL)
        advice = "; this machine has no such address";
    else if (cause == EACCES)
        advice = "; a port below 1024 needs privileges";
    addr_host_text(at, where, sizeof where);
    return err_set(e, is_missing ? ERR_NOTFOUND : ERR_CONF,
                   "listen_addr %s port %d: cannot %s: %s%s", where,
                   addr_port(at), what, strerror(cause), advice);
}

static int set_flag(int fd, int level, int name)
{
    int one = 1;
    return setsockopt(fd, level, name, &one, sizeof one);
}

static void set_defer_accept(int fd, int seconds)
{
    /* With it a subflow that joins, and says nothing, would count only after
     * a second. */
    if (mptcp_use_of(fd) == MPTCP_USED)
        return;
    /* A refusal costs a wake-up, nothing else. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds,
                     sizeof seconds);
}

/* Options that accepted sockets inherit are set here, once. */
static int set_tcp_options(int fd, const struct addr *at,
                           const struct listener_options *o, struct err *e)
{
    if (set_flag(fd, SOL_SOCKET, SO_REUSEADDR))
        return fail(at, "set SO_REUSEADDR", errno, e);
    if (o->reuseport && set_flag(fd, SOL_SOCKET, SO_REUSEPORT))
        return fail(at, "set SO_REUSEPORT", errno, e);
    if (at->sa.sa_family == AF_INET6 && set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY))
        return fail(at, "set IPV6_V6ONLY", errno, e);
    (void)set_flag(fd, IPPROTO_TCP, TCP_NODELAY); /* each socket sets it too */
    if (o->defer_accept_s)
        set_defer_accept(fd, o->defer_accept_s);
    return 0;
}

static bool has_path(const struct addr *at)
{
    return addr_is_unix(at) && at->un.sun_path[0];
}

static bool somebody_listens(const struct addr *at)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; /* unknown: leave it alone */
    int rc = connect(fd, &at->sa, at->len);
    /* EAGAIN: its queue is full. */
    bool answers = rc == 0 || errno != ECONNREFUSED;
    close(fd);
    return answers;
}

/* What a crash left behind goes; a socket in use, and what is no socket at all,
 * stay. PgBouncer's and PostgreSQL's lock file counts as in use. */
static int remove_stale(const struct addr *at, struct err *e)
{
    const char *path = at->un.sun_path;
    struct stat st;
    if (lstat(path, &st))
        return errno == ENOENT ? 0 : fail(at, "look at the file", errno, e);
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_CONF,
                       "listening on unix:%s: the file is not a socket; move "
                       "it away",
                       path);
    if (somebody_listens(at))
        return fail(at, "bind", EADDRINUSE, e);
    if (unlink(path) && errno != ENOENT)
        return fail(at, "remove the old socket", errno, e);
    return 0;
}

static int check_lock_file(const struct addr *at, struct err *e)
{
    char path[sizeof at->un.sun_path + sizeof ".lock"];
    snprintf(path, sizeof path, "%s.lock", at->un.sun_path);
    if (access(path, F_OK))
        return 0;
    return err_set(e, ERR_CONF,
                   "listening on unix:%s: %s exists; PostgreSQL listens on "
                   "this port. Choose another one, or remove a stale file",
                   at->un.sun_path, path);
}

static int find_group(const char *name, gid_t *out)
{
    int64_t n;
    if (slice_to_i64(slice_str(name), &n) && n >= 0 && n < UINT32_MAX) {
        *out = (gid_t)n;
        return 0;
    }
    const struct group *g = getgrnam(name);
    if (!g)
        return ERR_NOTFOUND;
    *out = g->gr_gid;
    return 0;
}

static int set_file_rights(const struct addr *at,
                           const struct listener_options *o, struct err *e)
{
    const char *path = at->un.sun_path;
    gid_t gid;
    if (o->unix_group && *o->unix_group) {
        if (find_group(o->unix_group, &gid))
            return err_set(e, ERR_CONF,
                           "unix_socket_group \"%s\": no such group",
                           o->unix_group);
        if (chown(path, (uid_t)-1, gid))
            return err_set(e, ERR_CONF, "unix_socket_group \"%s\": %s: %s",
                           o->unix_group, path, strerror(errno));
    }
    if (o->unix_mode >= 0 && chmod(path, (mode_t)o->unix_mode))
        return err_set(e, ERR_CONF, "unix_socket_mode %04o: %s: %s",
                       (unsigned)o->unix_mode, path, strerror(errno));
    return 0;
}

/* Nobody can connect before the rights are set: listen() comes last. */
static int bind_and_listen(int fd, const struct addr *at,
                           const struct listener_options *o, bool *has_file,
                           struct err *e)
{
    int rc = 0;
    if (!addr_is_unix(at))
        rc = set_tcp_options(fd, at, o, e);
    else if (has_path(at)) {
        rc = check_lock_file(at, e);
        rc = rc ? rc : remove_stale(at, e);
    }
    if (rc)
        return rc;
    if (bind(fd, &at->sa, at->len))
        return fail(at, "bind", errno, e);
    *has_file = has_path(at);
    if (*has_file)
        rc = set_file_rights(at, o, e);
    if (rc)
        return rc;
    if (!o->only_bind && listen(fd, o->backlog))
        return fail(at, "listen", errno, e);
    return 0;
}

static struct listener *new_listener(int fd, bool has_file)
{
    struct listener *l = mem_new(sizeof *l);
    l->fd = fd;
    l->has_file = has_file;
    if (addr_of_self(fd, &l->at))
        l->at = (struct addr){0};
    return l;
}

int listener_open(struct listener **out, const struct addr *at,
                  const struct listener_options *o, struct err *e)
{
    bool mptcp = o->mptcp && !addr_is_unix(at);
    bool has_file = false;
    int fd =
        socket(at->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
               mptcp ? IPPROTO_MPTCP : 0);
    if (fd < 0 && mptcp && mptcp_is_missing(errno)) {
        int missing = mptcp_check(e);
        return missing ? err_wrap(e, "listen_mptcp = 1") : ERR_UNSUPPORTED;
    }
    if (fd < 0)
        return fail(at, "make a socket", errno, e);
    int rc = bind_and_listen(fd, at, o, &has_file, e);
    if (rc) {
        if (has_file)
            (void)unlink(at->un.sun_path); /* the error is told already */
        close(fd);
        return rc;
    }
    *out = new_listener(fd, has_file);
    return 0;
}

int listener_adopt(struct listener **out, int fd, struct err *e)
{
    struct addr at;
    int is_listening = 0;
    socklen_t n = sizeof is_listening;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &n) ||
        !is_listening)
        return err_set(e, ERR_CONF, "descriptor %d: not a listening socket",
                       fd);
    if (addr_of_self(fd, &at) ||
        (at.sa.sa_family != AF_INET && at.sa.sa_family != AF_INET6 &&
         at.sa.sa_family != AF_UNIX))
        return err_set(e, ERR_CONF, "descriptor %d: neither TCP nor Unix", fd);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ||
        fcntl(fd, F_SETFD, FD_CLOEXEC))
        return err_set(e, ERR_CONF, "descriptor %d: %s", fd, strerror(errno));
    *out = new_listener(fd, has_path(&at));
    return 0;
}

/* --- accepting ----------------------------------------------------------- */

/* Out of descriptors or memory: the kernel keeps the clients in its queue, and
 * we look again after a while, when some may have been closed. */
static void back_off(struct listener *l, int cause)
{
    int64_t now = loop_now_us(l->loop);
    if (!l->logged_us || now - l->logged_us > LOG_EVERY_US) {
        char where[ADDR_TEXT_MAX];
        addr_text(&l->at, where, sizeof where);
        l->logged_us = now;
        log_error("cannot accept connections on %s: %s; raise the limit on "
                  "open files (ulimit -n) or lower max_client_conn",
                  where, strerror(cause));
    }
    timer_set(l->loop, &l->acceptor->back_off, now + BACK_OFF_US);
}

/* What is wrong with one connection says nothing about the next (accept(2)). */
static bool is_fault_of_one(int cause)
{
    switch (cause) {
    case ECONNABORTED:
    case EINTR:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case ETIMEDOUT:
        return true;
    default:
        return false;
    }
}

/* 0, or why it cannot go on now. */
static int accept_one(struct listener *l)
{
    struct addr peer = {.len = sizeof peer.un};
    int fd = accept4(l->fd, &peer.sa, &peer.len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return is_fault_of_one(errno) ? 0 : errno;
    if (peer.len == 0) /* some kernels, for a Unix socket without a name */
        peer.sa.sa_family = l->at.sa.sa_family;
    addr_unmap(&peer);
    l->on_accept(l->arg, fd, &peer);
    return 0;
}

static void accept_some(struct listener *l)
{
    bool is_gone = false;
    int cause = 0;
    l->gone = &is_gone;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        cause = accept_one(l);
        if (is_gone)
            return;
        if (cause)
            break;
    }
    l->gone = NULL;
    if (cause == 0)
        loop_defer(l->loop, &l->acceptor->more);
    else if (cause != EAGAIN)
        back_off(l, cause);
}

static void on_event(struct io *io, uint32_t events)
{
    struct acceptor *a = container_of(io, struct acceptor, io);
    if (!timer_is_set(&a->back_off))
        accept_some(a->l);
}

static void on_more(struct task *t)
{
    struct acceptor *a = container_of(t, struct acceptor, more);
    if (!timer_is_set(&a->back_off))
        accept_some(a->l);
}

static void on_back_off(struct timer *t)
{
    accept_some(container_of(t, struct acceptor, back_off)->l);
}

int listener_start(struct listener *l, struct loop *loop, listener_accept_cb cb,
                   void *arg, struct err *e)
{
    must(!l->loop);
    struct acceptor *a = mem_new(sizeof *a);
    *a = (struct acceptor){.l = l,
                           .io = {.fd = l->fd, .on_event = on_event},
                           .back_off.on_fire = on_back_off,
                           .more.run = on_more};
    list_init(&a->more.node);
    if (loop_add(loop, &a->io, EPOLLIN)) {
        int cause = errno;
        free(a);
        return fail(&l->at, "watch the socket", cause, e);
    }
    l->loop = loop;
    l->acceptor = a;
    l->on_accept = cb;
    l->arg = arg;
    return 0;
}

void listener_stop(struct listener *l)
{
    struct acceptor *a = l->acceptor;
    if (!a)
        return;
    if (l->gone)
        *l->gone = true;
    l->gone = NULL;
    timer_clear(l->loop, &a->back_off);
    loop_cancel(&a->more);
    loop_del(l->loop, &a->io);
    loop_free_later(l->loop, a);
    l->loop = NULL;
    l->acceptor = NULL;
}

void listener_set_defer_accept(struct listener *l, int seconds)
{
    if (!addr_is_unix(&l->at))
        set_defer_accept(l->fd, seconds);
}

void listener_set_backlog(struct listener *l, int backlog)
{
    (void)listen(l->fd, backlog);
}

void listener_own_file(struct listener *l)
{
    l->has_file = has_path(&l->at);
}

void listener_keep_file(struct listener *l)
{
    l->has_file = false;
}

void listener_close(struct listener *l)
{
    listener_stop(l);
    if (l->has_file)
        (void)unlink(l->at.un.sun_path); /* gone already: as good */
    close(l->fd);
    free(l);
}

int listener_fd(const struct listener *l)
{
    return l->fd;
}

const struct addr *listener_addr(const struct listener *l)
{
    return &l->at;
}
