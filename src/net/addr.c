/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>

static bool parse_scope(const char *text, uint32_t *scope)
{
    int64_t n;
    *scope = if_nametoindex(text);
    if (*scope)
        return true;
    if (!slice_to_i64(slice_str(text), &n) || n < 0 || n > UINT32_MAX)
        return false;
    *scope = (uint32_t)n;
    return true;
}

static bool parse_ip6(char *text, int port, struct addr *out)
{
    uint32_t scope = 0;
    char *percent = strchr(text, '%');
    if (percent) {
        *percent = '\0';
        if (!parse_scope(percent + 1, &scope))
            return false;
    }
    *out = (struct addr){.len = sizeof out->in6};
    out->in6.sin6_family = AF_INET6;
    out->in6.sin6_port = htons((uint16_t)port);
    out->in6.sin6_scope_id = scope;
    return inet_pton(AF_INET6, text, &out->in6.sin6_addr) == 1;
}

bool addr_parse_ip(struct slice text, int port, struct addr *out)
{
    char buf[INET6_ADDRSTRLEN + IF_NAMESIZE + 2];
    bool has_brackets = text.n >= 2 && text.p[0] == '[';
    if (has_brackets) {
        if (text.p[text.n - 1] != ']')
            return false;
        text = slice_of(text.p + 1, text.n - 2);
    }
    if (memchr(text.p, '\0', text.n) || !slice_copy(text, buf, sizeof buf))
        return false;
    if (has_brackets || strchr(buf, ':'))
        return parse_ip6(buf, port, out);
    *out = (struct addr){.len = sizeof out->in};
    out->in.sin_family = AF_INET;
    out->in.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, buf, &out->in.sin_addr) == 1;
}

int addr_unix(struct slice dir, int port, struct addr *out, struct err *e)
{
    *out = (struct addr){0};
    out->un.sun_family = AF_UNIX;
    int n = snprintf(out->un.sun_path, sizeof out->un.sun_path,
                     SLICE_FMT "/.s.PGSQL.%d", SLICE_ARG(dir), port);
    if (n < 0 || (size_t)n >= sizeof out->un.sun_path)
        return err_set(e, ERR_CONF,
                       "unix_socket_dir \"" SLICE_FMT
                       "\": too long for a socket path, which holds %zu bytes",
                       SLICE_ARG(dir), sizeof out->un.sun_path - 1);
    out->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n);
    if (out->un.sun_path[0] == '@')
        out->un.sun_path[0] = '\0';
    else
        out->len++; /* the NUL belongs to the path */
    return 0;
}

bool addr_is_unix(const struct addr *a)
{
    return a->sa.sa_family == AF_UNIX;
}

void addr_host_text(const struct addr *a, char *buf, size_t cap)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    if (a->sa.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->in.sin_addr, ip, sizeof ip);
        snprintf(buf, cap, "%s", ip);
    } else if (a->sa.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &a->in6.sin6_addr, ip, sizeof ip);
        if (a->in6.sin6_scope_id)
            snprintf(buf, cap, "%s%%%u", ip, a->in6.sin6_scope_id);
        else
            snprintf(buf, cap, "%s", ip);
    } else {
        snprintf(buf, cap, "unix");
    }
}

/* The path as people write it; empty for an unnamed socket, which is what most
 * clients have. */
static void unix_path(const struct addr *a, char *buf, size_t cap)
{
    size_t head = offsetof(struct sockaddr_un, sun_path);
    size_t n = a->len > head ? a->len - head : 0;
    const char *p = a->un.sun_path;
    if (n && p[0] == '\0')
        snprintf(buf, cap, "@%.*s", (int)(n - 1), p + 1);
    else
        snprintf(buf, cap, "%.*s", (int)n, p);
}

void addr_text(const struct addr *a, char *buf, size_t cap)
{
    char host[ADDR_TEXT_MAX];
    if (addr_is_unix(a)) {
        unix_path(a, host, sizeof host);
        snprintf(buf, cap, host[0] ? "unix:%s" : "unix", host);
        return;
    }
    addr_host_text(a, host, sizeof host);
    snprintf(buf, cap, a->sa.sa_family == AF_INET6 ? "[%s]:%d" : "%s:%d", host,
             addr_port(a));
}

int addr_port(const struct addr *a)
{
    if (a->sa.sa_family == AF_INET)
        return ntohs(a->in.sin_port);
    if (a->sa.sa_family == AF_INET6)
        return ntohs(a->in6.sin6_port);
    return 0;
}

void addr_set_port(struct addr *a, int port)
{
    if (a->sa.sa_family == AF_INET)
        a->in.sin_port = htons((uint16_t)port);
    else if (a->sa.sa_family == AF_INET6)
        a->in6.sin6_port = htons((uint16_t)port);
}

void addr_unmap(struct addr *a)
{
    struct addr v4 = {.len = sizeof v4.in};
    if (a->sa.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a->in6.sin6_addr))
        return;
    v4.in.sin_family = AF_INET;
    v4.in.sin_port = a->in6.sin6_port;
    memcpy(&v4.in.sin_addr, &a->in6.sin6_addr.s6_addr[12], 4);
    *a = v4;
}

/* What makes the host, as bytes: for comparing and hashing. */
static struct slice host_bytes(const struct addr *a)
{
    if (a->sa.sa_family == AF_INET)
        return slice_of(&a->in.sin_addr, sizeof a->in.sin_addr);
    if (a->sa.sa_family == AF_INET6)
        return slice_of(&a->in6.sin6_addr, sizeof a->in6.sin6_addr);
    return slice_of("", 0);
}

bool addr_same_host(const struct addr *a, const struct addr *b)
{
    if (a->sa.sa_family != b->sa.sa_family)
        return false;
    if (a->sa.sa_family == AF_INET6 &&
        a->in6.sin6_scope_id != b->in6.sin6_scope_id)
        return false;
    return slice_eq(host_bytes(a), host_bytes(b));
}

size_t addr_ip(const struct addr *a, const uint8_t **ip)
{
    *ip = NULL;
    if (a->sa.sa_family == AF_INET) {
        *ip = (const uint8_t *)&a->in.sin_addr;
        return sizeof a->in.sin_addr;
    }
    if (a->sa.sa_family != AF_INET6)
        return 0;
    *ip = a->in6.sin6_addr.s6_addr;
    return sizeof a->in6.sin6_addr;
}

bool addr_eq(const struct addr *a, const struct addr *b)
{
    size_t head = offsetof(struct sockaddr_un, sun_path);
    if (!addr_same_host(a, b))
        return false;
    if (!addr_is_unix(a))
        return addr_port(a) == addr_port(b);
    if (a->len != b->len)
        return false;
    return a->len <= head ||
           memcmp(a->un.sun_path, b->un.sun_path, a->len - head) == 0;
}

/* FNV-1a, with the bits spread at the end. Tables that an outsider may fill
 * bound their chains by other means. */
uint64_t addr_host_hash(const struct addr *a)
{
    struct slice s = host_bytes(a);
    uint64_t h = 0xcbf29ce484222325 ^ a->sa.sa_family;
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (uint8_t)s.p[i]) * 0x100000001b3;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15;
    return h ^ (h >> 29);
}

static int from_kernel(int rc, struct addr *out)
{
    if (rc < 0)
        return ERR_IO;
    addr_unmap(out);
    return 0;
}

int addr_of_peer(int fd, struct addr *out)
{
    *out = (struct addr){.len = sizeof out->un};
    return from_kernel(getpeername(fd, &out->sa, &out->len), out);
}

int addr_of_self(int fd, struct addr *out)
{
    *out = (struct addr){.len = sizeof out->un};
    return from_kernel(getsockname(fd, &out->sa, &out->len), out);
}
