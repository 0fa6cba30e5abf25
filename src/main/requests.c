/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/requests.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "main/app.h"
#include "main/reload.h"
#include "main/stop.h"

/* Set once, before any other thread runs. */
static struct app *the_app;

/* One block, so that an end at any moment frees all of it. */
struct request {
    struct message message;
    struct loop *asker;
    control_done_cb done;
    void *arg;
    bool has_failed;
    struct err error;
    enum shutdown_mode mode;
    size_t value_at;
    char text[]; /* key, value */
};

static struct request *new_request(void (*handle)(struct message *m,
                                                  void *loop_data),
                                   size_t text_bytes)
{
    struct request *r = mem_new(sizeof *r + text_bytes);
    r->message.handle = handle;
    return r;
}

/* On the asker's loop. */
static void tell(struct message *m, void *data)
{
    struct request *r = container_of(m, struct request, message);
    r->done(r->arg, r->has_failed ? &r->error : NULL);
    free(r);
}

static void answer(void *arg)
{
    struct request *r = arg;
    r->message.handle = tell;
    mailbox_send(r->asker, &r->message);
}

static void answer_failure(struct request *r)
{
    r->has_failed = true;
    answer(r);
}

static void do_reload(struct message *m, void *data)
{
    struct request *r = container_of(m, struct request, message);
    log_info("RELOAD from the console");
    if (reload_file(the_app, answer, r, &r->error))
        answer_failure(r);
}

static void do_set(struct message *m, void *data)
{
    struct request *r = container_of(m, struct request, message);
    if (reload_set(the_app, r->text, r->text + r->value_at, answer, r,
                   &r->error))
        answer_failure(r);
}

static void do_shutdown(struct message *m, void *data)
{
    struct request *r = container_of(m, struct request, message);
    static const char *const text[] = {
        [SHUTDOWN_NOW] = "ending now",
        [SHUTDOWN_WAIT_FOR_SERVERS] = "waiting for the servers in use",
        [SHUTDOWN_WAIT_FOR_CLIENTS] = "waiting for the clients to leave",
    };
    log_info("SHUTDOWN from the console, %s", text[r->mode]);
    stop_begin(the_app, r->mode);
    free(r);
}

static void end_upgrade(void *arg, const struct err *e)
{
    struct request *r = arg;
    if (e)
        r->error = *e;
    r->has_failed = e != NULL;
    answer(r);
}

static void do_upgrade(struct message *m, void *data)
{
    struct request *r = container_of(m, struct request, message);
    log_info("UPGRADE from the console");
    upgrade_begin(the_app, NULL, NULL, end_upgrade, r);
}

static void ask_upgrade(struct loop *asker, control_done_cb done, void *arg)
{
    struct request *r = new_request(do_upgrade, 0);
    r->asker = asker;
    r->done = done;
    r->arg = arg;
    mailbox_send(the_app->loop, &r->message);
}

static void ask_reload(struct loop *asker, control_done_cb done, void *arg)
{
    struct request *r = new_request(do_reload, 0);
    r->asker = asker;
    r->done = done;
    r->arg = arg;
    mailbox_send(the_app->loop, &r->message);
}

static void ask_set(struct loop *asker, const char *key, const char *value,
                    control_done_cb done, void *arg)
{
    size_t key_n = strlen(key) + 1, value_n = strlen(value) + 1;
    struct request *r = new_request(do_set, key_n + value_n);
    r->asker = asker;
    r->done = done;
    r->arg = arg;
    r->value_at = key_n;
    memcpy(r->text, key, key_n);
    memcpy(r->text + key_n, value, value_n);
    mailbox_send(the_app->loop, &r->message);
}

static void ask_shutdown(enum shutdown_mode mode)
{
    struct request *r = new_request(do_shutdown, 0);
    r->mode = mode;
    mailbox_send(the_app->loop, &r->message);
}

void requests_install(struct app *app)
{
    the_app = app;
    struct control c = {
        .team = app->team,
        .reload = ask_reload,
        .set = ask_set,
        .shutdown = ask_shutdown,
        .upgrade = ask_upgrade,
    };
    control_set(&c);
}
