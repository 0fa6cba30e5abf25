/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Telling UTF-8 from other bytes, for formats that take nothing else. Pure. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* How many bytes the character at p has, of at most n (at least 1); 0 when they
 * are none: cut off, longer than need be, a surrogate, beyond U+10FFFF. */
size_t utf8_char(const char *p, size_t n);

#endif
