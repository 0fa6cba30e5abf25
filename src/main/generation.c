/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/generation.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "main/app.h"
#include "main/stop.h"
#include "main/upgrade.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"
#include "pool/shard.h"

enum {
    TICK_US = 10 * 1000,
    DEMAND_AGAIN_US = 100 * 1000,
    CANCEL_KEY_BYTES_MAX = 64,
};

struct number {
    UT_hash_handle hh;
    uint32_t id;
};

struct asked {
    UT_hash_handle hh;
    uint64_t token;
    void *note;
};

static struct generation_link *link_of(struct app *app, enum generation side)
{
    return &app->gen.link[side];
}

void generation_send(struct app *app, enum generation side,
                     enum generation_frame type, struct pgbuf *b, int fd)
{
    struct generation_link *g = link_of(app, side);
    struct slice body = b ? pgbuf_slice(b) : slice_of("", 0);
    if (g->link && !(b && b->failed))
        fdlink_send(g->link, (uint8_t)type, body, fd);
    else if (fd >= 0)
        close(fd);
    if (b) {
        pgbuf_wipe(b);
        pgbuf_fini(b);
    }
}

static void begin(struct pgbuf *b)
{
    pgbuf_init(b, FDLINK_BODY_MAX);
}

/* ------------------------------------------------- what the workers send */

static void send_statement(struct generation_link *g, struct statement *st)
{
    struct number *k;
    struct pgbuf b;
    HASH_FIND(hh, g->sent, &st->id, sizeof st->id, k);
    if (k || st->body_n > FDLINK_BODY_MAX - 64)
        return;
    k = mem_new(sizeof *k);
    k->id = st->id;
    HASH_ADD(hh, g->sent, id, sizeof k->id, k);
    begin(&b);
    pgbuf_put_u32(&b, st->id);
    pgbuf_put_bytes(&b, st->body, st->body_n);
    generation_send(g->app, g->side, GEN_STATEMENT, &b, -1);
}

static void send_cancel(struct generation_link *g, void *note)
{
    const uint8_t *key;
    size_t n = cancel_note_key(note, &key);
    struct pgbuf b;
    struct asked *k = mem_new(sizeof *k);
    k->token = ++g->last_token;
    k->note = note;
    HASH_ADD(hh, g->asked, token, sizeof k->token, k);
    begin(&b);
    handover_put_i64(&b, (int64_t)k->token);
    pgbuf_put_bytes(&b, key, n);
    generation_send(g->app, g->side, GEN_CANCEL, &b, -1);
}

static void send_cancel_done(struct generation_link *g,
                             const struct handover_parcel *p)
{
    struct pgbuf b;
    begin(&b);
    handover_put_i64(&b, (int64_t)p->token);
    pgbuf_put_u8(&b, p->was_found);
    generation_send(g->app, g->side, GEN_CANCEL_DONE, &b, -1);
}

static void send_body(struct generation_link *g, struct handover_parcel *p,
                      enum generation_frame type)
{
    for (int i = 0; i < p->n_statements; i++)
        send_statement(g, p->statements[i]);
    fdlink_send(g->link, (uint8_t)type, slice_of(p->body, p->n), p->fd);
    p->fd = -1;
}

/* With nobody there: a session or server that was on its way is lost. */
static void on_parcel(struct message *m, void *data)
{
    struct handover_parcel *p = container_of(m, struct handover_parcel, m);
    struct app *app = data;
    struct generation_link *g = link_of(app, p->to);
    if (!g->link || !g->is_up) {
        if (p->kind == HANDOVER_CANCEL)
            cancel_answered(app->shared, p->note, false);
        handover_parcel_free(p);
        return;
    }
    switch (p->kind) {
    case HANDOVER_CLIENT:
        send_body(g, p, GEN_CLIENT);
        break;
    case HANDOVER_SERVER:
        send_body(g, p, GEN_SERVER);
        break;
    case HANDOVER_PLACE:
        send_body(g, p, GEN_PLACE);
        break;
    case HANDOVER_CANCEL:
        send_cancel(g, p->note);
        break;
    case HANDOVER_CANCEL_DONE:
        send_cancel_done(g, p);
        break;
    }
    handover_parcel_free(p);
}

/* --------------------------------------------------------- what comes in */

/* What goes on to a worker. */
struct delivery {
    struct app *app;
    enum generation from;
    enum generation_frame type;
    int fd;
    uint64_t token;
    struct pool_rec *rec;
    enum budget_verdict why;
    struct pool_stats stats;
    size_t n;
    char body[];
};

static void deliver(struct shard *sh, void *arg)
{
    struct delivery *d = arg;
    struct slice body = slice_of(d->body, d->n);
    if (d->type == GEN_CLIENT)
        shard_receive_client(sh, d->from, body, d->fd);
    else if (d->type == GEN_SERVER)
        shard_receive_server(sh, d->from, body, d->fd);
    else if (d->type == GEN_CANCEL)
        shard_cancel_for(sh, d->from, d->token, (const uint8_t *)d->body, d->n);
    else if (d->type == GEN_STATS)
        shard_add_stats(sh, d->rec, &d->stats);
    mem_wipe(d->body, d->n);
    free(d);
}

static struct delivery *new_delivery(struct generation_link *g,
                                     enum generation_frame type,
                                     struct slice body, int fd)
{
    struct delivery *d = mem_new(sizeof *d + body.n);
    d->app = g->app;
    d->from = g->side;
    d->type = type;
    d->fd = fd;
    d->n = body.n;
    memcpy(d->body, body.p, body.n);
    return d;
}

static int next_worker(struct app *app)
{
    return (int)(app->gen.next_worker++ % (unsigned)team_size(app->team));
}

static void receive_client(struct generation_link *g,
                           const struct fdlink_frame *f)
{
    team_run_on(g->app->team, next_worker(g->app), deliver,
                new_delivery(g, GEN_CLIENT, f->body, f->fd));
}

/* To a worker whose client waits for it. */
static void receive_server(struct generation_link *g,
                           const struct fdlink_frame *f)
{
    struct app *app = g->app;
    struct pgread r = pgread_of(f->body);
    struct pool_rec *rec = handover_get_pool(&r, app->shared);
    int to = next_worker(app);
    /* Before the end of the other process can be seen. */
    if (rec)
        budget_receive(app->shared, rec, g->side);
    for (int i = 0; rec && i < team_size(app->team); i++)
        if (atomic_load(&rec->slot[i].demand) > 0)
            to = i;
    team_run_on(app->team, to, deliver,
                new_delivery(g, GEN_SERVER, f->body, f->fd));
}

static void wake_all_on(struct shard *sh, void *arg)
{
    shard_wake_all(sh);
}

static void receive_place(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, g->app->shared);
    if (rec && g->side == GEN_OLDER &&
        budget_foreign_closed(g->app->shared, rec))
        team_run_on(g->app->team, 0, wake_all_on, NULL);
}

static void receive_statement(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    uint32_t id = pgread_u32(&r);
    if (!r.bad)
        statement_import(g->app->handover->names[g->side], id, pgread_rest(&r));
}

static void wake_pool_on(struct shard *sh, void *arg)
{
    shard_wake_pool(sh, arg);
}

static void wake_pool(struct app *app, struct pool_rec *rec)
{
    for (int i = 0; i < team_size(app->team); i++)
        team_run_on(app->team, i, wake_pool_on, rec);
}

static int own_demand(const struct app *app, const struct pool_rec *rec)
{
    int n = 0;
    for (int i = 0; i < team_size(app->team); i++)
        n += MAX(atomic_load(&rec->slot[i].demand), 0) +
             atomic_load(&rec->slot[i].logins);
    return n;
}

static struct pool_slot *
slot_of(const struct app *app, const struct pool_rec *rec, enum generation side)
{
    return &rec->slot[team_size(app->team) + (int)side];
}

static int slot_index(const struct app *app, enum generation side)
{
    return team_size(app->team) + (int)side;
}

static void send_rec(struct app *app, enum generation side,
                     enum generation_frame type, const struct pool_rec *rec)
{
    struct pgbuf b;
    begin(&b);
    handover_put_pool(&b, rec);
    generation_send(app, side, type, &b, -1);
}

static bool has_idle(const struct app *app, const struct pool_rec *rec)
{
    for (int i = 0; i < team_size(app->team); i++)
        if (atomic_load(&rec->slot[i].idle) > 0)
            return true;
    return false;
}

static void evict_on(struct shard *sh, void *arg)
{
    struct delivery *d = arg;
    if (d->n == 0)
        d->n = shard_evict(sh, d->rec, d->why);
}

/* As lend_evict() does, for the older process's client. */
static void evict(struct generation_link *g, struct pool_rec *rec,
                  enum budget_verdict why)
{
    struct delivery *d = new_delivery(g, GEN_DEMAND, slice_of("", 0), -1);
    d->rec = rec;
    d->why = why;
    team_gather(g->app->team, g->app->loop, evict_on, free, d);
}

/* Places that the budget has left for what the older process's clients wait
 * for; idle servers go there by themselves (lend_if_wanted()). */
static void serve_older(struct app *app, struct pool_rec *rec)
{
    struct generation_link *g = link_of(app, GEN_OLDER);
    int slot = slot_index(app, GEN_OLDER);
    struct budget_limits l = handover_limits(app->conf, rec);
    l.since_us = atomic_load(&rec->slot[slot].oldest_us);
    l.now_us = loop_now_us(app->loop);
    if (has_idle(app, rec)) {
        wake_pool(app, rec);
        return;
    }
    while (atomic_load(&rec->slot[slot].demand) > 0) {
        enum budget_verdict v = budget_grant(app->shared, rec, &l);
        if (v == BUDGET_DB_FULL || v == BUDGET_USER_FULL)
            evict(g, rec, v);
        if (v != BUDGET_OK)
            return;
        (void)demand_take(rec, slot);
        send_rec(app, GEN_OLDER, GEN_GRANT, rec);
    }
}

static void receive_demand(struct generation_link *g, struct slice body)
{
    struct app *app = g->app;
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, app->shared);
    uint32_t asked = pgread_u32(&r);
    int n = (int)MIN(asked, (uint32_t)1000000);
    int64_t oldest = handover_get_i64(&r);
    if (!rec || r.bad)
        return;
    struct pool_slot *slot = slot_of(app, rec, g->side);
    atomic_store(&slot->oldest_us, oldest);
    demand_add(rec, slot_index(app, g->side), n - atomic_load(&slot->demand));
    if (n == 0)
        return;
    if (g->side == GEN_OLDER)
        serve_older(app, rec);
    else
        wake_pool(app, rec);
}

static void receive_grant(struct generation_link *g, struct slice body)
{
    struct app *app = g->app;
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, app->shared);
    if (!rec || g->side != GEN_NEWER)
        return;
    budget_granted(app->shared, rec);
    if (own_demand(app, rec) == 0 && link_of(app, GEN_OLDER)->is_up)
        serve_older(app, rec); /* it was for the one before us */
    wake_pool(app, rec);
}

static void receive_cancel(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    uint64_t token = (uint64_t)handover_get_i64(&r);
    struct slice key = pgread_rest(&r);
    if (r.bad || key.n < 8 || key.n > 36)
        return;
    struct delivery *d = new_delivery(g, GEN_CANCEL, key, -1);
    d->token = token;
    team_run_on(g->app->team, 0, deliver, d);
}

static void receive_cancel_done(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    uint64_t token = (uint64_t)handover_get_i64(&r);
    bool was_found = pgread_u8(&r);
    struct asked *k;
    HASH_FIND(hh, g->asked, &token, sizeof token, k);
    if (r.bad || !k)
        return;
    HASH_DEL(g->asked, k);
    cancel_answered(g->app->shared, k->note, was_found);
    free(k);
}

static void receive_stats(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    struct pool_rec *rec = handover_get_pool(&r, g->app->shared);
    struct slice s = pgread_bytes(&r, sizeof(struct pool_stats));
    if (!rec || !pgread_done(&r))
        return;
    struct delivery *d = new_delivery(g, GEN_STATS, slice_of("", 0), -1);
    d->rec = rec;
    memcpy(&d->stats, s.p, s.n);
    team_run_on(g->app->team, 0, deliver, d);
}

static void receive_stop(struct generation_link *g, struct slice body)
{
    struct pgread r = pgread_of(body);
    uint8_t mode = pgread_u8(&r);
    if (r.bad || g->side != GEN_NEWER || mode > SHUTDOWN_WAIT_FOR_CLIENTS)
        return;
    log_info("the process that took over is told to end, and so are we");
    g->said_bye = true;
    stop_begin(g->app, (enum shutdown_mode)mode);
}

static void on_frame(void *arg, const struct fdlink_frame *f)
{
    struct generation_link *g = arg;
    bool takes_fd = f->type == GEN_CLIENT || f->type == GEN_SERVER;
    if (f->type < GEN_STATEMENT || !g->is_up) {
        if (f->fd >= 0)
            close(f->fd);
        if (g->side == GEN_NEWER)
            upgrade_on_frame(g->app, f);
        return;
    }
    if (takes_fd != (f->fd >= 0)) {
        log_error("upgrade: a frame without its descriptor");
        if (f->fd >= 0)
            close(f->fd);
        return;
    }
    switch ((enum generation_frame)f->type) {
    case GEN_STATEMENT:
        receive_statement(g, f->body);
        break;
    case GEN_CLIENT:
        receive_client(g, f);
        break;
    case GEN_SERVER:
        receive_server(g, f);
        break;
    case GEN_PLACE:
        receive_place(g, f->body);
        break;
    case GEN_DEMAND:
        receive_demand(g, f->body);
        break;
    case GEN_GRANT:
        receive_grant(g, f->body);
        break;
    case GEN_CANCEL:
        receive_cancel(g, f->body);
        break;
    case GEN_CANCEL_DONE:
        receive_cancel_done(g, f->body);
        break;
    case GEN_STATS:
        receive_stats(g, f->body);
        break;
    case GEN_STOP:
        receive_stop(g, f->body);
        break;
    case GEN_BYE:
        g->said_bye = true;
        break;
    default:
        break;
    }
}

/* ---------------------------------------------------------------- the end */

static void clear_demand(struct app *app, enum generation side)
{
    struct shared *s = app->shared;
    int slot = slot_index(app, side);
    pthread_mutex_lock(&s->records_lock);
    for (struct pool_rec *p = s->pool_list; p; p = p->next)
        while (demand_take(p, slot))
            ;
    pthread_mutex_unlock(&s->records_lock);
}

void generation_close(struct app *app, enum generation side)
{
    struct generation_link *g = link_of(app, side);
    struct number *k, *k_next;
    struct asked *a, *a_next;
    if (!g->link)
        return;
    fdlink_close(g->link);
    g->link = NULL;
    bool was_up = g->is_up;
    g->is_up = false;
    atomic_store(&app->handover->has[side], false);
    HASH_ITER(hh, g->sent, k, k_next)
    {
        HASH_DEL(g->sent, k);
        free(k);
    }
    HASH_ITER(hh, g->asked, a, a_next)
    {
        HASH_DEL(g->asked, a);
        cancel_answered(app->shared, a->note, false);
        free(a);
    }
    if (was_up)
        clear_demand(app, side);
}

static void on_lost(void *arg, const char *why)
{
    struct generation_link *g = arg;
    struct app *app = g->app;
    bool said_bye = g->said_bye, was_up = g->is_up;
    enum generation side = g->side;
    generation_close(app, side);
    if (side == GEN_NEWER) {
        upgrade_on_lost(app, why, said_bye);
        return;
    }
    if (!was_up)
        return;
    if (said_bye)
        log_info("upgrade: the old process has ended");
    else
        log_warning("upgrade: the old process is gone: %s", why);
    budget_foreign_gone(app->shared);
    team_run_on(app->team, 0, wake_all_on, NULL);
}

/* ------------------------------------------------------------------- ticks */

static void publish_demand(struct app *app, enum generation side,
                           struct pool_rec *rec, int64_t now)
{
    struct pool_demand *was = &rec->told[side];
    int n = own_demand(app, rec);
    int64_t oldest = 0;
    struct pgbuf b;
    enum generation other = side == GEN_OLDER ? GEN_NEWER : GEN_OLDER;
    if (side == GEN_NEWER)
        n += MAX(atomic_load(&slot_of(app, rec, other)->demand), 0);
    if (side == GEN_OLDER && rec->n_foreign == 0)
        n = 0;
    if (n == was->n && (n == 0 || now - was->us < DEMAND_AGAIN_US))
        return;
    for (int i = 0; i < team_size(app->team); i++) {
        int64_t us = atomic_load(&rec->slot[i].oldest_us);
        if (us && (!oldest || us < oldest))
            oldest = us;
    }
    was->n = n;
    was->us = now;
    begin(&b);
    handover_put_pool(&b, rec);
    pgbuf_put_u32(&b, (uint32_t)n);
    handover_put_i64(&b, oldest ? oldest : now);
    generation_send(app, side, GEN_DEMAND, &b, -1);
}

static void return_grants(struct app *app, struct pool_rec *rec)
{
    if (atomic_load(&rec->demand) > 0 || own_demand(app, rec) > 0)
        return;
    while (budget_grant_return(app->shared, rec))
        handover_send_place(app->shared, rec);
}

/* Records outlive the lock for longer than this takes. */
static struct pool_rec **all_pools(struct shared *s, int *n)
{
    int at = 0;
    pthread_mutex_lock(&s->records_lock);
    *n = (int)HASH_COUNT(s->pools);
    struct pool_rec **all = mem_new_array((size_t)*n + 1, sizeof *all);
    for (struct pool_rec *p = s->pool_list; p && at < *n; p = p->next)
        all[at++] = p;
    pthread_mutex_unlock(&s->records_lock);
    *n = at;
    return all;
}

static void publish(struct app *app)
{
    struct shared *s = app->shared;
    int64_t now = loop_now_us(app->loop);
    int n;
    struct pool_rec **all = all_pools(s, &n);
    for (int i = 0; i < n; i++) {
        for (int side = 0; side < GEN_COUNT; side++)
            if (app->gen.link[side].is_up)
                publish_demand(app, (enum generation)side, all[i], now);
        if (app->gen.link[GEN_NEWER].is_up)
            return_grants(app, all[i]);
    }
    free(all);
}

static void set_tick(struct app *app)
{
    timer_set(app->loop, &app->gen.tick, loop_now_us(app->loop) + TICK_US);
}

/* ------------------------------------------------------------------ leaving */

static void send_stats(void *arg, struct pool_rec *rec,
                       const struct pool_stats *s)
{
    struct pgbuf b;
    begin(&b);
    handover_put_pool(&b, rec);
    pgbuf_put_bytes(&b, s, sizeof *s);
    struct app *app = arg;
    struct handover_parcel from = {.fd = -1, .to = GEN_NEWER};
    from.body = pgbuf_take(&b, &from.n);
    struct handover_parcel *p = handover_parcel_new(&from);
    /* Kept for the main thread, which sends it when all workers have spoken. */
    struct message **end = &app->gen.stats;
    while (*end)
        end = &(*end)->next;
    *end = &p->m;
}

static void stats_on(struct shard *sh, void *arg)
{
    shard_take_stats(sh, send_stats, arg);
}

static void end_finish(void *arg)
{
    struct app *app = arg;
    while (app->gen.stats) {
        struct handover_parcel *p =
            container_of(app->gen.stats, struct handover_parcel, m);
        app->gen.stats = p->m.next;
        if (app->gen.link[GEN_NEWER].link)
            fdlink_send(app->gen.link[GEN_NEWER].link, GEN_STATS,
                        slice_of(p->body, p->n), -1);
        handover_parcel_free(p);
    }
    generation_send(app, GEN_NEWER, GEN_BYE, NULL, -1);
    log_info("upgrade: everything has gone to the new process, ending");
    stop_quietly(app);
}

static void finish(struct app *app)
{
    if (app->gen.has_finished)
        return;
    app->gen.has_finished = true;
    team_gather(app->team, app->loop, stats_on, end_finish, app);
}

static void leave_on(struct shard *sh, void *arg)
{
    struct app *app = arg;
    shard_leave_now(sh, &app->gen.left);
}

static void end_leave_now(void *arg)
{
    struct app *app = arg;
    const struct leave_count *left = &app->gen.left;
    struct generation_link *g = link_of(app, GEN_NEWER);
    app->gen.is_gathering = false;
    if (!g->is_up || app->stop != STOP_NO)
        return;
    bool is_late = app->gen.leave_until_us &&
                   loop_now_us(app->loop) >= app->gen.leave_until_us;
    if (is_late)
        log_warning("upgrade_timeout: ending %d sessions that stayed",
                    left->clients);
    bool older_has_gone = !app->gen.link[GEN_OLDER].is_up;
    if (is_late || (!left->clients && !left->servers && older_has_gone &&
                    fdlink_is_flushed(g->link)))
        finish(app);
}

static void on_tick(struct timer *t)
{
    struct app *app = container_of(t, struct app, gen.tick);
    bool is_leaving = app->gen.is_leaving && app->gen.link[GEN_NEWER].is_up;
    if (!app->gen.link[GEN_OLDER].is_up && !app->gen.link[GEN_NEWER].is_up)
        return;
    publish(app);
    if (is_leaving && !app->gen.is_gathering && !app->gen.has_finished &&
        app->stop == STOP_NO) {
        app->gen.is_gathering = true;
        app->gen.left = (struct leave_count){0};
        team_gather(app->team, app->loop, leave_on, end_leave_now, app);
    }
    set_tick(app);
}

static void leave_first_on(struct shard *sh, void *arg)
{
    shard_leave(sh);
}

void generation_leave(struct app *app)
{
    int64_t limit = app->conf->upgrade_timeout_us;
    app->gen.is_leaving = true;
    app->gen.leave_until_us = limit > 0 ? loop_now_us(app->loop) + limit : 0;
    team_gather(app->team, app->loop, leave_first_on, NULL, NULL);
    set_tick(app);
}

/* ------------------------------------------------------------------- life */

static const struct fdlink_handler handler = {on_frame, on_lost};

void generation_init(struct app *app)
{
    app->handover = handover_new(app->loop, on_parcel);
    app->shared->handover = app->handover;
    app->shared->on_place_given = handover_send_place;
    app->gen.tick.on_fire = on_tick;
}

void generation_fini(struct app *app)
{
    for (int i = 0; i < GEN_COUNT; i++) {
        struct generation_link *g = &app->gen.link[i];
        if (g->link) {
            fdlink_close(g->link);
            g->link = NULL;
        }
        struct number *k, *k_next;
        struct asked *a, *a_next;
        HASH_ITER(hh, g->sent, k, k_next)
        {
            HASH_DEL(g->sent, k);
            free(k);
        }
        HASH_ITER(hh, g->asked, a, a_next)
        {
            HASH_DEL(g->asked, a);
            free(a->note);
            free(a);
        }
    }
}

void generation_open(struct app *app, enum generation side, struct fdlink *l)
{
    struct generation_link *g = link_of(app, side);
    must(!g->link);
    *g = (struct generation_link){.app = app, .side = side, .link = l};
    fdlink_start(l, app->loop, &handler, g);
}

void generation_up(struct app *app, enum generation side)
{
    link_of(app, side)->is_up = true;
    atomic_store(&app->handover->has[side], true);
    set_tick(app);
}

void generation_tell_stop(struct app *app, enum shutdown_mode mode)
{
    struct pgbuf b;
    if (!link_of(app, GEN_OLDER)->is_up)
        return;
    begin(&b);
    pgbuf_put_u8(&b, (uint8_t)mode);
    generation_send(app, GEN_OLDER, GEN_STOP, &b, -1);
}
