/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* auth_file: the input is its text. */
#include "auth/userdb.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct userdb *db;
    struct err e = {0};
    size_t n = 0;
    int rc = userdb_parse(slice_of(data, size), "users", &db, &e);
    must((rc == 0) == (db != NULL) && (rc == 0) == (e.text[0] == 0));
    for (const struct auth_user *u = NULL; (u = userdb_next(db, u));) {
        must(userdb_find(db, u->name) == u);
        must(u->name.n <= AUTH_USER_NAME_MAX && u->name.p[u->name.n] == 0);
        n++;
    }
    must(n == userdb_count(db));
    userdb_free(db);
    return 0;
}
