/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The first packet of a connection, then the words of its options. */
#include <stdlib.h>

#include "pg/pg_startup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_options(struct slice options)
{
    char *buf = malloc(options.n + 1);
    struct pg_options o;
    struct pg_option x = {.kind = PG_OPTION_SETTING};
    struct err e;
    size_t used = 0;

    must(buf);
    pg_options_init(&o, options, buf);
    while (pg_options_next(&o, &x, &e) == 0 && x.kind != PG_OPTION_END)
        used += x.name.n + x.value.n;
    must(used <= options.n);
    free(buf);
}

static void check_session(const struct pg_startup *s)
{
    struct slice name, value;
    unsigned n_extensions = 0;
    size_t at = 0;

    must(s->user.n > 0 && s->user.n <= PG_NAME_MAX);
    must(s->database.n > 0 && s->database.n <= PG_NAME_MAX);
    while (pg_startup_next(s, &at, &name, &value))
        n_extensions += pg_startup_is_extension(name);
    must(at == s->params.n && n_extensions == s->n_extensions);
    read_options(s->options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct slice packet = slice_of(data, n);
    struct pg_startup s;
    struct err e = {0};
    int need = pg_startup_need(data, n);
    int rc;

    if (need > 0 && (size_t)need <= n)
        packet.n = (size_t)need;
    rc = pg_startup_parse(packet, &s, &e);
    must(need <= (int)n || rc < 0);
    if (rc < 0)
        must(e.code == rc && e.text[0] && s.sqlstate);
    else if (s.kind == PG_STARTUP_SESSION)
        check_session(&s);
    else if (s.kind == PG_STARTUP_CANCEL)
        must(s.cancel_key.n >= PG_CANCEL_KEY_MIN &&
             s.cancel_key.n <= PG_CANCEL_KEY_MAX);
    read_options(slice_of(data, n));
    return 0;
}
