/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/stats_log.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "main/app.h"
#include "main/notify.h"

enum { LINE_MAX_BYTES = 512 };

/* Totals shrink when a pool goes. */
static uint64_t grown(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

static uint64_t per_second(uint64_t now, uint64_t before, int64_t elapsed_us)
{
    double seconds = (double)MAX(elapsed_us, (int64_t)1) / 1e6;
    return (uint64_t)((double)grown(now, before) / seconds);
}

static uint64_t mean(uint64_t sum, uint64_t n)
{
    return n ? sum / n : 0;
}

void stats_log_format(char *buf, size_t cap, const struct pool_stats *now,
                      const struct pool_stats *before, int64_t elapsed_us)
{
#define RATE(f) per_second(now->f, before->f, elapsed_us)
#define GROWN(f) grown(now->f, before->f)
    snprintf(buf, cap,
             "stats: %" PRIu64 " xacts/s, %" PRIu64 " queries/s, %" PRIu64
             " client parses/s, %" PRIu64 " server parses/s, %" PRIu64
             " binds/s, %" PRIu64 " client logins/s, in %" PRIu64
             " B/s, out %" PRIu64 " B/s, xact %" PRIu64 " us, query %" PRIu64
             " us, wait %" PRIu64 " us",
             RATE(xact_count), RATE(query_count), RATE(client_parse_count),
             RATE(server_parse_count), RATE(bind_count),
             RATE(client_login_count), RATE(received), RATE(sent),
             mean(GROWN(xact_time_us), GROWN(xact_count)),
             mean(GROWN(query_time_us), GROWN(query_count)),
             mean(GROWN(wait_time_us), GROWN(server_assignment_count)));
#undef RATE
#undef GROWN
}

static void add_pool(void *arg, const struct pool_view *v)
{
    struct pool_stats *sum = arg;
    const struct pool_stats *s = &v->stats;
    sum->xact_count += s->xact_count;
    sum->query_count += s->query_count;
    sum->server_assignment_count += s->server_assignment_count;
    sum->received += s->received;
    sum->sent += s->sent;
    sum->xact_time_us += s->xact_time_us;
    sum->query_time_us += s->query_time_us;
    sum->wait_time_us += s->wait_time_us;
    sum->client_parse_count += s->client_parse_count;
    sum->server_parse_count += s->server_parse_count;
    sum->bind_count += s->bind_count;
    sum->client_login_count += s->client_login_count;
}

static void add_shard(struct shard *sh, void *arg)
{
    struct app *app = arg;
    shard_each_pool(sh, add_pool, &app->stats_sum);
}

static void set_timer(struct app *app)
{
    timer_set(app->loop, &app->stats_timer,
              loop_now_us(app->loop) + app->conf->stats_period_us);
}

static void tell(void *arg)
{
    struct app *app = arg;
    char line[LINE_MAX_BYTES];
    int64_t now = loop_now_us(app->loop);
    stats_log_format(line, sizeof line, &app->stats_sum, &app->stats_last,
                     now - app->stats_us);
    app->stats_last = app->stats_sum;
    app->stats_us = now;
    if (app->conf->log_stats)
        log_info("%s", line);
    notify_status(line);
    set_timer(app);
}

static void on_timer(struct timer *t)
{
    struct app *app = container_of(t, struct app, stats_timer);
    app->stats_sum = (struct pool_stats){0};
    team_gather(app->team, app->loop, add_shard, tell, app);
}

void stats_log_start(struct app *app)
{
    app->stats_us = loop_now_us(app->loop);
    app->stats_timer.on_fire = on_timer;
    set_timer(app);
}
