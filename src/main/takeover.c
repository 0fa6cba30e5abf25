/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/takeover.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "main/app.h"
#include "main/pidfile.h"
#include "main/upgrade.h"
#include "net/addr.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

enum {
    OFFER_LIMIT_MS = 10000,
    COMMIT_LIMIT_MS = 20000,
};

struct takeover {
    struct fdlink *link;
    struct given given;
    bool is_background, is_paused;
    uint8_t process_key[32];
};

int takeover_look(struct app *app, struct err *e)
{
    const char *text = getenv(UPGRADE_VARIABLE);
    int64_t fd;
    if (!text)
        return 0;
    bool ok = slice_to_i64(slice_str(text), &fd) && fd > 2 && fd < 1024 &&
              fdlink_peer_is_ours((int)fd);
    (void)unsetenv(UPGRADE_VARIABLE);
    if (!ok)
        return err_set(e, ERR_CONF,
                       UPGRADE_VARIABLE " is set, but names no socket of a "
                                        "process that is being upgraded");
    app->takeover = mem_new(sizeof *app->takeover);
    app->takeover->given.at =
        mem_new_array(GIVEN_MAX, sizeof *app->takeover->given.at);
    app->takeover->link = fdlink_new((int)fd);
    return 0;
}

static void say(struct app *app, enum generation_frame type, struct pgbuf *b)
{
    fdlink_send(app->takeover->link, (uint8_t)type,
                b ? pgbuf_slice(b) : slice_of("", 0), -1);
    if (b)
        pgbuf_fini(b);
}

static void say_hello(struct app *app)
{
    struct pgbuf b;
    pgbuf_init(&b, 1024);
    pgbuf_put_cstr(&b, GENERATION_MAGIC);
    pgbuf_put_u32(&b, GENERATION_FORMAT);
    pgbuf_put_u32(&b, (uint32_t)getpid());
    pgbuf_put_u8(&b, app->conf->supervisor);
    say(app, GEN_HELLO, &b);
}

static int bad_frame(struct err *e)
{
    return err_set(e, ERR_PROTO,
                   "upgrade: the old process sent what this "
                   "one does not understand");
}

static int take_state(struct takeover *t, struct slice body, struct err *e)
{
    struct pgread r = pgread_of(body);
    t->is_background = pgread_u8(&r);
    uint32_t base = pgread_u32(&r);
    struct slice key = pgread_bytes(&r, sizeof t->process_key);
    t->is_paused = pgread_u8(&r);
    if (!pgread_done(&r))
        return bad_frame(e);
    memcpy(t->process_key, key.p, key.n);
    if (base)
        statement_count_from(base);
    return 0;
}

static int take_socket(struct takeover *t, const struct fdlink_frame *f,
                       struct err *e)
{
    struct pgread r = pgread_of(f->body);
    struct given *g = &t->given;
    struct given_socket s = {.fd = f->fd, .kind = pgread_u8(&r)};
    s.worker = (int)pgread_u32(&r);
    s.is_file = pgread_u8(&r);
    if (!pgread_done(&r) || f->fd < 0 || g->n == GIVEN_MAX)
        return bad_frame(e);
    g->at[g->n++] = s;
    return 0;
}

static int refused(const struct fdlink_frame *f, struct err *e)
{
    char text[ERR_TEXT_MAX];
    slice_copy(f->body, text, sizeof text);
    return err_set(e, ERR_CONF, "upgrade: %.300s", text);
}

int takeover_begin(struct app *app, struct err *e)
{
    struct takeover *t = app->takeover;
    struct fdlink_frame f;
    if (!t)
        return 0;
    say_hello(app);
    for (;;) {
        int rc = fdlink_receive(t->link, OFFER_LIMIT_MS, &f, e);
        if (rc)
            return rc;
        if (f.type == GEN_STATE)
            rc = take_state(t, f.body, e);
        else if (f.type == GEN_SOCKET)
            rc = take_socket(t, &f, e);
        else if (f.type == GEN_REFUSED)
            rc = refused(&f, e);
        else if (f.type == GEN_OFFERED && f.body.n == 1)
            break;
        else
            rc = bad_frame(e);
        if (rc)
            return rc;
    }
    t->given.is_activated = f.body.p[0] != 0;
    app->is_background = t->is_background;
    return 0;
}

struct given *takeover_given(struct app *app)
{
    return app->takeover ? &app->takeover->given : NULL;
}

void takeover_apply_state(struct app *app)
{
    const struct takeover *t = app->takeover;
    if (!t)
        return;
    memcpy(app->shared->process_key, t->process_key, sizeof t->process_key);
    atomic_store(&app->shared->is_paused, t->is_paused);
}

static int take_pool(struct app *app, struct slice body, struct err *e)
{
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, app->shared);
    uint32_t n = pgread_u32(&r);
    bool has_welcome = pgread_u8(&r);
    const struct pg_params *welcome = handover_get_params(&r), *none = NULL;
    if (!rec || !pgread_done(&r) || n > 1000000) {
        pg_params_unref(welcome);
        return bad_frame(e);
    }
    if (!has_welcome ||
        !atomic_compare_exchange_strong(&rec->welcome, &none, welcome))
        pg_params_unref(welcome);
    budget_add_foreign(app->shared, rec, (int)n);
    return 0;
}

static int take_database(struct app *app, struct slice body, struct err *e)
{
    struct pgread r = pgread_of(body);
    struct slice name = handover_get_text(&r);
    bool is_paused = pgread_u8(&r), is_disabled = pgread_u8(&r);
    if (!pgread_done(&r))
        return bad_frame(e);
    struct db_rec *d = shared_db(app->shared, name);
    atomic_store(&d->is_paused, is_paused);
    atomic_store(&d->is_disabled, is_disabled);
    return 0;
}

static int take_user(struct app *app, struct slice body, struct err *e)
{
    struct pgread r = pgread_of(body);
    handover_get_user(&r, app->shared);
    return pgread_done(&r) ? 0 : bad_frame(e);
}

int takeover_commit(struct app *app, struct err *e)
{
    struct takeover *t = app->takeover;
    struct fdlink_frame f;
    if (!t)
        return 0;
    say(app, GEN_READY, NULL);
    for (;;) {
        int rc = fdlink_receive(t->link, COMMIT_LIMIT_MS, &f, e);
        if (rc)
            return rc;
        if (f.type == GEN_POOL)
            rc = take_pool(app, f.body, e);
        else if (f.type == GEN_USER)
            rc = take_user(app, f.body, e);
        else if (f.type == GEN_DATABASE)
            rc = take_database(app, f.body, e);
        else if (f.type == GEN_REFUSED)
            rc = refused(&f, e);
        else if (f.type == GEN_COMMIT)
            break;
        else
            rc = bad_frame(e);
        if (rc)
            return rc;
    }
    /* Before the first client is let in, whose cancel request may be for a
     * session of the old process: what is asked of that waits in the mailbox
     * until generation_up(). */
    atomic_store(&app->handover->has[GEN_OLDER], true);
    return 0;
}

/* Sockets that the new configuration does not name stop listening in all
 * processes that have them. */
static void close_rest(struct given *g, bool for_good)
{
    for (int i = 0; i < g->n; i++) {
        struct addr a;
        struct given_socket *s = &g->at[i];
        if (s->fd < 0)
            continue;
        if (for_good && s->is_file && !addr_of_self(s->fd, &a) &&
            a.un.sun_path[0])
            (void)unlink(a.un.sun_path);
        if (for_good && s->kind == GIVEN_STREAM)
            (void)shutdown(s->fd, SHUT_RDWR);
        close(s->fd);
        s->fd = -1;
    }
}

static void takeover_free(struct app *app)
{
    struct takeover *t = app->takeover;
    fdlink_close(t->link);
    close_rest(&t->given, false);
    free(t->given.at);
    mem_wipe(t, sizeof *t);
    free(t);
    app->takeover = NULL;
}

void takeover_serving(struct app *app)
{
    struct takeover *t = app->takeover;
    if (!t)
        return;
    close_rest(&t->given, true);
    listeners_own_files(app->listeners);
    say(app, GEN_SERVING, NULL);
    generation_open(app, GEN_OLDER, t->link);
    generation_up(app, GEN_OLDER);
    t->link = NULL;
    takeover_free(app);
}

void takeover_fail(struct app *app, const char *why)
{
    struct takeover *t = app->takeover;
    if (!t)
        return;
    fdlink_send(t->link, GEN_FAILED, slice_str(why), -1);
    takeover_free(app);
}

void takeover_drop(struct app *app)
{
    if (app->takeover)
        takeover_free(app);
}
