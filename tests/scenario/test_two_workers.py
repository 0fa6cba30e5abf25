# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""One budget over two workers: never exceeded, and nobody waits for nothing.

Load comes from pgbench, so that this process has time to look.
"""
import itertools
import re
import subprocess
import threading
import time

import pytest

import procs

core = pytest.mark.core
pytestmark = [pytest.mark.pooled, pytest.mark.transports("tcp"),
              pytest.mark.alone]
SIZE = 5
COUNT = ("SELECT count(*) FROM pg_stat_activity WHERE usename = 'u_trust'"
         " AND datname = 'db1'")


class Watch:
    """Counts the pool's server connections in PostgreSQL, all the time."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.seen = {}
        self._stop = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        with self.cluster.wire() as wire:
            while not self._stop.is_set():
                n = int(wire.value(COUNT))
                self.seen[n] = self.seen.get(n, 0) + 1
                time.sleep(0.001)

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()

    @property
    def most(self):
        return max(self.seen)


@pytest.fixture
def loads():
    """Started by bench(); never outlive their scenario."""
    made = []
    yield made
    for load in made:
        if load.poll() is None:
            load.kill()
            load.wait()


def bench(loads, p, tool, clients, seconds, script, jobs=1):
    path = p.file("script%d.sql" % clients, script)
    load = subprocess.Popen(
        [tool("pgbench", "postgresql"), "-n", "-f", path, "-c", str(clients),
         "-j", str(jobs), "-T", str(seconds)],
        env=p.url_env(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, preexec_fn=procs.die_with_parent)
    loads.append(load)
    return load


def finish(load, timeout):
    """Ends well, with every transaction answered; how many there were."""
    out = load.communicate(timeout=timeout)[0].decode()
    assert load.returncode == 0, out[-3000:]
    assert not re.search(r"aborted|ERROR|FATAL", out), out[-3000:]
    return int(re.search(r"transactions actually processed: (\d+)",
                         out).group(1))


def is_sanitized(p):
    with open(p.binary, "rb") as src:
        return re.search(rb"__[at]san_init", src.read()) is not None


def workers_of(p):
    return {r["index"]: int(r["clients"]) for r in p.show("WORKERS")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "commands"])
def test_500_clients_never_have_more_than_5(make_pooler, cluster, tool,
                                            loads, mode):
    p = make_pooler({"default_pool_size": SIZE, "workers": 2,
                     "worker_balance": 0, "client_login_timeout": 120})
    seconds = 12
    with Watch(cluster) as watch, p.admin() as a:
        load = bench(loads, p, tool, 500, seconds, "SELECT 1;\n", 2)
        end = time.monotonic() + seconds - 1
        commands = itertools.cycle(["PAUSE", "RELOAD", "PAUSE db1",
                                    "RECONNECT", "RECONNECT db1"])
        done = 0
        while mode == "commands" and time.monotonic() < end:
            command = next(commands)
            a.ok(command)
            if command.startswith("PAUSE"):
                a.ok(command.replace("PAUSE", "RESUME"))
            time.sleep(0.05)
            done += 1
        total = finish(load, 120)
    assert total > 500
    assert sum(watch.seen.values()) > 100
    print("transactions %d, commands %d, connections seen %s" % (
        total, done, sorted(watch.seen.items())))
    assert watch.most <= SIZE, watch.seen


def latencies(wires, rounds):
    """Milliseconds of single queries, one after the other in turn."""
    out = []
    for _ in range(rounds):
        for wire in wires:
            begin = time.monotonic()
            wire.ok("SELECT 1")
            out.append((time.monotonic() - begin) * 1e3)
            time.sleep(0.0005)
    return sorted(out)


def wait_us(p):
    """Waited in all, and how often a server was assigned."""
    row = [r for r in p.show("STATS_TOTALS") if r["database"] == "db1"][0]
    return int(row["wait_time"]), int(row["server_assignment_count"])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "commands"])
def test_nobody_waits_beside_an_idle_server(make_pooler, cluster, tool,
                                            loads, mode):
    """Four clients and a probe share five servers: whatever the probe waits
    for, it is a server that idles on the other worker."""
    p = make_pooler({"default_pool_size": SIZE, "workers": 2,
                     "worker_balance": 0})
    probes = [p.wire() for _ in range(16)]
    assert min(workers_of(p).values()) >= 1
    direct = cluster.wire("u_other", "db2")
    seconds = 8
    # Short transactions that keep a server for about a millisecond.
    script = "BEGIN;\nSELECT 1;\n\\sleep 1 ms\nEND;\n\\sleep 200 us\n"
    load = bench(loads, p, tool, SIZE - 1, seconds, script)
    with Watch(cluster) as watch, p.admin() as a:
        time.sleep(0.5)
        floor = latencies([direct], 300)
        before = wait_us(p)
        found, end = [], time.monotonic() + seconds - 2.5
        while time.monotonic() < end:
            if mode == "commands":
                a.ok("RELOAD")
                a.ok("PAUSE db1")
                a.ok("RESUME db1")
                a.ok("RECONNECT")
                time.sleep(0.1)  # servers are opened anew
                before = wait_us(p)
            found += latencies(probes, 20)
        after = wait_us(p)
        finish(load, 30)
    found.sort()
    n = len(found)
    mean = (after[0] - before[0]) / max(1, after[1] - before[1])
    print("probe ms: median %.2f, 99%% %.2f, worst %.2f of %d; direct:"
          " median %.2f, worst %.2f; mean wait %.0f us; connections %s" % (
              found[n // 2], found[n * 99 // 100], found[-1], n,
              floor[len(floor) // 2], floor[-1], mean,
              sorted(watch.seen.items())))
    slow = 10 if is_sanitized(p) else 1
    assert watch.most <= SIZE
    assert mean < 500 * slow
    assert found[n * 99 // 100] < (5 + floor[-1]) * slow
    assert found[-1] < (30 + floor[-1]) * slow
    for w in (*probes, direct):
        w.close()


@core
def test_a_server_is_lent_at_once(make_pooler):
    """One server, an otherwise quiet pooler, clients of both workers."""
    p = make_pooler({"default_pool_size": 1, "workers": 2,
                     "worker_balance": 0})
    wires = [p.wire() for _ in range(8)]
    for w in wires:
        w.ok("SELECT 1")
    found = latencies(wires, 40)
    n = len(found)
    print("ms: median %.2f, worst %.2f" % (found[n // 2], found[-1]))
    slow = 10 if is_sanitized(p) else 1
    assert found[n // 2] < 3 * slow
    assert found[n * 99 // 100] < 20 * slow
    for w in wires:
        w.close()
