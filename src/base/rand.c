/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/rand.h"

#include <errno.h>
#include <sys/random.h>

void rand_bytes(void *p, size_t n)
{
    char *at = p;
    while (n) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        must(got > 0);
        at += got;
        n -= (size_t)got;
    }
}
