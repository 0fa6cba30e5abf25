/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */
#include "main/signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static sigset_t watched(void)
{
    static const int number[] = {SIGHUP,  SIGINT,  SIGTERM,
                                 SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_SIZE(number); i++)
        sigaddset(&set, number[i]);
    return set;
}

void signals_block(void)
{
    sigset_t set = watched();
    must(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    must(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
}

static void on_readable(struct io *io, uint32_t events)
{
    struct signals *s = container_of(io, struct signals, io);
    struct signalfd_siginfo info;
    while (read(s->io.fd, &info, sizeof info) == (ssize_t)sizeof info)
        s->on_signal(s->arg, (int)info.ssi_signo);
}

int signals_start(struct signals *s, struct loop *loop,
                  void (*on_signal)(void *arg, int signo), void *arg,
                  struct err *e)
{
    sigset_t set = watched();
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0)
        return err_set(e, ERR_IO, "signals: %s", strerror(errno));
    *s = (struct signals){.io = {.fd = fd, .on_event = on_readable},
                          .loop = loop,
                          .on_signal = on_signal,
                          .arg = arg};
    if (loop_add(loop, &s->io, EPOLLIN)) {
        int cause = errno;
        s->loop = NULL;
        close(fd);
        return err_set(e, ERR_IO, "signals: %s", strerror(cause));
    }
    return 0;
}

void signals_stop(struct signals *s)
{
    if (!s->loop)
        return;
    loop_del(s->loop, &s->io);
    close(s->io.fd);
    s->loop = NULL;
}
