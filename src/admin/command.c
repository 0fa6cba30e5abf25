/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

#include "admin/command.h"

static const struct command commands[] = {
#define CMD(verb, object, arg, access, table, run, usage, help)                \
    {verb, object, ARG_##arg, ACCESS_##access, TABLE_##table, run, usage, help},
#include "admin/command.def"
#undef CMD
};

const struct command *command_at(size_t i)
{
    return i < ARRAY_SIZE(commands) ? &commands[i] : NULL;
}

static bool is_word(const char *a, const char *b)
{
    return slice_is_nocase(slice_str(a), b);
}

/* SELECT is another word for SHOW: some programs know nothing else. */
static bool is_show(const char *verb)
{
    return is_word(verb, "show") || is_word(verb, "select");
}

static bool fits(const struct command *c, const struct syntax *s)
{
    bool has_arg = s->arg[0] != 0;

    if (c->object)
        return is_show(s->verb) && is_word(s->arg, c->object);
    if (!is_word(s->verb, c->verb))
        return false;
    return c->arg == ARG_OPTIONAL || has_arg == (c->arg == ARG_REQUIRED);
}

const struct command *command_find(const struct syntax *s)
{
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        bool is_set = is_word(commands[i].verb, "set");

        if (is_set == (s->kind == SYNTAX_SET) && fits(&commands[i], s))
            return &commands[i];
    }
    return NULL;
}
