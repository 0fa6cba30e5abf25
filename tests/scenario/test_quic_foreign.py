# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Other QUIC implementations speak to the listener, without an edge: what
docs/quic-protocol.md says is enough to log in and run queries, by this suite's
own protocol code and by unmodified libpq."""
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
import quic_foreign
from pgwire import Wire, query

pytestmark = [pytest.mark.transports("tcp"),
              pytest.mark.parametrize("stack", quic_foreign.NAMES)]


@pytest.fixture
def p(make_pooler, target, binary, certs, stack):
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    reason = quic_foreign.why_not(stack)
    if reason:
        pytest.skip(reason)
    return make_pooler(dict(pooler_module.TRANSPORTS["quic"].options(certs),
                            workers=2))


@pytest.fixture
def bridge(p, stack, binary, session_folder, tmp_path):
    made = []

    def make(**kw):
        folder = str(tmp_path / str(len(made)))
        os.mkdir(folder)
        made.append(quic_foreign.Bridge(
            stack, binary, "127.0.0.1:%d" % p.port, p.certs.ca, folder, **kw))
        return made[-1]
    yield make
    for each in made:
        each.close()


def dial(b):
    assert b.said == "ready", b.said
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(pgwire.TIMEOUT)
    sock.connect(b.path)
    return Wire(sock, False, pgwire.TIMEOUT)


def session(b):
    w = dial(b)
    w.login("u_trust", "db1", None)
    return w


def psql(b, *args):
    env = dict(os.environ, PGHOST=b.folder, PGPORT="6432", PGUSER="u_trust",
               PGDATABASE="db1", PGSSLMODE="disable", PGGSSENCMODE="disable")
    return subprocess.Popen(["psql", "-XAt", *args], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("alpn", ["pgsql/3", "postgresql", "pgbraid/1"])
def test_sessions(bridge, p, alpn):
    b = bridge(alpn=alpn)
    ws = [session(b) for _ in range(10)]
    for i, w in enumerate(ws):
        assert w.value("SELECT %d" % i) == str(i)
    rows = [r for r in p.show("QUIC") if r["role"] == "server"]
    assert [(r["alpn"], r["streams"]) for r in rows] == [(alpn, "10")]
    for w in ws:
        w.send(pgwire.terminate())
        assert w.read_to_close() == []
    procs.wait_for(lambda: p.show("QUIC")[0]["streams"] == "0", 10,
                   "the end of the streams")


def test_unmodified_libpq(bridge):
    got = psql(bridge(), "-c", "SELECT count(*) FROM generate_series(1, 9)",
               "-c", "COPY (SELECT repeat('x', 1000) FROM "
               "generate_series(1, 3000)) TO STDOUT").communicate()[0]
    assert got == "9\n" + 3000 * ("x" * 1000 + "\n")


def test_cancel(bridge, p):
    proc = psql(bridge(), "-c", "SELECT pg_sleep(60)")
    p.wait_pool(sv_active=1)
    proc.send_signal(signal.SIGINT)
    assert "canceling statement due to user request" in \
        proc.communicate(timeout=20)[0]


def test_client_that_vanishes_is_cancelled(bridge, p):
    b = bridge()
    w = session(b)
    w.send(query("SELECT pg_sleep(60)"))
    p.wait_pool(sv_active=1)
    w.abort()
    p.wait_pool(sv_active=0)


def test_keys_are_changed(bridge):
    """Every 50 packets, or twice a second: a listener that could not follow
    would lose the connection."""
    b = bridge(key_updates=True)
    with session(b) as w:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert w.value("SELECT 1") == "1"
        w.send(query("COPY (SELECT repeat('x', 1000) FROM "
                     "generate_series(1, 5000)) TO STDOUT"))
        assert sum(m.type == "d" for m in w.read_until("Z")) == 5000


def test_ssl_request_is_refused(bridge):
    w = dial(bridge())
    w.send(struct.pack("!II", 8, 80877103))
    got = w.read_to_close()
    assert [m.type for m in got] == ["E"] and "FATAL" in got[0].body.decode()


@pytest.mark.parametrize("alpn", ["h3", "-"])
def test_alpn_is_insisted_on(bridge, p, alpn):
    said = bridge(alpn=alpn).said
    assert said.startswith("failed"), said
    p.wait_log("TLS alert 120")
