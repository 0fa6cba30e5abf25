/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* load: queries that arrive at a given rate, whether or not the last ones were
 * answered (open loop), or as fast as they are answered (closed loop), over
 * TCP, TLS, Unix sockets and QUIC. load --help says how.
 *
 *   OPENING   the sessions log in
 *   WARMING   load runs and is not counted
 *   RUNNING   it counts
 *   DRAINING  nothing arrives any more; the rest is answered
 *
 * An arrival that finds no idle session waits in the queue: latency is counted
 * from the moment when it should have arrived. */
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/load_hist.h"
#include "bench/load_session.h"

enum {
    SECOND_US = 1000000,
    ARRIVALS_PER_TURN = 10000,
    REOPEN_US = 200 * 1000,
    ERRORS_SHOWN = 5,
    OPEN_PATIENCE_US = 60 * SECOND_US,
    AUTH_CACHE_MAX = 4,
};

enum phase { OPENING, WARMING, RUNNING, DRAINING };

struct counts {
    uint64_t offered, completed, errors;
    struct hist latency;
};

/* Times of arrival of those that wait; grows. */
struct queue {
    int64_t *at;
    size_t cap, first, n;
};

struct load {
    struct load_options o;
    struct session_env env;
    struct session *sessions;
    int n_sessions, n_opening, n_opened, n_busy, n_ready;
    struct list idle, broken;
    struct queue queue;
    enum phase phase;
    int64_t phase_us, open_us, next_arrival_us, second_us, progress_us;
    int seconds; /* reported */
    struct counts second, total;
    struct hist opens;
    uint64_t bulk_done, bulk_bytes, bulk_last_bytes, broken_count;
    uint64_t max_queue;
    int64_t open_first_us;
    int n_shown;
    struct timer arrival_timer, second_timer, reopen_timer;
    FILE *csv;
    struct rusage cpu_before, cpu_after;
    double ran_s;
};

static struct load load;

static int64_t now_us(void)
{
    return clock_now_us();
}

static void show(const char *what, const char *why)
{
    if (load.n_shown++ < ERRORS_SHOWN)
        fprintf(stderr, "load: %s: %s\n", what, why);
}

/* --- queue ---------------------------------------------------------------- */

static void queue_push(struct queue *q, int64_t at)
{
    if (q->n == q->cap) {
        size_t cap = q->cap ? q->cap * 2 : 1024;
        int64_t *to = mem_new_array(cap, sizeof *to);
        for (size_t i = 0; i < q->n; i++)
            to[i] = q->at[(q->first + i) % q->cap];
        free(q->at);
        *q = (struct queue){to, cap, 0, q->n};
    }
    q->at[(q->first + q->n++) % q->cap] = at;
}

static int64_t queue_pop(struct queue *q)
{
    int64_t at = q->at[q->first];
    q->first = (q->first + 1) % q->cap;
    q->n--;
    return at;
}

/* --- who does what -------------------------------------------------------- */

static bool is_closed_loop(void)
{
    return load.o.rate == 0 && load.o.burst == 0;
}

static bool takes_work(void)
{
    return load.phase == WARMING || load.phase == RUNNING;
}

/* One query on a session that is idle, or, with --new-session, closed. */
static void begin(struct session *s, int64_t arrival_us)
{
    load.n_busy++;
    if (s->state == SESSION_IDLE) {
        session_query(s, arrival_us);
        return;
    }
    s->arrival_us = arrival_us;
    session_open(s);
}

static void next_for(struct session *s)
{
    if (load.queue.n > 0)
        begin(s, queue_pop(&load.queue));
    else if (is_closed_loop() && takes_work()) {
        load.second.offered++;
        begin(s, now_us());
    } else
        list_push_back(&load.idle, &s->node);
}

static void arrive(int64_t at)
{
    load.second.offered++;
    if (list_empty(&load.idle)) {
        queue_push(&load.queue, at);
        load.max_queue = MAX(load.max_queue, load.queue.n);
        return;
    }
    struct session *s =
        list_entry(list_first(&load.idle), struct session, node);
    list_remove(&s->node);
    begin(s, at);
}

/* --- phases --------------------------------------------------------------- */

static double rate_at(int64_t at)
{
    double part = 0;
    if (load.phase == RUNNING)
        part = (double)(at - load.phase_us) / 1e6 / load.o.duration_s;
    double rate = load.o.rate +
                  (load.o.rate_end - load.o.rate) * MIN(MAX(part, 0.0), 1.0);
    return MAX(rate, 0.001);
}

static int64_t gap_us(int64_t at)
{
    double mean = 1e6 / rate_at(at);
    if (!load.o.is_fixed)
        mean *= -log(1 - load_random());
    return (int64_t)(mean + 0.5);
}

static void on_arrivals(struct timer *t)
{
    int64_t now = now_us();
    int n = 0;
    if (!takes_work())
        return;
    while (load.next_arrival_us <= now && n++ < ARRIVALS_PER_TURN) {
        arrive(load.next_arrival_us);
        load.next_arrival_us += gap_us(load.next_arrival_us);
    }
    timer_set(load.env.loop, t, load.next_arrival_us);
}

static void reset_counts(struct counts *c)
{
    c->offered = c->completed = c->errors = 0;
    hist_reset(&c->latency);
}

static void set_phase(enum phase p)
{
    load.phase = p;
    load.phase_us = now_us();
}

static void start_running(void)
{
    set_phase(RUNNING);
    reset_counts(&load.second);
    load.max_queue = load.queue.n;
    load.bulk_bytes = load.bulk_last_bytes = load.bulk_done = 0;
    load.second_us = load.phase_us + SECOND_US;
    timer_set(load.env.loop, &load.second_timer, load.second_us);
    getrusage(RUSAGE_SELF, &load.cpu_before);
    for (int i = 0; i < load.o.burst; i++)
        arrive(load.phase_us);
}

static void on_bulk(struct session *s)
{
    if (takes_work())
        session_query(s, now_us());
}

/* All sessions are there, or have been replaced by a promise to open. */
static void start(void)
{
    set_phase(WARMING);
    for (int i = 0; i < load.o.bulk; i++)
        on_bulk(&load.sessions[load.o.sessions + i]);
    if (load.o.rate > 0) {
        load.next_arrival_us = load.phase_us + gap_us(load.phase_us);
        timer_set(load.env.loop, &load.arrival_timer, load.next_arrival_us);
    }
    if (is_closed_loop()) {
        struct list all;
        list_init(&all);
        while (!list_empty(&load.idle)) {
            struct list *n = list_first(&load.idle);
            list_remove(n);
            list_push_back(&all, n);
        }
        while (!list_empty(&all)) {
            struct list *n = list_first(&all);
            list_remove(n);
            next_for(list_entry(n, struct session, node));
        }
    }
    if (load.o.warmup_s > 0)
        timer_set(load.env.loop, &load.second_timer,
                  load.phase_us + (int64_t)(load.o.warmup_s * 1e6));
    else
        start_running();
}

/* --- each second ---------------------------------------------------------- */

static double ms(int64_t us)
{
    return (double)us / 1000;
}

static uint64_t bulk_received(void)
{
    uint64_t sum = 0;
    for (int i = load.o.sessions; i < load.n_sessions; i++)
        sum += load.sessions[i].bytes;
    return sum;
}

static void write_second(void)
{
    const struct hist *h = &load.second.latency;
    uint64_t bytes = bulk_received();
    if (load.csv)
        fprintf(load.csv,
                "%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",%zu,%d,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f,%.3f\n",
                ++load.seconds, load.second.offered, load.second.completed,
                load.second.errors, load.queue.n, load.n_busy,
                hist_mean(h) / 1000, ms(hist_part(h, 0.5)),
                ms(hist_part(h, 0.9)), ms(hist_part(h, 0.99)),
                ms(hist_part(h, 0.999)), ms(h->max_us),
                (double)(bytes - load.bulk_last_bytes) / 1e6);
    load.bulk_last_bytes = bytes;
    load.total.offered += load.second.offered;
    load.total.errors += load.second.errors;
    if (load.phase == RUNNING)
        load.total.completed += load.second.completed;
    hist_merge(&load.total.latency, h);
    reset_counts(&load.second);
}

static bool all_answered(void)
{
    return load.queue.n == 0 && load.n_busy == 0;
}

static void stop_running(void)
{
    load.ran_s = (double)(now_us() - load.phase_us) / 1e6;
    load.bulk_bytes = bulk_received() - load.bulk_bytes;
    getrusage(RUSAGE_SELF, &load.cpu_after);
    set_phase(DRAINING);
    timer_clear(load.env.loop, &load.arrival_timer);
}

static void on_second(struct timer *t)
{
    int64_t now = now_us();
    if (load.phase == WARMING) {
        start_running();
        load.bulk_bytes = load.bulk_last_bytes = bulk_received();
        return;
    }
    write_second();
    bool is_over = now - load.phase_us >=
                   (int64_t)(load.o.duration_s * 1e6) - SECOND_US / 100;
    bool is_burst_done = load.o.rate == 0 && load.o.burst && all_answered();
    if (load.phase == RUNNING &&
        (is_over || is_burst_done || load.queue.n > (size_t)load.o.max_queue))
        stop_running();
    if (load.phase == DRAINING &&
        (all_answered() ||
         now - load.phase_us >= (int64_t)(load.o.drain_s * 1e6))) {
        loop_stop(load.env.loop);
        return;
    }
    load.second_us += SECOND_US;
    timer_set(load.env.loop, t, load.second_us);
}

/* --- sessions tell -------------------------------------------------------- */

static void open_more(void)
{
    while (load.n_opening < load.o.open_at_once &&
           load.n_opened < load.n_sessions) {
        load.n_opening++;
        session_open(&load.sessions[load.n_opened++]);
    }
}

static void count_open(struct session *s)
{
    int64_t took = now_us() - s->open_us;
    hist_add(&load.opens, took);
    if (load.opens.n == 1)
        load.open_first_us = took;
    load.progress_us = now_us();
}

void load_on_ready(struct session *s)
{
    count_open(s);
    if (load.o.new_session && !s->is_bulk) {
        session_query(s, s->arrival_us);
        return;
    }
    if (load.phase != OPENING) {
        if (s->is_bulk)
            on_bulk(s);
        else
            next_for(s);
        return;
    }
    load.n_opening--;
    load.n_ready++;
    if (load.o.hold && !s->is_bulk) {
        session_query(s, now_us());
        load.n_busy++;
    } else if (!s->is_bulk) {
        list_push_back(&load.idle, &s->node);
    }
    open_more();
    if (load.n_ready == load.n_sessions && !load.o.hold)
        start();
}

static void held(void)
{
    if (load.n_ready == load.n_sessions && load.n_busy == 0)
        loop_stop(load.env.loop);
}

void load_on_done(struct session *s)
{
    if (s->is_bulk) {
        load.bulk_done++;
        on_bulk(s);
        return;
    }
    load.n_busy--;
    if (s->has_failed) {
        load.second.errors++;
    } else {
        load.second.completed++;
        hist_add(&load.second.latency, now_us() - s->arrival_us);
    }
    if (load.o.hold) {
        held();
        return;
    }
    if (load.o.new_session)
        session_close(s);
    next_for(s);
    if (load.phase == DRAINING && all_answered())
        timer_set(load.env.loop, &load.second_timer, now_us());
}

void load_on_broken(struct session *s, enum session_state was, const char *why)
{
    load.broken_count++;
    show("a session broke", why);
    list_remove(&s->node);
    if (load.o.hold && load.phase == DRAINING)
        return;
    bool had_query =
        !s->is_bulk &&
        (was == SESSION_BUSY || (load.o.new_session && load.phase != OPENING));
    if (had_query) {
        load.n_busy--;
        load.second.errors++;
    }
    list_push_back(&load.broken, &s->node);
    if (!timer_is_set(&load.reopen_timer))
        timer_set(load.env.loop, &load.reopen_timer, now_us() + REOPEN_US);
}

void load_on_error(struct session *s, const char *text)
{
    show("the server says", text);
}

static void on_reopen(struct timer *t)
{
    struct list again;
    list_init(&again);
    if (load.phase == OPENING &&
        now_us() - load.progress_us > OPEN_PATIENCE_US) {
        fprintf(stderr, "load: only %d of %d sessions could be opened\n",
                load.n_ready, load.n_sessions);
        exit(1);
    }
    while (!list_empty(&load.broken)) {
        struct list *n = list_first(&load.broken);
        list_remove(n);
        list_push_back(&again, n);
    }
    while (!list_empty(&again)) {
        struct session *s =
            list_entry(list_first(&again), struct session, node);
        list_remove(&s->node);
        if (load.o.new_session && !s->is_bulk) {
            s->state = SESSION_CLOSED;
            next_for(s);
        } else {
            session_open(s);
        }
    }
}

/* --- summary -------------------------------------------------------------- */

struct wire_counts {
    uint64_t packets_in, packets_out, frames_out, sends, bytes_in, bytes_out;
    int conns;
};

static void add_conn(void *arg, const struct quic_conn_view *v)
{
    struct wire_counts *w = arg;
    w->conns++;
    w->packets_in += v->packets_in;
    w->packets_out += v->packets_out;
    w->frames_out += v->frames_out;
    w->sends += v->sends;
    w->bytes_in += v->bytes_in;
    w->bytes_out += v->bytes_out;
}

static double seconds_of(const struct timeval *t)
{
    return (double)t->tv_sec + (double)t->tv_usec / 1e6;
}

static double cpu_s(void)
{
    const struct rusage *a = &load.cpu_after, *b = &load.cpu_before;
    return seconds_of(&a->ru_utime) - seconds_of(&b->ru_utime) +
           seconds_of(&a->ru_stime) - seconds_of(&b->ru_stime);
}

static void print_field(const char *name, double value, bool is_last)
{
    if (load.o.json)
        printf("\"%s\": %.12g%s", name, value, is_last ? "}\n" : ", ");
    else
        printf("%-22s %.12g\n", name, value);
}

static void summary(void)
{
    const struct hist *h = &load.total.latency;
    struct wire_counts w = {0};
    uint64_t done = MAX(load.total.completed, (uint64_t)1);
    if (load.env.up && load.env.up->quic)
        quic_host_each(load.env.up->quic, add_conn, &w);
    if (load.o.json)
        putchar('{');
    print_field("seconds", load.ran_s, false);
    print_field("offered", (double)load.total.offered, false);
    print_field("completed", (double)load.total.completed, false);
    print_field("per_second", (double)load.total.completed / load.ran_s, false);
    print_field("errors", (double)load.total.errors, false);
    print_field("broken_sessions", (double)load.broken_count, false);
    print_field("unanswered", (double)load.queue.n + load.n_busy, false);
    print_field("max_queue", (double)load.max_queue, false);
    print_field("mean_ms", hist_mean(h) / 1000, false);
    print_field("p50_ms", ms(hist_part(h, 0.5)), false);
    print_field("p90_ms", ms(hist_part(h, 0.9)), false);
    print_field("p99_ms", ms(hist_part(h, 0.99)), false);
    print_field("p999_ms", ms(hist_part(h, 0.999)), false);
    print_field("max_ms", ms(h->max_us), false);
    print_field("open_first_ms", ms(load.open_first_us), false);
    print_field("open_p50_ms", ms(hist_part(&load.opens, 0.5)), false);
    print_field("open_max_ms", ms(load.opens.max_us), false);
    print_field("bulk_mb", (double)load.bulk_bytes / 1e6, false);
    print_field("bulk_queries", (double)load.bulk_done, false);
    print_field("own_cpu_us", cpu_s() * 1e6 / (double)done, false);
    print_field("quic_connections", w.conns, false);
    print_field("quic_packets_out", (double)w.packets_out, false);
    print_field("quic_packets_in", (double)w.packets_in, false);
    print_field("quic_frames_out", (double)w.frames_out, true);
}

/* --- life ----------------------------------------------------------------- */

static void raise_fd_limit(void)
{
    struct rlimit rl;
    getrlimit(RLIMIT_NOFILE, &rl);
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);
    if (rl.rlim_cur < (rlim_t)load.n_sessions + 32)
        fprintf(stderr, "load: only %llu descriptors are allowed\n",
                (unsigned long long)rl.rlim_cur);
}

static int prepare(struct err *e)
{
    const struct load_options *o = &load.o;
    struct upstream_options up = {
        .target = o->to,
        .ca_file = o->ca_file,
        .no_verify = o->no_verify,
        .connections = o->connections,
        .streams_per_connection = o->streams,
        .wait_us = 30 * SECOND_US,
    };
    int rc = loop_new(&load.env.loop, &load, e);
    if (rc == 0 && !o->is_unix)
        rc = upstream_new(&load.env.up, load.env.loop, &up, e);
    if (rc)
        return rc;
    load.env.o = o;
    load.env.cache = auth_cache_new(AUTH_CACHE_MAX);
    pgbuf_init(&load.env.out, 1 << 20);
    load.n_sessions = o->sessions + o->bulk;
    load.sessions =
        mem_new_array((size_t)load.n_sessions, sizeof *load.sessions);
    list_init(&load.idle);
    list_init(&load.broken);
    load.arrival_timer.on_fire = on_arrivals;
    load.second_timer.on_fire = on_second;
    load.reopen_timer.on_fire = on_reopen;
    for (int i = 0; i < load.n_sessions; i++) {
        session_init(&load.sessions[i], &load.env);
        load.sessions[i].is_bulk = i >= o->sessions;
    }
    return 0;
}

static void open_csv(void)
{
    if (!load.o.csv_file)
        return;
    load.csv = fopen(load.o.csv_file, "w");
    if (!load.csv) {
        perror("load: --csv");
        exit(1);
    }
    fputs("second,offered,completed,errors,queue,in_flight,mean_ms,p50_ms,"
          "p90_ms,p99_ms,p999_ms,max_ms,bulk_mb\n",
          load.csv);
}

/* --hold: the loop goes on in turns of its own, so that keep-alives are
 * answered; the end of standard input ends it. */
static void on_stdin(struct io *io, uint32_t events)
{
    loop_stop(load.env.loop);
}

static void hold(void)
{
    struct io in = {.fd = STDIN_FILENO, .on_event = on_stdin};
    int lost = 0;
    printf("ready %d\n", load.n_ready);
    fflush(stdout);
    set_phase(DRAINING);
    if (loop_add(load.env.loop, &in, EPOLLIN) == 0) {
        loop_run(load.env.loop);
        loop_del(load.env.loop, &in);
    }
    for (int i = 0; i < load.n_sessions; i++)
        lost += load.sessions[i].state != SESSION_IDLE;
    printf("lost %d\n", lost);
}

static void clean_up(void)
{
    for (int i = 0; i < load.n_sessions; i++)
        session_close(&load.sessions[i]);
    upstream_free(load.env.up);
    loop_free(load.env.loop);
    pgbuf_fini(&load.env.out);
    auth_cache_free(load.env.cache);
    free(load.sessions);
    free(load.queue.at);
    if (load.csv)
        fclose(load.csv);
    load_options_free(&load.o);
}

int main(int argc, char **argv)
{
    struct err e;
    signal(SIGPIPE, SIG_IGN);
    load_options_parse(&load.o, argc, argv);
    if (prepare(&e)) {
        fprintf(stderr, "load: %s\n", e.text);
        return 1;
    }
    raise_fd_limit();
    open_csv();
    load.open_us = load.progress_us = now_us();
    if (load.o.new_session) {
        for (int i = 0; i < load.o.sessions; i++)
            list_push_back(&load.idle, &load.sessions[i].node);
        load.n_opened = load.n_ready = load.o.sessions;
        if (load.o.bulk == 0)
            start();
    }
    open_more();
    loop_run(load.env.loop);
    if (load.o.hold)
        hold();
    else
        summary();
    clean_up();
    return 0;
}
