/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/pattern.h"

#include <regex.h>
#include <stdlib.h>

struct pattern {
    regex_t re;
};

enum {
    GROWTH_MAX = 6,    /* "\D" to "[^[:digit:]]" */
    REPEAT_MAX = 255,  /* as PostgreSQL */
    COPIES_MAX = 4096, /* of a group, by repetitions around it */
};

struct translator {
    const char *from;
    char *to;
    char last; /* of the text: what a repetition is about */
    unsigned copies;
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

/* regcomp() copies what is repeated, so that groups in groups grow out of all
 * bounds. Reads the count of "{count}" and "{least,count}". */
static bool count_copies(struct translator *t)
{
    unsigned n = 0, times = *t->from == '*' || *t->from == '?' ? 1 : 2;
    if (strchr("*+?{", t->last))
        return false; /* PostgreSQL refuses a++ too */
    if (*t->from == '{') {
        for (const char *p = t->from + 1; *p && *p != '}'; p++) {
            n = *p == ',' ? 0 : n * 10 + (unsigned)(*p - '0');
            times = MAX(times, n);
            if ((*p != ',' && (*p < '0' || *p > '9')) || n > REPEAT_MAX)
                return false;
        }
    }
    if (t->last == ')')
        t->copies *= times;
    return t->copies <= COPIES_MAX;
}

static bool put_plain(struct translator *t)
{
    char c = *t->from;
    if ((c == '*' || c == '+' || c == '?' || c == '{') && !count_copies(t))
        return false;
    if (c != '}')
        t->last = c;
    copy(t, 1);
    return true;
}

static void put_escape(struct translator *t)
{
    char c = t->from[1];
    if (c == 'd' || c == 'D') {
        t->to = stpcpy(t->to, c == 'd' ? "[[:digit:]]" : "[^[:digit:]]");
        t->from += 2;
    } else {
        copy(t, c ? 2 : 1);
    }
    t->last = 'x';
}

static bool translate(const char *from, char *to)
{
    struct translator t = {from, to, 'x', 1};
    bool ok = true;
    while (ok && *t.from) {
        if (*t.from == '\\') {
            put_escape(&t);
        } else if (*t.from == '[') {
            ok = put_bracket(&t);
            t.last = 'x';
        } else {
            ok = put_plain(&t);
        }
    }
    *t.to = 0;
    return ok;
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
                       "regular expression \"%.64s\": a bracket that is not "
                       "closed, an escape that is not known in brackets, or "
                       "too much repetition",
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
