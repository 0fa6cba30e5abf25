/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/external.h"

int external_ask_pam(const struct external_question *q, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "pam is not supported by this build");
}
