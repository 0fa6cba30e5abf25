/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Choices of the configuration in words, as PgBouncer writes them. Pure; any
 * thread. */
#ifndef ADMIN_WORDS_H
#define ADMIN_WORDS_H

#include "conf/conf.h"

/* NULL for -1: not set. */
const char *words_pool_mode(int mode);

/* NULL unless the database (which may be NULL) has several hosts. */
const char *words_load_balance(const struct conf_db *db);

#endif
