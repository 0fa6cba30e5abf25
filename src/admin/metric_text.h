/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Prometheus' text format, version 0.0.4: families of metric.def with their
 * samples. One thread at a time. */
#ifndef ADMIN_METRIC_TEXT_H
#define ADMIN_METRIC_TEXT_H

#include "pg/pg_write.h"
#include "pool/latency.h"

enum metric_id {
#define METRIC(id, type, name, labels, help) METRIC_##id,
#include "admin/metric.def"
#undef METRIC
    METRIC_COUNT
};

struct metric_label {
    const char *name;
    struct slice value; /* any bytes */
};

enum { METRIC_LABELS_MAX = 3 };

/* The head of a family; its samples follow. */
void metric_begin(struct pgbuf *out, enum metric_id id);

void metric_put(struct pgbuf *out, enum metric_id id,
                const struct metric_label *labels, int n, int64_t value);
/* Microseconds, written as seconds. */
void metric_put_us(struct pgbuf *out, enum metric_id id,
                   const struct metric_label *labels, int n, int64_t us);

/* A histogram with one label. */
void metric_put_latency(struct pgbuf *out, enum metric_id id,
                        const struct metric_label *label,
                        const struct latency_sum *s);

/* A family of one sample without labels. */
void metric_put_single(struct pgbuf *out, enum metric_id id, int64_t value);

#endif
