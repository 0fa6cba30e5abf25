/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Where an edge leads: quic://host[:port], tls://, tcp://, mptcps:// (TLS over
 * Multipath TCP), mptcp://. A value. */
#ifndef EDGE_TARGET_H
#define EDGE_TARGET_H

#include "base/err.h"
#include "base/slice.h"

enum target_kind { TARGET_QUIC, TARGET_TLS, TARGET_TCP };

enum { TARGET_HOST_MAX = 255, TARGET_PORT_DEFAULT = 6432 };

struct target {
    enum target_kind kind;
    bool mptcp;                     /* TLS and TCP: by Multipath TCP */
    char host[TARGET_HOST_MAX + 1]; /* a name or a number, no brackets */
    int port;
};

NODISCARD int target_parse(struct slice url, struct target *out, struct err *e);

/* As it is written, for people. */
enum { TARGET_TEXT_MAX = TARGET_HOST_MAX + 32 };
void target_text(const struct target *t, char *buf, size_t cap);

#endif
