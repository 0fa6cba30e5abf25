/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The life of a snapshot. */

#include "conf/conf.h"

#include <stdio.h>
#include <stdlib.h>

#include "auth/userdb.h"
#include "conf/conf_private.h"
#include "conf/conf_sections.h"

enum { WARNINGS_MAX = 100 };

struct conf *conf_new(void)
{
    struct conf *c = mem_new(sizeof(*c));
    struct conf_texts *t = mem_new(sizeof(*t));
    size_t n = (size_t)option_table.n;
    struct err e;

    c->refs = 1;
    c->texts = t;
    strpool_init(&t->pool);
    t->value = strpool_alloc(&t->pool, n * sizeof(char *));
    t->place = strpool_alloc(&t->pool, n * sizeof(char *));
    t->warnings = strpool_alloc(&t->pool, WARNINGS_MAX * sizeof(char *));
    for (int i = 0; i < option_table.n; i++)
        must(conf_put(c, i, option_table.rows[i].deflt, &e) == 0);
    return c;
}

int conf_put(struct conf *c, int i, const char *value, struct err *e)
{
    if (value) {
        int rc = option_read(&option_table.rows[i], slice_str(value), c,
                             &c->texts->pool, e);

        if (rc < 0)
            return rc;
    }
    c->texts->value[i] = value;
    return 0;
}

void conf_warn(struct conf *c, const char *text)
{
    struct conf_texts *t = c->texts;

    if (t->n_warnings < WARNINGS_MAX)
        t->warnings[t->n_warnings++] = text;
}

int conf_warning_count(const struct conf *c)
{
    return c->texts->n_warnings;
}

const char *conf_warning(const struct conf *c, int i)
{
    return c->texts->warnings[i];
}

struct conf *conf_ref(const struct conf *c)
{
    struct conf *mine = (struct conf *)(uintptr_t)c;

    __atomic_fetch_add(&mine->refs, 1, __ATOMIC_RELAXED);
    return mine;
}

static void unref_users(struct conf_users *u)
{
    if (!u || __atomic_sub_fetch(&u->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    userdb_free(u->db);
    free(u);
}

void conf_unref(const struct conf *c)
{
    struct conf *mine = (struct conf *)(uintptr_t)c;

    if (!c || __atomic_sub_fetch(&mine->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    conf_sections_unref(mine->sections);
    unref_users(mine->texts->users);
    conf_unref_rules(mine->texts->rules);
    strpool_fini(&mine->texts->pool);
    free(mine->texts);
    free(mine);
}

/* Loading */

int conf_load(const char *path, struct conf **out, struct err *e)
{
    struct conf_sink sink = {.cb = NULL};

    return conf_build(&conf_file_reader, path, &sink, out, e);
}

int conf_check(const char *path, conf_check_cb cb, void *arg)
{
    struct conf_sink sink = {.cb = cb, .arg = arg};
    struct conf *c = NULL;
    struct err e;

    if (conf_build(&conf_file_reader, path, &sink, &c, &e) == 0)
        conf_unref(c);
    return sink.count;
}

static const char *shown(const struct conf *c, int i, char *buf, size_t cap)
{
    const char *text = option_print(&option_table.rows[i], c, buf, cap);

    return text ? text : c->texts->value[i];
}

static bool same_shown(const struct conf *a, const struct conf *b, int i)
{
    char buf_a[32], buf_b[32];
    const char *text_a = shown(a, i, buf_a, sizeof(buf_a));
    const char *text_b = shown(b, i, buf_b, sizeof(buf_b));

    return strcmp(text_a ? text_a : "", text_b ? text_b : "") == 0;
}

/* Takes the value of option i from another snapshot. */
static void copy_option(struct conf *c, const struct conf *from, int i)
{
    const struct option *o = &option_table.rows[i];
    const char *value = from->texts->value[i];
    struct err e;

    if (value)
        value = strpool_dup(&c->texts->pool, slice_str(value));
    else if (o->type == OPTION_STR)
        *(const char **)(void *)((char *)c + o->offset) = NULL;
    else
        *(int *)(void *)((char *)c + o->offset) = 0;
    must(conf_put(c, i, value, &e) == 0);
}

/* Fixed options stay; one warning names those that the file changed. */
static void keep_fixed(struct conf *c, const struct conf *old)
{
    char names[1024] = "";
    size_t at = 0;

    for (int i = 0; i < option_table.n; i++) {
        const struct option *o = &option_table.rows[i];

        if (!(o->flags & OPT_NR) || same_shown(c, old, i))
            continue;
        copy_option(c, old, i);
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s",
                               at > 0 ? ", " : "", o->name);
        at = MIN(at, sizeof(names) - 1);
    }
    if (at > 0)
        conf_warn(c, strpool_printf(&c->texts->pool,
                                    "changed in the file, but fixed until the "
                                    "next start: %s",
                                    names));
}

/* An auth_file that has become unreadable costs nobody the login. */
static void keep_users(struct conf *c, const struct conf *old)
{
    if (c->users || !c->auth_file || !old->users)
        return;
    unref_users(c->texts->users);
    c->texts->users = NULL;
    conf_share_users(c, old);
}

/* Nor does an auth_hba_file: the old rules stay. */
static void keep_rules(struct conf *c, const struct conf *old)
{
    bool is_set = c->auth_hba_file && *c->auth_hba_file;

    if (c->texts->rules && !c->hba && is_set && old->hba)
        conf_share_rules(c, old);
}

int conf_reload(const struct conf *old, struct conf **out, struct err *e)
{
    struct conf_sink sink = {.cb = NULL};
    int rc = conf_build(&conf_file_reader, old->conffile, &sink, out, e);

    if (rc < 0)
        return rc;
    keep_fixed(*out, old);
    keep_users(*out, old);
    keep_rules(*out, old);
    return 0;
}

/* SET */

static struct conf *clone(const struct conf *old)
{
    struct conf *c = conf_new();

    for (int i = 0; i < option_table.n; i++)
        copy_option(c, old, i);
    c->sections = conf_sections_ref(old->sections);
    return c;
}

static int set_and_verify(struct conf *c, int i, struct slice value,
                          struct err *e)
{
    struct conf_sink sink = {.cb = NULL};
    int rc = conf_put(c, i, strpool_dup(&c->texts->pool, value), e);

    if (rc < 0)
        return rc;
    rc = conf_verify(c, &sink);
    if (rc < 0)
        return err_set(e, rc, "%s", sink.first.text);
    return 0;
}

static bool is_of_rules(struct slice key)
{
    return slice_is(key, "auth_type") || slice_is(key, "auth_hba_file") ||
           slice_is(key, "auth_ident_file");
}

int conf_set(const struct conf *old, struct slice key, struct slice value,
             struct conf **out, struct err *e)
{
    const struct option *o = option_find(&option_table, key);
    struct conf *c;
    int rc;

    if (!o)
        return option_unknown(&option_table, "option", key, e);
    if (o->flags & OPT_NR)
        return err_set(e, ERR_CONF,
                       "%s is fixed at start: change it in the file and "
                       "restart",
                       o->name);
    if (memchr(value.p, '\0', value.n))
        return err_set(e, ERR_CONF, "%s: the value holds a NUL byte", o->name);
    c = clone(old);
    rc = set_and_verify(c, (int)(o - option_table.rows), value, e);
    if (rc == 0 && is_of_rules(key))
        rc = conf_load_rules(c, &conf_file_reader, e);
    else
        conf_share_rules(c, old);
    if (rc < 0) {
        conf_unref(c);
        return rc;
    }
    if (slice_is(key, "auth_file")) {
        conf_load_users(c, &conf_file_reader);
    } else {
        conf_share_users(c, old);
        c->texts->users_seen = old->texts->users_seen;
    }
    *out = c;
    return 0;
}

/* auth_file */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino &&
           a->st_mode == b->st_mode && a->st_uid == b->st_uid &&
           a->st_gid == b->st_gid && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

bool conf_users_changed(const struct conf *c)
{
    struct stat now;

    if (!c->auth_file || !c->texts->users)
        return false;
    if (stat(c->auth_file, &now) < 0)
        memset(&now, 0, sizeof(now));
    return !same_file(&c->texts->users_seen, &now);
}

int conf_reload_users(const struct conf *old, struct conf **out, struct err *e)
{
    struct conf *c = clone(old);

    conf_share_rules(c, old);
    conf_load_users(c, &conf_file_reader);
    if (c->texts->users && !c->users && old->users) {
        /* users_seen is the new one, so that trouble is told once. */
        unref_users(c->texts->users);
        c->texts->users = NULL;
        conf_share_users(c, old);
    }
    *out = c;
    return 0;
}

/* SHOW CONFIG */

void conf_each_option(const struct conf *c, conf_option_cb cb, void *arg)
{
    char buf[32];

    for (int i = 0; i < option_table.n; i++) {
        const struct option *o = &option_table.rows[i];
        const char *value = shown(c, i, buf, sizeof(buf));

        if ((o->flags & OPT_SECRET) && value && *value)
            value = "<hidden>";
        cb(arg, o->name, value, o->deflt, !(o->flags & OPT_NR));
    }
}

bool conf_get_text(const struct conf *c, struct slice key, char *buf,
                   size_t cap)
{
    const struct option *o = option_find(&option_table, key);
    char print[32];
    const char *value;

    if (!o)
        return false;
    value = shown(c, (int)(o - option_table.rows), print, sizeof(print));
    if ((o->flags & OPT_SECRET) && value && *value)
        value = "<hidden>";
    snprintf(buf, cap, "%s", value ? value : "");
    return true;
}
