/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/edge_args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "conf/ini.h"

const char edge_args_help[] =
    "pgbraid edge gives local drivers a pooler that is far away: each local\n"
    "connection becomes one stream of a few QUIC connections.\n"
    "\n"
    "Usage:\n"
    "  pgbraid edge --listen DIR|PORT|ADDR:PORT --to URL [OPTION]...\n"
    "  pgbraid edge [OPTION]... FILE.ini      section [edge], keys as below\n"
    "  pgbraid run --to URL [OPTION]... -- COMMAND [ARGUMENT]...\n"
    "                         a private edge for one command, which finds it\n"
    "                         by PGHOST and PGPORT\n"
    "\n"
    "Options:\n"
    "  --listen=WHERE         a folder, in which .s.PGSQL.PORT is made, for\n"
    "                         this account only; or a port on localhost; or\n"
    "                         address:port\n"
    "  --port=NUMBER          in the name of that socket (6432)\n"
    "  --to=URL               quic://host[:port], tls://, tcp://, mptcps://\n"
    "                         (TLS over Multipath TCP) or mptcp://; the port\n"
    "                         is 6432 if not given\n"
    "  --ca=FILE              vouches for the pooler (the system's store)\n"
    "  --cert=FILE --key=FILE our own certificate, for a role\n"
    "  --insecure             take any certificate of the pooler\n"
    "  --fallback=tls         where UDP does not get through: TLS over TCP\n"
    "  --quic_connections=N   QUIC connections at most (4)\n"
    "  --quic_streams_per_connection=N\n"
    "                         sessions on one before the next is opened (100)\n"
    "  --mptcp=off|on|require Multipath TCP for tcp:// and tls://; require:\n"
    "                         no session without it. PGMPTCP=1 in the\n"
    "                         environment is as --mptcp=on\n"
    "  --mptcp_subflows=N     open so many more on each connection (0)\n"
    "  --listen_mptcp         take Multipath TCP on the port to listen on\n"
    "  --wait=SECONDS         how long a session waits for a way (15)\n"
    "  --check                say whether this is right, do not run\n"
    "  -v, --verbose          log more\n"
    "  -q, --quiet            log nothing but errors that end it\n"
    "  -h, --help             print this help\n"
    "\n"
    "Example:\n"
    "  pgbraid run --to quic://db.example:6432 --ca ca.crt -- psql -c "
    "'select 1'\n";

enum {
    CONNECTIONS_MAX = 256,
    STREAMS_MAX = 100000,
    WAIT_MAX_S = 3600,
    SUBFLOWS_MAX = 8, /* the kernel's limit */
};

enum option_id {
    OPTION_LISTEN = 256,
    OPTION_PORT,
    OPTION_TO,
    OPTION_CA,
    OPTION_CERT,
    OPTION_KEY,
    OPTION_INSECURE,
    OPTION_FALLBACK,
    OPTION_CONNECTIONS,
    OPTION_STREAMS,
    OPTION_WAIT,
    OPTION_MPTCP,
    OPTION_MPTCP_SUBFLOWS,
    OPTION_LISTEN_MPTCP,
};

static const struct option options[] = {
    {"listen", required_argument, NULL, OPTION_LISTEN},
    {"port", required_argument, NULL, OPTION_PORT},
    {"to", required_argument, NULL, OPTION_TO},
    {"ca", required_argument, NULL, OPTION_CA},
    {"cert", required_argument, NULL, OPTION_CERT},
    {"key", required_argument, NULL, OPTION_KEY},
    {"insecure", no_argument, NULL, OPTION_INSECURE},
    {"fallback", required_argument, NULL, OPTION_FALLBACK},
    {"quic_connections", required_argument, NULL, OPTION_CONNECTIONS},
    {"quic_streams_per_connection", required_argument, NULL, OPTION_STREAMS},
    {"wait", required_argument, NULL, OPTION_WAIT},
    {"mptcp", required_argument, NULL, OPTION_MPTCP},
    {"mptcp_subflows", required_argument, NULL, OPTION_MPTCP_SUBFLOWS},
    {"listen_mptcp", no_argument, NULL, OPTION_LISTEN_MPTCP},
    {"check", no_argument, NULL, 'c'},
    {"verbose", no_argument, NULL, 'v'},
    {"quiet", no_argument, NULL, 'q'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int number(const char *name, const char *text, int max, int *out,
                  struct err *e)
{
    int64_t n;
    if (!slice_to_i64(slice_str(text), &n) || n < 1 || n > max)
        return err_set(e, ERR_CONF, "%s \"%.100s\": a number from 1 to %d",
                       name, text, max);
    *out = (int)n;
    return 0;
}

static int mptcp_word(const char *name, const char *text, enum edge_mptcp *out,
                      struct err *e)
{
    static const char *const words[] = {
        [EDGE_MPTCP_OFF] = "off",
        [EDGE_MPTCP_ON] = "on",
        [EDGE_MPTCP_REQUIRE] = "require",
    };
    for (int i = EDGE_MPTCP_OFF; i <= EDGE_MPTCP_REQUIRE; i++) {
        if (strcmp(text, words[i]) != 0)
            continue;
        *out = (enum edge_mptcp)i;
        return 0;
    }
    return err_set(e, ERR_CONF, "%s \"%.100s\": off, on or require", name,
                   text);
}

static int apply(struct edge_args *a, int id, const char *value, struct err *e)
{
    struct upstream_options *up = &a->edge.up;
    int seconds = 0, rc = 0;
    switch (id) {
    case OPTION_LISTEN:
        a->edge.listen = value;
        a->has_listen = true;
        break;
    case OPTION_PORT:
        return number("port", value, 65535, &a->edge.port, e);
    case OPTION_TO:
        a->has_target = true;
        return target_parse(slice_str(value), &up->target, e);
    case OPTION_CA:
        up->ca_file = value;
        break;
    case OPTION_CERT:
        up->cert_file = value;
        break;
    case OPTION_KEY:
        up->key_file = value;
        break;
    case OPTION_INSECURE:
        up->no_verify = true;
        break;
    case OPTION_FALLBACK:
        if (strcmp(value, "tls") != 0)
            return err_set(e, ERR_CONF, "fallback \"%.100s\": only \"tls\"",
                           value);
        up->fallback_tls = true;
        break;
    case OPTION_CONNECTIONS:
        return number("quic_connections", value, CONNECTIONS_MAX,
                      &up->connections, e);
    case OPTION_STREAMS:
        return number("quic_streams_per_connection", value, STREAMS_MAX,
                      &up->streams_per_connection, e);
    case OPTION_WAIT:
        rc = number("wait", value, WAIT_MAX_S, &seconds, e);
        up->wait_us = (int64_t)seconds * 1000000;
        break;
    case OPTION_MPTCP:
        return mptcp_word("mptcp", value, &a->mptcp, e);
    case OPTION_MPTCP_SUBFLOWS:
        if (!strcmp(value, "0")) /* as the pooler's option has it */
            return 0;
        return number("mptcp_subflows", value, SUBFLOWS_MAX,
                      &up->mptcp_subflows, e);
    case OPTION_LISTEN_MPTCP:
        a->edge.listen_mptcp = true;
        break;
    case 'c':
        a->is_check = true;
        break;
    case 'v':
        a->verbose++;
        break;
    case 'q':
        a->is_quiet = true;
        break;
    default:
        must(false);
    }
    return rc;
}

/* --- the ini file -----------------------------------------------------------
 */

static int on_section(void *arg, struct slice name, struct err *e)
{
    if (slice_is(name, "edge"))
        return 0;
    return err_set(e, ERR_CONF,
                   "section [" SLICE_FMT "]: an edge has [edge] only",
                   SLICE_ARG(name));
}

static int on_key(void *arg, const struct ini_place *at, struct slice section,
                  struct slice key, struct slice value, struct err *e)
{
    struct edge_args *a = arg;
    for (const struct option *o = options; o->name; o++) {
        if (!slice_is(key, o->name) || o->val < OPTION_LISTEN)
            continue;
        if (o->has_arg == no_argument && !slice_is(value, "1"))
            return 0;
        if (a->n_kept == EDGE_KEYS_MAX)
            return err_set(e, ERR_CONF, "too many keys");
        a->kept[a->n_kept] = mem_strndup(value.p, value.n);
        return apply(a, o->val, a->kept[a->n_kept++], e);
    }
    return err_set(e, ERR_CONF, "unknown key \"" SLICE_FMT "\"",
                   SLICE_ARG(key));
}

static int no_include(void *arg, const char *path, char **text, size_t *n,
                      struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "no %%include in an edge's file");
}

static int read_file(struct edge_args *a, const char *path, struct err *e)
{
    enum { FILE_MAX = 65536 };
    static const struct ini_ops ops = {
        .on_section = on_section,
        .on_key = on_key,
        .read_file = no_include,
    };
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(e, ERR_CONF, "%.200s: %s", path, strerror(errno));
    char *text = mem_new(FILE_MAX);
    size_t n = fread(text, 1, FILE_MAX, f);
    fclose(f);
    int rc = ini_parse(slice_of(text, n), path, &ops, a, e);
    free(text);
    return rc;
}

/* --- all of it --------------------------------------------------------------
 */

/* PGMPTCP is the switch that libpq gets for the same purpose: it is a wish. */
static int take_environment(struct edge_args *a, struct err *e)
{
    const char *text = getenv("PGMPTCP");
    if (!text || !*text || !strcmp(text, "0") || a->mptcp != EDGE_MPTCP_UNSET)
        return 0;
    if (strcmp(text, "1") != 0)
        return err_set(e, ERR_CONF, "PGMPTCP \"%.100s\": 0 or 1", text);
    if (a->edge.up.target.kind != TARGET_QUIC)
        a->edge.up.target.mptcp = true;
    return 0;
}

static int settle_mptcp(struct edge_args *a, struct err *e)
{
    struct upstream_options *up = &a->edge.up;
    if (a->mptcp == EDGE_MPTCP_OFF && up->target.mptcp)
        return err_set(e, ERR_CONF, "--mptcp=off does not go with %s",
                       up->target.kind == TARGET_TLS ? "mptcps://"
                                                     : "mptcp://");
    if (a->mptcp >= EDGE_MPTCP_ON) {
        if (up->target.kind == TARGET_QUIC)
            return err_set(e, ERR_CONF,
                           "--mptcp is for tcp:// and tls://; QUIC has "
                           "nothing of it");
        up->target.mptcp = true;
        up->mptcp_require = a->mptcp == EDGE_MPTCP_REQUIRE;
    }
    int rc = take_environment(a, e);
    if (rc)
        return rc;
    if (up->mptcp_subflows && !up->target.mptcp)
        return err_set(e, ERR_CONF,
                       "--mptcp_subflows needs Multipath TCP: --to mptcp://, "
                       "mptcps://, or --mptcp=on");
    return 0;
}

static int check(struct edge_args *a, struct err *e)
{
    if (!a->has_target)
        return err_set(e, ERR_CONF, "--to is missing: where is the pooler?");
    int rc = settle_mptcp(a, e);
    if (rc)
        return rc;
    if (a->mode == EDGE_RUN && a->has_listen)
        return err_set(e, ERR_CONF, "run chooses where to listen itself");
    if (a->mode == EDGE_RUN && !a->command)
        return err_set(e, ERR_CONF, "no command given after --");
    if (a->mode == EDGE_SERVE && !a->has_listen)
        return err_set(e, ERR_CONF,
                       "--listen is missing: a folder, a port, or "
                       "address:port");
    if (!a->edge.up.cert_file != !a->edge.up.key_file)
        return err_set(e, ERR_CONF, "--cert and --key belong together");
    return 0;
}

int edge_args_parse(struct edge_args *out, int argc, char **argv, struct err *e)
{
    bool is_run = !strcmp(argv[0], "run");
    int opt;
    *out = (struct edge_args){
        .mode = is_run ? EDGE_RUN : EDGE_SERVE,
        .edge = {.port = TARGET_PORT_DEFAULT,
                 .up = {.connections = 4,
                        .streams_per_connection = 100,
                        .wait_us = 15 * 1000000}},
    };
    opterr = 0;
    optind = 0; /* glibc: begin anew */
    while ((opt = getopt_long(argc, argv, "+:vqh", options, NULL)) != -1) {
        if (opt == 'h') {
            out->mode = EDGE_HELP;
            return 0;
        }
        if (opt == '?' || opt == ':')
            return err_set(e, ERR_CONF, "%s \"%.200s\"",
                           opt == '?' ? "unknown option"
                                      : "a value is missing for",
                           argv[optind - 1]);
        int rc = apply(out, opt, optarg, e);
        if (rc)
            return rc;
    }
    if (is_run && optind < argc) {
        out->command = argv + optind;
    } else if (optind < argc) {
        int rc = read_file(out, argv[optind], e);
        if (rc)
            return rc;
        if (optind + 1 < argc)
            return err_set(e, ERR_CONF, "what is \"%.200s\"?",
                           argv[optind + 1]);
    }
    return check(out, e);
}

void edge_args_free(struct edge_args *a)
{
    for (int i = 0; i < a->n_kept; i++)
        free(a->kept[i]);
}
