/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* In place of metrics_http.c where the build has no libmicrohttpd. */
#include "main/metrics_http.h"

int metrics_http_check(const struct conf *c, struct err *e)
{
    if (!c->metrics_listen_addr || !*c->metrics_listen_addr)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "metrics_listen_addr: this build of pgbraid has no metrics "
                   "(it needs libmicrohttpd); remove the option, or build with "
                   "-Dmetrics=enabled");
}

int metrics_http_open(struct metrics_http **out, const struct conf *c,
                      struct err *e)
{
    *out = NULL;
    return metrics_http_check(c, e);
}

int metrics_http_start(struct metrics_http *h, struct app *app, struct err *e)
{
    return 0;
}

void metrics_http_drain(struct metrics_http *h)
{
}

void metrics_http_leave(struct metrics_http *h)
{
}

void metrics_http_close(struct metrics_http *h)
{
}

void metrics_http_free(struct metrics_http *h)
{
}
