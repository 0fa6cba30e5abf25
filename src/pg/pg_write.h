/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Builds protocol messages in a growing buffer. The owner of the buffer embeds
 * it, and ends it with pgbuf_fini(). It never grows past the cap given at
 * init; when it would, or when there is no memory, `failed` is set, stays set,
 * and further puts do nothing: check it once, at the end. A buffer belongs to
 * one thread at a time. */
#ifndef PG_PG_WRITE_H
#define PG_PG_WRITE_H

#include "base/slice.h"
#include "pg/pg_proto.h"

struct pgbuf {
    char *p;
    size_t n, cap; /* used, allocated */
    size_t max;    /* never allocate more */
    bool failed;
};

/* Allocates nothing yet. */
void pgbuf_init(struct pgbuf *b, size_t max);
void pgbuf_fini(struct pgbuf *b);

/* Empty again, failure forgotten; the memory stays. */
void pgbuf_reset(struct pgbuf *b);

/* Same, with the bytes erased first: for what held a password or a key. */
void pgbuf_wipe(struct pgbuf *b);

/* Gives the bytes away (to be freed with free()) and leaves b empty; NULL when
 * b failed or is empty. */
NODISCARD char *pgbuf_take(struct pgbuf *b, size_t *n);

static inline struct slice pgbuf_slice(const struct pgbuf *b)
{
    return slice_of(b->p, b->n);
}

void pgbuf_put_u8(struct pgbuf *b, uint8_t v);
void pgbuf_put_u16(struct pgbuf *b, uint16_t v);
void pgbuf_put_u32(struct pgbuf *b, uint32_t v);
void pgbuf_put_bytes(struct pgbuf *b, const void *p, size_t n);

/* A string with its zero byte. A slice with a zero byte inside fails. */
void pgbuf_put_cstr(struct pgbuf *b, const char *s);
void pgbuf_put_string(struct pgbuf *b, struct slice s);

/* A message: begin writes the type (none when it is 0, as in the first packet
 * of a connection) and a place for the length; end fills the length in and
 * returns it (0 when failed). Messages do not nest. */
size_t pgbuf_begin(struct pgbuf *b, char type);
size_t pgbuf_end(struct pgbuf *b, size_t at);

/* A message without a body: Sync, Flush, Terminate, ParseComplete, ... */
void pg_put_empty(struct pgbuf *b, char type);

/* --- as a backend ------------------------------------------------------ */

struct pg_error_text {
    const char *severity; /* "ERROR", "FATAL", "NOTICE", ... */
    const char *sqlstate;
    const char *message;
    const char *detail; /* NULL: none */
    const char *hint;   /* NULL: none */
};

void pg_put_error(struct pgbuf *b, const char *severity, const char *sqlstate,
                  const char *message);
void pg_put_error_full(struct pgbuf *b, const struct pg_error_text *t);
void pg_put_notice(struct pgbuf *b, const char *severity, const char *sqlstate,
                   const char *message);
void pg_put_notice_full(struct pgbuf *b, const struct pg_error_text *t);

/* What a frontend of protocol 2 can read: 'E', text, zero byte. */
void pg_put_error_v2(struct pgbuf *b, const char *severity,
                     const char *message);

/* code PG_AUTH_...; the data that some codes carry come after it. */
void pg_put_auth(struct pgbuf *b, uint32_t code);
void pg_put_auth_data(struct pgbuf *b, uint32_t code, struct slice data);

void pg_put_parameter_status(struct pgbuf *b, struct slice name,
                             struct slice value);
void pg_put_backend_key_data(struct pgbuf *b, uint32_t pid, const void *key,
                             size_t key_len);
void pg_put_ready(struct pgbuf *b, char status);
void pg_put_command_complete(struct pgbuf *b, const char *tag);

/* NegotiateProtocolVersion: version 3.newest_minor, and the names of the
 * _pq_. options that are not known. */
void pg_put_negotiate_version(struct pgbuf *b, unsigned newest_minor,
                              const struct slice *unknown, size_t n);

/* ParameterDescription. */
void pg_put_parameter_description(struct pgbuf *b, const uint32_t *oids,
                                  size_t n);

/* --- as a frontend ----------------------------------------------------- */

struct pg_pair {
    struct slice name, value;
};

/* StartupMessage 3.minor; an empty name is not sent. */
void pg_put_startup(struct pgbuf *b, unsigned minor,
                    const struct pg_pair *pairs, size_t n);
void pg_put_cancel_request(struct pgbuf *b, uint32_t pid, const void *key,
                           size_t key_len);
void pg_put_ssl_request(struct pgbuf *b);
void pg_put_gssenc_request(struct pgbuf *b);

/* PasswordMessage: the string and its zero byte. */
void pg_put_password(struct pgbuf *b, struct slice password);
void pg_put_sasl_initial(struct pgbuf *b, const char *mechanism,
                         struct slice data);
void pg_put_sasl_response(struct pgbuf *b, struct slice data);

void pg_put_query(struct pgbuf *b, struct slice sql);
void pg_put_parse(struct pgbuf *b, struct slice name, struct slice sql,
                  const uint32_t *oids, size_t n_oids);

/* Parameters and results in text format; a value with p == NULL is NULL. */
void pg_put_bind(struct pgbuf *b, struct slice portal, struct slice statement,
                 const struct slice *values, size_t n_values);
void pg_put_execute(struct pgbuf *b, struct slice portal, uint32_t max_rows);

/* target: PG_TARGET_STATEMENT or PG_TARGET_PORTAL. */
void pg_put_describe(struct pgbuf *b, char target, struct slice name);
void pg_put_close(struct pgbuf *b, char target, struct slice name);
void pg_put_copy_fail(struct pgbuf *b, const char *reason);
void pg_put_sync(struct pgbuf *b);
void pg_put_flush(struct pgbuf *b);
void pg_put_terminate(struct pgbuf *b);

#endif
