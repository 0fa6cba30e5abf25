/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* A line of the log as one JSON object (RFC 8259), for log.c. Keys that
 * PostgreSQL's jsonlog has are named as there. Pure. */
#ifndef BASE_LOG_JSON_H
#define BASE_LOG_JSON_H

#include "base/slice.h"

/* What a line says about whose it is; without a part, that is empty. A text
 * that begins with log_tag() carries it. */
struct log_tag {
    struct slice id; /* "C-0x...": a client; "S-0x...": a server */
    struct slice database, user, address;
    struct slice message; /* the rest of the line */
};

enum { LOG_TAG_MAX = 440, LOG_MARK = 0x1f /* between a tag's parts */ };

/* Writes "KIND-PTR: database/user@address" with marks that lines in plain text
 * are freed of; long names are cut. buf is returned. */
const char *log_tag_make(char buf[LOG_TAG_MAX], char kind, const void *id,
                         const char *database, const char *user,
                         const char *address);

/* False, and all of the text as the message, when it has no tag. */
bool log_tag_split(const char *text, struct log_tag *out);

struct log_json_line {
    int64_t wall_us;
    const char *level;
    int pid;
    const char *text; /* with its tag */
};

/* Every byte of a text may become six. */
enum { LOG_JSON_PER_BYTE = 6, LOG_JSON_HEAD = 512 };

/* With its line feed; cap must have room for LOG_JSON_PER_BYTE for each byte of
 * the text, and LOG_JSON_HEAD. Bytes that are no UTF-8 come as \x.. */
size_t log_json_put(char *out, size_t cap, const struct log_json_line *line);

#endif
