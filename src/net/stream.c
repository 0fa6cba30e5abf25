/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "net/stream.h"

#include "net/addr.h"

int stream_ends(const struct stream *s, struct addr *peer, struct addr *self)
{
    if (s->ops->ends)
        return s->ops->ends(s, peer, self);
    int fd = stream_fd(s);
    if (fd < 0 || addr_of_peer(fd, peer) || addr_of_self(fd, self))
        return ERR_CLOSED;
    return 0;
}
