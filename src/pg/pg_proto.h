/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The numbers of the PostgreSQL frontend/backend protocol, version 3: message
 * types, authentication codes, versions, special request codes and limits.
 * Names follow PostgreSQL's. Any thread; no state. */
#ifndef PG_PG_PROTO_H
#define PG_PG_PROTO_H

#include <endian.h>
#include <string.h>

#include "base/base.h"

/* Versions: major in the upper 16 bits. 3.1 was never released. */
#define PG_VERSION(major, minor) (((uint32_t)(major) << 16) | (minor))
#define PG_VERSION_MAJOR(v) ((unsigned)((v) >> 16))
#define PG_VERSION_MINOR(v) ((unsigned)((v)&0xffff))

enum {
    PG_PROTOCOL_MAJOR = 3,
    PG_MINOR_OLDEST = 0,
    PG_MINOR_LATEST = 2,
    PG_MINOR_LONG_KEY = 2,  /* the first with cancel keys of any length */
    PG_MINOR_GREASE = 9999, /* asked for by clients that test negotiation */
};

#define PG_PROTOCOL_3_0 PG_VERSION(3, 0)
#define PG_PROTOCOL_3_2 PG_VERSION(3, 2)

/* What stands in place of a version in the first packet. */
#define PG_CANCEL_REQUEST_CODE PG_VERSION(1234, 5678)
#define PG_SSL_REQUEST_CODE PG_VERSION(1234, 5679)
#define PG_GSSENC_REQUEST_CODE PG_VERSION(1234, 5680)

/* The prefix of protocol extensions among the start-up parameters. */
#define PG_EXTENSION_PREFIX "_pq_."

/* First byte of a TLS ClientHello: direct TLS, no SSLRequest before it. */
enum { PG_TLS_FIRST_BYTE = 0x16 };

enum {
    PG_HEADER_SIZE = 5,          /* type and length */
    PG_STARTUP_HEADER_SIZE = 8,  /* length and version */
    PG_STARTUP_BODY_MAX = 10000, /* without the length word */
    PG_STARTUP_MAX = 10004,      /* the whole packet */
    PG_LARGE_MESSAGE_LIMIT = 0x3fffffff,
    PG_SMALL_MESSAGE_LIMIT = 10000,
    PG_AUTH_MESSAGE_LIMIT = 65535, /* password and SASL messages */
    PG_CANCEL_KEY_MIN = 4,
    PG_CANCEL_KEY_MAX = 256,
    PG_NAME_MAX = 63, /* NAMEDATALEN - 1 */
};

/* Messages of the frontend. */
enum {
    PG_MSG_BIND = 'B',
    PG_MSG_CLOSE = 'C',
    PG_MSG_DESCRIBE = 'D',
    PG_MSG_EXECUTE = 'E',
    PG_MSG_FUNCTION_CALL = 'F',
    PG_MSG_FLUSH = 'H',
    PG_MSG_PARSE = 'P',
    PG_MSG_QUERY = 'Q',
    PG_MSG_SYNC = 'S',
    PG_MSG_TERMINATE = 'X',
    PG_MSG_COPY_FAIL = 'f',
    /* All four share a byte; the state of the login tells them apart. */
    PG_MSG_PASSWORD = 'p',
    PG_MSG_SASL_INITIAL = 'p',
    PG_MSG_SASL_RESPONSE = 'p',
    PG_MSG_GSS_RESPONSE = 'p',
};

/* Messages of the backend. */
enum {
    PG_MSG_PARSE_COMPLETE = '1',
    PG_MSG_BIND_COMPLETE = '2',
    PG_MSG_CLOSE_COMPLETE = '3',
    PG_MSG_NOTIFICATION = 'A',
    PG_MSG_COMMAND_COMPLETE = 'C',
    PG_MSG_DATA_ROW = 'D',
    PG_MSG_ERROR = 'E',
    PG_MSG_COPY_IN = 'G',
    PG_MSG_COPY_OUT = 'H',
    PG_MSG_EMPTY_QUERY = 'I',
    PG_MSG_BACKEND_KEY_DATA = 'K',
    PG_MSG_NOTICE = 'N',
    PG_MSG_AUTH = 'R',
    PG_MSG_PARAMETER_STATUS = 'S',
    PG_MSG_ROW_DESCRIPTION = 'T',
    PG_MSG_FUNCTION_RESULT = 'V',
    PG_MSG_COPY_BOTH = 'W',
    PG_MSG_READY = 'Z',
    PG_MSG_NO_DATA = 'n',
    PG_MSG_PORTAL_SUSPENDED = 's',
    PG_MSG_PARAMETER_DESCRIPTION = 't',
    PG_MSG_NEGOTIATE_VERSION = 'v',
};

/* Messages of both. */
enum {
    PG_MSG_COPY_DATA = 'd',
    PG_MSG_COPY_DONE = 'c',
};

/* The code that an Authentication message begins with. */
enum {
    PG_AUTH_OK = 0,
    PG_AUTH_KERBEROS_V5 = 2,
    PG_AUTH_CLEARTEXT = 3,
    PG_AUTH_MD5 = 5, /* a salt of four bytes follows */
    PG_AUTH_GSS = 7,
    PG_AUTH_GSS_CONTINUE = 8,
    PG_AUTH_SSPI = 9,
    PG_AUTH_SASL = 10,
    PG_AUTH_SASL_CONTINUE = 11,
    PG_AUTH_SASL_FINAL = 12,
};

/* The transaction status that ReadyForQuery carries. */
enum {
    PG_TX_IDLE = 'I',
    PG_TX_BLOCK = 'T',
    PG_TX_FAILED = 'E',
};

/* What Describe and Close name. */
enum {
    PG_TARGET_STATEMENT = 'S',
    PG_TARGET_PORTAL = 'P',
};

/* Type oids that the pooler itself sends or knows. */
enum {
    PG_OID_BOOL = 16,
    PG_OID_BYTEA = 17,
    PG_OID_INT8 = 20,
    PG_OID_INT4 = 23,
    PG_OID_TEXT = 25,
    PG_OID_NUMERIC = 1700,
};

static inline uint16_t pg_get_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof(v));
    return be16toh(v);
}

static inline uint32_t pg_get_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return be32toh(v);
}

static inline void pg_set_u16(void *p, uint16_t v)
{
    v = htobe16(v);
    memcpy(p, &v, sizeof(v));
}

static inline void pg_set_u32(void *p, uint32_t v)
{
    v = htobe32(v);
    memcpy(p, &v, sizeof(v));
}

#endif
