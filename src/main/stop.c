/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/stop.h"

#include <unistd.h>

#include "base/log.h"
#include "main/app.h"
#include "main/metrics_http.h"
#include "main/notify.h"
#include "main/supervisor.h"

enum {
    POLL_US = 50 * 1000,
    END_LIMIT_US = 5 * 1000 * 1000, /* a worker that hangs must not keep us */
};

/* --- the end ----------------------------------------------------------------
 */

static void close_listeners(struct shard *sh, void *arg)
{
    struct app *app = arg;
    listeners_close_on(app->listeners, shard_index(sh));
    quic_listeners_close_on(app->quic, sh);
}

static void end_loop(void *arg)
{
    struct app *app = arg;
    loop_stop(app->loop);
}

static void on_limit(struct timer *t)
{
    log_fatal("a worker does not answer: ending without it");
    log_flush();
    _exit(1);
}

/* After an upgrade it is not the service that stops. */
static void tell_stopping(struct app *app)
{
    if (upgrade_has_left(app))
        return;
    notify_stopping();
    supervisor_tell_stopping(app);
}

static void end(struct app *app)
{
    if (app->stop == STOP_ENDS)
        return;
    app->stop = STOP_ENDS;
    tell_stopping(app);
    atomic_store(&app->shared->is_shutting_down, true);
    timer_clear(app->loop, &app->stop_timer);
    app->stop_limit.on_fire = on_limit;
    timer_set(app->loop, &app->stop_limit,
              loop_now_us(app->loop) + END_LIMIT_US);
    metrics_http_close(app->metrics);
    team_gather(app->team, app->loop, close_listeners, end_loop, app);
}

/* --- waiting for it ---------------------------------------------------------
 */

static void drain(struct shard *sh, void *arg)
{
    shard_drain_servers(sh, NULL);
    shard_drain_clients(sh);
}

/* Servers and clients that have become idle since the last time go now. */
static void count(struct shard *sh, void *arg)
{
    struct app *app = arg;
    if (app->stop_mode == SHUTDOWN_WAIT_FOR_CLIENTS) {
        app->stop_count += shard_count_to_leave(sh);
        return;
    }
    drain(sh, NULL);
    app->stop_count += shard_busy_servers(sh, NULL);
}

static void set_poll(struct app *app)
{
    timer_set(app->loop, &app->stop_timer, loop_now_us(app->loop) + POLL_US);
}

static void end_count(void *arg)
{
    struct app *app = arg;
    if (app->stop != STOP_WAITS)
        return;
    if (app->stop_count) {
        set_poll(app);
        return;
    }
    log_info(app->stop_mode == SHUTDOWN_WAIT_FOR_CLIENTS
                 ? "all clients have left, ending"
                 : "all server connections are released, ending");
    end(app);
}

static void on_poll(struct timer *t)
{
    struct app *app = container_of(t, struct app, stop_timer);
    app->stop_count = 0;
    team_gather(app->team, app->loop, count, end_count, app);
}

static void wait_for(struct app *app, enum shutdown_mode mode)
{
    bool is_first = app->stop == STOP_NO;
    app->stop = STOP_WAITS;
    app->stop_mode = mode;
    atomic_store(&app->shared->is_shutting_down, true);
    if (mode == SHUTDOWN_WAIT_FOR_SERVERS) {
        atomic_store(&app->shared->is_paused, true);
        team_gather(app->team, app->loop, drain, NULL, NULL);
    }
    if (!is_first)
        return;
    tell_stopping(app);
    listeners_close_tcp(app->listeners);
    metrics_http_drain(app->metrics);
    quic_listeners_drain(app->quic);
    app->stop_timer.on_fire = on_poll;
    set_poll(app);
}

void stop_quietly(struct app *app)
{
    end(app);
}

void stop_begin(struct app *app, enum shutdown_mode mode)
{
    generation_tell_stop(app, mode);
    upgrade_stop(app);
    if (mode == SHUTDOWN_NOW)
        end(app);
    else if (app->stop != STOP_ENDS)
        wait_for(app, mode);
}

/* --- pausing ----------------------------------------------------------------
 */

static void pause_on(struct shard *sh, void *arg)
{
    shard_drain_servers(sh, NULL);
}

static void resume_on(struct shard *sh, void *arg)
{
    shard_resume_all(sh);
}

void stop_pause(struct app *app)
{
    if (atomic_exchange(&app->shared->is_paused, true)) {
        log_info("got SIGUSR1, but all is paused already");
        return;
    }
    log_info("got SIGUSR1, pausing all databases");
    team_gather(app->team, app->loop, pause_on, NULL, NULL);
}

void stop_resume(struct app *app)
{
    if (app->stop == STOP_ENDS ||
        (app->stop == STOP_WAITS &&
         app->stop_mode == SHUTDOWN_WAIT_FOR_SERVERS)) {
        log_info("got SIGUSR2 while shutting down, ignored");
        return;
    }
    if (!atomic_exchange(&app->shared->is_paused, false)) {
        log_info("got SIGUSR2, but nothing is paused");
        return;
    }
    log_info("got SIGUSR2, resuming");
    team_gather(app->team, app->loop, resume_on, NULL, NULL);
}
