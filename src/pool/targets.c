/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/targets.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"

/* Names that resolve to ever new addresses: then all is forgotten, and each
 * state may be logged once more. */
enum { TARGETS_MAX = 4096 };

struct target {
    UT_hash_handle hh;
    char at[ADDR_TEXT_MAX];
    int value[TARGET_FACTS]; /* -1: unknown */
};

struct targets {
    pthread_mutex_t lock;
    struct target *table;
};

struct targets *targets_new(void)
{
    struct targets *t = mem_new(sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static void forget_all(struct targets *t)
{
    struct target *each, *next;
    HASH_ITER(hh, t->table, each, next)
    {
        HASH_DEL(t->table, each);
        free(each);
    }
}

void targets_free(struct targets *t)
{
    forget_all(t);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct target *find_or_make(struct targets *t, const struct addr *at)
{
    char text[ADDR_TEXT_MAX];
    struct target *found;
    addr_text(at, text, sizeof text);
    HASH_FIND_STR(t->table, text, found);
    if (found)
        return found;
    if (HASH_COUNT(t->table) >= TARGETS_MAX)
        forget_all(t);
    found = mem_new(sizeof *found);
    slice_copy(slice_str(text), found->at, sizeof found->at);
    for (int i = 0; i < TARGET_FACTS; i++)
        found->value[i] = -1;
    HASH_ADD_STR(t->table, at, found);
    return found;
}

bool targets_note(struct targets *t, const struct addr *at,
                  enum target_fact fact, int value)
{
    pthread_mutex_lock(&t->lock);
    struct target *target = find_or_make(t, at);
    bool is_news = target->value[fact] != value;
    target->value[fact] = value;
    pthread_mutex_unlock(&t->lock);
    return is_news;
}
