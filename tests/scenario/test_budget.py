# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The budgets of server and client connections, over all workers."""
import time

import pytest

import procs
from hammer import Sampler, hammer
from pgwire import ServerError, WireClosed, query

core = pytest.mark.core
PID = "SELECT pg_backend_pid()"
OURS = "usename LIKE 'u\\_%' ESCAPE '\\'"


def open_many(p, count, users=("u_trust",), databases=("db1",)):
    return [p.wire(users[i % len(users)], databases[i % len(databases)])
            for i in range(count)]


def close_all(wires):
    for w in wires:
        w.close()


@core
@pytest.mark.parametrize("size", [1, 3, 20])
def test_pool_size_is_never_exceeded(make_pooler, transport, cluster, size):
    p = make_pooler({"default_pool_size": size}, transport=transport)
    wires = open_many(p, 120)
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 15)
    close_all(wires)
    assert sampler.samples > 3
    assert 1 <= sampler.most <= size


@pytest.mark.slow
@pytest.mark.transports("tcp")
@pytest.mark.alone
def test_500_clients_share_seven_servers(make_pooler, transport, cluster):
    p = make_pooler({"default_pool_size": 7}, transport=transport)
    wires = open_many(p, 500)
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 20)
    close_all(wires)
    assert 1 <= sampler.most <= 7


@core
@pytest.mark.unfit("pooled", "counts PostgreSQL's processes")
def test_max_db_connections_over_users(make_pooler, transport, cluster):
    p = make_pooler({"default_pool_size": 10, "max_db_connections": 4},
                    transport=transport)
    wires = open_many(p, 60, ("u_trust", "u_other"))
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 15)
    close_all(wires)
    # A backend that was told to go may still be listed beside its heir.
    assert sampler.most <= 4 + 2


@core
@pytest.mark.unfit("pooled", "counts PostgreSQL's processes")
def test_max_user_connections_over_databases(make_pooler, transport,
                                             cluster):
    p = make_pooler({"default_pool_size": 10, "max_user_connections": 4},
                    transport=transport)
    wires = open_many(p, 60, databases=("db1", "db2"))
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 15)
    close_all(wires)
    assert sampler.most <= 4 + 2


def test_pool_size_of_the_database_line(make_pooler, transport, cluster):
    p = make_pooler({"default_pool_size": 10}, transport=transport)
    p.databases["small"] = p.server() + " dbname=db1 pool_size=2"
    p.write_ini()
    p.reload()
    wires = open_many(p, 40, databases=("small",))
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 10)
    close_all(wires)
    assert sampler.most <= 2


@pytest.mark.differs("1.18 knows no pool_size of a user")
def test_pool_size_of_the_user_line(make_pooler, transport, cluster):
    p = make_pooler({"default_pool_size": 10}, transport=transport,
                    users={"u_trust": "pool_size=2"})
    wires = open_many(p, 40)
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 10)
    close_all(wires)
    assert sampler.most <= 2


def test_max_user_connections_of_the_user_line(make_pooler, transport,
                                               cluster):
    p = make_pooler({"default_pool_size": 10}, transport=transport,
                    users={"u_trust": "max_user_connections=2"})
    wires = open_many(p, 40)
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 10)
    close_all(wires)
    assert sampler.most <= 2


@core
def test_idle_server_of_another_pool_makes_room(make_pooler, transport):
    """At max_db_connections an idle server of another user goes."""
    p = make_pooler({"default_pool_size": 5, "max_db_connections": 2},
                    transport=transport)
    with p.wire() as a, p.wire() as b:
        a.ok("BEGIN")
        b.ok("BEGIN")
        a.ok("COMMIT")
        b.ok("COMMIT")
        with p.wire("u_other") as c:
            begin = time.monotonic()
            assert c.value("SELECT 1") == "1"
            assert time.monotonic() - begin < 2
        assert a.value("SELECT 2") == "2"


@core
@pytest.mark.alone
def test_client_gets_the_servers_of_any_worker(make_pooler, transport):
    """One server, clients on every worker: each is served at once."""
    p = make_pooler({"default_pool_size": 1}, transport=transport)
    wires = open_many(p, 16)
    pids = set()
    for _ in range(5):
        for w in wires:
            begin = time.monotonic()
            pids.add(w.value(PID))
            assert time.monotonic() - begin < 0.5
    assert len(pids) == 1
    close_all(wires)


@core
@pytest.mark.alone
def test_no_client_waits_beside_an_idle_server(make_pooler, transport):
    """Half as many busy clients as servers: nobody should ever wait."""
    p = make_pooler({"default_pool_size": 8}, transport=transport)
    wires = open_many(p, 4)
    hammer(wires, 50)
    longest = hammer(wires, 300)
    close_all(wires)
    assert longest < 0.5, longest


@core
@pytest.mark.alone
def test_waiting_is_fair_under_load(make_pooler, transport):
    """No client starves: the slowest query waits for about its turn."""
    p = make_pooler({"default_pool_size": 2}, transport=transport)
    wires = open_many(p, 40)
    hammer(wires, 2)
    longest = hammer(wires, 10, "SELECT %d, pg_sleep(0.005)")
    close_all(wires)
    # 40 clients, 2 servers, 5 ms each: a turn comes every 100 ms.
    assert longest < 1.5, longest


def test_min_pool_size(make_pooler, transport):
    p = make_pooler({"min_pool_size": 3, "default_pool_size": 5},
                    transport=transport)
    with p.wire() as w:
        w.ok("SELECT 1")
        procs.wait_for(lambda: len(p.servers()) == 3, 10, "three servers")


@core
@pytest.mark.alone
def test_reserve_pool(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1, "reserve_pool_size": 1,
                     "reserve_pool_timeout": 1}, transport=transport)
    with p.wire() as a, p.wire() as b, p.wire() as c:
        a.ok("BEGIN")
        begin = time.monotonic()
        b.ok("BEGIN")
        assert time.monotonic() - begin > 0.7
        c.send(query("SELECT 3"))
        assert not c.has_data(1.5)
        a.ok("COMMIT")
        assert c.read_ready().value() == "3"
        b.ok("COMMIT")


@pytest.mark.differs("1.18 takes 0 as one")
def test_unlimited_pool(make_pooler, transport):
    p = make_pooler({"default_pool_size": 0}, transport=transport)
    wires = open_many(p, 12)
    for w in wires:
        w.ok("BEGIN")
    assert len({w.value(PID) for w in wires}) == 12
    for w in wires:
        w.ok("COMMIT")
    close_all(wires)


@pytest.mark.differs("1.18 has no such limit")
@pytest.mark.parametrize("option", ["max_user_client_connections",
                                    "max_db_client_connections"])
def test_client_limits(make_pooler, transport, option):
    p = make_pooler({option: 2}, transport=transport)
    wires = open_many(p, 2)
    with pytest.raises((ServerError, WireClosed)):
        p.wire()
    close_all(wires)

    def let_in():
        try:
            p.wire().close()
            return True
        except (ServerError, WireClosed):
            return False
    procs.wait_for(let_in, 5, "room")


def test_admin_gets_in_when_clients_fill_the_pooler(make_pooler, transport):
    p = make_pooler({"max_client_conn": 3}, transport=transport)
    wires = open_many(p, 3)
    assert p.show("LISTS")
    close_all(wires)


@core
@pytest.mark.unfit("pooled", "the pooler behind keeps its client")
def test_budget_after_servers_were_killed(make_pooler, transport, cluster):
    """A server lost in any state gives its place back."""
    p = make_pooler({"default_pool_size": 3}, transport=transport)
    wires = open_many(p, 12)
    for _ in range(5):
        p.wait_pool(sv_login=0)  # PostgreSQL does not show those by name
        cluster.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE " + OURS)
        p.wait_pool(sv_idle=0, sv_active=0)
        with Sampler(cluster, OURS) as sampler:
            hammer(wires, 10)
        assert sampler.most <= 3
    close_all(wires)


def test_budget_after_failed_logins(make_pooler, transport, cluster):
    """A server whose login fails gives its place back."""
    p = make_pooler({"default_pool_size": 2, "server_login_retry": 0,
                     "query_wait_timeout": 10}, transport=transport)
    cluster.sql("ALTER ROLE u_other NOLOGIN")
    try:
        for _ in range(6):
            with pytest.raises((ServerError, WireClosed)):
                p.wire("u_other").value("SELECT 1")
    finally:
        cluster.sql("ALTER ROLE u_other LOGIN")

    def works():
        try:
            with p.wire("u_other") as w:
                return w.value("SELECT 1") == "1"
        except (ServerError, WireClosed):
            return False
    procs.wait_for(works, 10, "recovery")
    wires = open_many(p, 10, ("u_other",))
    hammer(wires, 5)
    close_all(wires)


@pytest.mark.slow
@pytest.mark.transports("tcp")
def test_two_users_two_databases_all_limits(make_pooler, transport,
                                            cluster):
    """Every limit at once; everyone is served in the end."""
    p = make_pooler({"default_pool_size": 4, "max_db_connections": 5,
                     "max_user_connections": 6, "reserve_pool_size": 1,
                     "reserve_pool_timeout": 1}, transport=transport)
    wires = [p.wire(u, d) for _ in range(40)
             for u in ("u_trust", "u_other") for d in ("db1", "db2")]
    with Sampler(cluster, OURS) as sampler:
        hammer(wires, 15)
    close_all(wires)
    assert sampler.most <= 10 + 3


@core
def test_clients_come_and_go(make_pooler, transport, cluster):
    """Connect, one query, leave, by the hundred; the budget holds."""
    p = make_pooler({"default_pool_size": 3}, transport=transport)
    with Sampler(cluster, OURS) as sampler:
        for i in range(150):
            w = p.wire()
            if i % 3 == 0:
                w.send(query("SELECT 1"))
                w.reset()
                continue
            assert w.value("SELECT %d" % i) == str(i)
            (w.close if i % 3 == 1 else w.abort)()
    # Servers closed because a client died with a query under way.
    assert sampler.most <= 3 + 3
    p.wait_pool(cl_active=0, cl_waiting=0)


def test_memory_per_idle_client(make_pooler):
    """About the size of a client; bench/poolers measures it exactly."""
    p = make_pooler({"max_client_conn": 3000})
    first = open_many(p, 200)
    before = procs.rss_kib(p.pid)
    more = open_many(p, 1000)
    grown = procs.rss_kib(p.pid) - before
    close_all(first + more)
    assert grown < 3000, "%d KiB for 1000 idle clients" % grown
