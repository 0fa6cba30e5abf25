/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* auth_hba_file and auth_ident_file in a snapshot. */

#include <stdlib.h>

#include "auth/hba.h"
#include "conf/conf_private.h"

struct load {
    struct conf *c;
    const struct conf_reader *reader;
    const char *option; /* whose file is being read */
};

static void on_warning(void *arg, const char *text)
{
    struct load *l = arg;

    conf_warn(l->c,
              strpool_printf(&l->c->texts->pool, "%s: %s", l->option, text));
}

static int read_text(struct load *l, const char *path, char **text, size_t *n,
                     struct err *e)
{
    return l->reader->read(l->reader->arg, path, text, n, e);
}

static int on_read(void *arg, const char *path, char **text, size_t *n,
                   struct err *e)
{
    return read_text(arg, path, text, n, e);
}

static void load_ident(struct load *l, struct conf_rules *r)
{
    const char *path = l->c->auth_ident_file;
    char *text;
    size_t n;
    struct err e;

    l->option = "auth_ident_file";
    if (!path || !*path)
        return;
    if (read_text(l, path, &text, &n, &e) < 0) {
        on_warning(l, e.text);
        return;
    }
    if (ident_parse(slice_of(text, n), path, on_warning, l, &r->ident, &e) < 0)
        on_warning(l, e.text);
    free(text);
}

static int load_hba(struct load *l, struct conf_rules *r, struct err *e)
{
    const char *path = l->c->auth_hba_file;
    struct hba_source src = {on_read, on_warning, l, r->ident};
    char *text;
    size_t n;
    int rc;

    l->option = "auth_hba_file";
    if (!path || !*path) {
        on_warning(l, "not set, so that auth_type = hba lets nobody in");
        return 0;
    }
    if (read_text(l, path, &text, &n, e) < 0) {
        on_warning(l, e->text);
        return 0;
    }
    rc = hba_parse(slice_of(text, n), path, &src, &r->hba, e);
    mem_wipe(text, n); /* an ldap line holds a password */
    free(text);
    return rc < 0 ? err_wrap(e, "auth_hba_file") : 0;
}

int conf_load_rules(struct conf *c, const struct conf_reader *r, struct err *e)
{
    struct load l = {.c = c, .reader = r};
    struct conf_rules *rules;

    if (c->auth_type != CONF_AUTH_HBA)
        return 0;
    rules = mem_new(sizeof(*rules));
    rules->refs = 1;
    c->texts->rules = rules;
    load_ident(&l, rules);
    if (load_hba(&l, rules, e) < 0)
        return e->code;
    c->hba = rules->hba;
    return 0;
}

/* The rules of another snapshot in place of what this one has. */
void conf_share_rules(struct conf *c, const struct conf *from)
{
    struct conf_rules *r = from->texts->rules;

    if (r)
        __atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
    conf_unref_rules(c->texts->rules);
    c->texts->rules = r;
    c->hba = r ? r->hba : NULL;
}

void conf_unref_rules(struct conf_rules *r)
{
    if (!r || __atomic_sub_fetch(&r->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    hba_free(r->hba); /* its rules point into ident */
    ident_free(r->ident);
    free(r);
}
