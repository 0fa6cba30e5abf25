/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Settings are gathered first, from the command line and the file, then given
 * to each edge in this order: those of [edge], those of its own section, those
 * of the command line. */
#include "main/edge_args.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "conf/ini.h"

enum {
    CONNECTIONS_MAX = 256,
    STREAMS_MAX = 100000,
    WAIT_MAX_S = 3600,
    SUBFLOWS_MAX = 8, /* the kernel's limit */
};

enum option_id {
    OPTION_FIRST = 256,
#define EDGE(id, ...) OPTION_##id,
#include "conf/edge.def"
#undef EDGE
};

struct row {
    const char *name, *argument, *deflt, *help;
    int id;
};

static const struct row rows[] = {
#define EDGE(id, name, argument, deflt, help)                                  \
    {#name, argument, deflt, help, OPTION_##id},
#include "conf/edge.def"
#undef EDGE
};

/* --- help -------------------------------------------------------------------
 */

static const char usage_text[] =
    "pgbraid edge gives local drivers a pooler that is far away: each local\n"
    "connection becomes one stream of a few QUIC connections.\n"
    "\n"
    "Usage:\n"
    "  pgbraid edge --listen DIR|PORT|ADDR:PORT --to URL [OPTION]...\n"
    "  pgbraid edge [OPTION]... FILE.ini   section [edge], or one [edge NAME]\n"
    "                         for each of several; the keys are the options\n"
    "  pgbraid run --to URL [OPTION]... -- COMMAND [ARGUMENT]...\n"
    "                         a private edge for one command, which finds it\n"
    "                         by PGHOST and PGPORT\n"
    "\n"
    "Options:\n";

static const char end_text[] =
    "  --check                say whether this is right, do not run\n"
    "  -v, --verbose          log more\n"
    "  -q, --quiet            log nothing but errors that end it\n"
    "  -h, --help             print this help\n"
    "\n"
    "Example:\n"
    "  pgbraid run --to quic://db.example:6432 --ca ca.crt -- psql -c "
    "'select 1'\n";

enum { HELP_INDENT = 25, HELP_WIDTH = 78 };

/* Words of the help, without the marks of code. */
static void print_wrapped(const char *text, int at)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at + (int)n + 1 > HELP_WIDTH) {
            printf("\n%*s", HELP_INDENT, "");
            at = HELP_INDENT;
        } else if (at > HELP_INDENT) {
            at += printf(" ");
        }
        for (size_t i = 0; i < n; i++)
            if (text[i] != '`')
                at += printf("%c", text[i]);
        text += n + (text[n] == ' ');
    }
}

static const char *with_dashes(const char *name, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s", name);
    for (char *p = buf; *p; p++)
        if (*p == '_')
            *p = '-';
    return buf;
}

void edge_args_print_help(void)
{
    char name[64], text[640];
    fputs(usage_text, stdout);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct row *r = &rows[i];
        int at = printf("  --%s%s%s", with_dashes(r->name, name, sizeof name),
                        r->argument ? "=" : "", r->argument ? r->argument : "");
        if (at >= HELP_INDENT) {
            printf("\n");
            at = 0;
        }
        printf("%*s", HELP_INDENT - at, "");
        snprintf(text, sizeof text, "%s (%s)", r->help, r->deflt);
        print_wrapped(text, HELP_INDENT);
        printf("\n");
    }
    fputs(end_text, stdout);
}

/* --- one setting ------------------------------------------------------------
 */

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

static bool is_on(const char *value)
{
    return !value || strcmp(value, "1") == 0;
}

static int apply(struct edge_plan *plan, int id, const char *value,
                 struct err *e)
{
    struct edge_options *o = &plan->o;
    struct upstream_options *up = &o->up;
    int seconds = 0, rc = 0;
    switch (id) {
    case OPTION_LISTEN:
        o->listen = value;
        break;
    case OPTION_PORT:
        return number("port", value, 65535, &o->port, e);
    case OPTION_TO:
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
        up->no_verify = is_on(value);
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
        return mptcp_word("mptcp", value, &plan->mptcp, e);
    case OPTION_MPTCP_SUBFLOWS:
        up->mptcp_subflows = 0;
        if (!strcmp(value, "0")) /* as the pooler's option has it */
            return 0;
        return number("mptcp_subflows", value, SUBFLOWS_MAX,
                      &up->mptcp_subflows, e);
    case OPTION_LISTEN_MPTCP:
        o->listen_mptcp = is_on(value);
        break;
    default:
        must(false);
    }
    return rc;
}

static const struct edge_options defaults = {
    .port = TARGET_PORT_DEFAULT,
    .up = {.connections = 4,
           .streams_per_connection = 100,
           .wait_us = 15 * 1000000},
};

/* Keeps it, once it is known to be good. */
static int note(struct edge_args *a, int of, int id, const char *value,
                struct err *e)
{
    struct edge_plan scratch = {.o = defaults};
    int rc = apply(&scratch, id, value, e);
    if (rc)
        return rc;
    if (a->n_settings == EDGE_SETTINGS_MAX)
        return err_set(e, ERR_CONF, "more than %d settings", EDGE_SETTINGS_MAX);
    a->setting[a->n_settings++] =
        (struct edge_setting){of, id, value ? mem_strdup(value) : NULL};
    return 0;
}

/* --- the ini file -----------------------------------------------------------
 */

static int begin_edge(struct edge_args *a, struct slice name, struct err *e)
{
    if (name.n == 0 || name.n > EDGE_NAME_MAX)
        return err_set(e, ERR_CONF, "an edge's name has 1 to %d characters",
                       EDGE_NAME_MAX);
    for (a->section = 0; a->section < a->n; a->section++)
        if (slice_is(name, a->edge[a->section].name))
            return 0;
    if (a->n == EDGES_MAX)
        return err_set(e, ERR_CONF, "more than %d edges", EDGES_MAX);
    (void)slice_copy(name, a->edge[a->n++].name, EDGE_NAME_MAX + 1);
    return 0;
}

static int on_section(void *arg, struct slice name, struct err *e)
{
    struct edge_args *a = arg;
    if (slice_is(name, "edge")) {
        a->section = EDGE_OF_ALL;
        return 0;
    }
    if (name.n > 5 && !memcmp(name.p, "edge ", 5))
        return begin_edge(a, slice_trim(slice_of(name.p + 5, name.n - 5)), e);
    return err_set(
        e, ERR_CONF,
        "section [" SLICE_FMT "]: an edge has [edge] and [edge "
        "NAME]; a pooler's file is for pgbraid without the word edge",
        SLICE_ARG(name));
}

static const struct row *find_row(struct slice key)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (slice_is(key, rows[i].name))
            return &rows[i];
    return NULL;
}

static int on_switch(struct edge_args *a, const struct row *r,
                     struct slice value, struct err *e)
{
    if (!slice_is(value, "0") && !slice_is(value, "1"))
        return err_set(e, ERR_CONF, "%s: 0 or 1", r->name);
    return note(a, a->section, r->id, slice_is(value, "1") ? "1" : "0", e);
}

static int on_key(void *arg, const struct ini_place *at, struct slice section,
                  struct slice key, struct slice value, struct err *e)
{
    struct edge_args *a = arg;
    const struct row *r = find_row(key);
    if (!r)
        return err_set(e, ERR_CONF, "unknown key \"" SLICE_FMT "\"",
                       SLICE_ARG(key));
    if (!r->argument)
        return on_switch(a, r, value, e);
    char *text = mem_strndup(value.p, value.n);
    int rc = note(a, a->section, r->id, text, e);
    free(text);
    return rc;
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
    int rc = n < FILE_MAX ? ini_parse(slice_of(text, n), path, &ops, a, e)
                          : err_set(e, ERR_CONF, "%.200s: too long", path);
    free(text);
    return rc;
}

/* --- the command line -------------------------------------------------------
 */

enum { OPTIONS_MAX = 2 * ARRAY_SIZE(rows) + 5 };

/* Names with - in place of _, and as they stand. */
static void make_options(struct option *out, char names[][64])
{
    static const struct option others[] = {
        {"check", no_argument, NULL, 'c'},
        {"verbose", no_argument, NULL, 'v'},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct row *r = &rows[i];
        struct option o = {r->name, r->argument ? required_argument : 0, NULL,
                           r->id};
        out[n++] = o;
        o.name = with_dashes(r->name, names[i], sizeof names[i]);
        out[n++] = o;
    }
    memcpy(out + n, others, sizeof others);
}

static int read_command_line(struct edge_args *a, int argc, char **argv,
                             struct err *e)
{
    struct option options[OPTIONS_MAX];
    char names[ARRAY_SIZE(rows)][64];
    int opt;
    make_options(options, names);
    opterr = 0;
    optind = 0; /* glibc: begin anew */
    while ((opt = getopt_long(argc, argv, "+:vqh", options, NULL)) != -1) {
        int rc = 0;
        if (opt == 'h')
            a->mode = EDGE_HELP;
        else if (opt == 'c')
            a->is_check = true;
        else if (opt == 'v')
            a->verbose++;
        else if (opt == 'q')
            a->is_quiet = true;
        else if (opt == '?' || opt == ':')
            return err_set(e, ERR_CONF, "%s \"%.200s\"",
                           opt == '?' ? "unknown option"
                                      : "a value is missing for",
                           argv[optind - 1]);
        else
            rc = note(a, EDGE_OF_COMMAND_LINE, opt, optarg, e);
        if (rc || a->mode == EDGE_HELP)
            return rc;
    }
    return 0;
}

/* --- all of it --------------------------------------------------------------
 */

static int settle(struct edge_args *a, int i, struct err *e)
{
    const int order[] = {EDGE_OF_ALL, i, EDGE_OF_COMMAND_LINE};
    a->edge[i].o = defaults;
    for (size_t k = 0; k < ARRAY_SIZE(order); k++)
        for (int n = 0; n < a->n_settings; n++) {
            const struct edge_setting *s = &a->setting[n];
            int rc = 0;
            if (s->of == order[k])
                rc = apply(&a->edge[i], s->id, s->value, e);
            if (rc)
                return rc;
        }
    return 0;
}

/* PGMPTCP is the switch that libpq gets for the same purpose: it is a wish. */
static int take_environment(struct edge_plan *p, struct err *e)
{
    const char *text = getenv("PGMPTCP");
    if (!text || !*text || !strcmp(text, "0") || p->mptcp != EDGE_MPTCP_UNSET)
        return 0;
    if (strcmp(text, "1") != 0)
        return err_set(e, ERR_CONF, "PGMPTCP \"%.100s\": 0 or 1", text);
    if (p->o.up.target.kind != TARGET_QUIC)
        p->o.up.target.mptcp = true;
    return 0;
}

static int settle_mptcp(struct edge_plan *p, struct err *e)
{
    struct upstream_options *up = &p->o.up;
    if (p->mptcp == EDGE_MPTCP_OFF && up->target.mptcp)
        return err_set(e, ERR_CONF, "--mptcp=off does not go with %s",
                       up->target.kind == TARGET_TLS ? "mptcps://"
                                                     : "mptcp://");
    if (p->mptcp >= EDGE_MPTCP_ON) {
        if (up->target.kind == TARGET_QUIC)
            return err_set(e, ERR_CONF,
                           "--mptcp is for tcp:// and tls://; QUIC has "
                           "nothing of it");
        up->target.mptcp = true;
        up->mptcp_require = p->mptcp == EDGE_MPTCP_REQUIRE;
    }
    int rc = take_environment(p, e);
    if (rc)
        return rc;
    if (up->mptcp_subflows && !up->target.mptcp)
        return err_set(e, ERR_CONF,
                       "--mptcp_subflows needs Multipath TCP: --to mptcp://, "
                       "mptcps://, or --mptcp=on");
    return 0;
}

static int check(const struct edge_args *a, struct edge_plan *p, struct err *e)
{
    const struct edge_options *o = &p->o;
    if (!o->up.target.host[0])
        return err_set(e, ERR_CONF, "--to is missing: where is the pooler?");
    int rc = settle_mptcp(p, e);
    if (rc)
        return rc;
    if (a->mode == EDGE_RUN && o->listen)
        return err_set(e, ERR_CONF, "run chooses where to listen itself");
    if (a->mode == EDGE_RUN && !a->command)
        return err_set(e, ERR_CONF, "no command given after --");
    if (a->mode == EDGE_SERVE && !o->listen)
        return err_set(e, ERR_CONF,
                       "--listen is missing: a folder, a port, or "
                       "address:port");
    if (!o->up.cert_file != !o->up.key_file)
        return err_set(e, ERR_CONF, "--cert and --key belong together");
    return 0;
}

static int settle_all(struct edge_args *a, struct err *e)
{
    a->n = MAX(a->n, 1);
    for (int i = 0; i < a->n; i++) {
        int rc = settle(a, i, e);
        if (rc == 0)
            rc = check(a, &a->edge[i], e);
        if (rc && a->edge[i].name[0])
            return err_wrap(e, "[edge %s]", a->edge[i].name);
        if (rc)
            return rc;
    }
    return 0;
}

int edge_args_parse(struct edge_args *out, int argc, char **argv, struct err *e)
{
    bool is_run = !strcmp(argv[0], "run");
    *out = (struct edge_args){.mode = is_run ? EDGE_RUN : EDGE_SERVE};
    int rc = read_command_line(out, argc, argv, e);
    if (rc || out->mode == EDGE_HELP)
        return rc;
    if (is_run && optind < argc) {
        out->command = argv + optind;
    } else if (optind < argc) {
        if (optind + 1 < argc)
            return err_set(e, ERR_CONF, "what is \"%.200s\"?",
                           argv[optind + 1]);
        rc = read_file(out, argv[optind], e);
    }
    return rc ? rc : settle_all(out, e);
}

void edge_args_free(struct edge_args *a)
{
    for (int i = 0; i < a->n_settings; i++)
        free(a->setting[i].value);
    a->n_settings = 0;
}
