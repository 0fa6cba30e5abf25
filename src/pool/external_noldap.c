/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/external.h"

int external_ask_ldap(const struct external_question *q,
                      const struct ldap_options *o, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "ldap is not supported by this build");
}
