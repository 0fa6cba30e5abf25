/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "conf/conf_sections.h"

#include <stdlib.h>

#include "conf/connstr.h"
#include "conf/option.h"

enum { DEFAULT_PORT = 5432, DEFAULT_PEER_PORT = 6432, PEER_ID_MAX = 16383 };
enum { HOSTS_MAX = 1000 };

enum section_kind section_kind_of(struct slice name)
{
    static const struct {
        const char *name;
        enum section_kind kind;
    } kinds[] = {
        {"pgbouncer", SECTION_OPTIONS},
        {"databases", SECTION_DATABASES},
        {"users", SECTION_USERS},
        {"peers", SECTION_PEERS},
    };

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (slice_is(name, kinds[i].name))
            return kinds[i].kind;
    return SECTION_UNKNOWN;
}

struct conf_sections *conf_sections_new(void)
{
    struct conf_sections *s = mem_new(sizeof(*s));

    s->refs = 1;
    strpool_init(&s->pool);
    return s;
}

struct conf_sections *conf_sections_ref(struct conf_sections *s)
{
    __atomic_fetch_add(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}

static void set_fini(struct section_set *set)
{
    free(set->items);
    free(set->by_name);
}

void conf_sections_unref(struct conf_sections *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    set_fini(&s->dbs);
    set_fini(&s->users);
    set_fini(&s->peers);
    strpool_fini(&s->pool);
    free(s);
}

static void set_add(struct section_set *set, const char *name, void *what)
{
    if (set->n == set->room) {
        int room = set->room ? set->room * 2 : 16;
        struct section_item *items =
            mem_new_array((size_t)room, sizeof(*items));

        if (set->n > 0)
            memcpy(items, set->items, (size_t)set->n * sizeof(*items));
        free(set->items);
        set->items = items;
        set->room = room;
    }
    set->items[set->n] = (struct section_item){name, set->n, what};
    set->n++;
}

/* Hosts and ports */

/* The i-th word of a list with commas, trimmed; false past its end. */
static bool nth_word(struct slice list, int i, struct slice *word)
{
    for (;;) {
        const char *comma = memchr(list.p, ',', list.n);
        size_t n = comma ? (size_t)(comma - list.p) : list.n;

        if (i-- == 0) {
            *word = slice_trim(slice_of(list.p, n));
            return true;
        }
        if (!comma)
            return false;
        list = slice_of(list.p + n + 1, list.n - n - 1);
    }
}

static int count_words(struct slice list)
{
    struct slice word;
    int n = 0;

    while (n <= HOSTS_MAX && nth_word(list, n, &word))
        n++;
    return n;
}

static int read_port(struct slice ports, int i, int *port, struct err *e)
{
    struct slice word;
    int64_t v;

    if (!nth_word(ports, i, &word) || !slice_to_i64(word, &v) || v < 1 ||
        v > 65535)
        return err_set(e, ERR_CONF,
                       "port = \"%.*s\": expected a number from 1 to 65535",
                       (int)MIN(ports.n, (size_t)64), ports.p);
    *port = (int)v;
    return 0;
}

static int check_counts(int n_hosts, int n_ports, struct err *e)
{
    if (n_hosts > HOSTS_MAX)
        return err_set(e, ERR_CONF, "host: more than %d hosts", HOSTS_MAX);
    if (n_ports != 1 && n_ports != n_hosts)
        return err_set(e, ERR_CONF,
                       "port: %d ports for %d hosts; expected one for all or "
                       "one for each",
                       n_ports, n_hosts);
    return 0;
}

static int read_hosts(struct conf_db *db, struct strpool *pool, struct err *e)
{
    struct slice hosts = slice_str(db->host ? db->host : "");
    struct slice ports = slice_str(db->port_text ? db->port_text : "5432");
    int n_ports = count_words(ports);
    int rc = check_counts(count_words(hosts), n_ports, e);
    struct conf_host *h;

    if (rc < 0)
        return rc;
    db->n_hosts = count_words(hosts);
    h = strpool_alloc(pool, (size_t)db->n_hosts * sizeof(*h));
    for (int i = 0; i < db->n_hosts; i++) {
        struct slice word;

        must(nth_word(hosts, i, &word));
        if (word.n == 0 && db->host)
            return err_set(e, ERR_CONF, "host: a host in the list is empty");
        h[i].host = word.n > 0 ? strpool_dup(pool, word) : NULL;
        rc = read_port(ports, n_ports == 1 ? 0 : i, &h[i].port, e);
        if (rc < 0)
            return rc;
    }
    db->hosts = h;
    db->port = h[0].port;
    return 0;
}

/* Lines */

/* A value that holds a blank and was not quoted shows as an unknown key, which
 * may then be a piece of a password. */
static int unknown_key(const struct option_table *t, const char *what,
                       struct slice key, const struct option *before,
                       struct err *e)
{
    if (before && (before->flags & KEY_SECRET))
        return err_set(e, ERR_CONF,
                       "unknown key after %s; a value that holds a blank goes "
                       "in single quotes",
                       before->name);
    return option_unknown(t, what, key, e);
}

static int read_pairs(struct conf_sections *s, const struct option_table *t,
                      const char *what, struct connstr *cs, void *base,
                      struct err *e)
{
    const struct option *before = NULL;
    struct slice key, value;
    int rc;

    while ((rc = connstr_next(cs, &key, &value, e)) > 0) {
        const struct option *o;

        if (t == &db_key_table && slice_is(key, "reserve_pool"))
            key = slice_str("reserve_pool_size");
        o = option_find(t, key);
        if (!o)
            return unknown_key(t, what, key, before, e);
        rc = option_read(o, value, base, &s->pool, e);
        if (rc < 0)
            return rc;
        if (t == &db_key_table && (o->flags & KEY_LATER))
            s->later_keys |= 1UL << (o - t->rows);
        before = o;
    }
    return rc;
}

static int read_line(struct conf_sections *s, const struct option_table *t,
                     const char *what, struct slice value, void *base,
                     struct err *e)
{
    struct connstr cs;
    char *buf = mem_new(value.n + 1);
    int rc;

    option_unset_all(t, base);
    connstr_init(&cs, value, buf);
    rc = read_pairs(s, t, what, &cs, base, e);
    mem_wipe(buf, value.n + 1);
    free(buf);
    return rc;
}

static int check_db(const struct conf_db *db, struct err *e)
{
    if (db->auth_dbname && conf_is_console_db(slice_str(db->auth_dbname)))
        return err_set(e, ERR_CONF,
                       "auth_dbname = \"%s\": that is the console's name",
                       db->auth_dbname);
    return 0;
}

static int add_db(struct conf_sections *s, const struct ini_place *at,
                  struct slice name, struct slice value, struct err *e)
{
    struct conf_db *db = strpool_alloc(&s->pool, sizeof(*db));
    int rc;

    if (conf_is_console_db(name))
        return err_set(e, ERR_CONF,
                       "that name is reserved for the console; use another");
    db->is_auto = slice_is(name, "*");
    rc = read_line(s, &db_key_table, "key of [databases]", value, db, e);
    if (rc == 0)
        rc = read_hosts(db, &s->pool, e);
    if (rc == 0)
        rc = check_db(db, e);
    if (rc < 0)
        return rc;
    db->name = strpool_dup(&s->pool, name);
    db->place = strpool_printf(&s->pool, "%s:%d", at->file, at->line);
    if (!db->dbname && !db->is_auto)
        db->dbname = db->name;
    if (db->is_auto)
        s->fallback = db;
    else
        set_add(&s->dbs, db->name, db);
    return 0;
}

static int add_user(struct conf_sections *s, struct slice name,
                    struct slice value, struct err *e)
{
    struct conf_user *u = strpool_alloc(&s->pool, sizeof(*u));
    int rc = read_line(s, &user_key_table, "key of [users]", value, u, e);

    if (rc < 0)
        return rc;
    u->name = strpool_dup(&s->pool, name);
    set_add(&s->users, u->name, u);
    return 0;
}

static int add_peer(struct conf_sections *s, struct slice name,
                    struct slice value, struct err *e)
{
    struct conf_peer *p = strpool_alloc(&s->pool, sizeof(*p));
    int64_t id;
    int rc;

    if (!slice_to_i64(name, &id) || id < 1 || id > PEER_ID_MAX)
        return err_set(e, ERR_CONF, "expected a peer's number, 1 to %d",
                       PEER_ID_MAX);
    rc = read_line(s, &peer_key_table, "key of [peers]", value, p, e);
    if (rc < 0)
        return rc;
    if (!p->host)
        return err_set(e, ERR_CONF, "a peer needs host=");
    p->id = (int)id;
    if (p->port < 0)
        p->port = DEFAULT_PEER_PORT;
    set_add(&s->peers, strpool_printf(&s->pool, "%d", p->id), p);
    return 0;
}

int conf_sections_add(struct conf_sections *s, enum section_kind kind,
                      const struct ini_place *at, struct slice name,
                      struct slice value, struct err *e)
{
    static const char *const titles[] = {
        [SECTION_DATABASES] = "databases",
        [SECTION_USERS] = "users",
        [SECTION_PEERS] = "peers",
    };
    int rc;

    if (kind == SECTION_DATABASES)
        rc = add_db(s, at, name, value, e);
    else if (kind == SECTION_USERS)
        rc = add_user(s, name, value, e);
    else
        rc = add_peer(s, name, value, e);
    if (rc < 0)
        return err_wrap(e, "[%s] " SLICE_FMT, titles[kind], SLICE_ARG(name));
    return 0;
}

/* Order and look-up */

static int by_name(const void *va, const void *vb)
{
    const struct section_item *a = va, *b = vb;
    int d = strcmp(a->name, b->name);

    return d != 0 ? d : a->order - b->order;
}

static void set_seal(struct section_set *set,
                     void (*dup)(void *arg, const char *name), void *arg)
{
    size_t size = (size_t)set->n * sizeof(*set->items);
    int kept = 0;

    if (set->n == 0)
        return;
    set->by_name = mem_new(size);
    memcpy(set->by_name, set->items, size);
    qsort(set->by_name, (size_t)set->n, sizeof(*set->items), by_name);
    for (int i = 0; i < set->n; i++) {
        struct section_item *it = &set->by_name[i];

        if (i + 1 < set->n && strcmp(it->name, it[1].name) == 0) {
            set->items[it->order].what = NULL;
            dup(arg, it->name);
        } else {
            set->by_name[kept++] = *it;
        }
    }
    kept = 0;
    for (int i = 0; i < set->n; i++)
        if (set->items[i].what)
            set->items[kept++] = set->items[i];
    set->n = kept;
}

void conf_sections_seal(struct conf_sections *s,
                        void (*dup)(void *arg, const char *name), void *arg)
{
    set_seal(&s->dbs, dup, arg);
    set_seal(&s->users, dup, arg);
    set_seal(&s->peers, dup, arg);
}

static int compare_name(const char *a, struct slice b)
{
    size_t n = strlen(a);
    int d = memcmp(a, b.p, MIN(n, b.n));

    if (d != 0)
        return d;
    return n < b.n ? -1 : n > b.n;
}

void *section_set_find(const struct section_set *set, struct slice name)
{
    int low = 0, high = set->n;

    while (low < high) {
        int mid = low + (high - low) / 2;
        int d = compare_name(set->by_name[mid].name, name);

        if (d == 0)
            return set->by_name[mid].what;
        if (d < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}
