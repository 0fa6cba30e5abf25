/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Reads ErrorResponse and NoticeResponse. Slices are borrowed from the body.
 * Any thread; no state. */
#ifndef PG_PG_ERROR_H
#define PG_PG_ERROR_H

#include "base/err.h"
#include "base/slice.h"

/* A field that is missing is {NULL, 0}. */
struct pg_error {
    struct slice severity; /* V, never translated; S from old servers */
    struct slice code;     /* SQLSTATE */
    struct slice message;
    struct slice detail;
    struct slice hint;
};

/* body: the message after its length word. False when it is broken; the fields
 * before the break are set. */
NODISCARD bool pg_error_parse(struct slice body, struct pg_error *out);

/* FATAL or PANIC: the connection ends. */
bool pg_error_is_fatal(const struct pg_error *x);

bool pg_error_has_code(const struct pg_error *x, const char *sqlstate);

/* "FATAL 28P01: text", cut to cap and with control characters replaced, for a
 * log line. Returns buf. */
char *pg_error_text(const struct pg_error *x, char *buf, size_t cap);

#endif
