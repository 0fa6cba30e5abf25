# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Who holds a server, for how long, and what is left when it goes back."""
import socket
import threading
import time

import pytest

import procs
from pgwire import (ServerError, WireClosed, bind, copy_data, execute, flush,
                    parse, query, startup, sync)

core = pytest.mark.core
PID = "SELECT pg_backend_pid()"


def ended(cluster, pid):
    """Whether this backend is gone."""
    return not cluster.sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s"
                           % pid)


# --- transaction mode -------------------------------------------------------

@core
def test_clients_share_one_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        assert a.value(PID) == b.value(PID) == a.value(PID)


@core
def test_transaction_holds_the_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN")
        b.send(query("SELECT 'b'"))
        one_server.wait_pool(cl_waiting=1)
        assert a.value("SELECT 'a'") == "a"
        assert not b.has_data()
        a.ok("COMMIT")
        assert b.read_ready().value() == "b"


def test_failed_transaction_holds_the_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN")
        a.query("SELECT 1/0")
        b.send(query("SELECT 'b'"))
        one_server.wait_pool(cl_waiting=1)
        assert not b.has_data()
        a.ok("ROLLBACK")
        assert b.read_ready().value() == "b"


@core
def test_unsynced_batch_holds_the_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.send(parse("", "SELECT 1"), bind(), execute(), flush())
        a.read_until("C")
        b.send(query("SELECT 'b'"))
        one_server.wait_pool(cl_waiting=1)
        assert not b.has_data()
        a.send(sync())
        assert a.read_ready().types == "Z"
        assert b.read_ready().value() == "b"


def test_copy_in_holds_the_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN; CREATE TEMP TABLE hold (a int) ON COMMIT DROP")
        a.send(query("COPY hold FROM STDIN"))
        a.read_until("G")
        b.send(query("SELECT 'b'"))
        one_server.wait_pool(cl_waiting=1)
        assert not b.has_data()
        a.send(copy_data(b"1\n"), b"c\0\0\0\4")
        assert a.read_ready().tags == ["COPY 1"]
        a.ok("COMMIT")
        assert b.read_ready().value() == "b"


@core
def test_waiters_are_served_in_order(one_server, cluster):
    """Over all workers, give or take a few milliseconds."""
    with one_server.wire() as a:
        a.ok("BEGIN")
        waiting, order = [], []
        for i in range(6):
            w = one_server.wire()
            w.send(query("SELECT clock_timestamp(), pg_sleep(0.005)"))
            waiting.append(w)
            one_server.wait_pool(cl_waiting=i + 1)
            cluster.sql("SELECT pg_sleep(0.03)")
        a.ok("COMMIT")
        for w in waiting:
            order.append(w.read_ready().value())
            w.close()
        assert order == sorted(order)


def test_pipeline_waiting_for_a_server(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN")
        b.send(*[query("SELECT %d" % i) for i in range(100)])
        one_server.wait_pool(cl_waiting=1)
        a.ok("COMMIT")
        assert [b.read_ready().value() for _ in range(100)] == [
            str(i) for i in range(100)]


def test_server_is_not_held_between_pipelined_transactions(one_server):
    """While one client streams transactions, another gets its turn."""
    with one_server.wire() as a, one_server.wire() as b:
        stop = threading.Event()

        def stream():
            while not stop.is_set():
                a.send(query("SELECT 1"), query("SELECT 2"))
                a.read_ready()
                a.read_ready()
        thread = threading.Thread(target=stream)
        thread.start()
        try:
            for i in range(20):
                assert b.value("SELECT %d" % i) == str(i)
        finally:
            stop.set()
            thread.join()


# --- session mode -----------------------------------------------------------

@pytest.fixture
def session(make_pooler, transport):
    return make_pooler({"pool_mode": "session", "default_pool_size": 1},
                       transport=transport)


@core
def test_session_keeps_its_server(session):
    with session.wire() as a, session.wire() as b:
        pid = a.value(PID)
        b.send(query(PID))
        session.wait_pool(cl_waiting=1)
        assert a.value(PID) == pid
        assert not b.has_data()
        a.close()
        assert b.read_ready().value() == pid


@core
def test_session_is_cleaned_by_discard_all(session):
    with session.wire() as a:
        a.ok("SET work_mem = '77kB'; CREATE TEMP TABLE leftover (a int);"
             "PREPARE stmt AS SELECT 1; LISTEN ch;"
             "SELECT pg_advisory_lock(5)")
        pid = a.value(PID)
    with session.wire() as b:
        assert b.value(PID) == pid
        assert b.value("SHOW work_mem") != "77kB"
        assert b.query("SELECT * FROM leftover").errors
        assert b.value("SELECT count(*) FROM pg_prepared_statements") == "0"
        assert b.value("SELECT count(*) FROM pg_listening_channels()") == "0"
        assert b.value("SELECT count(*) FROM pg_locks WHERE locktype ="
                       " 'advisory'") == "0"


def test_session_ends_inside_a_transaction(session):
    with session.wire() as a:
        a.ok("BEGIN; CREATE TABLE never_committed (a int)")
    with session.wire() as b:
        assert b.query("TABLE never_committed").sqlstate() == "42P01"
        assert b.query("SELECT 1").status == "I"


def test_reset_query_of_the_operator(make_pooler, transport):
    p = make_pooler({"pool_mode": "session", "default_pool_size": 1,
                     "server_reset_query": "SET work_mem = '123kB'"},
                    transport=transport)
    with p.wire() as a:
        pid = a.value(PID)
    with p.wire() as b:
        if b.value(PID) == pid:
            assert b.value("SHOW work_mem") == "123kB"


def test_failing_reset_query_costs_the_server(make_pooler, transport):
    p = make_pooler({"pool_mode": "session", "default_pool_size": 1,
                     "server_reset_query": "SELECT 1/0"},
                    transport=transport)
    for _ in range(3):
        with p.wire() as a:
            assert a.value("SELECT 1") == "1"


def test_reset_query_always(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1, "server_reset_query_always": 1,
                     "server_reset_query": "RESET work_mem"},
                    transport=transport)
    with p.wire() as a:
        a.ok("SET work_mem = '99kB'")
        assert a.value("SHOW work_mem") != "99kB"


# --- statement mode ---------------------------------------------------------

@pytest.fixture
def statement(make_pooler, transport):
    return make_pooler({"pool_mode": "statement", "default_pool_size": 1},
                       transport=transport)


@core
def test_statement_mode_works_statement_by_statement(statement):
    with statement.wire() as a, statement.wire() as b:
        assert a.value("SELECT 1") == "1"
        assert b.extended("SELECT 2").value() == "2"
        assert a.extended("SELECT 3").value() == "3"


@core
def test_statement_mode_refuses_transactions(statement):
    a = statement.wire()
    a.send(query("BEGIN"))
    got = a.read_to_close()
    assert got and any(m.type == "E" for m in got)
    a.abort()
    with statement.wire() as b:
        assert b.query("SELECT 1").status == "I"


def test_pool_mode_per_database(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1}, transport=transport)
    p.databases["sess"] = p.server() + " dbname=db1 pool_mode=session"
    p.write_ini()
    p.reload()
    with p.wire(database="sess") as a, p.wire(database="sess") as b:
        a.ok("SELECT 1")
        b.send(query("SELECT 2"))
        p.wait_pool(database="sess", cl_waiting=1)
        a.close()
        assert b.read_ready().value() == "2"


def test_pool_mode_per_user(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1}, transport=transport,
                    users={"u_other": "pool_mode=session"})
    with p.wire("u_other") as a, p.wire("u_other") as b:
        a.ok("SELECT 1")
        b.send(query("SELECT 2"))
        p.wait_pool(user="u_other", cl_waiting=1)
        a.close()
        assert b.read_ready().value() == "2"


# --- clients that die ---------------------------------------------------------

BATCH = b"".join([parse("", "SELECT $1::text"), bind("", "", ["abc"]),
                  execute(), sync()])


@core
@pytest.mark.parametrize("data", [query("SELECT 'abcdef'"), BATCH],
                         ids=["simple", "extended"])
def test_client_dies_at_every_byte(one_server, data):
    p = one_server
    for at in range(1, len(data) + 1):
        w = p.wire()
        w.send(data[:at])
        (w.reset if at % 2 else w.abort)()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
        assert w.query("SELECT 2").status == "I"
        assert w.extended("SELECT 3").value() == "3"
    p.wait_pool(cl_waiting=0, sv_active=0)


@core
def test_client_dies_inside_a_transaction(one_server, cluster):
    a = one_server.wire()
    a.ok("BEGIN; CREATE TABLE never_there (a int)")
    a.reset()
    with one_server.wire() as b:
        assert b.query("TABLE never_there").sqlstate() == "42P01"
        assert b.query("SELECT 1").status == "I"
    assert cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE state"
                       " LIKE 'idle in trans%' AND usename = 'u_trust'") \
        == [["0"]]


@core
def test_client_dies_during_a_query(one_server):
    a = one_server.wire()
    a.send(query("SELECT pg_sleep(0.3)"))
    one_server.wait_pool(sv_active=1)
    a.reset()
    with one_server.wire() as b:
        assert b.ok("SELECT 'mine'").rows == [[b"mine"]]


def test_client_dies_with_a_reply_unread(one_server):
    a = one_server.wire()
    a.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
    a.read()
    a.reset()
    with one_server.wire() as b:
        assert b.ok("SELECT 'mine'").rows == [[b"mine"]]


def test_client_dies_in_an_unsynced_batch(one_server):
    for parts in ((parse("", "SELECT 1"), flush()),
                  (parse("", "SELECT 1"), bind(), flush()),
                  (parse("", "SELECT 1"), bind(), execute(), flush()),
                  (parse("", "SELECT 1/0"), bind(), execute(), flush())):
        a = one_server.wire()
        a.send(*parts)
        a.read()
        a.reset()
        with one_server.wire() as b:
            assert b.ok("SELECT 'mine'").rows == [[b"mine"]]
            assert b.extended("SELECT 'too'").value() == "too"


@pytest.mark.differs("does not look at clients that wait")
def test_client_dies_while_waiting(one_server):
    with one_server.wire() as a:
        a.ok("BEGIN")
        waiting = [one_server.wire() for _ in range(5)]
        for w in waiting:
            w.send(query("SELECT 1"))
        one_server.wait_pool(cl_waiting=5)
        for w in waiting[1:]:
            w.reset()
        one_server.wait_pool(cl_waiting=1)
        a.ok("COMMIT")
        assert waiting[0].read_ready().value() == "1"
        waiting[0].close()


def test_half_closed_client_gets_its_reply_or_the_end(pooler):
    """shutdown(SHUT_WR) after a query: nobody is left hanging."""
    w = pooler.wire(transport="unix")
    w.send(query("SELECT 1"))
    w.sock.shutdown(socket.SHUT_WR)
    assert w.is_closed()
    w.abort()


# --- time-outs ----------------------------------------------------------------

def fatal(w, timeout=10):
    got = [m for m in w.read_to_close(timeout) if m.type == "E"]
    w.abort()
    assert got, "closed without an error"
    return got[-1].fields


@core
def test_query_wait_timeout(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1, "query_wait_timeout": 1},
                    transport=transport)
    with p.wire() as a:
        a.ok("BEGIN")
        b = p.wire()
        b.send(query("SELECT 1"))
        err = fatal(b)
        assert err["S"] == "FATAL" and "query_wait_timeout" in err["M"]
        assert a.value("SELECT 2") == "2"


@core
def test_query_timeout(make_pooler, transport):
    p = make_pooler({"query_timeout": 1}, transport=transport)
    a = p.wire()
    a.send(query("SELECT pg_sleep(20)"))
    assert fatal(a)["M"] in ("query timeout", "query_timeout")
    with p.wire() as b:
        assert b.value("SELECT 1") == "1"


@core
def test_idle_transaction_timeout(make_pooler, transport):
    p = make_pooler({"idle_transaction_timeout": 1}, transport=transport)
    a = p.wire()
    a.ok("BEGIN")
    assert "idle" in fatal(a)["M"]


@pytest.mark.differs("1.18 has no transaction_timeout")
def test_transaction_timeout(make_pooler, transport):
    p = make_pooler({"transaction_timeout": 1}, transport=transport)
    a = p.wire()
    a.ok("BEGIN")
    deadline = time.monotonic() + 10
    with pytest.raises(WireClosed):
        while time.monotonic() < deadline:
            a.query("SELECT pg_sleep(0.05)")
    a.abort()


@core
def test_client_idle_timeout(make_pooler, transport):
    p = make_pooler({"client_idle_timeout": 1}, transport=transport)
    a = p.wire()
    a.ok("SELECT 1")
    assert "client_idle_timeout" in fatal(a)["M"]


def test_client_idle_timeout_spares_the_busy(make_pooler, transport):
    p = make_pooler({"client_idle_timeout": 1}, transport=transport)
    with p.wire() as a:
        assert a.ok("SELECT pg_sleep(2)").tags == ["SELECT 1"]


def test_server_idle_timeout(make_pooler, transport, cluster):
    p = make_pooler({"server_idle_timeout": 1}, transport=transport)
    with p.wire() as a:
        pid = a.value(PID)
        procs.wait_for(lambda: ended(cluster, pid), 10, "server's end")
        assert a.value("SELECT 1") == "1"


def test_server_lifetime(make_pooler, transport, cluster):
    p = make_pooler({"server_lifetime": 1}, transport=transport)
    with p.wire() as a:
        pid = a.value(PID)
        procs.wait_for(lambda: ended(cluster, pid), 10, "server's end")
        assert a.value("SELECT 1") == "1"


def test_server_lifetime_spares_a_transaction(make_pooler, transport):
    p = make_pooler({"server_lifetime": 1}, transport=transport)
    with p.wire() as a:
        a.ok("BEGIN")
        pid = a.value(PID)
        a.ok("SELECT pg_sleep(2)")
        assert a.value(PID) == pid
        a.ok("COMMIT")


def test_server_check_query(make_pooler, transport):
    """A server that fails its check is replaced, unseen."""
    p = make_pooler({"server_check_delay": 0, "default_pool_size": 1,
                     "server_check_query": "SELECT 1"},
                    transport=transport)
    with p.wire() as a:
        for i in range(20):
            assert a.value("SELECT %d" % i) == str(i)


# --- dead and slow servers ------------------------------------------------------

@core
def test_postgresql_restarts(make_pooler, transport, cluster):
    p = make_pooler(transport=transport)
    with p.wire() as a:
        assert a.value("SELECT 1") == "1"
        cluster.restart()
        procs.wait_for(lambda: retry(a, p), 15, "recovery")


def retry(a, p):
    try:
        with p.wire() as w:
            return w.value("SELECT 1") == "1"
    except (ServerError, WireClosed, AssertionError):
        return False


def test_postgresql_down_is_told_to_the_client(make_pooler, transport):
    dead = procs.free_port()
    p = make_pooler({"server_connect_timeout": 2, "query_wait_timeout": 3},
                    {"db1": "host=127.0.0.1 port=%d dbname=db1" % dead},
                    transport=transport)
    with pytest.raises((ServerError, WireClosed)):
        w = p.wire()
        got = w.query("SELECT 1")
        assert got.errors
        raise WireClosed


@core
@pytest.mark.differs("keeps the clients that left while waiting")
def test_silent_host_costs_other_databases_nothing(make_pooler, transport):
    """One database's host accepts and never speaks."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        p = make_pooler({"server_connect_timeout": 3}, transport=transport)
        p.databases["silent"] = "host=127.0.0.1 port=%d dbname=x" % (
            silent.getsockname()[1])
        p.write_ini()
        p.reload()
        stuck = []
        for _ in range(10):
            w = p.open()
            w.send(startup({"user": "u_trust", "database": "silent"}))
            stuck.append(w)
        with p.wire() as w:
            begin = time.monotonic()
            for i in range(100):
                assert w.value("SELECT %d" % i) == str(i)
            assert time.monotonic() - begin < 3
        for w in stuck:
            w.abort()


def test_server_that_talks_nonsense(make_pooler, transport):
    with socket.socket() as fake:
        fake.bind(("127.0.0.1", 0))
        fake.listen(50)
        p = make_pooler({"query_wait_timeout": 2,
                         "server_tls_sslmode": "disable"},
                        transport=transport)
        p.databases["fake"] = "host=127.0.0.1 port=%d" % (
            fake.getsockname()[1])
        p.write_ini()
        p.reload()
        stop = threading.Event()

        def serve():
            fake.settimeout(0.2)
            while not stop.is_set():
                try:
                    peer, _ = fake.accept()
                except OSError:
                    continue
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.close()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises((ServerError, WireClosed)):
                p.wire(database="fake").value("SELECT 1")
            with p.wire() as w:
                assert w.value("SELECT 1") == "1"
        finally:
            stop.set()
            thread.join()


def test_host_list_skips_the_dead_host(make_pooler):
    p = make_pooler(databases={})
    p.databases["db1"] = "host=127.0.0.99,127.0.0.1 port=%d dbname=db1" % (
        p.cluster.port)
    p.write_ini()
    p.reload()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


@pytest.mark.skipif(not procs.has_ipv6(), reason="no IPv6 loopback")
def test_ipv6_on_both_sides(make_pooler):
    p = make_pooler({"listen_addr": "127.0.0.1, ::1"}, databases={})
    p.databases["db1"] = "host=::1 port=%d dbname=db1" % p.cluster.port
    p.write_ini()
    p.reload()
    p.host = "::1"
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
        assert w.value("SELECT host(inet_client_addr())") == "::1"


def test_host_by_name(make_pooler):
    p = make_pooler(databases={})
    p.databases["db1"] = "host=localhost port=%d dbname=db1" % p.cluster.port
    p.write_ini()
    p.reload()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_unknown_host_name_is_an_error(make_pooler):
    p = make_pooler({"query_wait_timeout": 3})
    p.databases["lost"] = "host=no-such-host.invalid dbname=db1"
    p.write_ini()
    p.reload()
    with pytest.raises((ServerError, WireClosed)):
        p.wire(database="lost").value("SELECT 1")
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_abstract_unix_socket(make_pooler):
    p = make_pooler(start=False)
    name = "pgbraid-test-%d" % p.port
    p.write_ini(unix_socket_dir="@" + name)
    p.spawn()

    def connect():
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(20)
        try:
            sock.connect("\0%s/.s.PGSQL.%d" % (name, p.port))
            return sock
        except OSError:
            sock.close()
            return None
    from pgwire import Wire
    sock = procs.wait_for(connect, 10, "abstract socket")
    w = Wire(sock)
    w.login("u_trust", "db1")
    assert w.value("SELECT 1") == "1"
    w.close()


def test_wildcard_database(make_pooler, transport):
    p = make_pooler(databases={}, transport=transport)
    p.databases["*"] = p.server()
    p.write_ini()
    p.reload()
    for name in ("db1", "db2"):
        with p.wire(database=name) as w:
            assert w.value("SELECT current_database()") == name


def test_forced_user(make_pooler, transport):
    p = make_pooler(transport=transport)
    p.databases["forced"] = (p.server() + " dbname=db1 user=u_scram"
                             " password=scramword")
    p.write_ini()
    p.reload()
    with p.wire("u_other", "forced") as w:
        assert w.value("SELECT current_user") == "u_scram"


def test_connect_query(make_pooler, transport):
    p = make_pooler(transport=transport)
    p.databases["cq"] = (p.server() + " dbname=db1 connect_query='SET"
                         " work_mem = ''321kB'''")
    p.write_ini()
    p.reload()
    with p.wire(database="cq") as w:
        assert w.value("SHOW work_mem") == "321kB"


def test_application_name_add_host(make_pooler):
    p = make_pooler({"application_name_add_host": 1})
    with p.wire(params={"application_name": "app"}) as w:
        got = w.value("SHOW application_name")
        assert got.startswith("app - 127.0.0.1:"), got


def test_disable_pqexec(make_pooler, transport):
    p = make_pooler({"disable_pqexec": 1}, transport=transport)
    with p.wire() as w:
        assert w.extended("SELECT 1").value() == "1"
    w = p.wire()
    w.send(query("SELECT 1"))
    assert any(m.type == "E" for m in w.read_to_close())
    w.abort()
