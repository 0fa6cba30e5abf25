/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/watchdog.h"

#include "main/app.h"
#include "main/notify.h"

enum { PARTS = 3 }; /* so that a late one does no harm */

/* A worker that hangs does not pass the message on. */
static void visit(struct shard *sh, void *arg)
{
}

static void set_timer(struct app *app);

static void all_answered(void *arg)
{
    struct app *app = arg;
    notify_alive();
    set_timer(app);
}

static void on_timer(struct timer *t)
{
    struct app *app = container_of(t, struct app, watchdog_timer);
    team_gather(app->team, app->loop, visit, all_answered, app);
}

static void set_timer(struct app *app)
{
    timer_set(app->loop, &app->watchdog_timer,
              loop_now_us(app->loop) + notify_watchdog_us() / PARTS);
}

void watchdog_start(struct app *app)
{
    if (notify_watchdog_us() <= 0)
        return;
    app->watchdog_timer.on_fire = on_timer;
    notify_alive();
    set_timer(app);
}
