/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The rules of auth_hba_file: which method a client must pass. Lines as
 * PostgreSQL's pg_hba.conf has them:
 *
 *   local      DATABASES USERS          METHOD [OPTIONS]
 *   host       DATABASES USERS ADDRESS  METHOD [OPTIONS]
 *   hostssl, hostnossl                  the same, with and without TLS
 *   hostquic                            the same, over QUIC (ours)
 *
 * QUIC matches host, hostssl and hostquic. The first line that fits decides.
 * Built once from the file's text, constant after that; any thread may read it
 * until its owner frees it. */
#ifndef AUTH_HBA_H
#define AUTH_HBA_H

#include <netinet/in.h>

#include "auth/auth_client.h"
#include "auth/ident.h"

struct hba;

/* What parsing needs from outside. */
struct hba_source {
    /* The text of an @file, from malloc. */
    int (*read_file)(void *arg, const char *path, char **text, size_t *n,
                     struct err *e);
    /* A line that is not in force, or reads otherwise than it looks; the text
     * is "file:line: why". May be NULL. */
    void (*warn)(void *arg, const char *text);
    void *arg;
    const struct ident *ident; /* for map=; NULL: no maps */
};

/* As in PgBouncer, a line that cannot be understood is skipped with a warning;
 * but one that says reject is an error, since skipping it would let in whom it
 * was written against. */
NODISCARD int hba_parse(struct slice text, const char *file,
                        const struct hba_source *src, struct hba **out,
                        struct err *e);
void hba_free(struct hba *h); /* NULL is fine */

/* How and from where a client comes. */
enum hba_via { HBA_UNIX, HBA_PLAIN, HBA_TLS, HBA_QUIC };

struct hba_client {
    enum hba_via via;
    const struct sockaddr *addr; /* IPv4 or IPv6, not mapped; not for Unix */
    bool is_replication;         /* physical: only "replication" fits */
    struct slice database, user;
};

struct hba_rule {
    enum auth_method method; /* never ANY, HBA */
    int line;
    const struct ident_map *map; /* NULL: no map= */
    const char *options;         /* ldap, pam: "key=value" lines; or NULL */
};

/* NULL: no line fits. h may be NULL. The rule lives as long as h. */
const struct hba_rule *hba_match(const struct hba *h,
                                 const struct hba_client *c);

size_t hba_count(const struct hba *h);

#endif
