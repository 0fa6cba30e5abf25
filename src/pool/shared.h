/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* What the workers share: the records of databases, users and pools with their
 * exact counts, the one budget of server connections, the configuration in
 * force and what a login has proven. Any thread may call; each function takes
 * its short lock itself, and no lock is held across a callback.
 *
 * Records are made on first use and live as long as the process, so pointers to
 * them stay good; but those of a database that has no line of its own go when
 * nobody has used it for a while (shared_forget_unused()). Strangers can name
 * such databases, as many as they like. */
#ifndef POOL_SHARED_H
#define POOL_SHARED_H

#include <pthread.h>
#include <stdatomic.h>

#include "auth/secret.h"
#include "base/hash.h"
#include "base/slice.h"
#include "conf/conf.h"
#include "pg/pg_params.h"
#include "pool/kill.h"

struct addr;
struct latency_set;
struct loop;
struct pool_stats;
struct secret_cache;
struct thrpool;
struct pool;
struct shard;
struct targets;

enum {
    SHARDS_MAX = 256, /* workers */
    FAIL_TEXT_MAX = 256,
};

/* A pool that a limit of its database or user has kept waiting for long: the
 * next place under the limit is its. Under the budget lock; since_us may be
 * looked at without. */
struct limit_claim {
    _Atomic int64_t since_us; /* of its first waiter; 0: no claim */
    int64_t seen_us;          /* made, or made again; it ends by itself */
    const struct pool_rec *pool;
};

struct db_rec {
    UT_hash_handle hh;
    char *name;
    int n_servers; /* under the budget lock */
    struct limit_claim claim;
    atomic_int n_clients;
    atomic_int n_pools; /* of all workers */
    atomic_bool is_paused, is_disabled;
    atomic_bool is_wait_close;     /* reserved for WAIT_CLOSE */
    _Atomic unsigned server_epoch; /* raised by RECONNECT of this one */
    _Atomic unsigned kills;        /* raised by KILL of this one: kill.h */
    struct latency_set *latency;   /* one a worker, written by it only */
    struct pool_stats *gone;       /* the same: of its pools that are gone */
    struct db_rec *next;           /* all of them, newest first */
    uint8_t n_sweeps;              /* that found it unused, or retired */
    bool is_retired;
    struct db_rec *next_retired;
};

struct user_rec {
    UT_hash_handle hh;
    char *name;
    int n_servers; /* under the budget lock */
    struct limit_claim claim;
    atomic_int n_clients;
    struct user_rec *next;

    /* What is known for logging in to servers, and auth_query's answer. */
    pthread_mutex_t lock;
    struct auth_keys keys;      /* of the last login that proved any */
    struct auth_secret secret;  /* from auth_query */
    struct auth_secret derived; /* SCRAM secret made from a plain password */
    struct auth_secret derived_from;
};

/* Published by one worker, read by the others. */
struct pool_slot {
    _Alignas(64) atomic_int idle; /* servers that could be lent */
    atomic_int demand;            /* waiting clients that no server is on its
                                   * way to */
    _Atomic int64_t oldest_us;    /* since when the first one waits */
    atomic_int logins;            /* that wait for a server; while leaving */
};

/* The processes before and after this one in an upgrade (handover.h). They
 * have slots as workers have, behind these. */
enum generation { GEN_OLDER, GEN_NEWER, GEN_COUNT };

/* What the other process was told last. */
struct pool_demand {
    int n;
    int64_t us;
};

struct pool_rec {
    UT_hash_handle hh;
    struct {
        struct db_rec *db;
        struct user_rec *user;
    } key;
    struct db_rec *db;
    struct user_rec *user;
    atomic_int n_servers; /* written under the budget lock */
    int n_foreign; /* of them, connections of the older process; same lock */
    int n_grants;  /* places that the newer process let us have; same lock */
    atomic_int n_replicating;           /* of them; they bring no welcome */
    atomic_int demand;                  /* sum of the slots' */
    struct pool_demand told[GEN_COUNT]; /* main thread only */
    _Atomic(const struct pg_params *) welcome; /* of the first login */
    struct pool **pool;     /* one a worker, each used by it only */
    struct pool_slot *slot; /* one a worker, one a generation */

    /* Why servers cannot be had; under fail_lock. */
    pthread_mutex_t fail_lock;
    _Atomic int64_t failed_us; /* 0: the last attempt succeeded */
    char fail_text[FAIL_TEXT_MAX];
    char fail_state[6]; /* SQLSTATE */
    struct pool_rec *next;
    uint8_t n_sweeps; /* since it was retired */
    struct pool_rec *next_retired;
};

struct budget_limits {
    int pool_size; /* 0: no limit, here and below */
    int max_db, max_user;
    int64_t since_us; /* since when the pool's first client waits; 0: none */
    int64_t now_us;
};

enum budget_verdict {
    BUDGET_OK,
    BUDGET_POOL_FULL,
    BUDGET_DB_FULL,
    BUDGET_USER_FULL,
};

/* What a worker makes known of its load, in thousandths of a processor. */
struct worker_load {
    _Alignas(64) atomic_int used; /* by its thread, lately */
    atomic_int promised;          /* of clients on their way to it */
};

struct shared {
    int n_shards;
    struct shard *shard[SHARDS_MAX]; /* set before the workers start */

    pthread_mutex_t records_lock;
    struct db_rec *dbs, *db_list;
    struct user_rec *users, *user_list;
    struct pool_rec *pools, *pool_list;
    /* Out of the tables and lists, but perhaps still looked at. */
    struct db_rec *retired_dbs;
    struct pool_rec *retired_pools;

    struct worker_load *load;     /* one a worker */
    _Atomic int64_t last_move_us; /* of a client, between workers */

    pthread_mutex_t budget_lock;
    /* The newer process has the budget: places come by its leave. Same lock. */
    bool is_budget_elsewhere;
    void (*on_place_given)(struct shared *s, struct pool_rec *p); /* then */
    struct handover *handover; /* handover.h; set before the workers start */

    pthread_mutex_t hosts_lock; /* limits.c */
    struct host_count *hosts;
    struct miss_count *misses;
    int64_t miss_window_us; /* when it began */
    int miss_tenths;

    struct targets *targets; /* targets.h */

    pthread_mutex_t conf_lock;
    struct conf *conf;

    atomic_int n_clients; /* sessions, logins included */
    _Atomic uint64_t last_client_id, last_server_id;
    atomic_bool is_paused;         /* PAUSE without a database, SUSPEND */
    atomic_bool is_suspended;      /* which of the two */
    atomic_bool is_shutting_down;  /* no new clients */
    _Atomic unsigned server_epoch; /* raised by RECONNECT of all */
    _Atomic unsigned kills;        /* raised by KILL of all: kill.h */
    struct {
        _Atomic uint64_t id; /* 0: free */
        atomic_bool was_met;
    } killing[KILLS_AT_ONCE]; /* by KILL_CLIENT */
    uint8_t process_key[32];  /* for SCRAM salts */
    int64_t start_wall_us;

    struct secret_cache *secrets; /* answers of auth_query */

    /* Helper threads; their jobs end before the first shard is freed. */
    struct thrpool *hashing;         /* slow hashes of clients' logins */
    struct thrpool *hashing_servers; /* of logins at servers */
    struct thrpool *asking;          /* PAM, LDAP, accounts */
};

/* No job of a helper thread comes home any more. While all loops still exist;
 * more than once does no harm. */
void shared_stop_helpers(struct shared *s);

/* Takes the reference to conf. */
struct shared *shared_new(struct conf *conf, int n_shards);
void shared_free(struct shared *s); /* after all workers are gone */

struct conf *shared_conf(struct shared *s); /* a reference */
/* Takes the reference. Workers are told by the caller. */
void shared_set_conf(struct shared *s, struct conf *conf);

struct db_rec *shared_db(struct shared *s, struct slice name);
struct db_rec *shared_find_db(struct shared *s, struct slice name);
struct user_rec *shared_user(struct shared *s, struct slice name);
struct user_rec *shared_find_user(struct shared *s, struct slice name);
struct pool_rec *shared_pool(struct shared *s, struct db_rec *db,
                             struct user_rec *user);

/* One sweep, by one worker every SHARED_SWEEP_US: a database without a line
 * that two of them find without pool, client and server is retired with its
 * pools' records, two more later the memory goes. Whoever got a record without
 * being counted in it is done with it long before. */
enum { SHARED_SWEEP_US = 15 * 1000 * 1000 };
void shared_forget_unused(struct shared *s, const struct conf *conf);

/* Cancel requests with unknown keys: may this address send another? The first
 * refusal in a while is to be logged. (limits.c) */
enum cancel_verdict { CANCEL_ALLOWED, CANCEL_REFUSED, CANCEL_REFUSED_FIRST };
enum cancel_verdict limits_cancel(struct shared *s, const struct addr *peer,
                                  const struct conf *conf, int64_t now_us);
/* It sent one; by_peers: one that a peer sent, or that a peer will look at. */
void limits_cancel_missed(struct shared *s, const struct addr *peer,
                          bool by_peers, int64_t now_us);
void limits_forget_misses(struct shared *s);

/* Reserves one server connection in the pool, its database and its user, all or
 * none. Whom a limit has refused for CLAIM_WAIT_US has a claim on the next
 * place under it, against pools whose clients came later: else a busy pool
 * could keep another of its database or user out for ever. */
enum { CLAIM_WAIT_US = 500 * 1000, CLAIM_TTL_US = 250 * 1000 };
enum budget_verdict budget_take(struct shared *s, struct pool_rec *p,
                                const struct budget_limits *l);
/* Another pool has a claim that goes before p's own waiting clients. */
bool budget_is_claimed(struct shared *s, struct pool_rec *p, int64_t since_us,
                       int64_t now_us);
/* The client of p that waits since then waits no more. True when it had a claim
 * that others were held back by: they may look again. */
bool budget_end_claim(struct shared *s, struct pool_rec *p, int64_t since_us);
void budget_give(struct shared *s, struct pool_rec *p);

/* A connection goes with its place, or comes with it. */
void budget_hand_over(struct shared *s, struct pool_rec *p, enum generation to);
void budget_receive(struct shared *s, struct pool_rec *p, enum generation from);

/* The older process holds n places; has closed one; is gone: all return. */
void budget_add_foreign(struct shared *s, struct pool_rec *p, int n);
bool budget_foreign_closed(struct shared *s, struct pool_rec *p);
void budget_foreign_gone(struct shared *s);
/* One of ours for the older process; one that the newer lets us have; one that
 * was not needed (false: there is none). */
enum budget_verdict budget_grant(struct shared *s, struct pool_rec *p,
                                 const struct budget_limits *l);
void budget_granted(struct shared *s, struct pool_rec *p);
bool budget_grant_return(struct shared *s, struct pool_rec *p);

/* Gives the budget away: from now on budget_take() works by grants alone.
 * each() is told, in the same moment, how many places each pool has. */
void budget_leave(struct shared *s,
                  void (*each)(void *arg, struct pool_rec *p, int n),
                  void *arg);
void budget_resume(struct shared *s); /* it has come back */
int budget_db_count(struct shared *s, struct db_rec *db);
int budget_user_count(struct shared *s, struct user_rec *u);

/* Takes one unit of a worker's demand; false when it has none left. */
bool demand_take(struct pool_rec *p, int shard);
void demand_add(struct pool_rec *p, int shard, int n);

void pool_rec_set_failed(struct pool_rec *p, int64_t now_us,
                         const char *sqlstate, const char *text);
void pool_rec_set_working(struct pool_rec *p);
bool pool_rec_failure(struct pool_rec *p, char *sqlstate, char *text,
                      size_t cap);

void user_rec_set_keys(struct user_rec *u, const struct auth_keys *keys);
void user_rec_get_keys(struct user_rec *u, struct auth_keys *out);
void user_rec_set_secret(struct user_rec *u, const struct auth_secret *s);
void user_rec_get_secret(struct user_rec *u, struct auth_secret *out);

/* The SCRAM secret derived from this plain one, if it is the one cached. */
bool user_rec_get_derived(struct user_rec *u, const struct auth_secret *plain,
                          struct auth_secret *out);
void user_rec_set_derived(struct user_rec *u, const struct auth_secret *plain,
                          const struct auth_secret *derived);

#endif
