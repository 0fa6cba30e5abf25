# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What becomes of a query whose client, and of a server whose use, ends."""
import pytest

import procs
from pgwire import query

core = pytest.mark.core


def active(cluster, text):
    return int(cluster.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND"
        " query LIKE '%s%%' AND pid <> pg_backend_pid()" % text)[0][0])


@core
def test_query_of_a_client_that_left_is_carried_out(one_server, cluster):
    """As PostgreSQL, which reads the end of the input only afterwards."""
    cluster.sql("DROP TABLE IF EXISTS left_behind", "db1")
    cluster.sql("CREATE TABLE left_behind (a int)", "db1")
    cluster.sql("GRANT ALL ON left_behind TO PUBLIC", "db1")
    w = one_server.wire()
    w.send(query("INSERT INTO left_behind SELECT 1 FROM pg_sleep(0.3)"))
    procs.wait_for(lambda: active(cluster, "INSERT INTO left"), 10, "INSERT")
    w.abort()
    procs.wait_for(lambda: cluster.sql("TABLE left_behind", "db1") == [["1"]],
                   10, "the row")
    other = one_server.wire()
    assert other.value("SELECT 7") == "7"
    assert one_server.pool()["sv_idle"] + one_server.pool()["sv_active"] == 1
    other.abort()


@core
def test_query_of_which_the_end_is_missing_is_not_run(one_server, cluster):
    """Whatever is said to the server afterwards must not complete it: a
    Terminate would, "ab" becoming "aX" here."""
    cluster.sql("DROP TABLE IF EXISTS half", "db1")
    cluster.sql("CREATE TABLE half (a int)", "db1")
    cluster.sql("GRANT ALL ON half TO PUBLIC", "db1")
    w = one_server.wire()
    pid = int(w.value("SELECT pg_backend_pid()"))
    w.send(query("INSERT INTO half VALUES (1) -- ab")[:-2])
    procs.wait_for(lambda: one_server.pool()["cl_active"] == 1, 10, "its part")
    w.abort()
    procs.wait_for(lambda: not cluster.sql(
        "SELECT 1 FROM pg_stat_activity WHERE pid = %d" % pid), 10,
        "the end of its server")
    assert cluster.sql("TABLE half", "db1") == []


@core
@pytest.mark.transports("tcp")
def test_query_of_a_killed_client_is_cancelled(one_server, cluster):
    """KILL ends the query in PostgreSQL, not only the connections."""
    w = one_server.wire()
    w.send(query("SELECT pg_sleep(30), 'killed'"))
    procs.wait_for(lambda: active(cluster, "SELECT pg_sleep(30), "), 10,
                   "the query")
    with one_server.admin() as a:
        a.ok("KILL db1")
        a.ok("RESUME db1")
    procs.wait_for(lambda: not active(cluster, "SELECT pg_sleep(30), "), 10,
                   "its end")
    w.abort()


@core
@pytest.mark.transports("tcp")
def test_lifetime_zero_uses_a_server_once(make_pooler, transport):
    p = make_pooler({"server_lifetime": 0, "default_pool_size": 1},
                    transport=transport)
    w = p.wire()
    pids = {w.value("SELECT pg_backend_pid()") for _ in range(4)}
    assert len(pids) == 4
    w.abort()


@pytest.mark.transports("tcp")
def test_reserve_timeout_zero_never_uses_the_reserve(make_pooler, transport):
    p = make_pooler({"reserve_pool_timeout": 0, "reserve_pool_size": 3,
                     "default_pool_size": 1}, transport=transport)
    busy, waits = p.wire(), p.wire()
    busy.ok("BEGIN")
    waits.send(query("SELECT 1"))
    p.wait_pool(cl_waiting=1)
    assert p.pool()["sv_active"] == 1 and p.pool()["sv_login"] == 0
    busy.ok("COMMIT")
    waits.read_ready()
    for w in (busy, waits):
        w.abort()


@core
@pytest.mark.transports("tcp")
def test_reconnect_of_one_database_leaves_the_others(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1}, transport=transport)
    one, two = p.wire(database="db1"), p.wire(database="db2")
    before = [w.value("SELECT pg_backend_pid()") for w in (one, two)]
    with p.admin() as a:
        a.ok("RECONNECT db1")
    after = [w.value("SELECT pg_backend_pid()") for w in (one, two)]
    assert before[0] != after[0] and before[1] == after[1]
    for w in (one, two):
        w.abort()


@core
@pytest.mark.transports("tcp")
def test_connect_query_that_fails_is_told(make_pooler, transport, cluster):
    p = make_pooler({}, {"bad": transport.server(cluster) +
                         " dbname=db1 connect_query='SELECT nothing'"},
                    transport=transport)
    with pytest.raises(Exception) as exc:
        p.wire(database="bad")
    assert "connect_query failed" in str(exc.value)
    procs.wait_for(lambda: "connect_query failed (age" in p.log(), 5, "the log")
    assert p.log().count("WARNING pool bad/u_trust: connect_query") == 1


@core
def test_long_query_of_a_client_that_left_is_cancelled(one_server, cluster):
    """It gets some time, then its place goes to those who are there."""
    w = one_server.wire()
    w.send(query("SELECT pg_sleep(60), 'left'"))
    procs.wait_for(lambda: active(cluster, "SELECT pg_sleep(60), "), 10,
                   "the query")
    w.abort()
    other = one_server.wire()
    assert other.value("SELECT 7") == "7"
    assert not active(cluster, "SELECT pg_sleep(60), ")
    assert one_server.pool()["sv_idle"] + one_server.pool()["sv_active"] == 1
    other.abort()
