/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Both ends of a login. The first byte of the input chooses end, method and
 * circumstances; what follows are message bodies, each after two bytes of its
 * length. Nonces are fixed, so that the dialogue can be got through. */
#include "auth/auth_client.h"
#include "auth/auth_server.h"
#include "pg/pg_write.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    PROVER = 1,
    PLUS = 2,
    UNKNOWN = 4,
    DERIVED = 8,
    METHOD = 0x30,
    METHOD_SHIFT = 4,
    KEYS = 0x40,
};

static const char hash[] = "0123456789abcdef0123456789abcdef";

static bool next_body(struct slice *rest, struct slice *body)
{
    if (rest->n < 2)
        return false;
    size_t n = (size_t)(uint8_t)rest->p[0] << 8 | (uint8_t)rest->p[1];
    n = MIN(n, rest->n - 2);
    *body = slice_of(rest->p + 2, n);
    *rest = slice_of(rest->p + 2 + n, rest->n - 2 - n);
    return true;
}

static void run_verifier(int flags, struct slice rest)
{
    static const enum auth_method methods[] = {
        AUTH_METHOD_SCRAM, AUTH_METHOD_MD5, AUTH_METHOD_PLAIN,
        AUTH_METHOD_SCRAM};
    static struct auth_secret secrets[2];
    if (!secrets[0].kind)
        must(auth_secret_derive_scram(slice_str("pencil"), slice_str("salt"), 1,
                                      &secrets[0]) == 0 &&
             auth_secret_parse(slice_str("pencil"), &secrets[1]) == 0);
    struct auth_client_params p = {
        .method = methods[(flags & METHOD) >> METHOD_SHIFT],
        .user = slice_str("user"),
        .secret = flags & UNKNOWN ? NULL : &secrets[!(flags & DERIVED)],
        .scram_iterations = 1,
        .has_tls = flags & PLUS,
        .allow_plus = true,
        .tls_server_end_point = slice_str(hash),
        .test_nonce = slice_str("server"),
        .test_salt = slice_str("salt"),
    };
    struct auth_client *a = auth_client_new(&p);
    struct pgbuf out;
    struct slice body;
    pgbuf_init(&out, 100000);
    int rc = auth_client_start(a, &out, NULL);
    while (rc == AUTH_MORE && next_body(&rest, &body)) {
        must(!out.failed && out.n);
        pgbuf_reset(&out);
        rc = auth_client_step(a, body, &out, NULL);
    }
    must(rc != AUTH_OK || !(flags & UNKNOWN));
    pgbuf_fini(&out);
    auth_client_free(a);
}

static void run_prover(int flags, struct slice rest)
{
    struct auth_keys keys = {.has_scram = true};
    struct auth_server_params p = {
        .user = slice_str("user"),
        .password = slice_str(flags & KEYS ? "" : "pencil"),
        .keys = &keys,
        .may_work = true, /* and not done: a server may ask for a lot */
        .has_tls = flags & PLUS,
        .tls_server_end_point = slice_str(hash),
        .channel_binding =
            flags & DERIVED ? AUTH_BINDING_REQUIRE : AUTH_BINDING_PREFER,
        .test_nonce = slice_str("client"),
    };
    struct auth_server *a = auth_server_new(&p);
    struct pgbuf out;
    struct slice body;
    int rc = AUTH_MORE;
    pgbuf_init(&out, 100000);
    while (rc == AUTH_MORE && next_body(&rest, &body)) {
        pgbuf_reset(&out);
        rc = auth_server_step(a, body, &out, NULL);
        must(!out.failed);
    }
    pgbuf_fini(&out);
    auth_server_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct slice rest = slice_of(data + 1, size - 1);
    if (data[0] & PROVER)
        run_prover(data[0], rest);
    else
        run_verifier(data[0], rest);
    return 0;
}
