# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Cancel requests reach their own client's query and no other."""
import os
import threading
import time

import pytest

import procs
from pgwire import PROTOCOL_3_2, WireClosed, cancel_request, query

core = pytest.mark.core


def send_cancel(address, pid, key, transport=None):
    """One CancelRequest on a fresh connection; waits for its close."""
    w = address.open(transport=transport)
    w.send(cancel_request(pid, key))
    assert w.is_closed(10), "cancel connection stays open"
    w.abort()


def wait_active(cluster, text):
    procs.wait_for(lambda: cluster.sql(
        "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query ="
        " '%s'" % text.replace("'", "''")), 10, "query in PostgreSQL")


@core
def test_cancel_own_query(pooler, cluster):
    with pooler.wire() as w:
        w.send(query("SELECT pg_sleep(61)"))
        wait_active(cluster, "SELECT pg_sleep(61)")
        begin = time.monotonic()
        send_cancel(pooler, w.pid, w.key)
        got = w.read_ready()
        assert got.sqlstate() == "57014"
        assert time.monotonic() - begin < 5
        assert w.value("SELECT 1") == "1"


@core
def test_cancel_many_times(pooler, cluster):
    """Fresh connections land on every worker."""
    with pooler.wire() as w:
        for i in range(20):
            sql = "SELECT pg_sleep(62), %d" % i
            w.send(query(sql))
            wait_active(cluster, sql)
            send_cancel(pooler, w.pid, w.key)
            assert w.read_ready().sqlstate() == "57014"


def test_cancel_extended_query(pooler, cluster):
    from pgwire import bind, execute, parse, sync
    with pooler.wire() as w:
        w.send(parse("", "SELECT pg_sleep(63)"), bind(), execute(), sync())
        wait_active(cluster, "SELECT pg_sleep(63)")
        send_cancel(pooler, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


def test_cancel_in_a_transaction_keeps_it(pooler, cluster):
    with pooler.wire() as w:
        w.ok("BEGIN")
        w.send(query("SELECT pg_sleep(64)"))
        wait_active(cluster, "SELECT pg_sleep(64)")
        send_cancel(pooler, w.pid, w.key)
        got = w.read_ready()
        assert got.sqlstate() == "57014" and got.status == "E"
        w.ok("ROLLBACK")


@core
def test_cancel_byte_by_byte(pooler, cluster):
    with pooler.wire() as w:
        w.send(query("SELECT pg_sleep(65)"))
        wait_active(cluster, "SELECT pg_sleep(65)")
        c = pooler.open(dribble=True)
        c.send(cancel_request(w.pid, w.key))
        assert w.read_ready().sqlstate() == "57014"
        assert c.is_closed()
        c.abort()


@core
def test_cancel_of_an_idle_client_does_nothing(pooler):
    with pooler.wire() as w:
        w.ok("SELECT 1")
        for _ in range(5):
            send_cancel(pooler, w.pid, w.key)
        assert w.value("SELECT 1") == "1"


@core
def test_wrong_key_does_nothing(pooler, cluster):
    with pooler.wire() as w:
        w.send(query("SELECT pg_sleep(1.5)"))
        wait_active(cluster, "SELECT pg_sleep(1.5)")
        for _ in range(10):
            send_cancel(pooler, w.pid, os.urandom(4))
            send_cancel(pooler, int.from_bytes(os.urandom(4), "big"), w.key)
        assert not w.read_ready().errors


def test_illegal_cancel_packets(pooler):
    for data in (cancel_request(1, b""), cancel_request(1, b"x"),
                 cancel_request(1, b"x" * 300),
                 cancel_request(1, b"x" * 9000)):
        w = pooler.open()
        try:
            w.send(data)
            assert w.is_closed(10)
        except WireClosed:
            pass
        w.abort()
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_client_leaves_at_every_byte_of_a_cancel(pooler):
    data = cancel_request(1, b"abcd")
    for at in range(len(data)):
        w = pooler.open()
        w.send(data[:at])
        w.abort()
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
def test_late_cancel_never_hits_the_next_client(one_server):
    """a's cancels arrive while b runs on the same server."""
    with one_server.wire() as a, one_server.wire() as b:
        stop = threading.Event()

        def fire():
            while not stop.is_set():
                send_cancel(one_server, a.pid, a.key)
        thread = threading.Thread(target=fire)
        thread.start()
        try:
            for _ in range(60):
                a.query("SELECT 1")
                got = b.query("SELECT pg_sleep(0.005)")
                assert not got.errors, got.errors
        finally:
            stop.set()
            thread.join()


@core
def test_cancel_is_prompt_while_the_pool_is_full(make_pooler, transport,
                                                 cluster):
    p = make_pooler({"default_pool_size": 2, "query_wait_timeout": 60},
                    transport=transport)
    busy = [p.wire() for _ in range(2)]
    for i, w in enumerate(busy):
        w.send(query("SELECT pg_sleep(66), %d" % i))
        wait_active(cluster, "SELECT pg_sleep(66), %d" % i)
    waiting = [p.wire() for _ in range(40)]
    for w in waiting:
        w.send(query("SELECT 1"))
    p.wait_pool(cl_waiting=40)
    for w in busy:
        begin = time.monotonic()
        send_cancel(p, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"
        assert time.monotonic() - begin < 3
    for w in waiting:
        assert w.read_ready().value() == "1"
        w.close()
    for w in busy:
        w.close()


@core
@pytest.mark.differs("keeps a waiting client")
def test_cancel_of_a_waiting_client(one_server, cluster):
    """Its query never started: it gets 57014, the holder nothing."""
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN")
        a.send(query("SELECT pg_sleep(1)"))
        wait_active(cluster, "SELECT pg_sleep(1)")
        b.send(query("SELECT 2"))
        one_server.wait_pool(cl_waiting=1)
        begin = time.monotonic()
        send_cancel(one_server, b.pid, b.key)
        got = b.read_until("ZE")
        assert got[-1].type == "E"
        assert got[-1].fields["C"] in ("57014", "08P01", "57P01")
        assert time.monotonic() - begin < 0.9
        assert not a.read_ready().errors
        a.ok("COMMIT")


@core
def test_cancel_storm(pooler, cluster):
    """Every client cancels at random; an error belongs to its owner."""
    failures, lock = [], threading.Lock()

    def work(number):
        try:
            cancelled = number % 2 == 0
            with pooler.wire() as w:
                for i in range(15):
                    w.send(query("SELECT %d, pg_sleep(0.02)" % i))
                    if cancelled:
                        send_cancel(pooler, w.pid, w.key)
                    got = w.read_ready()
                    if got.errors:
                        assert cancelled, got.errors
                        assert got.sqlstate() == "57014"
                    else:
                        assert got.rows[0][0] == b"%d" % i
        except BaseException as exc:
            with lock:
                failures.append(repr(exc))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures, failures


def test_psycopg_cancel(pooler, cluster):
    import psycopg
    with pooler.pg() as c:
        timer = threading.Thread(target=lambda: (
            wait_active(cluster, "SELECT pg_sleep(67)"), c.cancel()))
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            c.execute("SELECT pg_sleep(67)")
        timer.join()
        assert c.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.transports("tls")
@pytest.mark.pooled
def test_plain_cancel_where_tls_is_required(pooler, cluster):
    """Old libpq sends its cancel in the clear whatever the session is."""
    with pooler.wire() as w:
        w.send(query("SELECT pg_sleep(68)"))
        wait_active(cluster, "SELECT pg_sleep(68)")
        send_cancel(pooler, w.pid, w.key, "tcp")
        assert w.read_ready().sqlstate() == "57014"


@core
@pytest.mark.pooled
@pytest.mark.differs("1.18 knows no 3.2")
def test_cancel_with_a_long_key(pooler, cluster):
    with pooler.wire(version=PROTOCOL_3_2) as w:
        w.send(query("SELECT pg_sleep(69)"))
        wait_active(cluster, "SELECT pg_sleep(69)")
        send_cancel(pooler, w.pid, w.key[:-1] + bytes([w.key[-1] ^ 1]))
        send_cancel(pooler, w.pid, w.key[:4])
        assert not w.has_data(0.2)
        send_cancel(pooler, w.pid, w.key)
        assert w.read_ready().sqlstate() == "57014"


@pytest.mark.pooled
def test_keys_are_not_guessable(pooler):
    keys = set()
    for _ in range(50):
        with pooler.wire() as w:
            keys.add((w.pid, w.key))
    assert len(keys) == 50
    assert len({k for _, k in keys}) > 45
