/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/ident.h"

#include <stdlib.h>

#include "auth/pattern.h"
#include "auth/rule_lexer.h"

enum { ENTRIES_MAX = 100000 };

struct entry {
    struct entry *next;
    char *system_name, *role; /* NULL: a pattern, or every role */
    struct pattern *system_re, *role_re;
};

struct ident_map {
    struct ident_map *next;
    char *name;
    struct entry *entries, **end;
};

struct ident {
    struct ident_map *maps;
    int n_entries;
};

struct reader {
    struct rule_lexer lex;
    const char *file;
    struct ident *ident;
};

static void free_entry(struct entry *n)
{
    free(n->system_name);
    free(n->role);
    pattern_free(n->system_re);
    pattern_free(n->role_re);
    free(n);
}

void ident_free(struct ident *i)
{
    if (!i)
        return;
    while (i->maps) {
        struct ident_map *m = i->maps;
        i->maps = m->next;
        while (m->entries) {
            struct entry *n = m->entries;
            m->entries = n->next;
            free_entry(n);
        }
        free(m->name);
        free(m);
    }
    free(i);
}

const struct ident_map *ident_find(const struct ident *i, struct slice name)
{
    for (struct ident_map *m = i ? i->maps : NULL; m; m = m->next)
        if (slice_is(name, m->name))
            return m;
    return NULL;
}

const char *ident_map_name(const struct ident_map *m)
{
    return m->name;
}

/* --- reading ----------------------------------------------------------- */

static int missing(struct reader *r, const char *what, struct err *e)
{
    if (r->lex.token == RULE_BAD)
        return err_set(e, ERR_CONF, "%s", r->lex.bad);
    return err_set(e, ERR_CONF,
                   "%s is missing; a line is: map system-name role", what);
}

static int read_system_name(struct reader *r, struct entry *n, struct err *e)
{
    struct rule_lexer *l = &r->lex;
    if (l->token != RULE_WORD)
        return missing(r, "the system's user name", e);
    if (l->word[0] == '/') {
        int rc = pattern_new(&n->system_re, l->word + 1, e);
        if (rc)
            return rc;
    } else {
        n->system_name = mem_strdup(l->word);
    }
    rule_lexer_next(l);
    return 0;
}

static int read_role(struct reader *r, struct entry *n, struct err *e)
{
    struct rule_lexer *l = &r->lex;
    int rc = 0;
    if (l->token != RULE_WORD)
        return missing(r, "the role", e);
    if (!l->is_quoted && l->word[0] == '+')
        return err_set(e, ERR_CONF, "roles by membership (%.64s) are not known",
                       l->word);
    if (!l->is_quoted && l->word[0] == '/')
        rc = pattern_new(&n->role_re, l->word + 1, e);
    else if (!rule_lexer_is(l, "all"))
        n->role = mem_strdup(l->word);
    if (rc)
        return rc;
    if (n->role && strstr(n->role, "\\1") && n->system_re &&
        !pattern_has_part(n->system_re))
        return err_set(e, ERR_CONF,
                       "\\1 needs a parenthesis in the regular expression");
    rule_lexer_next(l);
    return 0;
}

static struct ident_map *get_map(struct ident *i, const char *name)
{
    struct ident_map **at = &i->maps;
    for (; *at; at = &(*at)->next)
        if (!strcmp((*at)->name, name))
            return *at;
    *at = mem_new(sizeof **at);
    (*at)->name = mem_strdup(name);
    (*at)->end = &(*at)->entries;
    return *at;
}

static int read_entry(struct reader *r, struct entry *n, char *map,
                      struct err *e)
{
    struct rule_lexer *l = &r->lex;
    if (l->token != RULE_WORD)
        return missing(r, "the map's name", e);
    memcpy(map, l->word, l->word_n + 1);
    rule_lexer_next(l);
    int rc = read_system_name(r, n, e);
    if (rc == 0)
        rc = read_role(r, n, e);
    if (rc == 0 && l->token != RULE_END_OF_LINE)
        rc = err_set(e, ERR_CONF,
                     "too many words; a line is: map system-name "
                     "role");
    if (rc == 0 && r->ident->n_entries == ENTRIES_MAX)
        rc = err_set(e, ERR_CONF, "more than %d lines", ENTRIES_MAX);
    return rc;
}

static int read_line(struct reader *r, struct err *e)
{
    struct entry *n = mem_new(sizeof *n);
    char map[RULE_WORD_MAX + 1];
    int rc = read_entry(r, n, map, e);
    if (rc) {
        free_entry(n);
        return err_wrap(e, "%s:%d", r->file, r->lex.first_line);
    }
    struct ident_map *m = get_map(r->ident, map);
    *m->end = n;
    m->end = &n->next;
    r->ident->n_entries++;
    return 0;
}

int ident_parse(struct slice text, const char *file,
                void (*skipped)(void *arg, const char *text), void *arg,
                struct ident **out, struct err *e)
{
    struct reader r = {.file = file};
    struct err bad;
    *out = NULL;
    if (text.n && memchr(text.p, 0, text.n))
        return err_set(e, ERR_CONF, "%s: has a zero byte; it must be text",
                       file);
    r.ident = mem_new(sizeof *r.ident);
    rule_lexer_init(&r.lex, text);
    while (rule_lexer_next_line(&r.lex))
        if (read_line(&r, &bad) && skipped)
            skipped(arg, bad.text);
    *out = r.ident;
    return 0;
}

/* --- matching ---------------------------------------------------------- */

/* The role with part in the place of its first \1. */
static bool is_role_with_part(const char *role, struct slice part,
                              struct slice asked)
{
    const char *at = strstr(role, "\\1");
    if (!at)
        return slice_is(asked, role);
    size_t before = (size_t)(at - role), after = strlen(at + 2);
    return part.p && asked.n == before + part.n + after &&
           slice_eq(slice_of(asked.p, before), slice_of(role, before)) &&
           slice_eq(slice_of(asked.p + before, part.n), part) &&
           slice_is(slice_of(asked.p + before + part.n, after), at + 2);
}

static bool allows(const struct entry *n, struct slice system_name,
                   struct slice role)
{
    struct slice part = {0};
    if (n->system_re ? !pattern_match(n->system_re, system_name, &part)
                     : !slice_is(system_name, n->system_name))
        return false;
    if (n->role_re)
        return pattern_match(n->role_re, role, NULL);
    if (!n->role)
        return true;
    return n->system_re ? is_role_with_part(n->role, part, role)
                        : slice_is(role, n->role);
}

bool ident_map_allows(const struct ident_map *m, struct slice system_name,
                      struct slice role)
{
    for (const struct entry *n = m->entries; n; n = n->next)
        if (allows(n, system_name, role))
            return true;
    return false;
}
