/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Error codes and the text that goes with one. A function that can fail returns
 * 0 or a negative code of err.def; where a person must learn the cause it also
 * takes a struct err, written where the fact is known, wrapped on the way up,
 * and logged once at the top. Any thread; no state. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "base/base.h"

enum err_code {
    ERR_FIRST = -1000,
#define X(name, text, sqlstate) name,
#include "base/err.def"
#undef X
    ERR_LAST
};

enum { ERR_TEXT_MAX = 400 };

struct err {
    int code;                /* 0 or a code of err.def */
    char text[ERR_TEXT_MAX]; /* one line, no secret, no SQL */
};

/* Fixed text and SQLSTATE of a code. */
const char *err_name(int code);
const char *err_sqlstate(int code);

/* Sets *e (which may be NULL) and returns the code, so that a failure is one
 * line: return err_set(e, ERR_CONF, "..."). */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Puts "prefix: " before the text; returns e->code (ERR_IO when e is NULL). */
int err_wrap(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
