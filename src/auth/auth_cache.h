/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What auth_server.h calls struct auth_cache, for the dialogue itself. */
#ifndef AUTH_AUTH_CACHE_H
#define AUTH_AUTH_CACHE_H

#include "auth/auth_server.h"

/* What SaltedPassword is made from. */
struct auth_cache_input {
    struct slice password, salt;
    int iterations;
};

/* c may be NULL. A hit becomes the newest entry. */
bool auth_cache_find(struct auth_cache *c, const struct auth_cache_input *in,
                     uint8_t salted[AUTH_KEY_SIZE]);
void auth_cache_put(struct auth_cache *c, const struct auth_cache_input *in,
                    const uint8_t salted[AUTH_KEY_SIZE]);

#endif
