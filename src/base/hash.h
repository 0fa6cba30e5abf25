/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* uthash with xxhash as its function: keys come from peers, and the function
 * that uthash brings is slow on long ones. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#define HASH_FUNCTION(key, n, hv)                                              \
    do {                                                                       \
        (hv) = (unsigned)XXH3_64bits(key, n);                                  \
    } while (0)
#include <uthash.h>

#endif
