/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/reload.h"

#include <stdlib.h>

#include "admin/metrics.h"
#include "base/log.h"
#include "main/app.h"
#include "main/crash.h"
#include "main/multipath.h"

enum { WATCH_USERS_US = 1000 * 1000 };

void reload_log_warnings(const struct conf *c)
{
    for (int i = 0; i < conf_warning_count(c); i++)
        log_warning("%s", conf_warning(c, i));
}

int reload_open_log(const struct app *app, const struct conf *c, bool is_start,
                    struct err *e)
{
    struct log_config l = {
        .file = c->logfile,
        .to_stderr = !app->is_background && !app->args.is_quiet,
        .to_syslog = c->syslog,
        .syslog_ident = c->syslog_ident ? c->syslog_ident : "pgbraid",
        .syslog_facility = c->syslog_facility,
        .verbose = c->verbose + app->args.verbose,
        .as_json = c->log_format == CONF_LOG_JSON,
    };
    int rc = is_start ? log_start(&l, e) : log_reconfigure(&l, e);
    if (rc == 0)
        crash_set_logfile(c->logfile);
    return rc;
}

/* --- to the workers ---------------------------------------------------------
 */

/* A configuration on its round through the workers. */
struct install {
    struct conf *conf;
    struct tls_pair tls;
    reload_done_cb on_done;
    void *arg;
};

static void install_on(struct shard *sh, void *arg)
{
    struct install *in = arg;
    struct tls_pair tls = tls_pair_ref(&in->tls);
    shard_set_conf(sh, conf_ref(in->conf), tls.client, tls.server);
}

static void end_install(void *arg)
{
    struct install *in = arg;
    reload_done_cb on_done = in->on_done;
    void *done_arg = in->arg;
    conf_unref(in->conf);
    tls_pair_unref(&in->tls);
    free(in);
    if (on_done)
        on_done(done_arg);
}

/* Takes both references. */
static void install(struct app *app, struct conf *conf, struct tls_pair tls,
                    reload_done_cb on_done, void *arg)
{
    if (conf->tcp_defer_accept != app->conf->tcp_defer_accept)
        listeners_set_defer_accept(app->listeners, conf->tcp_defer_accept);
    conf_unref(app->conf);
    tls_pair_unref(&app->tls);
    app->conf = conf;
    app->tls = tls;
    shared_set_conf(app->shared, conf_ref(conf));

    struct install *in = mem_new(sizeof *in);
    *in = (struct install){.conf = conf_ref(conf),
                           .tls = tls_pair_ref(&tls),
                           .on_done = on_done,
                           .arg = arg};
    team_gather(app->team, app->loop, install_on, end_install, in);
}

/* Takes the reference to conf, also when it fails. */
static int put_in_force(struct app *app, struct conf *conf, bool same_tls,
                        reload_done_cb on_done, void *arg, struct err *e)
{
    struct tls_pair tls = {NULL, NULL};
    int rc = multipath_check(conf, false, e);
    if (rc == 0)
        rc = multipath_check_rights(conf, e);
    if (rc == 0 && same_tls)
        tls = tls_pair_ref(&app->tls);
    else if (rc == 0)
        rc = tls_pair_load(&tls, conf, e);
    if (rc == 0)
        rc = quic_listeners_reload(app->quic, conf, e);
    if (rc == 0)
        rc = reload_open_log(app, conf, false, e);
    if (rc) {
        tls_pair_unref(&tls);
        conf_unref(conf);
        return rc;
    }
    reload_log_warnings(conf);
    install(app, conf, tls, on_done, arg);
    return 0;
}

int reload_file(struct app *app, reload_done_cb on_done, void *arg,
                struct err *e)
{
    struct conf *conf;
    int rc = conf_reload(app->conf, &conf, e);
    if (rc == 0)
        rc = put_in_force(app, conf, false, on_done, arg, e);
    metrics_note_reload(rc == 0);
    if (rc)
        log_error("cannot reload: %s; the old configuration stays in force",
                  e->text);
    return rc;
}

int reload_set(struct app *app, const char *key, const char *value,
               reload_done_cb on_done, void *arg, struct err *e)
{
    struct conf *conf;
    int rc = conf_set(app->conf, slice_str(key), slice_str(value), &conf, e);
    if (rc)
        return rc;
    bool same_tls = conf_same_client_tls(app->conf, conf) &&
                    conf_same_server_tls(app->conf, conf);
    return put_in_force(app, conf, same_tls, on_done, arg, e);
}

/* --- auth_file --------------------------------------------------------------
 */

static void look_at_users(struct app *app)
{
    struct conf *conf;
    struct err e;
    if (!conf_users_changed(app->conf))
        return;
    if (conf_reload_users(app->conf, &conf, &e)) {
        log_error("auth_file: %s", e.text);
        return;
    }
    log_info("auth_file has changed: its users are in force");
    reload_log_warnings(conf);
    install(app, conf, tls_pair_ref(&app->tls), NULL, NULL);
}

static void on_users_timer(struct timer *t)
{
    struct app *app = container_of(t, struct app, users_timer);
    look_at_users(app);
    reload_watch_users(app);
}

void reload_watch_users(struct app *app)
{
    app->users_timer.on_fire = on_users_timer;
    timer_set(app->loop, &app->users_timer,
              loop_now_us(app->loop) + WATCH_USERS_US);
}
