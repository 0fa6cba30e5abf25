/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Signals as events of the main thread's loop. */
#ifndef MAIN_SIGNALS_H
#define MAIN_SIGNALS_H

#include "loop/loop.h"

struct signals {
    struct io io;
    struct loop *loop;
    void (*on_signal)(void *arg, int signo);
    void *arg;
};

/* Blocks what is watched, in this thread and those that it starts from now on;
 * ignores SIGPIPE. */
void signals_block(void);

NODISCARD int signals_start(struct signals *s, struct loop *loop,
                            void (*on_signal)(void *arg, int signo), void *arg,
                            struct err *e);

/* Does nothing when it was not started. */
void signals_stop(struct signals *s);

#endif
