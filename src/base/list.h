/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Intrusive doubly linked list. The owner of the head owns the order, not the
 * objects. Not thread safe. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include "base/base.h"

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* A node that was initialised and is in no list. */
static inline bool list_is_linked(const struct list *n)
{
    return n->next != n;
}

static inline void list_insert_before(struct list *at, struct list *n)
{
    n->prev = at->prev;
    n->next = at;
    at->prev->next = n;
    at->prev = n;
}

static inline void list_push_back(struct list *l, struct list *n)
{
    list_insert_before(l, n);
}

static inline void list_push_front(struct list *l, struct list *n)
{
    list_insert_before(l->next, n);
}

/* Leaves n initialised, so that removing twice is harmless. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

static inline struct list *list_first(struct list *l)
{
    return list_empty(l) ? NULL : l->next;
}

static inline struct list *list_last(struct list *l)
{
    return list_empty(l) ? NULL : l->prev;
}

#define list_entry(p, type, member) container_of(p, type, member)

#define list_for(it, l)                                                        \
    for (struct list *it = (l)->next; it != (l); it = it->next)

/* The body may remove the node it is at. */
#define list_for_safe(it, l)                                                   \
    for (struct list *it = (l)->next, *it##_next = it->next; it != (l);        \
         it = it##_next, it##_next = it->next)

#endif
