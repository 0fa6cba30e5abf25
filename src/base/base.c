/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAST_LINE_MAX = 512 };

static _Atomic(void (*)(const char *line, size_t n)) last_line_hook;

void must_set_hook(void (*fn)(const char *line, size_t n))
{
    atomic_store(&last_line_hook, fn);
}

NORETURN static void end(const char *line, size_t n)
{
    void (*hook)(const char *line, size_t n) = atomic_load(&last_line_hook);
    ssize_t told = write(STDERR_FILENO, line, n);
    (void)told; /* there is nothing else to do */
    if (hook)
        hook(line, n);
    abort();
}

void must_failed(const char *what, const char *file, int line)
{
    char text[LAST_LINE_MAX];
    int n = snprintf(text, sizeof text,
                     "pgbraid: internal error at %s:%d: %.300s is false\n",
                     file, line, what);
    end(text, MIN((size_t)n, sizeof text - 1));
}

static void *checked(void *p)
{
    static const char line[] = "pgbraid: out of memory\n";
    if (!p)
        end(line, sizeof line - 1);
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
