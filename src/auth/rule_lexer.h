/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Words of the files that hold rules (HBA, ident), as PostgreSQL reads them:
 *
 *   # begins a comment; blanks and commas separate words
 *   "..." holds blanks, commas and #; "" inside is a quote
 *   quotes may stand in the middle of a word (map="a b")
 *   \ before the end of a line joins it with the next, outside of comments
 *
 * Pure; any thread; the text must outlive the lexer. */
#ifndef AUTH_RULE_LEXER_H
#define AUTH_RULE_LEXER_H

#include "base/slice.h"

enum { RULE_WORD_MAX = 1023 };

enum rule_token {
    RULE_END_OF_LINE,
    RULE_COMMA,
    RULE_WORD,
    RULE_BAD, /* lexer.bad says why */
};

struct rule_lexer {
    const char *p, *end;
    const char *line_start; /* of the line at hand */
    int line;               /* of p */
    int first_line;         /* where the line at hand began */
    enum rule_token token;
    bool is_started;
    bool is_quoted; /* the word began with a quote: it is no keyword */
    const char *bad;
    size_t word_n;
    char word[RULE_WORD_MAX + 1];
};

/* No line is at hand yet. */
void rule_lexer_init(struct rule_lexer *l, struct slice text);

/* Leaves the line at hand and goes to the first token of the next one that has
 * any; false at the end of the text. */
bool rule_lexer_next_line(struct rule_lexer *l);

/* Goes on within the line; stays at its end. */
void rule_lexer_next(struct rule_lexer *l);

/* The token is this keyword, not quoted. */
bool rule_lexer_is(const struct rule_lexer *l, const char *keyword);

#endif
