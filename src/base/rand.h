/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The only caller of getrandom(). Any thread. */
#ifndef BASE_RAND_H
#define BASE_RAND_H

#include "base/base.h"

/* Fills p with random bytes fit for keys and nonces; ends the process when the
 * kernel has none to give. */
void rand_bytes(void *p, size_t n);

#endif
