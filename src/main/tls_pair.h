/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The TLS contexts of both sides as the configuration has them. NULL: no TLS on
 * that side. Values that hold references. Any thread. */
#ifndef MAIN_TLS_PAIR_H
#define MAIN_TLS_PAIR_H

#include "conf/conf.h"
#include "net/tls_conf.h"

struct tls_pair {
    struct tls_ctx *client, *server;
};

/* Reads keys and certificates. */
NODISCARD int tls_pair_load(struct tls_pair *out, const struct conf *c,
                            struct err *e);

struct tls_pair tls_pair_ref(const struct tls_pair *p);
void tls_pair_unref(struct tls_pair *p); /* leaves it empty */

#endif
