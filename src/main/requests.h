/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What the console asks of the process (struct control): taken on any worker's
 * thread, done on the main thread, answered where it came from. */
#ifndef MAIN_REQUESTS_H
#define MAIN_REQUESTS_H

struct app;

/* Before the workers start; app must outlive them. */
void requests_install(struct app *app);

#endif
