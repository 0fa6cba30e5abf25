/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* In place of the other quic_*.c files where the build has no ngtcp2: nothing
 * can be made, so that nothing else is ever called. */
#include "net/quic.h"

static int refuse(struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "this build of pgbraid has no QUIC (it needs ngtcp2 1.11)");
}

bool quic_is_built(void)
{
    return false;
}

const char *quic_version(void)
{
    return "none";
}

int quic_shared_new(struct quic_shared **out, const char *key_file,
                    struct err *e)
{
    return refuse(e);
}

void quic_shared_free(struct quic_shared *s)
{
}

int quic_tls_new_server(struct quic_tls **out, struct quic_shared *s,
                        const struct quic_tls_params *p, struct err *e)
{
    return refuse(e);
}

int quic_tls_new_client(struct quic_tls **out, const struct quic_tls_params *p,
                        struct err *e)
{
    return refuse(e);
}

struct quic_tls *quic_tls_ref(struct quic_tls *t)
{
    return t;
}

void quic_tls_unref(struct quic_tls *t)
{
}

int quic_host_new(struct quic_host **out, struct loop *loop, struct err *e)
{
    return refuse(e);
}

void quic_host_free(struct quic_host *h)
{
}

struct quic_group *quic_group_new(struct quic_shared *s, int n_workers,
                                  bool shares_port)
{
    return NULL;
}

void quic_group_set_loop(struct quic_group *g, int worker, struct loop *loop)
{
}

void quic_group_free(struct quic_group *g)
{
}

void quic_host_get_counts(const struct quic_host *h,
                          struct quic_host_counts *out)
{
    memset(out, 0, sizeof *out);
}

int quic_sockets_open(int *fds, int n, bool shares_port, const struct addr *at,
                      struct err *e)
{
    return refuse(e);
}

int quic_listener_new(struct quic_listener **out, struct quic_host *host,
                      const struct quic_listener_params *p, struct err *e)
{
    return refuse(e);
}

void quic_listener_set(struct quic_listener *l, struct quic_tls *tls,
                       const struct quic_limits *limits)
{
}

void quic_listener_drain(struct quic_listener *l)
{
}

void quic_listener_give_away(struct quic_listener *l, bool is_given_away)
{
}

void quic_listener_close(struct quic_listener *l)
{
}

void quic_memory_clear(struct quic_memory *m)
{
}

int quic_connect(struct quic_conn **out, struct quic_host *host,
                 const struct addr *to, const struct quic_connect_params *p,
                 const struct quic_conn_handler *h, void *owner, struct err *e)
{
    return refuse(e);
}

struct stream *quic_open_stream(struct quic_conn *c,
                                const struct stream_handler *h, void *owner)
{
    return NULL;
}

struct stream *quic_open_beside(struct stream *s,
                                const struct stream_handler *h, void *owner)
{
    return NULL;
}

bool quic_stream_is_draining(const struct stream *s)
{
    return false;
}

void *quic_conn_owner(const struct quic_conn *c)
{
    return NULL;
}

bool quic_conn_is_up(const struct quic_conn *c)
{
    return false;
}

bool quic_conn_is_draining(const struct quic_conn *c)
{
    return true;
}

int quic_conn_streams(const struct quic_conn *c)
{
    return 0;
}

uint64_t quic_conn_room(const struct quic_conn *c)
{
    return 0;
}

void quic_conn_close(struct quic_conn *c, enum quic_code code)
{
}

bool quic_stream_ids(const struct stream *s, uint64_t *conn, int64_t *stream)
{
    return false;
}

void quic_host_each(struct quic_host *h,
                    void (*cb)(void *arg, const struct quic_conn_view *v),
                    void *arg)
{
}

void quic_host_totals(const struct quic_host *h, struct quic_totals *out)
{
}
