/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* The PROXY header, whole and cut short. */
#include "net/proxyproto.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct proxyproto header;
    struct err e;
    char text[ADDR_TEXT_MAX];
    int size = proxyproto_parse(slice_of(data, n), &header, &e);

    if (size <= 0)
        return 0;
    must((size_t)size <= n && size <= PROXYPROTO_V2_MAX);
    if (header.has_peer)
        addr_text(&header.peer, text, sizeof(text));
    must(proxyproto_parse(slice_of(data, (size_t)size), &header, &e) == size);
    must(proxyproto_parse(slice_of(data, (size_t)size - 1), &header, &e) == 0);
    return 0;
}
