/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "pool/kill.h"

#include "pool/impl.h"

/* --- KILL ------------------------------------------------------------------
 */

void kill_begin(struct shared *s, struct db_rec *db)
{
    atomic_fetch_add(db ? &db->kills : &s->kills, 1);
}

static unsigned kills_of(const struct client *c)
{
    return atomic_load(&c->shard->shared->kills) + atomic_load(&c->db->kills);
}

void kill_note_login(struct client *c)
{
    c->kills_seen = kills_of(c);
}

/* --- KILL_CLIENT -----------------------------------------------------------
 */

int kill_begin_client(struct shared *s, uint64_t id)
{
    for (int i = 0; i < KILLS_AT_ONCE; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&s->killing[i].id, &none, id))
            return i;
    }
    return -1;
}

bool kill_was_met(const struct shared *s, int slot)
{
    return slot >= 0 && atomic_load(&s->killing[slot].was_met);
}

void kill_end_client(struct shared *s, int slot)
{
    if (slot < 0)
        return;
    atomic_store(&s->killing[slot].was_met, false);
    atomic_store(&s->killing[slot].id, 0);
}

static bool is_being_killed(struct shared *s, uint64_t id)
{
    for (int i = 0; i < KILLS_AT_ONCE; i++)
        if (atomic_load(&s->killing[i].id) == id) {
            atomic_store(&s->killing[i].was_met, true);
            return true;
        }
    return false;
}

bool kill_meets(const struct client *c)
{
    return kills_of(c) != c->kills_seen ||
           is_being_killed(c->shard->shared, c->id);
}
