# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Multipath TCP between an edge and a pooler:

    test - edge =MPTCP= far pooler - PostgreSQL
"""
import os
import re
import socket
import subprocess

import pytest

import certs as certs_module
import pgwire
import pooler as pooler_module
import procs
from test_mptcp import (FAR, MPTCP, PORT, UNIX, announce, clients_of, copy_out,
                        kill_subflow, own_path_manager, raise_limits)
from test_mptcp import only_here  # noqa: F401 (a fixture)

pytestmark = pytest.mark.pooled
URL = "mptcp://%s:%d" % (FAR, PORT)


@pytest.fixture
def make_far(make_inside, cluster):
    def make(wan, options=None, **kw):
        return make_inside(
            wan.far, dict({"listen_addr": "*", "listen_mptcp": 1},
                          **(options or {})),
            {"db1": "%s dbname=db1" % UNIX.server(cluster)}, **kw)
    return make


@pytest.fixture
def make_edge(certs):
    made = []

    def make(pooler, url, *args, **kw):
        folder = os.path.join(pooler.folder, "edge-%d" % len(made))
        made.append(pooler_module.Edge(pooler.binary, folder, url, certs, args,
                                       **kw))
        return made[-1]
    yield make
    for each in made:
        each.stop()


def session(edge):
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(pgwire.TIMEOUT)
    sock.connect(os.path.join(edge.folder, ".s.PGSQL.6432"))
    wire = pgwire.Wire(sock, False, pgwire.TIMEOUT)
    wire.login("u_trust", "db1")
    return wire


def refusal(edge):
    with pytest.raises(pgwire.ServerError) as caught:
        session(edge).close()
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("own", [0, 4])
def test_subflows_add_up(make_wan, make_far, make_edge, own):
    """10 Mbit/s per flow, and four more flows: of `ip mptcp`, or own ones."""
    wan = make_wan(flow_rate=10, delay=15)
    raise_limits(wan.far)
    if own:
        own_path_manager(wan.near)
    else:
        raise_limits(wan.near)
        announce(wan.far, FAR, range(7001, 7005))
    far = make_far(wan)
    edge = make_edge(far, URL, *(["--mptcp_subflows=4"] if own else []),
                     space=wan.near, with_net_admin=bool(own))
    with session(edge) as wire:
        wire.value("SELECT 1")
        procs.wait_for(lambda: len(clients_of(far)) == 5, 10, "subflows")
        seconds = copy_out(wire, 6)
        # One flow cannot do it in less than 4.8 seconds.
        assert seconds < 4.8 / 3.2, "%.2f s" % seconds
    edge.wait_log("LOG edge: Multipath TCP to " + URL)
    edge.wait_log("session ends: subflow 5 of 5, 10.1.0.1:.* round trip")
    if own:
        edge.wait_log("LOG edge: 4 extra subflows to " + URL)


def test_own_subflows_carry_the_first_transfer(make_wan, make_far, make_edge):
    """The client's first query waits until they are there."""
    wan = make_wan(flow_rate=20, delay=5)
    own_path_manager(wan.near)
    raise_limits(wan.far)
    far = make_far(wan)
    edge = make_edge(far, URL, "--mptcp_subflows=4", space=wan.near,
                     with_net_admin=True)
    with session(edge) as wire:
        copy_out(wire, 3)
        rows = clients_of(far)
    assert len(rows) == 5
    assert all(int(r["subflow_sent_bytes"]) > 150000 for r in rows), rows


def test_own_subflows_come_back(make_wan, make_far, make_edge):
    wan = make_wan()
    own_path_manager(wan.near)
    raise_limits(wan.far)
    far = make_far(wan)
    edge = make_edge(far, URL, "--mptcp_subflows=2", space=wan.near,
                     with_net_admin=True)
    with session(edge) as wire:
        wire.value("SELECT 1")
        edge.wait_log("LOG edge: 2 extra subflows to")
        before = {r["port"] for r in clients_of(far)}
        kill_subflow(wan.near, clients_of(far)[1]["port"])
        procs.wait_for(lambda: len(clients_of(far)) == 3 and {
            r["port"] for r in clients_of(far)} != before, 15,
            "another subflow")
        assert wire.value("SELECT 2") == "2"


def test_own_subflows_need_rights(make_wan, make_far, binary, certs):
    wan = make_wan()
    far = make_far(wan)
    for want in ("--mptcp_subflows=2: net.mptcp.p",
                 "--mptcp_subflows=2: the process lacks CAP_NET_ADMIN"):
        with pytest.raises(RuntimeError) as caught:
            pooler_module.Edge(binary, os.path.join(
                far.folder, "e%d" % len(want)), URL, certs,
                ["--mptcp_subflows=2"], space=wan.near)
        assert want in str(caught.value)
        own_path_manager(wan.near)


def test_verified_tls(make_wan, make_far, make_edge, certs):
    wan = make_wan()
    good = certs_module.make_cert(certs.folder, "far", "far", alt="IP:" + FAR)
    for path in good:
        procs.give(path)
    far = make_far(wan, {"client_tls_sslmode": "require",
                         "client_tls_cert_file": good[0],
                         "client_tls_key_file": good[1]})
    edge = make_edge(far, "mptcps://%s:%d" % (FAR, PORT), "--mptcp=require",
                     space=wan.near)
    with session(edge) as wire:
        assert wire.value("SELECT 1") == "1"
        row, = clients_of(far)
        assert row["fallback"] == "0"
        used = [r["tls"] for r in far.show("CLIENTS") if r["user"] ==
                "u_trust"]
        assert used[0].startswith("TLSv1.3")
    far.write_ini(client_tls_cert_file=certs.server[0],
                  client_tls_key_file=certs.server[1])
    far.reload()
    assert "certificate" in refusal(edge)


@pytest.mark.parametrize("how", ["middlebox", "listener"])
def test_fall_back(make_wan, make_far, make_edge, how):
    wan = make_wan(strip_mptcp=int(how == "middlebox"))
    far = make_far(wan, {"listen_mptcp": int(how == "middlebox")})
    edge = make_edge(far, URL, space=wan.near)
    must = make_edge(far, URL, "--mptcp=require", space=wan.near)
    for _ in range(3):
        with session(edge) as wire:
            assert wire.value("SELECT 7") == "7"
    told = re.findall("WARNING .*", edge.log())
    assert len(told) == 1 and told[0].endswith(
        "edge: mptcp://10.1.0.2:6432: no Multipath TCP: the pooler answers "
        "with plain TCP; it lacks listen_mptcp, or something on the way "
        "removes the option; going on with TCP")
    assert ("mptcp://10.1.0.2:6432: no Multipath TCP: the pooler answers with "
            "plain TCP") in refusal(must)
    if how == "middlebox":
        wan.tell("strip-mptcp 0")
        for each in (edge, must):
            with session(each) as wire:
                assert wire.value("SELECT 7") == "7"
            each.wait_log("LOG edge: Multipath TCP to mptcp://10.1.0.2:6432")


def test_turned_off_here(make_wan, make_far, make_edge, binary, certs):
    wan = make_wan()
    far = make_far(wan)
    wan.near.sysctl("net/mptcp/enabled", 0)
    how = "run: sysctl -w net.mptcp.enabled=1"
    edge = make_edge(far, URL, space=wan.near)
    with session(edge) as wire:
        assert wire.value("SELECT 7") == "7"
    edge.wait_log("WARNING .*no Multipath TCP: here Multipath TCP is turned "
                  "off; %s; going on with TCP" % how)
    with pytest.raises(RuntimeError) as caught:
        pooler_module.Edge(binary, os.path.join(far.folder, "e"), URL, certs,
                           ["--mptcp=require"], space=wan.near)
    assert "--mptcp=require: Multipath TCP is turned off; " + how in str(
        caught.value)


def test_path_dies(make_wan, make_far, make_edge):
    """A transfer outlives the path that it began on."""
    wan = make_wan(near=(1, 11), flow_rate=20, delay=5)
    raise_limits(wan.near)
    raise_limits(wan.far)
    wan.near.run("ip", "mptcp", "endpoint", "add", "10.1.0.11", "dev", "wan0",
                 "subflow")
    far = make_far(wan)
    edge = make_edge(far, URL, "--mptcp=require", space=wan.near)
    with session(edge) as wire:
        wire.value("SELECT 1")
        procs.wait_for(lambda: len(clients_of(far)) == 2, 10, "subflows")
        wire.send(pgwire.query(
            "COPY (SELECT repeat('x', 999) FROM generate_series(1, 5000)) TO "
            "STDOUT"))
        size = 0
        while size < 5000000:
            size += len(wire.read_until("d")[-1].body)
            if size == 1000000:
                wan.tell("block 10.1.0.1")
        wire.read_until("Z")


# On this host

def test_pgmptcp(make_pooler):
    """The variable alone turns tcp:// into mptcp://, for one command; the
    command itself speaks to a Unix socket."""
    pooler = make_pooler({"listen_mptcp": 1})
    url = "tcp://127.0.0.1:%d" % pooler.port
    code = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX);"
            "s.connect('%s/.s.PGSQL.%s' % (os.environ['PGHOST'],"
            "os.environ['PGPORT']));"
            "s.sendall(bytes.fromhex(sys.argv[1])); s.recv(1000);"
            "print(os.environ.get('PGMPTCP'), flush=True); sys.stdin.read()")
    hello = pgwire.startup({"user": "u_trust", "database": "db1"}).hex()
    for value, fallback in (("1", "0"), ("0", "1"), (None, "1")):
        env = dict(os.environ)
        env.pop("PGMPTCP", None)
        if value:
            env["PGMPTCP"] = value
        proc = subprocess.Popen(
            [pooler.binary, "run", "--to", url, "--", "/usr/bin/python3",
             "-c", code, hello], env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        try:
            seen = proc.stdout.readline().decode().strip()
            assert seen == "None"
            row, = clients_of(pooler)
            assert row["fallback"] == fallback
        finally:
            proc.stdin.close()
            proc.stdout.close()
            assert proc.wait(10) == 0
        procs.wait_for(lambda: not clients_of(pooler), 10, "its end")
    got = subprocess.run([pooler.binary, "run", "--to", url, "--", "true"],
                         env=dict(os.environ, PGMPTCP="maybe"),
                         stderr=subprocess.PIPE)
    assert got.returncode == 1 and b'PGMPTCP "maybe": 0 or 1' in got.stderr


@pytest.mark.parametrize("args,text", [
    (["--to", "quic://db", "--mptcp=on"], "--mptcp is for tcp:// and tls://"),
    (["--to", "mptcp://db", "--mptcp=off"], "does not go with mptcp://"),
    (["--to", "mptcps://db", "--mptcp=off"], "does not go with mptcps://"),
    (["--to", "tcp://db", "--mptcp=yes"], '"yes": off, on or require'),
    (["--to", "tcp://db", "--mptcp_subflows=1"], "needs Multipath TCP"),
    (["--to", "mptcp://db", "--mptcp_subflows=9"], "a number from 1 to 8"),
])
def test_contradictions(binary, args, text):
    got = subprocess.run([binary, "edge", "--listen", "1", *args],
                         stderr=subprocess.PIPE)
    assert got.returncode == 1 and text in got.stderr.decode()


def test_edge_listens_with_it(make_pooler, certs):
    pooler = make_pooler()
    port = procs.free_port()
    proc = subprocess.Popen(
        [pooler.binary, "edge", "-q", "--listen", str(port), "--listen_mptcp",
         "--to", "tcp://127.0.0.1:%d" % pooler.port])
    try:
        for protocol in (MPTCP, 0):
            def dial():
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM,
                                     protocol)
                try:
                    sock.connect(("127.0.0.1", port))
                except OSError:
                    sock.close()
                    return None
                return sock
            sock = procs.wait_for(dial, 10, "the edge")
            wire = pgwire.Wire(sock, False, pgwire.TIMEOUT)
            wire.login("u_trust", "db1")
            assert wire.value("SELECT 1") == "1"
            # MPTCP_INFO of a connection that fell back is an error.
            if protocol:
                assert len(sock.getsockopt(284, 1, 48)) > 0
            wire.close()
    finally:
        proc.terminate()
        assert proc.wait(10) == 0
