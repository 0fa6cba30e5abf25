/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/hba.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "auth/pattern.h"
#include "auth/rule_lexer.h"

enum {
    FILE_DEPTH_MAX = 8,
    FILES_MAX = 1000,
    NAMES_MAX = 1000000, /* of all rules */
    RULES_MAX = 100000,
    PATH_MAX_BYTES = 1024,
    OPTIONS_MAX = 8192,
};

enum conn_type {
    CONN_LOCAL,
    CONN_HOST,
    CONN_HOSTSSL,
    CONN_HOSTNOSSL,
    CONN_HOSTQUIC,
};

enum name_kind {
    NAME_ALL,
    NAME_SAMEUSER,
    NAME_REPLICATION,
    NAME_EXACT,
    NAME_PATTERN,
};

struct name {
    enum name_kind kind;
    char *text;
    struct pattern *re;
};

struct names {
    struct name *v;
    size_t n, room;
};

struct rule {
    struct hba_rule shown; /* first: a rule is what it shows */
    enum conn_type type;
    struct names databases, users;
    int family; /* AF_INET, AF_INET6; AF_UNSPEC: every address */
    uint8_t base[16], mask[16];
    bool has_host_bits; /* base has bits that mask leaves out */
    char *options;
};

struct hba {
    struct rule **rules;
    size_t n, room;
};

struct reader {
    struct rule_lexer lex;
    const char *file;
    const struct hba_source *src;
    size_t n_names, n_files;
};

/* --- memory ------------------------------------------------------------ */

static void free_names(struct names *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->v[i].text);
        pattern_free(s->v[i].re);
    }
    free(s->v);
}

static void free_rule(struct rule *r)
{
    free_names(&r->databases);
    free_names(&r->users);
    if (r->options)
        mem_wipe(r->options, strlen(r->options));
    free(r->options);
    free(r);
}

void hba_free(struct hba *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n; i++)
        free_rule(h->rules[i]);
    free(h->rules);
    free(h);
}

/* Room for one more element. */
static void *grow(void *v, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return v;
    size_t more = *room ? *room * 2 : 4;
    void *wider = mem_new_array(more, size);
    if (n)
        memcpy(wider, v, n * size);
    free(v);
    *room = more;
    return wider;
}

/* --- names ------------------------------------------------------------- */

static int add_name(struct reader *r, struct names *to, enum name_kind kind,
                    const char *text, struct err *e)
{
    struct name n = {.kind = kind};
    if (r->n_names++ == NAMES_MAX)
        return err_set(e, ERR_CONF, "more than %d names", NAMES_MAX);
    if (kind == NAME_PATTERN) {
        int rc = pattern_new(&n.re, text, e);
        if (rc)
            return rc;
    } else if (kind == NAME_EXACT) {
        n.text = mem_strdup(text);
    }
    to->v = grow(to->v, to->n, &to->room, sizeof *to->v);
    to->v[to->n++] = n;
    return 0;
}

/* PostgreSQL's words that ask for what only the server knows. */
static int refuse_membership(const char *word, struct err *e)
{
    return err_set(e, ERR_CONF,
                   "%.64s: a pooler does not know which roles are members of "
                   "which; name them",
                   word);
}

static int read_name_file(struct reader *r, struct names *to, bool is_database,
                          const char *name, int depth, struct err *e);

/* The word at hand; file is the one that it stands in. */
static int read_name(struct reader *r, struct rule_lexer *l, const char *file,
                     struct names *to, bool is_database, int depth,
                     struct err *e)
{
    if (l->is_quoted)
        return add_name(r, to, NAME_EXACT, l->word, e);
    if (rule_lexer_is(l, "all"))
        return add_name(r, to, NAME_ALL, NULL, e);
    if (is_database && rule_lexer_is(l, "sameuser"))
        return add_name(r, to, NAME_SAMEUSER, NULL, e);
    if (is_database && rule_lexer_is(l, "replication"))
        return add_name(r, to, NAME_REPLICATION, NULL, e);
    if (l->word[0] == '+' || (is_database && (rule_lexer_is(l, "samerole") ||
                                              rule_lexer_is(l, "samegroup"))))
        return refuse_membership(l->word, e);
    if (l->word[0] == '/')
        return add_name(r, to, NAME_PATTERN, l->word + 1, e);
    if (l->word[0] == '@' && l->word[1]) {
        const char *outer = r->file;
        r->file = file;
        int rc = read_name_file(r, to, is_database, l->word + 1, depth, e);
        r->file = outer;
        return rc;
    }
    return add_name(r, to, NAME_EXACT, l->word, e);
}

/* A name relative to the file that it stands in. */
static bool join_path(const char *in_file, const char *name,
                      char out[PATH_MAX_BYTES])
{
    const char *slash = strrchr(in_file, '/');
    int folder =
        name[0] == '/' || !slash ? 0 : (int)MIN(slash - in_file + 1, 4096);
    int n = snprintf(out, PATH_MAX_BYTES, "%.*s%s", folder, in_file, name);
    return n > 0 && n < PATH_MAX_BYTES;
}

/* Names separated by blanks, commas and line ends. */
static int read_names_of(struct reader *r, struct slice text, const char *path,
                         struct names *to, bool is_database, int depth,
                         struct err *e)
{
    struct rule_lexer l;
    if (text.n && memchr(text.p, 0, text.n))
        return err_set(e, ERR_CONF, "%s: has a zero byte; it must be text",
                       path);
    rule_lexer_init(&l, text);
    while (rule_lexer_next_line(&l)) {
        for (; l.token != RULE_END_OF_LINE; rule_lexer_next(&l)) {
            int rc = 0;
            if (l.token == RULE_BAD)
                rc = err_set(e, ERR_CONF, "%s", l.bad);
            else if (l.token == RULE_WORD)
                rc = read_name(r, &l, path, to, is_database, depth, e);
            if (rc)
                return err_wrap(e, "%s:%d", path, l.first_line);
        }
    }
    return 0;
}

static int read_name_file(struct reader *r, struct names *to, bool is_database,
                          const char *name, int depth, struct err *e)
{
    char path[PATH_MAX_BYTES], *text;
    size_t n;
    if (depth == FILE_DEPTH_MAX || r->n_files++ == FILES_MAX)
        return err_set(e, ERR_CONF,
                       "@%.64s: too many files, or they name each other", name);
    if (!join_path(r->file, name, path))
        return err_set(e, ERR_CONF, "@%.64s...: the path is too long", name);
    int rc = r->src->read_file
                 ? r->src->read_file(r->src->arg, path, &text, &n, e)
                 : err_set(e, ERR_CONF, "@%.64s: no files here", name);
    if (rc)
        return rc;
    rc = read_names_of(r, slice_of(text, n), path, to, is_database, depth + 1,
                       e);
    free(text);
    return rc;
}

static int expected(struct reader *r, const char *what, struct err *e)
{
    if (r->lex.token == RULE_BAD)
        return err_set(e, ERR_CONF, "%s", r->lex.bad);
    if (r->lex.token == RULE_WORD)
        return err_set(e, ERR_CONF, "expected %s, not \"%.64s\"", what,
                       r->lex.word);
    return err_set(e, ERR_CONF, "expected %s", what);
}

static int read_names(struct reader *r, struct names *to, bool is_database,
                      struct err *e)
{
    for (;;) {
        if (r->lex.token != RULE_WORD)
            return expected(r, is_database ? "a database" : "a user", e);
        int rc = read_name(r, &r->lex, r->file, to, is_database, 0, e);
        if (rc)
            return rc;
        rule_lexer_next(&r->lex);
        if (r->lex.token != RULE_COMMA)
            return 0;
        rule_lexer_next(&r->lex);
    }
}

/* --- addresses --------------------------------------------------------- */

static size_t bytes_of(int family)
{
    return family == AF_INET ? 4 : 16;
}

static bool read_ip(struct rule *r, const char *text)
{
    r->family = AF_INET6;
    if (inet_pton(AF_INET6, text, r->base) == 1)
        return true;
    r->family = AF_INET;
    return inet_pton(AF_INET, text, r->base) == 1;
}

static bool read_bits(struct rule *r, const char *text)
{
    int64_t bits;
    if (!slice_to_i64(slice_str(text), &bits) || bits < 0 ||
        bits > (int64_t)bytes_of(r->family) * 8 || *text == '+')
        return false;
    for (int i = 0; i < bits; i++)
        r->mask[i / 8] |= (uint8_t)(0x80 >> i % 8);
    return true;
}

static bool has_host_bits(const struct rule *r)
{
    uint8_t bits = 0;
    for (size_t i = 0; i < bytes_of(r->family); i++)
        bits |= (uint8_t)(r->base[i] & ~r->mask[i]);
    return bits != 0;
}

static int read_mask(struct reader *r, struct rule *rule, struct err *e)
{
    rule_lexer_next(&r->lex);
    if (r->lex.token != RULE_WORD ||
        inet_pton(rule->family, r->lex.word, rule->mask) != 1)
        return expected(r, "a mask of the address (or address/bits)", e);
    return 0;
}

static int read_address(struct reader *r, struct rule *rule, struct err *e)
{
    char text[RULE_WORD_MAX + 1];
    if (r->lex.token != RULE_WORD)
        return expected(r, "an address", e);
    if (rule_lexer_is(&r->lex, "all")) {
        rule_lexer_next(&r->lex);
        return 0;
    }
    memcpy(text, r->lex.word, r->lex.word_n + 1);
    char *slash = strchr(text, '/');
    if (slash)
        *slash = 0;
    if (!read_ip(rule, text))
        return expected(r,
                        "an IPv4 or IPv6 address (host names, samehost and "
                        "samenet are not known here)",
                        e);
    if (slash && !read_bits(rule, slash + 1))
        return expected(r, "a number of bits behind the address", e);
    int rc = slash ? 0 : read_mask(r, rule, e);
    if (rc)
        return rc;
    rule->has_host_bits = has_host_bits(rule);
    rule_lexer_next(&r->lex);
    return 0;
}

/* --- method and options ------------------------------------------------ */

static int read_method(struct reader *r, struct rule *rule, struct err *e)
{
    static const struct {
        const char *word;
        enum auth_method method;
    } known[] = {
        {"trust", AUTH_METHOD_TRUST},    {"reject", AUTH_METHOD_REJECT},
        {"md5", AUTH_METHOD_MD5},        {"scram-sha-256", AUTH_METHOD_SCRAM},
        {"password", AUTH_METHOD_PLAIN}, {"peer", AUTH_METHOD_PEER},
        {"cert", AUTH_METHOD_CERT},      {"ldap", AUTH_METHOD_LDAP},
        {"pam", AUTH_METHOD_PAM},
    };
    for (size_t i = 0; i < ARRAY_SIZE(known); i++) {
        if (rule_lexer_is(&r->lex, known[i].word)) {
            rule->shown.method = known[i].method;
            rule_lexer_next(&r->lex);
            return 0;
        }
    }
    return expected(r,
                    "a method (trust, reject, md5, scram-sha-256, password, "
                    "peer, cert, ldap, pam)",
                    e);
}

static int read_map(struct reader *r, struct rule *rule, const char *name,
                    struct err *e)
{
    rule->shown.map = ident_find(r->src->ident, slice_str(name));
    if (!rule->shown.map)
        return err_set(e, ERR_CONF,
                       "map=%.64s: there is no such map in auth_ident_file",
                       name);
    return 0;
}

static int add_option(struct rule *rule, const char *word, struct err *e)
{
    size_t have = rule->options ? strlen(rule->options) : 0;
    size_t n = strlen(word);
    if (have + n + 2 > OPTIONS_MAX)
        return err_set(e, ERR_CONF, "the options are too long");
    char *more = mem_new(have + n + 2);
    if (have)
        memcpy(more, rule->options, have);
    memcpy(more + have, word, n);
    more[have + n] = '\n';
    if (have)
        mem_wipe(rule->options, have);
    free(rule->options);
    rule->options = more;
    rule->shown.options = more;
    return 0;
}

static int read_options(struct reader *r, struct rule *rule, struct err *e)
{
    bool takes_more = rule->shown.method == AUTH_METHOD_LDAP ||
                      rule->shown.method == AUTH_METHOD_PAM;
    for (; r->lex.token != RULE_END_OF_LINE; rule_lexer_next(&r->lex)) {
        int rc = 0;
        if (r->lex.token == RULE_COMMA && takes_more)
            continue;
        if (r->lex.token != RULE_WORD)
            rc = expected(r, "name=value", e);
        else if (!strncmp(r->lex.word, "map=", 4))
            rc = read_map(r, rule, r->lex.word + 4, e);
        else if (takes_more && strchr(r->lex.word, '='))
            rc = add_option(rule, r->lex.word, e);
        else
            rc = expected(r, "no option but map=", e);
        if (rc)
            return rc;
    }
    return 0;
}

/* --- lines ------------------------------------------------------------- */

static int read_type(struct reader *r, struct rule *rule, struct err *e)
{
    static const char *const words[] = {
        [CONN_LOCAL] = "local",       [CONN_HOST] = "host",
        [CONN_HOSTSSL] = "hostssl",   [CONN_HOSTNOSSL] = "hostnossl",
        [CONN_HOSTQUIC] = "hostquic",
    };
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (rule_lexer_is(&r->lex, words[i])) {
            rule->type = (enum conn_type)i;
            rule_lexer_next(&r->lex);
            return 0;
        }
    }
    return expected(r, "local, host, hostssl, hostnossl or hostquic", e);
}

static int read_rule(struct reader *r, struct rule *rule, struct err *e)
{
    int rc = read_type(r, rule, e);
    if (rc == 0)
        rc = read_names(r, &rule->databases, true, e);
    if (rc == 0)
        rc = read_names(r, &rule->users, false, e);
    if (rc == 0 && rule->type != CONN_LOCAL)
        rc = read_address(r, rule, e);
    if (rc == 0)
        rc = read_method(r, rule, e);
    if (rc == 0)
        rc = read_options(r, rule, e);
    return rc;
}

static void warn(struct reader *r, const char *text)
{
    if (r->src->warn)
        r->src->warn(r->src->arg, text);
}

/* Lines that hold, but hardly as they were meant. */
static void look_again(struct reader *r, const struct rule *rule)
{
    struct err e;
    const char *what = NULL;
    if (rule->shown.method == AUTH_METHOD_PEER && rule->type != CONN_LOCAL)
        what = "peer works for local only: these logins will fail";
    else if (rule->shown.method == AUTH_METHOD_CERT &&
             (rule->type == CONN_LOCAL || rule->type == CONN_HOSTNOSSL))
        what = "cert works over TLS only: these logins will fail";
    else if (rule->has_host_bits && rule->shown.method == AUTH_METHOD_REJECT)
        what = "the address has bits that its mask leaves out: the whole "
               "network is rejected";
    else if (rule->has_host_bits)
        what = "the address has bits that its mask leaves out: the line fits "
               "nobody";
    if (!what)
        return;
    err_set(&e, ERR_CONF, "%s:%d: %s", r->file, rule->shown.line, what);
    warn(r, e.text);
}

/* Whether the line that begins here says reject. */
static bool says_reject(struct slice text, const char *start)
{
    struct rule_lexer l;
    rule_lexer_init(&l, slice_of(start, (size_t)(text.p + text.n - start)));
    if (!rule_lexer_next_line(&l))
        return false;
    for (; l.token == RULE_WORD || l.token == RULE_COMMA; rule_lexer_next(&l))
        if (rule_lexer_is(&l, "reject"))
            return true;
    return false;
}

static int read_line(struct reader *r, struct hba *h, struct err *e)
{
    struct rule *rule = mem_new(sizeof *rule);
    int rc = h->n == RULES_MAX
                 ? err_set(e, ERR_CONF, "more than %d rules", RULES_MAX)
                 : read_rule(r, rule, e);
    if (rc) {
        free_rule(rule);
        return err_wrap(e, "%s:%d", r->file, r->lex.first_line);
    }
    rule->shown.line = r->lex.first_line;
    look_again(r, rule);
    h->rules = grow(h->rules, h->n, &h->room, sizeof *h->rules);
    h->rules[h->n++] = rule;
    return 0;
}

static int read_all(struct reader *r, struct slice text, struct hba *h,
                    struct err *e)
{
    struct err bad;
    while (rule_lexer_next_line(&r->lex)) {
        if (!read_line(r, h, &bad))
            continue;
        if (says_reject(text, r->lex.line_start))
            return err_set(e, ERR_CONF,
                           "%s; a line that rejects is not skipped", bad.text);
        size_t n = strlen(bad.text);
        snprintf(bad.text + n, sizeof bad.text - n, "; line skipped");
        warn(r, bad.text);
    }
    return 0;
}

int hba_parse(struct slice text, const char *file, const struct hba_source *src,
              struct hba **out, struct err *e)
{
    struct reader r = {.file = file, .src = src};
    *out = NULL;
    if (text.n && memchr(text.p, 0, text.n))
        return err_set(e, ERR_CONF, "%s: has a zero byte; it must be text",
                       file);
    struct hba *h = mem_new(sizeof *h);
    rule_lexer_init(&r.lex, text);
    int rc = read_all(&r, text, h, e);
    if (rc) {
        hba_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

size_t hba_count(const struct hba *h)
{
    return h ? h->n : 0;
}

/* --- matching ---------------------------------------------------------- */

static bool fits_type(const struct rule *r, enum hba_via via)
{
    switch (r->type) {
    case CONN_LOCAL:
        return via == HBA_UNIX;
    case CONN_HOST:
        return via != HBA_UNIX;
    case CONN_HOSTSSL:
        return via == HBA_TLS || via == HBA_QUIC;
    case CONN_HOSTNOSSL:
        return via == HBA_PLAIN;
    case CONN_HOSTQUIC:
        return via == HBA_QUIC;
    }
    return false;
}

static const uint8_t *bytes_of_addr(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (const uint8_t *)&((const struct sockaddr_in *)(const void *)a)
            ->sin_addr;
    return (const uint8_t *)&((const struct sockaddr_in6 *)(const void *)a)
        ->sin6_addr;
}

/* An address with bits beyond its mask fits nobody in PgBouncer, the network in
 * PostgreSQL: it must not let in whom either keeps out. */
static bool fits_address(const struct rule *r, const struct sockaddr *a)
{
    if (r->type == CONN_LOCAL || r->family == AF_UNSPEC)
        return true;
    if (!a || a->sa_family != r->family ||
        (r->has_host_bits && r->shown.method != AUTH_METHOD_REJECT))
        return false;
    const uint8_t *at = bytes_of_addr(a);
    uint8_t differ = 0;
    for (size_t i = 0; i < bytes_of(r->family); i++)
        differ |= (uint8_t)((at[i] ^ r->base[i]) & r->mask[i]);
    return differ == 0;
}

static bool fits_name(const struct name *n, const struct hba_client *c,
                      struct slice asked)
{
    switch (n->kind) {
    case NAME_ALL:
        return true;
    case NAME_SAMEUSER:
        return slice_eq(c->database, c->user);
    case NAME_REPLICATION:
        return false;
    case NAME_EXACT:
        return slice_is(asked, n->text);
    case NAME_PATTERN:
        return pattern_match(n->re, asked, NULL);
    }
    return false;
}

static bool fits_any(const struct names *s, const struct hba_client *c,
                     struct slice asked)
{
    for (size_t i = 0; i < s->n; i++)
        if (fits_name(&s->v[i], c, asked))
            return true;
    return false;
}

static bool has_replication(const struct names *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].kind == NAME_REPLICATION)
            return true;
    return false;
}

static bool fits(const struct rule *r, const struct hba_client *c)
{
    if (!fits_type(r, c->via) || !fits_address(r, c->addr))
        return false;
    if (c->is_replication ? !has_replication(&r->databases)
                          : !fits_any(&r->databases, c, c->database))
        return false;
    return fits_any(&r->users, c, c->user);
}

const struct hba_rule *hba_match(const struct hba *h,
                                 const struct hba_client *c)
{
    for (size_t i = 0; i < hba_count(h); i++)
        if (fits(h->rules[i], c))
            return &h->rules[i]->shown;
    return NULL;
}
