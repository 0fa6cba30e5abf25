/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The ini file with everything behind it: whatever the text, a snapshot or a
 * mistake comes out. %include "self" reads the same text again. */

#include <stdlib.h>

#include "conf/conf_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SELF_MAX = 12 }; /* enough for the depth cap, cheap enough to be fast */

static int reads;

static int read_text(void *arg, const char *path, char **text, size_t *n,
                     struct err *e)
{
    const struct slice *input = arg;

    if ((strcmp(path, "p.ini") != 0 && strcmp(path, "self") != 0) ||
        ++reads > SELF_MAX)
        return err_set(e, ERR_CONF, "no such file");
    *text = mem_new(input->n + 1);
    *n = input->n;
    if (input->n > 0)
        memcpy(*text, input->p, input->n);
    return 0;
}

static void on_check(void *arg, bool is_error, const char *text)
{
    must(strlen(text) < 8192);
}

static void on_option(void *arg, const char *key, const char *value,
                      const char *deflt, bool is_changeable)
{
    must(key && (!value || strlen(value) < (1U << 24)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct slice input = slice_of(data, size);
    struct conf_reader r = {read_text, &input};
    struct conf_sink first = {.cb = NULL}, all = {.cb = on_check};
    struct conf *c = NULL;
    struct err e;
    int rc;

    reads = 0;
    rc = conf_build(&r, "p.ini", &first, &c, &e);
    if (rc == 0) {
        conf_each_option(c, on_option, NULL);
        conf_unref(c);
    } else {
        must(first.count == 1 && e.text[0] != '\0');
    }
    reads = 0;
    if (conf_build(&r, "p.ini", &all, &c, &e) == 0)
        conf_unref(c);
    must((all.count == 0) == (rc == 0));
    return 0;
}
