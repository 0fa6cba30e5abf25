/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth_pair.h"

#include <stdio.h>
#include <stdlib.h>

static const char user[] = "alice";
static const char password[] = "p\303\244ss \342\205\250";
static const char hash[] = "0123456789abcdef0123456789abcdef";

/* --- every method, every secret, every way of knowing it --------------- */

enum stored {
    STORED_UNKNOWN, /* no such user */
    STORED_NONE,
    STORED_PLAIN,
    STORED_MD5,
    STORED_SCRAM,
    STORED_DERIVED,
    STORED_LAST,
};

enum known {
    KNOWN_PASSWORD,
    KNOWN_WRONG, /* another password */
    KNOWN_MD5,
    KNOWN_KEYS,
    KNOWN_NOTHING,
    KNOWN_LAST,
};

static struct auth_secret secrets[STORED_LAST];
static struct auth_keys keys;

static int make_secrets(void **state)
{
    char md5[AUTH_MD5_SECRET_LEN + 1];
    struct slice pw = slice_str(password);
    assert_int_equal(auth_secret_parse(pw, &secrets[STORED_PLAIN]), 0);
    assert_int_equal(auth_secret_md5_of(pw, slice_str(user), md5), 0);
    assert_int_equal(auth_secret_parse(slice_str(md5), &secrets[STORED_MD5]),
                     0);
    assert_int_equal(auth_secret_derive_scram(pw, slice_str("pepper"), 5,
                                              &secrets[STORED_DERIVED]),
                     0);
    secrets[STORED_SCRAM] = secrets[STORED_DERIVED];
    secrets[STORED_SCRAM].is_derived = false;
    return 0;
}

static int free_secrets(void **state)
{
    for (int i = 0; i < STORED_LAST; i++)
        auth_secret_fini(&secrets[i]);
    auth_keys_fini(&keys);
    return 0;
}

static struct auth_client *new_verifier(enum auth_method method,
                                        enum stored stored, bool may_work)
{
    struct auth_client_params p = {
        .method = method,
        .user = slice_str(user),
        .secret = stored == STORED_UNKNOWN ? NULL : &secrets[stored],
        .plain = slice_str(password),
        .process_key = slice_str("process key"),
        .scram_iterations = 3,
        .may_work = may_work,
    };
    return auth_client_new(&p);
}

static struct auth_server *new_prover(enum known known, bool may_work)
{
    struct auth_server_params p = {.user = slice_str(user),
                                   .may_work = may_work};
    if (known == KNOWN_PASSWORD)
        p.password = slice_str(password);
    if (known == KNOWN_WRONG)
        p.password = slice_str("other");
    if (known == KNOWN_MD5)
        p.md5 = auth_secret_text(&secrets[STORED_MD5]);
    if (known == KNOWN_KEYS)
        p.keys = &keys;
    return auth_server_new(&p);
}

/* May the prover answer at all, and would a right answer be accepted? */
static bool can_answer(enum auth_method really, enum known known)
{
    if (known == KNOWN_PASSWORD || known == KNOWN_WRONG)
        return true;
    return (known == KNOWN_MD5 && really == AUTH_METHOD_MD5) ||
           (known == KNOWN_KEYS && really == AUTH_METHOD_SCRAM);
}

static bool is_accepted(enum auth_method really, enum stored stored,
                        enum known known)
{
    if (stored <= STORED_NONE || known == KNOWN_WRONG)
        return false;
    if (really == AUTH_METHOD_SCRAM && stored == STORED_MD5)
        return false;
    /* Keys fit the salt that they were made with. */
    return known != KNOWN_KEYS || stored == STORED_SCRAM ||
           stored == STORED_DERIVED;
}

static void check_keys(const struct pair *p, enum auth_method really,
                       enum stored stored)
{
    const struct auth_keys *k = auth_client_keys(p->verifier);
    bool scram = really == AUTH_METHOD_SCRAM && stored == STORED_SCRAM;
    assert_int_equal(k->has_scram, scram);
    if (scram)
        assert_memory_equal(k->server_key, secrets[STORED_SCRAM].server_key,
                            AUTH_KEY_SIZE);
    bool plain = really == AUTH_METHOD_PLAIN || stored == STORED_PLAIN ||
                 stored == STORED_DERIVED;
    assert_int_equal(k->password != NULL, plain);
    if (plain)
        assert_string_equal(k->password, password);
    assert_int_equal(auth_client_derived(p->verifier) != NULL,
                     really == AUTH_METHOD_SCRAM && stored == STORED_PLAIN);
}

static void check_case(enum auth_method method, enum stored stored,
                       enum known known, bool may_work)
{
    bool is_scram = stored == STORED_SCRAM || stored == STORED_DERIVED;
    enum auth_method really =
        method == AUTH_METHOD_MD5 && is_scram ? AUTH_METHOD_SCRAM : method;
    struct pair p = {.verifier = new_verifier(method, stored, may_work),
                     .prover = new_prover(known, may_work)};
    pair_run(&p);
    assert_int_equal(auth_client_method(p.verifier), really);
    if (!can_answer(really, known)) {
        assert_true(p.prover_rc == ERR_AUTH);
        assert_non_null(strstr(p.prover_err.text, "server asks for "));
        assert_non_null(
            strstr(p.prover_err.text, auth_server_method(p.prover)));
        assert_int_equal(p.turns, 1);
    } else if (is_accepted(really, stored, known)) {
        assert_int_equal(p.verifier_rc, AUTH_OK);
        assert_int_equal(p.prover_rc, AUTH_OK);
        check_keys(&p, really, stored);
    } else {
        assert_int_equal(p.verifier_rc, ERR_AUTH);
        assert_int_equal(p.turns, really == AUTH_METHOD_SCRAM ? 4 : 2);
    }
    assert_true(may_work || p.works == 0);
    pair_fini(&p);
}

/* The first real SCRAM login gives the keys that later ones pass through. */
static void scram_gives_keys(void **state)
{
    struct pair p = {.verifier =
                         new_verifier(AUTH_METHOD_SCRAM, STORED_SCRAM, true),
                     .prover = new_prover(KNOWN_PASSWORD, true)};
    pair_run(&p);
    assert_int_equal(p.verifier_rc, AUTH_OK);
    assert_int_equal(p.works, 1);
    auth_keys_copy(auth_client_keys(p.verifier), &keys);
    assert_true(keys.has_scram);
    pair_fini(&p);
}

static void every_combination(void **state)
{
    static const enum auth_method methods[] = {
        AUTH_METHOD_PLAIN, AUTH_METHOD_MD5, AUTH_METHOD_SCRAM};
    for (size_t m = 0; m < ARRAY_SIZE(methods); m++)
        for (int stored = 0; stored < STORED_LAST; stored++)
            for (int known = 0; known < KNOWN_LAST; known++)
                for (int may_work = 0; may_work < 2; may_work++)
                    check_case(methods[m], stored, known, may_work);
}

static void methods_without_dialogue(void **state)
{
    static const struct {
        enum auth_method method;
        enum stored stored;
        int rc;
    } cases[] = {
        {AUTH_METHOD_ANY, STORED_UNKNOWN, AUTH_OK},
        {AUTH_METHOD_ANY, STORED_MD5, AUTH_OK},
        {AUTH_METHOD_TRUST, STORED_UNKNOWN, ERR_AUTHZ},
        {AUTH_METHOD_TRUST, STORED_NONE, AUTH_OK},
        {AUTH_METHOD_TRUST, STORED_SCRAM, AUTH_OK},
        {AUTH_METHOD_REJECT, STORED_PLAIN, ERR_AUTHZ},
        {AUTH_METHOD_CERT, STORED_PLAIN, ERR_AUTHZ},
        {AUTH_METHOD_PEER, STORED_PLAIN, ERR_AUTHZ},
        {AUTH_METHOD_HBA, STORED_PLAIN, ERR_AUTHZ},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pair p = {
            .verifier = new_verifier(cases[i].method, cases[i].stored, false),
            .prover = new_prover(KNOWN_NOTHING, false)};
        pair_run(&p);
        assert_int_equal(p.verifier_rc, cases[i].rc);
        assert_int_equal(p.turns, 0);
        if (cases[i].rc == AUTH_OK)
            assert_int_equal(p.prover_rc, AUTH_OK);
        pair_fini(&p);
    }
}

static void external_hands_the_password_over(void **state)
{
    struct pgbuf out;
    struct err e;
    pgbuf_init(&out, 1000);
    struct auth_client *a =
        new_verifier(AUTH_METHOD_PAM, STORED_UNKNOWN, false);
    assert_int_equal(auth_client_start(a, &out, &e), AUTH_MORE);
    assert_int_equal(auth_client_step(a, slice_of("pw", 3), &out, &e),
                     AUTH_EXTERNAL);
    assert_true(slice_is(auth_client_password(a), "pw"));
    auth_client_free(a);
    pgbuf_fini(&out);
}

static void names_of_methods(void **state)
{
    enum auth_method m;
    assert_true(auth_method_parse(slice_str("scram-sha-256"), &m));
    assert_int_equal(m, AUTH_METHOD_SCRAM);
    assert_string_equal(auth_method_name(m), "scram-sha-256");
    assert_false(auth_method_parse(slice_str("scram"), &m));
}

/* --- channel binding ---------------------------------------------------- */

struct binding_case {
    bool verifier_plus; /* allow_plus with a hash */
    bool verifier_tls, prover_tls;
    const char *verifier_hash, *prover_hash;
    enum auth_channel_binding policy;
    bool is_bound;
    int verifier_rc, prover_rc;
};

static void check_binding(const struct binding_case *c)
{
    struct auth_client_params v = {
        .method = AUTH_METHOD_SCRAM,
        .user = slice_str(user),
        .secret = &secrets[STORED_SCRAM],
        .has_tls = c->verifier_tls,
        .allow_plus = c->verifier_plus,
        .tls_server_end_point = slice_str(c->verifier_hash),
    };
    struct auth_server_params s = {
        .user = slice_str(user),
        .password = slice_str(password),
        .has_tls = c->prover_tls,
        .tls_server_end_point = slice_str(c->prover_hash),
        .channel_binding = c->policy,
    };
    struct pair p = {.verifier = auth_client_new(&v),
                     .prover = auth_server_new(&s)};
    pair_run(&p);
    assert_int_equal(p.verifier_rc, c->verifier_rc);
    assert_int_equal(p.prover_rc, c->prover_rc);
    if (c->verifier_rc == AUTH_OK)
        assert_int_equal(auth_client_is_bound(p.verifier), c->is_bound);
    pair_fini(&p);
}

static void binding_cases(void **state)
{
    const enum auth_channel_binding prefer = AUTH_BINDING_PREFER;
    const enum auth_channel_binding disable = AUTH_BINDING_DISABLE;
    const enum auth_channel_binding require = AUTH_BINDING_REQUIRE;
    const struct binding_case cases[] = {
        /* both can */
        {1, 1, 1, hash, hash, prefer, true, AUTH_OK, AUTH_OK},
        {1, 1, 1, hash, hash, require, true, AUTH_OK, AUTH_OK},
        {1, 1, 1, hash, hash, disable, false, AUTH_OK, AUTH_OK},
        /* the server does not offer it */
        {0, 1, 1, hash, hash, prefer, false, AUTH_OK, AUTH_OK},
        {0, 1, 1, hash, hash, require, false, AUTH_MORE, ERR_AUTH},
        {1, 1, 1, "", hash, prefer, false, AUTH_OK, AUTH_OK},
        /* the client cannot */
        {1, 1, 1, hash, "", prefer, false, AUTH_OK, AUTH_OK},
        {1, 1, 1, hash, "", require, false, AUTH_MORE, ERR_AUTH},
        /* no TLS */
        {1, 0, 0, hash, hash, prefer, false, AUTH_OK, AUTH_OK},
        {1, 0, 0, hash, hash, require, false, AUTH_MORE, ERR_AUTH},
        /* somebody between them */
        {1, 1, 1, hash, "other", prefer, false, ERR_AUTHZ, AUTH_MORE},
        {1, 1, 0, hash, "", prefer, false, AUTH_MORE, ERR_PROTO},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        check_binding(&cases[i]);
}

/* Takes SCRAM-SHA-256-PLUS out of the server's list. */
static struct slice strip_plus(void *arg, int turn, struct slice body)
{
    static char changed[64];
    if (turn != 0)
        return body;
    size_t plus = sizeof "SCRAM-SHA-256-PLUS";
    memcpy(changed, body.p, 4);
    memcpy(changed + 4, body.p + 4 + plus, body.n - 4 - plus);
    return slice_of(changed, body.n - plus);
}

static void downgrade_is_noticed(void **state)
{
    struct auth_client_params v = {
        .method = AUTH_METHOD_SCRAM,
        .user = slice_str(user),
        .secret = &secrets[STORED_SCRAM],
        .has_tls = true,
        .allow_plus = true,
        .tls_server_end_point = slice_str(hash),
    };
    struct auth_server_params s = {
        .user = slice_str(user),
        .password = slice_str(password),
        .has_tls = true,
        .tls_server_end_point = slice_str(hash),
    };
    struct pair p = {.verifier = auth_client_new(&v),
                     .prover = auth_server_new(&s),
                     .tap = strip_plus};
    pair_run(&p);
    assert_int_equal(p.verifier_rc, ERR_AUTHZ);
    assert_string_equal(p.verifier_err.text,
                        "SCRAM channel binding negotiation error");
    pair_fini(&p);
}

static void binding_is_required_of_all_methods(void **state)
{
    static const enum auth_method methods[] = {
        AUTH_METHOD_ANY, AUTH_METHOD_PLAIN, AUTH_METHOD_MD5};
    for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
        struct auth_server_params s = {
            .user = slice_str(user),
            .password = slice_str(password),
            .has_tls = true,
            .tls_server_end_point = slice_str(hash),
            .channel_binding = AUTH_BINDING_REQUIRE,
        };
        struct pair p = {.verifier =
                             new_verifier(methods[i], STORED_PLAIN, false),
                         .prover = auth_server_new(&s)};
        pair_run(&p);
        assert_int_equal(p.prover_rc, ERR_AUTH);
        assert_non_null(strstr(p.prover_err.text, "channel binding"));
        pair_fini(&p);
    }
}

/* --- the cache ---------------------------------------------------------- */

static int login_with(struct auth_cache *cache, const char *pw,
                      enum stored stored, int *works)
{
    struct auth_server_params s = {.user = slice_str(user),
                                   .password = slice_str(pw),
                                   .may_work = true,
                                   .cache = cache};
    struct pair p = {.verifier = new_verifier(AUTH_METHOD_SCRAM, stored, false),
                     .prover = auth_server_new(&s)};
    pair_run(&p);
    *works = p.works;
    int rc = p.verifier_rc;
    pair_fini(&p);
    return rc;
}

static void cache_saves_the_second_hash(void **state)
{
    struct auth_cache *c = auth_cache_new(2);
    int works;
    assert_int_equal(login_with(c, password, STORED_SCRAM, &works), AUTH_OK);
    assert_int_equal(works, 1);
    assert_int_equal(login_with(c, password, STORED_SCRAM, &works), AUTH_OK);
    assert_int_equal(works, 0);
    /* Another password, another salt: other entries. */
    assert_int_equal(login_with(c, "other", STORED_SCRAM, &works), ERR_AUTH);
    assert_int_equal(works, 1);
    assert_int_equal(login_with(c, password, STORED_SCRAM, &works), AUTH_OK);
    assert_int_equal(works, 0);
    assert_int_equal(login_with(c, password, STORED_PLAIN, &works), AUTH_OK);
    assert_int_equal(works, 1);
    /* The oldest, that of the wrong password, made room. */
    assert_int_equal(login_with(c, password, STORED_SCRAM, &works), AUTH_OK);
    assert_int_equal(works, 0);
    assert_int_equal(login_with(c, "other", STORED_SCRAM, &works), ERR_AUTH);
    assert_int_equal(works, 1);
    auth_cache_free(c);
    auth_cache_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scram_gives_keys),
        cmocka_unit_test(every_combination),
        cmocka_unit_test(methods_without_dialogue),
        cmocka_unit_test(external_hands_the_password_over),
        cmocka_unit_test(names_of_methods),
        cmocka_unit_test(binding_cases),
        cmocka_unit_test(downgrade_is_noticed),
        cmocka_unit_test(binding_is_required_of_all_methods),
        cmocka_unit_test(cache_saves_the_second_hash),
    };
    return cmocka_run_group_tests(tests, make_secrets, free_secrets);
}
