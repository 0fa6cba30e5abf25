/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "conf/option.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "conf/conf.h"

enum { NAME_MAX_SUGGEST = 40 };

static const int64_t TIME_MAX_US = 100000000000LL * 1000000; /* 3000 years */

/* Tables */

#define FIELD_STR(s, name) offsetof(struct s, name)
#define FIELD_LIST(s, name) offsetof(struct s, name)
#define FIELD_INT(s, name) offsetof(struct s, name)
#define FIELD_WORKERS(s, name) offsetof(struct s, name)
#define FIELD_BOOL(s, name) offsetof(struct s, name)
#define FIELD_TIME(s, name) offsetof(struct s, name##_us)
#define FIELD_HOSTS(s, name) offsetof(struct s, name)
#define FIELD_PORTS(s, name) offsetof(struct s, name##_text)
#define FIELD_POOL_MODE(s, name) offsetof(struct s, name)
#define FIELD_AUTH_TYPE(s, name) offsetof(struct s, name)
#define FIELD_SSLMODE(s, name) offsetof(struct s, name)
#define FIELD_SSLNEGOTIATION(s, name) offsetof(struct s, name)
#define FIELD_LOAD_BALANCE(s, name) offsetof(struct s, name)
#define FIELD_TRANSPORT(s, name) offsetof(struct s, name)
#define FIELD_CONGESTION(s, name) offsetof(struct s, name)
#define FIELD_LOG_FORMAT(s, name) offsetof(struct s, name)
#define FIELD_MPTCP(s, name) offsetof(struct s, name)
#define FIELD_UPGRADE_TLS(s, name) offsetof(struct s, name)
#define FIELD_SUPERVISOR(s, name) offsetof(struct s, name)

static const struct option options[] = {
#define OPT(type, name, group, deflt, min, max, flags, help)                   \
    {#name, OPTION_##type, #group, deflt,                                      \
     min,   max,           flags,  FIELD_##type(conf, name),                   \
     help},
#include "conf/option.def"
#undef OPT
};

#define KEY_ROW(s, type, name, min, max, flags, unset, help)                   \
    {#name, OPTION_##type,         NULL, unset, min, max,                      \
     flags, FIELD_##type(s, name), help},

static const struct option db_keys[] = {
#define DB_KEY(...) KEY_ROW(conf_db, __VA_ARGS__)
#include "conf/section.def"
#undef DB_KEY
};

static const struct option user_keys[] = {
#define USER_KEY(...) KEY_ROW(conf_user, __VA_ARGS__)
#include "conf/section.def"
#undef USER_KEY
};

static const struct option peer_keys[] = {
#define PEER_KEY(...) KEY_ROW(conf_peer, __VA_ARGS__)
#include "conf/section.def"
#undef PEER_KEY
};

const struct option_table option_table = {options, ARRAY_SIZE(options)};
const struct option_table db_key_table = {db_keys, ARRAY_SIZE(db_keys)};
const struct option_table user_key_table = {user_keys, ARRAY_SIZE(user_keys)};
const struct option_table peer_key_table = {peer_keys, ARRAY_SIZE(peer_keys)};

static const struct word {
    enum option_type type;
    const char *text;
    int value;
} words[] = {
#define ENUM(type, text, value) {OPTION_##type, text, value},
#include "conf/enum.def"
#undef ENUM
};

/* Names */

const struct option *option_find(const struct option_table *t,
                                 struct slice name)
{
    for (int i = 0; i < t->n; i++)
        if (slice_is(name, t->rows[i].name))
            return &t->rows[i];
    return NULL;
}

/* Edit distance of two short words. */
static int distance(struct slice a, const char *b)
{
    int row[NAME_MAX_SUGGEST + 1];
    int m = (int)strlen(b);

    if (m > NAME_MAX_SUGGEST)
        return NAME_MAX_SUGGEST;
    for (int j = 0; j <= m; j++)
        row[j] = j;
    for (int i = 1; i <= (int)a.n; i++) {
        int diagonal = row[0];

        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int swap = diagonal + (a.p[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = MIN(swap, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

static const char *nearest(const struct option_table *t, struct slice name)
{
    const char *best = NULL;
    int least = MIN(4, (int)name.n / 2 + 1);

    if (name.n > NAME_MAX_SUGGEST)
        return NULL;
    for (int i = 0; i < t->n; i++) {
        int d = distance(name, t->rows[i].name);

        if (d < least) {
            least = d;
            best = t->rows[i].name;
        }
    }
    return best;
}

int option_unknown(const struct option_table *t, const char *what,
                   struct slice name, struct err *e)
{
    const char *best = nearest(t, name);

    if (!best)
        return err_set(e, ERR_CONF, "unknown %s \"%.*s\"", what,
                       (int)MIN(name.n, (size_t)64), name.p);
    return err_set(e, ERR_CONF,
                   "unknown %s \"" SLICE_FMT "\"; did you mean %s?", what,
                   SLICE_ARG(name), best);
}

/* Values: each reader returns false when text is not one, and then
 * describe() tells what would be. */

static void *field_of(const struct option *o, void *base)
{
    return (char *)base + o->offset;
}

static bool has_words(enum option_type type)
{
    return type >= OPTION_POOL_MODE;
}

/* As C reads numbers: 0x is hexadecimal and a leading 0 octal, but only for
 * options; a key of a section is decimal, as in PgBouncer. */
static bool read_int(const struct option *o, struct slice text, int64_t *v)
{
    char buf[32];
    char *end;

    if (!o->group)
        return slice_to_i64(text, v) && *v >= o->min && *v <= o->max;
    if (text.n == 0 || !slice_copy(text, buf, sizeof(buf)))
        return false;
    errno = 0;
    *v = strtoll(buf, &end, 0);
    return errno == 0 && *end == '\0' && !isspace((unsigned char)buf[0]) &&
           *v >= o->min && *v <= o->max;
}

static bool read_bool(struct slice text, bool *v)
{
    static const char *const yes[] = {"on", "yes", "true"};
    static const char *const no[] = {"off", "no", "false"};
    int64_t n;

    for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
        if (slice_is_nocase(text, yes[i]))
            return *v = true;
        if (slice_is_nocase(text, no[i])) {
            *v = false;
            return true;
        }
    }
    if (!slice_to_i64(text, &n))
        return false;
    *v = n != 0;
    return true;
}

/* Decimal seconds to microseconds; what is finer is cut. */
static bool read_time(const struct option *o, struct slice text, int64_t *us)
{
    int64_t unit = 100000;
    size_t i = 0;

    *us = 0;
    if (o->min == -1 && slice_is(text, "-1")) {
        *us = -1;
        return true;
    }
    for (; i < text.n && isdigit((unsigned char)text.p[i]); i++) {
        if (*us > TIME_MAX_US / 10)
            return false;
        *us = *us * 10 + (text.p[i] - '0') * 1000000LL;
    }
    if (i == 0 || *us > TIME_MAX_US)
        return false;
    if (i < text.n && text.p[i] == '.')
        i++;
    for (; i < text.n && isdigit((unsigned char)text.p[i]); i++) {
        *us += (text.p[i] - '0') * unit;
        unit /= 10;
    }
    return i == text.n && *us >= o->min;
}

static bool read_workers(const struct option *o, struct slice text, int *v)
{
    int64_t n;

    if (slice_is_nocase(text, "auto")) {
        *v = CONF_WORKERS_AUTO;
        return true;
    }
    if (!slice_to_i64(text, &n) || n < o->min || n > o->max)
        return false;
    *v = (int)n;
    return true;
}

static bool read_word(const struct option *o, struct slice text, int *v)
{
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (words[i].type == o->type && slice_is_nocase(text, words[i].text)) {
            *v = words[i].value;
            return true;
        }
    return false;
}

static bool is_separator(char c)
{
    return c == ',' || isspace((unsigned char)c);
}

static void read_list(struct slice text, struct conf_list *l,
                      struct strpool *pool)
{
    char *copy = strpool_dup(pool, text);
    size_t i = 0;

    memset(l, 0, sizeof(*l));
    l->text = strpool_dup(pool, text);
    l->items = strpool_alloc(pool, (text.n / 2 + 1) * sizeof(char *));
    for (;;) {
        while (i < text.n && is_separator(copy[i]))
            i++;
        if (i == text.n)
            return;
        l->items[l->n++] = copy + i;
        while (i < text.n && !is_separator(copy[i]))
            i++;
        if (i == text.n)
            return;
        copy[i++] = '\0';
    }
}

static bool read_value(const struct option *o, struct slice text, void *base,
                       struct strpool *pool)
{
    void *field = field_of(o, base);
    int64_t v;

    switch (o->type) {
    case OPTION_STR:
    case OPTION_HOSTS:
    case OPTION_PORTS:
        *(const char **)field = text.n > 0 ? strpool_dup(pool, text) : NULL;
        return true;
    case OPTION_LIST:
        read_list(text, field, pool);
        return true;
    case OPTION_INT:
        if (!read_int(o, text, &v))
            return false;
        *(int *)field = (int)v;
        return true;
    case OPTION_BOOL:
        return read_bool(text, field);
    case OPTION_TIME:
        return read_time(o, text, field);
    case OPTION_WORKERS:
        return read_workers(o, text, field);
    default:
        return read_word(o, text, field);
    }
}

static size_t append(char *buf, size_t cap, size_t at, const char *text)
{
    int n = snprintf(buf + at, cap - at, "%s", text);

    return MIN(at + (size_t)n, cap - 1);
}

static void describe_words(enum option_type type, char *buf, size_t cap)
{
    size_t last = 0, at = 0;

    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (words[i].type == type)
            last = i;
    for (size_t i = 0; i <= last; i++) {
        if (words[i].type != type)
            continue;
        if (at > 0)
            at = append(buf, cap, at, i == last ? " or " : ", ");
        at = append(buf, cap, at, words[i].text);
    }
}

static void describe(const struct option *o, char *buf, size_t cap)
{
    if (has_words(o->type))
        describe_words(o->type, buf, cap);
    else if (o->type == OPTION_INT)
        snprintf(buf, cap, "a number from %lld to %lld", (long long)o->min,
                 (long long)o->max);
    else if (o->type == OPTION_WORKERS)
        snprintf(buf, cap, "auto or a number from %lld to %lld",
                 (long long)o->min, (long long)o->max);
    else if (o->type == OPTION_BOOL)
        snprintf(buf, cap, "0 or 1");
    else if (o->min > 0)
        snprintf(buf, cap, "seconds, such as 30; at least %lld",
                 (long long)(o->min / 1000000));
    else
        snprintf(buf, cap, "seconds, such as 30 or 0.5");
}

int option_read(const struct option *o, struct slice text, void *base,
                struct strpool *pool, struct err *e)
{
    char expected[160];

    if (read_value(o, text, base, pool))
        return 0;
    describe(o, expected, sizeof(expected));
    return err_set(e, ERR_CONF, "%s = \"%.*s\": expected %s", o->name,
                   (int)MIN(text.n, (size_t)64), text.p, expected);
}

void option_unset_all(const struct option_table *t, void *base)
{
    for (int i = 0; i < t->n; i++) {
        const struct option *o = &t->rows[i];
        void *field = field_of(o, base);

        if (o->type == OPTION_TIME)
            *(int64_t *)field = -1;
        else if (o->type == OPTION_INT || has_words(o->type))
            *(int *)field = -1;
        else
            *(const char **)field = NULL;
    }
}

const char *option_word(enum option_type type, int value)
{
    for (size_t i = 0; i < ARRAY_SIZE(words); i++)
        if (words[i].type == type && words[i].value == value)
            return words[i].text;
    return "unknown";
}

static const char *print_time(int64_t us, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, "%lld.%06lld", (long long)(us / 1000000),
                     (long long)(us % 1000000));

    must(n > 7 && (size_t)n < cap);
    while (buf[n - 1] == '0')
        buf[--n] = '\0';
    if (buf[n - 1] == '.')
        buf[n - 1] = '\0';
    return buf;
}

const char *option_print(const struct option *o, const void *base, char *buf,
                         size_t cap)
{
    const void *field = (const char *)base + o->offset;

    if (has_words(o->type))
        return option_word(o->type, *(const int *)field);
    switch (o->type) {
    case OPTION_LIST:
        return ((const struct conf_list *)field)->text;
    case OPTION_TIME:
        return print_time(*(const int64_t *)field, buf, cap);
    case OPTION_BOOL:
        return *(const bool *)field ? "1" : "0";
    case OPTION_WORKERS:
        if (*(const int *)field == CONF_WORKERS_AUTO)
            return "auto";
        snprintf(buf, cap, "%d", *(const int *)field);
        return buf;
    case OPTION_INT:
        snprintf(buf, cap, "%d", *(const int *)field);
        return buf;
    default:
        return *(const char *const *)field;
    }
}

const char *option_group_title(const char *group)
{
    static const struct {
        const char *group, *title;
    } titles[] = {
#define GROUP(name, title) {#name, title},
#include "conf/group.def"
#undef GROUP
    };

    for (size_t i = 0; i < ARRAY_SIZE(titles); i++)
        if (strcmp(titles[i].group, group) == 0)
            return titles[i].title;
    return group;
}
