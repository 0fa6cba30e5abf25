/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/stats_log.h"

#include "admin/stats.h"
#include "main/app.h"
#include "main/notify.h"

static void set_timer(struct app *app)
{
    timer_set(app->loop, &app->stats_timer,
              loop_now_us(app->loop) + app->conf->stats_period_us);
}

static void on_ticked(void *arg, const char *line)
{
    struct app *app = arg;
    notify_status(line);
    set_timer(app);
}

static void on_timer(struct timer *t)
{
    struct app *app = container_of(t, struct app, stats_timer);
    admin_stats_tick(app->loop, on_ticked, app);
}

void stats_log_start(struct app *app)
{
    app->stats_timer.on_fire = on_timer;
    set_timer(app);
}
