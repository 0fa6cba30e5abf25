# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A crash under load, over every transport: the sockets live on, the UDP ones
too, and sessions come back at once."""
import os
import re
import signal
import socket
import threading
import time

import pytest

import pooler as pooler_module
import procs
from pgwire import ServerError, WireClosed, WireTimeout, query
from test_supervisor import crash, forget_crashes

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("the supervisor is ours")]


@pytest.fixture
def p(make_pooler, target, binary):
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("this build has no QUIC")
    return make_pooler({"supervisor": 1, "workers": 2},
                       transport=pooler_module.TRANSPORTS["quic"])


def is_served(p, transport=None):
    try:
        with p.wire(transport=transport) as w:
            return w.value("SELECT 1") == "1"
    except (WireClosed, ServerError, OSError, WireTimeout):
        return False


@core
@pytest.mark.alone
def test_quic_is_back_within_a_second(p):
    """Its connection gets a Stateless Reset, and the edge opens another."""
    forget_crashes(p)
    with p.wire() as w:
        w.ok("SELECT 1")
        crash(p)
        begin = time.monotonic()
        procs.wait_for(lambda: is_served(p), 10, "a session over QUIC")
        assert time.monotonic() - begin < 1
        with pytest.raises((WireClosed, ServerError, OSError)):
            w.ok("SELECT 1")


@core
@pytest.mark.alone
def test_who_waits_for_an_answer_learns_of_it(p, cluster):
    """All it sent was acknowledged: what it hears is the answer to a packet
    that keeps the connection alive, a small one."""
    forget_crashes(p)
    with p.wire() as w:
        w.send(query("SELECT pg_sleep(60)"))
        procs.wait_for(lambda: p.pool()["sv_active"] == 1, 10, "the query")
        crash(p)
        with pytest.raises((WireClosed, ServerError, ConnectionError)):
            w.read(12)
    # PostgreSQL would notice when the query ends; others count connections.
    cluster.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE query = 'SELECT pg_sleep(60)'")


class Load:
    """Sessions of a few queries, one after the other; a crash ends those that
    are inside, and nobody is turned away."""

    def __init__(self, p):
        self.p = p
        self.stop = threading.Event()
        self.failures = []
        self.count = {"tcp": 0, "unix": 0, "quic": 0}

    def connects(self, transport):
        """TCP and Unix: always. Behind an edge that is its own matter."""
        if transport == "quic":
            return
        try:
            self.p.socket(transport).close()
        except OSError as exc:
            self.failures.append("%s: connect: %r" % (transport, exc))
            self.stop.set()

    def work(self, transport):
        i = 0
        while not self.stop.is_set():
            self.connects(transport)
            try:
                with self.p.wire(transport=transport) as w:
                    for _ in range(5):
                        i += 1
                        assert w.value("SELECT %d" % i) == "%d" % i
                        self.count[transport] += 1
            except (WireClosed, ConnectionResetError, BrokenPipeError):
                continue  # it was inside
            except ServerError as exc:
                if transport != "quic":  # the edge says why
                    self.failures.append("%s: %r" % (transport, exc))
            except BaseException as exc:
                self.failures.append("%s: %r" % (transport, exc))
                return

    def has_moved_on(self, before):
        return all(self.count[t] > before[t] for t in self.count)


@core
@pytest.mark.alone
def test_segv_under_load(p):
    forget_crashes(p)
    p.edge()
    load = Load(p)
    threads = [threading.Thread(target=load.work, args=(t,))
               for t in load.count for _ in range(3)]
    for t in threads:
        t.start()
    took = []
    try:
        procs.wait_for(lambda: load.has_moved_on(dict.fromkeys(load.count,
                                                               20)), 20,
                       "load")
        for _ in range(3):
            before = dict(load.count)
            begin = time.monotonic()
            crash(p, signal.SIGSEGV)
            took.append(time.monotonic() - begin)
            before = dict(load.count)
            procs.wait_for(lambda: load.has_moved_on(before) or
                           load.failures, 40,
                           lambda: "sessions over each transport: %r" %
                           load.count)
    finally:
        load.stop.set()
        for t in threads:
            t.join(30)
    assert not load.failures, load.failures[:3]
    # The first follows at once; then the pauses grow.
    assert took[0] < 1, took
    ends = re.compile(r"ended (by signal|with status) \d+")  # sanitizers exit
    procs.wait_for(lambda: len(ends.findall(p.log())) >= 3, 5, "the log")
    assert os.path.exists("/proc/%d" % p.pid)


# --- as a daemon, under a service manager ---------------------------------

@core
def test_a_daemon_has_one_by_default(make_pooler):
    """With -d nobody else would start it again."""
    p = make_pooler(start=False, args=["-d"])
    path = os.path.join(p.folder, "pid")
    p.write_ini(pidfile=path, logfile=os.path.join(p.folder, "own.log"))
    p.spawn()
    assert p.proc.wait(20) == 0
    p.proc = None
    with open(path) as src:
        parent = int(src.read())
    try:
        child = procs.children(parent)[1]
        os.kill(child, signal.SIGKILL)
        procs.wait_for(lambda: [c for c in procs.children(parent)[1:]
                                if c != child], 10, "another child")
        with p.wire() as w:
            assert w.value("SELECT 1") == "1"
        with open(path) as src:
            assert int(src.read()) == parent
    finally:
        os.kill(parent, signal.SIGINT)
    procs.wait_for(lambda: not os.path.exists(path), 10, "the end")


class Manager:
    """What systemd hears."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(self.path)
        os.chmod(self.path, 0o777)

    def wait(self, word, timeout=10):
        deadline = time.monotonic() + timeout
        while True:
            self.sock.settimeout(max(deadline - time.monotonic(), 0.01))
            if word in self.sock.recv(4096):
                return


@core
@pytest.mark.parametrize("supervisor", [0, 1])
def test_watchdog(make_pooler, monkeypatch, supervisor):
    """It is fed while the workers answer, and only then."""
    p = make_pooler({"supervisor": supervisor, "workers": 2}, start=False)
    manager = Manager(p.folder)
    monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
    monkeypatch.setenv("WATCHDOG_USEC", "600000")
    p.start()
    try:
        manager.wait(b"READY=1")
    except socket.timeout:
        pytest.skip("this build has no libsystemd")
    for _ in range(3):
        manager.wait(b"WATCHDOG=1", 5)
    p.stop()
    manager.wait(b"STOPPING=1")
