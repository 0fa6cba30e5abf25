/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* pgbraid: wires everything up, in the one order that works. What needs the
 * rights of root (ports, key files, limits) comes before the change of account;
 * forking comes before the first thread; the log, whose file belongs to the new
 * account, after both. */
#include <inttypes.h>
#include <openssl/crypto.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "admin/metrics.h"
#include "auth/userdb.h"
#include "base/clock.h"
#include "base/log.h"
#include "config.h"
#include "main/app.h"
#include "main/crash.h"
#include "main/edge_main.h"
#include "main/metrics_http.h"
#include "main/multipath.h"
#include "main/notify.h"
#include "main/pidfile.h"
#include "main/reload.h"
#include "main/requests.h"
#include "main/stats_log.h"
#include "main/stop.h"
#include "main/supervisor.h"
#include "main/upgrade_orders.h"
#include "main/watchdog.h"
#include "net/quic.h"

enum {
    CPUS_MAX = 8192,
    FILES_OF_OURS = 64, /* log, loops, listeners and the like */
};

/* --- signals ----------------------------------------------------------------
 */

static void end_hup(void *arg)
{
    notify_ready();
}

static void on_hup(struct app *app)
{
    struct err e;
    log_info("got SIGHUP, reading the configuration anew");
    notify_reloading(clock_now_us());
    if (reload_file(app, end_hup, app, &e))
        notify_ready(); /* as before; the log says why */
}

/* A second signal means that the wait is too long. */
static void on_end_signal(struct app *app, const char *name,
                          enum shutdown_mode mode)
{
    if (app->stop != STOP_NO)
        mode = SHUTDOWN_NOW;
    static const char *const text[] = {
        [SHUTDOWN_NOW] = "ending now",
        [SHUTDOWN_WAIT_FOR_SERVERS] = "waiting for the servers in use",
        [SHUTDOWN_WAIT_FOR_CLIENTS] = "waiting for the clients to leave",
    };
    log_info("got %s, %s", name, text[mode]);
    stop_begin(app, mode);
}

static void on_signal(void *arg, int signo)
{
    struct app *app = arg;
    switch (signo) {
    case SIGHUP:
        on_hup(app);
        break;
    case SIGTERM:
        on_end_signal(app, "SIGTERM", SHUTDOWN_WAIT_FOR_CLIENTS);
        break;
    case SIGINT:
        on_end_signal(app, "SIGINT", SHUTDOWN_WAIT_FOR_SERVERS);
        break;
    case SIGQUIT:
        on_end_signal(app, "SIGQUIT", SHUTDOWN_NOW);
        break;
    case SIGUSR1:
        stop_pause(app);
        break;
    case SIGUSR2:
        stop_resume(app);
        break;
    default:
        break;
    }
}

/* --- limits -----------------------------------------------------------------
 */

static int count_cpus(void)
{
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    int n = 1;
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), set) == 0)
        n = CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
    CPU_FREE(set);
    return MAX(n, 1);
}

static int count_workers(const struct conf *c)
{
    int n = c->workers == CONF_WORKERS_AUTO ? count_cpus() : c->workers;
    return MIN(n, (int)SHARDS_MAX);
}

/* Server connections of one line, with every user of auth_file at work. */
static uint64_t servers_of(const struct conf *c, const struct conf_db *db)
{
    uint64_t users = db->user ? 1 : MAX(userdb_count(c->users), (size_t)1);
    uint64_t size = (uint64_t)conf_pool_size(c, db, NULL) +
                    (uint64_t)conf_reserve_pool_size(c, db, NULL);
    uint64_t max = (uint64_t)conf_max_db_connections(c, db);
    uint64_t n = users * size;
    return max ? MIN(n, max) : n;
}

static void check_files(const struct app *app)
{
    const struct conf *c = app->conf;
    uint64_t need = (uint64_t)c->max_client_conn + FILES_OF_OURS;
    for (int i = 0; i < conf_db_count(c); i++)
        need += servers_of(c, conf_db_at(c, i));
    if (need <= app->max_files)
        return;
    log_warning("at most %" PRIu64 " files may be open, but max_client_conn "
                "(%d) and the pools could use %" PRIu64
                "; raise the hard limit (ulimit -n, LimitNOFILE)",
                app->max_files, c->max_client_conn, need);
}

/* --- start ------------------------------------------------------------------
 */

/* While we may still be root, and with errors going to standard error. */
static int prepare(struct app *app, struct err *e)
{
    int rc = takeover_look(app, e);
    app->takes_over = app->takeover != NULL;
    if (rc == 0)
        rc = conf_load(app->args.file, &app->conf, e);
    if (rc)
        return rc;
    const char *user = app->args.user ? app->args.user : app->conf->user;
    rc = daemon_find_user(user, &app->user, e);
    if (rc == 0 && !app->takes_over)
        rc = pidfile_check(app->conf->pidfile, e);
    if (rc == 0)
        rc = multipath_check(app->conf, true, e);
    if (rc == 0)
        rc = tls_pair_load(&app->tls, app->conf, e);
    if (rc)
        return rc;
    supervisor_settle(app);
    app->max_files = daemon_raise_files();
    uid_t owner = app->user.name ? app->user.uid : (uid_t)-1;
    rc = takeover_begin(app, e);
    if (rc == 0)
        rc =
            listeners_open(&app->listeners, app->conf, count_workers(app->conf),
                           owner, takeover_given(app), e);
    if (rc == 0)
        rc =
            quic_listeners_open(&app->quic, app->conf, count_workers(app->conf),
                                takeover_given(app), e);
    if (rc == 0)
        rc = app->takes_over ? 0
                             : metrics_http_open(&app->metrics, app->conf, e);
    if (rc == 0)
        rc = daemon_become(&app->user, e);
    return rc ? rc : multipath_check_rights(app->conf, e);
}

static int go_to_background(struct app *app, struct err *e)
{
    const struct conf *c = app->conf;
    if (!c->pidfile || !*c->pidfile)
        return err_set(e, ERR_CONF,
                       "option --daemon needs pidfile in the "
                       "configuration");
    if ((!c->logfile || !*c->logfile) && !c->syslog)
        return err_set(e, ERR_CONF,
                       "option --daemon needs logfile or syslog "
                       "in the configuration");
    app->is_background = true;
    return daemon_fork(&app->report, e);
}

static int make_team(struct app *app, struct err *e)
{
    int n = count_workers(app->conf);
    app->shared = shared_new(conf_ref(app->conf), n);
    int rc = loop_new(&app->loop, app, e);
    if (rc == 0)
        rc = team_new(&app->team, app->shared, n, &admin_console, e);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++) {
        struct tls_pair tls = tls_pair_ref(&app->tls);
        shard_set_conf(team_shard(app->team, i), conf_ref(app->conf),
                       tls.client, tls.server);
    }
    takeover_apply_state(app);
    generation_init(app);
    upgrade_init(app);
    requests_install(app);
    return signals_start(&app->signals, app->loop, on_signal, app, e);
}

/* After a crash: the file as it is now, but what is fixed at start. If it
 * cannot be read, what the first process had read still holds. */
static void read_anew(struct app *app)
{
    struct conf *conf;
    struct tls_pair tls;
    struct err e;
    if (conf_reload(app->conf, &conf, &e)) {
        log_error("%s; going on with the configuration of the start", e.text);
        return;
    }
    if (tls_pair_load(&tls, conf, &e)) {
        log_error("%s; going on with the configuration of the start", e.text);
        conf_unref(conf);
        return;
    }
    tls_pair_unref(&app->tls);
    conf_unref(app->conf);
    app->tls = tls;
    app->conf = conf;
}

/* Returns in the serving process. */
static int begin_supervision(struct app *app, char why[ERR_TEXT_MAX],
                             struct err *e)
{
    int rc = app->takes_over ? 0 : pidfile_write(app->conf->pidfile, e);
    if (rc)
        return rc;
    app->has_pidfile = !app->takes_over;
    supervisor_run(app, why, ERR_TEXT_MAX);
    if (why[0])
        read_anew(app);
    return 0;
}

static int start(struct app *app, struct err *e)
{
    char why[ERR_TEXT_MAX] = "";
    int rc = prepare(app, e);
    bool is_supervised = rc == 0 && app->conf->supervisor;
    if (rc == 0 && app->args.is_daemon && !app->takes_over)
        rc = go_to_background(app, e);
    if (rc == 0 && is_supervised)
        rc = begin_supervision(app, why, e);
    if (rc == 0)
        rc = reload_open_log(app, app->conf, true, e);
    if (rc)
        return rc;
    app->has_log = true;
    if (why[0])
        log_error("%s: all its sessions are lost; this process goes on", why);
    crash_install();
    reload_log_warnings(app->conf);
    check_files(app);
    rc = make_team(app, e);
    if (rc == 0 && !is_supervised && !app->takes_over) {
        rc = pidfile_write(app->conf->pidfile, e);
        app->has_pidfile = rc == 0;
    }
    if (rc)
        return rc;
    rc = team_start(app->team, e);
    if (rc == 0)
        rc = takeover_commit(app, e);
    if (rc == 0)
        rc = listeners_start(app->listeners, app->loop, app->team, e);
    if (rc == 0)
        quic_listeners_start(app->quic, app->team);
    metrics_note_reload(true);
    if (rc == 0 && app->takes_over)
        upgrade_open_metrics(app);
    else if (rc == 0)
        rc = metrics_http_start(app->metrics, app, e);
    return rc;
}

static bool has_supervisor(const struct app *app)
{
    return app->to_supervisor >= 0;
}

/* The old process has made way. */
static void take_pidfile(struct app *app)
{
    struct err e;
    app->has_pidfile = pidfile_replace(app->conf->pidfile, &e) == 0;
    if (!app->has_pidfile)
        log_error("%s", e.text);
}

static void say_up(struct app *app)
{
    listeners_log(app->listeners);
    quic_listeners_log(app->quic);
    log_info("process up: pgbraid %s, %d worker%s, %s", PGBRAID_VERSION,
             team_size(app->team), team_size(app->team) == 1 ? "" : "s",
             OpenSSL_version(OPENSSL_VERSION));
    if (app->takes_over && !has_supervisor(app))
        take_pidfile(app);
    takeover_serving(app);
    upgrade_orders_open(app);
    notify_ready();
    daemon_report_up(&app->report);
    supervisor_tell_up(app);
}

/* --- end --------------------------------------------------------------------
 */

static void tear_down(struct app *app)
{
    generation_fini(app);
    metrics_http_close(app->metrics);
    metrics_http_free(app->metrics);
    metrics_http_free(app->metrics_before);
    if (app->team)
        team_free(app->team);
    upgrade_orders_remove(app);
    listeners_free(app->listeners);
    quic_listeners_free(app->quic);
    signals_stop(&app->signals);
    if (app->has_pidfile)
        pidfile_remove(app->conf->pidfile);
    if (app->loop)
        loop_free(app->loop);
    if (app->shared)
        shared_free(app->shared);
    handover_free(app->handover);
    tls_pair_unref(&app->tls);
    conf_unref(app->conf);
    log_stop();
    crash_set_logfile(NULL);
}

static int run(const struct args *args, int argc, char **argv)
{
    struct app app = {.args = *args, .report = -1, .to_supervisor = -1};
    struct err e = {0};
    signals_block();
    upgrade_note_program(&app, argc, argv);
    int rc = start(&app, &e);
    if (rc) {
        takeover_fail(&app, e.text);
        log_fatal("%s", e.text);
        if (app.has_log && app.is_background) /* the log is elsewhere */
            fprintf(stderr, "pgbraid: %s\n", e.text);
    } else {
        say_up(&app);
        reload_watch_users(&app);
        stats_log_start(&app);
        watchdog_start(&app);
        loop_run(app.loop);
    }
    tear_down(&app);
    return rc ? 1 : 0;
}

/* --- without running --------------------------------------------------------
 */

static void print_finding(void *arg, bool is_error, const char *text)
{
    fprintf(stderr, "%s: %s\n", is_error ? "error" : "warning", text);
}

static int check_multipath(const struct conf *c, struct err *e)
{
    return multipath_check(c, true, e);
}

static int check_tls(const struct conf *c, struct err *e)
{
    struct tls_pair pair;
    int rc = tls_pair_load(&pair, c, e);
    if (rc == 0)
        tls_pair_unref(&pair);
    return rc;
}

/* What a file without mistakes asks of this host: the kernel, and the files
 * that it names. */
static int check_host(const char *file)
{
    static int (*const checks[])(const struct conf *c, struct err *e) = {
        check_multipath, check_tls, quic_listeners_check, metrics_http_check};
    struct conf *c;
    struct err e;
    int mistakes = 0;
    if (conf_load(file, &c, &e)) {
        print_finding(NULL, true, e.text);
        return 1;
    }
    for (size_t i = 0; i < ARRAY_SIZE(checks); i++)
        if (checks[i](c, &e)) {
            print_finding(NULL, true, e.text);
            mistakes++;
        }
    conf_unref(c);
    return mistakes;
}

static int check(const char *file)
{
    int mistakes = conf_check(file, print_finding, NULL);
    if (mistakes == 0)
        mistakes = check_host(file);
    if (mistakes) {
        fprintf(stderr, "%s: %d mistake%s\n", file, mistakes,
                mistakes == 1 ? "" : "s");
        return 1;
    }
    printf("%s: configuration is fine\n", file);
    return 0;
}

static int print_version(void)
{
    printf("pgbraid %s\n%s\nQUIC: %s\n", PGBRAID_VERSION,
           OpenSSL_version(OPENSSL_VERSION), quic_version());
    return 0;
}

/* By this program: its own path, as the running process is to start it. */
static int upgrade(const struct args *args, int argc, char **argv)
{
    char program[PATH_MAX];
    struct err e;
    upgrade_find_program(argv[0], program);
    int rc = upgrade_order(args, program, &e);
    if (rc == ERR_NOTFOUND && args->mode == ARGS_REBOOT)
        return run(args, argc, argv);
    if (rc)
        fprintf(stderr, "pgbraid: %s\n", e.text);
    return rc ? 1 : 0;
}

int main(int argc, char **argv)
{
    struct args args;
    struct err e;
    if (argc > 1 && edge_main_is(argv[1]))
        return edge_main(argc - 1, argv + 1);
    if (args_parse(&args, argc, argv, &e)) {
        fprintf(stderr, "pgbraid: %s\nTry \"pgbraid --help\".\n", e.text);
        return 1;
    }
    switch (args.mode) {
    case ARGS_HELP:
        fputs(args_help, stdout);
        return 0;
    case ARGS_VERSION:
        return print_version();
    case ARGS_CHECK:
        return check(args.file);
    case ARGS_UPGRADE:
    case ARGS_REBOOT:
        return upgrade(&args, argc, argv);
    case ARGS_RUN:
        return run(&args, argc, argv);
    }
    return 1;
}
