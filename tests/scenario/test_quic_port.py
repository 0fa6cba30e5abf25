# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Two processes on one QUIC port (so_reuseport), and connections that change
their address while there are two."""
import os
import socket

import pytest

import pgwire
import pooler as pooler_module
import procs
from pgwire import Wire
from udpwire import UdpWire

core = pytest.mark.core
pytestmark = pytest.mark.transports("tcp")
CONNECTIONS = 16


@pytest.fixture
def serve(make_pooler, target, binary, certs):
    """serve(port, **options): listens for QUIC there and for TCP elsewhere."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")

    def make(port, **options):
        given = pooler_module.TRANSPORTS["quic"].options(certs)
        given.update(workers=2, quic_listen_port=port, so_reuseport=1)
        given.update(options)
        return make_pooler(given)
    return make


@pytest.fixture
def cleanup():
    made = []
    yield made.append
    for each in reversed(made):
        each()


@pytest.fixture
def sessions(certs, cleanup):
    """sessions(p, port): as many as connections, through one edge."""
    def make(p, port, n=CONNECTIONS):
        edge = pooler_module.Edge(
            p.binary, os.path.join(p.folder, "edge"),
            "quic://127.0.0.1:%d" % port, certs,
            ["--quic_connections", str(n),
             "--quic_streams_per_connection", "1"])
        cleanup(edge.stop)
        return [session(edge) for _ in range(n)]
    return make


def session(edge):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(pgwire.TIMEOUT)
    sock.connect(os.path.join(edge.folder, ".s.PGSQL.6432"))
    w = Wire(sock, False, pgwire.TIMEOUT)
    w.login("u_trust", "db1", None)
    return w


def ask_all(ws):
    for w in ws:
        assert w.value("SELECT 1") == "1"


def total(p, what, column):
    return sum(int(r[column]) for r in p.show(what))


def connections(p):
    return total(p, "QUIC", "streams")


@core
def test_both_serve_and_survive_new_addresses(serve, sessions, cleanup):
    port = procs.free_port()
    both = [serve(port), serve(port)]
    wire = UdpWire(("127.0.0.1", port))
    cleanup(wire.close)
    ws = sessions(both[0], wire.port)
    ask_all(ws)
    share = [connections(p) for p in both]
    assert sum(share) == CONNECTIONS and min(share) > 0, share
    wire.rebind()
    ask_all(ws)
    assert [connections(p) for p in both] == share
    assert sum(total(p, "QUIC", "rebindings") for p in both) >= CONNECTIONS
    # The filter did it alone: nothing had to be passed on.
    for p in both:
        assert total(p, "WORKERS", "quic_relayed") == 0
        assert total(p, "WORKERS", "quic_forwarded") == 0


def test_one_leaves_and_comes_back(serve, sessions):
    port = procs.free_port()
    leaving = serve(port)
    staying = serve(port)
    ws = sessions(staying, port)
    ask_all(ws)
    n = connections(staying)
    assert 0 < n < CONNECTIONS
    leaving.stop()
    alive = [w for w in ws if is_alive(w)]
    assert len(alive) == n
    ask_all(alive)
    assert total(staying, "WORKERS", "quic_forwarded") > 0
    leaving.start()
    ask_all(alive)
    assert total(staying, "WORKERS", "quic_relayed") > 0
    assert connections(staying) >= n


def is_alive(w):
    try:
        return w.value("SELECT 1") == "1"
    except (OSError, pgwire.WireClosed, pgwire.ServerError):
        return False


def test_a_port_that_is_taken_names_the_option(serve, make_pooler):
    port = procs.free_port()
    serve(port, so_reuseport=0)
    other = serve_later(make_pooler, port)
    other.spawn()
    assert other.wait_exit() != 0
    assert "so_reuseport = 1 in both" in other.log()
    other.proc = None


def serve_later(make_pooler, port):
    p = make_pooler(start=False)
    given = pooler_module.TRANSPORTS["quic"].options(p.certs)
    p.write_ini(quic_listen_port=port, **given)
    return p
