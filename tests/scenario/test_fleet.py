# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Several nodes behind HAProxy, as docs/deployment.md sets them up."""
import os
import random
import signal
import socket
import subprocess
import threading
import time

import pytest

import pgwire
import pooler as pooler_module
import procs
from pgwire import WireClosed, query
from test_cancel import send_cancel, wait_active
from test_peers import by_unix

core = pytest.mark.core
pytestmark = pytest.mark.pooled

BALANCER = "127.0.0.9"

HAPROXY = """
global
    hard-stop-after 1s
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    option redispatch
    retries 3
listen postgres
    bind 127.0.0.1:%(port)d
    balance random
    default-server check inter 100ms fall 1 rise 1 %(header)s source %(source)s
%(servers)s
"""


class Fleet(pooler_module.Address):
    """The balancer's address, and what is behind it."""

    def __init__(self, nodes, folder, program, header):
        first = nodes[0]
        super().__init__("127.0.0.1", procs.free_port(), None,
                         first.transport, first.certs, first.users)
        self.nodes = nodes
        self.config = os.path.join(folder, "haproxy.cfg")
        with open(self.config, "w") as out:
            out.write(HAPROXY % {
                "port": self.port, "header": header, "source": BALANCER,
                "servers": "\n".join("    server node%d 127.0.0.1:%d" % (
                    i + 1, n.port) for i, n in enumerate(nodes))})
        procs.give(self.config)
        self.log_path = os.path.join(folder, "haproxy.log")
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(
                procs.as_service([program, "-db", "-f", self.config]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=procs.die_with_parent)
        procs.wait_for(self.is_up, 10, "HAProxy")

    def is_up(self):
        assert self.proc.poll() is None, open(self.log_path).read()
        try:
            with self.wire() as w:
                return w.value("SELECT 1") == "1"
        except (OSError, WireClosed, pgwire.ServerError):
            return False

    def stop(self):
        self.proc.terminate()
        try:
            self.proc.wait(5)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()


@pytest.fixture
def make_fleet(make_pooler, target, tool):
    if target != "pgbraid":
        pytest.skip("PgBouncer has no PROXY protocol")
    program = tool("haproxy", "haproxy")
    made = []

    def make(header="send-proxy-v2", n=2, **options):
        nodes = [make_pooler(dict(options, peer_id=i + 1,
                                  proxy_protocol_from=BALANCER),
                             start=False) for i in range(n)]
        peers = {i + 1: by_unix(node) for i, node in enumerate(nodes)}
        for node in nodes:
            node.peers = peers
            node.write_ini()
            node.start()
        made.append(Fleet(nodes, nodes[0].folder, program, header))
        return made[-1]
    yield make
    for each in made:
        each.stop()


@core
@pytest.mark.parametrize("header", ["send-proxy", "send-proxy-v2"])
def test_cancel_finds_its_node(make_fleet, cluster, header):
    fleet = make_fleet(header)
    homes = set()
    for i in range(16):
        text = "SELECT pg_sleep(181), %d" % i
        with fleet.wire() as w:
            homes.add(w.pid >> 16 & 0xff)
            w.send(query(text))
            wait_active(cluster, text)
            send_cancel(fleet, w.pid, w.key)
            assert w.read_ready().sqlstate() == "57014"
            assert w.value("SELECT 1") == "1"
    assert homes == {1, 2}


@core
def test_the_real_client_is_seen(make_fleet):
    fleet = make_fleet()
    sock = socket.create_connection((fleet.host, fleet.port), 10,
                                    ("127.0.0.77", 0))
    with pgwire.Wire(sock) as w:
        w.login("u_trust", "db1", None, None, pgwire.PROTOCOL_3_0, None)
        seen = [(r["addr"], int(r["port"])) for n in fleet.nodes
                for r in n.show("CLIENTS") if r["user"] == "u_trust"]
        assert seen == [sock.getsockname()]


def test_draining_a_node_loses_nothing(make_fleet):
    """SIGTERM: new clients go to the other node, those inside end in
    their own time."""
    fleet = make_fleet(default_pool_size=10)
    leaving, staying = fleet.nodes
    stop, failures, count = threading.Event(), [], [0]

    def work(number):
        try:
            while not stop.is_set():
                with fleet.wire() as w:
                    for _ in range(5):
                        w.ok("BEGIN")
                        assert w.value("SELECT %d" % number) == str(number)
                        w.ok("COMMIT")
                    count[0] += 1
        except BaseException as exc:
            failures.append(repr(exc))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    time.sleep(0.5)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait_exit(20) == 0
    before = count[0]
    procs.wait_for(lambda: count[0] > before + 20, 20, "work on one node")
    stop.set()
    for t in threads:
        t.join(30)
    assert not failures, failures


@core
@pytest.mark.parametrize("n, n_workers", [
    (72, 4), pytest.param(1000, 8, marks=pytest.mark.slow)])
def test_random_cancels_over_two_nodes(make_fleet, cluster, n, n_workers):
    """Each hits its own query or nothing, and none is lost while its query
    still runs."""
    fleet = make_fleet(default_pool_size=20, workers=n_workers)
    failures, lock = [], threading.Lock()
    fired, hit = [0], [0]

    def work(number):
        rng = random.Random(number)
        try:
            with fleet.wire() as w:
                for i in range(n // 6):
                    cancels = rng.random() < 0.5
                    long = cancels and rng.random() < 0.3
                    text = "SELECT %d, pg_sleep(%s)" % (
                        number * 1000 + i, "60" if long else "0.01")
                    w.send(query(text))
                    if long:
                        wait_active(cluster, text)
                    if cancels:
                        send_cancel(fleet, w.pid, w.key)
                        fired[0] += 1
                    got = w.read_ready()
                    if got.errors:
                        hit[0] += 1
                        assert cancels, got.errors
                        assert got.sqlstate() == "57014"
                    else:
                        assert not long
                        assert got.rows[0][0] == b"%d" % (number * 1000 + i)
        except BaseException as exc:
            with lock:
                failures.append(repr(exc))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(180)
    print("cancel requests: %d, queries canceled: %d" % (fired[0], hit[0]))
    assert not failures, failures
