/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/words.h"

enum {
    POOL_MODE,
    AUTH_TYPE,
    SSLMODE,
    SSLNEGOTIATION,
    LOAD_BALANCE,
    TRANSPORT,
    MPTCP,
    CONGESTION,
    LOG_FORMAT,
    UPGRADE_TLS,
    SUPERVISOR
};

static const struct {
    int type, value;
    const char *word;
} words[] = {
#define ENUM(type, word, value) {type, value, word},
#include "conf/enum.def"
#undef ENUM
};

static const char *find(int type, int value)
{
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        if (words[i].type == type && words[i].value == value)
            return words[i].word;
    }
    return NULL;
}

const char *words_pool_mode(int mode)
{
    return find(POOL_MODE, mode);
}

const char *words_load_balance(const struct conf_db *db)
{
    if (!db || db->n_hosts < 2)
        return NULL;
    return find(LOAD_BALANCE, MAX(db->load_balance_hosts, 0));
}
