/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What does not follow the dialogue: damage, lies and messages out of turn. */
#include "auth_pair.h"

#include <stdio.h>
#include <stdlib.h>

static const char hash[] = "0123456789abcdef0123456789abcdef";
static const char salt_text[] = "W22ZaJ0SNY7soEsUEjb6gQ==";

static struct auth_secret secret; /* of "pencil", as in RFC 7677 */

static int make_secret(void **state)
{
    uint8_t salt[AUTH_SALT_MAX];
    size_t n;
    assert_true(
        crypto_base64_decode(slice_str(salt_text), salt, sizeof salt, &n));
    assert_int_equal(auth_secret_derive_scram(slice_str("pencil"),
                                              slice_of(salt, n), 4096, &secret),
                     0);
    secret.is_derived = false;
    return 0;
}

static int free_secret(void **state)
{
    auth_secret_fini(&secret);
    return 0;
}

/* --- a verifier that is fed by hand ------------------------------------- */

struct hand {
    struct auth_client *a;
    struct pgbuf out;
    struct err e;
};

static void hand_init(struct hand *h, const struct auth_client_params *p)
{
    memset(h, 0, sizeof *h);
    pgbuf_init(&h->out, 100000);
    h->a = auth_client_new(p);
    assert_int_equal(auth_client_start(h->a, &h->out, &h->e), AUTH_MORE);
}

static void hand_fini(struct hand *h)
{
    auth_client_free(h->a);
    pgbuf_fini(&h->out);
}

static int hand_raw(struct hand *h, struct slice body)
{
    pgbuf_wipe(&h->out);
    return auth_client_step(h->a, body, &h->out, &h->e);
}

static int hand_initial(struct hand *h, const char *mechanism, const char *data)
{
    struct pgbuf b;
    pgbuf_init(&b, 100000);
    pg_put_sasl_initial(&b, mechanism, slice_str(data));
    int rc = hand_raw(h, pair_body(&b, PG_MSG_PASSWORD));
    pgbuf_fini(&b);
    return rc;
}

/* The SASL data of the message that came out. */
static void assert_out(const struct hand *h, uint32_t code, const char *data)
{
    struct slice body = pair_body(&h->out, PG_MSG_AUTH);
    assert_int_equal(pg_get_u32(body.p), code);
    assert_true(slice_is(slice_of(body.p + 4, body.n - 4), data));
}

#define CLIENT_NONCE "rOprNGfwEbeRWgbNEkqO"
#define SERVER_NONCE "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
#define CLIENT_FIRST "n,,n=user,r=" CLIENT_NONCE
#define SERVER_FIRST                                                           \
    "r=" CLIENT_NONCE SERVER_NONCE ",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
#define CLIENT_FINAL                                                           \
    "c=biws,r=" CLIENT_NONCE SERVER_NONCE                                      \
    ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
#define SERVER_FINAL "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

static struct auth_client_params rfc_params(void)
{
    return (struct auth_client_params){
        .method = AUTH_METHOD_SCRAM,
        .user = slice_str("user"),
        .secret = &secret,
        .test_nonce = slice_str(SERVER_NONCE),
    };
}

static void rfc7677_example(void **state)
{
    struct hand h;
    struct auth_client_params p = rfc_params();
    hand_init(&h, &p);
    assert_int_equal(hand_initial(&h, "SCRAM-SHA-256", CLIENT_FIRST),
                     AUTH_MORE);
    assert_out(&h, PG_AUTH_SASL_CONTINUE, SERVER_FIRST);
    assert_int_equal(hand_raw(&h, slice_str(CLIENT_FINAL)), AUTH_OK);
    assert_out(&h, PG_AUTH_SASL_FINAL, SERVER_FINAL);
    hand_fini(&h);
}

static void mechanism_may_come_alone(void **state)
{
    struct hand h;
    struct auth_client_params p = rfc_params();
    hand_init(&h, &p);
    assert_int_equal(
        hand_raw(&h, slice_of("SCRAM-SHA-256\0\xff\xff\xff\xff", 18)),
        AUTH_MORE);
    assert_out(&h, PG_AUTH_SASL_CONTINUE, "");
    assert_int_equal(hand_raw(&h, slice_str(CLIENT_FIRST)), AUTH_MORE);
    assert_out(&h, PG_AUTH_SASL_CONTINUE, SERVER_FIRST);
    assert_int_equal(hand_raw(&h, slice_str(CLIENT_FINAL)), AUTH_OK);
    hand_fini(&h);
}

static void list_of_mechanisms(void **state)
{
    struct hand h;
    struct auth_client_params p = rfc_params();
    hand_init(&h, &p);
    struct slice body = pair_body(&h.out, PG_MSG_AUTH);
    assert_true(slice_eq(body, slice_of("\0\0\0\12SCRAM-SHA-256\0", 19)));
    hand_fini(&h);
    p.has_tls = p.allow_plus = true;
    p.tls_server_end_point = slice_str(hash);
    hand_init(&h, &p);
    body = pair_body(&h.out, PG_MSG_AUTH);
    assert_true(slice_eq(
        body, slice_of("\0\0\0\12SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0", 38)));
    hand_fini(&h);
}

static void first_messages(void **state)
{
    static const struct {
        const char *mechanism, *data;
        int plain, plus; /* answer without and with PLUS offered */
    } cases[] = {
        {"SCRAM-SHA-256", "n,,n=,r=abc", AUTH_MORE, AUTH_MORE},
        {"SCRAM-SHA-256", "n,,n=,r=abc,x=ignored", AUTH_MORE, AUTH_MORE},
        {"SCRAM-SHA-256", "y,,n=,r=abc", AUTH_MORE, ERR_AUTHZ},
        {"SCRAM-SHA-256", "p=tls-server-end-point,,n=,r=abc", ERR_PROTO,
         ERR_PROTO},
        {"SCRAM-SHA-256-PLUS", "p=tls-server-end-point,,n=,r=abc", ERR_PROTO,
         AUTH_MORE},
        {"SCRAM-SHA-256-PLUS", "p=tls-unique,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256-PLUS", "p=tls-server-end-point", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256-PLUS", "n,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256-PLUS", "y,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-1", "n,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"", "n,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,a=other,n=,r=abc", ERR_UNSUPPORTED,
         ERR_UNSUPPORTED},
        {"SCRAM-SHA-256", "n,,m=ext,n=,r=abc", ERR_UNSUPPORTED,
         ERR_UNSUPPORTED},
        {"SCRAM-SHA-256", "", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n=,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,x,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "z,,n=,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,r=abc", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=,r=", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=,r=a b", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=,r=a\x7f", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=,r=abc,1=x", ERR_PROTO, ERR_PROTO},
        {"SCRAM-SHA-256", "n,,n=,r=abc,x", ERR_PROTO, ERR_PROTO},
    };
    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        struct hand h;
        struct auth_client_params p = rfc_params();
        bool plus = i % 2;
        p.has_tls = p.allow_plus = plus;
        p.tls_server_end_point = slice_str(hash);
        hand_init(&h, &p);
        int rc = hand_initial(&h, cases[i / 2].mechanism, cases[i / 2].data);
        if (rc != (plus ? cases[i / 2].plus : cases[i / 2].plain))
            fail_msg("case %zu: %d: %s", i, rc, h.e.text);
        hand_fini(&h);
    }
}

static void final_messages(void **state)
{
    static const struct {
        const char *data;
        int rc;
    } cases[] = {
        {CLIENT_FINAL, AUTH_OK},
        {"", ERR_PROTO},
        {"c=biws", ERR_PROTO},
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE, ERR_PROTO},
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE ",", ERR_PROTO},
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE ",p=", ERR_PROTO},
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE ",p=AAAA", ERR_PROTO},
        {CLIENT_FINAL ",x=y", ERR_PROTO},
        {CLIENT_FINAL "=", ERR_PROTO},
        {"r=" CLIENT_NONCE SERVER_NONCE
         ",c=biws,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
         ERR_PROTO},
        /* "y,," where "n,," was said */
        {"c=eSws,r=" CLIENT_NONCE SERVER_NONCE
         ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
         ERR_PROTO},
        /* the client's nonce alone; another one */
        {"c=biws,r=" CLIENT_NONCE
         ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
         ERR_PROTO},
        {"c=biws,r=" CLIENT_NONCE "x" SERVER_NONCE
         ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
         ERR_PROTO},
        /* well formed, wrong */
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE
         ",p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
         ERR_AUTH},
        {"c=biws,r=" CLIENT_NONCE SERVER_NONCE
         ",x=y,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
         ERR_AUTH},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct hand h;
        struct auth_client_params p = rfc_params();
        hand_init(&h, &p);
        assert_int_equal(hand_initial(&h, "SCRAM-SHA-256", CLIENT_FIRST),
                         AUTH_MORE);
        int rc = hand_raw(&h, slice_str(cases[i].data));
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d: %s", i, rc, h.e.text);
        assert_int_equal(auth_client_keys(h.a)->has_scram, rc == AUTH_OK);
        /* It is over, whatever comes. */
        assert_int_equal(hand_raw(&h, slice_str(CLIENT_FINAL)), ERR_PROTO);
        hand_fini(&h);
    }
}

static void password_messages(void **state)
{
    static const struct {
        const char *data;
        size_t n;
        int rc;
    } cases[] = {
        {"pencil", 7, AUTH_OK},     {"pencil", 6, ERR_PROTO},
        {"", 0, ERR_PROTO},         {"", 1, ERR_AUTH},
        {"pencil\0", 8, ERR_PROTO}, {"pencil\0x", 9, ERR_PROTO},
        {"pencilx", 8, ERR_AUTH},   {"penci", 6, ERR_AUTH},
    };
    struct auth_secret plain;
    assert_int_equal(auth_secret_parse(slice_str("pencil"), &plain), 0);
    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        struct hand h;
        struct auth_client_params p = {
            .method = AUTH_METHOD_PLAIN,
            .user = slice_str("user"),
            .secret = i % 2 ? &plain : &secret,
        };
        hand_init(&h, &p);
        assert_int_equal(
            hand_raw(&h, slice_of(cases[i / 2].data, cases[i / 2].n)),
            cases[i / 2].rc);
        hand_fini(&h);
    }
    auth_secret_fini(&plain);
}

static void bodies_are_capped(void **state)
{
    struct hand h;
    struct auth_client_params p = rfc_params();
    char *big = malloc(AUTH_PASSWORD_BODY_MAX + 1);
    memset(big, 'a', AUTH_PASSWORD_BODY_MAX);
    big[AUTH_PASSWORD_BODY_MAX] = 0;
    hand_init(&h, &p);
    assert_int_equal(auth_client_body_max(h.a), AUTH_SASL_BODY_MAX);
    memcpy(big, CLIENT_FIRST ",x=", sizeof CLIENT_FIRST + 2);
    big[AUTH_SASL_BODY_MAX] = 0;
    assert_int_equal(hand_initial(&h, "SCRAM-SHA-256", big), ERR_PROTO);
    hand_fini(&h);
    hand_init(&h, &p);
    big[AUTH_SASL_BODY_MAX - 18] = 0;
    assert_int_equal(hand_initial(&h, "SCRAM-SHA-256", big), AUTH_MORE);
    big[AUTH_SASL_BODY_MAX - 18] = 'a';
    assert_int_equal(hand_raw(&h, slice_of(big, AUTH_SASL_BODY_MAX + 1)),
                     ERR_PROTO);
    hand_fini(&h);
    p.method = AUTH_METHOD_PLAIN;
    hand_init(&h, &p);
    assert_int_equal(auth_client_body_max(h.a), AUTH_PASSWORD_BODY_MAX);
    assert_int_equal(hand_raw(&h, slice_of(big, AUTH_PASSWORD_BODY_MAX + 1)),
                     ERR_PROTO);
    hand_fini(&h);
    free(big);
}

/* Nothing on the wire tells a user with a plain password from one with an md5
 * secret, without a password, or nobody at all. */
static void unknown_users_look_alike(void **state)
{
    static const char *const texts[] = {
        "pencil", "md58bbf3f45673bf67d02e4214911f3417f", "", NULL};
    char first[200] = "";
    for (size_t i = 0; i < 2 * ARRAY_SIZE(texts); i++) {
        struct hand h;
        struct auth_secret s = {0};
        const char *text = texts[i / 2];
        struct auth_client_params p = rfc_params();
        p.secret = text ? &s : NULL;
        p.process_key = slice_str("process key");
        if (text)
            assert_int_equal(auth_secret_parse(slice_str(text), &s), 0);
        hand_init(&h, &p);
        assert_int_equal(hand_initial(&h, "SCRAM-SHA-256", CLIENT_FIRST),
                         AUTH_MORE);
        struct slice body = pair_body(&h.out, PG_MSG_AUTH);
        if (!*first)
            assert_true(
                slice_copy(slice_of(body.p + 4, body.n - 4), first, 200));
        assert_out(&h, PG_AUTH_SASL_CONTINUE, first);
        assert_int_equal(hand_raw(&h, slice_str(CLIENT_FINAL)), ERR_AUTH);
        assert_int_equal(h.out.n, 0);
        hand_fini(&h);
        auth_secret_fini(&s);
    }
}

/* --- damage on the way -------------------------------------------------- */

struct damage {
    int turn;
    size_t at;
    int kind;
    size_t size; /* of the message, once seen */
    char changed[2100];
};

enum {
    DAMAGE_FLIP_LOW,
    DAMAGE_FLIP_HIGH,
    DAMAGE_ZERO,
    DAMAGE_COMMA,
    DAMAGE_CUT,
    DAMAGE_DOUBLE,
    DAMAGE_LAST,
};

static struct slice do_damage(void *arg, int turn, struct slice body)
{
    struct damage *d = arg;
    if (turn != d->turn)
        return body;
    d->size = body.n;
    if (d->at >= body.n)
        return body;
    memcpy(d->changed, body.p, body.n);
    char *c = d->changed + d->at;
    size_t n = body.n;
    switch (d->kind) {
    case DAMAGE_FLIP_LOW:
        *c ^= 1;
        break;
    case DAMAGE_FLIP_HIGH:
        *c = (char)(*c ^ 0x80);
        break;
    case DAMAGE_ZERO:
        *c = 0;
        break;
    case DAMAGE_COMMA:
        *c = ',';
        break;
    case DAMAGE_CUT:
        n = d->at;
        break;
    default:
        memmove(c + 1, c, n++ - d->at);
    }
    if (slice_eq(slice_of(d->changed, n), body))
        d->changed[d->at] = '!';
    return slice_of(d->changed, n);
}

static struct auth_cache *cache; /* or the test takes a minute */

/* False when there is no such byte. */
static bool try_damage(struct damage *d, bool is_bound)
{
    struct auth_client_params v = {
        .method = AUTH_METHOD_SCRAM,
        .user = slice_str("user"),
        .secret = &secret,
        .has_tls = is_bound,
        .allow_plus = is_bound,
        .tls_server_end_point = slice_str(hash),
    };
    struct auth_server_params s = {
        .user = slice_str("user"),
        .password = slice_str("pencil"),
        .has_tls = is_bound,
        .tls_server_end_point = slice_str(hash),
        .cache = cache,
        .may_work = true,
    };
    struct pair p = {.verifier = auth_client_new(&v),
                     .prover = auth_server_new(&s),
                     .tap = do_damage,
                     .tap_arg = d};
    pair_run(&p);
    bool is_seen = d->at < d->size;
    bool is_ok = p.verifier_rc == AUTH_OK && p.prover_rc == AUTH_OK;
    /* The list's rest may change when what was chosen binds. */
    bool is_harmless = d->turn == 0 && auth_client_is_bound(p.verifier);
    if (is_ok == is_seen && !is_harmless)
        fail_msg("turn %d byte %zu kind %d bound %d: %d %d", d->turn, d->at,
                 d->kind, is_bound, p.verifier_rc, p.prover_rc);
    /* What the client sent must not be accepted at all. */
    if (is_seen && d->turn % 2)
        assert_int_not_equal(p.verifier_rc, AUTH_OK);
    pair_fini(&p);
    return is_seen;
}

static void every_byte_counts(void **state)
{
    cache = auth_cache_new(16);
    for (int turn = 0; turn < 5; turn++) {
        for (int kind = 0; kind < DAMAGE_LAST; kind++) {
            for (int bound = 0; bound < 2; bound++) {
                struct damage d = {.turn = turn, .kind = kind};
                while (try_damage(&d, bound))
                    d.at++;
            }
        }
    }
    auth_cache_free(cache);
}

/* --- a server that lies ------------------------------------------------- */

struct lie {
    struct auth_server *a;
    struct pgbuf out;
    struct err e;
};

static void lie_init(struct lie *l, struct auth_server_params *p)
{
    memset(l, 0, sizeof *l);
    pgbuf_init(&l->out, 100000);
    p->user = slice_str("user");
    p->test_nonce = slice_str(CLIENT_NONCE);
    l->a = auth_server_new(p);
}

static void lie_fini(struct lie *l)
{
    auth_server_free(l->a);
    pgbuf_fini(&l->out);
}

static int lie_tell(struct lie *l, uint32_t code, const char *data, size_t n)
{
    struct pgbuf b;
    pgbuf_init(&b, 100000);
    pg_put_auth_data(&b, code, slice_of(data, n));
    pgbuf_wipe(&l->out);
    int rc = auth_server_step(l->a, pair_body(&b, PG_MSG_AUTH), &l->out, &l->e);
    pgbuf_fini(&b);
    return rc;
}

static int lie_text(struct lie *l, uint32_t code, const char *data)
{
    return lie_tell(l, code, data, strlen(data));
}

/* A prover that has sent its client-first-message. */
static void lie_to_first(struct lie *l, struct auth_server_params *p)
{
    static const char first[] = "SCRAM-SHA-256\0\0\0\0\34"
                                "n,,n=,r=" CLIENT_NONCE;
    p->password = slice_str("pencil");
    lie_init(l, p);
    assert_int_equal(lie_tell(l, PG_AUTH_SASL, "SCRAM-SHA-256\0", 15),
                     AUTH_MORE);
    assert_true(slice_eq(pair_body(&l->out, PG_MSG_PASSWORD),
                         slice_of(first, sizeof first - 1)));
}

static void server_first_messages(void **state)
{
    static const struct {
        const char *data;
        int rc;
    } cases[] = {
        {SERVER_FIRST, AUTH_MORE},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=1", AUTH_MORE},
        {"", ERR_PROTO},
        {"r=" CLIENT_NONCE ",s=QQ==,i=1", ERR_PROTO},
        {"r=xyz" CLIENT_NONCE ",s=QQ==,i=1", ERR_PROTO},
        {"m=ext,r=" CLIENT_NONCE "x,s=QQ==,i=1", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=,i=1", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=Q,i=1", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,i=1", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=0", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=-5", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=1x", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=1,", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=1,x=y", ERR_PROTO},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=1000001", ERR_TOO_LARGE},
        {"r=" CLIENT_NONCE "x,s=QQ==,i=2147483648", ERR_PROTO},
        {"r=" CLIENT_NONCE " ,s=QQ==,i=1", ERR_PROTO},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct lie l;
        struct auth_server_params p = {0};
        lie_to_first(&l, &p);
        int rc = lie_text(&l, PG_AUTH_SASL_CONTINUE, cases[i].data);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d: %s", i, rc, l.e.text);
        if (rc < 0)
            assert_int_equal(lie_text(&l, PG_AUTH_OK, ""), ERR_PROTO);
        lie_fini(&l);
    }
}

static void server_final_messages(void **state)
{
    static const struct {
        const char *data;
        int rc;
    } cases[] = {
        {"", ERR_PROTO},
        {"e=invalid-proof", ERR_AUTH},
        {"e=\n", ERR_AUTH},
        {"v=", ERR_PROTO},
        {"v=AAAA", ERR_PROTO},
        {SERVER_FINAL, ERR_AUTH}, /* of another dialogue */
        {SERVER_FINAL ",x=y", ERR_PROTO},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct lie l;
        struct auth_server_params p = {0};
        lie_to_first(&l, &p);
        assert_int_equal(lie_text(&l, PG_AUTH_SASL_CONTINUE, SERVER_FIRST),
                         AUTH_MORE);
        int rc = lie_text(&l, PG_AUTH_SASL_FINAL, cases[i].data);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d: %s", i, rc, l.e.text);
        assert_null(strchr(l.e.text, '\n'));
        lie_fini(&l);
    }
}

static void messages_out_of_turn(void **state)
{
    struct lie l;
    struct auth_server_params p = {0};
    lie_to_first(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_OK, ""), ERR_AUTH);
    lie_fini(&l);
    lie_to_first(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_SASL_CONTINUE, SERVER_FIRST),
                     AUTH_MORE);
    assert_int_equal(lie_text(&l, PG_AUTH_OK, ""), ERR_AUTH);
    lie_fini(&l);
    lie_to_first(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_SASL_FINAL, SERVER_FINAL), ERR_PROTO);
    lie_fini(&l);
    lie_to_first(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_CLEARTEXT, ""), ERR_PROTO);
    lie_fini(&l);
    lie_init(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_SASL_CONTINUE, SERVER_FIRST),
                     ERR_PROTO);
    lie_fini(&l);
    lie_init(&l, &p);
    assert_int_equal(lie_text(&l, PG_AUTH_CLEARTEXT, ""), AUTH_MORE);
    assert_int_equal(lie_text(&l, PG_AUTH_MD5, "salt"), ERR_PROTO);
    lie_fini(&l);
}

static void requests(void **state)
{
    static const struct {
        uint32_t code;
        const char *data;
        size_t n;
        int rc;
        const char *text;
    } cases[] = {
        {PG_AUTH_OK, "", 0, AUTH_OK, ""},
        {PG_AUTH_CLEARTEXT, "", 0, AUTH_MORE, ""},
        {PG_AUTH_MD5, "salt", 4, AUTH_MORE, ""},
        {PG_AUTH_MD5, "sal", 3, ERR_PROTO, "md5"},
        {PG_AUTH_MD5, "salty", 5, ERR_PROTO, "md5"},
        {PG_AUTH_KERBEROS_V5, "", 0, ERR_UNSUPPORTED, "kerberos"},
        {PG_AUTH_GSS, "", 0, ERR_UNSUPPORTED, "gss"},
        {PG_AUTH_SSPI, "", 0, ERR_UNSUPPORTED, "sspi"},
        {4711, "", 0, ERR_UNSUPPORTED, "4711"},
        {PG_AUTH_SASL, "OTHER\0", 7, ERR_UNSUPPORTED, "SCRAM-SHA-256"},
        {PG_AUTH_SASL, "", 0, ERR_PROTO, "SASL"},
        {PG_AUTH_SASL, "SCRAM-SHA-256", 13, ERR_PROTO, "SASL"},
        {PG_AUTH_SASL, "SCRAM-SHA-256", 14, ERR_PROTO, "SASL"},
        {PG_AUTH_SASL, "\0SCRAM-SHA-256\0", 16, ERR_PROTO, "SASL"},
        {PG_AUTH_SASL, "SCRAM-SHA-256-PLUS\0", 20, ERR_PROTO, "TLS"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct lie l;
        struct auth_server_params p = {.password = slice_str("pencil")};
        lie_init(&l, &p);
        int rc = lie_tell(&l, cases[i].code, cases[i].data, cases[i].n);
        if (rc != cases[i].rc || !strstr(l.e.text, cases[i].text))
            fail_msg("case %zu: %d: %s", i, rc, l.e.text);
        lie_fini(&l);
    }
}

static void tiny_and_huge_messages(void **state)
{
    char huge[AUTH_SERVER_BODY_MAX + 1] = {0};
    for (size_t n = 0; n <= sizeof huge; n += n < 4 ? 1 : sizeof huge - 4) {
        struct lie l;
        struct auth_server_params p = {0};
        lie_init(&l, &p);
        int rc = auth_server_step(l.a, slice_of(huge, n), &l.out, &l.e);
        assert_int_equal(rc, n == 4 ? AUTH_OK : ERR_PROTO);
        lie_fini(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rfc7677_example),
        cmocka_unit_test(mechanism_may_come_alone),
        cmocka_unit_test(list_of_mechanisms),
        cmocka_unit_test(first_messages),
        cmocka_unit_test(final_messages),
        cmocka_unit_test(password_messages),
        cmocka_unit_test(bodies_are_capped),
        cmocka_unit_test(unknown_users_look_alike),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(server_first_messages),
        cmocka_unit_test(server_final_messages),
        cmocka_unit_test(messages_out_of_turn),
        cmocka_unit_test(requests),
        cmocka_unit_test(tiny_and_huge_messages),
    };
    return cmocka_run_group_tests(tests, make_secret, free_secret);
}
