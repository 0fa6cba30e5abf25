/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/syntax.h"

#include <ctype.h>

struct scan {
    const char *p, *end;
};

static bool at_end(const struct scan *s)
{
    return s->p == s->end;
}

static bool begins(const struct scan *s, const char *two)
{
    return s->end - s->p >= 2 && s->p[0] == two[0] && s->p[1] == two[1];
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_line(struct scan *s)
{
    while (!at_end(s) && *s->p != '\n')
        s->p++;
}

/* They nest, as in PostgreSQL. An open one is a mistake. */
static bool skip_block_comment(struct scan *s)
{
    int depth = 0;

    do {
        if (begins(s, "/*")) {
            depth++;
            s->p += 2;
        } else if (begins(s, "*/")) {
            depth--;
            s->p += 2;
        } else if (at_end(s)) {
            return false;
        } else {
            s->p++;
        }
    } while (depth > 0);
    return true;
}

/* Blanks and comments. */
static bool skip_blanks(struct scan *s)
{
    for (;;) {
        if (begins(s, "--")) {
            skip_line(s);
        } else if (begins(s, "/*")) {
            if (!skip_block_comment(s))
                return false;
        } else if (!at_end(s) && is_blank(*s->p)) {
            s->p++;
        } else {
            return true;
        }
    }
}

/* A quote inside is written twice. */
static int take_quoted(struct scan *s, char *out, size_t cap)
{
    char quote = *s->p++;
    size_t n = 0;

    for (;; s->p++) {
        if (at_end(s) || *s->p == 0)
            return ERR_SYNTAX;
        if (*s->p == quote) {
            s->p++;
            if (at_end(s) || *s->p != quote)
                break;
        }
        if (n + 1 < cap)
            out[n] = *s->p;
        n++;
    }
    out[MIN(n, cap - 1)] = 0;
    return n < cap ? 0 : ERR_TOO_LARGE;
}

static bool in_name(const struct scan *s)
{
    return isalnum((unsigned char)*s->p) || *s->p == '_';
}

static bool in_bare(const struct scan *s)
{
    return !is_blank(*s->p) && !strchr(";\"'", *s->p) && !begins(s, "--") &&
           !begins(s, "/*");
}

static int take_while(struct scan *s, bool (*in)(const struct scan *s),
                      char *out, size_t cap)
{
    const char *start = s->p;

    while (!at_end(s) && in(s))
        s->p++;
    if (s->p == start)
        return ERR_SYNTAX;
    if (!slice_copy(slice_of(start, (size_t)(s->p - start)), out, cap))
        return ERR_TOO_LARGE;
    return 0;
}

static int take_name(struct scan *s, char *out, size_t cap)
{
    if (!at_end(s) && *s->p == '"')
        return take_quoted(s, out, cap);
    return take_while(s, in_name, out, cap);
}

static int take_arg(struct scan *s, char *out, size_t cap)
{
    if (!at_end(s) && *s->p == '"')
        return take_quoted(s, out, cap);
    return take_while(s, in_bare, out, cap);
}

static int take_value(struct scan *s, char *out, size_t cap)
{
    if (!at_end(s) && *s->p == '\'')
        return take_quoted(s, out, cap);
    return take_arg(s, out, cap);
}

static bool take_assignment(struct scan *s)
{
    if (!skip_blanks(s) || at_end(s))
        return false;
    if (*s->p == '=') {
        s->p++;
        return skip_blanks(s);
    }
    if (s->end - s->p < 3 || !slice_is_nocase(slice_of(s->p, 2), "to"))
        return false;
    s->p += 2;
    return !in_name(s) && skip_blanks(s);
}

static int parse_set(struct scan *s, struct syntax *out)
{
    int rc = take_name(s, out->arg, sizeof(out->arg));

    if (rc)
        return rc;
    if (out->arg[0] == 0 || !take_assignment(s))
        return ERR_SYNTAX;
    out->kind = SYNTAX_SET;
    out->has_arg = true;
    return take_value(s, out->value, sizeof(out->value));
}

static bool ends(struct scan *s)
{
    if (!skip_blanks(s))
        return false;
    while (!at_end(s) && *s->p == ';') {
        s->p++;
        if (!skip_blanks(s))
            return false;
    }
    return at_end(s);
}

int syntax_parse(struct slice text, struct syntax *out)
{
    struct scan s = {text.p, text.n ? text.p + text.n : text.p};
    const char *verb_end;
    int rc;

    memset(out, 0, sizeof(*out));
    if (text.n && memchr(text.p, 0, text.n))
        return ERR_SYNTAX;
    if (!skip_blanks(&s))
        return ERR_SYNTAX;
    if (at_end(&s) || *s.p == ';') {
        out->kind = SYNTAX_EMPTY;
        return ends(&s) ? 0 : ERR_SYNTAX;
    }
    rc = take_name(&s, out->verb, sizeof(out->verb));
    if (rc)
        return rc;
    out->kind = SYNTAX_COMMAND;
    verb_end = s.p;
    if (!skip_blanks(&s))
        return ERR_SYNTAX;
    if (at_end(&s) || *s.p == ';')
        return ends(&s) ? 0 : ERR_SYNTAX;
    if (s.p == verb_end)
        return ERR_SYNTAX;
    if (slice_is_nocase(slice_str(out->verb), "set")) {
        rc = parse_set(&s, out);
    } else {
        out->has_arg = true;
        rc = take_arg(&s, out->arg, sizeof(out->arg));
    }
    if (rc)
        return rc;
    return ends(&s) ? 0 : ERR_SYNTAX;
}
