# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Clients and servers that mean harm: the pooler stays up and within bounds,
and whoever else uses it notices nothing."""
import random
import socket
import struct
import threading
import time

import pytest

import fakepg
import procs
from fakepg import AUTH_OK, DONE, KEY, READY, SETTINGS, WELCOME, error, status
from pgwire import (ServerError, WireClosed, WireTimeout, bind, close,
                    copy_done, describe, execute, flush, msg, parse, query,
                    startup, sync)

core = pytest.mark.core
pytestmark = [pytest.mark.pooled, pytest.mark.transports("tcp")]


@pytest.fixture
def fake():
    out = fakepg.FakeServer(lambda conn: conn.serve(
        lambda c, text: c.send(DONE)))
    yield out
    out.close()


@pytest.fixture
def beside(make_pooler, fake):
    """A pooler with a good database, db1, and a fake one, ev."""
    out = make_pooler({"workers": 1, "server_login_retry": "0.05",
                       "server_connect_timeout": 2, "query_wait_timeout": 2,
                       "cancel_wait_timeout": 1})
    out.databases["ev"] = fake.database(pool_size=2)
    out.write_ini()
    out.reload()
    return out


def send_all(w, data):
    """Sends from a thread, so that the caller can read meanwhile."""
    def run():
        try:
            w.sock.sendall(data)
        except OSError:
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def send_until_blocked(w, block, limit):
    """Bytes that went out before nothing was taken for a second."""
    w.sock.settimeout(1)
    sent = 0
    try:
        while sent < limit:
            sent += w.sock.send(block)
    except (socket.timeout, TimeoutError):
        pass
    return sent


# --- clients ---------------------------------------------------------------

@core
def test_client_that_never_reads_is_not_read_either(make_pooler):
    """A lone Sync is answered here: nothing else would hold it back."""
    p = make_pooler({"workers": 1})
    w = p.wire()
    before = procs.rss_kib(p.pid)
    assert send_until_blocked(w, sync() * 20000, 300 << 20) < 300 << 20
    assert procs.rss_kib(p.pid) - before < 32 << 10
    w.abort()


@core
def test_answers_of_ours_in_a_transaction_wait_too(make_pooler):
    p = make_pooler({"workers": 1})
    w = p.wire()
    w.ok("BEGIN")
    w.send(parse("a", "SELECT 1"), sync())
    w.read_ready()
    block = (close("S", "a") + parse("a", "SELECT 1") + flush()) * 5000
    before = procs.rss_kib(p.pid)
    assert send_until_blocked(w, block, 200 << 20) < 200 << 20
    assert procs.rss_kib(p.pid) - before < 32 << 10
    w.abort()


@pytest.mark.alone
@pytest.mark.parametrize("tail", [
    pytest.param(lambda n: parse("", "no sql") + parse("", "") * n + sync() +
                 describe("P") * n + sync(), id="skipped"),
    pytest.param(lambda n: (query("COPY attacked FROM STDIN") + copy_done()) *
                 (n // 4) + query("no sql") * (n // 4), id="copy"),
])
def test_long_pipeline_does_not_stall_others(make_pooler, cluster, tail):
    cluster.sql("DROP TABLE IF EXISTS attacked", "db1")
    cluster.sql("CREATE TABLE attacked (a int)", "db1")
    cluster.sql("GRANT ALL ON attacked TO PUBLIC", "db1")
    p = make_pooler({"workers": 1})
    w, other = p.wire(), p.wire("u_other")
    before = cpu_seconds(p.pid)
    sender = send_all(w, query("SELECT pg_sleep(1)") + tail(80000) +
                      query("SELECT 'the end'"))
    worst = 0.0
    reader = threading.Thread(target=read_to_the_end, args=(w,), daemon=True)
    reader.start()
    while reader.is_alive():
        start = time.monotonic()
        assert other.value("SELECT 1") == "1"
        worst = max(worst, time.monotonic() - start)
        reader.join(0.02)
    assert worst < 2.5
    assert cpu_seconds(p.pid) - before < 3
    sender.join(5)
    w.abort()
    other.abort()


def read_to_the_end(w):
    try:
        while True:
            got = w.read(60)
            if got.type == "D" and b"the end" in got.body:
                return
    except (WireClosed, WireTimeout):
        return


def cpu_seconds(pid):
    ticks = 0
    for each in procs.children(pid):
        with open("/proc/%d/stat" % each) as src:
            fields = src.read().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


@pytest.mark.slow
def test_prepared_statements_of_a_client_have_a_bound(make_pooler):
    p = make_pooler({"workers": 1})
    w = p.wire()
    with pytest.raises((ServerError, WireClosed)):
        for at in range(0, 140000, 1000):
            w.send(*(parse("n%d" % i, "SELECT 1")
                     for i in range(at, at + 1000)), sync())
            bad = w.read_ready(60).errors
            assert not bad, bad
    assert at >= 131000
    w.abort()
    assert p.wire().value("SELECT 2") == "2"


@core
def test_log_lines_cannot_be_forged(make_pooler):
    p = make_pooler({"log_connections": 1})
    for start in ({"user": "x\nforged-1", "database": "db1\r\nforged-2"},
                  {"user": "u_trust", "database": "db1", "a\nforged-3": "x"}):
        w = p.open()
        w.send(startup(start))
        w.read_to_close()
    p.wait_log("forged-3")
    lines = p.log().splitlines()
    assert not [line for line in lines if line.startswith("forged")]


@core
def test_startup_packets_of_every_shape(make_pooler):
    p = make_pooler({"workers": 1, "auth_type": "scram-sha-256"})
    rnd = random.Random(3)
    codes = [196608, 196609, 196610, 131072, 262144, 80877102, 80877103,
             80877104, 206607]
    for i in range(400):
        kind, noise = i % 5, rnd.randbytes(rnd.randrange(120))
        if kind == 0:
            data = noise
        elif kind == 1:
            data = struct.pack("!II", rnd.randrange(4, 100),
                               rnd.choice(codes)) + noise
        elif kind == 2:
            data = struct.pack("!II", 8, 80877103) + noise
        elif kind == 3:
            data = b"\x16\x03\x01" + noise
        else:
            data = startup({"user": "u_scram", "database": "db1"}) + \
                msg("p", b"SCRAM-SHA-256\0" + struct.pack(
                    "!i", rnd.choice([-2, -1, 0, 7, 2**31 - 1])) + noise)
        sock = p.socket()
        sock.sendall(data)
        if i % 3 == 0:
            sock.shutdown(socket.SHUT_WR)
        sock.close()
    assert p.wire("u_scram").value("SELECT 1") == "1"


# --- servers ---------------------------------------------------------------

def says(data):
    """A server that says this to whoever starts, and no more."""
    def script(conn):
        if conn.start():
            conn.send(data)
            conn.swallow()
    return script


def answers(data):
    """A server that answers each query with this."""
    return lambda conn: conn.serve(lambda c, text: c.send(data))


def at_sync(data):
    return lambda conn: conn.serve(lambda c, text: c.send(DONE),
                                   lambda: data)


def scram_end(final):
    """Goes through SCRAM up to its last message."""
    def script(conn):
        if not conn.start():
            return
        conn.send(msg("R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0"))
        _, body = conn.read()
        nonce = body[body.index(b"r=") + 2:]
        conn.send(msg("R", struct.pack("!I", 11) + b"r=" + nonce +
                      b"abc,s=QUJDREVGR0g=,i=4096"))
        conn.read()
        conn.send(final)
        conn.swallow()
    return script


LOGINS = {
    "length 3": says(b"R\0\0\0\3"),
    "length 2 GB": says(b"R\x7f\xff\xff\xff"),
    "length -1": says(b"S\xff\xff\xff\xff"),
    "ready at once": says(READY),
    "key first": says(KEY + READY),
    "key of 2": says(AUTH_OK + SETTINGS + msg("K", b"ab") + READY),
    "key of 261": says(AUTH_OK + SETTINGS + msg("K", b"x" * 261) + READY),
    "negotiates": says(msg("v", struct.pack("!II", 196608, 0)) + WELCOME),
    "auth twice": says(AUTH_OK + AUTH_OK + SETTINGS + KEY + READY),
    "auth empty": says(msg("R")),
    "sasl without end": says(msg("R", struct.pack("!I", 10) + b"SCRAM")),
    "sasl out of turn": says(msg("R", struct.pack("!I", 11) + b"r=a")),
    "md5 of 3": says(msg("R", struct.pack("!I", 5) + b"abc")),
    "error without end": says(msg("E", b"SERROR")),
    "error of nothing": says(msg("E")),
    "error of 60 kB": says(error("FATAL", "X" * 1000, "y" * 60000)),
    "wrong signature": scram_end(
        msg("R", struct.pack("!I", 12) + b"v=" + b"A" * 43 + b"=") + WELCOME),
    "no signature": scram_end(WELCOME),
    "sasl again": scram_end(
        msg("R", struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0")),
}


@core
def test_broken_logins_of_servers(beside, fake):
    other = beside.wire("u_other")
    for name, script in LOGINS.items():
        fake.script = script
        before = fake.n_accepted
        w = beside.open(timeout=5)
        with pytest.raises(ServerError):
            w.login("u_trust", "ev")
            pytest.fail("login with a server of: " + name)
        w.abort()
        assert other.value("SELECT 1") == "1", name
        # The retry is due: the next one reaches the server again.
        procs.wait_for(lambda: fake.n_accepted > before, 5, name)
        time.sleep(0.1)
    other.abort()


@core
def test_odd_settings_of_a_server(beside, fake):
    fake.script = lambda conn: (
        conn.start(),
        conn.send(AUTH_OK, msg("S", b"abc"), msg("S"), msg("S", b"a\0b"),
                  SETTINGS, *(status("n%d" % i, "v" * i)
                              for i in range(3000)), KEY, READY),
        conn.swallow())
    w = beside.open(timeout=10)
    w.login("u_trust", "ev")
    assert len(w.params) < 200
    w.abort()


REPLIES = [
    b"D\0\0\0\3", b"D\x7f\xff\xff\xff", b"D\xff\xff\xff\xff",
    DONE + READY, msg("C", b"x\0") + msg("Z", b"X"), msg("Z", b"II"),
    msg("Z"), msg("G", b"\0\0\0"), msg("W", b"\0\0\0"), msg("1"), AUTH_OK,
    KEY + DONE, msg("v") + DONE, b"\xff\0\0\0\4", msg("E", b"xx") + READY,
    msg("E") + READY, msg("S", b"abc") + msg("S") + DONE,
    status("application_name", "x" * 100000) + DONE,
    status("session_authorization", "postgres") + DONE,
    msg("C") + READY, msg("C", b"DEALLOCATE ALL") + READY,
    b"D\0\0\1\0abc", error("FATAL"), error(), error() + READY,
    msg("C", b"x\0") + msg("Z", b"T"),
    msg("N", b"M" + b"x" * 300000 + b"\0\0") + DONE,
    error(text="x" * 300000) + READY,
]


@core
@pytest.mark.parametrize("make", [answers, at_sync])
def test_broken_replies_of_servers(beside, fake, make):
    other = beside.wire("u_other")
    batch = (parse("a", "SELECT 1") + bind("", "a") + describe("P") +
             execute() + close("S", "a") + sync())
    for data in REPLIES:
        fake.script = make(data)
        w = beside.open(timeout=0.3)
        try:
            w.login("u_trust", "ev")
            w.send(query("SELECT 1"), batch, batch)
            w.read_to_close()
        except (ServerError, WireClosed, WireTimeout, ValueError):
            pass
        w.abort()
        assert other.value("SELECT 1") == "1", data[:40]
        with beside.admin() as a:
            a.ok("KILL ev")
            a.ok("RESUME ev")
    other.abort()


@core
def test_dead_server_is_tried_again_though_nobody_waits(beside, fake):
    """Whoever found it dead has left: the next ones try anew."""
    with beside.wire(database="ev") as w:
        w.ok("SELECT 1")
    good, fake.script = fake.script, says(READY)
    with beside.admin() as a:
        a.ok("RECONNECT ev")
    procs.wait_for(lambda: not beside.servers("ev"), 5, "its last server")
    w = beside.wire(database="ev")
    w.send(query("SELECT 1"))
    beside.wait_log("unexpected message during login")
    w.abort()
    beside.wait_pool(database="ev", cl_waiting=0)
    time.sleep(0.1)
    fake.script = good
    w = beside.wire(database="ev")
    assert w.query("SELECT 1").status == "I"
    w.abort()


@core
@pytest.mark.parametrize("how", ["reset", "abort", "half"])
def test_client_that_left_amid_a_long_result_frees_its_server(make_pooler,
                                                              how):
    """What it did not read is no reason to stop reading its server."""
    p = make_pooler({"workers": 1, "default_pool_size": 1})
    w = p.wire()
    w.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 100000)"))
    w.read_type("T")
    time.sleep(0.3)
    if how == "half":
        w.sock.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        w.abort()
    else:
        getattr(w, how)()
    with p.wire() as other:
        assert other.value("SELECT 1") == "1"


@core
def test_flood_of_rows_that_nobody_reads(beside, fake):
    def endless(conn, text):
        while True:
            conn.send(msg("D", b"\0\1\0\0\0\4abcd") * 5000)
    fake.script = lambda conn: conn.serve(endless)
    w = beside.wire(database="ev")
    before = procs.rss_kib(beside.pid)
    w.send(query("SELECT 1"))
    other = beside.wire("u_other")
    for _ in range(20):
        assert other.value("SELECT 1") == "1"
        time.sleep(0.05)
    assert procs.rss_kib(beside.pid) - before < 32 << 10
    other.abort()
    w.abort()
    fake.close()
    procs.wait_for(lambda: not beside.servers("ev"), 5, "the server's end")


@core
def test_strangers_cannot_make_records_pile_up(make_pooler, cluster):
    """Pools of databases that do not exist are given up soon."""
    cluster.sql("GRANT SELECT ON pg_authid TO authuser")
    line = "host=127.0.0.1 port=%d" % cluster.port
    p = make_pooler({"auth_type": "scram-sha-256", "auth_user": "authuser",
                     "auth_query": "SELECT rolname, rolpassword FROM"
                     " pg_authid WHERE rolname = $1",
                     "server_login_retry": "0.01"},
                    {"db1": line, "*": line})
    for i in range(20):
        w = p.open()
        w.send(startup({"user": "nobody", "database": "none%d" % i}))
        assert w.read().type == "E"
        w.abort()
    procs.wait_for(lambda: not [r for r in p.show("POOLS")
                                if r["database"].startswith("none")],
                   12, "the end of the pools")
