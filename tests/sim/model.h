/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A lean world for millions of schedules: the pool's own code between clients
 * that only ask, wait and cancel, and PostgreSQLs that only run what they are
 * asked until they are told to end. model_peers.c has these two, model_check.c
 * what must hold, model.c the schedules. One thread. */
#ifndef SIM_MODEL_H
#define SIM_MODEL_H

#include "pool/impl.h"
#include "sim.h"

enum { SHARDS_HERE = 4, DBS_HERE = 3, CONFS_HERE = 3, STARTS_KEPT = 8 };

struct peer_client {
    struct list node;
    struct conn *k;
    int mark;
    struct bytes got;
    uint8_t key[8];
    bool is_in;         /* logged in */
    bool in_tx;         /* between its BEGIN and its COMMIT */
    bool is_asking;     /* a query is not answered */
    bool was_canceled;  /* of that query: an error may be its answer */
    bool may_be_cut;    /* KILL and the like: the end may come at any time */
    uint64_t killed_by; /* the KILL that must end it */
    uint32_t seq;       /* of its last query */
    int left;           /* queries to go */
    /* What the checks remember. */
    struct pool_rec *seen_rec;
    int64_t seen_wait_us; /* of its present wait; 0: none */
    uint64_t since_round; /* of the wait */
    uint32_t overtaken, overtaken_by_others;
    bool was_active; /* it had a server */
};

struct peer_server {
    struct list node;
    struct conn *k;
    struct bytes in;
    uint32_t pid;
    char db[16], user[16];
    bool in_startup, is_cancel;
    int owner;    /* mark of the transaction or query; 0: idle */
    uint32_t seq; /* of the query that runs */
    bool is_running, in_tx;
    int cancel_delay; /* steps until the signal */
    uint32_t cancel_pid;
    uint64_t idle_round; /* idle in the pooler since then; 0: not */
};

/* A CancelRequest. */
struct peer_cancel {
    struct list node;
    struct conn *k;
    int mark;
    uint32_t seq; /* what it was for; 0: nothing that must be hit */
    bool was_running, is_excused;
};

struct world {
    struct shared *shared;
    int n_shards, n_dbs, n_confs, conf_at;
    struct shard *shard[SHARDS_HERE];
    struct loop *loop[SHARDS_HERE];
    struct conf *conf[CONFS_HERE];
    bool conf_may[CONFS_HERE]; /* some worker has had it */
    struct list clients, servers, cancels;
    int n_clients, last_mark, max_clients;
    /* what may happen, in 10000 each step */
    unsigned kill_client, kill_db, pause, reload, reconnect, crash, cancel,
        balance;
    unsigned run_percent; /* of queries that end at once */
    int64_t step_us;
    bool servers_stay;
    uint64_t step, round;
    bool has_turned[SHARDS_HERE];
    int64_t cpu_us[SHARDS_HERE];
    bool is_killing; /* KILL is going round */
    bool is_long, is_ending;
    uint64_t kills, kills_done;
    bool has_faults; /* a server or a client was ended by force */
};

extern struct world w;

struct model_totals {
    uint64_t schedules, steps, clients, queries, cancels, hits, lent, moved,
        evicted, kills, crashes, reloads;
    uint32_t most_overtaken, most_overtaken_by_others;
    uint64_t most_rounds;
};
extern struct model_totals *model_totals;

/* Remembered for the trace of a failure, and part of the digest. */
void note_event(const char *what, int a, int b);

/* --- model_peers.c ------------------------------------------------------ */

void clients_step(void);
void client_connect(void);
void client_cancel(struct peer_client *d);
struct peer_client *client_of_mark(int mark);
void client_release(struct peer_client *d);
void servers_step(void);
void server_accept(struct conn *k);
void server_release(struct peer_server *s);
void cancels_step(void);
void cancel_release(struct peer_cancel *r);

/* --- model_check.c ------------------------------------------------------ */

void check_step(void);    /* after each */
void check_settled(void); /* when no message is on its way */
void check_assigned(struct peer_client *d);
void describe(void);

#endif
