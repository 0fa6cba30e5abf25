/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <ldap.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#include "auth/ldap_options.h"
#include "pool/external.h"

enum {
    WAIT_S = 10,       /* for the connection, and for each answer */
    ENTRIES_ASKED = 2, /* more than one is an error already */
};

static int fail(struct err *e, const char *what, int rc)
{
    return err_set(e, ERR_AUTH, "LDAP: %s: %s", what, ldap_err2string(rc));
}

static int open_connection(LDAP **out, const struct ldap_options *o,
                           struct err *e)
{
    int version = LDAP_VERSION3;
    struct timeval wait = {WAIT_S, 0};
    char *uris = ldap_options_uris(o);
    int rc = ldap_initialize(out, uris);
    free(uris);
    if (rc != LDAP_SUCCESS)
        return fail(e, "cannot begin", rc);
    ldap_set_option(*out, LDAP_OPT_PROTOCOL_VERSION, &version);
    ldap_set_option(*out, LDAP_OPT_NETWORK_TIMEOUT, &wait);
    ldap_set_option(*out, LDAP_OPT_TIMEOUT, &wait);
    if (!o->starts_tls)
        return 0;
    rc = ldap_start_tls_s(*out, NULL, NULL);
    return rc == LDAP_SUCCESS ? 0 : fail(e, "cannot start TLS", rc);
}

static int bind_as(LDAP *ldap, const char *dn, const char *password)
{
    struct berval secret = {strlen(password), (char *)(uintptr_t)password};
    return ldap_sasl_bind_s(ldap, dn, LDAP_SASL_SIMPLE, &secret, NULL, NULL,
                            NULL);
}

/* The one entry that the filter finds; its DN is LDAP's to free. */
static int find_dn(LDAP *ldap, const struct ldap_options *o, const char *filter,
                   char **dn, struct err *e)
{
    static const int scopes[] = {
        [LDAP_OPTION_BASE] = LDAP_SCOPE_BASE,
        [LDAP_OPTION_ONE] = LDAP_SCOPE_ONELEVEL,
        [LDAP_OPTION_SUB] = LDAP_SCOPE_SUBTREE,
    };
    char *no_attributes[] = {(char *)(uintptr_t)LDAP_NO_ATTRS, NULL};
    LDAPMessage *found = NULL;
    int rc = ldap_search_ext_s(ldap, o->base_dn, scopes[o->scope], filter,
                               no_attributes, 0, NULL, NULL, NULL,
                               ENTRIES_ASKED, &found);
    int n = found ? ldap_count_entries(ldap, found) : 0;
    if (rc != LDAP_SUCCESS && rc != LDAP_SIZELIMIT_EXCEEDED)
        rc = fail(e, "search failed", rc);
    else if (n != 1)
        rc = err_set(e, ERR_AUTH, "LDAP: the search found %s",
                     n ? "several entries" : "no such user");
    else if (!(*dn = ldap_get_dn(ldap, ldap_first_entry(ldap, found))))
        rc = err_set(e, ERR_AUTH, "LDAP: the entry has no name");
    else
        rc = 0;
    ldap_msgfree(found);
    return rc;
}

/* The DN to try the password with, from LDAP's memory. */
static int search(LDAP *ldap, const struct external_question *q,
                  const struct ldap_options *o, char **dn, struct err *e)
{
    char *filter = ldap_options_filter_for(o, slice_str(q->user));
    if (!filter)
        return err_set(e, ERR_AUTH,
                       "LDAP: the user's name has a character that a search "
                       "cannot have");
    int rc = bind_as(ldap, o->bind_dn ? o->bind_dn : "",
                     o->bind_password ? o->bind_password : "");
    rc = rc == LDAP_SUCCESS ? find_dn(ldap, o, filter, dn, e)
                            : fail(e, "cannot bind for the search", rc);
    free(filter);
    return rc;
}

static int check_with(LDAP *ldap, const char *dn, const char *password,
                      struct err *e)
{
    int rc = bind_as(ldap, dn, password);
    return rc == LDAP_SUCCESS ? 0 : fail(e, "login failed", rc);
}

/* On a connection of its own after a search: that one is bound already. */
static int check_found(const struct external_question *q,
                       const struct ldap_options *o, const char *dn,
                       struct err *e)
{
    LDAP *ldap = NULL;
    int rc = open_connection(&ldap, o, e);
    if (rc == 0)
        rc = check_with(ldap, dn, q->password, e);
    if (ldap)
        ldap_unbind_ext_s(ldap, NULL, NULL);
    return rc;
}

static int check_simple(LDAP *ldap, const struct external_question *q,
                        const struct ldap_options *o, struct err *e)
{
    const char *prefix = o->prefix ? o->prefix : "";
    const char *suffix = o->suffix ? o->suffix : "";
    size_t n = strlen(prefix) + strlen(q->user) + strlen(suffix) + 1;
    char *dn = mem_new(n);
    snprintf(dn, n, "%s%s%s", prefix, q->user, suffix);
    int rc = check_with(ldap, dn, q->password, e);
    free(dn);
    return rc;
}

int external_ask_ldap(const struct external_question *q,
                      const struct ldap_options *o, struct err *e)
{
    LDAP *ldap = NULL;
    char *dn = NULL;
    /* A server takes an empty password for no login at all, and agrees. */
    if (!*q->password)
        return err_set(e, ERR_AUTH, "LDAP: empty password");
    int rc = open_connection(&ldap, o, e);
    if (rc == 0 && !o->base_dn)
        rc = check_simple(ldap, q, o, e);
    else if (rc == 0)
        rc = search(ldap, q, o, &dn, e);
    if (ldap)
        ldap_unbind_ext_s(ldap, NULL, NULL);
    if (rc == 0 && o->base_dn)
        rc = check_found(q, o, dn, e);
    ldap_memfree(dn);
    return rc;
}
