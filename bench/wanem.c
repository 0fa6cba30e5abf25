/* SPDX-License-Identifier: ISC
 * Copyright (c) 2026 The pgbraid authors */

/* Emulates a WAN between two network namespaces, for kernels without netem:
 * makes a TUN device in each and carries the packets between them, each
 * direction through a link of its own (wan_link.h). One thread. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "bench/wan_link.h"
#include "bench/wan_tun.h"

enum {
    SIDES = 2,
    READS_PER_TURN = 64,
    WRITES_PER_TURN = 64,
    MTU_MAX = 9000,
    LINE_MAX_BYTES = 512,
    STATS_MAX = 4096,
};

static const char usage[] =
    "wanem -A NAMESPACE,DEVICE,ADDRESS/BITS[,...] -B ... [options]\n"
    "\n"
    "A namespace is a name of `ip netns`, a path, or pid:N. Prints \"ready\"\n"
    "once both devices are up, and statistics as JSON at the end.\n"
    "\n"
    "  --delay MS            one way\n"
    "  --jitter MS           at most so much on top\n"
    "  --unordered 1         jitter may change the order of packets\n"
    "  --loss PERCENT[:N]    N: lost in a row, on average\n"
    "  --dup PERCENT         packets that come twice\n"
    "  --reorder PERCENT:MS  packets that are held back\n"
    "  --rate MBIT           cap of each direction\n"
    "  --flow-rate MBIT      cap of each flow: addresses, ports, protocol\n"
    "  --queue-ms MS         longest wait for a cap (100), then packets drop\n"
    "  --flow-queue-ms MS    same for a flow's\n"
    "  --path-mtu BYTES      larger packets vanish, without an ICMP message\n"
    "  --strip-mptcp 1       removes the MPTCP option, as a middlebox\n"
    "  --down 1              drops everything\n"
    "  --ab NAME=VALUE       one of these from A to B only; --ba likewise\n"
    "  --mtu BYTES (1500)  --seed N (1)  --duration SECONDS\n"
    "  --control SOCKET      takes lines: [ab|ba] NAME VALUE,\n"
    "                        block ADDRESS[:PORT], unblock, stats, stop\n"
    "  --die-with-parent\n";

struct wanem {
    struct wan_side side[SIDES];
    int tun[SIDES];
    struct wan_link *link[SIDES]; /* 0: from A to B */
    int signals, listener, control;
    const char *socket_path;
    char line[LINE_MAX_BYTES];
    size_t line_n;
    int mtu;
    int64_t end_ns;
    bool is_over;
};

static NORETURN void die(const char *what, const char *why)
{
    fprintf(stderr, "wanem: %s: %s\n", what, why);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* --- packets ----------------------------------------------------------------
 */

static void pull(struct wanem *w, int side)
{
    unsigned char buf[MTU_MAX + 64];
    for (int i = 0; i < READS_PER_TURN; i++) {
        ssize_t n = read(w->tun[side], buf, sizeof buf);
        if (n <= 0)
            return;
        struct wan_packet *p = wan_packet_new((size_t)n);
        memcpy(p->data, buf, (size_t)n);
        wan_link_put(w->link[side], p, now_ns());
    }
}

/* Few at a time, so that a burst does not keep us from reading. */
static void deliver(struct wanem *w, int side)
{
    for (int i = 0; i < WRITES_PER_TURN; i++) {
        struct wan_packet *p = wan_link_take(w->link[side], now_ns());
        if (!p)
            return;
        /* A packet that the kernel refuses is lost, as on any link. */
        ssize_t n = write(w->tun[!side], p->data, p->n);
        (void)n;
        free(p);
    }
}

/* --- control ----------------------------------------------------------------
 */

static size_t put_link(char *buf, size_t cap, const char *name,
                       const struct wan_link *l)
{
    const struct wan_counts *c = wan_link_counts(l);
    const struct {
        const char *name;
        uint64_t value;
    } row[] = {
        {"in", c->in},
        {"in_bytes", c->in_bytes},
        {"out", c->out},
        {"out_bytes", c->out_bytes},
        {"lost", c->lost},
        {"blocked", c->blocked},
        {"too_large", c->too_large},
        {"queue_drops", c->queue_drops},
        {"flow_queue_drops", c->flow_queue_drops},
        {"duplicated", c->duplicated},
        {"reordered", c->reordered},
        {"stripped", c->stripped},
        {"held_most", c->held_most},
        {"flows", c->flows},
    };
    size_t n = (size_t)snprintf(buf, cap, "\"%s\": {", name);
    for (size_t i = 0; i < ARRAY_SIZE(row) && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s\"%s\": %" PRIu64,
                              i ? ", " : "", row[i].name, row[i].value);
    must(n + 1 < cap);
    buf[n++] = '}';
    return n;
}

static size_t put_stats(const struct wanem *w, char buf[STATS_MAX])
{
    size_t n = 0;
    buf[n++] = '{';
    n += put_link(buf + n, STATS_MAX - n, "ab", w->link[0]);
    n += (size_t)snprintf(buf + n, STATS_MAX - n, ", ");
    n += put_link(buf + n, STATS_MAX - n, "ba", w->link[1]);
    n += (size_t)snprintf(buf + n, STATS_MAX - n, "}\n");
    return n;
}

static bool set_on(struct wanem *w, unsigned sides, const char *name,
                   const char *value)
{
    bool ok = value != NULL;
    for (int i = 0; i < SIDES && ok; i++)
        if (sides & 1u << i)
            ok = wan_settings_set(wan_link_settings(w->link[i]), name, value);
    return ok;
}

static bool block_on(struct wanem *w, unsigned sides, const char *value)
{
    bool ok = value != NULL;
    for (int i = 0; i < SIDES && ok; i++)
        if (sides & 1u << i)
            ok = wan_link_block(w->link[i], value);
    return ok;
}

static bool run_command(struct wanem *w, char *line)
{
    char *rest, *word = strtok_r(line, " ", &rest);
    unsigned sides = 3;
    if (word && (!strcmp(word, "ab") || !strcmp(word, "ba"))) {
        sides = word[0] == 'a' ? 1 : 2;
        word = strtok_r(NULL, " ", &rest);
    }
    const char *value = strtok_r(NULL, " ", &rest);
    if (!word)
        return false;
    if (!strcmp(word, "stop")) {
        w->is_over = true;
        return true;
    }
    if (!strcmp(word, "unblock")) {
        for (int i = 0; i < SIDES; i++)
            if (sides & 1u << i)
                wan_link_unblock(w->link[i]);
        return true;
    }
    if (!strcmp(word, "block"))
        return block_on(w, sides, value);
    return set_on(w, sides, word, value);
}

static void answer(struct wanem *w, const char *p, size_t n)
{
    if (send(w->control, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n)
        return;
    close(w->control);
    w->control = -1;
}

static void take_line(struct wanem *w, char *line)
{
    char stats[STATS_MAX];
    if (!strcmp(line, "stats"))
        answer(w, stats, put_stats(w, stats));
    else if (run_command(w, line))
        answer(w, "ok\n", 3);
    else
        answer(w, "error\n", 6);
}

static void take_control(struct wanem *w)
{
    ssize_t n =
        read(w->control, w->line + w->line_n, sizeof w->line - 1 - w->line_n);
    char *end;
    if (n <= 0) {
        close(w->control);
        w->control = -1;
        return;
    }
    w->line_n += (size_t)n;
    w->line[w->line_n] = 0;
    while (w->control >= 0 && (end = strchr(w->line, '\n'))) {
        *end++ = 0;
        take_line(w, w->line);
        w->line_n -= (size_t)(end - w->line);
        memmove(w->line, end, w->line_n + 1);
    }
    if (w->line_n == sizeof w->line - 1)
        w->line_n = 0; /* no command is so long */
}

static void open_control(struct wanem *w)
{
    struct addr at = {.len = sizeof at.un, .un.sun_family = AF_UNIX};
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!slice_copy(slice_str(w->socket_path), at.un.sun_path,
                    sizeof at.un.sun_path))
        die(w->socket_path, "the path is too long");
    (void)unlink(w->socket_path); /* of an earlier run */
    if (w->listener < 0 || bind(w->listener, &at.sa, at.len) ||
        listen(w->listener, 4))
        die(w->socket_path, strerror(errno));
}

/* --- the loop ----------------------------------------------------------------
 */

static void wait_until(struct pollfd *fds, nfds_t n, int64_t when_ns)
{
    int64_t left = MAX(when_ns - now_ns(), 0);
    struct timespec t = {.tv_sec = (time_t)(left / 1000000000),
                         .tv_nsec = (long)(left % 1000000000)};
    (void)ppoll(fds, n, when_ns == INT64_MAX ? NULL : &t, NULL);
}

static void run(struct wanem *w)
{
    while (!w->is_over && now_ns() < w->end_ns) {
        /* One control connection at a time: the others wait their turn. */
        struct pollfd fds[] = {
            {.fd = w->tun[0], .events = POLLIN},
            {.fd = w->tun[1], .events = POLLIN},
            {.fd = w->signals, .events = POLLIN},
            {.fd = w->control < 0 ? w->listener : w->control, .events = POLLIN},
        };
        int64_t next =
            MIN(wan_link_next_ns(w->link[0]), wan_link_next_ns(w->link[1]));
        wait_until(fds, ARRAY_SIZE(fds), MIN(next, w->end_ns));
        for (int i = 0; i < SIDES; i++)
            if (fds[i].revents)
                pull(w, i);
        for (int i = 0; i < SIDES; i++)
            deliver(w, i);
        if (fds[2].revents)
            w->is_over = true;
        if (fds[3].revents && w->control >= 0)
            take_control(w);
        else if (fds[3].revents)
            w->control = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC);
    }
}

/* --- start and end
 * ------------------------------------------------------------ */

static void parse_side(struct wanem *w, int i, const char *text)
{
    struct err e;
    if (wan_side_parse(&w->side[i], text, &e))
        die(i ? "-B" : "-A", e.text);
}

static void set_one_way(struct wanem *w, unsigned sides, const char *text)
{
    char name[64];
    size_t n = strcspn(text, "=");
    if (!slice_copy(slice_of(text, n), name, sizeof name) || !text[n] ||
        !set_on(w, sides, name, text + n + 1))
        die(text, "expected NAME=VALUE");
}

static int64_t number(const char *name, const char *text, int64_t max)
{
    int64_t n;
    if (!slice_to_i64(slice_str(text), &n) || n < 1 || n > max)
        die(name, "not a number, or out of range");
    return n;
}

enum {
    OPT_AB = 256,
    OPT_BA,
    OPT_MTU,
    OPT_SEED,
    OPT_DURATION,
    OPT_CONTROL,
    OPT_DIE,
    OPT_HELP,
    OPT_SETTING
};

static const struct option options[] = {
    {"delay", 1, NULL, OPT_SETTING},
    {"jitter", 1, NULL, OPT_SETTING},
    {"unordered", 1, NULL, OPT_SETTING},
    {"loss", 1, NULL, OPT_SETTING},
    {"dup", 1, NULL, OPT_SETTING},
    {"reorder", 1, NULL, OPT_SETTING},
    {"rate", 1, NULL, OPT_SETTING},
    {"flow-rate", 1, NULL, OPT_SETTING},
    {"queue-ms", 1, NULL, OPT_SETTING},
    {"flow-queue-ms", 1, NULL, OPT_SETTING},
    {"path-mtu", 1, NULL, OPT_SETTING},
    {"strip-mptcp", 1, NULL, OPT_SETTING},
    {"down", 1, NULL, OPT_SETTING},
    {"ab", 1, NULL, OPT_AB},
    {"ba", 1, NULL, OPT_BA},
    {"mtu", 1, NULL, OPT_MTU},
    {"seed", 1, NULL, OPT_SEED},
    {"duration", 1, NULL, OPT_DURATION},
    {"control", 1, NULL, OPT_CONTROL},
    {"die-with-parent", 0, NULL, OPT_DIE},
    {"help", 0, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static void seed_links(struct wanem *w, uint64_t seed)
{
    for (int i = 0; i < SIDES; i++)
        wan_link_seed(w->link[i], SIDES * seed + (uint64_t)i);
}

static void take_option(struct wanem *w, int opt, int which)
{
    switch (opt) {
    case 'A':
    case 'B':
        parse_side(w, opt == 'B', optarg);
        break;
    case OPT_SETTING:
        if (!set_on(w, 3, options[which].name, optarg))
            die(options[which].name, "bad value");
        break;
    case OPT_AB:
    case OPT_BA:
        set_one_way(w, opt == OPT_AB ? 1 : 2, optarg);
        break;
    case OPT_MTU:
        w->mtu = (int)number("--mtu", optarg, MTU_MAX);
        break;
    case OPT_SEED:
        seed_links(w, (uint64_t)number("--seed", optarg, INT64_MAX));
        break;
    case OPT_DURATION:
        w->end_ns =
            now_ns() + number("--duration", optarg, 1000000) * 1000000000;
        break;
    case OPT_CONTROL:
        w->socket_path = optarg;
        break;
    case OPT_DIE:
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        break;
    case OPT_HELP:
        fputs(usage, stdout);
        exit(0);
    default:
        exit(2);
    }
}

static void block_signals(struct wanem *w)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    w->signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (w->signals < 0)
        die("signalfd", strerror(errno));
}

int main(int argc, char **argv)
{
    struct wanem w = {
        .listener = -1, .control = -1, .mtu = 1500, .end_ns = INT64_MAX};
    struct err e;
    int opt, which = 0;
    for (int i = 0; i < SIDES; i++)
        w.link[i] = wan_link_new();
    seed_links(&w, 1);
    while ((opt = getopt_long(argc, argv, "A:B:", options, &which)) != -1)
        take_option(&w, opt, which);
    if (!w.side[0].device[0] || !w.side[1].device[0])
        die("-A and -B", "both must be given; see --help");
    block_signals(&w);
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (int i = 0; i < SIDES; i++)
        if (wan_tun_open(&w.side[i], w.mtu, &w.tun[i], &e))
            die("cannot start", e.text);
    if (w.socket_path)
        open_control(&w);
    puts("ready");
    fflush(stdout);
    run(&w);
    char stats[STATS_MAX];
    fprintf(stderr, "%.*s", (int)put_stats(&w, stats), stats);
    if (w.socket_path)
        (void)unlink(w.socket_path); /* gone already: as good */
    for (int i = 0; i < SIDES; i++)
        wan_link_free(w.link[i]);
    return 0;
}
