# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""QUIC on paths that lose, repeat and reorder packets, are long, narrow, or
change under a connection."""
import hashlib
import os
import socket
import subprocess
import time

import pytest

import pgwire
import pooler as pooler_module
import procs
import wan as wan_module
from pgwire import ServerError, Wire, query
from udpwire import UdpWire

core = pytest.mark.core
pytestmark = pytest.mark.transports("tcp")
QUIC = pooler_module.TRANSPORTS["quic"]
UNIX = pooler_module.TRANSPORTS["unix"]
ROW = "SELECT repeat(md5(i::text), 31) FROM generate_series(1, %d) AS i"
SMALL_PATH = 1232   # bytes of a datagram where a packet has 1280, IPv6 too


class Rig:
    """A pooler, a wire and an edge behind it."""

    def __init__(self, p, certs, name="edge", args=()):
        self.p = p
        self.wire = UdpWire(("127.0.0.1", p.options["quic_listen_port"]))
        self.edge = None
        self.certs, self.args = certs, args

    def start(self):
        self.edge = pooler_module.Edge(
            self.p.binary, os.path.join(self.p.folder, "edge"),
            "quic://127.0.0.1:%d" % self.wire.port, self.certs,
            ["--quic_connections", "1", *self.args])
        return self

    def dial(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect(os.path.join(self.edge.folder, ".s.PGSQL.6432"))
        return Wire(sock, False, pgwire.TIMEOUT)

    def session(self):
        w = self.dial()
        w.login("u_trust", "db1", None)
        return w

    def stop(self):
        try:
            if self.edge:
                self.edge.stop()
        finally:
            self.wire.close()


@pytest.fixture
def make_rig(make_pooler, target, binary, certs):
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    made = []

    def make(args=(), **options):
        given = QUIC.options(certs)
        given.update(quic_listen_port=procs.free_port(), **options)
        made.append(Rig(make_pooler(given), certs, args=args))
        return made[-1]
    yield make
    for each in made:
        each.stop()


def the_connection(p):
    rows = [r for r in p.show("QUIC") if r["state"] == "up"]
    assert len(rows) == 1
    return rows[0]


def copy_out(w, rows):
    """The hash of so many rows of 992 bytes."""
    w.send(query("COPY (%s) TO STDOUT" % ROW % rows))
    got, n = hashlib.sha256(), 0
    for msg in w.read_until("Z", timeout=60):
        if msg.type == "d":
            got.update(msg.body)
            n += 1
    assert n == rows
    return got.hexdigest()


def copy_in(w, rows):
    """Sends so many rows and has the server hash them."""
    w.ok("CREATE TEMP TABLE weather (t text)")
    w.send(query("COPY weather FROM STDIN"))
    w.read_until("G")
    line = b"x" * 991 + b"\n"
    for _ in range(rows):
        w.send(pgwire.copy_data(line))
    w.send(pgwire.copy_done())
    w.read_until("Z", timeout=60)
    assert w.value("SELECT count(*) || ' ' || sum(length(t)) FROM weather") \
        == "%d %d" % (rows, 991 * rows)


@core
def test_loss_doubles_and_disorder(make_rig):
    rig = make_rig(pool_mode="session").start()
    with rig.session() as w:
        want = copy_out(w, 1500)
    rig.wire.loss, rig.wire.dup, rig.wire.reorder = 0.05, 0.05, 0.1
    with rig.session() as w:
        for i in range(30):
            assert w.value("SELECT %d" % i) == str(i)
        assert copy_out(w, 1500) == want
        copy_in(w, 500)
    assert rig.wire.counts["lost"] > 20


def seconds_of(w):
    start = time.monotonic()
    assert w.value("SELECT 2") == "2"
    return time.monotonic() - start


def test_long_round_trip(make_rig):
    rig = make_rig().start()
    rig.wire.delay = 0.15
    start = time.monotonic()
    with rig.session() as w:
        logged_in = time.monotonic() - start
        assert w.value("SELECT 1") == "1"
        one = min(seconds_of(w) for _ in range(3))
    # The connection was there: a round trip for the login, one for a query.
    assert 0.3 <= logged_in < 3, logged_in
    assert 0.3 <= one < 0.5, one


@core
def test_new_address_in_the_middle_of_a_query(make_rig):
    rig = make_rig(workers=2).start()
    with rig.session() as w, rig.session() as other:
        want = copy_out(w, 3000)
        w.send(query("COPY (%s) TO STDOUT" % ROW % 3000))
        w.read_until("d")
        rig.wire.rebind()
        assert read_copy(w) > 2000
        w.send(query("SELECT pg_sleep(0.3), 'late'"))
        rig.wire.rebind()
        assert other.value("SELECT 1") == "1"
        rows = [m for m in w.read_until("Z") if m.type == "D"]
        assert len(rows) == 1 and b"late" in rows[0].body
        assert copy_out(w, 3000) == want
        assert int(the_connection(rig.p)["rebindings"]) >= 2


def read_copy(w):
    return sum(m.type == "d" for m in w.read_until("Z", timeout=30))


@core
def test_path_that_narrows_under_a_connection(make_rig):
    """Large packets vanish from one moment on, without a word."""
    rig = make_rig(pool_mode="session").start()
    with rig.session() as w:
        want = copy_out(w, 2000)
        before = the_connection(rig.p)
        assert int(before["packet_size"]) > SMALL_PATH
        rig.wire.mtu = SMALL_PATH
        assert copy_out(w, 2000) == want
        copy_in(w, 500)
        after = the_connection(rig.p)
        assert after["id"] == before["id"]
        assert int(after["packet_size"]) <= SMALL_PATH
        assert int(after["black_holes"]) >= 1
    assert rig.wire.counts["large"] > 0


def test_narrow_path(make_rig):
    rig = make_rig(pool_mode="session")
    rig.wire.mtu = SMALL_PATH
    rig.start()
    with rig.session() as w:
        copy_out(w, 2000)
        copy_in(w, 500)
        row = the_connection(rig.p)
        assert int(row["packet_size"]) <= SMALL_PATH
        assert int(row["black_holes"]) == 0


def test_outage_of_a_second(make_rig):
    rig = make_rig(pool_mode="session").start()
    with rig.session() as w:
        want = copy_out(w, 2000)
        w.send(query("COPY (%s) TO STDOUT" % ROW % 2000))
        w.read_until("d")
        rig.wire.loss = 1.0
        time.sleep(1)
        rig.wire.loss = 0.0
        read_copy(w)
        assert copy_out(w, 2000) == want


def test_not_more_than_three_times_what_was_received(make_rig):
    """Whoever forges an address gets no amplifier: the server has not heard
    the client's second datagram, and repeats itself within the limit."""
    rig = make_rig()
    rig.wire.up_most = 1
    rig.start()
    w = rig.dial()
    w.send(pgwire.startup({"user": "u_trust", "database": "db1"}))
    procs.wait_for(lambda: rig.wire.counts["down"] > 0, 10, "an answer")
    time.sleep(3)
    w.abort()
    assert rig.wire.passed == 1
    assert rig.wire.bytes["down"] <= 3 * rig.wire.first_bytes


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["cubic", "reno", "bbr"])
def test_congestion_control(make_rig, algorithm):
    rig = make_rig(quic_congestion_control=algorithm).start()
    rig.wire.delay = 0.01
    rig.wire.loss = 0.01
    with rig.session() as w:
        copy_out(w, 2000)


def test_unknown_congestion_control(make_pooler):
    p = make_pooler({"quic_congestion_control": "vegas"}, start=False)
    status, text = p.check()
    assert status != 0 and "quic_congestion_control" in text


# --- over the emulated WAN ----------------------------------------------------


def listens(path):
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(path) == 0


@pytest.fixture
def make_wan_rig(make_pooler, session_folder, target, binary, certs):
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    reason = wan_module.why_not()
    if reason:
        pytest.skip(reason)
    made, edges = [], []

    def make(options=None, **settings):
        wan = wan_module.Wan(session_folder, **settings)
        made.append(wan)
        given = QUIC.options(certs)
        given.update(quic_listen_addr="*", listen_addr="*", listen_port=6432)
        given.update(options or {})
        p = make_pooler(given, transport=UNIX, start=False)
        wan_module.put_inside(p, wan.far)
        p.start()
        folder = os.path.join(p.folder, "edge")
        os.mkdir(folder)
        procs.give(folder)

        def prepare():
            procs.die_with_parent()
            wan.near.enter()
        edges.append(subprocess.Popen(
            procs.as_service([p.binary, "edge", "-q", "--listen", folder,
                              "--to", "quic://10.1.0.2:6432", "--insecure",
                              "--quic_connections", "1"]),
            preexec_fn=prepare))
        path = os.path.join(folder, ".s.PGSQL.6432")
        procs.wait_for(lambda: listens(path), 10, "the edge")

        def session():
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(60)
            sock.connect(path)
            w = Wire(sock, False, 60)
            w.login("u_trust", "db1", None)
            return w
        return wan, p, session
    yield make
    for each in edges:
        each.terminate()
        each.wait(10)
    for each in made:
        each.close()


@pytest.mark.slow
def test_wan_with_an_mtu_of_1280(make_wan_rig):
    _, p, session = make_wan_rig({"pool_mode": "session"}, delay=5, mtu=1280)
    with session() as w:
        copy_out(w, 3000)
        copy_in(w, 500)
        assert int(the_connection(p)["packet_size"]) <= 1252


@pytest.mark.slow
def test_wan_whose_mtu_falls(make_wan_rig):
    wan, p, session = make_wan_rig({"pool_mode": "session"}, delay=15)
    with session() as w:
        copy_out(w, 2000)
        assert int(the_connection(p)["packet_size"]) > 1400
        wan.tell("path-mtu 1280")
        copy_out(w, 2000)
        copy_in(w, 500)
        assert int(the_connection(p)["black_holes"]) >= 1
    assert wan.stats()["ba"]["too_large"] > 0


@pytest.mark.slow
@pytest.mark.alone
def test_windows_grow_to_fill_the_path(make_wan_rig):
    """40 MB over 100 Mbit/s and 100 ms: at least half of the link, both
    ways."""
    _, p, session = make_wan_rig({"pool_mode": "session"}, delay=50,
                                 rate=100, queue_ms=200)
    with session() as w:
        start = time.monotonic()
        copy_out(w, 40000)
        assert time.monotonic() - start < 40 * 8 / 50
        start = time.monotonic()
        copy_in(w, 40000)
        assert time.monotonic() - start < 40 * 8 / 50
