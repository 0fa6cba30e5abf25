# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Servers reached over QUIC, and by transport= in general: a pooler near the
drivers in front of one beside PostgreSQL. The other scenarios run over such a
pair as the transport "pooled"."""
import signal
import time

import pytest

import certs as certs_module
import pooler as pooler_module
import procs
import wan as wan_module
from pgwire import ServerError, WireClosed, cancel_request, query

core = pytest.mark.core


@pytest.fixture
def pair(make_pooler, target, binary):
    """pair(near, far): the near pooler; its .far is the other."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")

    def make(near=None, far=None, transport="quic", line="", **kw):
        quic = pooler_module.TRANSPORTS["quic"]
        behind = make_pooler(dict({"default_pool_size": 40}, **(far or {})),
                             transport=quic)
        options = {"server_tls_ca_file": behind.certs.ca}
        options.update(near or {})
        out = make_pooler(
            options, {"db1": "host=localhost port=%d transport=%s %s" % (
                behind.port, transport, line)}, **kw)
        out.behind_it = behind
        return out
    return make


def streams(p):
    """SHOW QUIC of a near pooler: its connections to servers."""
    return [r for r in p.show("QUIC") if r["role"] == "client"]


@core
@pytest.mark.parametrize("way", ["quic", "tls", "tcp"])
def test_a_query_goes_through(pair, way):
    p = pair(transport=way)
    with p.wire() as w:
        assert w.value("SELECT 40 + 2") == "42"
    row = p.servers()[0]
    assert row["transport"] == way
    assert row["tls"].startswith("TLSv1.3/") == (way != "tcp")
    if way == "quic":
        assert row["quic_connection"] in {r["id"] for r in streams(p)}
        assert int(row["quic_stream"]) % 4 == 0


@core
def test_servers_share_connections(pair):
    p = pair({"default_pool_size": 30, "workers": 1, "quic_connections": 3,
              "quic_streams_per_connection": 10})
    ws = [p.wire() for _ in range(30)]
    for w in ws:
        w.ok("BEGIN")
    rows = streams(p)
    assert sorted(int(r["streams"]) for r in rows) == [10, 10, 10]
    assert {r["alpn"] for r in rows} == {"pgbraid/1"}
    servers = p.servers()
    assert len({(r["quic_connection"], r["quic_stream"])
                for r in servers}) == 30
    assert {r["quic_connection"] for r in servers} == {r["id"] for r in rows}
    for w in ws:
        w.close()


@core
def test_no_room_says_so(pair):
    p = pair({"default_pool_size": 9, "workers": 1, "quic_connections": 1,
              "quic_streams_per_connection": 2, "server_connect_timeout": 2,
              "query_wait_timeout": 5})
    ws = [p.wire() for _ in range(2)]
    for w in ws:
        w.ok("BEGIN")
    third = p.wire()
    third.send(query("SELECT 1"))
    p.wait_log("carry 2 sessions already .quic_connections, quic_streams")
    ws.pop().close()
    assert third.read_ready().types.startswith("TDC")
    third.close()
    ws.pop().close()


@core
def test_cancel(pair):
    """It travels as a stream of the same connection, and the server behind is
    free only after it."""
    p = pair({"workers": 1})
    with p.wire() as w:
        for _ in range(3):
            w.send(query("SELECT pg_sleep(30)"))
            p.behind_it.wait_pool(sv_active=1)
            time.sleep(0.1)
            before = len(streams(p))
            c = p.open()
            c.send(cancel_request(w.pid, w.key))
            assert c.is_closed(10)
            assert w.read_ready().sqlstate() == "57014"
            assert w.value("SELECT 1") == "1"
            assert len(streams(p)) == before == 1


@core
def test_a_closed_session_is_cancelled(pair):
    p = pair({"query_timeout": 1})
    with p.wire() as w:
        with pytest.raises((ServerError, WireClosed)):
            w.ok("SELECT pg_sleep(31)")
    with p.behind_it.wire() as w:
        procs.wait_for(lambda: w.value(
            "SELECT count(*) FROM pg_stat_activity WHERE query = "
            "'SELECT pg_sleep(31)' AND state = 'active'") == "0", 10,
            "the end of the query")


@core
def test_wrong_certificate_name(pair, certs):
    p = pair(far={"quic_tls_cert_file": certs.wrong_name[0],
                  "quic_tls_key_file": certs.wrong_name[1]})
    with pytest.raises(ServerError) as exc:
        p.wire()
    assert "does not match" in str(exc.value)
    p.behind_it.wait_log("QUIC handshake failed: refused by the peer")


def test_name_is_not_looked_at_with_verify_ca(pair, certs):
    p = pair(far={"quic_tls_cert_file": certs.wrong_name[0],
                  "quic_tls_key_file": certs.wrong_name[1]},
             line="sslmode=verify-ca")
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
def test_nobody_vouches_for_the_certificate(pair, certs):
    p = pair({"server_tls_ca_file": certs.other_ca})
    with pytest.raises(ServerError) as exc:
        p.wire()
    assert "issuer is unknown" in str(exc.value)


def test_require_does_not_look_at_the_certificate(pair, certs):
    p = pair({"server_tls_ca_file": certs.other_ca}, line="sslmode=require")
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
def test_tls_transport_verifies_too(pair, certs):
    p = pair({"server_tls_ca_file": certs.other_ca}, transport="tls")
    with pytest.raises(ServerError) as exc:
        p.wire()
    assert "verify failed" in str(exc.value)


@core
def test_client_certificate_as_role(pair, certs):
    p = pair({"server_tls_cert_file": certs.client[0],
              "server_tls_key_file": certs.client[1]},
             {"client_tls_sslmode": "verify-full", "auth_type": "cert"})
    with p.wire("u_cert") as w:
        assert w.value("SELECT current_user") == "u_cert"
    with pytest.raises(ServerError):
        p.wire("u_trust")


@core
@pytest.mark.parametrize("line,why", [
    ("transport=quic host=/tmp", "need host = a name or an address"),
    ("transport=tls", "need host = a name or an address"),
    ("transport=quic host=x sslmode=prefer", "need sslmode = require"),
    ("transport=tcp host=x sslmode=require", "say transport = tls"),
    ("transport=quic host=x mptcp=on", "mptcp is for the others"),
])
def test_contradictions_are_refused(make_pooler, target, line, why):
    if target != "pgbraid":
        pytest.skip("ours")
    p = make_pooler({}, {"db1": line}, start=False)
    status, text = p.check()
    assert status == 1 and why in text


@core
def test_restart_of_the_pooler_behind(pair):
    p = pair({"server_login_retry": 1})
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
        p.behind_it.proc.kill()
        p.behind_it.proc.wait()
        p.behind_it.start()

        def works():
            try:
                with p.wire() as again:
                    return again.value("SELECT 1") == "1"
            except (ServerError, WireClosed, OSError):
                return False
        procs.wait_for(works, 20, "a way to the pooler behind")
        w.abort()


@core
def test_drain_of_the_pooler_behind(pair):
    """Its idle servers go, so that it need not wait for us."""
    p = pair()
    w = p.wire()
    w.ok("BEGIN")
    with p.wire() as other:
        assert other.value("SELECT 1") == "1"
    p.behind_it.signal(signal.SIGTERM)
    p.wait_log("takes no new sessions on a connection")
    procs.wait_for(lambda: len(p.servers()) == 1, 10, "the idle one to go")
    assert w.value("SELECT 2") == "2"
    w.ok("COMMIT")
    p.behind_it.wait_exit()
    w.abort()


@core
def test_two_workers_and_one_server(pair):
    """A stream cannot move: it is given up where it is idle, and opened where
    somebody waits."""
    p = pair({"workers": 2, "default_pool_size": 1, "worker_balance": 0})
    ws = [p.wire() for _ in range(8)]
    for _ in range(3):
        for w in ws:
            assert w.value("SELECT 1") == "1"
    assert len(p.servers()) == 1
    for w in ws:
        w.close()


def test_reload_lets_old_connections_go(pair):
    p = pair({"workers": 1})
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
        old = streams(p)[0]["id"]
        p.reload()
        p.console("RECONNECT")
        procs.wait_for(lambda: not p.servers() or
                       p.servers()[0]["quic_connection"] != old, 10,
                       "the old server to go")
        assert w.value("SELECT 2") == "2"
        procs.wait_for(lambda: [r["id"] for r in streams(p)
                                if r["id"] == old] == [], 10,
                       "the old connection to go")


@core
def test_udp_is_blocked(pair):
    p = pair({"server_connect_timeout": 8},
             {"quic_listen_port": procs.free_port()})
    with pytest.raises(ServerError) as exc:
        p.wire()
    assert "UDP: Connection refused" in str(exc.value)


def test_psql_through_both(pair, tool, run):
    p = pair()
    got = run([tool("psql", "postgresql-client"), "-XAtc", "SELECT 6 * 7"],
              env=p.url_env())
    assert got.strip() == "42"


# --- over a long way ---------------------------------------------------------------

FAR = "10.1.0.2"
ONE_WAY_MS = 100


@pytest.fixture
def long_way(make_pooler, session_folder, cluster, certs, target, binary):
    """A warm pair 200 ms apart; the near one, reached by its Unix socket."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    reason = wan_module.why_not()
    if reason:
        pytest.skip(reason)
    unix = pooler_module.TRANSPORTS["unix"]
    wan = wan_module.Wan(session_folder, delay=ONE_WAY_MS)
    try:
        cert = certs_module.make_cert(certs.folder, "far", "far",
                                      alt="IP:" + FAR)
        for path in cert:
            procs.give(path)
        far = make_pooler(
            {"listen_addr": "*", "listen_port": 6432,
             "quic_listen_addr": FAR, "client_tls_cert_file": cert[0],
             "client_tls_key_file": cert[1],
             "client_tls_sslmode": "prefer"},
            {"db1": "%s dbname=db1" % unix.server(cluster)}, transport=unix,
            start=False)
        wan_module.put_inside(far, wan.far)
        far.start()
        near = make_pooler(
            {"listen_addr": "", "listen_port": 6432, "workers": 1,
             "auth_type": "scram-sha-256", "default_pool_size": 2,
             "server_tls_ca_file": certs.ca},
            {"db1": "host=%s port=6432 transport=quic" % FAR},
            transport=unix, start=False)
        wan_module.put_inside(near, wan.near)
        near.start()
        with near.wire("u_plain") as w:
            w.ok("BEGIN")
            with near.wire("u_plain") as other:
                other.ok("SELECT 1")
            w.ok("COMMIT")
        yield near
    finally:
        wan.close()


def test_first_query_of_a_session_costs_one_round_trip(long_way):
    """Login and all: it is answered here but for the query itself."""
    took = []
    for _ in range(3):
        start = time.monotonic()
        with long_way.wire("u_plain") as w:
            assert w.value("SELECT 1") == "1"
            took.append(time.monotonic() - start)
    trip = 2 * ONE_WAY_MS / 1000
    assert trip <= min(took) < 1.5 * trip, took


def test_nobody_answers_says_udp(make_pooler, session_folder, certs, target,
                                 binary):
    """A firewall that drops UDP looks like this."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    reason = wan_module.why_not()
    if reason:
        pytest.skip(reason)
    wan = wan_module.Wan(session_folder, down=1)
    try:
        near = make_pooler(
            {"listen_addr": "", "listen_port": 6432},
            {"db1": "host=%s port=6432 transport=quic" % FAR},
            transport=pooler_module.TRANSPORTS["unix"], start=False)
        wan_module.put_inside(near, wan.near)
        near.start()
        with pytest.raises(ServerError) as exc:
            near.wire()
        assert "lets no UDP through" in str(exc.value)
    finally:
        wan.close()
