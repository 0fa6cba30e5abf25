# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Clients that move between workers, with all that is theirs."""
import os
import random
import threading
import time

import pytest

import procs
from pgwire import bind, describe, execute, parse, query, sync
from test_cancel import send_cancel, wait_active

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("workers are ours")]


def workers(p):
    return {r["index"]: {k: int(v) for k, v in r.items()}
            for r in p.show("WORKERS")}


def moves(p):
    rows = workers(p).values()
    moved = sum(r["moved_out"] for r in rows)
    procs.wait_for(lambda: sum(r["moved_in"] for r in workers(p).values())
                   >= moved, 5, "arrival of those that moved")
    return moved


class Load:
    """Clients with a little to do all the time, each with state of its own:
    a setting, a named statement and an unnamed one."""

    def __init__(self, p, n, pause=0.005, transport=None):
        self.p, self.pause = p, pause
        self.wires = [p.wire(transport=transport) for _ in range(n)]
        self.failures, self.count = [], 0
        self.stop = threading.Event()
        for i, w in enumerate(self.wires):
            w.ok("SET application_name = 'client %d'" % i)
            w.send(parse("mine", "SELECT %d + $1::int" % (i * 1000)), sync())
            assert not w.read_ready().errors
            w.send(parse("", "SELECT 'unnamed %d'" % i), sync())
            assert not w.read_ready().errors
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def check(self, i, w, n):
        w.send(bind(name="mine", params=[str(n)]), execute(), sync())
        got = w.read_ready()
        assert not got.errors, got.errors
        assert got.rows[0][0] == b"%d" % (i * 1000 + n), (i, n, got.rows)
        assert w.value("SELECT current_setting('application_name')") == \
            "client %d" % i
        w.ok("BEGIN")
        assert w.value("SELECT %d" % i) == str(i)
        w.ok("COMMIT")
        self.count += 1

    def run(self):
        n = 0
        try:
            while not self.stop.is_set():
                n = (n + 1) % 1000
                for i, w in enumerate(self.wires):
                    self.check(i, w, n)
                time.sleep(self.pause)
        except BaseException as exc:
            self.failures.append(repr(exc))

    def finish(self):
        self.stop.set()
        self.thread.join(60)
        assert not self.failures, self.failures
        for i, w in enumerate(self.wires):
            w.send(bind(name="mine", params=["7"]), describe("P"), execute(),
                   sync())
            assert w.read_ready().value() == str(i * 1000 + 7)
            w.close()


def homes(p):
    """Workers that have clients other than the one that asks."""
    return [i for i, r in workers(p).items() if r["clients"] > 1]


@core
@pytest.mark.transports("tcp", "unix")
def test_little_work_gathers(make_pooler, cluster, transport):
    p = make_pooler({"workers": 3, "default_pool_size": 4},
                    transport=transport)
    load = Load(p, 9, 0.05)
    try:
        procs.wait_for(lambda: homes(p) == ["0"], 15,
                       lambda: "clients on one worker: %r" % workers(p))
        rows = workers(p)
        assert rows["0"]["moved_in"] >= 1
        assert rows["0"]["cpu_us"] > 0
    finally:
        load.finish()
    assert not load.failures


@core
def test_cancel_finds_a_client_that_moved(make_pooler, cluster):
    p = make_pooler({"workers": 3, "default_pool_size": 12})
    load = Load(p, 9, 0.05)
    try:
        procs.wait_for(lambda: homes(p) == ["0"], 15, "one worker")
    finally:
        load.stop.set()
        load.thread.join()
    for i, w in enumerate(load.wires):
        text = "SELECT pg_sleep(191), %d" % i
        w.send(query(text))
        wait_active(cluster, text)
        send_cancel(p, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"
    load.finish()


@core
def test_busy_workers_give_away(make_pooler):
    p = make_pooler({"workers": 2, "default_pool_size": 8})
    load = Load(p, 12, 0)
    try:
        procs.wait_for(lambda: homes(p) == ["0"] or load.failures, 15,
                       "one worker")
        p.console("SET worker_balance_at = 2")
        procs.wait_for(lambda: len(homes(p)) == 2 or load.failures, 15,
                       lambda: "clients on both: %r" % workers(p))
    finally:
        load.finish()


@core
def test_it_can_be_turned_off(make_pooler):
    p = make_pooler({"workers": 3, "worker_balance": 0})
    load = Load(p, 9, 0.02)
    time.sleep(3.5)
    load.finish()
    assert moves(p) == 0


@pytest.mark.transports("tls")
def test_tls_stays(make_pooler, transport):
    p = make_pooler({"workers": 3}, transport=transport)
    load = Load(p, 9, 0.02)
    time.sleep(3.5)
    load.finish()
    assert moves(p) == 0


def test_session_mode_stays(make_pooler):
    p = make_pooler({"workers": 3, "pool_mode": "session",
                     "default_pool_size": 12})
    load = Load(p, 9, 0.02)
    time.sleep(3.5)
    load.finish()
    assert moves(p) == 0


@core
def test_moves_under_load(make_pooler, cluster):
    """To and fro for a while, with cancels and clients that come and go;
    every reply belongs to its query."""
    p = make_pooler({"workers": 4, "default_pool_size": 6})
    load = Load(p, 16, 0)
    stop, failures = threading.Event(), []

    def come_and_go(number):
        rng = random.Random(number)
        try:
            while not stop.is_set():
                with p.wire() as w:
                    for _ in range(rng.randrange(400)):
                        n = rng.randrange(10 ** 6)
                        assert w.value("SELECT %d" % n) == str(n)
                        if stop.is_set():
                            return
        except BaseException as exc:
            failures.append(repr(exc))

    def canceler(number):
        rng = random.Random(number)
        try:
            with p.wire() as w:
                while not stop.is_set():
                    w.send(query("SELECT %d, pg_sleep(0.02)" % number))
                    time.sleep(rng.random() * 0.02)
                    send_cancel(p, w.pid, w.key)
                    got = w.read_ready()
                    assert got.sqlstate() in (None, "57014")
                    if not got.errors:
                        assert got.rows[0][0] == b"%d" % number
        except BaseException as exc:
            failures.append(repr(exc))
    threads = [threading.Thread(target=f, args=(i,))
               for i in range(4) for f in (come_and_go, canceler)]
    for t in threads:
        t.start()
    try:
        with p.admin() as admin:
            for i in range(8):
                admin.ok("SET worker_balance_at = %d" % (100, 1)[i % 2])
                time.sleep(1.5)
    finally:
        stop.set()
        for t in threads:
            t.join(30)
        load.finish()
    assert not failures, failures
    print("moves: %d, rounds: %d" % (moves(p), load.count))
    assert moves(p) >= 10
    assert sum(r["clients"] for r in workers(p).values()) == 1


def test_shutdown_while_clients_move(make_pooler):
    p = make_pooler({"workers": 4, "default_pool_size": 6,
                     "worker_balance_at": 1})
    load = Load(p, 16, 0)
    time.sleep(2.2)
    with p.admin() as admin:
        admin.send(query("SHUTDOWN"))
        load.stop.set()
        load.thread.join(30)
    assert p.wait_exit() == 0
    for w in load.wires:
        w.abort()


def test_pinning(make_pooler):
    p = make_pooler({"workers": 2, "worker_pinning": 1})
    p.wait_log("worker 1 runs on processor")
    allowed = {}
    for task in os.listdir("/proc/%d/task" % p.pid):
        base = "/proc/%d/task/%s/" % (p.pid, task)
        with open(base + "comm") as src:
            name = src.read().strip()
        with open(base + "status") as src:
            allowed[name] = [line.split()[1] for line in src
                             if line.startswith("Cpus_allowed_list")][0]
    assert allowed["pgbraid-w0"].isdigit()
    assert allowed["pgbraid-w1"].isdigit()
