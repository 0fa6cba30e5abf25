/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The addresses of a listen option: numbers, names, `*`. Resolving may block;
 * at start-up only. */
#ifndef MAIN_ADDRESSES_H
#define MAIN_ADDRESSES_H

#include "conf/conf.h"
#include "net/addr.h"

enum { ADDRESSES_MAX = 64 };

struct addresses {
    struct addr at[ADDRESSES_MAX];
    bool is_optional[ADDRESSES_MAX]; /* of `*`, on a machine without IPv6 */
    int n;
};

/* option names the list in errors. */
NODISCARD int addresses_find(struct addresses *out, const char *option,
                             const struct conf_list *list, int port,
                             struct err *e);

#endif
