/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A second stack for the signal handlers of the calling thread, so that one
 * that has used up its own can still say where it was. Every thread that runs
 * our code calls start first and stop last. */
#ifndef BASE_ALTSTACK_H
#define BASE_ALTSTACK_H

/* Does nothing where somebody else (a sanitizer) has set one up, or when there
 * is no memory. */
void altstack_start(void);
void altstack_stop(void);

#endif
