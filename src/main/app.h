/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The running pooler as the main thread sees it. Owned by main.c; the other
 * files of this folder work on their part of it. Main thread only, but for what
 * control.c says. */
#ifndef MAIN_APP_H
#define MAIN_APP_H

#include "admin/control.h"
#include "main/args.h"
#include "main/daemon.h"
#include "main/generation.h"
#include "main/listeners.h"
#include "main/quic_listeners.h"
#include "main/signals.h"
#include "main/takeover.h"
#include "main/tls_pair.h"
#include "main/upgrade.h"
#include "pool/shared.h"
#include "worker/team.h"

enum stop_state {
    STOP_NO,
    STOP_WAITS, /* for clients or servers, as stop_mode says */
    STOP_ENDS,  /* the loop ends as soon as the workers do not accept */
};

struct app {
    struct args args;
    struct daemon_user user;
    uint64_t max_files;
    int report;        /* to the process that started the daemon; -1: none */
    int to_supervisor; /* supervisor.c; -1: there is none */
    bool has_pidfile;
    bool is_background, has_log;

    struct conf *conf; /* in force; a reference */
    struct tls_pair tls;
    struct loop *loop;
    struct shared *shared;
    struct team *team;
    struct listeners *listeners;
    struct quic_listeners *quic;         /* NULL: not configured */
    struct metrics_http *metrics;        /* NULL: not configured */
    struct metrics_http *metrics_before; /* of an upgrade that was undone */
    struct signals signals;

    struct timer users_timer; /* reload.c */

    struct timer stats_timer; /* stats_log.c */

    char program[PATH_MAX]; /* how to start the next one */
    struct handover *handover;
    struct generations gen;    /* generation.c */
    struct upgrade upgrade;    /* upgrade.c */
    struct takeover *takeover; /* takeover.c; NULL: an ordinary start */
    bool takes_over;           /* it was none */
    struct listener *orders;   /* upgrade_orders.c */
    int n_orders;
    struct timer watchdog_timer; /* watchdog.c */

    enum stop_state stop; /* stop.c */
    enum shutdown_mode stop_mode;
    struct timer stop_timer;
    struct timer stop_limit;
    int stop_count;
};

#endif
