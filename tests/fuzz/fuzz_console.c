/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A statement of the console. */
#include "admin/command.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct syntax x;

    if (syntax_parse(slice_of(data, n), &x))
        return 0;
    must(strlen(x.verb) < sizeof(x.verb));
    must(strlen(x.arg) < sizeof(x.arg));
    must(strlen(x.value) < sizeof(x.value));
    must(x.kind != SYNTAX_SET || x.arg[0]);
    if (x.kind != SYNTAX_EMPTY)
        (void)command_find(&x);
    return 0;
}
