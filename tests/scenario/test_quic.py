# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What is peculiar to QUIC and to edges; the other scenarios run over them
as over any transport."""
import os
import signal
import socket
import struct
import subprocess
import time

import pytest

import pgwire
import pooler as pooler_module
import procs
from pgwire import ServerError, Wire, WireClosed, query

core = pytest.mark.core


@pytest.fixture
def serve(make_pooler, target, binary):
    """serve(**options): a pooler that listens for QUIC."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")

    def make(options=None, **kw):
        return make_pooler(options or {},
                           transport=pooler_module.TRANSPORTS["quic"], **kw)
    return make


@pytest.fixture
def make_edge(session_folder, certs):
    made = []

    def make(p, url=None, args=(), ca=None):
        folder = os.path.join(p.folder, "edge-%d" % len(made))
        out = pooler_module.Edge(p.binary, folder,
                                 url or "quic://localhost:%d" % p.port,
                                 certs, args)
        made.append(out)
        return out
    yield make
    for each in made:
        each.stop()


def dial(edge, port=6432):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(pgwire.TIMEOUT)
    sock.connect(os.path.join(edge.folder, ".s.PGSQL.%d" % port))
    return Wire(sock, False, pgwire.TIMEOUT)


def session(edge, user="u_trust", database="db1", password=None):
    w = dial(edge)
    w.login(user, database, password)
    return w


def refusal(edge):
    """The text that a new session is told."""
    w = dial(edge)
    try:
        w.login("u_trust", "db1", None)
    except ServerError as exc:
        return str(exc)
    finally:
        w.abort()
    raise AssertionError("it was let in")


def connections(p):
    return p.show("QUIC")


# --- the edge ---------------------------------------------------------------------

@core
def test_many_sessions_few_connections(serve, make_edge):
    p = serve({"default_pool_size": 5})
    e = make_edge(p, args=["--quic_connections", "3",
                           "--quic_streams_per_connection", "20"])
    ws = [session(e) for _ in range(50)]
    for w in ws:
        assert w.value("SELECT 1") == "1"
    rows = connections(p)
    ours = [r for r in rows if int(r["streams"]) > 1]
    assert len(ours) == 3
    assert sum(int(r["streams"]) for r in ours) == 50
    assert max(int(r["streams"]) for r in ours) <= 20
    assert {r["alpn"] for r in ours} == {"pgbraid/1"}
    for w in ws:
        w.close()


@core
def test_no_room_says_so(serve, make_edge):
    p = serve()
    e = make_edge(p, args=["--quic_connections", "1", "--wait", "1",
                           "--quic_streams_per_connection", "2"])
    ws = [session(e) for _ in range(2)]
    assert "carry 2 sessions already" in refusal(e)
    ws.pop().close()
    with session(e) as w:
        assert w.value("SELECT 1") == "1"
    ws.pop().close()


@core
def test_sessions_name_their_stream(serve, make_edge):
    p = serve()
    e = make_edge(p, args=["--quic_connections", "1"])
    ws = [session(e) for _ in range(3)]
    assert ws[0].value("SELECT 1") == "1"
    with p.wire(transport="tcp") as plain:
        assert plain.value("SELECT 1") == "1"
        for what in ("CLIENTS", "SOCKETS"):
            rows = [r for r in p.show(what)
                    if r["type"] == "C" and r["database"] == "db1"]
            by = {}
            for r in rows:
                by.setdefault(r["transport"], []).append(r)
            assert sorted(by) == ["quic", "tcp"]
            assert by["tcp"][0]["quic_connection"] is None
            assert len({r["quic_connection"] for r in by["quic"]}) == 1
            assert len({r["quic_stream"] for r in by["quic"]}) == 3
    ids = {r["id"]: r for r in connections(p)}
    assert by["quic"][0]["quic_connection"] in ids
    assert {r["transport"] for r in p.show("SERVERS")} <= {"tcp", "tls", "unix"}
    for w in ws:
        w.close()


@core
def test_ssl_request_is_answered_by_the_edge(serve, make_edge):
    e = make_edge(serve())
    w = dial(e)
    w.send(struct.pack("!II", 8, 80877103))
    assert w.sock.recv(1) == b"N"
    w.send(struct.pack("!II", 8, 80877104))
    assert w.sock.recv(1) == b"N"
    w.login("u_trust", "db1", None)
    assert w.value("SELECT 1") == "1"
    w.close()


@core
def test_socket_is_for_its_owner_only(serve, make_edge):
    e = make_edge(serve())
    mode = os.stat(os.path.join(e.folder, ".s.PGSQL.6432")).st_mode
    assert mode & 0o077 == 0


def test_tcp_listener_of_an_edge(serve, certs):
    p = serve()
    port = procs.free_port()
    proc = subprocess.Popen(
        [p.binary, "edge", "-q", "--listen", str(port), "--to",
         "quic://localhost:%d" % p.port, "--ca", certs.ca])
    try:
        def up():
            try:
                return socket.create_connection(("127.0.0.1", port), 5)
            except OSError:
                return None
        sock = procs.wait_for(up, 10, "the edge")
        w = Wire(sock, False, pgwire.TIMEOUT)
        w.login("u_trust", "db1", None)
        assert w.value("SELECT 1") == "1"
        w.close()
    finally:
        proc.terminate()
        assert proc.wait(10) == 0


def test_edge_from_a_file(serve, make_edge, certs):
    p = serve()
    folder = os.path.join(p.folder, "sock")
    os.mkdir(folder)
    ini = p.file("edge.ini", "[edge]\nlisten = %s\nto = quic://localhost:%d\n"
                 "ca = %s\nquic_connections = 1\n" %
                 (folder, p.port, certs.ca))
    proc = subprocess.Popen([p.binary, "edge", "-q", ini])
    try:
        path = os.path.join(folder, ".s.PGSQL.6432")
        procs.wait_for(lambda: os.path.exists(path), 10, "the edge")
        time.sleep(0.1)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        w = Wire(sock, False, pgwire.TIMEOUT)
        w.login("u_trust", "db1", None)
        assert w.value("SELECT 1") == "1"
        w.close()
    finally:
        proc.terminate()
        assert proc.wait(10) == 0


@core
def test_several_edges_in_a_file(serve, certs):
    p = serve()
    ports = [procs.free_port(), procs.free_port()]
    ini = p.file("edge.ini", """
[edge]
to = quic://localhost:1
ca = %s
quic_connections = 1
[edge first]
to = quic://localhost:%d
listen = 127.0.0.1:%d
[edge second]
listen = %d
to = tls://localhost:%d
""" % (certs.ca, p.port, ports[0], ports[1], p.port))
    proc = subprocess.Popen([p.binary, "edge", "-q", ini])
    try:
        for port in ports:
            def up():
                try:
                    return socket.create_connection(("127.0.0.1", port), 5)
                except OSError:
                    return None
            w = Wire(procs.wait_for(up, 10, "the edge"), False,
                     pgwire.TIMEOUT)
            w.login("u_trust", "db1", None)
            assert w.value("SELECT 1") == "1"
            w.close()
    finally:
        proc.terminate()
        assert proc.wait(10) == 0


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_other_ways_to_the_pooler(serve, make_edge, scheme):
    p = serve()
    e = make_edge(p, "%s://localhost:%d" % (scheme, p.port))
    with session(e) as w:
        assert w.value("SELECT 1") == "1"


# --- who is who --------------------------------------------------------------------

@core
def test_untrusted_pooler(serve, certs):
    p = serve()
    got = subprocess.run(
        [p.binary, "run", "--to", "quic://localhost:%d" % p.port, "--",
         "psql", "-U", "u_trust", "db1", "-c", "select 1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    assert got.returncode == 2
    assert b"issuer is unknown" in got.stdout
    p.wait_log("QUIC handshake failed: refused by the peer")


@core
def test_wrong_name(serve, make_edge):
    p = serve()
    e = make_edge(p, "quic://127.0.0.2:%d" % p.port)
    assert "refused" in refusal(e) or "match" in refusal(e)


@core
def test_nobody_listens(serve, make_edge):
    p = serve()
    e = make_edge(p, "quic://localhost:%d" % procs.free_port())
    assert "Connection refused" in refusal(e)


def test_fallback_to_tls(serve, make_edge):
    p = serve({"quic_listen_port": procs.free_port()})
    e = make_edge(p, args=["--fallback", "tls"])
    with session(e) as w:
        assert w.value("SELECT 1") == "1"
    e.wait_log("sessions go over TLS")


@core
def test_password_logins(serve, make_edge):
    p = serve({"auth_type": "scram-sha-256"})
    e = make_edge(p)
    user = next(u for u, v in p.users.items()
                if v[0] and u not in ("admin", "stats"))
    with session(e, user, "db1", p.users[user][0]) as w:
        assert w.value("SELECT current_user") == user
    with pytest.raises(ServerError):
        session(e, user, "db1", "wrong")


def test_trust_by_address_does_not_hold_through_a_tunnel(serve, make_edge):
    p = serve({"auth_type": "hba", "auth_hba_file": None})
    hba = p.file("hba", "host all all 127.0.0.1/32 trust\n"
                 "local all all trust\n")
    p.write_ini(auth_hba_file=hba)
    p.stop()
    p.start()
    e = make_edge(p)
    assert "no authentication method" in refusal(e)


@core
def test_certificate_to_role(serve, make_edge, certs):
    p = serve({"auth_type": "cert", "client_tls_sslmode": "verify-ca"},
              start=False)
    p.spawn()
    p.wait_log("process up")
    cert, key = certs.client
    e = make_edge(p, args=["--cert", cert, "--key", key])
    with session(e, "u_cert") as w:
        assert w.value("SELECT 1") == "1"
    with pytest.raises(ServerError) as exc:
        session(e, "u_trust")
    assert "certificate authentication failed" in str(exc.value)


@core
def test_strange_certificate(serve, make_edge, certs):
    p = serve()
    cert, key = certs.stranger
    e = make_edge(p, args=["--cert", cert, "--key", key])
    with pytest.raises(ServerError) as exc:
        session(e)
        session(e)
    assert "TLS alert" in str(exc.value)
    p.wait_log("QUIC handshake failed: The certificate is NOT trusted")


@core
def test_certificates_insisted_on(serve, make_edge, certs):
    p = serve({"client_tls_sslmode": "verify-ca"}, start=False)
    p.spawn()
    p.wait_log("process up")
    cert, key = certs.client
    good = make_edge(p, args=["--cert", cert, "--key", key])
    with session(good) as w:
        assert w.value("SELECT 1") == "1"
    bare = make_edge(p)
    with pytest.raises(ServerError) as exc:
        session(bare)
        session(bare)
    assert "refused by the peer" in str(exc.value)


# --- cancel -------------------------------------------------------------------------

@core
def test_cancel_through_an_edge(serve, make_edge, run):
    p = serve()
    e = make_edge(p)
    env = dict(os.environ, PGHOST=e.folder, PGPORT="6432", PGUSER="u_trust",
               PGDATABASE="db1")
    proc = subprocess.Popen(["psql", "-c", "select pg_sleep(60)"], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    p.wait_pool(sv_active=1)
    time.sleep(0.2)
    proc.send_signal(signal.SIGINT)
    text = proc.communicate(timeout=20)[0]
    assert b"canceling statement due to user request" in text


@core
def test_killed_client_is_cancelled(serve, make_edge):
    """The edge dies: what its sessions ran must not go on."""
    p = serve()
    e = make_edge(p)
    w = session(e)
    w.send(query("SELECT pg_sleep(60)"))
    p.wait_pool(sv_active=1)
    e.proc.terminate()
    e.proc.wait(10)
    p.wait_pool(sv_active=0, timeout=15)
    with p.wire(transport="tcp") as other:
        assert other.value(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' "
            "AND query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
        ) in ("0", "1")


# --- flow ---------------------------------------------------------------------------

@core
def test_a_reader_that_stops_stops_nobody_else(serve, make_edge):
    p = serve()
    e = make_edge(p, args=["--quic_connections", "1"])
    slow = session(e)
    slow.send(query("SELECT repeat('x', 1000) FROM "
                    "generate_series(1, 300000)"))
    time.sleep(1)
    with session(e) as w:
        start = time.monotonic()
        for _ in range(200):
            assert w.value("SELECT 1") == "1"
        assert time.monotonic() - start < 10
    rss = procs_rss(p.pid)
    assert rss < 200 * 1024
    slow.abort()


def procs_rss(pid):
    with open("/proc/%d/status" % pid) as src:
        for line in src:
            if line.startswith("VmRSS"):
                return int(line.split()[1])
    return 0


def test_large_results_and_copy(serve, make_edge, run):
    p = serve()
    e = make_edge(p)
    env = dict(os.environ, PGHOST=e.folder, PGPORT="6432", PGUSER="u_trust",
               PGDATABASE="db1")
    got = run(["psql", "-Atc", "copy (select repeat('y', 1000) from "
               "generate_series(1, 50000)) to stdout"], env=env)
    assert len(got) == 50000 * 1001


# --- the pooler comes and goes ------------------------------------------------------

@core
def test_restart_of_the_pooler(serve, make_edge):
    p = serve()
    e = make_edge(p)
    w = session(e)
    p.proc.kill()
    p.proc.wait()
    p.start()
    with pytest.raises((WireClosed, OSError)):
        w.value("SELECT 1")
    w.abort()

    def works():
        try:
            with session(e) as again:
                return again.value("SELECT 1") == "1"
        except (ServerError, WireClosed, OSError):
            return False
    procs.wait_for(works, 15, "the edge to find the pooler again")


@core
def test_drain(serve, make_edge):
    p = serve()
    e = make_edge(p)
    w = session(e)
    assert w.value("SELECT 1") == "1"
    p.signal(signal.SIGTERM)
    e.wait_log("takes no new sessions")
    assert w.value("SELECT 2") == "2"
    w.close()
    p.wait_exit()


@core
def test_reload_takes_a_new_certificate(serve, make_edge, certs):
    p = serve()
    e = make_edge(p)
    with session(e) as w:
        assert w.value("SELECT 1") == "1"
    p.reload()
    with session(e) as w:
        assert w.value("SELECT 1") == "1"


def test_garbage_datagrams(serve, make_edge):
    p = serve()
    e = make_edge(p)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for i in range(20000):
        data = bytearray(os.urandom(1 + i * 7 % 1400))
        if i % 3 == 0 and len(data) > 5:
            data[0] |= 0xc0
            data[1:5] = b"\0\0\0\1"
        sock.sendto(bytes(data), ("127.0.0.1", p.port))
    with session(e) as w:
        assert w.value("SELECT 1") == "1"
    assert p.alive()


def test_unknown_version_is_negotiated(serve):
    p = serve()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(5)
    first = bytes([0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]) + os.urandom(8) + \
        bytes([8]) + os.urandom(8)
    sock.sendto(first + bytes(1200 - len(first)), ("127.0.0.1", p.port))
    got = sock.recv(2000)
    assert got[0] & 0x80 and got[1:5] == b"\0\0\0\0"
    assert b"\0\0\0\1" in got[5:]
    assert len(got) < 1200


# --- run ------------------------------------------------------------------------------

@core
def test_run(serve, certs, run):
    p = serve()
    base = [p.binary, "run", "--to", "quic://localhost:%d" % p.port,
            "--ca", certs.ca, "--"]
    got = run(base + ["psql", "-U", "u_trust", "-d", "db1", "-Atc",
                      "select 40 + 2"])
    assert got.strip() == "42"
    assert subprocess.run(base + ["sh", "-c", "exit 7"]).returncode == 7
    assert subprocess.run(base + ["/nonexistent/x"],
                          stderr=subprocess.DEVNULL).returncode == 127


# --- limits ----------------------------------------------------------------------------

def test_stream_limit_of_the_pooler(serve, make_edge):
    p = serve({"quic_max_streams": 5})
    e = make_edge(p, args=["--quic_connections", "1", "--wait", "1"])
    ws = [session(e) for _ in range(5)]
    assert "session" in refusal(e)
    for w in ws:
        w.close()
    with session(e) as w:
        assert w.value("SELECT 1") == "1"


def test_connections_per_address(serve, make_edge):
    # One is that of the scenario's own edge, for the console.
    p = serve({"quic_max_connections_per_address": 2})
    first = make_edge(p)
    with session(first) as w:
        assert w.value("SELECT 1") == "1"
        second = make_edge(p)
        assert "too many connections from this address" in refusal(second)
