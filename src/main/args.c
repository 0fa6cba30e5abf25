/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/args.h"

#include <getopt.h>
#include <string.h>

const char args_help[] =
    "pgbraid is a connection pooler for PostgreSQL, used as PgBouncer is.\n"
    "Usage:\n"
    "  pgbraid [OPTION]... FILE.ini      run with this configuration\n"
    "  pgbraid --check FILE.ini          say what is wrong with it, do not "
    "run\n"
    "  pgbraid --upgrade FILE.ini        take over from the running one\n"
    "  pgbraid edge ...                  a local place that leads to a far "
    "pooler\n"
    "  pgbraid run ... -- COMMAND        the same for one command; both have "
    "--help\n"
    "\n"
    "Options:\n"
    "  -d, --daemon       run in the background; needs pidfile and a log\n"
    "  -u, --user=NAME    change to this system account when started as root\n"
    "  -v, --verbose      log more; may be repeated\n"
    "  -q, --quiet        do not log to standard error\n"
    "      --check        list every mistake of the file; exit status 1 if "
    "any\n"
    "  -R, --reboot       the same as --upgrade; runs when nothing does\n"
    "  -V, --version      print the version\n"
    "  -h, --help         print this help\n"
    "\n"
    "Signals: HUP reloads the file; TERM ends when all clients have left, INT\n"
    "when all servers are released, QUIT now; USR1 pauses, USR2 resumes.\n"
    "\n"
    "Manual: pgbraid(1), pgbraid(5). The console, once it runs:\n"
    "  psql -h localhost -p 6432 -U admin pgbraid -c 'SHOW POOLS'\n";

enum { OPTION_CHECK = 256, OPTION_UPGRADE };

static const struct option options[] = {
    {"daemon", no_argument, NULL, 'd'},
    {"reboot", no_argument, NULL, 'R'},
    {"user", required_argument, NULL, 'u'},
    {"verbose", no_argument, NULL, 'v'},
    {"quiet", no_argument, NULL, 'q'},
    {"check", no_argument, NULL, OPTION_CHECK},
    {"upgrade", no_argument, NULL, OPTION_UPGRADE},
    {"version", no_argument, NULL, 'V'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int refuse_option(int argc, char **argv, struct err *e)
{
    /* getopt has moved on unless the letter is one of several: -dx */
    const char *word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
    if (optopt == 'u')
        return err_set(e, ERR_CONF,
                       "option --user needs the name of an "
                       "account");
    if (word[0] == '-' && word[1] == '-')
        return err_set(e, ERR_CONF, "unknown option \"%s\"", word);
    return err_set(e, ERR_CONF, "unknown option \"-%c\"", optopt);
}

static int apply(struct args *a, int opt, struct err *e)
{
    switch (opt) {
    case 'd':
        a->is_daemon = true;
        break;
    case 'u':
        a->user = optarg;
        break;
    case 'v':
        a->verbose++;
        break;
    case 'q':
        a->is_quiet = true;
        break;
    case OPTION_CHECK:
        a->mode = ARGS_CHECK;
        break;
    case 'R':
        a->mode = ARGS_REBOOT;
        break;
    case OPTION_UPGRADE:
        a->mode = ARGS_UPGRADE;
        break;
    default:
        must(false);
    }
    return 0;
}

int args_parse(struct args *out, int argc, char **argv, struct err *e)
{
    *out = (struct args){.mode = ARGS_RUN};
    opterr = 0;
    optind = 0; /* glibc: begin anew */
    int opt;
    while ((opt = getopt_long(argc, argv, ":dRu:vqVh", options, NULL)) != -1) {
        if (opt == 'h' || opt == 'V') {
            out->mode = opt == 'h' ? ARGS_HELP : ARGS_VERSION;
            return 0;
        }
        if (opt == '?' || opt == ':')
            return refuse_option(argc, argv, e);
        int rc = apply(out, opt, e);
        if (rc)
            return rc;
    }
    if (optind == argc)
        return err_set(e, ERR_CONF, "no configuration file given");
    if (optind + 1 < argc)
        return err_set(e, ERR_CONF,
                       "one configuration file is enough: what is \"%.200s\"?",
                       argv[optind + 1]);
    out->file = argv[optind];
    return 0;
}
