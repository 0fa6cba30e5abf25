/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "bench/load_options.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rand.h"

static const char help[] =
    "bench/load: queries that arrive whether or not the last ones were "
    "answered\n"
    "\n"
    "  load --to quic://HOST:PORT --sessions 400 --connections 10 --rate 5000\n"
    "  load --to tcp://HOST:PORT --sessions 10 --rate 100..2000 --duration 60\n"
    "  load --to /run/edge --port 6432 --sessions 32              (closed "
    "loop)\n"
    "\n"
    "Where to\n"
    "  --to URL             quic://, tls://, tcp://HOST[:PORT], or the folder "
    "of a\n"
    "                       Unix socket, then --port N (6432)\n"
    "  --ca FILE            who vouches for the server; --no-verify: nobody\n"
    "  --connections N      QUIC connections (4), filled one after the other\n"
    "  --streams N          sessions of each (sessions / connections)\n"
    "  --user, --dbname     postgres; the password comes from PGPASSWORD\n"
    "\n"
    "How much\n"
    "  --sessions N         the client pool (10); what finds none free queues\n"
    "  --open-at-once N     logins under way at a time (100)\n"
    "  --rate R | R..S      arrivals per second, or a ramp; without it a "
    "closed loop\n"
    "  --fixed              evenly spaced; else Poisson\n"
    "  --burst N            N arrivals at the start, all at once\n"
    "  --warmup S           not counted (0); --duration S (10); --drain S: how "
    "long\n"
    "                       the rest may take (5)\n"
    "  --max-queue N        ends the run early above it (200000)\n"
    "  --seed N             of arrivals and of {LOW-HIGH}\n"
    "\n"
    "What\n"
    "  --sql TEXT           repeated: statements sent one after the other, "
    "each after\n"
    "                       the reply to the last; {1-100000} is a random "
    "number\n"
    "                       (SELECT 1)\n"
    "  --mode M             simple, extended, prepared\n"
    "  --new-session        each query logs in, and leaves afterwards\n"
    "  --bulk N             N more sessions that repeat --bulk-sql TEXT all "
    "the "
    "time\n"
    "  --hold               opens the sessions, one query each, says \"ready "
    "N\",\n"
    "                       waits for the end of standard input\n"
    "\n"
    "Report\n"
    "  --csv FILE           a line for each second: offered, completed, "
    "errors, "
    "queue\n"
    "                       length and queries under way at its end, latency "
    "from\n"
    "                       arrival in ms, bytes of bulk sessions in MB\n"
    "  --json               the summary as one line of JSON\n";

enum option_key {
    KEY_TO = 1000,
    KEY_PORT,
    KEY_CA,
    KEY_NO_VERIFY,
    KEY_CONNECTIONS,
    KEY_STREAMS,
    KEY_USER,
    KEY_DBNAME,
    KEY_SESSIONS,
    KEY_OPEN_AT_ONCE,
    KEY_RATE,
    KEY_FIXED,
    KEY_BURST,
    KEY_WARMUP,
    KEY_DURATION,
    KEY_DRAIN,
    KEY_MAX_QUEUE,
    KEY_SEED,
    KEY_SQL,
    KEY_MODE,
    KEY_NEW_SESSION,
    KEY_BULK,
    KEY_BULK_SQL,
    KEY_HOLD,
    KEY_CSV,
    KEY_JSON,
    KEY_HELP,
};

static const struct option keys[] = {
    {"to", 1, NULL, KEY_TO},
    {"port", 1, NULL, KEY_PORT},
    {"ca", 1, NULL, KEY_CA},
    {"no-verify", 0, NULL, KEY_NO_VERIFY},
    {"connections", 1, NULL, KEY_CONNECTIONS},
    {"streams", 1, NULL, KEY_STREAMS},
    {"user", 1, NULL, KEY_USER},
    {"dbname", 1, NULL, KEY_DBNAME},
    {"sessions", 1, NULL, KEY_SESSIONS},
    {"open-at-once", 1, NULL, KEY_OPEN_AT_ONCE},
    {"rate", 1, NULL, KEY_RATE},
    {"fixed", 0, NULL, KEY_FIXED},
    {"burst", 1, NULL, KEY_BURST},
    {"warmup", 1, NULL, KEY_WARMUP},
    {"duration", 1, NULL, KEY_DURATION},
    {"drain", 1, NULL, KEY_DRAIN},
    {"max-queue", 1, NULL, KEY_MAX_QUEUE},
    {"seed", 1, NULL, KEY_SEED},
    {"sql", 1, NULL, KEY_SQL},
    {"mode", 1, NULL, KEY_MODE},
    {"new-session", 0, NULL, KEY_NEW_SESSION},
    {"bulk", 1, NULL, KEY_BULK},
    {"bulk-sql", 1, NULL, KEY_BULK_SQL},
    {"hold", 0, NULL, KEY_HOLD},
    {"csv", 1, NULL, KEY_CSV},
    {"json", 0, NULL, KEY_JSON},
    {"help", 0, NULL, KEY_HELP},
    {NULL, 0, NULL, 0},
};

NORETURN static void mistake(const char *what, const char *value)
{
    fprintf(stderr, "load: %s: %s; see load --help\n", what, value);
    exit(2);
}

static double number(const char *text, double low)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= low) || v > 1e9)
        mistake("not a number that fits here", text);
    return v;
}

static int whole(const char *text, int low)
{
    double v = number(text, low);
    if (v != floor(v) || v > 1e7)
        mistake("not a whole number that fits here", text);
    return (int)v;
}

static void parse_rate(struct load_options *o, const char *text)
{
    const char *dots = strstr(text, "..");
    char first[64];
    if (!dots) {
        o->rate = o->rate_end = number(text, 0.001);
        return;
    }
    if (!slice_copy(slice_of(text, (size_t)(dots - text)), first, sizeof first))
        mistake("not a ramp", text);
    o->rate = number(first, 0.001);
    o->rate_end = number(dots + 2, 0.001);
}

static void parse_mode(struct load_options *o, const char *text)
{
    static const char *const names[] = {"simple", "extended", "prepared"};
    for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(text, names[i]) == 0) {
            o->mode = (enum load_mode)i;
            return;
        }
    mistake("no such mode", text);
}

/* --- statements ----------------------------------------------------------- */

/* "{LOW-HIGH}" at p; returns what stands behind it, NULL when it is not one. */
static const char *range_at(const char *p, int64_t *low, int64_t *high)
{
    int n = 0;
    if (sscanf(p, "{%" SCNd64 "-%" SCNd64 "}%n", low, high, &n) != 2 ||
        n == 0 || *high < *low)
        return NULL;
    return p + n;
}

static void number_params(struct load_statement *s)
{
    size_t cap = 1, at = 0;
    for (int i = 0; i <= s->n_params; i++)
        cap += strlen(s->piece[i]) + 8;
    s->numbered = mem_new(cap);
    for (int i = 0; i <= s->n_params; i++)
        at += (size_t)(i < s->n_params ? snprintf(s->numbered + at, cap - at,
                                                  "%s$%d", s->piece[i], i + 1)
                                       : snprintf(s->numbered + at, cap - at,
                                                  "%s", s->piece[i]));
}

static void add_statement(struct load_options *o, const char *text)
{
    if (o->n_statements == LOAD_STATEMENTS_MAX)
        mistake("too many statements", text);
    struct load_statement *s = &o->statement[o->n_statements++];
    const char *from = text;
    for (const char *p = text; *p;) {
        int64_t low, high;
        const char *behind = *p == '{' ? range_at(p, &low, &high) : NULL;
        if (!behind) {
            p++;
            continue;
        }
        if (s->n_params == LOAD_PARAMS_MAX)
            mistake("too many random numbers", text);
        s->low[s->n_params] = low;
        s->high[s->n_params] = high;
        s->piece[s->n_params++] = mem_strndup(from, (size_t)(p - from));
        p = from = behind;
    }
    s->piece[s->n_params] = mem_strdup(from);
    number_params(s);
}

static uint64_t random_state;

double load_random(void)
{
    uint64_t x = random_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    random_state = x;
    return (double)(x >> 11) / 9007199254740992.0;
}

static int64_t draw(const struct load_statement *s, int i)
{
    double width = (double)(s->high[i] - s->low[i]) + 1;
    return s->low[i] + (int64_t)(load_random() * width);
}

static void put_simple(struct pgbuf *b, const struct load_statement *s)
{
    size_t at = pgbuf_begin(b, PG_MSG_QUERY);
    for (int i = 0; i <= s->n_params; i++) {
        char text[32];
        pgbuf_put_bytes(b, s->piece[i], strlen(s->piece[i]));
        if (i == s->n_params)
            break;
        int n = snprintf(text, sizeof text, "%" PRId64, draw(s, i));
        pgbuf_put_bytes(b, text, (size_t)n);
    }
    pgbuf_put_u8(b, 0);
    (void)pgbuf_end(b, at);
}

static struct slice name_of(int i, char buf[16])
{
    return slice_of(buf, (size_t)snprintf(buf, 16, "load%d", i));
}

void load_put_statement(struct pgbuf *b, const struct load_options *o, int i)
{
    const struct load_statement *s = &o->statement[i];
    const struct slice none = slice_str("");
    struct slice values[LOAD_PARAMS_MAX], name = none;
    char text[LOAD_PARAMS_MAX][32], name_buf[16];
    if (o->mode == LOAD_SIMPLE) {
        put_simple(b, s);
        return;
    }
    for (int k = 0; k < s->n_params; k++)
        values[k] = slice_of(text[k], (size_t)snprintf(text[k], sizeof text[k],
                                                       "%" PRId64, draw(s, k)));
    if (o->mode == LOAD_PREPARED)
        name = name_of(i, name_buf);
    else
        pg_put_parse(b, none, slice_str(s->numbered), NULL, 0);
    pg_put_bind(b, none, name, values, (size_t)s->n_params);
    pg_put_describe(b, PG_TARGET_PORTAL, none);
    pg_put_execute(b, none, 0);
    pg_put_sync(b);
}

void load_put_prepare(struct pgbuf *b, const struct load_options *o)
{
    char name[16];
    for (int i = 0; i < o->n_statements; i++)
        pg_put_parse(b, name_of(i, name), slice_str(o->statement[i].numbered),
                     NULL, 0);
    pg_put_sync(b);
}

/* --- the whole ------------------------------------------------------------ */

static void take(struct load_options *o, int key, const char *v, int *port)
{
    switch ((enum option_key)key) {
    case KEY_TO:
        break; /* with the port, at the end */
    case KEY_PORT:
        *port = whole(v, 1);
        break;
    case KEY_CA:
        o->ca_file = v;
        break;
    case KEY_NO_VERIFY:
        o->no_verify = true;
        break;
    case KEY_CONNECTIONS:
        o->connections = whole(v, 1);
        break;
    case KEY_STREAMS:
        o->streams = whole(v, 1);
        break;
    case KEY_USER:
        o->user = v;
        break;
    case KEY_DBNAME:
        o->dbname = v;
        break;
    case KEY_SESSIONS:
        o->sessions = whole(v, 1);
        break;
    case KEY_OPEN_AT_ONCE:
        o->open_at_once = whole(v, 1);
        break;
    case KEY_RATE:
        parse_rate(o, v);
        break;
    case KEY_FIXED:
        o->is_fixed = true;
        break;
    case KEY_BURST:
        o->burst = whole(v, 1);
        break;
    case KEY_WARMUP:
        o->warmup_s = number(v, 0);
        break;
    case KEY_DURATION:
        o->duration_s = number(v, 0.1);
        break;
    case KEY_DRAIN:
        o->drain_s = number(v, 0);
        break;
    case KEY_MAX_QUEUE:
        o->max_queue = whole(v, 1);
        break;
    case KEY_SEED:
        o->seed = (uint64_t)whole(v, 1);
        break;
    case KEY_SQL:
        add_statement(o, v);
        break;
    case KEY_MODE:
        parse_mode(o, v);
        break;
    case KEY_NEW_SESSION:
        o->new_session = true;
        break;
    case KEY_BULK:
        o->bulk = whole(v, 0);
        break;
    case KEY_BULK_SQL:
        o->bulk_sql = v;
        break;
    case KEY_HOLD:
        o->hold = true;
        break;
    case KEY_CSV:
        o->csv_file = v;
        break;
    case KEY_JSON:
        o->json = true;
        break;
    case KEY_HELP:
        fputs(help, stdout);
        exit(0);
    }
}

static void finish(struct load_options *o, const char *to, int port)
{
    struct err e;
    int rc;
    if (!to)
        mistake("where to?", "--to is missing");
    o->is_unix = to[0] == '/';
    if (o->is_unix)
        rc = addr_unix(slice_str(to), port, &o->unix_at, &e);
    else
        rc = target_parse(slice_str(to), &o->to, &e);
    if (rc)
        mistake("--to", e.text);
    if (o->bulk && !o->bulk_sql)
        mistake("--bulk", "--bulk-sql is missing");
    if (o->n_statements == 0)
        add_statement(o, "SELECT 1");
    if (o->streams == 0)
        o->streams =
            (o->sessions + o->bulk + o->connections - 1) / o->connections;
    if (o->seed == 0)
        rand_bytes(&o->seed, sizeof o->seed);
    random_state = o->seed * 0x9e3779b97f4a7c15 | 1;
}

void load_options_parse(struct load_options *o, int argc, char **argv)
{
    const char *to = NULL;
    int port = TARGET_PORT_DEFAULT, key;
    *o = (struct load_options){.user = "postgres",
                               .dbname = "postgres",
                               .password = getenv("PGPASSWORD"),
                               .connections = 4,
                               .sessions = 10,
                               .open_at_once = 100,
                               .duration_s = 10,
                               .drain_s = 5,
                               .max_queue = 200000};
    while ((key = getopt_long(argc, argv, "", keys, NULL)) != -1) {
        if (key == '?')
            exit(2);
        if (key == KEY_TO)
            to = optarg;
        take(o, key, optarg, &port);
    }
    if (optind < argc)
        mistake("unexpected", argv[optind]);
    finish(o, to, port);
}

void load_options_free(struct load_options *o)
{
    for (int i = 0; i < o->n_statements; i++) {
        struct load_statement *s = &o->statement[i];
        for (int k = 0; k <= s->n_params; k++)
            free(s->piece[k]);
        free(s->numbered);
    }
}
