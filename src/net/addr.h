/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Socket addresses as values. Pure but for addr_of_peer()/addr_of_self(). Any
 * thread. */
#ifndef NET_ADDR_H
#define NET_ADDR_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/err.h"
#include "base/slice.h"

struct addr {
    socklen_t len;
    union {
        struct sockaddr sa;
        struct sockaddr_in in;
        struct sockaddr_in6 in6;
        struct sockaddr_un un;
    };
};

enum { ADDR_TEXT_MAX = 128 };

/* A numeric IPv4 or IPv6 address (brackets and %scope allowed); false when text
 * is not one. */
bool addr_parse_ip(struct slice text, int port, struct addr *out);

/* Unix socket dir/.s.PGSQL.port; "@name" is abstract. Error when too long. */
NODISCARD int addr_unix(struct slice dir, int port, struct addr *out,
                        struct err *e);

bool addr_is_unix(const struct addr *a);

/* "127.0.0.1", "::1", "unix"; without port. */
void addr_host_text(const struct addr *a, char *buf, size_t cap);

/* "127.0.0.1:5432", "[::1]:5432", "unix:/tmp/.s.PGSQL.5432". */
void addr_text(const struct addr *a, char *buf, size_t cap);

int addr_port(const struct addr *a); /* 0 for Unix */
void addr_set_port(struct addr *a, int port);

/* IPv4-mapped IPv6 is made plain IPv4. */
void addr_unmap(struct addr *a);

/* The bytes of the IP address, first byte first, as they lie in a; returns how
 * many, 0 for a Unix socket. */
size_t addr_ip(const struct addr *a, const uint8_t **ip);

bool addr_eq(const struct addr *a, const struct addr *b);

/* Equal but for the port: for limits per address. */
bool addr_same_host(const struct addr *a, const struct addr *b);
uint64_t addr_host_hash(const struct addr *a);

NODISCARD int addr_of_peer(int fd, struct addr *out);
NODISCARD int addr_of_self(int fd, struct addr *out);

#endif
