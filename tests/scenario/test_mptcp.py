# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Multipath TCP: between two poolers over an emulated WAN, and on this host.

The test talks to the near pooler by its Unix socket; that one reaches the far
pooler over the WAN, and the far one PostgreSQL by its Unix socket:

    test - near =MPTCP= far - PostgreSQL
"""
import os
import re
import socket
import time

import pytest

import pgwire
import pooler as pooler_module
import procs
import wan as wan_module

pytestmark = pytest.mark.pooled

UNIX = pooler_module.TRANSPORTS["unix"]
FAR = "10.1.0.2"
PORT = 6432
MPTCP = 262


@pytest.fixture(autouse=True)
def only_here(target):
    if target != "pgbraid":
        pytest.skip("Multipath TCP is pgbraid's")
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP).close()
    except OSError as exc:
        pytest.skip("no Multipath TCP in this kernel: %s" % exc)


def lead_to_far(mptcp, more=""):
    return {"db1": "host=%s port=%d mptcp=%s %s" % (FAR, PORT, mptcp, more)}


@pytest.fixture
def make_chain(make_inside, cluster):
    """(near, far) over a WAN."""

    def make(wan, mptcp="on", near=None, far=None, more="", admin=False,
             far_mptcp=1):
        there = make_inside(
            wan.far, dict(far or {}, listen_addr="*",
                          listen_mptcp=far_mptcp),
            {"db1": "%s dbname=db1" % UNIX.server(cluster)}, admin=admin)
        here = make_inside(
            wan.near, dict({"listen_addr": "", "server_tls_sslmode":
                            "disable"}, **(near or {})),
            lead_to_far(mptcp, more), admin=admin)
        return here, there
    return make


def copy_out(wire, mb):
    """Seconds that a COPY of so many megabytes took."""
    start = time.monotonic()
    wire.send(pgwire.query(
        "COPY (SELECT repeat('x', 999) FROM generate_series(1, %d)) TO "
        "STDOUT" % (1000 * mb)))
    size = 0
    for msg in wire.read_until("Z", timeout=120):
        size += len(msg.body) if msg.type == "d" else 0
    assert size == 1000000 * mb
    return time.monotonic() - start


def servers_of(pooler):
    return [r for r in pooler.show("MPTCP") if r["type"] == "S"]


def raise_limits(space, subflows=8, accepted=8):
    space.run("ip", "mptcp", "limits", "set", "subflows", str(subflows),
              "add_addr_accepted", str(accepted))


def announce(space, address, ports):
    for port in ports:
        space.run("ip", "mptcp", "endpoint", "add", address, "dev", "wan0",
                  "port", str(port), "signal")


# The published experiment: 10 Mbit/s per flow, four extra endpoints.

@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 15])
def test_endpoints_add_up(make_wan, make_chain, delay):
    wan = make_wan(flow_rate=10, delay=delay)
    raise_limits(wan.near)
    raise_limits(wan.far)
    announce(wan.far, FAR, range(7001, 7005))
    near, _ = make_chain(wan, mptcp="require")
    with near.wire() as wire:
        wire.value("SELECT 1")
        procs.wait_for(lambda: len(servers_of(near)) == 5, 10, "subflows")
        seconds = copy_out(wire, 6)
        rows = servers_of(near)
    # One flow cannot do it in less than 4.8 seconds.
    assert seconds < 4.8 / 3.2, "%.2f s" % seconds
    assert all(int(r["subflow_received_bytes"]) > 400000 for r in rows)
    assert {r["fallback"] for r in rows} == {"0"}
    assert len({r["token"] for r in rows}) == 1
    assert sorted(int(r["port"]) for r in rows) == [PORT, 7001, 7002, 7003,
                                                    7004]
    assert int(rows[0]["received_bytes"]) > 6000000
    assert int(rows[0]["sent_bytes"]) < 10000
    assert all(int(r["rtt_us"]) >= 2000 * delay for r in rows)
    assert {r["backup"] for r in rows} == {"0"}


@pytest.mark.slow
def test_one_flow_without(make_wan, make_chain):
    """What the figures above compare with."""
    wan = make_wan(flow_rate=10, delay=0)
    near, _ = make_chain(wan, mptcp="off")
    with near.wire() as wire:
        assert copy_out(wire, 3) > 2.3
        assert servers_of(near) == []


def own_path_manager(space):
    if space.has_sysctl("net/mptcp/path_manager"):
        space.sysctl("net/mptcp/path_manager", "userspace")
    elif space.has_sysctl("net/mptcp/pm_type"):
        space.sysctl("net/mptcp/pm_type", 1)
    else:
        pytest.skip("no userspace path manager in this kernel")


@pytest.mark.slow
def test_subflows_of_our_own(make_wan, make_chain):
    wan = make_wan(flow_rate=10, delay=15)
    own_path_manager(wan.near)
    raise_limits(wan.far)
    near, far = make_chain(wan, mptcp="require", near={"mptcp_subflows": 4},
                           admin=True)
    with near.wire() as wire:
        wire.value("SELECT 1")
        procs.wait_for(lambda: len(servers_of(near)) == 5, 10, "subflows")
        seconds = copy_out(wire, 6)
        rows = servers_of(near)
        there = [r for r in far.show("MPTCP") if r["type"] == "C"]
    assert seconds < 4.8 / 3.2, "%.2f s" % seconds
    assert {int(r["port"]) for r in rows} == {PORT}
    assert len({r["local_port"] for r in rows}) == 5
    assert len(there) == 5
    near.wait_log("4 extra subflows to 10.1.0.2:6432")


def kill_subflow(space, port):
    """Resets the connection from this local port."""
    got = space.run("ss", "-K", "-t", "sport", "=", ":%s" % port, check=False)
    if ":" + port not in got.stdout:
        pytest.skip("this kernel has no ss -K (CONFIG_INET_DIAG_DESTROY)")


@pytest.mark.parametrize("which", [0, 1])
def test_broken_subflow_comes_back(make_wan, make_chain, which):
    """Even when it is the first one."""
    wan = make_wan()
    own_path_manager(wan.near)
    raise_limits(wan.far)
    near, _ = make_chain(wan, near={"mptcp_subflows": 2}, admin=True)
    with near.wire() as wire:
        wire.value("SELECT 1")
        near.wait_log("LOG 2 extra subflows to")
        before = {r["local_port"] for r in servers_of(near)}
        gone = servers_of(near)[which]["local_port"]
        kill_subflow(wan.near, gone)

        def is_back():
            ports = {r["local_port"] for r in servers_of(near)}
            return gone not in ports and len(ports) == len(before)
        procs.wait_for(is_back, 15, "another subflow")
        assert wire.value("SELECT 2") == "2"
    near.wait_log("WARNING 1 of 2 extra subflows to 10.1.0.2:6432: the others "
                  "broke; they are asked for again")
    assert len(re.findall("LOG 2 extra subflows", near.log())) <= 2


def test_subflows_are_refused(make_wan, make_chain):
    wan = make_wan()
    own_path_manager(wan.near)
    raise_limits(wan.far, subflows=1)
    near, _ = make_chain(wan, near={"mptcp_subflows": 4}, admin=True)
    with near.wire() as wire:
        wire.value("SELECT 1")
        near.wait_log("WARNING 1 of 4 extra subflows to 10.1.0.2:6432: the "
                      "server takes no more.*ip mptcp limits set")
        assert len(servers_of(near)) == 2
    assert len(re.findall("extra subflows", near.log())) == 1


@pytest.mark.parametrize("far_subflows", [0, 1])
def test_peers_join_beside_our_path_manager(make_wan, make_chain,
                                            far_subflows):
    """The sysctl on the far side keeps peers from adding subflows, unless
    somebody listens to its events, as pgbraid does with mptcp_subflows."""
    wan = make_wan()
    own_path_manager(wan.near)
    own_path_manager(wan.far)
    near, _ = make_chain(wan, near={"mptcp_subflows": 2},
                         far={"mptcp_subflows": far_subflows}, admin=True)
    with near.wire() as wire:
        wire.value("SELECT 1")
        near.wait_log("LOG 2 extra subflows to" if far_subflows else
                      "WARNING 0 of 2 extra subflows to")


def expect_no_start(pooler, text):
    pooler.spawn()
    assert pooler.wait_exit() == 1
    assert text in pooler.log()
    pooler.proc = None


def test_subflows_need_rights(make_wan, make_inside):
    wan = make_wan()
    options = {"listen_addr": "", "mptcp_subflows": 4}
    pooler = make_inside(wan.near, options, {}, start=False)
    expect_no_start(pooler, "mptcp_subflows = 4: net.mptcp.p")
    own_path_manager(wan.near)
    pooler = make_inside(wan.near, options, {}, start=False)
    expect_no_start(pooler, "mptcp_subflows = 4: the process lacks "
                    "CAP_NET_ADMIN")


# Where there is none

def test_turned_off(make_wan, make_inside, cluster):
    wan = make_wan()
    wan.near.sysctl("net/mptcp/enabled", 0)
    how = "sysctl -w net.mptcp.enabled=1"
    pooler = make_inside(wan.near, {"listen_addr": "127.0.0.1",
                                    "listen_mptcp": 1}, {}, start=False)
    expect_no_start(pooler, "listen_mptcp = 1: Multipath TCP is turned off; "
                    "run: " + how)
    pooler = make_inside(wan.near, {"listen_addr": ""},
                         lead_to_far("require"), start=False)
    expect_no_start(pooler, "[databases] db1: mptcp = require: Multipath TCP "
                    "is turned off; run: " + how)


def test_near_side_lacks_it(make_wan, make_chain):
    wan = make_wan()
    wan.near.sysctl("net/mptcp/enabled", 0)
    near, _ = make_chain(wan)
    with near.wire() as wire:
        assert wire.value("SELECT 7") == "7"
        row, = servers_of(near)
        assert (row["fallback"], row["token"]) == ("1", None)
    near.wait_log("no Multipath TCP to 10.1.0.2:6432: Multipath TCP is turned "
                  "off; run: sysctl -w net.mptcp.enabled=1; going on with TCP")


@pytest.mark.parametrize("how", ["middlebox", "listener"])
def test_fall_back(make_wan, make_chain, how):
    wan = make_wan(strip_mptcp=int(how == "middlebox"))
    near, _ = make_chain(wan, far_mptcp=int(how == "middlebox"),
                         near={"default_pool_size": 3})
    wires = [near.wire() for _ in range(3)]
    for wire in wires:
        wire.ok("BEGIN")
    rows = servers_of(near)
    assert len(rows) == 3
    assert {r["fallback"] for r in rows} == {"1"}
    assert {r["addr"] for r in rows} == {FAR}
    for wire in wires:
        wire.ok("COMMIT")
        wire.close()
    assert len(re.findall("no Multipath TCP to", near.log())) == 1
    if how == "middlebox":
        assert wan.stats()["ab"]["stripped"] > 0


def test_state_changes_are_told(make_wan, make_chain):
    wan = make_wan()
    near, _ = make_chain(wan)
    for strip in (0, 1, 1, 0):
        wan.tell("strip-mptcp %d" % strip)
        near.console("RECONNECT")
        with near.wire() as wire:
            wire.value("SELECT 1")
    told = re.findall("(no Multipath|LOG Multipath) TCP to", near.log())
    assert told == ["LOG Multipath", "no Multipath", "LOG Multipath"]


def test_require(make_wan, make_chain):
    wan = make_wan(strip_mptcp=1)
    near, _ = make_chain(wan, mptcp="require")
    with pytest.raises(pgwire.ServerError) as caught:
        with near.wire() as wire:
            wire.value("SELECT 1")
    assert ("mptcp = require: no Multipath TCP to 10.1.0.2:6432: the server "
            "answers with plain TCP") in str(caught.value)
    wan.tell("strip-mptcp 0")

    def works():
        try:
            with near.wire() as wire:
                return wire.value("SELECT 1") == "1"
        except (pgwire.ServerError, pgwire.WireClosed):
            return False
    procs.wait_for(works, 15, "the way is free again")


# Paths that die

@pytest.mark.slow
@pytest.mark.parametrize("dies", ["10.1.0.1", "10.1.0.11"])
def test_path_dies(make_wan, make_chain, dies):
    wan = make_wan(near=(1, 11), flow_rate=10, delay=5)
    raise_limits(wan.near)
    raise_limits(wan.far)
    wan.near.run("ip", "mptcp", "endpoint", "add", "10.1.0.11", "dev", "wan0",
                 "subflow")
    near, _ = make_chain(wan, mptcp="require")
    with near.wire() as wire:
        wire.value("SELECT 1")
        procs.wait_for(lambda: len(servers_of(near)) == 2, 10, "subflows")
        wire.send(pgwire.query(
            "COPY (SELECT repeat('x', 999) FROM generate_series(1, 6000)) "
            "TO STDOUT"))
        size, worst, last, is_dead = 0, 0, None, False
        while True:
            msg = wire.read(30)
            now = time.monotonic()
            worst = max(worst, now - (last or now))
            last = now
            size += len(msg.body) if msg.type == "d" else 0
            if size > 1500000 and not is_dead:
                wan.tell("block " + dies)
                is_dead = True
            if msg.type == "Z":
                break
        assert size == 6000000
        assert worst < 5, "stalled for %.2f s" % worst


def test_tls(make_wan, make_chain, certs):
    wan = make_wan(delay=2)
    raise_limits(wan.near)
    raise_limits(wan.far)
    announce(wan.far, FAR, (7001, 7002))
    near, _ = make_chain(
        wan, mptcp="require",
        far={"client_tls_sslmode": "require",
             "client_tls_cert_file": certs.server[0],
             "client_tls_key_file": certs.server[1]},
        near={"server_tls_sslmode": "verify-ca",
              "server_tls_ca_file": certs.ca})
    with near.wire() as wire:
        copy_out(wire, 5)
        rows = servers_of(near)
        assert len(rows) == 3
        assert near.show("SERVERS")[0]["tls"].startswith("TLSv1.3")


# Listeners on this host

def mptcp_wire(pooler):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
    sock.settimeout(pgwire.TIMEOUT)
    sock.connect((pooler.host, pooler.port))
    wire = pgwire.Wire(sock)
    wire.login("u_trust", "db1")
    return wire


def clients_of(pooler):
    return [r for r in pooler.show("MPTCP")
            if r["type"] == "C" and r["database"] == "db1"]


def test_listener_takes_both(make_pooler):
    pooler = make_pooler({"listen_mptcp": 1})
    with pooler.wire() as wire:
        wire.value("SELECT 1")
        row, = clients_of(pooler)
        assert (row["fallback"], row["token"], row["subflows"]) == (
            "1", None, "1")
        assert row["backend_pid"] is None
    with mptcp_wire(pooler) as wire:
        wire.ok("BEGIN")
        pid = wire.value("SELECT pg_backend_pid()")
        row, = clients_of(pooler)
        assert (row["fallback"], row["subflows"]) == ("0", "1")
        assert re.fullmatch("[0-9a-f]{8}", row["token"])
        assert row["token"] != "00000000"
        assert row["backend_pid"] == pid
        assert int(row["received_bytes"]) > 20
        wire.ok("COMMIT")


def test_many_short_connections(make_pooler):
    pooler = make_pooler({"listen_mptcp": 1, "workers": 4,
                          "log_connections": 0, "log_disconnections": 0})
    for i in range(1000):
        with mptcp_wire(pooler) as wire:
            if i % 10 == 0:
                wire.value("SELECT 1")
    assert pooler.alive()


@pytest.mark.slow
def test_joins_reach_every_worker(make_wan, make_inside, cluster):
    """Joins are found by their token, whichever listener gets them."""
    wan = make_wan()
    raise_limits(wan.near)
    raise_limits(wan.far)
    announce(wan.far, FAR, (7001, 7002))
    far = make_inside(wan.far, {"listen_addr": "*", "listen_mptcp": 1,
                                "workers": 4},
                      {"db1": "%s dbname=db1" % UNIX.server(cluster)})
    wires = []
    for _ in range(40):
        wires.append(pgwire.Wire(wan.near.connect(FAR, PORT, MPTCP)))
        wires[-1].login("u_trust", "db1")

    def all_joined():
        return len(clients_of(far)) == 40 * 3
    procs.wait_for(all_joined, 20, "three subflows for each client")
    used = [int(r["clients"]) for r in far.show("WORKERS")]
    assert len([n for n in used if n > 0]) >= 3, used
    for wire in wires:
        wire.close()


def test_sql_view(make_pooler, cluster, tool, run):
    if not cluster.sql("SELECT 1 FROM pg_available_extensions "
                       "WHERE name = 'dblink'"):
        pytest.skip("dblink is missing (package postgresql-contrib)")
    pooler = make_pooler({"listen_mptcp": 1, "default_pool_size": 2})
    here = os.path.dirname(os.path.abspath(__file__))
    file = os.path.join(here, "..", "..", "sql", "pgbraid_stat_mptcp.sql")
    with open(file) as src:
        text = src.read()
    values = {"console_host": pooler.host, "console_port": str(pooler.port),
              "console_user": pooler_module.STATS[0],
              "console_password": pooler_module.STATS[1]}
    argv = [tool("psql", "postgresql-client"), "-X", "-q", "-h",
            cluster.sockdir, "-p", str(cluster.port), "-U", "postgres", "-d",
            "db2", "-f", pooler.file("view.sql", text)]
    for key, value in values.items():
        argv += ["-v", "%s=%s" % (key, value)]
    run(argv)
    run(argv)  # again does no harm
    sql = ("SELECT side, mptcp, subflows, token IS NOT NULL, rtt_ms > 0, "
           "usename FROM pgbraid_stat_mptcp WHERE pid = %s")
    try:
        with mptcp_wire(pooler) as wire:
            wire.ok("BEGIN")
            pid = wire.value("SELECT pg_backend_pid()")
            want = [["client", "t", "1", "t", "t", "u_trust"]]
            assert cluster.sql(sql % pid, "db2") == want
            for user, rows in (("u_trust", want), ("u_other", [])):
                with cluster.wire(user, "db2") as other:
                    got = other.ok(sql % pid)
                    assert [[v.decode() for v in r]
                            for r in got.rows] == rows
            wire.ok("COMMIT")
    finally:
        cluster.sql("DROP VIEW pgbraid_stat_mptcp; DROP FUNCTION "
                    "pgbraid_mptcp_rows(); DROP EXTENSION dblink CASCADE",
                    "db2")
