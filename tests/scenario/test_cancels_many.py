# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Many cancels through many workers and two nodes; and keys that nobody has."""
import os
import random
import socket
import threading
import time

import pytest

import procs
from pgwire import cancel_request, query
from test_cancel import send_cancel, wait_active
from test_peers import make_fleet  # noqa: F401 (a fixture)

core = pytest.mark.core
pytestmark = pytest.mark.pooled

LONG = ("DO $$ BEGIN RAISE NOTICE 'runs'; PERFORM pg_sleep(40); "
        "RAISE EXCEPTION 'was not canceled'; END $$")


class Storm:
    """Clients on both nodes; cancels of theirs by whichever node."""

    def __init__(self, nodes, n_cancels):
        self.nodes, self.left = nodes, n_cancels
        self.lock = threading.Lock()
        self.failures = []
        self.hits = self.late = 0

    def take(self):
        with self.lock:
            self.left -= 1
            return self.left >= 0

    def count(self, was_hit):
        with self.lock:
            self.hits += was_hit
            self.late += not was_hit

    def long_query(self, w, rng):
        """It runs when it is canceled: so it must end by that."""
        w.send(query(LONG))
        while w.read().type != "N":
            pass
        begin = time.monotonic()
        send_cancel(rng.choice(self.nodes), w.pid, w.key)
        got = w.read_ready()
        assert got.sqlstate() == "57014", got.errors
        assert time.monotonic() - begin < 20
        self.count(True)

    def short_query(self, w, rng, i):
        """The cancel comes before, amid or after it."""
        w.send(query("SELECT %d, pg_sleep(%f)" % (i, rng.random() * 0.02)))
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.02)
        send_cancel(rng.choice(self.nodes), w.pid, w.key)
        got = w.read_ready()
        if got.errors:
            assert got.sqlstate() == "57014", got.errors
        else:
            assert got.rows[0][0] == b"%d" % i
        self.count(bool(got.errors))
        # The cancel is over: it hits nothing that comes later.
        assert w.value("SELECT %d" % -i) == "%d" % -i

    def cancel_worker(self, number):
        rng = random.Random(number)
        i = 0
        with rng.choice(self.nodes).wire() as w:
            while self.take():
                i += 1
                if rng.random() < 0.5:
                    self.long_query(w, rng)
                else:
                    self.short_query(w, rng, i)

    def bystander(self, number):
        rng = random.Random(-number)
        with rng.choice(self.nodes).wire() as w:
            i = 0
            while self.left > 0:
                i += 1
                got = w.query("SELECT %d, pg_sleep(0.005)" % i)
                assert not got.errors, got.errors
                assert got.rows[0][0] == b"%d" % i

    def guard(self, work, number):
        try:
            work(number)
        except BaseException as exc:  # noqa: B902 (told to the main thread)
            with self.lock:
                self.failures.append("%d: %r" % (number, exc))
                self.left = 0

    def run(self, n_cancel, n_bystander):
        threads = [threading.Thread(target=self.guard,
                                    args=(self.cancel_worker, i))
                   for i in range(1, n_cancel + 1)]
        threads += [threading.Thread(target=self.guard,
                                     args=(self.bystander, i))
                    for i in range(1, n_bystander + 1)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        assert not self.failures, self.failures
        assert self.hits, "no cancel hit anything"


def check_rest(nodes):
    for n in nodes:
        def is_quiet(node=n):
            return all(r["sv_active"] == "0" and r["sv_being_canceled"] == "0"
                       for r in node.show("POOLS"))
        procs.wait_for(is_quiet, 10, "servers at rest")


@core
def test_cancels_over_workers_and_nodes(make_fleet):
    nodes = make_fleet(workers=4, default_pool_size=8)
    Storm(nodes, 120).run(8, 4)
    check_rest(nodes)


@pytest.mark.slow
@pytest.mark.transports("tcp")
def test_a_thousand_cancels(make_fleet):
    """Servers are fewer than clients: some are canceled while they wait."""
    nodes = make_fleet(workers=8, default_pool_size=10)
    Storm(nodes, 1000).run(24, 6)
    check_rest(nodes)


# --- keys that nobody has -------------------------------------------------

def fire_from(source, port, pid, key):
    """A CancelRequest from that address; waits for its close."""
    with socket.create_connection(("127.0.0.1", port), 10,
                                  source_address=(source, 0)) as s:
        s.sendall(cancel_request(pid, key))
        while s.recv(100):
            pass


def fire_unknown(source, port, n):
    for _ in range(n):
        fire_from(source, port, int.from_bytes(os.urandom(3), "big"),
                  os.urandom(4))


def is_canceled(p, cluster, w, source, sql):
    w.send(query(sql))
    wait_active(cluster, sql)
    fire_from(source, p.port, w.pid, w.key)
    if not w.has_data(1):
        return False
    assert w.read_ready().sqlstate() == "57014"
    return True


@core
@pytest.mark.transports("tcp")
def test_unknown_keys_of_one_address(make_pooler, cluster):
    p = make_pooler({"max_unknown_cancels_per_address": 5, "workers": 4})
    with p.wire() as w:
        fire_unknown("127.0.0.2", p.port, 4)
        assert is_canceled(p, cluster, w, "127.0.0.2", "SELECT pg_sleep(181)")
        fire_unknown("127.0.0.2", p.port, 20)
        p.wait_log("127.0.0.2: too many cancel requests with unknown keys")
        assert not is_canceled(p, cluster, w, "127.0.0.2",
                               "SELECT pg_sleep(182)")
        assert p.log().count("unknown keys; more are not looked at") == 1
        # Others are not held up by it.
        fire_from("127.0.0.3", p.port, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


@pytest.mark.transports("tcp")
def test_unknown_keys_of_all_addresses(make_pooler, cluster):
    p = make_pooler({"max_unknown_cancels": 6, "workers": 2})
    with p.wire() as w:
        for i in range(2, 8):
            fire_unknown("127.0.0.%d" % i, p.port, 1)
        assert not is_canceled(p, cluster, w, "127.0.0.2",
                               "SELECT pg_sleep(183)")
        # Whoever has guessed nothing is listened to.
        fire_from("127.0.0.9", p.port, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


@pytest.mark.transports("tcp")
def test_unknown_keys_are_forgotten(make_pooler, cluster):
    p = make_pooler({"max_unknown_cancels_per_address": 1})
    with p.wire() as w:
        fire_unknown("127.0.0.2", p.port, 1)
        sql = "SELECT pg_sleep(184)"
        w.send(query(sql))
        wait_active(cluster, sql)
        procs.wait_for(lambda: (fire_from("127.0.0.2", p.port, w.pid, w.key),
                                w.has_data(0.3))[1], 20,
                       "the window ends")
        assert w.read_ready().sqlstate() == "57014"
