/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The first packets of a connection: StartupMessage, SSLRequest,
 * GSSENCRequest, CancelRequest. Slices are borrowed from the packet. Any
 * thread; no state.
 *
 * Use: pg_startup_need() until the packet is whole, then pg_startup_parse().
 * SSL and GSSENC are answered and the next packet is read; one that comes a
 * second time is refused with pg_startup_set_unsupported(). */
#ifndef PG_PG_STARTUP_H
#define PG_PG_STARTUP_H

#include "base/err.h"
#include "base/slice.h"
#include "pg/pg_options.h"
#include "pg/pg_proto.h"

enum pg_startup_kind {
    PG_STARTUP_SESSION, /* StartupMessage of protocol 3 */
    PG_STARTUP_CANCEL,
    PG_STARTUP_SSL,
    PG_STARTUP_GSSENC,
    PG_STARTUP_UNSUPPORTED, /* another major version */
};

enum pg_replication {
    PG_REPLICATION_OFF,
    PG_REPLICATION_PHYSICAL, /* replication=true */
    PG_REPLICATION_LOGICAL,  /* replication=database */
};

struct pg_startup {
    enum pg_startup_kind kind;
    unsigned major, minor; /* as asked for */

    /* PG_STARTUP_SESSION. Of a name given twice the last counts; a parameter
     * that is missing is {NULL, 0}. user is never empty and database falls
     * back to it; both are cut to PG_NAME_MAX bytes, as PostgreSQL does. */
    struct slice user, database;
    struct slice options, application_name;
    enum pg_replication replication;
    unsigned n_extensions; /* parameters that begin with _pq_. */
    struct slice params;   /* for pg_startup_next() */

    /* PG_STARTUP_CANCEL. */
    uint32_t cancel_pid;
    struct slice cancel_key; /* 4 to 256 bytes */

    /* When parse failed: what the client is told beside the text; hint may be
     * NULL. For a broken CancelRequest nothing is answered. */
    const char *sqlstate;
    const char *hint;
};

/* Looks at the length word: 0 more bytes are needed to know it, > 0 the size
 * of the whole packet (8 to PG_STARTUP_MAX), ERR_PROTO not a start-up packet:
 * PostgreSQL logs "invalid length of startup packet" and closes without an
 * answer. */
NODISCARD int pg_startup_need(const void *buf, size_t n);

/* The bytes are the beginning of a TLS handshake, not of a packet. */
static inline bool pg_startup_is_tls(const void *buf, size_t n)
{
    return n > 0 && *(const unsigned char *)buf == PG_TLS_FIRST_BYTE;
}

/* packet: the whole packet with its length word. On failure returns a negative
 * code; e has PostgreSQL's text, out->sqlstate and out->hint the rest;
 * out->kind and the version are set if the packet got that far. An unsupported
 * version is such a failure (ERR_UNSUPPORTED); below major version 3 the
 * client reads only pg_put_error_v2(). */
NODISCARD int pg_startup_parse(struct slice packet, struct pg_startup *out,
                               struct err *e);

/* "unsupported frontend protocol 2.0: server supports 3.0 to 3.2"; returns
 * ERR_UNSUPPORTED. Also for an SSLRequest or GSSENCRequest out of place. */
int pg_startup_set_unsupported(struct pg_startup *s, struct err *e);

/* All parameters in their order, names as sent, including user and the like.
 * Begin with *at = 0; false at the end. */
bool pg_startup_next(const struct pg_startup *s, size_t *at, struct slice *name,
                     struct slice *value);

/* The name is that of a protocol extension (_pq_.…). */
bool pg_startup_is_extension(struct slice name);

/* The minor version to speak when 3.newest_minor is the newest on offer. */
unsigned pg_startup_minor(const struct pg_startup *s, unsigned newest_minor);

/* Must NegotiateProtocolVersion be sent? A newer minor was asked for, or there
 * are extensions, none of which is known here. 3.1 is taken silently. */
bool pg_startup_must_negotiate(const struct pg_startup *s,
                               unsigned newest_minor);

#endif
