/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A checked cursor over the body of a message. Reading past the end sets `bad`
 * and yields zeros, for this read and all that follow: check once, with
 * pgread_done(), after the last read. Slices point into the body. */
#ifndef PG_PG_READ_H
#define PG_PG_READ_H

#include "base/slice.h"
#include "pg/pg_proto.h"

struct pgread {
    const char *p, *end;
    bool bad;
};

static inline struct pgread pgread_of(struct slice body)
{
    return (struct pgread){body.p, body.n ? body.p + body.n : body.p, false};
}

static inline size_t pgread_left(const struct pgread *r)
{
    return (size_t)(r->end - r->p);
}

uint8_t pgread_u8(struct pgread *r);
uint16_t pgread_u16(struct pgread *r);
uint32_t pgread_u32(struct pgread *r);
int32_t pgread_i32(struct pgread *r);
struct slice pgread_bytes(struct pgread *r, size_t n);

/* Up to the next zero byte, which is skipped and not part of the slice. */
struct slice pgread_cstr(struct pgread *r);

/* All that is left. */
struct slice pgread_rest(struct pgread *r);

/* Everything was there and nothing is left over. */
static inline bool pgread_done(const struct pgread *r)
{
    return !r->bad && r->p == r->end;
}

/* Splits the message at the front of buf, header and all.
 * 1: *type and *body are set, *size is that of the whole message.
 * 0: more bytes are needed; *size is the size if the header is there, else 0.
 * ERR_PROTO: the length word is below 4 or above max. */
NODISCARD int pgread_message(struct slice buf, size_t max, char *type,
                             struct slice *body, size_t *size);

#endif
