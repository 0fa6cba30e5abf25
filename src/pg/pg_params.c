/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pg/pg_params.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/hash.h"

#include "pg/pg_write.h"

struct pair {
    struct slice name, value;
};

struct pg_params {
    UT_hash_handle hh;
    _Atomic unsigned refs;
    int n;
    size_t key_size; /* of key: names and values with their zero bytes */
    char *key;
    struct pair pair[];
};

static struct {
    pthread_mutex_t lock;
    struct pg_params *all; /* by key */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct pg_params *params_new(const struct pair *pairs, int n)
{
    size_t size = 0, at = 0;
    for (int i = 0; i < n; i++)
        size += pairs[i].name.n + pairs[i].value.n + 2;
    struct pg_params *p =
        mem_new(sizeof *p + (size_t)n * sizeof p->pair[0] + size + 1);
    p->key = (char *)&p->pair[n];
    p->key_size = size;
    p->n = n;
    for (int i = 0; i < n; i++) {
        const struct slice part[] = {pairs[i].name, pairs[i].value};
        struct slice *to[] = {&p->pair[i].name, &p->pair[i].value};
        for (int k = 0; k < 2; k++) {
            memcpy(p->key + at, part[k].p, part[k].n);
            *to[k] = slice_of(p->key + at, part[k].n);
            at += part[k].n + 1;
        }
    }
    return p;
}

/* Returns the one set that is equal to fresh, which it takes. */
static const struct pg_params *intern(struct pg_params *fresh)
{
    struct pg_params *p;
    pthread_mutex_lock(&registry.lock);
    HASH_FIND(hh, registry.all, fresh->key, fresh->key_size, p);
    if (!p) {
        p = fresh;
        fresh = NULL;
        HASH_ADD_KEYPTR(hh, registry.all, p->key, p->key_size, p);
    }
    p->refs++;
    pthread_mutex_unlock(&registry.lock);
    free(fresh);
    return p;
}

const struct pg_params *pg_params_empty(void)
{
    return intern(params_new(NULL, 0));
}

static struct pg_params *mutable(const struct pg_params *p)
{
    return (struct pg_params *)(uintptr_t)p;
}

const struct pg_params *pg_params_ref(const struct pg_params *p)
{
    atomic_fetch_add_explicit(&mutable(p)->refs, 1, memory_order_relaxed);
    return p;
}

/* The last reference goes under the lock, so that intern() cannot hand out a
 * set that is being freed. */
void pg_params_unref(const struct pg_params *cp)
{
    struct pg_params *p = mutable(cp);
    if (!p)
        return;
    unsigned refs = atomic_load_explicit(&p->refs, memory_order_relaxed);
    while (refs > 1)
        if (atomic_compare_exchange_weak(&p->refs, &refs, refs - 1))
            return;
    pthread_mutex_lock(&registry.lock);
    bool last = atomic_fetch_sub(&p->refs, 1) == 1;
    if (last)
        HASH_DEL(registry.all, p);
    pthread_mutex_unlock(&registry.lock);
    if (last)
        free(p);
}

static int find(const struct pg_params *p, struct slice name)
{
    for (int i = 0; i < p->n; i++)
        if (slice_eq_nocase(p->pair[i].name, name))
            return i;
    return -1;
}

const struct pg_params *pg_params_with(const struct pg_params *p,
                                       struct slice name, struct slice value)
{
    struct pair pairs[PG_PARAMS_MAX];
    int at = find(p, name), n = p->n;
    if (at >= 0 && slice_eq(p->pair[at].value, value))
        return p;
    if (value.n > PG_PARAM_VALUE_MAX || name.n > PG_NAME_MAX ||
        (at < 0 && n == PG_PARAMS_MAX))
        return p;
    memcpy(pairs, p->pair, (size_t)n * sizeof pairs[0]);
    if (at < 0) {
        at = n++;
        pairs[at].name = name;
    }
    pairs[at].value = value;
    const struct pg_params *q = intern(params_new(pairs, n));
    pg_params_unref(p);
    return q;
}

struct slice pg_params_get(const struct pg_params *p, struct slice name)
{
    int i = find(p, name);
    return i < 0 ? slice_of(NULL, 0) : p->pair[i].value;
}

int pg_params_count(const struct pg_params *p)
{
    return p->n;
}

void pg_params_at(const struct pg_params *p, int i, struct slice *name,
                  struct slice *value)
{
    *name = p->pair[i].name;
    *value = p->pair[i].value;
}

void pg_params_put_all(const struct pg_params *p, struct pgbuf *out)
{
    for (int i = 0; i < p->n; i++)
        pg_put_parameter_status(out, p->pair[i].name, p->pair[i].value);
}

bool pg_params_is_standard(struct slice name)
{
    static const char *const standard[] = {
        "client_encoding",
        "DateStyle",
        "TimeZone",
        "standard_conforming_strings",
        "application_name",
        "IntervalStyle",
        "default_transaction_read_only",
        "scram_iterations",
        "search_path",
    };
    for (size_t i = 0; i < ARRAY_SIZE(standard); i++)
        if (slice_is_nocase(name, standard[i]))
            return true;
    return false;
}

/* A string literal of ASCII that means the same whatever
 * standard_conforming_strings is: E'' as soon as there is a backslash. */
static void put_ascii(struct pgbuf *sql, struct slice v)
{
    bool escape = memchr(v.p, '\\', v.n) != NULL;
    pgbuf_put_bytes(sql, escape ? "E'" : "'", escape ? 2 : 1);
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] == '\'' || v.p[i] == '\\')
            pgbuf_put_u8(sql, (uint8_t)v.p[i]);
        pgbuf_put_u8(sql, (uint8_t)v.p[i]);
    }
    pgbuf_put_bytes(sql, "'", 1);
}

static bool is_ascii(struct slice v)
{
    for (size_t i = 0; i < v.n; i++)
        if ((uint8_t)v.p[i] >= 0x80)
            return false;
    return true;
}

static void put_str(struct pgbuf *sql, const char *s)
{
    pgbuf_put_bytes(sql, s, strlen(s));
}

/* Names go out as quoted identifiers: extensions may report any name. */
static void put_name(struct pgbuf *sql, struct slice name)
{
    bool first = true;
    for (size_t i = 0; i < name.n; i++) {
        if (first)
            put_str(sql, "\"");
        first = false;
        if (name.p[i] == '.') {
            put_str(sql, "\".\"");
            continue;
        }
        if (name.p[i] == '"')
            put_str(sql, "\"");
        pgbuf_put_u8(sql, (uint8_t)name.p[i]);
    }
    put_str(sql, "\"");
}

static void put_hex(struct pgbuf *sql, struct slice v)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < v.n; i++) {
        pgbuf_put_u8(sql, (uint8_t)digit[(uint8_t)v.p[i] >> 4]);
        pgbuf_put_u8(sql, (uint8_t)digit[v.p[i] & 15]);
    }
}

/* An expression for the value. The server reads the whole text by the
 * client_encoding that it has now, while the value came by the client's; and in
 * SJIS, BIG5, GBK and others the second byte of a character may look like a
 * backslash. So what is not ASCII goes as digits. */
static void put_value(struct pgbuf *sql, struct slice v, struct slice encoding)
{
    if (is_ascii(v)) {
        put_ascii(sql, v);
        return;
    }
    put_str(sql, "pg_catalog.convert_from(pg_catalog.decode('");
    put_hex(sql, v);
    put_str(sql, "', 'hex'), ");
    put_ascii(sql, encoding);
    put_str(sql, ")");
}

/* SET takes no expressions. search_path is a list of identifiers: SET would
 * take the whole text for one of them, set_config() reads it as it was
 * reported. */
static void put_assignment(struct pgbuf *sql, const struct pair *s,
                           struct slice encoding)
{
    bool is_plain = is_ascii(s->value);
    if (!is_plain || slice_is_nocase(s->name, "search_path")) {
        put_str(sql, "SELECT pg_catalog.set_config(");
        put_ascii(sql, s->name);
        put_str(sql, ", ");
        put_value(sql, s->value, encoding);
        put_str(sql, ", false);");
        return;
    }
    put_str(sql, "SET ");
    put_name(sql, s->name);
    put_str(sql, " TO ");
    put_ascii(sql, s->value);
    put_str(sql, ";");
}

/* The encoding that the client's values are in. */
static struct slice encoding_of(const struct pg_params *want,
                                const struct pg_params *have)
{
    struct slice name = slice_str("client_encoding");
    struct slice e = pg_params_get(want, name);
    if (!e.p)
        e = pg_params_get(have, name);
    return e.p && is_ascii(e) ? e : slice_str("SQL_ASCII");
}

int pg_params_put_diff(const struct pg_params *want,
                       const struct pg_params *have, pg_params_filter filter,
                       void *arg, struct pgbuf *sql)
{
    struct slice encoding = encoding_of(want, have);
    int n = 0;
    for (int i = 0; i < want->n; i++) {
        struct slice now = pg_params_get(have, want->pair[i].name);
        if (now.p && slice_eq(now, want->pair[i].value))
            continue;
        if (!is_ascii(want->pair[i].name))
            continue; /* a name that cannot be written safely */
        if (!filter(arg, want->pair[i].name))
            continue;
        put_assignment(sql, &want->pair[i], encoding);
        n++;
    }
    return n;
}
