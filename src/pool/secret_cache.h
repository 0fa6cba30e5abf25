/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Answers of auth_query, for as long as auth_query_cache_ttl says. An answer
 * holds for the database that it was asked for: each may have a query of its
 * own. Bounded: the oldest goes. Owned by struct shared; any thread. */
#ifndef POOL_SECRET_CACHE_H
#define POOL_SECRET_CACHE_H

#include "auth/secret.h"

struct secret_cache;

struct secret_cache *secret_cache_new(size_t max);
void secret_cache_free(struct secret_cache *c); /* wipes */

/* Copies the secret to *out, if there is one that is not older. */
bool secret_cache_find(struct secret_cache *c, struct slice database,
                       struct slice user, int64_t not_before_us,
                       struct auth_secret *out);
void secret_cache_put(struct secret_cache *c, struct slice database,
                      struct slice user, int64_t now_us,
                      const struct auth_secret *secret);

/* After a login with it failed: the password may be another now. */
void secret_cache_drop(struct secret_cache *c, struct slice database,
                       struct slice user);
void secret_cache_clear(struct secret_cache *c);

#endif
