/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/lookup.h"

static void on_resolved(void *arg, const struct addr *at, size_t n,
                        const struct err *e)
{
    struct lookup *l = arg;
    struct addr with_port[LOOKUP_MAX];
    l->question = NULL;
    n = MIN(n, ARRAY_SIZE(with_port));
    for (size_t i = 0; i < n; i++) {
        with_port[i] = at[i];
        addr_set_port(&with_port[i], l->port);
    }
    l->cb(l, with_port, n, e);
}

static void on_number(struct task *t)
{
    struct lookup *l = container_of(t, struct lookup, task);
    l->cb(l, &l->number, 1, NULL);
}

void lookup_start(struct lookup *l, struct loop *loop, struct resolver *r,
                  const char *host, int port)
{
    l->question = NULL;
    l->port = port;
    l->task.run = on_number;
    list_init(&l->task.node);
    l->is_started = true;
    if (addr_parse_ip(slice_str(host), port, &l->number))
        loop_defer(loop, &l->task);
    else
        l->question = resolve_start(r, host, on_resolved, l);
}

void lookup_stop(struct lookup *l)
{
    if (!l->is_started)
        return;
    if (l->question)
        resolve_cancel(l->question);
    l->question = NULL;
    loop_cancel(&l->task);
}
