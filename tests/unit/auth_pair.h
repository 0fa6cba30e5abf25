/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* For tests: both ends of a login talking to each other in memory. */
#ifndef TESTS_AUTH_PAIR_H
#define TESTS_AUTH_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "auth/auth_client.h"
#include "auth/auth_server.h"
#include "pg/pg_read.h"
#include "pg/pg_write.h"

/* May change the body of a message on its way; turn counts messages from 0,
 * the odd ones go to the verifier. */
typedef struct slice (*pair_tap_cb)(void *arg, int turn, struct slice body);

struct pair {
    struct auth_client *verifier;
    struct auth_server *prover;
    int verifier_rc, prover_rc; /* where it ended */
    int turns;                  /* messages sent */
    int works;                  /* AUTH_WORK seen */
    struct err verifier_err, prover_err;
    pair_tap_cb tap;
    void *tap_arg;
};

static inline struct slice pair_body(const struct pgbuf *b, char want)
{
    char type;
    struct slice body;
    size_t size;
    assert_false(b->failed);
    assert_int_equal(
        pgread_message(pgbuf_slice(b), 100000, &type, &body, &size), 1);
    assert_int_equal(size, b->n);
    assert_int_equal(type, want);
    return body;
}

static inline int pair_verify(struct pair *p, struct slice body,
                              struct pgbuf *out)
{
    int rc = auth_client_step(p->verifier, body, out, &p->verifier_err);
    if (rc == AUTH_WORK) {
        p->works++;
        auth_client_work(p->verifier);
        rc = auth_client_resume(p->verifier, out, &p->verifier_err);
    }
    return rc;
}

static inline int pair_prove(struct pair *p, struct slice body,
                             struct pgbuf *out)
{
    int rc = auth_server_step(p->prover, body, out, &p->prover_err);
    if (rc == AUTH_WORK) {
        p->works++;
        auth_server_work(p->prover);
        rc = auth_server_resume(p->prover, out, &p->prover_err);
    }
    return rc;
}

static inline struct slice pair_tap(struct pair *p, struct slice body)
{
    int turn = p->turns++;
    return p->tap ? p->tap(p->tap_arg, turn, body) : body;
}

/* From start to AuthenticationOk or the first failure. */
static inline void pair_run(struct pair *p)
{
    struct pgbuf to_prover, to_verifier;
    pgbuf_init(&to_prover, 100000);
    pgbuf_init(&to_verifier, 100000);
    p->prover_rc = AUTH_MORE;
    p->verifier_rc =
        auth_client_start(p->verifier, &to_prover, &p->verifier_err);
    while (p->verifier_rc >= 0) {
        bool is_ok = p->verifier_rc == AUTH_OK;
        if (to_prover.n) {
            struct slice body = pair_tap(p, pair_body(&to_prover, PG_MSG_AUTH));
            pgbuf_wipe(&to_verifier);
            p->prover_rc = pair_prove(p, body, &to_verifier);
        }
        if (p->prover_rc < 0)
            break;
        if (is_ok) {
            p->prover_rc = pair_prove(p, slice_of("\0\0\0\0", 4), &to_verifier);
            break;
        }
        if (p->prover_rc == AUTH_OK) /* let in too early, by its account */
            break;
        struct slice body =
            pair_tap(p, pair_body(&to_verifier, PG_MSG_PASSWORD));
        pgbuf_wipe(&to_prover);
        p->verifier_rc = pair_verify(p, body, &to_prover);
    }
    pgbuf_fini(&to_prover);
    pgbuf_fini(&to_verifier);
}

static inline void pair_fini(struct pair *p)
{
    auth_client_free(p->verifier);
    auth_server_free(p->prover);
}

#endif
