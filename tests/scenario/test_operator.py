# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What an operator's tools read, and what a file may ask for at start, as with
PgBouncer: lines of the log, counts of the console, addresses."""
import os
import socket
import time

import pytest

import pgwire

pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("its lines and columns are newer there")]

AT = r"C-0x[0-9a-f]+: db1/u_trust@"
TLS = r"TLSv1\.[23]/[A-Z0-9_-]+"


def test_login_line(make_pooler):
    p = make_pooler()
    p.wire().close()
    p.wait_log(AT + r"127\.0\.0\.1:\d+ login attempt: db=db1 user=u_trust "
               r"tls=no replication=no\n")


@pytest.mark.transports("tls")
def test_login_line_with_tls(pooler):
    pooler.wire().close()
    pooler.wait_log(r"login attempt: db=db1 user=u_trust tls=" + TLS +
                    r" replication=no\n")
    pooler.wait_log(r"S-0x[0-9a-f]+: db1/u_trust@\S+ SSL established: " +
                    TLS + r"\n")


def test_login_line_of_replication(make_pooler):
    p = make_pooler()
    with pytest.raises(pgwire.ServerError):
        p.wire(params={"replication": "database"})
    p.wait_log(r"user=u_trust tls=no replication=database\n")


def test_unix_client_is_named_by_its_process(make_pooler):
    p = make_pooler()
    p.wire(transport="unix").close()
    p.wait_log(AT + r"unix\(%d\):%d login attempt" % (os.getpid(), p.port))


def test_server_line_has_its_local_port(make_pooler, cluster):
    p = make_pooler()
    with p.wire() as w:
        port = w.ok("SELECT client_port FROM pg_stat_activity"
                    " WHERE pid = pg_backend_pid()").value()
        p.wait_log(r"new connection to server \(from 127\.0\.0\.1:%s\)\n" %
                   port)


def test_look_whether_it_listens_is_not_logged(make_pooler):
    """A load balancer does so every second."""
    p = make_pooler()
    for _ in range(3):
        p.socket().close()
    with p.socket() as sock:
        sock.sendall(b"\0\0")
    p.wait_log("closing because: client unexpected eof")
    assert p.log().count("(nodb)/(nouser)") == 1


def test_address_that_is_missing(make_pooler):
    p = make_pooler({"listen_addr": "127.0.0.1, 192.0.2.77"})
    with p.wire() as w:
        assert w.ok("SELECT 1").value() == "1"
    assert "192.0.2.77" in p.log()


def test_all_addresses_are_missing(make_pooler):
    p = make_pooler({"listen_addr": "192.0.2.77, 192.0.2.78"}, start=False)
    p.spawn()
    assert p.wait_exit() == 1


def test_used_servers_are_all_servers(make_pooler):
    p = make_pooler()
    with p.wire() as a, p.wire("u_other") as b:
        a.ok("BEGIN")
        b.ok("SELECT 1")
        lists = {r["list"]: r["items"] for r in p.show("LISTS")}
    assert lists["used_servers"] == "2"
    assert lists["free_servers"] == "0"


def test_states_of_sockets(make_pooler):
    p = make_pooler()
    with p.wire() as a, p.wire("u_other") as b:
        a.ok("BEGIN")
        b.ok("SELECT 1")
        got = {(r["user"], r["state"]) for r in p.show("SOCKETS")}
    assert got >= {("u_trust", "cl_active"), ("u_trust", "sv_active"),
                   ("u_other", "cl_active"), ("u_other", "sv_idle")}


def test_wait_for_the_first_server_counts(make_pooler):
    p = make_pooler()
    p.wire().close()
    row, = [r for r in p.show("STATS_TOTALS") if r["database"] == "db1"]
    assert int(row["wait_time"]) > 0


def test_wait_for_a_server_that_does_not_answer(make_pooler):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        p = make_pooler(databases={
            "db1": "host=127.0.0.1 port=%d" % deaf.getsockname()[1]})
        with p.open() as w:
            w.send(pgwire.startup({"user": "u_trust", "database": "db1"}))
            p.wait_pool(cl_waiting=1)
            time.sleep(0.05)
            assert p.pool()["maxwait_us"] >= 50000
            row, = [r for r in p.show("CLIENTS") if r["user"] == "u_trust"]
            assert row["state"] == "waiting"
            assert int(row["wait_us"]) >= 50000


def test_console_has_no_server_settings(make_pooler):
    p = make_pooler({"min_pool_size": 2, "reserve_pool_size": 1})
    row, = [r for r in p.show("DATABASES") if r["name"] == "pgbouncer"]
    assert row["min_pool_size"] == "0"
    assert row["reserve_pool_size"] == "0"
