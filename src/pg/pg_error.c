/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "pg/pg_error.h"

#include <stdio.h>

#include "pg/pg_read.h"

/* Where a field goes; NULL for one that nobody asks for. */
static struct slice *field_of(struct pg_error *x, uint8_t field)
{
    switch (field) {
    case 'V':
        return &x->severity;
    case 'C':
        return &x->code;
    case 'M':
        return &x->message;
    case 'D':
        return &x->detail;
    case 'H':
        return &x->hint;
    default:
        return NULL;
    }
}

bool pg_error_parse(struct slice body, struct pg_error *out)
{
    struct pgread r = pgread_of(body);
    struct slice translated = {0};
    uint8_t field;

    *out = (struct pg_error){0};
    while ((field = pgread_u8(&r)) != 0) {
        struct slice value = pgread_cstr(&r);
        struct slice *to = field_of(out, field);

        if (r.bad)
            break;
        if (to)
            *to = value;
        else if (field == 'S')
            translated = value;
    }
    if (!out->severity.p)
        out->severity = translated;
    return pgread_done(&r);
}

bool pg_error_is_fatal(const struct pg_error *x)
{
    return slice_is(x->severity, "FATAL") || slice_is(x->severity, "PANIC");
}

bool pg_error_has_code(const struct pg_error *x, const char *sqlstate)
{
    return slice_is(x->code, sqlstate);
}

char *pg_error_text(const struct pg_error *x, char *buf, size_t cap)
{
    must(cap > 0);
    snprintf(buf, cap, "%.*s %.*s: %.*s", SLICE_ARG(x->severity),
             SLICE_ARG(x->code), SLICE_ARG(x->message));
    for (char *p = buf; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = ' ';
    }
    return buf;
}
