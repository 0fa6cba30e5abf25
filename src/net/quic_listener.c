/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include <stdlib.h>

#include "net/quic_impl.h"

int quic_listener_new(struct quic_listener **out, struct quic_host *host,
                      const struct quic_listener_params *p, struct err *e)
{
    struct quic_listener *l = mem_new(sizeof *l);
    l->p = *p;
    int rc = quic_socket_new(&l->socket, host, p->fd, e);
    if (rc) {
        free(l);
        return rc;
    }
    l->p.tls = quic_tls_ref(p->tls);
    l->socket->listener = l;
    rc = quic_group_join(l, e);
    if (rc) {
        quic_listener_close(l);
        return rc;
    }
    *out = l;
    return 0;
}

void quic_listener_set(struct quic_listener *l, struct quic_tls *tls,
                       const struct quic_limits *limits)
{
    struct quic_tls *old = l->p.tls;
    l->p.tls = quic_tls_ref(tls);
    l->p.limits = *limits;
    quic_tls_unref(old);
}

void quic_listener_drain(struct quic_listener *l)
{
    l->is_draining = true;
    list_for(i, &l->socket->conns)
        quic_conn_say_drain(list_entry(i, struct quic_conn, node));
}

void quic_listener_give_away(struct quic_listener *l, bool is_given_away)
{
    quic_socket_give_away(l->socket, is_given_away);
    l->is_draining = false;
}

void quic_listener_close(struct quic_listener *l)
{
    struct err why;
    (void)err_set(&why, ERR_SHUTDOWN, "shutting down");
    list_for_safe(i, &l->socket->conns)
    {
        struct quic_conn *c = list_entry(i, struct quic_conn, node);
        quic_conn_flush(c); /* the last words of sessions */
        quic_conn_end(c, QUIC_CODE_SHUTDOWN, &why);
    }
    quic_group_leave(l);
    quic_socket_close(l->socket);
    quic_tls_unref(l->p.tls);
    free(l);
}
