/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "auth/rule_lexer.h"

void rule_lexer_init(struct rule_lexer *l, struct slice text)
{
    l->p = l->line_start = text.p;
    l->end = text.p + text.n;
    l->line = l->first_line = 1;
    l->token = RULE_END_OF_LINE;
    l->is_started = l->is_quoted = false;
    l->bad = NULL;
    l->word_n = 0;
    l->word[0] = 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

/* A backslash, perhaps a CR, and the end of the line: its length, or 0. */
static size_t joint(const struct rule_lexer *l)
{
    size_t left = (size_t)(l->end - l->p);
    if (left >= 2 && l->p[0] == '\\' && l->p[1] == '\n')
        return 2;
    if (left >= 3 && l->p[0] == '\\' && l->p[1] == '\r' && l->p[2] == '\n')
        return 3;
    return 0;
}

static void skip_blanks(struct rule_lexer *l)
{
    while (l->p < l->end) {
        size_t n = joint(l);
        if (!n && !is_blank(*l->p))
            return;
        l->line += n > 0;
        l->p += n ? n : 1;
    }
}

static void fail(struct rule_lexer *l, const char *why)
{
    l->token = RULE_BAD;
    l->bad = why;
}

static bool put(struct rule_lexer *l, char c)
{
    if (l->word_n == RULE_WORD_MAX)
        return false;
    l->word[l->word_n++] = c;
    return true;
}

/* l->p is behind the opening quote; goes behind the closing one. */
static bool read_quoted(struct rule_lexer *l)
{
    for (; l->p < l->end && *l->p != '\n'; l->p++) {
        if (*l->p == '"') {
            if (l->p + 1 == l->end || l->p[1] != '"') {
                l->p++;
                return true;
            }
            l->p++;
        }
        if (!put(l, *l->p)) {
            fail(l, "a word is too long");
            return false;
        }
    }
    fail(l, "a quote is opened and never closed");
    return false;
}

static void read_word(struct rule_lexer *l)
{
    l->token = RULE_WORD;
    l->is_quoted = *l->p == '"';
    while (l->p < l->end && *l->p != '\n' && *l->p != ',' && *l->p != '#' &&
           !is_blank(*l->p) && !joint(l)) {
        if (*l->p == '"') {
            l->p++;
            if (!read_quoted(l))
                return;
        } else if (!put(l, *l->p++)) {
            fail(l, "a word is too long");
            return;
        }
    }
    l->word[l->word_n] = 0;
}

static void read_token(struct rule_lexer *l)
{
    skip_blanks(l);
    l->word_n = 0;
    l->word[0] = 0;
    l->is_quoted = false;
    if (l->p == l->end || *l->p == '\n' || *l->p == '#') {
        l->token = RULE_END_OF_LINE;
    } else if (*l->p == ',') {
        l->p++;
        l->token = RULE_COMMA;
    } else {
        read_word(l);
    }
}

/* To the end of the line at hand, which more lines may be joined to. */
static void skip_line(struct rule_lexer *l)
{
    while (l->token != RULE_END_OF_LINE && l->token != RULE_BAD)
        read_token(l);
    while (l->p < l->end && *l->p != '\n')
        l->p++;
}

/* Behind the line at hand; false when it is the last. */
static bool leave_line(struct rule_lexer *l)
{
    if (!l->is_started) {
        l->is_started = true;
        return true;
    }
    skip_line(l);
    if (l->p == l->end)
        return false;
    l->p++;
    l->line++;
    return true;
}

bool rule_lexer_next_line(struct rule_lexer *l)
{
    while (leave_line(l)) {
        l->first_line = l->line;
        l->line_start = l->p;
        read_token(l);
        if (l->token != RULE_END_OF_LINE)
            return true;
    }
    return false;
}

void rule_lexer_next(struct rule_lexer *l)
{
    if (l->token != RULE_END_OF_LINE && l->token != RULE_BAD)
        read_token(l);
}

bool rule_lexer_is(const struct rule_lexer *l, const char *keyword)
{
    return l->token == RULE_WORD && !l->is_quoted && !strcmp(l->word, keyword);
}
