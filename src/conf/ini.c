/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "conf/ini.h"

#include <stdlib.h>

struct parser {
    const struct ini_ops *ops;
    void *arg;
    struct err *e;
    char section[INI_NAME_MAX + 1];
    bool has_section;
    int depth;
    int includes;
};

static int parse_text(struct parser *p, struct slice text, const char *file);

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static struct slice skip_blanks(struct slice s)
{
    while (s.n > 0 && is_blank(s.p[0]))
        s = slice_of(s.p + 1, s.n - 1);
    return s;
}

static struct slice skip(struct slice s, size_t n)
{
    return slice_of(s.p + n, s.n - n);
}

static bool is_key_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' ||
           c == '*';
}

/* Takes a key in quotes off the front of s. In double quotes a doubled quote is
 * one; single quotes know no way to write one, as in PgBouncer. */
static int take_quoted(struct slice *s, char *key, size_t *n, struct err *e)
{
    char quote = s->p[0];
    size_t i;

    *n = 0;
    for (i = 1; i < s->n; i++) {
        if (s->p[i] == quote) {
            if (quote == '\'' || i + 1 == s->n || s->p[i + 1] != quote)
                break;
            i++;
        }
        if (*n == INI_NAME_MAX)
            return err_set(e, ERR_CONF, "name in quotes is longer than %d",
                           INI_NAME_MAX);
        key[(*n)++] = s->p[i];
    }
    if (i >= s->n)
        return err_set(e, ERR_CONF, "name has no closing %c", quote);
    if (*n == 0)
        return err_set(e, ERR_CONF, "empty name");
    *s = skip(*s, i + 1);
    return 0;
}

static int take_key(struct slice *s, char *key, size_t *n, struct err *e)
{
    size_t i = 0;

    if (s->p[0] == '\'' || s->p[0] == '"')
        return take_quoted(s, key, n, e);
    while (i < s->n && is_key_char(s->p[i]))
        i++;
    if (i == 0)
        return err_set(e, ERR_CONF,
                       "expected key = value; a name with other characters "
                       "than letters, digits and _.-* goes in quotes");
    if (i > INI_NAME_MAX)
        return err_set(e, ERR_CONF, "name is longer than %d", INI_NAME_MAX);
    memcpy(key, s->p, i);
    *n = i;
    *s = skip(*s, i);
    return 0;
}

static int parse_pair(struct parser *p, const struct ini_place *at,
                      struct slice s)
{
    char key[INI_NAME_MAX + 1];
    size_t n = 0;
    int rc = take_key(&s, key, &n, p->e);

    if (rc < 0)
        return rc;
    s = skip_blanks(s);
    if (s.n == 0 || s.p[0] != '=')
        return err_set(p->e, ERR_CONF, "expected = after \"%.*s\"", (int)n,
                       key);
    if (!p->has_section)
        return err_set(p->e, ERR_CONF,
                       "\"%.*s\" stands before the first [section]", (int)n,
                       key);
    key[n] = '\0';
    return p->ops->on_key(p->arg, at, slice_str(p->section), slice_of(key, n),
                          slice_trim(skip(s, 1)), p->e);
}

/* Takes "[name]" off the front of *s. */
static int parse_section(struct parser *p, struct slice *s)
{
    const char *end = memchr(s->p, ']', s->n);
    struct slice name;

    if (!end)
        return err_set(p->e, ERR_CONF, "section has no closing ]");
    name = slice_of(s->p + 1, (size_t)(end - s->p) - 1);
    *s = skip(*s, name.n + 2);
    if (!slice_copy(name, p->section, sizeof(p->section)))
        return err_set(p->e, ERR_CONF, "section name is longer than %d",
                       INI_NAME_MAX);
    p->has_section = true;
    return p->ops->on_section(p->arg, name, p->e);
}

static int report(struct parser *p, const struct ini_place *at)
{
    int rc = err_wrap(p->e, "%s:%d", at->file, at->line);

    return p->ops->on_error ? p->ops->on_error(p->arg, p->e) : rc;
}

/* Reads the file named by an %include line. */
static int read_include(struct parser *p, struct slice name, char *path,
                        size_t cap, char **text, size_t *n)
{
    if (p->depth >= INI_INCLUDE_DEPTH_MAX)
        return err_set(p->e, ERR_CONF, "%%include deeper than %d files",
                       INI_INCLUDE_DEPTH_MAX);
    if (++p->includes > INI_INCLUDE_COUNT_MAX)
        return err_set(p->e, ERR_CONF, "more than %d %%include lines",
                       INI_INCLUDE_COUNT_MAX);
    if (name.n == 0 || !slice_copy(name, path, cap))
        return err_set(p->e, ERR_CONF, "%%include needs the name of a file");
    return p->ops->read_file(p->arg, path, text, n, p->e);
}

/* Mistakes inside the file carry their own place and are reported there. */
static int parse_include(struct parser *p, const struct ini_place *at,
                         struct slice name)
{
    char path[INI_PATH_MAX];
    char *text = NULL;
    size_t n = 0;
    int rc;

    rc = read_include(p, slice_trim(name), path, sizeof(path), &text, &n);
    if (rc < 0)
        return report(p, at);
    p->depth++;
    rc = parse_text(p, slice_of(text, n), path);
    p->depth--;
    mem_wipe(text, n);
    free(text);
    return rc;
}

static bool is_include(struct slice s)
{
    return s.n > 8 && memcmp(s.p, "%include", 8) == 0 && is_blank(s.p[8]);
}

/* What follows a section on its line counts as a line of its own. */
static int parse_line(struct parser *p, const struct ini_place *at,
                      struct slice s)
{
    int rc;

    s = skip_blanks(s);
    while (s.n > 0 && s.p[0] == '[') {
        rc = parse_section(p, &s);
        if (rc < 0)
            return rc;
        s = skip_blanks(s);
    }
    if (s.n == 0 || s.p[0] == ';' || s.p[0] == '#')
        return 0;
    return parse_pair(p, at, s);
}

static int parse_one(struct parser *p, const struct ini_place *at,
                     struct slice line)
{
    struct slice s = skip_blanks(line);
    int rc;

    if (memchr(line.p, '\0', line.n))
        rc = err_set(p->e, ERR_CONF, "the line holds a NUL byte");
    else if (is_include(s))
        return parse_include(p, at, skip(s, 9));
    else
        rc = parse_line(p, at, s);
    return rc < 0 ? report(p, at) : 0;
}

static int parse_text(struct parser *p, struct slice text, const char *file)
{
    struct ini_place at = {file, 0};
    int rc;

    if (text.n >= 3 && memcmp(text.p, "\xEF\xBB\xBF", 3) == 0)
        text = skip(text, 3);
    while (text.n > 0) {
        const char *nl = memchr(text.p, '\n', text.n);
        size_t n = nl ? (size_t)(nl - text.p) : text.n;

        at.line++;
        rc = parse_one(p, &at, slice_of(text.p, n));
        if (rc < 0)
            return rc;
        text = skip(text, nl ? n + 1 : n);
    }
    return 0;
}

int ini_parse(struct slice text, const char *file, const struct ini_ops *ops,
              void *arg, struct err *e)
{
    struct err own;
    struct parser p = {.ops = ops, .arg = arg, .e = e ? e : &own};

    return parse_text(&p, text, file);
}
