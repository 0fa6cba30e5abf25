/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The HTTP listener of metrics_listen_addr: GET /metrics and GET /healthz, on a
 * thread of its own (libmicrohttpd). The main thread owns it and calls these;
 * NULL, where the option is not set, is fine. In a build without libmicrohttpd
 * the option is an error (metrics_none.c). */
#ifndef MAIN_METRICS_HTTP_H
#define MAIN_METRICS_HTTP_H

#include "conf/conf.h"

struct app;
struct metrics_http;

/* Whether this build can do what the file asks for. */
NODISCARD int metrics_http_check(const struct conf *c, struct err *e);

/* Binds, while the process may still be root; *out is NULL without the option.
 * Nobody is served before metrics_http_start(), which comes after the last
 * fork. */
NODISCARD int metrics_http_open(struct metrics_http **out, const struct conf *c,
                                struct err *e);
NODISCARD int metrics_http_start(struct metrics_http *h, struct app *app,
                                 struct err *e);

/* The process waits for its end: where others may have the port as well, they
 * are to be asked from now on. */
void metrics_http_drain(struct metrics_http *h);

/* The port is another process's from now on (an upgrade). */
void metrics_http_leave(struct metrics_http *h);

/* No worker is asked any more; before the main loop's last messages. */
void metrics_http_close(struct metrics_http *h);

/* After the main loop has ended. */
void metrics_http_free(struct metrics_http *h);

#endif
