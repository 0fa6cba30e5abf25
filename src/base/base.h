/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Attributes, asserts and the few macros that every file may use. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define NORETURN __attribute__((noreturn))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define container_of(p, type, member)                                          \
    ((type *)((char *)(p)-offsetof(type, member)))

/* Cannot happen: kept in release builds. For what a peer or the system may
 * do there are error codes (err.h), never must(). */
#define must(x)                                                                \
    do {                                                                       \
        if (unlikely(!(x)))                                                    \
            must_failed(#x, __FILE__, __LINE__);                               \
    } while (0)

NORETURN void must_failed(const char *what, const char *file, int line);

/* Also told the last line before the process aborts, with its newline; for a
 * log that is not standard error. May be called in any thread at any moment:
 * fn only does what a signal handler may. */
void must_set_hook(void (*fn)(const char *line, size_t n));

/* Allocation for small and fixed sizes: ends the process with one line on
 * stderr when there is no memory. What a peer sizes calls malloc() itself and
 * returns ERR_NOMEM. */
void *mem_new(size_t size);                 /* zeroed */
void *mem_new_array(size_t n, size_t size); /* zeroed, overflow checked */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);

/* Erases a secret; the compiler does not drop it. */
void mem_wipe(void *p, size_t n);

#endif
