# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A serving process that dies is followed by another on the same sockets."""
import os
import signal
import socket
import threading
import time

import pytest

import procs
from pgwire import ServerError, WireClosed, WireTimeout

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("the supervisor is ours")]


def serving(p):
    """The process that serves; None between two."""
    found = procs.children(p.pid)[1:]
    return found[0] if found else None


def other_than(p, old):
    def check():
        now = serving(p)
        return now if now not in (None, old) else None
    return procs.wait_for(check, 10, "another serving process")


def crash(p, number=signal.SIGSEGV):
    old = serving(p)
    os.kill(old, number)
    return other_than(p, old)


@pytest.fixture
def p(make_pooler):
    return make_pooler({"supervisor": 1})


def works(p):
    with p.wire() as w:
        return w.value("SELECT 1") == "1"


def forget_crashes(p):
    """The crashes were wanted: the log may tell of them."""
    p.verify_log = lambda: None


@core
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL,
                                    signal.SIGABRT])
def test_back_within_a_second(p, number):
    forget_crashes(p)
    with p.wire() as w:
        w.ok("SELECT 1")
        begin = time.monotonic()
        crash(p, number)
        assert works(p)
        assert time.monotonic() - begin < 1
        with pytest.raises((WireClosed, OSError)):
            w.ok("SELECT 1")
    assert p.alive()
    # A sanitizer makes an exit status of it.
    p.wait_log(r"(ended by signal %d .*|ended with status \d+): all its "
               "sessions are lost" % number)
    if number != signal.SIGKILL:
        p.wait_log("crashed: SIG|Sanitizer")
    assert p.stop() == 0


@core
def test_no_connection_is_refused(p):
    """Under load, a crash every half second or so."""
    forget_crashes(p)
    stop, failures, count = threading.Event(), [], [0]

    def work(number):
        while not stop.is_set():
            transport = "unix" if number % 2 else None
            try:
                p.socket(transport).close()
            except OSError as exc:
                failures.append("connect: %r" % exc)
                return
            try:
                with p.wire(transport=transport) as w:
                    assert w.value("SELECT %d" % number) == str(number)
                    count[0] += 1
            except (WireClosed, ConnectionResetError, BrokenPipeError):
                continue  # it was inside
            except ServerError as exc:
                failures.append(repr(exc))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    longest = 0
    try:
        for _ in range(5):
            time.sleep(0.5)
            begin, before = time.monotonic(), count[0]
            crash(p)
            procs.wait_for(lambda: count[0] > before, 10, "sessions")
            longest = max(longest, time.monotonic() - begin)
    finally:
        stop.set()
        for t in threads:
            t.join(30)
    assert not failures, failures[:3]
    assert longest < 7  # the pauses have grown by then


def test_pauses_grow(p):
    forget_crashes(p)
    times = []
    for _ in range(5):
        begin = time.monotonic()
        crash(p)
        times.append(time.monotonic() - begin)
    assert times[0] < 0.5
    assert times[4] > 0.5
    assert works(p)


@core
def test_pidfile_and_signals_are_the_parent_s(make_pooler):
    p = make_pooler({"supervisor": 1}, start=False)
    path = os.path.join(p.folder, "pid")
    p.write_ini(pidfile=path)
    p.start()
    with open(path) as src:
        assert int(src.read()) == p.pid
    p.write_ini(default_pool_size=3)
    p.signal(signal.SIGHUP)
    procs.wait_for(lambda: {r["key"]: r["value"] for r in p.show("CONFIG")}[
        "default_pool_size"] == "3", 5, "SIGHUP")
    assert p.stop(signal.SIGINT) == 0
    assert not os.path.exists(path)


@core
def test_what_a_reload_brought_holds_after_a_crash(p):
    forget_crashes(p)
    p.write_ini(default_pool_size=3)
    p.reload()
    crash(p)
    config = {r["key"]: r["value"] for r in p.show("CONFIG")}
    assert config["default_pool_size"] == "3"
    p.write_ini(default_pool_size="many")
    crash(p)
    config = {r["key"]: r["value"] for r in p.show("CONFIG")}
    assert config["default_pool_size"] == "5"
    p.wait_log("going on with the configuration of the start")


@core
def test_drain_closes_the_parent_s_sockets_too(p):
    with p.wire() as w:
        p.signal(signal.SIGTERM)

        def refused():
            try:
                p.socket().close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:
                pass  # met the socket as it was being closed
        procs.wait_for(refused, 5, "refusal")
        assert w.value("SELECT 1") == "1"
    assert p.wait_exit() == 0


def test_crash_while_draining_ends_it(p):
    forget_crashes(p)
    with p.wire() as w:
        p.signal(signal.SIGTERM)
        p.wait_log("SIGTERM")
        os.kill(serving(p), signal.SIGKILL)
        assert p.wait_exit() == 1
        w.abort()
    p.proc.returncode = 0


@pytest.mark.parametrize("command", ["SHUTDOWN",
                                     "SHUTDOWN WAIT_FOR_SERVERS"])
def test_shutdown_ends_both(p, command):
    with p.admin() as w:
        try:
            w.ok(command)
        except (WireClosed, ServerError, OSError):
            pass
    assert p.wait_exit() == 0


def test_what_fails_at_start_fails(make_pooler):
    p = make_pooler({"supervisor": 1}, start=False)
    with socket.socket() as sock:
        sock.bind((p.host, p.port))
        sock.listen(1)
        p.spawn()
        assert p.wait_exit() == 1
    assert "ended" not in p.log()


def test_child_ends_with_its_parent(p):
    forget_crashes(p)
    child = serving(p)
    os.kill(p.pid, signal.SIGKILL)
    p.proc.wait(5)

    def gone():
        try:
            with open("/proc/%d/stat" % child) as src:
                return src.read().split(")")[1].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True
    procs.wait_for(gone, 5, "end of the child")
    p.proc = None
