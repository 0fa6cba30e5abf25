/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "edge/target.h"

#include <stdio.h>

static const struct scheme {
    const char *name;
    enum target_kind kind;
    bool mptcp;
} schemes[] = {
    {"quic", TARGET_QUIC, false}, {"tls", TARGET_TLS, false},
    {"tcp", TARGET_TCP, false},   {"mptcps", TARGET_TLS, true},
    {"mptcp", TARGET_TCP, true},
};

static bool take_scheme(struct slice *url, struct target *out)
{
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
        size_t n = strlen(schemes[i].name);
        if (url->n > n + 3 && !memcmp(url->p, schemes[i].name, n) &&
            !memcmp(url->p + n, "://", 3)) {
            out->kind = schemes[i].kind;
            out->mptcp = schemes[i].mptcp;
            *url = slice_of(url->p + n + 3, url->n - n - 3);
            return true;
        }
    }
    return false;
}

/* host, host:port, [v6], [v6]:port; what follows is left in *rest. */
static bool take_host(struct slice url, struct slice *host, struct slice *rest)
{
    const char *end;
    if (url.n && url.p[0] == '[') {
        end = memchr(url.p, ']', url.n);
        if (!end)
            return false;
        *host = slice_of(url.p + 1, (size_t)(end - url.p) - 1);
        end++;
    } else {
        end = memchr(url.p, ':', url.n);
        if (!end)
            end = url.p + url.n;
        *host = slice_of(url.p, (size_t)(end - url.p));
    }
    *rest = slice_of(end, url.n - (size_t)(end - url.p));
    return host->n > 0;
}

int target_parse(struct slice url, struct target *out, struct err *e)
{
    struct slice all = url, host, rest;
    int64_t port = TARGET_PORT_DEFAULT;
    *out = (struct target){0};
    if (!take_scheme(&url, out))
        return err_set(e, ERR_CONF,
                       "\"" SLICE_FMT "\" is no target: quic://host:port, "
                       "tls://, tcp://, mptcps:// or mptcp://",
                       SLICE_ARG(all));
    if (url.n && url.p[url.n - 1] == '/')
        url.n--;
    if (!take_host(url, &host, &rest) ||
        !slice_copy(host, out->host, sizeof out->host))
        return err_set(e, ERR_CONF, "\"" SLICE_FMT "\" names no host",
                       SLICE_ARG(all));
    if (rest.n && (rest.p[0] != ':' ||
                   !slice_to_i64(slice_of(rest.p + 1, rest.n - 1), &port) ||
                   port < 1 || port > 65535))
        return err_set(e, ERR_CONF,
                       "\"" SLICE_FMT "\": a port is a number from 1 to 65535",
                       SLICE_ARG(all));
    out->port = (int)port;
    return 0;
}

static const char *scheme_of(const struct target *t)
{
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++)
        if (schemes[i].kind == t->kind &&
            (schemes[i].mptcp == t->mptcp || t->kind == TARGET_QUIC))
            return schemes[i].name;
    must(false);
    return NULL;
}

void target_text(const struct target *t, char *buf, size_t cap)
{
    bool is_v6 = strchr(t->host, ':') != NULL;
    snprintf(buf, cap, "%s://%s%s%s:%d", scheme_of(t), is_v6 ? "[" : "",
             t->host, is_v6 ? "]" : "", t->port);
}
