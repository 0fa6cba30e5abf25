/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "loop/thrpool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/altstack.h"
#include "base/clock.h"
#include "loop/loop.h"

enum {
    STOP_WAIT_US = 2000 * 1000,
    THREAD_NAME_MAX = 16, /* the kernel's limit */
};

struct thrpool {
    char name[THREAD_NAME_MAX];
    int max_threads, max_jobs;

    pthread_mutex_t lock;
    pthread_cond_t has_work; /* or the end */
    pthread_cond_t has_ended;
    pthread_t *thread;
    int n_threads, n_idle, n_ended;
    int n_jobs;           /* waiting or running */
    struct list waiting;  /* by turn, then the oldest first */
    uint64_t turn;        /* of the job that was taken last */
    struct list ready;    /* ran; not yet taken by its loop */
    bool is_stopped;      /* no more jobs */
    bool is_left_to_leak; /* a thread is still in a job */
};

/* Tells the loop that a job is ready. The loop frees it unread when it ends;
 * the job stays with the pool until then. */
struct note {
    struct message message;
    struct thrpool *pool;
    struct thrpool_job *job;
};

struct thrpool *thrpool_new(const char *name, int max_threads, int max_jobs)
{
    struct thrpool *p = mem_new(sizeof *p);
    pthread_condattr_t attr;
    snprintf(p->name, sizeof p->name, "pgb-%.10s", name);
    p->max_threads = max_threads;
    p->max_jobs = max_jobs;
    p->thread = mem_new_array((size_t)max_threads, sizeof *p->thread);
    list_init(&p->waiting);
    list_init(&p->ready);
    must(pthread_mutex_init(&p->lock, NULL) == 0);
    must(pthread_condattr_init(&attr) == 0);
    must(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    must(pthread_cond_init(&p->has_work, &attr) == 0);
    must(pthread_cond_init(&p->has_ended, &attr) == 0);
    pthread_condattr_destroy(&attr);
    return p;
}

/* --- the way home ------------------------------------------------------ */

static void come_home(struct message *m, void *loop_data)
{
    struct note *n = container_of(m, struct note, message);
    struct thrpool_job *j = n->job;
    pthread_mutex_lock(&n->pool->lock);
    list_remove(&j->node);
    pthread_mutex_unlock(&n->pool->lock);
    free(n);
    j->done(j);
}

static void send_home(struct thrpool *p, struct thrpool_job *j)
{
    struct note *n = mem_new(sizeof *n);
    *n = (struct note){{.handle = come_home}, p, j};
    mailbox_send(j->home, &n->message);
}

/* --- a helper thread --------------------------------------------------- */

/* NULL at the end. */
static struct thrpool_job *next_job_locked(struct thrpool *p)
{
    while (list_empty(&p->waiting) && !p->is_stopped) {
        p->n_idle++;
        pthread_cond_wait(&p->has_work, &p->lock);
        p->n_idle--;
    }
    if (p->is_stopped)
        return NULL;
    struct thrpool_job *j =
        list_entry(list_first(&p->waiting), struct thrpool_job, node);
    list_remove(&j->node);
    p->turn = MAX(p->turn, j->turn);
    return j;
}

static void *run(void *arg)
{
    struct thrpool *p = arg;
    struct thrpool_job *j;
    altstack_start();
    pthread_mutex_lock(&p->lock);
    while ((j = next_job_locked(p))) {
        pthread_mutex_unlock(&p->lock);
        j->run(j);
        pthread_mutex_lock(&p->lock);
        p->n_jobs--;
        list_push_back(&p->ready, &j->node);
        if (p->is_stopped)
            break;
        pthread_mutex_unlock(&p->lock);
        /* Loops outlive thrpool_stop(), which waits for this thread. */
        send_home(p, j);
        pthread_mutex_lock(&p->lock);
    }
    altstack_stop();
    p->n_ended++;
    pthread_cond_signal(&p->has_ended);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static int add_thread_locked(struct thrpool *p)
{
    pthread_t t;
    if (pthread_create(&t, NULL, run, p))
        return ERR_LIMIT;
    (void)pthread_setname_np(t, p->name); /* for people only */
    p->thread[p->n_threads++] = t;
    return 0;
}

/* --- from outside ------------------------------------------------------ */

/* A party's jobs follow each other one in each turn, beginning with the present
 * one. */
static void put_in_line_locked(struct thrpool *p, struct thrpool_job *j)
{
    struct list *at = p->waiting.prev;
    j->turn = p->turn;
    for (struct list *n = at; n != &p->waiting; n = n->prev) {
        struct thrpool_job *other = list_entry(n, struct thrpool_job, node);
        if (other->party == j->party) {
            j->turn = other->turn + 1;
            break;
        }
    }
    while (at != &p->waiting &&
           list_entry(at, struct thrpool_job, node)->turn > j->turn)
        at = at->prev;
    list_push_front(at, &j->node); /* behind it */
}

int thrpool_start(struct thrpool *p, struct loop *home, struct thrpool_job *j)
{
    int rc = 0;
    j->home = home;
    list_init(&j->node);
    pthread_mutex_lock(&p->lock);
    if (p->is_stopped || p->n_jobs == p->max_jobs)
        rc = ERR_LIMIT;
    else if (!p->n_idle && p->n_threads < p->max_threads)
        rc = add_thread_locked(p) && !p->n_threads ? ERR_LIMIT : 0;
    if (rc == 0) {
        p->n_jobs++;
        put_in_line_locked(p, j);
        pthread_cond_signal(&p->has_work);
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static void wait_for_threads_locked(struct thrpool *p)
{
    int64_t until = clock_now_us() + STOP_WAIT_US;
    struct timespec at = {until / 1000000, until % 1000000 * 1000};
    while (p->n_ended < p->n_threads &&
           !pthread_cond_timedwait(&p->has_ended, &p->lock, &at))
        ;
}

void thrpool_stop(struct thrpool *p)
{
    pthread_mutex_lock(&p->lock);
    bool is_first = !p->is_stopped;
    p->is_stopped = true;
    pthread_cond_broadcast(&p->has_work);
    if (is_first)
        wait_for_threads_locked(p);
    bool have_all_ended = p->n_ended == p->n_threads;
    p->is_left_to_leak |= !have_all_ended;
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; is_first && i < p->n_threads; i++) {
        if (have_all_ended)
            must(pthread_join(p->thread[i], NULL) == 0);
        else
            pthread_detach(p->thread[i]);
    }
}

static void drop_all(struct list *jobs)
{
    struct list *n;
    while ((n = list_first(jobs))) {
        struct thrpool_job *j = list_entry(n, struct thrpool_job, node);
        list_remove(n);
        j->drop(j);
    }
}

void thrpool_free(struct thrpool *p)
{
    if (!p)
        return;
    thrpool_stop(p);
    if (p->is_left_to_leak)
        return; /* a thread still looks at it */
    drop_all(&p->waiting);
    drop_all(&p->ready);
    pthread_cond_destroy(&p->has_work);
    pthread_cond_destroy(&p->has_ended);
    pthread_mutex_destroy(&p->lock);
    free(p->thread);
    free(p);
}
