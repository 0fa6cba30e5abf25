/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "admin/metric_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum metric_type { TYPE_GAUGE, TYPE_COUNTER, TYPE_HISTOGRAM };

static const char *const type_names[] = {
    [TYPE_GAUGE] = "gauge",
    [TYPE_COUNTER] = "counter",
    [TYPE_HISTOGRAM] = "histogram",
};

static const struct {
    const char *name, *help;
    enum metric_type type;
} metrics[] = {
#define METRIC(id, type, name, labels, help) {name, help, TYPE_##type},
#include "admin/metric.def"
#undef METRIC
};

static void put_text(struct pgbuf *out, const char *s)
{
    pgbuf_put_bytes(out, s, strlen(s));
}

/* What is no UTF-8 would spoil the whole page: it is shown as \x.. */
static void put_label_value(struct pgbuf *out, struct slice v)
{
    char escaped[8];
    for (size_t i = 0; i < v.n;) {
        size_t n = utf8_char(v.p + i, v.n - i);
        if (n == 0)
            snprintf(escaped, sizeof escaped, "\\\\x%02x",
                     (unsigned)(unsigned char)v.p[i]);
        else if (v.p[i] == '\n')
            strcpy(escaped, "\\n");
        else if (v.p[i] == '"' || v.p[i] == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", v.p[i]);
        else
            escaped[0] = 0;
        if (escaped[0])
            put_text(out, escaped);
        else
            pgbuf_put_bytes(out, v.p + i, n);
        i += n ? n : 1;
    }
}

void metric_begin(struct pgbuf *out, enum metric_id id)
{
    const char *name = metrics[id].name;
    put_text(out, "# HELP ");
    put_text(out, name);
    put_text(out, " ");
    put_text(out, metrics[id].help);
    put_text(out, "\n# TYPE ");
    put_text(out, name);
    put_text(out, " ");
    put_text(out, type_names[metrics[id].type]);
    put_text(out, "\n");
}

static void put_name(struct pgbuf *out, enum metric_id id, const char *suffix,
                     const struct metric_label *labels, int n)
{
    put_text(out, metrics[id].name);
    put_text(out, suffix);
    for (int i = 0; i < n; i++) {
        put_text(out, i ? "," : "{");
        put_text(out, labels[i].name);
        put_text(out, "=\"");
        put_label_value(out, labels[i].value);
        put_text(out, "\"");
    }
    put_text(out, n ? "} " : " ");
}

static void put_value(struct pgbuf *out, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64 "\n", value);
    put_text(out, text);
}

static void put_seconds(struct pgbuf *out, int64_t us)
{
    char text[40];
    snprintf(text, sizeof text, "%" PRId64 ".%06" PRId64 "\n", us / 1000000,
             us % 1000000);
    put_text(out, text);
}

void metric_put(struct pgbuf *out, enum metric_id id,
                const struct metric_label *labels, int n, int64_t value)
{
    put_name(out, id, "", labels, n);
    put_value(out, value);
}

void metric_put_us(struct pgbuf *out, enum metric_id id,
                   const struct metric_label *labels, int n, int64_t us)
{
    put_name(out, id, "", labels, n);
    put_seconds(out, MAX(us, (int64_t)0));
}

void metric_put_single(struct pgbuf *out, enum metric_id id, int64_t value)
{
    metric_begin(out, id);
    metric_put(out, id, NULL, 0, value);
}

void metric_put_latency(struct pgbuf *out, enum metric_id id,
                        const struct metric_label *label,
                        const struct latency_sum *s)
{
    struct metric_label both[2] = {*label, {.name = "le"}};
    uint64_t n = 0;
    char bound[32];
    for (int i = 0; i < LATENCY_BUCKETS; i++) {
        n += s->n[i];
        if (i < LATENCY_BOUNDS)
            snprintf(bound, sizeof bound, "%g",
                     (double)latency_bounds_us[i] / 1e6);
        else
            strcpy(bound, "+Inf");
        both[1].value = slice_str(bound);
        put_name(out, id, "_bucket", both, 2);
        put_value(out, (int64_t)n);
    }
    put_name(out, id, "_sum", label, 1);
    put_seconds(out, (int64_t)s->sum_us);
    put_name(out, id, "_count", label, 1);
    put_value(out, (int64_t)n);
}
