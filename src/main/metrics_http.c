/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A request is suspended while its object goes round the workers; its way home
 * leads through the main loop, which resumes it, and then the page is written
 * here, on the HTTP thread. metrics_http_close() comes before the main loop's
 * last messages, so that what is on its way then still comes home. */
#include "main/metrics_http.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "admin/metrics.h"
#include "base/log.h"
#include "main/addresses.h"
#include "main/app.h"

enum {
    BACKLOG = 16,
    CONNECTIONS_MAX = 32,
    CONNECTIONS_PER_ADDRESS = 16,
    IDLE_TIMEOUT_S = 10,
    REQUEST_BYTES = 16384, /* head of a request, and MHD's own needs */
};

struct metrics_http {
    int fd;         /* until MHD has it; -1 */
    bool is_shared; /* other processes may have the port */
    struct addr at;
    struct app *app;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    bool is_closed; /* under lock */
};

/* A request that the workers are asked for. */
struct request {
    struct MHD_Connection *conn;
    struct metrics *metrics; /* NULL: they only have to answer (/healthz) */
    bool is_home;
};

/* --- binding ---------------------------------------------------------------
 */

int metrics_http_check(const struct conf *c, struct err *e)
{
    return 0;
}

static int listen_on(struct metrics_http *h, struct err *e)
{
    const int on = 1;
    char where[ADDR_TEXT_MAX];
    h->fd = socket(h->at.sa.sa_family,
                   SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd >= 0 &&
        setsockopt(h->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        (!h->is_shared ||
         setsockopt(h->fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0) &&
        bind(h->fd, &h->at.sa, h->at.len) == 0 && listen(h->fd, BACKLOG) == 0)
        return 0;
    addr_text(&h->at, where, sizeof where);
    return err_set(e, ERR_IO, "metrics_listen_addr: cannot listen on %s: %s%s",
                   where, strerror(errno),
                   errno == EADDRINUSE ? "; is another process using it?" : "");
}

int metrics_http_open(struct metrics_http **out, const struct conf *c,
                      struct err *e)
{
    struct addresses as;
    char *item = (char *)(uintptr_t)c->metrics_listen_addr;
    struct conf_list list = {.items = &item, .n = 1};
    *out = NULL;
    if (!item || !*item)
        return 0;
    int rc = addresses_find(&as, "metrics_listen_addr", &list,
                            c->metrics_listen_port, e);
    if (rc)
        return rc;
    struct metrics_http *h = mem_new(sizeof *h);
    h->at = as.at[0];
    h->is_shared = c->so_reuseport;
    must(pthread_mutex_init(&h->lock, NULL) == 0);
    rc = listen_on(h, e);
    if (rc) {
        metrics_http_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

/* --- answering -------------------------------------------------------------
 */

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code,
                              const char *type, const char *p, size_t n,
                              enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r =
        MHD_create_response_from_buffer(n, (void *)(uintptr_t)p, mode);
    if (!r) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free((void *)(uintptr_t)p);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result rc = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned code,
                           const char *text)
{
    return answer(c, code, "text/plain; charset=utf-8", text, strlen(text),
                  MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result say_health(const struct metrics_http *h,
                                  struct MHD_Connection *c)
{
    const struct shared *s = h->app->shared;
    if (atomic_load(&s->is_shutting_down))
        return say(c, MHD_HTTP_SERVICE_UNAVAILABLE, "shutting down\n");
    return say(c, MHD_HTTP_OK,
               atomic_load(&s->is_paused) ? "paused\n" : "ok\n");
}

static enum MHD_Result say_metrics(struct request *r)
{
    struct pgbuf out;
    size_t n;
    pgbuf_init(&out, METRICS_PAGE_MAX);
    metrics_put(r->metrics, &out);
    char *page = pgbuf_take(&out, &n);
    pgbuf_fini(&out);
    if (!page)
        return say(r->conn, MHD_HTTP_INTERNAL_SERVER_ERROR,
                   "the page is too large\n");
    return answer(r->conn, MHD_HTTP_OK,
                  "text/plain; version=0.0.4; charset=utf-8", page, n,
                  MHD_RESPMEM_MUST_FREE);
}

/* --- asking the workers ----------------------------------------------------
 */

static void visit(struct shard *sh, void *arg)
{
    struct request *r = arg;
    if (r->metrics)
        metrics_collect(sh, r->metrics);
}

/* On the main thread. */
static void come_home(void *arg)
{
    struct request *r = arg;
    r->is_home = true;
    MHD_resume_connection(r->conn);
}

static enum MHD_Result ask(struct metrics_http *h, struct request *r,
                           bool wants_metrics)
{
    pthread_mutex_lock(&h->lock);
    bool is_closed = h->is_closed;
    if (!is_closed) {
        if (wants_metrics)
            r->metrics = metrics_new(h->app->shared);
        MHD_suspend_connection(r->conn);
        team_gather(h->app->team, h->app->loop, visit, come_home, r);
    }
    pthread_mutex_unlock(&h->lock);
    return is_closed
               ? say(r->conn, MHD_HTTP_SERVICE_UNAVAILABLE, "shutting down\n")
               : MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c,
                                  const char *url, const char *method,
                                  const char *version, const char *body,
                                  size_t *body_n, void **state)
{
    struct metrics_http *h = arg;
    struct request *r = *state;
    bool wants_metrics = !strcmp(url, "/metrics");
    if (r && r->is_home)
        return r->metrics ? say_metrics(r) : say_health(h, c);
    if (strcmp(method, MHD_HTTP_METHOD_GET) &&
        strcmp(method, MHD_HTTP_METHOD_HEAD))
        return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET is all there is\n");
    if (!wants_metrics && strcmp(url, "/healthz"))
        return say(c, MHD_HTTP_NOT_FOUND, "see /metrics and /healthz\n");
    if (!r) {
        *state = r = mem_new(sizeof *r);
        r->conn = c;
        return MHD_YES; /* called again when all of the request is there */
    }
    return ask(h, r, wants_metrics);
}

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct request *r = *state;
    if (!r)
        return;
    if (r->metrics)
        metrics_free(r->metrics);
    free(r);
    *state = NULL;
}

/* --- life ------------------------------------------------------------------
 */

int metrics_http_start(struct metrics_http *h, struct app *app, struct err *e)
{
    char where[ADDR_TEXT_MAX];
    if (!h)
        return 0;
    h->app = app;
    addr_text(&h->at, where, sizeof where);
    h->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD |
            MHD_ALLOW_SUSPEND_RESUME,
        0, NULL, NULL, on_request, h, MHD_OPTION_LISTEN_SOCKET, h->fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)CONNECTIONS_PER_ADDRESS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL, MHD_OPTION_END);
    if (!h->daemon)
        return err_set(e, ERR_IO, "metrics_listen_addr: cannot serve on %s",
                       where);
    h->fd = -1;
    log_info("metrics on http://%s/metrics", where);
    return 0;
}

void metrics_http_drain(struct metrics_http *h)
{
    if (h && h->is_shared)
        metrics_http_leave(h);
}

void metrics_http_leave(struct metrics_http *h)
{
    if (!h || !h->daemon)
        return;
    int fd = (int)MHD_quiesce_daemon(h->daemon);
    if (fd >= 0)
        close(fd);
}

void metrics_http_close(struct metrics_http *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->is_closed = true;
    pthread_mutex_unlock(&h->lock);
}

void metrics_http_free(struct metrics_http *h)
{
    if (!h)
        return;
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    if (h->fd >= 0)
        close(h->fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
