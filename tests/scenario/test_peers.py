# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Cancel requests that reach another node of the fleet than their session.

PGBOUNCER_BIN names a PgBouncer (1.19 or later) for mixed fleets; without it
the installed one is taken if it is new enough.
"""
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import pytest

import procs
from pgwire import PROTOCOL_3_2, cancel_request, query
from test_cancel import send_cancel, wait_active

core = pytest.mark.core
pytestmark = pytest.mark.pooled


def pgbouncer_with_peering():
    path = os.environ.get("PGBOUNCER_BIN") or shutil.which("pgbouncer") or \
        "/usr/sbin/pgbouncer"
    if not os.path.exists(path):
        pytest.skip("no PgBouncer (package pgbouncer, or PGBOUNCER_BIN)")
    text = subprocess.run([path, "--version"], stdout=subprocess.PIPE).stdout
    found = re.search(rb"PgBouncer (\d+)\.(\d+)", text)
    if not found or tuple(map(int, found.groups())) < (1, 19):
        pytest.skip("%s has no peering; PGBOUNCER_BIN may name a newer one"
                    % path)
    return path


def by_tcp(node):
    return "host=127.0.0.1 port=%d" % node.port


def by_unix(node):
    return "host=%s port=%d" % (node.folder, node.port)


@pytest.fixture
def make_fleet(make_pooler, target):
    """Nodes that know each other; programs: None is the one under test."""
    if target != "pgbraid":
        pytest.skip("the installed PgBouncer may have no peering")

    def make(programs=(None, None), where=by_tcp, extra="", **options):
        nodes = []
        for i, program in enumerate(programs):
            own = dict(options, peer_id=i + 1)
            if program:
                own["workers"] = None
            nodes.append(make_pooler(own, program=program, start=False))
        peers = {i + 1: "%s %s" % (where(n), extra)
                 for i, n in enumerate(nodes)}
        for n in nodes:
            n.peers = peers
            n.write_ini()
            n.start()
        return nodes
    return make


def check_cancel(cluster, home, via, text):
    with home.wire() as w:
        w.send(query(text))
        wait_active(cluster, text)
        begin = time.monotonic()
        send_cancel(via, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"
        assert time.monotonic() - begin < 5
        assert w.value("SELECT 1") == "1"


@core
@pytest.mark.parametrize("where", [by_tcp, by_unix])
def test_cancel_by_way_of_a_peer(make_fleet, cluster, where):
    a, b, c = make_fleet((None, None, None), where)
    check_cancel(cluster, a, b, "SELECT pg_sleep(161)")
    check_cancel(cluster, c, b, "SELECT pg_sleep(162)")
    check_cancel(cluster, b, a, "SELECT pg_sleep(163)")
    check_cancel(cluster, b, b, "SELECT pg_sleep(164)")
    rows = {r["peer_id"]: r for r in a.show("PEERS")}
    assert set(rows) == {"1", "2", "3"}
    assert rows["2"]["pool_size"] == "5"
    assert all(r["cl_active_cancel_req"] == "0" for r in
               a.show("PEER_POOLS"))


@core
def test_cancels_at_random_over_two_nodes(make_fleet, cluster):
    """Every error belongs to the one who asked for it."""
    nodes = make_fleet(default_pool_size=20)
    failures, lock = [], threading.Lock()

    def work(number):
        rng = random.Random(number)
        try:
            cancels = number % 2 == 0
            with rng.choice(nodes).wire() as w:
                for i in range(15):
                    w.send(query("SELECT %d, pg_sleep(0.02)" % i))
                    if cancels:
                        send_cancel(rng.choice(nodes), w.pid, w.key)
                    got = w.read_ready()
                    if got.errors:
                        assert cancels, got.errors
                        assert got.sqlstate() == "57014"
                    else:
                        assert got.rows[0][0] == b"%d" % i
        except BaseException as exc:
            with lock:
                failures.append(repr(exc))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures


# --- one node and a stand-in for the other ------------------------------

class StandIn:
    """A peer in Python: takes requests, closes when it is told to."""

    def __init__(self):
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(64)
        self.port = self.sock.getsockname()[1]

    def accept(self, timeout=10):
        self.sock.settimeout(timeout)
        conn, _ = self.sock.accept()
        conn.settimeout(timeout)
        return conn

    def has_connection(self, timeout=0.3):
        try:
            self.accept(timeout).close()
            return True
        except (socket.timeout, TimeoutError):
            return False

    @staticmethod
    def request(conn, size=16):
        data = b""
        while len(data) < size:
            more = conn.recv(size - len(data))
            assert more, "connection closed"
            data += more
        return data


@pytest.fixture
def stand_in():
    out = StandIn()
    yield out
    out.sock.close()


def key_for(peer, hops, n=4):
    """pid and secret of a session on another node."""
    key = bytearray(os.urandom(4 + n))
    key[0] &= 0x7f
    key[1], key[2] = peer & 0xff, peer >> 8
    key[7] = key[7] & 0xfc | hops
    return struct.unpack_from("!I", key)[0], bytes(key[4:])


@pytest.fixture
def make_node(make_pooler, stand_in, target):
    if target != "pgbraid":
        pytest.skip("the installed PgBouncer may have no peering")

    def make(peer_id=600, extra="", **options):
        return make_pooler(
            dict(options, peer_id=1),
            peers={peer_id: "host=127.0.0.1 port=%d %s" % (
                stand_in.port, extra)})
    return make


def fire(node, pid, key):
    w = node.open()
    w.send(cancel_request(pid, key))
    return w


def test_layout_of_the_key(make_fleet):
    nodes = make_fleet()
    seen = set()
    for _ in range(20):
        for i, node in enumerate(nodes):
            with node.wire() as w:
                key = struct.pack("!I", w.pid) + w.key
                assert len(key) == 8
                assert not key[0] & 0x80
                assert key[1] + (key[2] << 8) == i + 1
                assert key[7] & 3 == 3
                seen.add(key)
    assert len(seen) == 40


@core
def test_hops_count_down_and_the_close_comes_back(make_node, stand_in):
    """The request goes on with one hop less; its connection ends when the
    peer's has."""
    node = make_node()
    pid, key = key_for(600, 3)
    w = fire(node, pid, key)
    conn = stand_in.accept()
    got = stand_in.request(conn)
    want = bytearray(cancel_request(pid, key))
    want[-1] -= 1
    assert got == bytes(want)
    assert not w.has_data(0.3)
    row, = node.show("PEER_POOLS")
    assert (row["peer_id"], row["cl_active_cancel_req"],
            row["sv_active_cancel"]) == ("600", "1", "1")
    conn.close()
    assert w.is_closed(5)


@core
def test_no_hop_left(make_node, stand_in):
    node = make_node()
    w = fire(node, *key_for(600, 0))
    assert w.is_closed(5)
    assert not stand_in.has_connection()
    node.wait_log("passed on too often")


@core
def test_unknown_peer(make_node, stand_in):
    node = make_node()
    for id in (0, 2, 601, 65535):
        assert fire(node, *key_for(id, 3)).is_closed(5)
    assert not stand_in.has_connection()


@core
def test_pool_size_of_a_peer(make_node, stand_in):
    """Two at once, over all workers; the others wait their turn."""
    node = make_node(extra="pool_size=2")
    waiting = [fire(node, *key_for(600, 3)) for _ in range(6)]
    first = [stand_in.accept() for _ in range(2)]
    for conn in first:
        stand_in.request(conn)
    assert not stand_in.has_connection()
    row, = node.show("PEER_POOLS")
    assert row["cl_active_cancel_req"] == "2"
    assert row["cl_waiting_cancel_req"] == "4"
    for conn in first:
        conn.close()
    for _ in range(4):
        conn = stand_in.accept()
        stand_in.request(conn)
        conn.close()
    for w in waiting:
        assert w.is_closed(5)


@core
def test_requester_that_leaves(make_node, stand_in):
    """Its request is carried out all the same, as PostgreSQL does."""
    node = make_node()
    w = fire(node, *key_for(600, 3))
    w.abort()
    conn = stand_in.accept()
    stand_in.request(conn)
    conn.close()
    procs.wait_for(lambda: node.show("PEER_POOLS")[0]["sv_active_cancel"] ==
                   "0", 5)


@core
def test_peer_that_is_not_there(make_node, stand_in):
    node = make_node()
    stand_in.sock.close()
    begin = time.monotonic()
    assert fire(node, *key_for(600, 3)).is_closed(5)
    assert time.monotonic() - begin < 3
    node.wait_log("peer 600: cancel request could not be passed on")


@core
def test_peer_that_never_answers(make_node, stand_in):
    node = make_node(cancel_wait_timeout=1)
    begin = time.monotonic()
    w = fire(node, *key_for(600, 3))
    conn = stand_in.accept()
    stand_in.request(conn)
    assert w.is_closed(5)
    assert time.monotonic() - begin > 0.9
    assert conn.recv(1) == b""
    assert [r["sv_active_cancel"] for r in node.show("PEER_POOLS")] == ["0"]


def test_peer_that_talks(make_node, stand_in):
    node = make_node()
    w = fire(node, *key_for(600, 3))
    conn = stand_in.accept()
    stand_in.request(conn)
    conn.sendall(b"N")
    assert w.is_closed(5)


def test_peer_by_name(make_fleet, cluster):
    a, b = make_fleet(where=lambda n: "host=localhost port=%d" % n.port)
    check_cancel(cluster, a, b, "SELECT pg_sleep(165)")


def test_peers_come_and_go_with_a_reload(make_fleet, cluster):
    a, b = make_fleet()
    peers, b.peers = b.peers, {}
    b.write_ini()
    b.reload()
    with a.wire() as w:
        w.send(query("SELECT pg_sleep(1), 166"))
        wait_active(cluster, "SELECT pg_sleep(1), 166")
        send_cancel(b, w.pid, w.key)
        assert not w.read_ready().errors
    b.peers = peers
    b.write_ini()
    b.reload()
    check_cancel(cluster, a, b, "SELECT pg_sleep(167)")


def test_key_from_before_peering(make_pooler, cluster):
    node = make_pooler()
    with node.wire() as w:
        node.peers = {2: "host=127.0.0.1 port=1"}
        node.write_ini(peer_id=1)
        node.reload()
        w.send(query("SELECT pg_sleep(168)"))
        wait_active(cluster, "SELECT pg_sleep(168)")
        send_cancel(node, w.pid, w.key)
        got = w.read_ready()
        assert got.sqlstate() == "57014"


# --- long keys ----------------------------------------------------------

@core
def test_long_keys_only_where_all_pass_them_on(make_fleet, cluster):
    a, b = make_fleet()
    with a.wire(version=PROTOCOL_3_2) as w:
        assert len(w.key) == 4
    a, b = make_fleet(extra="long_keys=1")
    with a.wire(version=PROTOCOL_3_2) as w:
        assert len(w.key) == 32
        w.send(query("SELECT pg_sleep(169)"))
        wait_active(cluster, "SELECT pg_sleep(169)")
        send_cancel(b, w.pid, w.key[:-1] + bytes([w.key[-1] ^ 1]))
        send_cancel(b, w.pid, w.key[:4])
        assert not w.has_data(0.2)
        send_cancel(b, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


# --- several processes on one port --------------------------------------

@core
def test_processes_that_share_a_port(make_pooler, cluster, target):
    """Connections go to either; cancels find their session all the same."""
    if target != "pgbraid":
        pytest.skip("the installed PgBouncer may have no peering")
    nodes = [make_pooler({"peer_id": i + 1, "so_reuseport": 1}, start=False)
             for i in range(2)]
    port = nodes[0].port
    peers = {i + 1: "host=%s port=%d" % (n.folder, port)
             for i, n in enumerate(nodes)}
    for n in nodes:
        n.port = port
        n.peers = peers
        n.write_ini(listen_port=port)
        n.start()
        n.baseline_fds = None  # SHOW SERVERS would be of either process
    homes = set()
    for i in range(16):
        text = "SELECT pg_sleep(170), %d" % i
        with nodes[0].wire() as w:
            homes.add(w.pid >> 16 & 0xff)
            w.send(query(text))
            wait_active(cluster, text)
            send_cancel(nodes[0], w.pid, w.key)
            assert w.read_ready().sqlstate() == "57014"
    assert homes == {1, 2}


# --- with PgBouncer -----------------------------------------------------

@core
def test_mixed_fleet(make_fleet, cluster):
    other = ("peering", pgbouncer_with_peering())
    ours, theirs = make_fleet((None, other))
    for i in range(3):
        check_cancel(cluster, ours, theirs, "SELECT pg_sleep(171), %d" % i)
        check_cancel(cluster, theirs, ours, "SELECT pg_sleep(172), %d" % i)
    with ours.wire(version=PROTOCOL_3_2) as w:
        assert len(w.key) == 4
        w.send(query("SELECT pg_sleep(173)"))
        wait_active(cluster, "SELECT pg_sleep(173)")
        send_cancel(theirs, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


def test_mixed_chain(make_fleet, cluster):
    """Two hops: theirs knows the session's node by way of ours only."""
    other = ("peering", pgbouncer_with_peering())
    home, ours, theirs = make_fleet((None, None, other))
    theirs.peers = dict(theirs.peers)
    theirs.peers[1] = by_tcp(ours)
    theirs.write_ini()
    theirs.reload()
    check_cancel(cluster, home, theirs, "SELECT pg_sleep(174)")


def test_a_loop_of_nodes_ends(make_fleet, cluster):
    """Each thinks that the other knows node 9."""
    a, b = make_fleet()
    for node, other in ((a, b), (b, a)):
        node.peers = dict(node.peers)
        node.peers[9] = by_tcp(other)
        node.write_ini()
        node.reload()
    assert fire(a, *key_for(9, 3)).is_closed(5)
    procs.wait_for(lambda: "passed on too often" in a.log() + b.log(), 5)
