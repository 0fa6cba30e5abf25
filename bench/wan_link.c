/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A packet passes, in this order: block list and loss; the cap of its flow; the
 * cap of all; delay, jitter, reordering, duplication. Where it waits it stands
 * in a heap with the time at which it leaves, reckoned from when it should have
 * come and not from when we woke, so that lateness does not add up. */
#include "bench/wan_link.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "bench/wan_ip.h"
#include "net/addr.h"

enum { FLOWS_MAX = 4096, BLOCKS_MAX = 32 };

struct heap {
    struct wan_packet **at;
    size_t n, cap;
};

/* A cap as a virtual clock: when the next byte may leave. */
struct bucket {
    int64_t free_ns;
};

struct flow {
    UT_hash_handle hh;
    struct wan_flow_key key;
    struct bucket bucket;
};

struct wan_link {
    struct wan_settings set;
    struct wan_counts count;
    struct heap waiting; /* for the cap of their flow */
    struct heap wire;
    struct flow *flows;
    struct bucket all;
    struct addr blocks[BLOCKS_MAX];
    int n_blocks;
    int64_t last_due_ns;
    uint64_t random, seq;
    bool is_losing; /* in the middle of a burst */
};

struct wan_packet *wan_packet_new(size_t n)
{
    struct wan_packet *p = malloc(sizeof *p + n);
    must(p);
    p->n = n;
    return p;
}

/* --- order ---------------------------------------------------------------- */

static bool is_before(const struct wan_packet *a, const struct wan_packet *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->seq < b->seq;
}

static void heap_push(struct heap *h, struct wan_packet *p)
{
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 256;
        h->at = realloc(h->at, h->cap * sizeof *h->at);
        must(h->at);
    }
    size_t i = h->n++;
    for (; i > 0 && is_before(p, h->at[(i - 1) / 2]); i = (i - 1) / 2)
        h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = p;
}

static struct wan_packet *heap_pop(struct heap *h)
{
    struct wan_packet *first = h->at[0], *last = h->at[--h->n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < h->n) {
        if (child + 1 < h->n && is_before(h->at[child + 1], h->at[child]))
            child++;
        if (!is_before(h->at[child], last))
            break;
        h->at[i] = h->at[child];
        i = child;
    }
    h->at[i] = last;
    return first;
}

static int64_t heap_next_ns(const struct heap *h)
{
    return h->n ? h->at[0]->due_ns : INT64_MAX;
}

static void heap_fini(struct heap *h)
{
    for (size_t i = 0; i < h->n; i++)
        free(h->at[i]);
    free(h->at);
}

/* --- chance --------------------------------------------------------------- */

/* xorshift64*: plenty for this, and the same everywhere. 0 to below 1. */
static double chance(struct wan_link *l)
{
    l->random ^= l->random >> 12;
    l->random ^= l->random << 25;
    l->random ^= l->random >> 27;
    return (double)((l->random * 0x2545f4914f6cdd1dULL) >> 11) * 0x1p-53;
}

static bool happens(struct wan_link *l, double share)
{
    return share > 0 && chance(l) < share;
}

/* Two states, of which one loses everything; they change so often that bursts
 * have their mean length and the share of losses is right. */
static bool is_lost(struct wan_link *l)
{
    const struct wan_settings *s = &l->set;
    if (s->loss <= 0 || s->loss_burst <= 1 || s->loss >= 1)
        return happens(l, s->loss);
    double leave = 1 / s->loss_burst;
    double enter = leave * s->loss / (1 - s->loss);
    l->is_losing = l->is_losing ? !happens(l, leave) : happens(l, enter);
    return l->is_losing;
}

/* --- caps ----------------------------------------------------------------- */

/* When the packet has passed, or -1 when it would wait too long. */
static int64_t pass(struct bucket *b, int64_t now_ns, size_t n, double rate,
                    double queue_ns)
{
    int64_t start = MAX(b->free_ns, now_ns);
    if ((double)(start - now_ns) > queue_ns)
        return -1;
    b->free_ns = start + (int64_t)((double)n / rate);
    return b->free_ns;
}

static void forget_idle_flows(struct wan_link *l, int64_t now_ns)
{
    struct flow *f, *next;
    HASH_ITER(hh, l->flows, f, next)
    {
        if (f->bucket.free_ns > now_ns)
            continue;
        HASH_DEL(l->flows, f);
        free(f);
    }
}

static struct flow *find_flow(struct wan_link *l, const struct wan_flow_key *k,
                              int64_t now_ns)
{
    struct flow *f;
    HASH_FIND(hh, l->flows, k, sizeof *k, f);
    if (f)
        return f;
    if (HASH_COUNT(l->flows) >= FLOWS_MAX)
        forget_idle_flows(l, now_ns);
    f = mem_new(sizeof *f);
    f->key = *k;
    HASH_ADD(hh, l->flows, key, sizeof f->key, f);
    l->count.flows = HASH_COUNT(l->flows);
    return f;
}

/* --- the way of a packet ---------------------------------------------------
 */

static void drop(struct wan_link *l, struct wan_packet *p, uint64_t *why)
{
    (*why)++;
    l->count.held--;
    free(p);
}

static void launch(struct wan_link *l, struct wan_packet *p)
{
    p->seq = l->seq++;
    heap_push(&l->wire, p);
}

static void duplicate(struct wan_link *l, const struct wan_packet *p)
{
    struct wan_packet *twin = wan_packet_new(p->n);
    memcpy(twin->data, p->data, p->n);
    twin->due_ns = p->due_ns;
    l->count.duplicated++;
    l->count.held++;
    launch(l, twin);
}

/* p->due_ns is when it got so far. */
static void enter_wire(struct wan_link *l, struct wan_packet *p)
{
    const struct wan_settings *s = &l->set;
    int64_t at = p->due_ns;
    if (s->rate > 0)
        at = pass(&l->all, at, p->n, s->rate, s->queue_ns);
    if (at < 0) {
        drop(l, p, &l->count.queue_drops);
        return;
    }
    at += (int64_t)(s->delay_ns + chance(l) * s->jitter_ns);
    if (happens(l, s->reorder)) {
        at += (int64_t)s->reorder_ns;
        l->count.reordered++;
    } else if (!(s->is_unordered > 0)) {
        at = MAX(at, l->last_due_ns);
        l->last_due_ns = at;
    }
    p->due_ns = at;
    if (happens(l, s->dup))
        duplicate(l, p);
    launch(l, p);
}

static bool is_blocked(const struct wan_link *l, const struct wan_flow_key *k)
{
    for (int i = 0; i < l->n_blocks; i++)
        if (wan_flow_touches(k, &l->blocks[i]))
            return true;
    return false;
}

void wan_link_put(struct wan_link *l, struct wan_packet *p, int64_t now_ns)
{
    const struct wan_settings *s = &l->set;
    struct wan_flow_key key;
    l->count.in++;
    l->count.in_bytes += p->n;
    l->count.held++;
    l->count.held_most = MAX(l->count.held_most, l->count.held);
    wan_flow_of(p->data, p->n, &key);
    if (s->is_down > 0 || is_blocked(l, &key)) {
        drop(l, p, &l->count.blocked);
        return;
    }
    if (s->path_mtu > 0 && (double)p->n > s->path_mtu) {
        drop(l, p, &l->count.too_large);
        return;
    }
    if (is_lost(l)) {
        drop(l, p, &l->count.lost);
        return;
    }
    if (s->strips_mptcp > 0)
        l->count.stripped += wan_strip_mptcp(p->data, p->n);
    p->due_ns = now_ns;
    if (!(s->flow_rate > 0)) {
        enter_wire(l, p);
        return;
    }
    struct flow *f = find_flow(l, &key, now_ns);
    p->due_ns = pass(&f->bucket, now_ns, p->n, s->flow_rate, s->flow_queue_ns);
    if (p->due_ns < 0) {
        drop(l, p, &l->count.flow_queue_drops);
        return;
    }
    p->seq = l->seq++;
    heap_push(&l->waiting, p);
}

struct wan_packet *wan_link_take(struct wan_link *l, int64_t now_ns)
{
    while (heap_next_ns(&l->waiting) <= now_ns)
        enter_wire(l, heap_pop(&l->waiting));
    if (heap_next_ns(&l->wire) > now_ns)
        return NULL;
    struct wan_packet *p = heap_pop(&l->wire);
    l->count.held--;
    l->count.out++;
    l->count.out_bytes += p->n;
    return p;
}

int64_t wan_link_next_ns(const struct wan_link *l)
{
    return MIN(heap_next_ns(&l->waiting), heap_next_ns(&l->wire));
}

/* --- life ------------------------------------------------------------------
 */

void wan_link_seed(struct wan_link *l, uint64_t seed)
{
    l->random = seed * 0x9e3779b97f4a7c15ULL | 1;
}

struct wan_link *wan_link_new(void)
{
    struct wan_link *l = mem_new(sizeof *l);
    wan_link_seed(l, 1);
    l->set.queue_ns = l->set.flow_queue_ns = 100e6;
    return l;
}

void wan_link_free(struct wan_link *l)
{
    struct flow *f, *next;
    HASH_ITER(hh, l->flows, f, next)
    {
        HASH_DEL(l->flows, f);
        free(f);
    }
    heap_fini(&l->waiting);
    heap_fini(&l->wire);
    free(l);
}

struct wan_settings *wan_link_settings(struct wan_link *l)
{
    return &l->set;
}

const struct wan_counts *wan_link_counts(const struct wan_link *l)
{
    return &l->count;
}

bool wan_link_block(struct wan_link *l, const char *text)
{
    const char *colon = strrchr(text, ':');
    struct addr *at = &l->blocks[l->n_blocks];
    int64_t port = 0;
    if (l->n_blocks == BLOCKS_MAX)
        return false;
    if (!addr_parse_ip(slice_str(text), 0, at)) {
        if (!colon || !slice_to_i64(slice_str(colon + 1), &port) || port < 1 ||
            port > UINT16_MAX ||
            !addr_parse_ip(slice_of(text, (size_t)(colon - text)), (int)port,
                           at))
            return false;
    }
    l->n_blocks++;
    return true;
}

void wan_link_unblock(struct wan_link *l)
{
    l->n_blocks = 0;
}

/* --- settings by name ------------------------------------------------------
 */

#define FIELD(name) offsetof(struct wan_settings, name)

enum { NO_SECOND = -1 };

static const struct {
    const char *name;
    size_t field;
    double unit;
    int second; /* behind a colon */
    double second_unit;
} rows[] = {
    {"delay", FIELD(delay_ns), 1e6, NO_SECOND, 0},
    {"jitter", FIELD(jitter_ns), 1e6, NO_SECOND, 0},
    {"loss", FIELD(loss), 0.01, FIELD(loss_burst), 1},
    {"dup", FIELD(dup), 0.01, NO_SECOND, 0},
    {"reorder", FIELD(reorder), 0.01, FIELD(reorder_ns), 1e6},
    {"rate", FIELD(rate), 1.0 / 8000, NO_SECOND, 0},
    {"flow-rate", FIELD(flow_rate), 1.0 / 8000, NO_SECOND, 0},
    {"queue-ms", FIELD(queue_ns), 1e6, NO_SECOND, 0},
    {"flow-queue-ms", FIELD(flow_queue_ns), 1e6, NO_SECOND, 0},
    {"unordered", FIELD(is_unordered), 1, NO_SECOND, 0},
    {"down", FIELD(is_down), 1, NO_SECOND, 0},
    {"path-mtu", FIELD(path_mtu), 1, NO_SECOND, 0},
    {"strip-mptcp", FIELD(strips_mptcp), 1, NO_SECOND, 0},
};

static bool read_number(const char **text, double unit, void *field)
{
    char *end;
    double value = strtod(*text, &end) * unit;
    if (end == *text || !(value >= 0) || value > 1e15)
        return false;
    *text = end;
    memcpy(field, &value, sizeof value);
    return true;
}

bool wan_settings_set(struct wan_settings *s, const char *name,
                      const char *text)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        struct wan_settings new = *s;
        if (!read_number(&text, rows[i].unit, (char *)&new + rows[i].field))
            return false;
        if (*text == ':' && rows[i].second != NO_SECOND) {
            text++;
            if (!read_number(&text, rows[i].second_unit,
                             (char *)&new + rows[i].second))
                return false;
        }
        if (*text)
            return false;
        *s = new;
        return true;
    }
    return false;
}
