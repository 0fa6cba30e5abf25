/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "worker/team.h"

#include <stdlib.h>

#include "worker/worker.h"

struct team {
    int n; /* workers that were made */
    struct worker *worker;
};

int team_new(struct team **out, struct shared *shared, int n_workers,
             const struct console_ops *console, struct err *e)
{
    struct team *t = mem_new(sizeof *t);
    t->worker = mem_new_array((size_t)n_workers, sizeof *t->worker);
    for (int i = 0; i < n_workers; i++) {
        t->n++;
        int rc = worker_init(&t->worker[i], shared, i, console, e);
        if (rc) {
            team_free(t);
            return rc;
        }
    }
    *out = t;
    return 0;
}

int team_start(struct team *t, struct err *e)
{
    for (int i = 0; i < t->n; i++) {
        int rc = worker_start(&t->worker[i], e);
        if (rc)
            return rc;
    }
    return 0;
}

void team_free(struct team *t)
{
    for (int i = 0; i < t->n; i++)
        worker_stop(&t->worker[i]);
    for (int i = 0; i < t->n; i++)
        worker_join(&t->worker[i]);
    for (int i = 0; i < t->n; i++)
        worker_free_shard(&t->worker[i]);
    for (int i = 0; i < t->n; i++)
        worker_free_loop(&t->worker[i]);
    free(t->worker);
    free(t);
}

int team_size(const struct team *t)
{
    return t->n;
}

struct shard *team_shard(const struct team *t, int i)
{
    return t->worker[i].shard;
}

/* --- gathering -------------------------------------------------------------
 * One message goes from worker to worker and then home: it has one owner at a
 * time, and what it points to needs no lock. */

struct gather {
    struct message message;
    struct team *team;
    int at; /* the worker that has it */
    struct loop *asker;
    void (*each)(struct shard *sh, void *arg);
    void (*done)(void *arg);
    void *arg;
};

static void come_home(struct message *m, void *data)
{
    struct gather *g = container_of(m, struct gather, message);
    g->done(g->arg);
    free(g);
}

static void visit(struct message *m, void *data)
{
    struct gather *g = container_of(m, struct gather, message);
    struct team *t = g->team;
    g->each(t->worker[g->at].shard, g->arg);
    g->at++;
    if (g->at < t->n) {
        mailbox_send(t->worker[g->at].loop, &g->message);
    } else if (g->done) {
        g->message.handle = come_home;
        mailbox_send(g->asker, &g->message);
    } else {
        free(g);
    }
}

void team_gather(struct team *t, struct loop *asker,
                 void (*each)(struct shard *sh, void *arg),
                 void (*done)(void *arg), void *arg)
{
    struct gather *g = mem_new(sizeof *g);
    *g = (struct gather){.message.handle = visit,
                         .team = t,
                         .asker = asker,
                         .each = each,
                         .done = done,
                         .arg = arg};
    mailbox_send(t->worker[0].loop, &g->message);
}

struct errand {
    struct message message;
    struct shard *shard;
    void (*fn)(struct shard *sh, void *arg);
    void *arg;
};

static void run_errand(struct message *m, void *data)
{
    struct errand *r = container_of(m, struct errand, message);
    r->fn(r->shard, r->arg);
    free(r);
}

void team_run_on(struct team *t, int i, void (*fn)(struct shard *sh, void *arg),
                 void *arg)
{
    struct errand *r = mem_new(sizeof *r);
    *r = (struct errand){.message.handle = run_errand,
                         .shard = t->worker[i].shard,
                         .fn = fn,
                         .arg = arg};
    mailbox_send(t->worker[i].loop, &r->message);
}
