/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/pattern.h"

#include <regex.h>
#include <stdlib.h>

struct pattern {
    regex_t re;
};

enum { GROWTH_MAX = 6 }; /* "\D" to "[^[:digit:]]" */

struct translator {
    const char *from;
    char *to;
};

/* What a class escape of PostgreSQL is in a bracket expression. */
static const char *class_of(char c)
{
    return c == 'd'   ? "[:digit:]"
           : c == 'w' ? "[:alnum:]_"
           : c == 's' ? "[:space:]"
                      : NULL;
}

static void copy(struct translator *t, size_t n)
{
    memcpy(t->to, t->from, n);
    t->to += n;
    t->from += n;
}

/* One element of a bracket expression. There POSIX takes a backslash for
 * itself, PostgreSQL for an escape; false for those that cannot be put over. */
static bool put_element(struct translator *t)
{
    char c = t->from[0], next = c ? t->from[1] : 0;
    if (c == '[' && (next == ':' || next == '.' || next == '=')) {
        char close[3] = {next, ']', 0};
        const char *end = strstr(t->from + 2, close);
        if (!end)
            return false;
        copy(t, (size_t)(end + 2 - t->from));
    } else if (c != '\\') {
        copy(t, 1);
    } else if (class_of(next)) {
        t->to = stpcpy(t->to, class_of(next));
        t->from += 2;
    } else if (next && strchr(".*+?(){}|$\\/@#\"' ", next)) {
        *t->to++ = next;
        t->from += 2;
    } else {
        return false;
    }
    return true;
}

static bool put_bracket(struct translator *t)
{
    copy(t, 1);
    if (*t->from == '^')
        copy(t, 1);
    if (*t->from == ']')
        copy(t, 1);
    while (*t->from && *t->from != ']')
        if (!put_element(t))
            return false;
    if (!*t->from)
        return false;
    copy(t, 1);
    return true;
}

static bool translate(const char *from, char *to)
{
    struct translator t = {from, to};
    while (*t.from) {
        if (t.from[0] == '[') {
            if (!put_bracket(&t))
                return false;
        } else if (t.from[0] != '\\') {
            copy(&t, 1);
        } else if (t.from[1] == 'd' || t.from[1] == 'D') {
            t.to =
                stpcpy(t.to, t.from[1] == 'd' ? "[[:digit:]]" : "[^[:digit:]]");
            t.from += 2;
        } else {
            copy(&t, t.from[1] ? 2 : 1);
        }
    }
    *t.to = 0;
    return true;
}

int pattern_new(struct pattern **out, const char *text, struct err *e)
{
    char posix[PATTERN_TEXT_MAX * GROWTH_MAX + 1], why[128];
    size_t n = strlen(text);
    *out = NULL;
    if (!n || n > PATTERN_TEXT_MAX)
        return err_set(e, ERR_CONF, "regular expression \"%.64s\": %s", text,
                       n ? "too long" : "empty");
    if (!translate(text, posix))
        return err_set(e, ERR_CONF,
                       "regular expression \"%.64s\": a bracket is not closed, "
                       "or holds an escape that is not known there",
                       text);
    struct pattern *p = mem_new(sizeof *p);
    int rc = regcomp(&p->re, posix, REG_EXTENDED);
    if (rc) {
        regerror(rc, &p->re, why, sizeof why);
        free(p);
        return err_set(e, ERR_CONF, "regular expression \"%.64s\": %s", text,
                       why);
    }
    *out = p;
    return 0;
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    regfree(&p->re);
    free(p);
}

bool pattern_match(const struct pattern *p, struct slice subject,
                   struct slice *part)
{
    char text[PATTERN_SUBJECT_MAX + 1];
    regmatch_t m[2] = {{-1, -1}, {-1, -1}};
    if (!slice_copy(subject, text, sizeof text) || memchr(text, 0, subject.n) ||
        regexec(&p->re, text, 2, m, 0))
        return false;
    if (part)
        *part = m[1].rm_so < 0 ? (struct slice){0}
                               : slice_of(subject.p + m[1].rm_so,
                                          (size_t)(m[1].rm_eo - m[1].rm_so));
    return true;
}

bool pattern_has_part(const struct pattern *p)
{
    return p->re.re_nsub > 0;
}
