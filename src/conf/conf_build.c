/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* From files to a snapshot. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "auth/userdb.h"
#include "conf/conf_private.h"
#include "conf/conf_sections.h"
#include "conf/ini.h"

struct build {
    struct conf *c;
    const struct conf_reader *reader;
    struct conf_sink *sink;
    bool has_options;
};

/* Files */

static int read_fd(int fd, char **text, size_t *n)
{
    size_t cap = 8192;
    char *buf = mem_new(cap);

    *n = 0;
    for (;;) {
        ssize_t got = read(fd, buf + *n, cap - *n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            *text = buf;
            return got < 0 ? -errno : 0;
        }
        *n += (size_t)got;
        if (*n == cap) {
            char *more = mem_new(cap * 2);

            memcpy(more, buf, cap);
            mem_wipe(buf, cap);
            free(buf);
            buf = more;
            cap *= 2;
        }
        if (*n > CONF_FILE_MAX) {
            *text = buf;
            return -EFBIG;
        }
    }
}

static int read_file(void *arg, const char *path, char **text, size_t *n,
                     struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc;

    if (fd < 0)
        return err_set(e, ERR_CONF, "cannot read file \"%s\": %s", path,
                       strerror(errno));
    rc = read_fd(fd, text, n);
    close(fd);
    if (rc == 0)
        return 0;
    mem_wipe(*text, *n);
    free(*text);
    return err_set(e, ERR_CONF, "cannot read file \"%s\": %s", path,
                   strerror(-rc));
}

const struct conf_reader conf_file_reader = {read_file, NULL};

/* Mistakes */

int conf_sink_add(struct conf_sink *s, const struct err *e)
{
    if (s->count++ == 0)
        s->first = *e;
    if (!s->cb)
        return e->code;
    s->cb(s->arg, true, e->text);
    return 0;
}

static int on_error(void *arg, const struct err *e)
{
    struct build *b = arg;

    return conf_sink_add(b->sink, e);
}

/* Lines */

static int on_section(void *arg, struct slice name, struct err *e)
{
    struct build *b = arg;
    enum section_kind kind = section_kind_of(name);

    if (kind == SECTION_UNKNOWN)
        return err_set(e, ERR_CONF,
                       "unknown section [%.*s]; expected [pgbouncer], "
                       "[databases], [users] or [peers]",
                       (int)MIN(name.n, (size_t)64), name.p);
    b->has_options |= kind == SECTION_OPTIONS;
    return 0;
}

static int put_option(struct build *b, const struct ini_place *at,
                      struct slice key, struct slice value, struct err *e)
{
    struct conf_texts *t = b->c->texts;
    const struct option *o;
    int i, rc;

    if (slice_is(key, "service_name"))
        key = slice_str("job_name");
    o = option_find(&option_table, key);
    if (!o)
        return option_unknown(&option_table, "option", key, e);
    i = (int)(o - option_table.rows);
    rc = conf_put(b->c, i, strpool_dup(&t->pool, value), e);
    if (rc == 0)
        t->place[i] = strpool_printf(&t->pool, "%s:%d", at->file, at->line);
    return rc;
}

static int on_key(void *arg, const struct ini_place *at, struct slice section,
                  struct slice key, struct slice value, struct err *e)
{
    struct build *b = arg;
    enum section_kind kind = section_kind_of(section);

    if (kind == SECTION_OPTIONS)
        return put_option(b, at, key, value, e);
    if (kind == SECTION_UNKNOWN)
        return 0; /* its mistake was reported at the section's line */
    return conf_sections_add(b->c->sections, kind, at, key, value, e);
}

static int on_read_file(void *arg, const char *path, char **text, size_t *n,
                        struct err *e)
{
    struct build *b = arg;

    return b->reader->read(b->reader->arg, path, text, n, e);
}

static const struct ini_ops build_ops = {
    .on_section = on_section,
    .on_key = on_key,
    .read_file = on_read_file,
    .on_error = on_error,
};

static void on_duplicate(void *arg, const char *name)
{
    struct conf *c = arg;

    conf_warn(c, strpool_printf(&c->texts->pool,
                                "\"%s\" is given more than once in a section: "
                                "the last line holds",
                                name));
}

/* The whole */

static int parse_all(struct build *b, const char *path, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = b->reader->read(b->reader->arg, path, &text, &n, e);

    if (rc < 0)
        return conf_sink_add(b->sink, e);
    rc = ini_parse(slice_of(text, n), path, &build_ops, b, e);
    mem_wipe(text, n);
    free(text);
    if (rc < 0 || b->has_options)
        return rc;
    err_set(e, ERR_CONF, "%s: there is no [pgbouncer] section", path);
    return conf_sink_add(b->sink, e);
}

/* The path is what the next reload reads, if the file names no other. */
static void default_conffile(struct conf *c, const char *path)
{
    const struct option *o = option_find(&option_table, slice_str("conffile"));
    int i = (int)(o - option_table.rows);
    struct err e;

    if (!c->conffile)
        must(conf_put(c, i, strpool_dup(&c->texts->pool, slice_str(path)),
                      &e) == 0);
}

static int build_all(struct build *b, const char *path, struct err *e)
{
    int rc = parse_all(b, path, e);

    if (rc < 0)
        return rc;
    conf_sections_seal(b->c->sections, on_duplicate, b->c);
    default_conffile(b->c, path);
    rc = conf_verify(b->c, b->sink);
    if (rc < 0)
        return rc;
    conf_warn_later(b->c);
    conf_warn_mptcp(b->c);
    conf_load_users(b->c, b->reader);
    rc = conf_load_rules(b->c, b->reader, e);
    return rc < 0 ? conf_sink_add(b->sink, e) : 0;
}

static void tell_warnings(const struct conf *c, const struct conf_sink *sink)
{
    if (!sink->cb)
        return;
    for (int i = 0; i < conf_warning_count(c); i++)
        sink->cb(sink->arg, false, conf_warning(c, i));
}

int conf_build(const struct conf_reader *r, const char *path,
               struct conf_sink *sink, struct conf **out, struct err *e)
{
    struct build b = {.reader = r, .sink = sink};
    struct err own;

    b.c = conf_new();
    b.c->sections = conf_sections_new();
    if (build_all(&b, path, &own) == 0)
        tell_warnings(b.c, sink);
    if (sink->count > 0) {
        conf_unref(b.c);
        return err_set(e, sink->first.code, "%s", sink->first.text);
    }
    *out = b.c;
    return 0;
}

/* auth_file */

static int parse_users(const struct conf_reader *r, const char *path,
                       struct userdb **db, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    int rc = r->read(r->arg, path, &text, &n, e);

    if (rc < 0)
        return rc;
    rc = userdb_parse(slice_of(text, n), path, db, e);
    mem_wipe(text, n);
    free(text);
    return rc;
}

void conf_load_users(struct conf *c, const struct conf_reader *r)
{
    struct conf_users *u;
    struct err e;

    if (!c->auth_file || c->auth_type == CONF_AUTH_PAM)
        return;
    u = mem_new(sizeof(*u));
    u->refs = 1;
    if (stat(c->auth_file, &c->texts->users_seen) < 0)
        memset(&c->texts->users_seen, 0, sizeof(c->texts->users_seen));
    if (parse_users(r, c->auth_file, &u->db, &e) < 0)
        conf_warn(c, strpool_printf(&c->texts->pool, "auth_file: %s", e.text));
    c->texts->users = u;
    c->users = u->db;
}

/* The users of another snapshot. */
void conf_share_users(struct conf *c, const struct conf *from)
{
    struct conf_users *u = from->texts->users;

    must(!c->texts->users);
    if (!u)
        return;
    __atomic_fetch_add(&u->refs, 1, __ATOMIC_RELAXED);
    c->texts->users = u;
    c->users = u->db;
}
