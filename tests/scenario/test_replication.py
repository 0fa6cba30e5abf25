# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Replication connections: one server each, from login to end."""
import os
import signal
import subprocess

import pytest

import procs
from pgwire import query, startup

core = pytest.mark.core
USER = "u_trust"


@pytest.fixture
def replicating(make_pooler, transport, cluster):
    cluster.sql("ALTER ROLE u_trust REPLICATION")
    where = transport.server(cluster)
    return make_pooler(
        {"default_pool_size": 3, "auth_type": "trust"},
        {"db1": where + " dbname=db1",
         "replication": where + " dbname=db1"},
        transport=transport)


def physical(p):
    return p.wire(USER, "replication", params={"replication": "true"})


@core
def test_identify_system(replicating, cluster):
    with physical(replicating) as w:
        got = w.ok("IDENTIFY_SYSTEM").rows[0]
        direct = cluster.sql("SELECT system_identifier FROM"
                             " pg_control_system()")[0][0]
        assert got[0].decode() == direct


@core
def test_each_has_a_server_of_its_own(replicating):
    a, b = physical(replicating), physical(replicating)
    row = replicating.pool("replication", USER)
    assert row["sv_active"] == 2 and row["cl_active"] == 2
    kinds = {r["replication"] for r in replicating.show("CLIENTS")
             if r["database"] == "replication"}
    assert kinds == {"physical"}
    a.abort()
    replicating.wait_pool(database="replication", user=USER, sv_active=1,
                          sv_idle=0)
    b.ok("IDENTIFY_SYSTEM")
    b.abort()


@core
def test_they_count_in_the_pool(replicating):
    some = [physical(replicating) for _ in range(3)]
    late = replicating.open()
    late.send(startup({"user": USER, "database": "replication",
                       "replication": "true"}))
    replicating.wait_pool(database="replication", user=USER, cl_waiting=1)
    some.pop().abort()
    late.read_until("Z")
    late.ok("IDENTIFY_SYSTEM")
    for w in some + [late]:
        w.abort()


def test_settings_of_the_client_reach_the_server(replicating):
    w = replicating.wire(USER, "db1", params={
        "replication": "database", "options": "-c statement_timeout=4321"})
    assert w.value("SHOW statement_timeout") == "4321ms"
    w.abort()


def test_pause_does_not_wait_for_it(replicating):
    w = physical(replicating)
    with replicating.admin() as a:
        a.ok("PAUSE")
        w.ok("IDENTIFY_SYSTEM")
        a.ok("RESUME")
    w.abort()


def test_server_that_refuses_is_told(make_pooler, transport, cluster):
    where = transport.server(cluster)
    p = make_pooler({"auth_type": "trust"},
                    {"db1": where + " dbname=db1"}, transport=transport)
    with pytest.raises(Exception) as exc:
        p.wire("u_scram", "db1", params={"replication": "database"})
    assert "replication" in str(exc.value) or "WAL" in str(exc.value)
    with p.wire() as w:  # others of the pool are not disturbed
        assert w.value("SELECT 1") == "1"


@core
def test_basebackup(replicating, tool, run, tmp_path):
    program = tool("pg_basebackup", "postgresql-client")
    env = replicating.url_env(USER, "replication")
    out = str(tmp_path / "backup")
    run([program, "-D", out, "-X", "stream", "-c", "fast"], env=env)
    assert os.path.exists(os.path.join(out, "PG_VERSION"))


def test_receivewal(replicating, tool, tmp_path, cluster):
    program = tool("pg_receivewal", "postgresql-client")
    env = replicating.url_env(USER, "replication")
    proc = subprocess.Popen([program, "-D", str(tmp_path), "-s", "1"],
                            env=env, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        replicating.wait_pool(database="replication", user=USER, sv_active=1)
        cluster.sql("SELECT pg_switch_wal()")
        procs.wait_for(lambda: [n for n in os.listdir(tmp_path)
                                if not n.endswith(".partial")], 30,
                       "a whole segment")
    finally:
        proc.send_signal(signal.SIGINT)
        proc.communicate(timeout=30)
    assert proc.returncode == 0


def test_streaming_goes_both_ways(replicating, cluster):
    """START_REPLICATION: WAL comes, status goes, CopyDone ends it."""
    w = physical(replicating)
    at = w.ok("IDENTIFY_SYSTEM").rows[0][2].decode()
    w.send(query("START_REPLICATION PHYSICAL %s" % at))
    assert w.read_until("W")
    cluster.sql("CREATE TABLE IF NOT EXISTS streamed (a int)", "db1")
    assert w.read_until("d")
    w.send(b"c\0\0\0\4")
    w.read_until("Z")
    assert w.ok("IDENTIFY_SYSTEM").rows
    w.abort()
