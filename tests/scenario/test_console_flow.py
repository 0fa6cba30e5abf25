# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Console sessions that do not read, and commands that are canceled."""
import re
import threading

import pytest

import procs
from pgwire import cancel_request, query

core = pytest.mark.core
pytestmark = pytest.mark.pooled
READY = b"Z\0\0\0\5I"


@core
def test_replies_do_not_pile_up(make_pooler, transport):
    """Pipelined commands of a client that does not read its replies."""
    p = make_pooler(transport=transport)
    w = p.admin()
    one = len(w.ok("SHOW CONFIG").rows)
    assert one > 100
    count = 4000  # some 40 MB of replies
    before = procs.rss_kib(p.pid)
    sender = threading.Thread(
        target=lambda: w.send(query("SHOW CONFIG") * count))
    sender.start()
    most = 0
    for _ in range(20):
        p.show("POOLS")  # others are served
        most = max(most, procs.rss_kib(p.pid))
    seen, tail, total = 0, b"", 0
    while seen < count:
        data = w.sock.recv(1 << 20)
        assert data
        total += len(data)
        seen += (tail + data).count(READY)
        tail = data[-len(READY) + 1:]
    sender.join()
    assert seen == count
    assert total > 20 << 20
    assert is_sanitized(p) or most - before < 24 << 10
    w.close()


def is_sanitized(p):
    """Such builds keep freed memory for a while."""
    with open(p.binary, "rb") as src:
        return re.search(rb"__[at]san_init", src.read()) is not None


def cancel(p, w):
    with p.open() as c:
        c.send(cancel_request(w.pid, w.key))
        assert c.is_closed()


@core
@pytest.mark.differs("1.18 does not take it")
@pytest.mark.parametrize("command", ["PAUSE", "PAUSE db1"])
def test_cancel_of_pause(make_pooler, transport, command):
    p = make_pooler(transport=transport)
    with p.wire() as busy, p.wire() as other, p.admin() as a:
        busy.ok("BEGIN")
        a.send(query(command))
        assert not a.has_data(0.1)
        other.send(query("SELECT 1"))
        assert not other.has_data(0.1)
        cancel(p, a)
        assert a.read_ready().sqlstate() == "57014"
        # It is undone.
        assert other.read_ready().value() == "1"
        assert a.query("RESUME").error
        busy.ok("COMMIT")


@pytest.mark.differs("1.18 does not take it")
def test_cancel_of_wait_close(make_pooler, transport):
    p = make_pooler(transport=transport)
    with p.wire() as busy, p.admin() as a:
        busy.ok("BEGIN")
        a.ok("RECONNECT")
        a.send(query("WAIT_CLOSE"))
        assert not a.has_data(0.1)
        cancel(p, a)
        assert a.read_ready().sqlstate() == "57014"
        assert a.ok("SHOW VERSION").rows
        busy.ok("COMMIT")


@pytest.mark.differs("1.18 does not take it")
def test_cancel_of_an_idle_console(pooler):
    with pooler.admin() as a:
        for _ in range(3):
            cancel(pooler, a)
        assert a.ok("SHOW VERSION").rows
