/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* HBA and ident files. The input up to the first line "--" is the ident file,
 * the rest the HBA file; @self is the HBA file again. */
#include "auth/hba.h"

#include <netinet/in.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_warn(void *arg, const char *text)
{
    must(strlen(text) < ERR_TEXT_MAX && !strchr(text, '\n'));
}

static int on_read(void *arg, const char *path, char **text, size_t *n,
                   struct err *e)
{
    const struct slice *self = arg;
    if (strcmp(path, "self") != 0)
        return err_set(e, ERR_CONF, "no such file");
    *n = self->n;
    *text = mem_new(self->n + 1);
    if (self->n)
        memcpy(*text, self->p, self->n);
    return 0;
}

static void match_all(const struct hba *h)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    for (int via = HBA_UNIX; via <= HBA_QUIC; via++) {
        struct hba_client c = {
            .via = (enum hba_via)via,
            .is_replication = via == HBA_TLS,
            .addr = via == HBA_PLAIN ? (const struct sockaddr *)&in
                                     : (const struct sockaddr *)&in6,
            .database = slice_str("db1"),
            .user = slice_str("u1"),
        };
        const struct hba_rule *r = hba_match(h, &c);
        if (!r)
            continue;
        must(r->line > 0 && r->method != AUTH_METHOD_HBA);
        if (r->map)
            (void)ident_map_allows(r->map, slice_str("sys1"), c.user);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice ident_text = slice_of(data, size), hba_text = {"", 0};
    const char *mark = size ? memmem(data, size, "\n--\n", 4) : NULL;
    struct ident *ident = NULL;
    struct hba *hba = NULL;
    struct err e = {0};
    if (size > 4096) /* @self reads it up to a thousand times */
        return 0;
    if (mark) {
        ident_text.n = (size_t)(mark - ident_text.p);
        hba_text = slice_of(mark + 4, size - ident_text.n - 4);
    }
    int rc = ident_parse(ident_text, "ident", on_warn, NULL, &ident, &e);
    must((rc == 0) == (ident != NULL) && (rc == 0) == (e.text[0] == 0));
    e = (struct err){0};
    struct hba_source src = {on_read, on_warn, &hba_text, ident};
    rc = hba_parse(hba_text, "hba", &src, &hba, &e);
    must((rc == 0) == (hba != NULL) && (rc == 0) == (e.text[0] == 0));
    match_all(hba);
    hba_free(hba);
    ident_free(ident);
    return 0;
}
