/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/secret.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "auth/scram.h"

/* Passwords and what PostgreSQL 15 made of them: SASLprep of every kind, and
 * where it fails the bytes as they are. */
static const char *const from_postgres[][2] = {
    {"pencil", "SCRAM-SHA-256$4096:dtbLLe0pKtuVmdxyBAy4Zw==$"
               "ccSj5ZTI0vtsFK5WrJ0SCkLdkfWcET0jh0Y9kyV/"
               "tMs=:FzHF+cA6ErZy6hXZ5tUqlXV4jFll7zXzsJfhmTyNtfE="},
    {"I\302\255X",
     "SCRAM-SHA-256$4096:JVN1mUyp0wFaGXlt/SsEAQ==$7/irWBwT9tjRdPntVCjuvm/"
     "dJs+edZZjsFV4lQWF7Pk=:MVriO43qvmpfozJfhWR8SEctnlINbvd8jtaGZ76Sahc="},
    {"user\302\240name",
     "SCRAM-SHA-256$4096:QUEQ9FXeL/"
     "wjFvCl1gmkqQ==$8sbTCmbXs1jqpWCNfTyYfXTZsNUDPBS9GrAsHYr+SeU=:"
     "VWnMRIbQ7ZezqH5F+ule70hDq5vPdRjgddIoRjkSGXQ="},
    {"\302\252", "SCRAM-SHA-256$4096:dCGI84dcRrplMDM3mnKOyQ==$"
                 "y7QuEKJ56LSeE7L259Wr0GXkBnO1oyxuFtCATKzv3W4=:"
                 "dz7q367oHCnaTeIxS8AN1ByL1Ct/1uj3CLYUAePutfo="},
    {"\342\205\250",
     "SCRAM-SHA-256$4096:DsQR3S+U4M+HElMQA1BC7g==$IJmhjv4uGHN/"
     "oohS4kVCFKxeJPuE3MUv/"
     "THoOQlMWX8=:NGKm17H8IVhvWhRm4SowqZ3XzLemBdO0fcwez1Yji4c="},
    {"\007", "SCRAM-SHA-256$4096:378ecYgCC7zujl7/"
             "EtrOuQ==$6a22AuividP7xROrE+dEAhEYVi3P2RCzLXxyWUcWAOk=:"
             "lPhWXBaOxai42Uef0ISA2TMZe+aHL7uR+CmHTKuqbz8="},
    {"\330\2471", "SCRAM-SHA-256$4096:AhIHzKji6vbtj/"
                  "tbFcABtA==$YRGTFtdy+kO+4TSCrlCQ4IBdCOQOge4r1gNvwF4ezaI=:"
                  "2r7EZ2LTwYMlfJRksLNwqPtcJknfB1f3r0Wt5+Al55c="},
    {"\330\247x\330\250",
     "SCRAM-SHA-256$4096:ShrbfSmvli2mVq+59nM4rQ==$fcb7r5lCgSt0wBDTrZJ9LnlY+"
     "ymNon2bAkxWQBvkkms=:w+JN0UlAMHHp5kVmBRaVphW/f8Wjb82hXp+mTVLhMr8="},
    {"\330\247\330\250",
     "SCRAM-SHA-256$4096:/"
     "N8+GOaDSz06bfGQQ9DhyA==$BxMrDfOpCwdM3BsAtz3aALbniwQEdt5eowe9B/"
     "fBioA=:EBHVEV4/CnocBGfg+z7o4e5qpnzdb94u0z+xZ5rQf6Q="},
    {"a\342\200\213b", "SCRAM-SHA-256$4096:DXlsrRYNJiTcPtKMvU4dAg==$"
                       "UPL7QY3kLzSIUcnUyJ9YYBOtZEDyyeWzglc5zCoXqr4=:"
                       "wAtepeOORZZ1Q0C+KraUR/IueiFIvuYO6la34HqqgzA="},
    {"a\341\232\200b", "SCRAM-SHA-256$4096:qgTUlXzT8R1qWizG/"
                       "8HfSg==$rUXYF6p0tdzRft4C75bmIElqhtjOwj11jnGv+W/"
                       "jmcA=:aM1PYNfDCYFm2j4yp+tDBIPe56e6cgTTaEYmoe1i69o="},
    {"\310\241",
     "SCRAM-SHA-256$4096:j5TIjz70gilFSMtP8ym4wg==$OjC/7S7X06Q/7WyaIE4ZYkGDAO/"
     "4pGD8FPmiwmERNeM=:WbIWOTl+TBM5YTXXQlziocnvxW8ihEBnlJsb/yV3H1A="},
    {"\315\200", "SCRAM-SHA-256$4096:7S5yxmLSjh9OUC32CMXBiA==$"
                 "x0u7qLcrejG4GtBMkvcmyOkmefcJvtzaDHfRCzhVVO0=:wOGSgh+"
                 "jNL5lHbFXRB9ohf2zhwmAF/CjiElZXBtZpkk="},
    {"\302\255", "SCRAM-SHA-256$4096:SU2hiwdSQYo4J4dXuBk46w==$"
                 "7QFw8aGFd6a64EvvlBB1Vucm7IGPKGm0tw4+e25aIAU=:FspIP4++dwx/"
                 "PYVdxVNjU0OW264UW5F8/EwUhZaoNQE="},
    {"\341\204\200\341\205\241",
     "SCRAM-SHA-256$4096:a+l/"
     "Ru0GqpmPPbx2aCrvCg==$WvLJSbesjzUJrxXuml64FluVgj+grVyo3deHnRZh9FA=:"
     "w7vZpsVzTy+VyRrxysinUro0M7rMKl5EPmvuJXeXlDY="},
    {"e\314\201", "SCRAM-SHA-256$4096:1LCMx4OMzIiVoqUO8JiAmw==$qyDiNtY5kGIAzJH+"
                  "44aLIbmVUbEt1tNQNU5X3Yaasxo=:"
                  "UPFm2ig3tBf6gfTyb2cGWR8ZemVMtb0AK8IPz+daBXw="},
    {"\360\237\230\200", "SCRAM-SHA-256$4096:pGlaSPa8L+opeJcUbcCahw==$"
                         "n3GYrvMIqdxSQCxHYTpy6KV29Xm9BuqPVVDXoelBdPQ=:"
                         "GQQas5RVc/QobjIBZOfR/HEc4HDjENafNQMzygfspdQ="},
    {"a\357\273\277b", "SCRAM-SHA-256$4096:1oXqk5rcJHh3z+thAwJbTw==$"
                       "rTuDXvs6HrzPFCyD70Uq63hKXrYfzhQIJ48KFHCbIug=:"
                       "DrbQReOmRPJ//w7IIPL1d2bN6qZrd+Ql+61uxsPmSXw="},
    {"\356\200\200",
     "SCRAM-SHA-256$4096:WV16Rb+JeB42UMRiic4lxA==$S4COZR6Kae79LE/"
     "1nT1Iog1bxxeZ+izFtlwDWhHLITo=:"
     "anxL2zcUFiUEUVzRTksMOTfjx2FJIENTLfU2qsdMqvE="},
    {"\333\235", "SCRAM-SHA-256$4096:1rlNqTRZgkUTufEwFfWcsQ==$+AoTmH/"
                 "1Y0sy60gihQaXsbwX+NleaJ15PYRRLuAFUmU=:u07pHs8IlhLGR+"
                 "2epvTHgV7M0A+E+5MPsUw4FADOhyg="},
    {"\342\204\253", "SCRAM-SHA-256$4096:GevWQyl3WYNRjnSa3cv16Q==$"
                     "ee9t1pdkFs4z8Mww5vkWTkCOY7I54f2OqmCf/o0EpGw=:1AH/"
                     "gEDFqR9dtFSrJW83jB07tYhL9CT5s5lcSrFkeyc="},
    {"p\303\244ssw\303\266rd", "SCRAM-SHA-256$4096:9fTt4ZN+UbFQyxbnmbWxPA==$K7/"
                               "Iruno4wrASCtwI8AJh2DnxXeWRowNb0LxdM6pYe4=:"
                               "ZA1VpUE39bET6kljB67mmVH8+F2eOzdExsyEHU4ATaM="},
    {"\357\254\201", "SCRAM-SHA-256$4096:Ws5jE3Xbf8JnOEjFIDXg9A==$QGklMA/"
                     "+9Ue4gniiHLe3Co2wUAMoW1pVg9nCbErfJYE=:"
                     "2MbEIGjNwN6yIitF6IIjVPgPBuSnAr8Glakd+sT29wo="},
    {"a\342\200\250b", "SCRAM-SHA-256$4096:u8zF6ZwuXjIQDHQNFLuDhw==$z2/eiQKwdC/"
                       "qetEW/51D6edNkplMY5uP+pf3E7n1giE=:eqnE5eOxFBKmrVim/"
                       "CxgRZn8Hnp9xfmYTN6Fr59RAaY="},
    {"\342\274\200",
     "SCRAM-SHA-256$4096:iHgVZfq3y+3tT1zwAziHHA==$kKMFui2O3cpUQVJtraFcfP/"
     "mYAgxXxh25fDRCRr1tf0=:qPzVxqwp0NLOD2BcVDM4+244wDkN04ruyt8cy1yVozY="},
    {"\377\376", "SCRAM-SHA-256$4096:nCI2EgXFSpCmlaaDPFNw/"
                 "g==$hrCNhPm5pDqSfeUgyYQC8CE8rj6k3AuCoxJhhP2GUUw=:"
                 "41io5LonPrZrTckkrkCSkb4xDzitm4MwWFGfjVQEwq0="},
    {"\300\257x", "SCRAM-SHA-256$4096:KXPCJnvgCeMZ0tSL2KrZhw==$4YSrptCtYGazLy/"
                  "dlruhJbETk6lmEX64WbtiN8NLYp4=:lruLCEtlHSkXI9L9qGzZ5a749Z0u/"
                  "avNGrQ5da6yfQw="},
    {"\355\240\200", "SCRAM-SHA-256$4096:W6IQmjqRWNIBxzZ2pVy1pw==$"
                     "AlbparFqSHEWYTYohTY0Ors8823IgFepyGx/nya/YVg=:6ec9hHjoJ/"
                     "ZpCpE0RCB01mUjsClkFxLvdZZjSNu4Cp0="},
    {"\364\220\200\200", "SCRAM-SHA-256$4096:38lcNFW09x5GXLuh4lt8Vg==$/"
                         "WjqJeWQrScw5vYN9YMTWVEhOAaWHvolRIBeuUmyQlA=:guEg/"
                         "O1dKKuWat9eSkT5e39II0WaEVOATh8btYPxDvE="},
    {"ok\303", "SCRAM-SHA-256$4096:a7IfWq+svQWer2Y5/"
               "YPVpw==$TDmtwRKDubGtjjfOwuesdOnAELGlRXWIFq91kvi/Nn4=:cZS/"
               "smWOoquRkHmP6O9+m6NmBZztfgcTjFrdZDs137w="},
    {"\340\270\263", "SCRAM-SHA-256$4096:5nt5UqByObwT8fj7LdjahQ==$"
                     "uRRmeNi2XQrWwoPwI2PLelBLvb41FkGBn2eV0yoxZ3s=:"
                     "OKAlI12Ds5fJ8iGAm0nsHAa1zAjeRxi1VjOAEYdbkV0="},
    {"\341\272\233\314\243",
     "SCRAM-SHA-256$4096:HKxLxwIe2YUOJw1tLGEEvg==$BPD61xK9VEWWS2fOcayEBlJLXgdP/"
     "SzDgNL5AaRMsYk=:xs+y9o4ipFlgeQAyxK/zrpt0CKfY6DHp7Qdldm3ZgTc="},
    {"a\343\200\200b", "SCRAM-SHA-256$4096:OGgajn+Muc7ZkHnA5h/"
                       "baQ==$emeF+b2QqDtMkIU2w98LIUtQe96nuLNl5XqBmhjV/"
                       "Os=:eHJdNfdmAFpKN5VYg4I4RE6soEOnDymz/GmNBoga+Vg="},
    {"\342\200\203x",
     "SCRAM-SHA-256$4096:i/"
     "3bdceFrceZdgr5qrXlJQ==$StYGZHR5WX+e099RHfHLMdV4K2wbUDCsE4yAGFzccMg=:"
     "ekdhYPAXColjcQDFmnzocWFJxIUWM+NnABT3G1Nryw0="},
};

static struct auth_secret parse(const char *text)
{
    struct auth_secret s;
    assert_int_equal(auth_secret_parse(slice_str(text), &s), 0);
    return s;
}

static void kinds_are_told_apart(void **state)
{
    static const struct {
        const char *text;
        enum auth_secret_kind kind;
    } cases[] = {
        {"", AUTH_SECRET_NONE},
        {"x", AUTH_SECRET_PLAIN},
        {"md5", AUTH_SECRET_PLAIN},
        {"md58bbf3f45673bf67d02e4214911f3417f", AUTH_SECRET_MD5},
        {"md58BBF3f45673bf67d02e4214911f3417f", AUTH_SECRET_PLAIN},
        {"md58bbf3f45673bf67d02e4214911f3417", AUTH_SECRET_PLAIN},
        {"md58bbf3f45673bf67d02e4214911f3417ff", AUTH_SECRET_PLAIN},
        {"md58bbf3f45673bf67d02e4214911f3417g", AUTH_SECRET_PLAIN},
        {"SCRAM-SHA-256", AUTH_SECRET_PLAIN},
        {"SCRAM-SHA-256$4096:", AUTH_SECRET_PLAIN},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct auth_secret s = parse(cases[i].text);
        assert_int_equal(s.kind, cases[i].kind);
        assert_true(slice_is(auth_secret_text(&s), cases[i].text));
        auth_secret_fini(&s);
        assert_int_equal(s.kind, AUTH_SECRET_NONE);
    }
}

static void scram_text_goes_both_ways(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(from_postgres); i++) {
        char text[AUTH_SCRAM_TEXT_SIZE];
        struct auth_secret s = parse(from_postgres[i][1]);
        assert_int_equal(s.kind, AUTH_SECRET_SCRAM);
        assert_int_equal(s.iterations, 4096);
        assert_int_equal(s.salt_n, 16);
        assert_false(s.is_derived);
        size_t n = auth_secret_scram_text(&s, text);
        assert_int_equal(n, strlen(text));
        assert_string_equal(text, from_postgres[i][1]);
        auth_secret_fini(&s);
    }
}

static void derives_what_postgres_does(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(from_postgres); i++) {
        struct auth_secret want = parse(from_postgres[i][1]), got;
        assert_int_equal(
            auth_secret_derive_scram(slice_str(from_postgres[i][0]),
                                     slice_of(want.salt, want.salt_n),
                                     want.iterations, &got),
            0);
        assert_true(got.is_derived);
        got.is_derived = false;
        if (!auth_secret_equal(&want, &got))
            fail_msg("password %zu differs from PostgreSQL", i);
        auth_secret_fini(&want);
        auth_secret_fini(&got);
    }
}

/* Every bit of a character matters: what is still a secret is another one. */
static void damaged_scram_is_another_secret(void **state)
{
    const char *good = from_postgres[0][1];
    struct auth_secret want = parse(good);
    for (size_t i = 0; good[i]; i++) {
        char text[AUTH_SCRAM_TEXT_SIZE];
        strcpy(text, good);
        text[i] ^= 1;
        struct auth_secret s = parse(text);
        assert_false(auth_secret_equal(&s, &want));
        auth_secret_fini(&s);
    }
    auth_secret_fini(&want);
}

static void iteration_counts(void **state)
{
    static const struct {
        const char *count;
        int iterations;
    } cases[] = {{"1", 1},  {"2147483647", 2147483647}, {"0", 0},
                 {"-1", 0}, {"2147483648", 0},          {"4096x", 0},
                 {"", 0}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char text[AUTH_SCRAM_TEXT_SIZE] = "SCRAM-SHA-256$";
        strcat(text, cases[i].count);
        strcat(text, strchr(from_postgres[0][1], ':'));
        struct auth_secret s = parse(text);
        assert_int_equal(s.kind, cases[i].iterations ? AUTH_SECRET_SCRAM
                                                     : AUTH_SECRET_PLAIN);
        assert_int_equal(s.iterations, cases[i].iterations);
        auth_secret_fini(&s);
    }
}

static void caps(void **state)
{
    struct auth_secret s;
    char *big = malloc(AUTH_SECRET_TEXT_MAX + 1);
    memset(big, 'a', AUTH_SECRET_TEXT_MAX + 1);
    assert_int_equal(auth_secret_parse(slice_of(big, AUTH_SECRET_TEXT_MAX), &s),
                     0);
    auth_secret_fini(&s);
    assert_int_equal(
        auth_secret_parse(slice_of(big, AUTH_SECRET_TEXT_MAX + 1), &s),
        ERR_TOO_LARGE);
    free(big);
    assert_int_equal(auth_secret_parse(slice_of("a\0b", 3), &s), ERR_SYNTAX);
    char text[AUTH_SCRAM_TEXT_SIZE] = "SCRAM-SHA-256$1:";
    for (int i = 0; i < 44; i++)
        strcat(text, "AAAA");
    strcat(text, strrchr(from_postgres[0][1], '$'));
    assert_int_equal(auth_secret_parse(slice_str(text), &s), ERR_TOO_LARGE);
    assert_int_equal(s.kind, AUTH_SECRET_NONE);
}

static void longest_salt_fits_its_text(void **state)
{
    uint8_t salt[AUTH_SALT_MAX] = {1};
    char text[AUTH_SCRAM_TEXT_SIZE];
    struct auth_secret s, back;
    assert_int_equal(auth_secret_derive_scram(
                         slice_str("x"), slice_of(salt, sizeof salt), 1, &s),
                     0);
    s.iterations = INT32_MAX;
    s.is_derived = false;
    size_t n = auth_secret_scram_text(&s, text);
    assert_true(n >= 1 && n <= sizeof text - 1);
    back = parse(text);
    assert_true(auth_secret_equal(&s, &back));
    auth_secret_fini(&s);
    auth_secret_fini(&back);
}

static void md5_is_that_of_postgres(void **state)
{
    char out[AUTH_MD5_SECRET_LEN + 1];
    assert_int_equal(
        auth_secret_md5_of(slice_str("pencil"), slice_str("m"), out), 0);
    assert_string_equal(out, "md58bbf3f45673bf67d02e4214911f3417f");
}

static void copies_are_their_own(void **state)
{
    struct auth_secret s = parse("secret"), copy;
    auth_secret_copy(&s, &copy);
    auth_secret_fini(&s);
    assert_true(slice_is(auth_secret_text(&copy), "secret"));
    auth_secret_fini(&copy);
    struct auth_keys k = {.password = strdup("pw"), .password_n = 2}, kept;
    auth_keys_copy(&k, &kept);
    auth_keys_fini(&k);
    assert_null(k.password);
    assert_string_equal(kept.password, "pw");
    auth_keys_fini(&kept);
}

static void salt_depends_on_key_and_user(void **state)
{
    uint8_t a[AUTH_SALT_SIZE], b[AUTH_SALT_SIZE];
    struct slice key = slice_str("key"), user = slice_str("user");
    assert_int_equal(auth_secret_salt_for(key, user, a), 0);
    assert_int_equal(auth_secret_salt_for(key, user, b), 0);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(auth_secret_salt_for(key, slice_str("usr"), b), 0);
    assert_memory_not_equal(a, b, sizeof a);
    assert_int_equal(auth_secret_salt_for(slice_str("kez"), user, b), 0);
    assert_memory_not_equal(a, b, sizeof a);
}

static void assert_prep(const char *in, const char *want)
{
    size_t n;
    char *got = scram_prep_new(slice_str(in), &n);
    assert_true(slice_is(slice_of(got, n), want));
    scram_prep_free(got, n);
}

/* RFC 4013, section 3, and what PostgreSQL does where it forbids. */
static void saslprep_examples(void **state)
{
    assert_prep("I\302\255X", "IX");
    assert_prep("user", "user");
    assert_prep("USER", "USER");
    assert_prep("\302\252", "a");
    assert_prep("\342\205\250", "IX");
    assert_prep("\007", "\007");
    assert_prep("\330\2471", "\330\2471");
    assert_prep("", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_told_apart),
        cmocka_unit_test(scram_text_goes_both_ways),
        cmocka_unit_test(derives_what_postgres_does),
        cmocka_unit_test(damaged_scram_is_another_secret),
        cmocka_unit_test(iteration_counts),
        cmocka_unit_test(caps),
        cmocka_unit_test(longest_salt_fits_its_text),
        cmocka_unit_test(md5_is_that_of_postgres),
        cmocka_unit_test(copies_are_their_own),
        cmocka_unit_test(salt_depends_on_key_and_user),
        cmocka_unit_test(saslprep_examples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
