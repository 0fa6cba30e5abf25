/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The header that a load balancer sends first on a connection, to say whose it
 * is: the PROXY protocol, versions 1 (text) and 2 (binary). Pure; any thread.
 * Who may send one is for the caller to decide. */
#ifndef NET_PROXYPROTO_H
#define NET_PROXYPROTO_H

#include "net/addr.h"

enum {
    PROXYPROTO_V1_MAX = 107,  /* the text with its CR LF */
    PROXYPROTO_V2_MAX = 2048, /* extensions included, which are skipped */
};

struct proxyproto {
    /* False: a health check, or the sender does not know. */
    bool has_peer;
    struct addr peer; /* the client; IPv4 where it was mapped */
};

/* Size of the header that in begins with, 0 when more of it must be there, or a
 * negative code: it is none. */
NODISCARD int proxyproto_parse(struct slice in, struct proxyproto *out,
                               struct err *e);

#endif
