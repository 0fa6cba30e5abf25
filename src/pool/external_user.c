/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <pwd.h>
#include <stdlib.h>

#include "base/slice.h"
#include "pool/external.h"

enum { ENTRY_BYTES = 65536 };

int external_user_name(uid_t uid, char out[EXTERNAL_NAME_MAX], struct err *e)
{
    struct passwd entry, *found = NULL;
    char *buf = mem_new(ENTRY_BYTES);
    int cause = getpwuid_r(uid, &entry, buf, ENTRY_BYTES, &found);
    int rc = 0;
    if (!found)
        rc = err_set(e, ERR_AUTH, "uid %u: %s", (unsigned)uid,
                     cause ? strerror(cause) : "no such account");
    else if (!slice_copy(slice_str(found->pw_name), out, EXTERNAL_NAME_MAX))
        rc =
            err_set(e, ERR_AUTH, "uid %u: its name is too long", (unsigned)uid);
    free(buf);
    return rc;
}
