/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/control.h"

#include "admin/stats.h"
#include "base/clock.h"

static struct control control;

void control_set(const struct control *c)
{
    control = *c;
    stats_start(clock_now_us());
}

const struct control *control_get(void)
{
    return &control;
}
