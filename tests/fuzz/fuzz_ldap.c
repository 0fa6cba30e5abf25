/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Options of LDAP, as words and as lines; the input up to the first NUL is the
 * text, the rest a user's name. */
#include "auth/ldap_options.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(struct ldap_options *o, struct slice user)
{
    must(o->server && (o->base_dn || o->prefix || o->suffix));
    free(ldap_options_uris(o));
    free(ldap_options_filter_for(o, user));
    ldap_options_fini(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    size_t n = strlen(text);
    struct slice user = slice_of(text + n, size - n);
    struct ldap_options o;
    struct err e = {0};
    if (ldap_options_parse_words(text, &o, &e) == 0)
        use(&o, user);
    else
        must(e.text[0]);
    if (ldap_options_parse(text, &o, &e) == 0)
        use(&o, user);
    free(text);
    return 0;
}
