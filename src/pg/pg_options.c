/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Words as pg_split_opts() cuts them, switches as getopt() hands them to
 * process_postgres_switches(). */
#include "pg/pg_options.h"

/* "--name=value" is the switch '-' with an argument. */
static const char with_arg[] = "BCDNSWcdfhkprtv-";
static const char without_arg[] = "EFOPTbeijlns";

void pg_options_init(struct pg_options *o, struct slice options, char *buf)
{
    *o = (struct pg_options){
        .p = options.p,
        .end = options.n ? options.p + options.n : options.p,
        .buf = buf,
        .cap = options.n,
    };
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next word, unescaped into buf; false when there is none. A word is never
 * longer than what it was read from, so that buf suffices for all. */
static bool next_word(struct pg_options *o, struct slice *word)
{
    size_t from = o->n;

    while (o->p < o->end && is_blank(*o->p))
        o->p++;
    if (o->p == o->end)
        return false;
    while (o->p < o->end && !is_blank(*o->p)) {
        if (*o->p == '\\' && ++o->p == o->end)
            break;
        must(o->n < o->cap);
        o->buf[o->n++] = *o->p++;
    }
    *word = slice_of(o->buf + from, o->n - from);
    return true;
}

static int refuse(struct err *e, struct slice word)
{
    return err_set(
        e, ERR_SYNTAX,
        "invalid command-line argument for server process: " SLICE_FMT,
        SLICE_ARG(word));
}

static int set_setting(struct pg_options *o, char letter, struct slice arg,
                       struct pg_option *out, struct err *e)
{
    const char *eq = arg.n > 0 ? memchr(arg.p, '=', arg.n) : NULL;
    size_t n = eq ? (size_t)(eq - arg.p) : arg.n;
    char *name = o->buf + (arg.p - o->buf);

    if (!eq)
        return err_set(e, ERR_SYNTAX,
                       letter == '-' ? "--" SLICE_FMT " requires a value"
                                     : "-c " SLICE_FMT " requires a value",
                       SLICE_ARG(arg));
    for (size_t i = 0; i < n; i++) {
        if (name[i] == '-')
            name[i] = '_';
    }
    out->kind = PG_OPTION_SETTING;
    out->name = slice_of(name, n);
    out->value = slice_of(eq + 1, arg.n - n - 1);
    return 0;
}

/* The argument of a switch: the rest of its word, else the next word. */
static bool take_arg(struct pg_options *o, struct slice *arg)
{
    if (o->at < o->word.n) {
        *arg = slice_of(o->word.p + o->at, o->word.n - o->at);
        o->at = o->word.n;
        return true;
    }
    return next_word(o, arg);
}

/* One letter of a word of switches. */
static int take_switch(struct pg_options *o, struct pg_option *out,
                       struct err *e)
{
    struct slice letter = slice_of(o->word.p + o->at++, 1);
    char c = *letter.p;

    if (c != 0 && strchr(without_arg, c)) {
        out->kind = PG_OPTION_SWITCH;
        out->name = letter;
        return 0;
    }
    if (c == 0 || !strchr(with_arg, c) || !take_arg(o, &out->value))
        return refuse(e, o->word);
    if (c == 'c' || c == '-')
        return set_setting(o, c, out->value, out, e);
    out->kind = PG_OPTION_SWITCH;
    out->name = letter;
    return 0;
}

/* PostgreSQL takes no argument but switches, so that a lone "--", which ends
 * those, may only be the last word. */
int pg_options_next(struct pg_options *o, struct pg_option *out, struct err *e)
{
    struct slice word;

    *out = (struct pg_option){.kind = PG_OPTION_END};
    if (o->at == o->word.n) {
        if (!next_word(o, &word))
            return 0;
        if (slice_is(word, "--"))
            return next_word(o, &word) ? refuse(e, word) : 0;
        if (word.n < 2 || word.p[0] != '-')
            return refuse(e, word);
        o->word = word;
        o->at = 1;
    }
    return take_switch(o, out, e);
}
