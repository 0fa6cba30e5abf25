/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The body of an ErrorResponse. */
#include "pg/pg_error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct pg_error x;
    char text[80];

    if (pg_error_parse(slice_of(data, n), &x))
        must(n > 0 && data[n - 1] == 0);
    pg_error_is_fatal(&x);
    pg_error_has_code(&x, "57P01");
    must(strlen(pg_error_text(&x, text, sizeof(text))) < sizeof(text));
    return 0;
}
