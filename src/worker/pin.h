/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Ties a worker's thread to one processor. */
#ifndef WORKER_PIN_H
#define WORKER_PIN_H

/* The calling thread: onto the index-th of the processors that it may use,
 * beginning anew when there are fewer. Logs what came of it. */
void pin_thread(int index);

#endif
