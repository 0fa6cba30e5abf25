/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The ini format as PgBouncer reads it, line by line:
 *
 *   ; or # at the start of a line   comment
 *   [section]
 *   key = value                     value: the rest of the line, trimmed
 *   'key' = value, "key" = value    any characters; "" is a quote
 *   %include FILE                   relative to the working directory
 *
 * The section holds on across the border of an included file. Pure over text:
 * files come from a callback. Any thread; no state of its own. */
#ifndef CONF_INI_H
#define CONF_INI_H

#include "base/err.h"
#include "base/slice.h"

enum {
    INI_INCLUDE_DEPTH_MAX = 10,
    INI_INCLUDE_COUNT_MAX = 1000,
    INI_NAME_MAX = 255, /* of a section or key */
    INI_PATH_MAX = 1024,
};

/* Where a line stands. Lives during the callback only. */
struct ini_place {
    const char *file;
    int line;
};

struct ini_ops {
    /* Return 0, or an error whose text is to be prefixed with the place. */
    int (*on_section)(void *arg, struct slice name, struct err *e);
    int (*on_key)(void *arg, const struct ini_place *at, struct slice section,
                  struct slice key, struct slice value, struct err *e);

    /* The text of an included file, from malloc. */
    int (*read_file)(void *arg, const char *path, char **text, size_t *n,
                     struct err *e);

    /* A mistake, with its place in the text: 0 goes on with the next line, a
     * code ends the parsing. May be NULL: every mistake ends it. */
    int (*on_error)(void *arg, const struct err *e);
};

NODISCARD int ini_parse(struct slice text, const char *file,
                        const struct ini_ops *ops, void *arg, struct err *e);

#endif
