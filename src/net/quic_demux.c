/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A datagram comes in: to its connection by connection ID, or from a stranger.
 * A stranger costs nothing until its first packet is a proper Initial; beyond
 * some half-open connections it must also show that it lives where it says
 * (Retry), and it never gets back more than it sent, nor too often:
 *
 *   unknown version      Version Negotiation
 *   Initial              a connection, a Retry, or a refusal
 *   anything else        Stateless Reset, so that a client that outlived a
 *                        restart of ours knows at once
 */
#include "base/rand.h"
#include "net/quic_impl.h"

enum {
    RETRY_VALID_S = 10,
    TOKEN_VALID_S = 24 * 3600,
    ANSWER_MAX = 1200,
    RESET_MIN = 23,        /* of a trigger: one byte more than a reset has */
    HALF_OPEN_FACTOR = 64, /* times retry_above, tokens or not: no more */
};

static void answer(struct quic_socket *s, const ngtcp2_path *path,
                   const uint8_t *p, ngtcp2_ssize n)
{
    if (n > 0)
        quic_socket_send(s, path, p, (size_t)n, (size_t)n);
}

static void negotiate_version(struct quic_socket *s, const ngtcp2_path *path,
                              const ngtcp2_version_cid *vc, size_t n)
{
    static const uint32_t versions[] = {NGTCP2_PROTO_VER_V1};
    uint8_t packet[ANSWER_MAX], random;
    if (n < NGTCP2_MAX_UDP_PAYLOAD_SIZE || !quic_socket_may_tell(s))
        return;
    rand_bytes(&random, 1);
    answer(s, path, packet,
           ngtcp2_pkt_write_version_negotiation(
               packet, sizeof packet, random, vc->scid, vc->scidlen, vc->dcid,
               vc->dcidlen, versions, ARRAY_SIZE(versions)));
}

static void reset(struct quic_socket *s, const ngtcp2_path *path,
                  const ngtcp2_version_cid *vc, size_t n)
{
    uint8_t token[NGTCP2_STATELESS_RESET_TOKENLEN], packet[64], random[41];
    struct slice secret = quic_shared_secret(s->listener->p.shared);
    ngtcp2_cid cid;
    if (n < RESET_MIN || vc->dcidlen != QUIC_CID_BYTES ||
        !quic_socket_may_tell(s))
        return;
    size_t size = MIN(n - 1, sizeof packet); /* smaller: no loop of two */
    ngtcp2_cid_init(&cid, vc->dcid, vc->dcidlen);
    if (ngtcp2_crypto_generate_stateless_reset_token(
            token, (const uint8_t *)secret.p, secret.n, &cid))
        return;
    rand_bytes(random, sizeof random);
    answer(s, path, packet,
           ngtcp2_pkt_write_stateless_reset(
               packet, size, token, random,
               MIN(size - NGTCP2_STATELESS_RESET_TOKENLEN, sizeof random)));
}

static void ask_again(struct quic_socket *s, const ngtcp2_path *path,
                      const ngtcp2_pkt_hd *hd)
{
    const struct quic_listener_params *p = &s->listener->p;
    struct slice secret = quic_shared_secret(p->shared);
    uint8_t token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN2], packet[ANSWER_MAX];
    ngtcp2_cid scid;
    struct quic_place me = quic_listener_place(s->listener);
    quic_cid_make(&scid, &me);
    ngtcp2_ssize n = ngtcp2_crypto_generate_retry_token2(
        token, (const uint8_t *)secret.p, secret.n, hd->version,
        path->remote.addr, path->remote.addrlen, &scid, &hd->dcid, quic_now());
    if (n <= 0)
        return;
    s->host->totals.retries++;
    answer(s, path, packet,
           ngtcp2_crypto_write_retry(packet, sizeof packet, hd->version,
                                     &hd->scid, &scid, &hd->dcid, token,
                                     (size_t)n));
}

static void refuse(struct quic_socket *s, const ngtcp2_path *path,
                   const ngtcp2_pkt_hd *hd, const char *why)
{
    uint8_t packet[ANSWER_MAX];
    s->host->totals.refused++;
    if (!quic_socket_may_tell(s))
        return;
    answer(s, path, packet,
           ngtcp2_crypto_write_connection_close(
               packet, sizeof packet, hd->version, &hd->scid, &hd->dcid,
               NGTCP2_CONNECTION_REFUSED, (const uint8_t *)why, strlen(why)));
}

/* Looks at the token; false when the packet is to be dropped. */
static bool read_token(struct quic_socket *s, struct quic_accept *a,
                       ngtcp2_cid *odcid)
{
    struct slice secret = quic_shared_secret(s->listener->p.shared);
    const ngtcp2_pkt_hd *hd = a->hd;
    a->token_type = NGTCP2_TOKEN_TYPE_UNKNOWN;
    if (!hd->tokenlen)
        return true;
    if (hd->token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_RETRY2) {
        if (ngtcp2_crypto_verify_retry_token2(
                odcid, hd->token, hd->tokenlen, (const uint8_t *)secret.p,
                secret.n, hd->version, a->path->remote.addr,
                a->path->remote.addrlen, &hd->dcid,
                RETRY_VALID_S * NGTCP2_SECONDS, quic_now()))
            return false;
        a->odcid = odcid;
        a->token_type = NGTCP2_TOKEN_TYPE_RETRY;
    } else if (hd->token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_REGULAR &&
               ngtcp2_crypto_verify_regular_token(
                   hd->token, hd->tokenlen, (const uint8_t *)secret.p, secret.n,
                   a->path->remote.addr, a->path->remote.addrlen,
                   TOKEN_VALID_S * NGTCP2_SECONDS, quic_now()) == 0) {
        a->token_type = NGTCP2_TOKEN_TYPE_NEW_TOKEN;
    }
    return true;
}

static struct quic_conn *welcome(struct quic_socket *s, const struct addr *from,
                                 const ngtcp2_path *path,
                                 const ngtcp2_pkt_hd *hd)
{
    const struct quic_listener_params *p = &s->listener->p;
    const struct quic_limits *limits = &p->limits;
    struct quic_accept a = {.hd = hd, .path = path, .peer = from};
    ngtcp2_cid odcid;
    if (s->listener->is_draining) {
        refuse(s, path, hd, "shutting down");
        return NULL;
    }
    if (!read_token(s, &a, &odcid) ||
        s->n_half_open >= limits->retry_above * HALF_OPEN_FACTOR)
        return NULL;
    if (a.token_type == NGTCP2_TOKEN_TYPE_UNKNOWN &&
        s->n_half_open >= limits->retry_above) {
        ask_again(s, path, hd);
        return NULL;
    }
    if (!quic_shared_enter(p->shared, from, limits->max_conns_per_host)) {
        refuse(s, path, hd, "too many connections from this address");
        return NULL;
    }
    struct quic_conn *c = quic_conn_accept(s, &a);
    if (!c)
        quic_shared_leave(p->shared, from);
    return c;
}

void quic_demux(struct quic_socket *s, const struct addr *from,
                const struct addr *to, uint8_t *p, size_t n, bool is_passed_on)
{
    ngtcp2_path path = {
        .local = {(ngtcp2_sockaddr *)(uintptr_t)&to->sa, to->len},
        .remote = {(ngtcp2_sockaddr *)(uintptr_t)&from->sa, from->len},
    };
    ngtcp2_version_cid vc;
    ngtcp2_pkt_hd hd;
    if (s->client) {
        /* What a connected socket receives comes from its peer. */
        quic_conn_read(s->client, &path, p, n);
        return;
    }
    if (!is_passed_on && quic_group_found(s->listener, p, n))
        return;
    int rv = ngtcp2_pkt_decode_version_cid(&vc, p, n, QUIC_CID_BYTES);
    if (rv == NGTCP2_ERR_VERSION_NEGOTIATION) {
        negotiate_version(s, &path, &vc, n);
        return;
    }
    if (rv)
        return;
    struct quic_conn *c = quic_cids_find(&s->cids, vc.dcid, vc.dcidlen);
    if (!c) {
        s->n_strangers++;
        if (!is_passed_on &&
            quic_group_pass_on(s->listener, &vc, from, to, p, n))
            return;
        if (ngtcp2_accept(&hd, p, n) == 0)
            c = welcome(s, from, &path, &hd);
        else if (vc.version == 0)
            reset(s, &path, &vc, n);
    }
    if (c)
        quic_conn_read(c, &path, p, n);
}
