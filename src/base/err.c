/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *text, *sqlstate;
} codes[] = {
    {"success", "00000"},
#define X(name, text, sqlstate) {text, sqlstate},
#include "base/err.def"
#undef X
};

static size_t code_index(int code)
{
    return code > ERR_FIRST && code < ERR_LAST ? (size_t)(code - ERR_FIRST) : 0;
}

const char *err_name(int code)
{
    return codes[code_index(code)].text;
}

const char *err_sqlstate(int code)
{
    return codes[code_index(code)].sqlstate;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (e) {
        va_list ap;
        va_start(ap, fmt);
        e->code = code;
        vsnprintf(e->text, sizeof e->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    if (!e)
        return ERR_IO;
    char was[ERR_TEXT_MAX];
    memcpy(was, e->text, sizeof was);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    size_t room =
        sizeof e->text - 1 - MIN((size_t)MAX(n, 0), sizeof e->text - 1);
    if (room > 2)
        snprintf(e->text + n, room + 1, ": %.*s", (int)room - 2, was);
    return e->code;
}
