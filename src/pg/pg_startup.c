/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What is accepted and what is refused, with which words, follows
 * ProcessStartupPacket() of PostgreSQL 18, so that a client sees no
 * difference. */
#include "pg/pg_startup.h"

#include "pg/pg_read.h"

static int fail(struct pg_startup *out, struct err *e, int code,
                const char *text)
{
    out->sqlstate = err_sqlstate(code);
    return err_set(e, code, "%s", text);
}

int pg_startup_need(const void *buf, size_t n)
{
    uint32_t len;

    if (n < 4)
        return 0;
    len = pg_get_u32(buf);
    if (len < PG_STARTUP_HEADER_SIZE || len > PG_STARTUP_MAX)
        return ERR_PROTO;
    return (int)len;
}

int pg_startup_set_unsupported(struct pg_startup *s, struct err *e)
{
    s->sqlstate = err_sqlstate(ERR_UNSUPPORTED);
    return err_set(e, ERR_UNSUPPORTED,
                   "unsupported frontend protocol %u.%u: server supports "
                   "%d.0 to %d.%d",
                   s->major, s->minor, PG_PROTOCOL_MAJOR, PG_PROTOCOL_MAJOR,
                   PG_MINOR_LATEST);
}

bool pg_startup_is_extension(struct slice name)
{
    size_t n = strlen(PG_EXTENSION_PREFIX);

    return name.n >= n && memcmp(name.p, PG_EXTENSION_PREFIX, n) == 0;
}

bool pg_startup_next(const struct pg_startup *s, size_t *at, struct slice *name,
                     struct slice *value)
{
    struct pgread r;

    if (*at >= s->params.n)
        return false;
    r = pgread_of(slice_of(s->params.p + *at, s->params.n - *at));
    *name = pgread_cstr(&r);
    *value = pgread_cstr(&r);
    if (r.bad)
        return false;
    *at = (size_t)(r.p - s->params.p);
    return true;
}

/* PostgreSQL's booleans: any beginning of true, false, yes and no; on, of,
 * off; 1 and 0; in any case. */
static bool is_beginning(struct slice s, const char *word, size_t least)
{
    return s.n >= least && s.n <= strlen(word) &&
           slice_eq_nocase(s, slice_of(word, s.n));
}

static bool parse_bool(struct slice s, bool *out)
{
    if (is_beginning(s, "true", 1) || is_beginning(s, "yes", 1) ||
        is_beginning(s, "on", 2) || slice_is(s, "1")) {
        *out = true;
        return true;
    }
    if (is_beginning(s, "false", 1) || is_beginning(s, "no", 1) ||
        is_beginning(s, "off", 2) || slice_is(s, "0")) {
        *out = false;
        return true;
    }
    return false;
}

static int set_replication(struct pg_startup *out, struct slice value,
                           struct err *e)
{
    bool on;

    if (slice_is(value, "database")) {
        out->replication = PG_REPLICATION_LOGICAL;
        return 0;
    }
    if (parse_bool(value, &on)) {
        /* A later "true" leaves an earlier "database" as it is; a later
         * "false" ends both. */
        if (!on)
            out->replication = PG_REPLICATION_OFF;
        else if (out->replication == PG_REPLICATION_OFF)
            out->replication = PG_REPLICATION_PHYSICAL;
        return 0;
    }
    out->sqlstate = "22023"; /* invalid_parameter_value */
    out->hint = "Valid values are: \"false\", 0, \"true\", 1, \"database\".";
    return err_set(e, ERR_PROTO,
                   "invalid value for parameter \"replication\": "
                   "\"" SLICE_FMT "\"",
                   SLICE_ARG(value));
}

static int set_param(struct pg_startup *out, struct slice name,
                     struct slice value, struct err *e)
{
    if (slice_is(name, "user"))
        out->user = value;
    else if (slice_is(name, "database"))
        out->database = value;
    else if (slice_is(name, "options"))
        out->options = value;
    else if (slice_is(name, "replication"))
        return set_replication(out, value, e);
    else if (pg_startup_is_extension(name))
        out->n_extensions++;
    else if (slice_is(name, "application_name"))
        out->application_name = value;
    return 0;
}

/* Pairs of strings, then one zero byte that must be the last. A bad value is
 * told before a bad layout behind it, as PostgreSQL reads them in one pass. */
static int read_params(struct pg_startup *out, struct pgread *r, struct err *e)
{
    const char *from = r->p;

    while (pgread_left(r) > 0 && *r->p != 0) {
        struct slice name = pgread_cstr(r);
        struct slice value = pgread_cstr(r);
        int rc;

        if (r->bad)
            break;
        rc = set_param(out, name, value, e);
        if (rc < 0)
            return rc;
    }
    out->params = slice_of(from, (size_t)(r->p - from));
    if (r->bad || pgread_left(r) != 1) {
        out->params = (struct slice){0};
        return fail(out, e, ERR_PROTO,
                    "invalid startup packet layout: expected terminator as "
                    "last byte");
    }
    return 0;
}

static void cut_name(struct slice *s)
{
    if (s->n > PG_NAME_MAX)
        s->n = PG_NAME_MAX;
}

static int parse_session(struct pg_startup *out, struct pgread *r,
                         struct err *e)
{
    int rc = read_params(out, r, e);

    if (rc < 0)
        return rc;
    if (out->user.n == 0)
        return fail(out, e, ERR_AUTHZ,
                    "no PostgreSQL user name specified in startup packet");
    if (out->database.n == 0)
        out->database = out->user;
    cut_name(&out->user);
    cut_name(&out->database);
    return 0;
}

static int parse_cancel(struct pg_startup *out, struct pgread *r, struct err *e)
{
    out->cancel_pid = pgread_u32(r);
    if (r->bad)
        return fail(out, e, ERR_PROTO,
                    "invalid length of cancel request packet");
    out->cancel_key = pgread_rest(r);
    if (out->cancel_key.n < PG_CANCEL_KEY_MIN ||
        out->cancel_key.n > PG_CANCEL_KEY_MAX)
        return fail(out, e, ERR_PROTO,
                    "invalid length of cancel key in cancel request packet");
    return 0;
}

static enum pg_startup_kind kind_of(uint32_t code)
{
    switch (code) {
    case PG_CANCEL_REQUEST_CODE:
        return PG_STARTUP_CANCEL;
    case PG_SSL_REQUEST_CODE:
        return PG_STARTUP_SSL;
    case PG_GSSENC_REQUEST_CODE:
        return PG_STARTUP_GSSENC;
    default:
        return PG_VERSION_MAJOR(code) == PG_PROTOCOL_MAJOR
                   ? PG_STARTUP_SESSION
                   : PG_STARTUP_UNSUPPORTED;
    }
}

int pg_startup_parse(struct slice packet, struct pg_startup *out, struct err *e)
{
    struct pgread r = pgread_of(packet);
    uint32_t len = pgread_u32(&r);
    uint32_t code = pgread_u32(&r);

    *out = (struct pg_startup){.kind = PG_STARTUP_UNSUPPORTED};
    if (r.bad || len != packet.n || len > PG_STARTUP_MAX)
        return fail(out, e, ERR_PROTO, "invalid length of startup packet");
    out->kind = kind_of(code);
    out->major = PG_VERSION_MAJOR(code);
    out->minor = PG_VERSION_MINOR(code);
    switch (out->kind) {
    case PG_STARTUP_SESSION:
        return parse_session(out, &r, e);
    case PG_STARTUP_CANCEL:
        return parse_cancel(out, &r, e);
    case PG_STARTUP_SSL:
    case PG_STARTUP_GSSENC:
        return 0;
    case PG_STARTUP_UNSUPPORTED:
        break;
    }
    return pg_startup_set_unsupported(out, e);
}

unsigned pg_startup_minor(const struct pg_startup *s, unsigned newest_minor)
{
    return MIN(s->minor, newest_minor);
}

bool pg_startup_must_negotiate(const struct pg_startup *s,
                               unsigned newest_minor)
{
    return s->minor > newest_minor || s->n_extensions > 0;
}
