/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/addresses.h"

#include <errno.h>
#include <netdb.h>
#include <string.h>

static int add_address(struct addresses *as, const struct addr *a,
                       bool is_optional, const char *option, struct err *e)
{
    for (int i = 0; i < as->n; i++)
        if (addr_eq(&as->at[i], a))
            return 0;
    if (as->n == ADDRESSES_MAX)
        return err_set(e, ERR_CONF, "%s: more than %d addresses", option,
                       ADDRESSES_MAX);
    as->at[as->n] = *a;
    as->is_optional[as->n++] = is_optional;
    return 0;
}

static int add_any(struct addresses *as, int port, const char *option,
                   struct err *e)
{
    struct addr a;
    must(addr_parse_ip(slice_str("0.0.0.0"), port, &a));
    int rc = add_address(as, &a, false, option, e);
    if (rc)
        return rc;
    must(addr_parse_ip(slice_str("::"), port, &a));
    return add_address(as, &a, true, option, e);
}

static int add_name(struct addresses *as, const char *name, int port,
                    const char *option, struct err *e)
{
    struct addrinfo *list,
        hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int cause = getaddrinfo(name, NULL, &hints, &list);
    if (cause)
        return err_set(e, ERR_CONF, "%s \"%.200s\": %s", option, name,
                       cause == EAI_SYSTEM ? strerror(errno)
                                           : gai_strerror(cause));
    int rc = 0;
    for (struct addrinfo *i = list; i && rc == 0; i = i->ai_next) {
        struct addr a = {.len = i->ai_addrlen};
        if (i->ai_family != AF_INET && i->ai_family != AF_INET6)
            continue;
        memcpy(&a.sa, i->ai_addr, i->ai_addrlen);
        addr_set_port(&a, port);
        rc = add_address(as, &a, false, option, e);
    }
    freeaddrinfo(list);
    return rc;
}

int addresses_find(struct addresses *out, const char *option,
                   const struct conf_list *list, int port, struct err *e)
{
    int rc = 0;
    out->n = 0;
    for (int i = 0; i < list->n && rc == 0; i++) {
        const char *item = list->items[i];
        struct addr a;
        if (!strcmp(item, "*"))
            rc = add_any(out, port, option, e);
        else if (addr_parse_ip(slice_str(item), port, &a))
            rc = add_address(out, &a, false, option, e);
        else
            rc = add_name(out, item, port, option, e);
    }
    return rc;
}
