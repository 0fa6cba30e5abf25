/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* How to ask an LDAP server for a password: the options of an HBA line of the
 * method ldap, and of auth_ldap_options. Two ways, as in PostgreSQL:
 *
 *   simple bind    ldapprefix and ldapsuffix around the user's name
 *   search + bind  ldapbasedn, and perhaps ldapbinddn, ldapbindpasswd,
 *                  ldapsearchattribute or ldapsearchfilter
 *
 * ldapurl gives several of them in one. Pure; any thread. */
#ifndef AUTH_LDAP_OPTIONS_H
#define AUTH_LDAP_OPTIONS_H

#include "base/err.h"
#include "base/slice.h"

enum ldap_scope { LDAP_OPTION_BASE, LDAP_OPTION_ONE, LDAP_OPTION_SUB };

struct ldap_options {
    bool starts_tls; /* ldaptls=1 */
    bool is_ldaps;   /* ldapscheme=ldaps */
    int port;        /* 0: that of the scheme */
    char *server;    /* several with blanks; NULL: not set, here and below */
    char *prefix, *suffix;
    char *base_dn, *bind_dn, *bind_password;
    char *attribute, *filter;
    enum ldap_scope scope;
};

/* Lines of name=value, as struct hba_rule has them. The error names the option
 * and never shows ldapbindpasswd. On failure *out is empty. */
NODISCARD int ldap_options_parse(const char *lines, struct ldap_options *out,
                                 struct err *e);

/* The same from words as they stand in an HBA line. */
NODISCARD int ldap_options_parse_words(const char *text,
                                       struct ldap_options *out, struct err *e);
void ldap_options_fini(struct ldap_options *o); /* wipes */

/* The filter of a search for user, from malloc; NULL when the name has what
 * would change its meaning. */
char *ldap_options_filter_for(const struct ldap_options *o, struct slice user);

/* "ldap://host:port ..." for every server, from malloc; NULL when none is
 * set. */
char *ldap_options_uris(const struct ldap_options *o);

#endif
