/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/ldap_options.h"

#include <stdio.h>
#include <stdlib.h>

#include "auth/rule_lexer.h"

enum {
    PORT_LDAP = 389,
    PORT_LDAPS = 636,
    SERVERS_MAX = 4096, /* bytes of ldapserver */
};

void ldap_options_fini(struct ldap_options *o)
{
    if (o->bind_password)
        mem_wipe(o->bind_password, strlen(o->bind_password));
    free(o->server);
    free(o->prefix);
    free(o->suffix);
    free(o->base_dn);
    free(o->bind_dn);
    free(o->bind_password);
    free(o->attribute);
    free(o->filter);
    *o = (struct ldap_options){0};
}

static void put(char **to, struct slice value)
{
    if (*to)
        mem_wipe(*to, strlen(*to));
    free(*to);
    *to = mem_strndup(value.p, value.n);
}

/* --- ldapurl ----------------------------------------------------------- */

static int digit_of(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* %xx made plain, in a new string. */
static char *unescape(struct slice s)
{
    char *out = mem_new(s.n + 1), *to = out;
    for (size_t i = 0; i < s.n; i++) {
        int high = s.p[i] == '%' && i + 2 < s.n ? digit_of(s.p[i + 1]) : -1;
        int low = high >= 0 ? digit_of(s.p[i + 2]) : -1;
        if (low > 0 || (low == 0 && high > 0)) {
            *to++ = (char)(high * 16 + low);
            i += 2;
        } else {
            *to++ = s.p[i];
        }
    }
    return out;
}

/* Up to the next mark, or the rest. */
static struct slice cut(struct slice *rest, char mark)
{
    const char *at = rest->n ? memchr(rest->p, mark, rest->n) : NULL;
    size_t n = at ? (size_t)(at - rest->p) : rest->n;
    struct slice head = slice_of(rest->p, n);
    n = MIN(n + 1, rest->n);
    *rest = slice_of(rest->p + n, rest->n - n);
    return head;
}

static bool read_port(struct slice text, int *port)
{
    int64_t n;
    if (!slice_to_i64(text, &n) || n < 1 || n > 65535)
        return false;
    *port = (int)n;
    return true;
}

static bool read_scope(struct ldap_options *o, struct slice word)
{
    static const char *const words[] = {"base", "one", "sub"};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (slice_is_nocase(word, words[i])) {
            o->scope = (enum ldap_scope)i;
            return true;
        }
    }
    return word.n == 0;
}

/* scheme://host:port/basedn?attribute?scope?filter */
static bool read_url(struct ldap_options *o, struct slice url)
{
    struct slice scheme = cut(&url, ':');
    o->is_ldaps = slice_is_nocase(scheme, "ldaps");
    if ((!o->is_ldaps && !slice_is_nocase(scheme, "ldap")) || url.n < 2 ||
        memcmp(url.p, "//", 2) != 0)
        return false;
    url = slice_of(url.p + 2, url.n - 2);
    struct slice host = cut(&url, '/');
    const char *colon = host.p ? memrchr(host.p, ':', host.n) : NULL;
    const char *bracket = host.p ? memrchr(host.p, ']', host.n) : NULL;
    if (colon && (!bracket || colon > bracket)) {
        size_t n = (size_t)(colon - host.p);
        if (!read_port(slice_of(colon + 1, host.n - n - 1), &o->port))
            return false;
        host.n = n;
    }
    if (host.n)
        put(&o->server, host);
    struct slice dn = cut(&url, '?'), attributes = cut(&url, '?');
    struct slice scope = cut(&url, '?'), filter = cut(&url, '?');
    struct slice attribute = cut(&attributes, ',');
    free(o->base_dn);
    o->base_dn = dn.n ? unescape(dn) : NULL;
    if (attribute.n)
        put(&o->attribute, attribute);
    if (filter.n) {
        free(o->filter);
        o->filter = unescape(filter);
    }
    return read_scope(o, scope);
}

/* --- one option -------------------------------------------------------- */

static char **field_of(struct ldap_options *o, struct slice name)
{
    const struct {
        const char *name;
        char **field;
    } texts[] = {
        {"ldapserver", &o->server},
        {"ldapprefix", &o->prefix},
        {"ldapsuffix", &o->suffix},
        {"ldapbasedn", &o->base_dn},
        {"ldapbinddn", &o->bind_dn},
        {"ldapbindpasswd", &o->bind_password},
        {"ldapsearchattribute", &o->attribute},
        {"ldapsearchfilter", &o->filter},
    };
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (slice_is(name, texts[i].name))
            return texts[i].field;
    return NULL;
}

static int bad_value(struct err *e, const char *name, const char *expected)
{
    return err_set(e, ERR_CONF, "%s: expected %s", name, expected);
}

static int read_option(struct ldap_options *o, struct slice word, struct err *e)
{
    struct slice value = word, name = cut(&value, '=');
    char **field = field_of(o, name);
    if (field) {
        put(field, value);
    } else if (slice_is(name, "ldaptls")) {
        o->starts_tls = slice_is(value, "1");
    } else if (slice_is(name, "ldapscheme")) {
        o->is_ldaps = slice_is(value, "ldaps");
        if (!o->is_ldaps && !slice_is(value, "ldap"))
            return bad_value(e, "ldapscheme", "ldap or ldaps");
    } else if (slice_is(name, "ldapport")) {
        if (!read_port(value, &o->port))
            return bad_value(e, "ldapport", "1 to 65535");
    } else if (slice_is(name, "ldapurl")) {
        if (!read_url(o, value))
            return bad_value(e, "ldapurl",
                             "ldap://host:port/basedn?attribute?scope?filter");
    } else {
        return err_set(e, ERR_CONF, "unknown LDAP option \"%.*s\"",
                       (int)MIN(name.n, (size_t)64), name.p);
    }
    return 0;
}

static int verify(const struct ldap_options *o, struct err *e)
{
    bool is_simple = o->prefix || o->suffix;
    if (is_simple && (o->base_dn || o->bind_dn || o->bind_password ||
                      o->attribute || o->filter))
        return err_set(e, ERR_CONF,
                       "ldapprefix and ldapsuffix do not go with the options "
                       "of a search");
    if (!is_simple && !o->base_dn)
        return err_set(e, ERR_CONF,
                       "LDAP needs ldapbasedn, ldapprefix or ldapsuffix");
    if (o->attribute && o->filter)
        return err_set(e, ERR_CONF,
                       "ldapsearchattribute does not go with "
                       "ldapsearchfilter");
    if (!o->server)
        return err_set(e, ERR_CONF, "LDAP needs ldapserver or ldapurl");
    return 0;
}

/* --- the whole --------------------------------------------------------- */

int ldap_options_parse(const char *lines, struct ldap_options *out,
                       struct err *e)
{
    struct slice rest = slice_str(lines ? lines : "");
    int rc = 0;
    *out = (struct ldap_options){.scope = LDAP_OPTION_SUB};
    while (rc == 0 && rest.n)
        rc = read_option(out, cut(&rest, '\n'), e);
    if (rc == 0)
        rc = verify(out, e);
    if (rc)
        ldap_options_fini(out);
    return rc;
}

int ldap_options_parse_words(const char *text, struct ldap_options *out,
                             struct err *e)
{
    struct rule_lexer l;
    int rc = 0;
    *out = (struct ldap_options){.scope = LDAP_OPTION_SUB};
    rule_lexer_init(&l, slice_str(text));
    bool has_word = rule_lexer_next_line(&l);
    for (; rc == 0 && has_word && l.token != RULE_END_OF_LINE;
         rule_lexer_next(&l)) {
        if (l.token == RULE_BAD)
            rc = err_set(e, ERR_CONF, "%s", l.bad);
        else if (l.token == RULE_WORD)
            rc = read_option(out, slice_of(l.word, l.word_n), e);
    }
    mem_wipe(&l, sizeof l); /* it may hold a password */
    if (rc == 0)
        rc = verify(out, e);
    if (rc)
        ldap_options_fini(out);
    return rc;
}

/* --- use --------------------------------------------------------------- */

char *ldap_options_filter_for(const struct ldap_options *o, struct slice user)
{
    static const char mark[] = "$username";
    size_t n = 0, mark_n = sizeof mark - 1;
    for (size_t i = 0; i < user.n; i++)
        if (!user.p[i] || strchr("*()\\/", user.p[i]))
            return NULL;
    if (!o->filter) {
        const char *attribute = o->attribute ? o->attribute : "uid";
        size_t room = strlen(attribute) + user.n + 4;
        char *out = mem_new(room);
        snprintf(out, room, "(%s=%.*s)", attribute, (int)user.n, user.p);
        return out;
    }
    /* Each mark may become as long as the name. */
    char *out = mem_new(strlen(o->filter) * (user.n + 1) + 1);
    for (const char *p = o->filter; *p;) {
        if (!strncmp(p, mark, mark_n)) {
            memcpy(out + n, user.p, user.n);
            n += user.n;
            p += mark_n;
        } else {
            out[n++] = *p++;
        }
    }
    return out;
}

char *ldap_options_uris(const struct ldap_options *o)
{
    char text[SERVERS_MAX * 2];
    size_t at = 0;
    struct slice rest = slice_str(o->server ? o->server : "");
    int port = o->port ? o->port : o->is_ldaps ? PORT_LDAPS : PORT_LDAP;
    text[0] = 0;
    while (rest.n) {
        struct slice host = cut(&rest, ' ');
        if (!host.n)
            continue;
        int n = snprintf(text + at, sizeof text - at, "%s%s://%.*s:%d",
                         at ? " " : "", o->is_ldaps ? "ldaps" : "ldap",
                         (int)host.n, host.p, port);
        if (n < 0 || (size_t)n >= sizeof text - at)
            return NULL;
        at += (size_t)n;
    }
    return at ? mem_strdup(text) : NULL;
}
