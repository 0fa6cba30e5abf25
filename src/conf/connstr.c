/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "conf/connstr.h"

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' ||
           c == '\f';
}

static void skip(struct connstr *c, size_t n)
{
    c->rest = slice_of(c->rest.p + n, c->rest.n - n);
}

static void skip_blanks(struct connstr *c)
{
    while (c->rest.n > 0 && is_blank(c->rest.p[0]))
        skip(c, 1);
}

void connstr_init(struct connstr *c, struct slice text, char *buf)
{
    c->rest = text;
    c->last_key = slice_of(NULL, 0);
    c->buf = buf;
}

static int take_key(struct connstr *c, struct slice *key, struct err *e)
{
    size_t n = 0;

    while (n < c->rest.n && c->rest.p[n] != '=' && !is_blank(c->rest.p[n]))
        n++;
    *key = slice_of(c->rest.p, n);
    skip(c, n);
    skip_blanks(c);
    if (n > 0 && c->rest.n > 0 && c->rest.p[0] == '=') {
        skip(c, 1);
        return 0;
    }
    if (c->last_key.n == 0)
        return err_set(e, ERR_CONF, "expected key=value");
    return err_set(e, ERR_CONF,
                   "expected key=value after the value of " SLICE_FMT
                   "; a value that holds a blank goes in single quotes",
                   SLICE_ARG(c->last_key));
}

/* Unquotes up to the closing quote; false when there is none. */
static bool take_quoted(struct connstr *c, size_t *n)
{
    size_t i = 1;

    for (*n = 0; i < c->rest.n; i++) {
        if (c->rest.p[i] == '\'') {
            if (i + 1 == c->rest.n || c->rest.p[i + 1] != '\'') {
                skip(c, i + 1);
                return true;
            }
            i++;
        }
        c->buf[(*n)++] = c->rest.p[i];
    }
    return false;
}

static int take_value(struct connstr *c, struct slice key, size_t *n,
                      struct err *e)
{
    *n = 0;
    if (c->rest.n > 0 && c->rest.p[0] == '\'') {
        if (!take_quoted(c, n))
            return err_set(e, ERR_CONF,
                           "the value of " SLICE_FMT " has no closing quote",
                           SLICE_ARG(key));
        return 0;
    }
    while (*n < c->rest.n && !is_blank(c->rest.p[*n])) {
        c->buf[*n] = c->rest.p[*n];
        (*n)++;
    }
    skip(c, *n);
    return 0;
}

int connstr_next(struct connstr *c, struct slice *key, struct slice *value,
                 struct err *e)
{
    size_t n;
    int rc;

    skip_blanks(c);
    if (c->rest.n == 0)
        return 0;
    rc = take_key(c, key, e);
    if (rc < 0)
        return rc;
    skip_blanks(c);
    rc = take_value(c, *key, &n, e);
    if (rc < 0)
        return rc;
    if (n == 0)
        return err_set(e, ERR_CONF,
                       SLICE_FMT " has no value; leave the key out instead",
                       SLICE_ARG(*key));
    *value = slice_of(c->buf, n);
    c->buf[n] = '\0';
    c->buf += n + 1;
    c->last_key = *key;
    return 1;
}
