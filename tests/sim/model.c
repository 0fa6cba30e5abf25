/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Random schedules of one to four workers. What must hold (model_check.c,
 * model_peers.c):
 *   budget      no pool, database or user has more servers than its limit, and
 *               what is counted is what is open
 *   wake-ups    a waiter and an idle server of one pool do not coexist for
 *               longer than the messages between them take; nobody waits while
 *               a server may be opened and none is on its way
 *   justice     nobody is overtaken without end, by clients of its own pool or
 *               of one under the same limit
 *   cancel      reaches only a query of the client that asked, and is over only
 *               when what it was for has ended
 *   KILL        ends everybody who was there when it began
 *   servers     none is lost or counted twice, on the way between workers too;
 *               each reply goes to its own client
 *   the end     all clients are served, nothing is left
 * A schedule follows from its seed alone. On a failure the last events are
 * printed; --seed N --runs 1 runs it again, --trace prints all of it.
 *
 * Each of these mistakes, made on purpose, was found, most within a hundred
 * schedules, the last within a few thousand:
 *   an idle server that is not offered to other workers, or not published; a
 *   waiter that asks nobody; a question that is not answered when nothing is
 *   left; a borrowed server that is not dispatched, or whose demand is not
 * given back; a server lent without taking demand; one that cannot move and is
 * kept; a freed place that wakes one worker only; an eviction that asks one
 * only; a reload or a RESUME that wakes nobody; a login that leaves and is
 * counted as a waiter; a unit of the budget kept when a server breaks;
 *   max_db_connections not looked at; the last to come served first; own
 * waiters always before those of others; no claims; a server given on while a
 * cancel is on its way, or amid a transaction; a requester told too early; a
 * waiting client's cancel ignored; a key not registered after a move; a client
 * moved amid a request; an arrival that does not look at KILL. Two changes are
 * none: a cancel written though its client has moved on (its server is held
 * back anyway), and no second round for a key whose client moves (whoever runs
 * a query does not). */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "model.h"

enum {
    BATCH = 500, /* schedules of one process */
    EVENTS_KEPT = 120,
    SETTLE_ROUNDS = 500,
    DRAIN_STEPS = 60000,
};

struct world w;
struct model_totals *model_totals;

static struct {
    bool is_on;
    uint64_t digest;
    uint64_t n;
    struct {
        uint64_t step;
        const char *what;
        int a, b;
    } event[EVENTS_KEPT];
} trace;

void note_event(const char *what, int a, int b)
{
    size_t i = trace.n++ % EVENTS_KEPT;
    trace.event[i].step = w.step;
    trace.event[i].what = what;
    trace.event[i].a = a;
    trace.event[i].b = b;
    trace.digest = (trace.digest ^ (w.step << 32 | (uint32_t)(a << 16 ^ b))) *
                   0x100000001b3u;
    if (trace.is_on)
        fprintf(stderr, "%6llu %s %d %d\n", (unsigned long long)w.step, what, a,
                b);
}

static void on_abort(int signo)
{
    uint64_t from = trace.n > EVENTS_KEPT ? trace.n - EVENTS_KEPT : 0;
    fprintf(stderr, "--- the last events (step, what, client, query):\n");
    for (uint64_t i = from; i < trace.n && !trace.is_on; i++) {
        size_t k = i % EVENTS_KEPT;
        fprintf(stderr, "%6llu %s %d %d\n",
                (unsigned long long)trace.event[k].step, trace.event[k].what,
                trace.event[k].a, trace.event[k].b);
    }
    describe();
    fprintf(stderr, "seed %llu failed: --seed %llu --runs 1 --trace\n",
            (unsigned long long)sim_seed, (unsigned long long)sim_seed);
    (void)signal(SIGABRT, SIG_DFL);
    (void)raise(SIGABRT);
}

/* ------------------------------------------------------------------ the world
 */

static int limit(unsigned percent, int below)
{
    return chance(percent) ? 1 + (int)rnd((uint32_t)below) : 0;
}

/* Files of a few dozen shapes, each read once. */
enum { SHAPES = 64 };
static struct conf *shapes[SHAPES];

static struct conf *shape(unsigned k)
{
    char path[] = "/tmp/pgbraid-model-XXXXXX";
    struct err e;
    if (shapes[k])
        return conf_ref(shapes[k]);
    /* Its own dice, so that a schedule does not depend on who made it. */
    uint64_t seed = sim_seed;
    sim_srand(1000 + k);
    int fd = mkstemp(path);
    must(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fprintf(f, "[databases]\n");
    fprintf(f, "d0 = host=/sim port=5432 user=u\n");
    fprintf(f, "d1 = host=/sim port=5432 user=u\n");
    fprintf(f, "d2 = host=/sim port=5432\n");
    fprintf(f, "[pgbouncer]\nlisten_port=6432\nauth_type=trust\n");
    fprintf(f, "auth_query=\nauth_file=/tmp/pgbraid-model-users\n");
    fprintf(f, "pool_mode=%s\n", k % 8 == 7 ? "session" : "transaction");
    fprintf(f, "default_pool_size=%d\n", 1 + (int)rnd(4));
    fprintf(f, "reserve_pool_size=%d\nreserve_pool_timeout=1\n", limit(20, 2));
    fprintf(f, "max_db_connections=%d\n", limit(35, 3));
    fprintf(f, "max_user_connections=%d\n", limit(35, 3));
    fprintf(f, "query_wait_timeout=0\nquery_wait_notify=0\n");
    fprintf(f, "client_login_timeout=0\nserver_login_retry=1\n");
    fprintf(f, "server_lifetime=%d\n", chance(10) ? 1 : 3600);
    fprintf(f, "server_check_query=\nlog_connections=0\n");
    fprintf(f, "log_disconnections=0\nlog_pooler_errors=0\n");
    fprintf(f, "server_reset_query_always=%d\n", chance(20));
    fprintf(f, "server_round_robin=%d\nmax_client_conn=10000\n", chance(50));
    fclose(f);
    if (conf_load(path, &shapes[k], &e))
        sim_fail("configuration: %s", e.text);
    unlink(path);
    sim_srand(seed);
    return conf_ref(shapes[k]);
}

/* One draw decides, before anything else of the seed is used. */
static void make_confs(void)
{
    uint32_t first = rnd(SHAPES), step = 1 + 8 * rnd(7);
    w.n_confs = 1 + (int)rnd(CONFS_HERE);
    uint32_t after = rnd(1u << 30);
    for (int i = 0; i < w.n_confs; i++)
        w.conf[i] = shape((first + (uint32_t)i * step) % SHAPES);
    sim_srand(sim_seed ^ (uint64_t)after << 32);
    w.conf_may[0] = true;
}

static unsigned rate(unsigned percent, unsigned max)
{
    return chance(percent) ? 1 + rnd(max) : 0;
}

static void world_new(uint64_t seed)
{
    memset(&w, 0, sizeof w);
    trace.n = 0;
    trace.digest = 0xcbf29ce484222325u;
    sim_now_us = 1000000;
    sim_srand(seed);
    list_init(&w.clients);
    list_init(&w.servers);
    list_init(&w.cancels);
    conn_on_connect = server_accept;
    make_confs();
    sim_seed = seed;
    w.n_shards = chance(15) ? 1 : 2 + (int)rnd(SHARDS_HERE - 1);
    w.n_dbs = 1 + (int)rnd(DBS_HERE);
    w.max_clients = 2 + (int)rnd(14);
    w.cancel = rate(60, 200);
    w.balance = rate(60, 400);
    w.kill_client = rate(25, 100);
    w.kill_db = rate(20, 60);
    w.pause = rate(20, 30);
    w.reload = rate(25, 60);
    w.reconnect = rate(20, 60);
    w.crash = rate(25, 10);
    w.run_percent = rnd(90);
    w.step_us = 1 + (int64_t)rnd(chance(30) ? 8000 : 400);
    w.servers_stay = chance(15);
    w.is_long = chance(3); /* for whoever starves */
    if (w.is_long) {
        w.max_clients = 8 + (int)rnd(16);
        w.step_us = 500 + (int64_t)rnd(4000);
    }
    sim_detach_may_fail = chance(20);
    sim_writes_may_fail = false;
    w.shared = shared_new(conf_ref(w.conf[0]), w.n_shards);
    for (int i = 0; i < w.n_shards; i++) {
        struct err e;
        must(!shard_new(&w.shard[i], w.shared, i, NULL, &e));
        w.loop[i] = sim_loop_new();
        must(!shard_start(w.shard[i], w.loop[i], &e));
    }
}

/* ------------------------------------------------------------- what may happen
 */

static struct conn *conns_of_turn[512];

static void turn(int i)
{
    size_t n = 0;
    sim_loop_tick(w.loop[i]);
    list_for(k, &conns)
    {
        struct conn *c = list_entry(k, struct conn, node);
        if (n < ARRAY_SIZE(conns_of_turn) && conn_is_of(c, w.loop[i]))
            conns_of_turn[n++] = c;
    }
    for (size_t k = 0; k < n; k++)
        if (chance(70))
            (void)conn_step(conns_of_turn[k], w.loop[i]);
    if (chance(80)) {
        (void)sim_loop_work(w.loop[i], chance(90));
        w.has_turned[i] = true;
    }
    sim_loop_end_turn(w.loop[i]);
    for (int k = 0; k < w.n_shards; k++)
        if (!w.has_turned[k])
            return;
    w.round++;
    memset(w.has_turned, 0, sizeof w.has_turned);
}

static int any_shard(void)
{
    return (int)rnd((uint32_t)w.n_shards);
}

static struct db_rec *any_db(void)
{
    char name[16];
    snprintf(name, sizeof name, "d%u", rnd((uint32_t)w.n_dbs));
    return shared_db(w.shared, slice_str(name));
}

/* Any of a worker's clients that could go is sent to any other: more often, and
 * with less reason, than balance_plan() would. */
static void move_clients(void)
{
    struct shard *sh = w.shard[any_shard()];
    struct balance *b = &sh->balance;
    int to = any_shard();
    if (to == sh->index || b->n_chosen)
        return;
    sim_loop_tick(sh->loop);
    b->to = to;
    list_for(n, &sh->clients)
    {
        struct client *c = list_entry(n, struct client, node_all);
        if (c->stream->kind != STREAM_TCP || !c->pool || c->login ||
            c->pool->mode == CONF_POOL_SESSION || c->state > CLIENT_ACTIVE ||
            chance(50) || b->n_chosen == BALANCE_MOVES_MAX)
            continue;
        c->is_chosen = true;
        b->chosen[b->n_chosen++] = c;
        note_event("is to move", (int)c->id, to);
    }
    if (b->n_chosen)
        loop_defer(sh->loop, &b->task);
}

/* A message that goes from worker to worker, as team_gather() sends it. */
struct round_trip {
    struct message m;
    int at;
    void (*each)(struct shard *sh, struct round_trip *r);
    void (*done)(struct round_trip *r);
    struct db_rec *db;
    struct conf *conf;
    uint64_t id;
    int slot, mark, n_rounds;
    bool was_found;
};

static int trips; /* under way */

static void visit(struct message *m, void *data)
{
    struct round_trip *r = container_of(m, struct round_trip, m);
    r->each(w.shard[r->at], r);
    if (++r->at < w.n_shards) {
        mailbox_send(w.loop[r->at], &r->m);
        return;
    }
    trips--;
    r->done(r);
}

static void go_round(struct round_trip *r)
{
    trips++;
    r->at = 0;
    r->m.handle = visit;
    mailbox_send(w.loop[0], &r->m);
}

static struct round_trip *new_trip(void (*each)(struct shard *sh,
                                                struct round_trip *r),
                                   void (*done)(struct round_trip *r))
{
    struct round_trip *r = mem_new(sizeof *r);
    r->each = each;
    r->done = done;
    return r;
}

/* KILL of a database: who was there when it began is gone when it is over, and
 * who was on the way between two workers, on arrival. */
static void kill_each(struct shard *sh, struct round_trip *r)
{
    shard_kill(sh, r->db->name);
}

static void kill_done(struct round_trip *r)
{
    w.kills_done = r->id;
    w.is_killing = false;
    atomic_store(&r->db->is_paused, false);
    for (int i = 0; i < w.n_shards; i++)
        shard_resume_all(w.shard[i]);
    free(r);
}

static void kill_db(void)
{
    struct round_trip *r;
    if (w.is_killing)
        return;
    w.is_killing = true;
    w.has_faults = true; /* logins meet a server that is closed */
    r = new_trip(kill_each, kill_done);
    r->db = any_db();
    r->id = ++w.kills;
    note_event("KILL", r->db->name[1] - '0', 0);
    atomic_store(&r->db->is_paused, true);
    kill_begin(w.shared, r->db);
    list_for(n, &w.clients)
    {
        struct peer_client *d = list_entry(n, struct peer_client, node);
        const struct stream *st = conn_stream(d->k);
        const struct client *c = st ? st->owner : NULL;
        if (!c || c->db != r->db)
            continue;
        d->may_be_cut = true;
        if (c->state >= CLIENT_IDLE && c->state <= CLIENT_ACTIVE)
            d->killed_by = r->id;
    }
    model_totals->kills++;
    go_round(r);
}

static void kill_client_each(struct shard *sh, struct round_trip *r)
{
    r->was_found = r->was_found || shard_kill_client(sh, r->id);
}

static void kill_client_done(struct round_trip *r)
{
    const struct peer_client *d = client_of_mark(r->mark);
    bool is_met = r->was_found || kill_was_met(w.shared, r->slot);
    if (!is_met && r->n_rounds++ == 0) {
        go_round(r);
        return;
    }
    kill_end_client(w.shared, r->slot);
    if (d && conn_stream(d->k))
        sim_fail("client %d outlives KILL_CLIENT", r->mark);
    free(r);
}

static void kill_client(void)
{
    list_for(n, &w.clients)
    {
        struct peer_client *d = list_entry(n, struct peer_client, node);
        const struct stream *st = conn_stream(d->k);
        if (!st || !d->is_in || d->may_be_cut || chance(60))
            continue;
        struct round_trip *r = new_trip(kill_client_each, kill_client_done);
        r->id = ((struct client *)st->owner)->id;
        r->mark = d->mark;
        r->slot = kill_begin_client(w.shared, r->id);
        d->may_be_cut = true;
        note_event("KILL_CLIENT", d->mark, r->slot);
        model_totals->kills++;
        if (r->slot < 0) {
            free(r);
            return;
        }
        go_round(r);
        return;
    }
}

static void pause_or_resume(void)
{
    struct db_rec *db = any_db();
    if (w.is_killing)
        return;
    if (atomic_exchange(&db->is_paused, true)) {
        atomic_store(&db->is_paused, false);
        for (int i = 0; i < w.n_shards; i++)
            shard_resume_all(w.shard[i]);
        note_event("RESUME", db->name[1] - '0', 0);
        return;
    }
    note_event("PAUSE", db->name[1] - '0', 0);
    for (int i = 0; i < w.n_shards; i++) {
        sim_loop_tick(w.loop[i]);
        shard_drain_servers(w.shard[i], db->name);
    }
}

static void reload_each(struct shard *sh, struct round_trip *r)
{
    shard_set_conf(sh, conf_ref(r->conf), NULL, NULL);
}

static void reload_done(struct round_trip *r)
{
    conf_unref(r->conf);
    free(r);
}

static void reload(void)
{
    struct round_trip *r;
    if (trips)
        return; /* one after the other, as main does */
    r = new_trip(reload_each, reload_done);
    w.conf_at = (int)rnd((uint32_t)w.n_confs);
    w.conf_may[w.conf_at] = true;
    r->conf = conf_ref(w.conf[w.conf_at]);
    shared_set_conf(w.shared, conf_ref(r->conf));
    note_event("RELOAD", w.conf_at, 0);
    model_totals->reloads++;
    go_round(r);
}

static void reconnect(void)
{
    struct db_rec *db = any_db();
    note_event("RECONNECT", db->name[1] - '0', 0);
    atomic_fetch_add(&db->server_epoch, 1);
    for (int i = 0; i < w.n_shards; i++) {
        sim_loop_tick(w.loop[i]);
        shard_reconnect(w.shard[i], db->name);
    }
}

static void something_happens(void)
{
    if (rnd(10000) < w.balance)
        move_clients();
    if (rnd(10000) < w.kill_client)
        kill_client();
    if (rnd(10000) < w.kill_db)
        kill_db();
    if (rnd(10000) < w.pause)
        pause_or_resume();
    if (rnd(10000) < w.reload)
        reload();
    if (rnd(10000) < w.reconnect)
        reconnect();
}

/* ---------------------------------------------------------------- a schedule
 */

/* All messages are handled; no time passes. */
static void settle(void)
{
    bool may_fail = sim_detach_may_fail, worked = true;
    sim_detach_may_fail = false;
    for (int k = 0; worked; k++) {
        worked = false;
        if (k == SETTLE_ROUNDS)
            sim_fail("the workers do not come to rest");
        for (int i = 0; i < w.n_shards; i++) {
            sim_loop_tick(w.loop[i]);
            worked = sim_loop_work(w.loop[i], false) || worked;
            sim_loop_end_turn(w.loop[i]);
        }
    }
    sim_detach_may_fail = may_fail;
}

static void step(bool may_grow)
{
    w.step++;
    sim_now_us += rnd((uint32_t)w.step_us * 2);
    turn(any_shard());
    servers_step();
    clients_step();
    cancels_step();
    if (may_grow)
        something_happens();
    if (may_grow && w.n_clients < w.max_clients && chance(20))
        client_connect();
    conns_sweep();
    check_step();
}

static void resume_everything(void)
{
    for (struct db_rec *db = w.shared->db_list; db; db = db->next)
        atomic_store(&db->is_paused, false);
    for (int i = 0; i < w.n_shards; i++)
        shard_resume_all(w.shard[i]);
    w.crash = 0;
    w.is_ending = true;
}

static void world_free(void)
{
    settle();
    for (int i = 0; i < w.n_shards; i++) {
        model_totals->lent += w.shard[i]->n_lent;
        model_totals->moved += w.shard[i]->n_moved_out;
        shard_stop(w.shard[i]);
    }
    for (struct pool_rec *r = w.shared->pool_list; r; r = r->next)
        if (r->n_servers || r->db->n_servers || r->user->n_servers || r->demand)
            sim_fail("%d servers, demand %d are counted after the end",
                     r->n_servers, r->demand);
    for (int i = 0; i < w.n_shards; i++) {
        sim_loop_end_turn(w.loop[i]);
        shard_free(w.shard[i]);
        sim_loop_free(w.loop[i]);
    }
    if (w.shared->n_clients)
        sim_fail("%d clients are counted after the end", w.shared->n_clients);
    shared_free(w.shared);
    list_for_safe(n, &w.servers)
        server_release(list_entry(n, struct peer_server, node));
    list_for_safe(m, &w.cancels)
        cancel_release(list_entry(m, struct peer_cancel, node));
    list_for_safe(k, &w.clients)
        client_release(list_entry(k, struct peer_client, node));
    conns_sweep();
    must(list_empty(&conns));
    for (int i = 0; i < w.n_confs; i++)
        conf_unref(w.conf[i]);
}

static void run(uint64_t seed, int steps)
{
    world_new(seed);
    if (w.is_long)
        steps *= 20;
    for (int i = 0; i < steps; i++) {
        step(true);
        if (i % 32 == 31 && chance(50)) {
            settle();
            check_settled();
        }
    }
    if (chance(80)) {
        resume_everything();
        for (int i = 0; w.n_clients || !list_empty(&w.cancels); i++) {
            if (i == DRAIN_STEPS)
                sim_fail("%d clients do not come to an end", w.n_clients);
            step(false);
            if (i == DRAIN_STEPS / 2)
                w.step_us = 8000; /* time-outs and claims */
        }
        settle();
        check_settled();
    }
    world_free();
    model_totals->schedules++;
    model_totals->steps += w.step;
    if (trace.is_on || getenv("MODEL_DIGEST"))
        printf("seed %llu: digest %016llx\n", (unsigned long long)seed,
               (unsigned long long)trace.digest);
}

/* A child runs many: forking costs more than a schedule. */
static bool run_batch(uint64_t seed, uint64_t n, int steps, time_t end)
{
    int status;
    pid_t pid = fork();
    must(pid >= 0);
    if (pid == 0) {
        (void)signal(SIGABRT, on_abort);
        for (uint64_t i = 0; i < n && (!end || time(NULL) < end); i++)
            run(seed + i, steps);
        exit(0);
    }
    must(waitpid(pid, &status, 0) == pid);
    return status == 0;
}

static void write_users(void)
{
    FILE *f = fopen("/tmp/pgbraid-model-users", "w");
    must(f);
    fprintf(f, "\"a\" \"\"\n\"b\" \"\"\n\"u\" \"\"\n");
    fclose(f);
}

static void report(uint64_t seed, double seconds)
{
    const struct model_totals *t = model_totals;
    printf("%llu schedules from seed %llu, %.0f a second: %llu steps, %llu "
           "clients, %llu queries, %llu cancels of which %llu hit, %llu "
           "servers lent, %llu clients moved, %llu kills, %llu servers died, "
           "%llu reloads\n"
           "at most: %llu rounds of a waiter beside an idle server, overtaken "
           "%u times in a pool, %u by other pools\n",
           (unsigned long long)t->schedules, (unsigned long long)seed,
           (double)t->schedules / (seconds > 0 ? seconds : 1),
           (unsigned long long)t->steps, (unsigned long long)t->clients,
           (unsigned long long)t->queries, (unsigned long long)t->cancels,
           (unsigned long long)t->hits, (unsigned long long)t->lent,
           (unsigned long long)t->moved, (unsigned long long)t->kills,
           (unsigned long long)t->crashes, (unsigned long long)t->reloads,
           (unsigned long long)t->most_rounds, t->most_overtaken,
           t->most_overtaken_by_others);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seconds", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 's'},
        {"runs", required_argument, NULL, 'r'},
        {"steps", required_argument, NULL, 'n'},
        {"trace", no_argument, NULL, 'v'},
        {0},
    };
    uint64_t seed = (uint64_t)time(NULL) * 1000000, runs = UINT64_MAX, i = 0;
    time_t end = time(NULL) + 10;
    int steps = 160, c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 't')
            end = time(NULL) + atoi(optarg);
        else if (c == 's')
            seed = strtoull(optarg, NULL, 10);
        else if (c == 'r')
            runs = strtoull(optarg, NULL, 10);
        else if (c == 'n')
            steps = atoi(optarg);
        else if (c == 'v')
            trace.is_on = sim_verbose = true;
        else
            return 2;
    }
    model_totals = mmap(NULL, sizeof *model_totals, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(model_totals != MAP_FAILED);
    write_users();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (runs != UINT64_MAX)
        end = 0;
    double begin = seconds_now();
    bool ok = true;
    for (; ok && i < runs && (!end || time(NULL) < end); i += BATCH)
        ok = run_batch(seed + i, MIN(runs - i, (uint64_t)BATCH), steps, end);
    report(seed, seconds_now() - begin);
    return ok ? 0 : 1;
}
