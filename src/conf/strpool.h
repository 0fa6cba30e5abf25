/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Memory of one snapshot: everything that it points to is taken from here and
 * freed at once, wiped first, since passwords are among it. Belongs to the
 * snapshot; filled by the thread that makes it. */
#ifndef CONF_STRPOOL_H
#define CONF_STRPOOL_H

#include "base/slice.h"

struct strpool_chunk;

struct strpool {
    struct strpool_chunk *chunks;
};

void strpool_init(struct strpool *p);
void strpool_fini(struct strpool *p);

void *strpool_alloc(struct strpool *p, size_t size);  /* zeroed, aligned */
char *strpool_dup(struct strpool *p, struct slice s); /* NUL at the end */
char *strpool_printf(struct strpool *p, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
