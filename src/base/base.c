/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void must_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "pgbraid: internal error at %s:%d: %s is false\n", file,
            line, what);
    abort();
}

static void *checked(void *p)
{
    if (!p) {
        fprintf(stderr, "pgbraid: out of memory\n");
        abort();
    }
    return p;
}

void *mem_new(size_t size)
{
    return checked(calloc(1, size));
}

void *mem_new_array(size_t n, size_t size)
{
    return checked(calloc(n ? n : 1, size));
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_strndup(const char *s, size_t n)
{
    char *p = checked(malloc(n + 1));
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

void mem_wipe(void *p, size_t n)
{
    explicit_bzero(p, n);
}
