/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/altstack.h"

#include <signal.h>
#include <sys/mman.h>

#include "base/base.h"

enum { SIZE_BYTES = 64 * 1024 }; /* unwinding needs some */

static _Thread_local void *memory;

void altstack_start(void)
{
    stack_t old, s = {.ss_size = SIZE_BYTES};
    if (memory || sigaltstack(NULL, &old) || !(old.ss_flags & SS_DISABLE))
        return;
    s.ss_sp = mmap(NULL, SIZE_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (s.ss_sp == MAP_FAILED)
        return;
    must(sigaltstack(&s, NULL) == 0);
    memory = s.ss_sp;
}

void altstack_stop(void)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    if (!memory)
        return;
    must(sigaltstack(&none, NULL) == 0);
    must(munmap(memory, SIZE_BYTES) == 0);
    memory = NULL;
}
