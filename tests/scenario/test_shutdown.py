# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Signals and SHUTDOWN: who may go on, who is turned away, when it ends."""
import os
import signal

import pytest

import procs
from pgwire import ServerError, WireClosed, query

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("1.18 has other signals and modes")]
TERM, INT, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGQUIT
USR1, USR2, HUP = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


def console(p):
    return p.wire("admin", "pgbouncer", transport="unix")


def wait_closed(p):
    """Until nobody listens on the TCP port."""
    def refused():
        try:
            p.socket("tcp").close()
            return False
        except ConnectionResetError:
            return False  # met the socket as it was being closed
        except ConnectionRefusedError:
            return True
    procs.wait_for(refused, 5, "the end of the TCP listener")


def begin(p, how):
    """A signal number or a console command."""
    if isinstance(how, int):
        p.signal(how)
    else:
        a = console(p)
        a.send(query(how))
        a.close()
    wait_closed(p)


def refusal(p, transport="unix"):
    with pytest.raises(ServerError) as got:
        p.wire(transport=transport)
    return got.value.sqlstate


FOR_CLIENTS = pytest.mark.parametrize(
    "how", [TERM, "SHUTDOWN WAIT_FOR_CLIENTS"])
FOR_SERVERS = pytest.mark.parametrize(
    "how", [INT, "SHUTDOWN WAIT_FOR_SERVERS"])


@core
@FOR_CLIENTS
def test_waiting_for_clients(make_pooler, how):
    p = make_pooler({"default_pool_size": 1})
    first, second = p.wire(), p.wire(transport="unix")
    first.ok("SELECT 1")
    begin(p, how)
    # Sessions go on, and get servers, old ones and new ones.
    first.ok("BEGIN")
    second.send(query("SELECT 2"))
    assert not second.has_data(0.1)
    first.ok("COMMIT")
    assert second.read_ready().value() == "2"
    # Newcomers meet a closed port; at the Unix socket the console only.
    assert refusal(p) == "57P03"
    with console(p) as a:
        assert a.ok("SHOW POOLS").rows
        first.close()
        assert second.value("SELECT 3") == "3"
        second.close()
        # A console session is a client too.
        with pytest.raises(AssertionError):
            procs.wait_for(lambda: not p.alive(), 0.3)
        assert a.ok("SHOW CLIENTS").rows
    assert p.wait_exit(5) == 0


@core
@FOR_SERVERS
def test_waiting_for_servers(make_pooler, how):
    p = make_pooler({"default_pool_size": 1})
    busy, waiting, idle = p.wire(), p.wire(), p.wire(transport="unix")
    idle.ok("SELECT 1")
    busy.ok("BEGIN")
    waiting.send(query("SELECT 2"))
    assert not waiting.has_data(0.1)
    begin(p, how)
    # Who waits for a server is turned away at once, who has one goes on.
    assert waiting.read_type("E").fields["C"] == "57P01"
    assert waiting.is_closed()
    assert busy.value("SELECT 3") == "3"
    assert refusal(p) == "57P03"
    a = console(p)
    assert a.ok("SHOW SERVERS").rows
    assert p.alive()
    busy.query("COMMIT")
    # Neither clients nor consoles keep it.
    assert p.wait_exit(5) == 0
    for w in (busy, waiting, idle, a):
        w.abort()


@FOR_SERVERS
def test_waiting_for_servers_of_sessions(make_pooler, how):
    """In session mode a server is released when its client leaves."""
    p = make_pooler({"pool_mode": "session"})
    w = p.wire()
    w.ok("SELECT 1")
    begin(p, how)
    assert w.value("SELECT 2") == "2"
    assert p.alive()
    w.close()
    assert p.wait_exit(5) == 0


@FOR_SERVERS
def test_waiting_for_no_server(make_pooler, how):
    p = make_pooler()
    with p.wire() as w:
        w.ok("SELECT 1")
        if isinstance(how, int):
            p.signal(how)
        else:
            a = console(p)
            a.send(query(how))
        assert p.wait_exit(5) == 0


@core
@pytest.mark.parametrize("second", [TERM, INT, QUIT, "SHUTDOWN"])
@pytest.mark.parametrize("first", [TERM, INT])
def test_a_second_signal_ends_it_now(make_pooler, first, second):
    p = make_pooler()
    w = p.wire()
    w.ok("BEGIN")
    begin(p, first)
    if isinstance(second, int):
        p.signal(second)
    else:
        a = console(p)
        a.send(query(second))
    assert p.wait_exit(5) == 0
    w.abort()
    assert not os.path.exists("%s/.s.PGSQL.%d" % (p.folder, p.port))


def test_both_modes_one_after_the_other(make_pooler):
    """From the console another mode takes over, as it is no second signal."""
    p = make_pooler()
    w, idle = p.wire(), p.wire()
    w.ok("BEGIN")
    begin(p, "SHUTDOWN WAIT_FOR_CLIENTS")
    begin(p, "SHUTDOWN WAIT_FOR_SERVERS")
    assert idle.read_type("E").fields["C"] == "57P01"
    assert w.value("SELECT 1") == "1"
    w.query("COMMIT")
    assert p.wait_exit(5) == 0
    w.abort()
    idle.abort()


def test_pause_then_term(make_pooler):
    """Paused clients cannot leave their query; USR2 lets them."""
    p = make_pooler()
    w = p.wire()
    w.ok("SELECT 1")
    p.signal(USR1)
    p.wait_log("SIGUSR1")
    w.send(query("SELECT 2"))
    begin(p, TERM)
    assert not w.has_data(0.2)
    p.signal(USR2)
    assert w.read_ready().value() == "2"
    w.close()
    assert p.wait_exit(5) == 0


def test_int_cannot_be_resumed(make_pooler):
    p = make_pooler()
    w = p.wire()
    w.ok("BEGIN")
    begin(p, INT)
    p.signal(USR2)
    p.wait_log("SIGUSR2.*ignored")
    with console(p) as a:
        assert a.query("RESUME").error
        assert a.query("PAUSE").error
    w.query("COMMIT")
    assert p.wait_exit(5) == 0
    w.abort()


def test_hup_while_it_waits(make_pooler):
    p = make_pooler()
    w = p.wire()
    w.ok("SELECT 1")
    begin(p, TERM)
    p.write_ini(query_wait_timeout=7)
    p.signal(HUP)
    with console(p) as a:
        def is_reloaded():
            rows = {r["key"]: r["value"]
                    for r in a.ok("SHOW CONFIG").dicts()}
            return rows["query_wait_timeout"] == "7"
        procs.wait_for(is_reloaded, 5, "the new configuration")
    assert w.value("SELECT 2") == "2"
    w.close()
    assert p.wait_exit(5) == 0


def test_a_pause_that_waits_while_it_ends(make_pooler):
    """The session of PAUSE hears something, whatever it is, and no hang."""
    p = make_pooler()
    w, a = p.wire(), p.admin()
    w.ok("BEGIN")
    a.send(query("PAUSE"))
    assert not a.has_data(0.1)
    begin(p, INT)
    w.query("COMMIT")
    assert p.wait_exit(5) == 0
    w.abort()
    a.abort()


@core
@pytest.mark.parametrize("first", [TERM, INT])
def test_clients_over_all_workers(make_pooler, first):
    p = make_pooler({"default_pool_size": 3, "workers": 2})
    wires = [p.wire() for _ in range(40)]
    for w in wires:
        w.send(query("SELECT pg_sleep(0.01)"))
    begin(p, first)
    answered = 0
    for w in wires:
        try:
            got = w.read_ready()
            answered += not got.errors
        except WireClosed:
            assert first == INT
        w.close()
    if first == TERM:
        assert answered == 40
    assert p.wait_exit(5) == 0
