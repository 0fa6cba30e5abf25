# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""From PgBouncer to pgbraid and back, on the same file and port, while clients
work: what do they see?"""
import collections
import os
import shutil
import signal
import threading
import time

import pytest

import pgwire
import procs

pytestmark = pytest.mark.pooled

CLIENTS = 8


@pytest.fixture
def programs(target, binary):
    """(target, path) of PgBouncer and of the program under test."""
    path = os.environ.get("PGBOUNCER_BIN") or shutil.which("pgbouncer") or \
        "/usr/sbin/pgbouncer"
    if not os.path.exists(path):
        pytest.skip("pgbouncer is missing (package pgbouncer)")
    return ("pgbouncer", path), (target, binary)


@pytest.fixture
def table(cluster):
    cluster.sql("DROP TABLE IF EXISTS switched", "db1")
    cluster.sql("CREATE TABLE switched (who int, n int)", "db1")
    cluster.sql("GRANT ALL ON switched TO public", "db1")
    yield "switched"
    cluster.sql("DROP TABLE switched", "db1")


class Load:
    """Clients that insert numbers, and connect again when they are cut off."""

    def __init__(self, pooler, stay=True):
        self.pooler = pooler
        self.stay = stay
        self.over = threading.Event()
        self.answered = [set() for _ in range(CLIENTS)]
        self.unknown = [set() for _ in range(CLIENTS)]
        self.seen = collections.Counter()
        self.gap = [0.0] * CLIENTS
        self.wrong = []
        self.threads = [threading.Thread(target=self.work, args=(i,))
                        for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def work(self, who):
        n = 0
        last = time.monotonic()
        while not self.over.is_set():
            try:
                wire = self.pooler.wire("u_scram")
            except (OSError, pgwire.WireClosed) as exc:
                self.seen["login: " + type(exc).__name__] += 1
                time.sleep(0.02)
                continue
            except pgwire.ServerError as exc:
                self.seen["login: %s" % exc] += 1
                time.sleep(0.02)
                continue
            with wire:
                while not self.over.is_set():
                    n += 1
                    if not self.insert(wire, who, n):
                        break
                    now = time.monotonic()
                    self.gap[who] = max(self.gap[who], now - last)
                    last = now
                    if not self.stay:
                        break

    def insert(self, wire, who, n):
        try:
            got = wire.query("BEGIN; INSERT INTO switched VALUES (%d, %d);"
                             " SELECT %d; COMMIT" % (who, n, n))
        except (OSError, pgwire.WireClosed) as exc:
            self.seen["query: " + type(exc).__name__] += 1
            self.unknown[who].add(n)
            return False
        if got.error:
            self.seen["query: %(C)s %(M)s" % got.error] += 1
            self.unknown[who].add(n)
            return False
        if got.value() != str(n):
            self.wrong.append((who, n, got.rows))
        self.answered[who].add(n)
        return True

    def goes_on(self):
        """All clients have come through again."""
        before = [len(a) for a in self.answered]
        procs.wait_for(
            lambda: all(len(a) > b for a, b in zip(self.answered, before)),
            15, lambda: "work of all clients; seen %r" % self.seen)

    def end(self, cluster):
        self.over.set()
        for t in self.threads:
            t.join(30)
        assert not any(t.is_alive() for t in self.threads)
        assert self.wrong == []
        rows = collections.Counter(
            (int(a), int(b))
            for a, b in cluster.sql("SELECT who, n FROM switched", "db1"))
        assert max(rows.values()) == 1
        in_doubt = 0
        for who in range(CLIENTS):
            kept = {n for w, n in rows if w == who}
            assert self.answered[who] <= kept
            assert kept - self.answered[who] <= self.unknown[who]
            in_doubt += len(kept - self.answered[who])
        print("answered %d, done without an answer %d, longest gap %.2f s, "
              "seen %s" % (sum(len(a) for a in self.answered), in_doubt,
                           max(self.gap), dict(self.seen)))
        return in_doubt


def change(pooler, program, number):
    """As `systemctl stop` of one and start of the other."""
    pooler.stop(number)
    pooler.target, pooler.binary = program
    pooler.start()


def test_there_and_back(make_pooler, cluster, programs, table):
    """Transactions that run are ended, with an answer; then clients are cut
    off, find nobody for a moment, and go on with the other program."""
    p = make_pooler({"auth_type": "scram-sha-256"}, program=programs[0])
    load = Load(p)
    try:
        load.goes_on()
        for program in (programs[1], programs[0], programs[1]):
            change(p, program, signal.SIGINT)
            load.goes_on()
    finally:
        load.over.set()
    load.end(cluster)
    assert max(load.gap) < 10
    assert [s for s in load.seen if not s.endswith((
        "WireClosed", "ConnectionRefusedError", "ConnectionResetError",
        "BrokenPipeError", "server shutting down", "pooler is shutting down",
        "the database system is shutting down"))] == []


@pytest.mark.parametrize("way", ["there", "back"])
def test_both_on_one_port(make_pooler, cluster, programs, table, way):
    """With so_reuseport the other one listens before the first one leaves:
    who connects for each transaction meets no refusal for want of a
    listener."""
    first, second = programs if way == "there" else programs[::-1]
    options = {"auth_type": "scram-sha-256", "so_reuseport": 1,
               "unix_socket_dir": ""}
    old = make_pooler(options, program=first)
    new = make_pooler(dict(options, listen_port=old.port), start=False,
                      program=second)
    new.port = old.port
    load = Load(old, stay=False)
    try:
        load.goes_on()
        new.spawn()
        new.wait_log("process up")
        load.goes_on()
        old.stop(signal.SIGINT)
        load.goes_on()
    finally:
        load.over.set()
    load.end(cluster)
    assert "login: ConnectionRefusedError" not in load.seen
