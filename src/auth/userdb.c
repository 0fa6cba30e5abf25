/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/userdb.h"

#include <stdlib.h>

/* Without the fall-throughs of the default. */
#define HASH_FUNCTION HASH_FNV
#include <uthash.h>

struct entry {
    struct auth_user user; /* first: a user is its entry */
    char *name;
    UT_hash_handle hh;
};

struct userdb {
    struct entry *entries; /* uthash keeps the order of insertion */
};

struct reader {
    const char *p, *end;
    int line;
    const char *filename;
    struct err *e;
};

static int fail(struct reader *r, int line, const char *what)
{
    return err_set(r->e, ERR_CONF, "%s:%d: %s", r->filename, line, what);
}

/* isspace() of the C locale. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void advance(struct reader *r)
{
    r->line += *r->p == '\n';
    r->p++;
}

static void skip_line(struct reader *r)
{
    while (r->p < r->end && *r->p != '\n')
        r->p++;
}

/* Moves to the next entry; false at the end of the text. */
static bool next_entry(struct reader *r)
{
    while (r->p < r->end) {
        if (*r->p == ';')
            skip_line(r);
        else if (is_space(*r->p))
            advance(r);
        else
            return true;
    }
    return false;
}

/* Reads from a quote to the one that closes it into a new string of at most
 * max bytes, "" standing for a quote. */
static int read_quoted(struct reader *r, size_t max, const char *too_long,
                       char **out, size_t *out_n)
{
    int line = r->line;
    const char *from = ++r->p;
    size_t doubled = 0;
    for (; r->p < r->end; advance(r)) {
        if (*r->p != '"')
            continue;
        if (r->p + 1 == r->end || r->p[1] != '"')
            break;
        r->p++;
        doubled++;
    }
    if (r->p == r->end)
        return fail(r, line, "a quote is opened here and never closed");
    size_t n = (size_t)(r->p - from) - doubled;
    if (n > max)
        return fail(r, line, too_long);
    char *s = mem_new(n + 1);
    for (size_t i = 0; i < n; i++, from++) {
        s[i] = *from;
        from += *from == '"';
    }
    r->p++;
    *out = s;
    *out_n = n;
    return 0;
}

static void free_string(char *s, size_t n)
{
    if (s)
        mem_wipe(s, n);
    free(s);
}

static struct entry *find_entry(const struct userdb *db, struct slice name)
{
    struct entry *found = NULL;
    HASH_FIND(hh, db->entries, name.n ? name.p : "", name.n, found);
    return found;
}

/* Takes name. */
static void put_user(struct userdb *db, char *name, size_t n,
                     struct auth_secret secret)
{
    struct entry *u = find_entry(db, slice_of(name, n));
    if (u) {
        auth_secret_fini(&u->user.secret);
        u->user.secret = secret;
        free(name);
        return;
    }
    u = mem_new(sizeof *u);
    u->name = name;
    u->user.name = slice_of(name, n);
    u->user.secret = secret;
    HASH_ADD_KEYPTR(hh, db->entries, u->name, n, u);
}

static int read_secret(struct reader *r, struct auth_secret *out)
{
    char *text;
    size_t n;
    /* PgBouncer asks for no certain separator. */
    while (r->p < r->end && *r->p != '"' && *r->p != '\n')
        r->p++;
    if (r->p == r->end || *r->p != '"')
        return fail(r, r->line,
                    "the password is missing; write \"user\" \"password\"");
    int line = r->line;
    int rc =
        read_quoted(r, AUTH_SECRET_TEXT_MAX, "password too long", &text, &n);
    if (rc < 0)
        return rc;
    rc = auth_secret_parse(slice_of(text, n), out);
    free_string(text, n);
    if (rc == ERR_TOO_LARGE)
        return fail(r, line, "SCRAM secret with too long a salt");
    return rc < 0 ? fail(r, line, "password cannot be used") : 0;
}

static int read_entry(struct reader *r, struct userdb *db)
{
    char *name;
    size_t n;
    struct auth_secret secret;
    if (*r->p != '"')
        return fail(r, r->line,
                    "expected a user name in double quotes, or a comment "
                    "that starts with ;");
    int rc =
        read_quoted(r, AUTH_USER_NAME_MAX, "user name too long", &name, &n);
    if (rc < 0)
        return rc;
    rc = read_secret(r, &secret);
    if (rc < 0) {
        free(name);
        return rc;
    }
    put_user(db, name, n, secret);
    skip_line(r);
    return 0;
}

int userdb_parse(struct slice text, const char *filename, struct userdb **out,
                 struct err *e)
{
    struct reader r = {text.p, text.p + text.n, 1, filename, e};
    struct userdb *db = mem_new(sizeof *db);
    int rc = 0;
    *out = NULL;
    if (text.n && memchr(text.p, 0, text.n))
        rc = err_set(e, ERR_CONF, "%s: has a zero byte; it must be text",
                     filename);
    while (rc == 0 && next_entry(&r))
        rc = read_entry(&r, db);
    if (rc < 0) {
        userdb_free(db);
        return rc;
    }
    *out = db;
    return 0;
}

const struct auth_user *userdb_find(const struct userdb *db, struct slice name)
{
    struct entry *u = db ? find_entry(db, name) : NULL;
    return u ? &u->user : NULL;
}

size_t userdb_count(const struct userdb *db)
{
    return db ? HASH_COUNT(db->entries) : 0;
}

const struct auth_user *userdb_next(const struct userdb *db,
                                    const struct auth_user *after)
{
    if (!db)
        return NULL;
    struct entry *u =
        after ? ((const struct entry *)after)->hh.next : db->entries;
    return u ? &u->user : NULL;
}

void userdb_free(struct userdb *db)
{
    struct entry *u, *next;
    if (!db)
        return;
    HASH_ITER(hh, db->entries, u, next)
    {
        HASH_DELETE(hh, db->entries, u);
        auth_secret_fini(&u->user.secret);
        free(u->name);
        free(u);
    }
    free(db);
}
