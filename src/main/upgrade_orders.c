/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/upgrade_orders.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "main/app.h"
#include "net/listener.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

enum {
    ORDER = 1, /* program and file */
    ORDER_DONE = 2,
    ORDER_FAILED = 3, /* why */
    ANSWER_LIMIT_MS = 120 * 1000,
    ORDERS_MAX = 8, /* connections at once */
};

struct order {
    struct app *app;
    struct fdlink *link; /* NULL: whoever asked has gone */
    bool is_running;
};

/* False: there is no place. */
static bool find_place(const struct conf *c, struct addr *at)
{
    int n = -1;
    size_t cap = sizeof at->un.sun_path;
    *at = (struct addr){.len = sizeof at->un};
    at->un.sun_family = AF_UNIX;
    if (c->pidfile && *c->pidfile)
        n = snprintf(at->un.sun_path, cap, "%s.upgrade", c->pidfile);
    else if (c->unix_socket_dir && c->unix_socket_dir[0] == '/')
        n = snprintf(at->un.sun_path, cap, "%s/.s.pgbraid.%d.upgrade",
                     c->unix_socket_dir, c->listen_port);
    return n > 0 && (size_t)n < cap;
}

/* ------------------------------------------------------------- the process */

static void order_free(struct order *o)
{
    if (o->link) {
        fdlink_close(o->link);
        o->app->n_orders--;
    }
    o->link = NULL;
    if (!o->is_running)
        loop_free_later(o->app->loop, o);
}

static void on_done(void *arg, const struct err *e)
{
    struct order *o = arg;
    o->is_running = false;
    if (!o->link) {
        loop_free_later(o->app->loop, o);
        return;
    }
    fdlink_send(o->link, e ? ORDER_FAILED : ORDER_DONE,
                e ? slice_str(e->text) : slice_of("", 0), -1);
    order_free(o); /* so short a text has left */
}

static void on_frame(void *arg, const struct fdlink_frame *f)
{
    struct order *o = arg;
    char program[PATH_MAX], file[PATH_MAX];
    struct pgread r = pgread_of(f->body);
    struct slice p = pgread_cstr(&r), c = pgread_cstr(&r);
    if (f->fd >= 0)
        close(f->fd);
    if (f->type != ORDER || o->is_running || !pgread_done(&r) ||
        !slice_copy(p, program, sizeof program) ||
        !slice_copy(c, file, sizeof file) || program[0] != '/' ||
        file[0] != '/') {
        order_free(o);
        return;
    }
    o->is_running = true;
    upgrade_begin(o->app, program, file, on_done, o);
}

static void on_lost(void *arg, const char *why)
{
    order_free(arg);
}

static const struct fdlink_handler handler = {on_frame, on_lost};

static void on_accept(void *arg, int fd, const struct addr *peer)
{
    struct app *app = arg;
    if (!fdlink_peer_is_ours(fd) || app->n_orders >= ORDERS_MAX) {
        close(fd);
        return;
    }
    struct order *o = mem_new(sizeof *o);
    app->n_orders++;
    o->app = app;
    o->link = fdlink_new(fd);
    fdlink_start(o->link, app->loop, &handler, o);
}

void upgrade_orders_open(struct app *app)
{
    struct listener_options o = {.backlog = 8, .unix_mode = 0600};
    struct addr at;
    struct err e;
    if (!find_place(app->conf, &at))
        return;
    if (app->takes_over)
        (void)unlink(at.un.sun_path); /* the old process's, which has left it */
    int rc = listener_open(&app->orders, &at, &o, &e);
    if (rc == 0)
        rc = listener_start(app->orders, app->loop, on_accept, app, &e);
    if (rc)
        log_warning("pgbraid --upgrade will not find this process: %s", e.text);
}

void upgrade_orders_close(struct app *app)
{
    if (!app->orders)
        return;
    listener_keep_file(app->orders);
    listener_close(app->orders);
    app->orders = NULL;
}

void upgrade_orders_remove(struct app *app)
{
    if (app->orders)
        listener_close(app->orders);
    app->orders = NULL;
}

/* -------------------------------------------------------- the command line */

static int absolute(const char *file, char out[PATH_MAX], struct err *e)
{
    char cwd[PATH_MAX];
    int n;
    if (file[0] == '/')
        n = snprintf(out, PATH_MAX, "%s", file);
    else if (getcwd(cwd, sizeof cwd))
        n = snprintf(out, PATH_MAX, "%s/%s", cwd, file);
    else
        return err_set(e, ERR_IO, "working directory: %s", strerror(errno));
    return n < PATH_MAX ? 0 : err_set(e, ERR_TOO_LARGE, "the name is too long");
}

static int reach(const struct conf *c, int *fd, struct err *e)
{
    struct addr at;
    if (!find_place(c, &at))
        return err_set(e, ERR_CONF,
                       "upgrade: without pidfile and unix_socket_dir the "
                       "running process cannot be found; use UPGRADE on its "
                       "console");
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return err_set(e, ERR_IO, "upgrade: socket: %s", strerror(errno));
    if (connect(*fd, &at.sa, at.len) == 0)
        return 0;
    int cause = errno;
    close(*fd);
    bool is_absent = cause == ENOENT || cause == ECONNREFUSED;
    return err_set(e, is_absent ? ERR_NOTFOUND : ERR_IO, "upgrade: %s: %s%s",
                   at.un.sun_path, strerror(cause),
                   is_absent ? "; no pgbraid runs with this pidfile" : "");
}

static int ask(int fd, const char *program, const char *file, struct err *e)
{
    struct fdlink *l = fdlink_new(fd);
    struct fdlink_frame f;
    struct pgbuf b;
    char text[ERR_TEXT_MAX];
    pgbuf_init(&b, 4 * PATH_MAX);
    pgbuf_put_cstr(&b, program);
    pgbuf_put_cstr(&b, file);
    fdlink_send(l, ORDER, pgbuf_slice(&b), -1);
    pgbuf_fini(&b);
    int rc = fdlink_receive(l, ANSWER_LIMIT_MS, &f, e);
    if (rc == 0 && f.type != ORDER_DONE) {
        slice_copy(f.body, text, sizeof text);
        rc = err_set(e, ERR_CONF, "%s", text);
    }
    fdlink_close(l);
    return rc;
}

int upgrade_order(const struct args *args, const char *program, struct err *e)
{
    char file[PATH_MAX];
    struct conf *c;
    int fd = -1, rc = conf_load(args->file, &c, e);
    if (rc)
        return rc;
    rc = absolute(args->file, file, e);
    if (rc == 0)
        rc = reach(c, &fd, e);
    conf_unref(c);
    return rc ? rc : ask(fd, program, file, e);
}
