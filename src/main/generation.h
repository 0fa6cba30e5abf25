/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The links of an upgrade: to the older process, whose place this one has
 * taken, and to the newer one, which takes this one's. First the dialogue of
 * the start:
 *
 *   newer                                older
 *   HELLO                          ->
 *                                  <-    STATE, SOCKET..., OFFERED | REFUSED
 *   READY | FAILED                 ->
 *                                  <-    POOL..., USER..., DATABASE..., COMMIT
 *   SERVING                        ->
 *
 * From READY to SERVING nobody accepts: connections wait in the kernel. Then
 * both send each other what handover.h packs, until the older process has
 * nothing left and says BYE. A link that breaks without BYE means that the
 * other has died: all places of a dead older process return; for a dead newer
 * one the older process goes on as if there had been no upgrade.
 *
 * Main thread. */
#ifndef MAIN_GENERATION_H
#define MAIN_GENERATION_H

#include "admin/control.h"
#include "net/fdlink.h"
#include "pool/handover.h"

struct app;

/* Raised with every change of what is sent. */
enum { GENERATION_FORMAT = 1 };
#define GENERATION_MAGIC "pgbraid upgrade"

enum generation_frame {
    GEN_HELLO = 1,
    GEN_REFUSED,
    GEN_STATE,
    GEN_SOCKET,
    GEN_OFFERED,
    GEN_READY,
    GEN_FAILED,
    GEN_POOL,
    GEN_USER,
    GEN_DATABASE,
    GEN_COMMIT,
    GEN_SERVING,

    GEN_STATEMENT, /* a text and its number */
    GEN_CLIENT,
    GEN_SERVER,
    GEN_PLACE,       /* one less is held */
    GEN_DEMAND,      /* so many wait, the first since then */
    GEN_GRANT,       /* one more may be held */
    GEN_CANCEL,      /* who has this key? */
    GEN_CANCEL_DONE, /* the answer */
    GEN_STATS,
    GEN_STOP, /* end as I do */
    GEN_BYE,
};

struct generation_link {
    struct app *app;
    enum generation side;
    struct fdlink *link; /* NULL: none */
    bool is_up;          /* after the dialogue */
    bool said_bye;
    struct number *sent; /* statements that the other knows */
    struct asked *asked; /* cancels that it looks for */
    uint64_t last_token;
};

struct generations {
    struct handover *handover;
    struct generation_link link[GEN_COUNT];
    struct timer tick;
    bool is_gathering;
    struct leave_count left;
    int64_t leave_until_us; /* 0: no limit */
    bool is_leaving, has_finished;
    struct message *stats; /* of a finish under way */
    unsigned next_worker;
};

void generation_init(struct app *app);
void generation_fini(struct app *app);

/* Takes l. Frames of the dialogue go to upgrade.c. */
void generation_open(struct app *app, enum generation side, struct fdlink *l);
/* The dialogue has ended well. */
void generation_up(struct app *app, enum generation side);
void generation_close(struct app *app, enum generation side);
void generation_send(struct app *app, enum generation side,
                     enum generation_frame type, struct pgbuf *b, int fd);

/* Begins to let go of everything. */
void generation_leave(struct app *app);

/* The process ends: so does the older one. */
void generation_tell_stop(struct app *app, enum shutdown_mode mode);

#endif
