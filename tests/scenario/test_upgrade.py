# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A new process takes over, and nobody loses a session."""
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

import procs
from pgwire import (ServerError, WireClosed, bind, cancel_request, execute,
                    parse, query, sync)

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("upgrades are ours")]


class Adopted:
    """A process that another one has started, in the place of a Popen."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None

    def poll(self):
        if self.returncode is None and not is_alive(self.pid):
            self.returncode = 0
        return self.returncode

    def wait(self, timeout=None):
        procs.wait_for(lambda: self.poll() is not None, timeout or 15,
                       "end of process %d" % self.pid)
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as src:
            return src.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def pid_file(p):
    return os.path.join(p.folder, "pid")


def pid_of(p):
    with open(pid_file(p)) as src:
        return int(src.read())


@pytest.fixture
def p(make_pooler):
    return make_upgradable(make_pooler)


def make_upgradable(make_pooler, options=None, **kw):
    options = dict({"server_tls_sslmode": "disable"}, **(options or {}))
    p = make_pooler(options, start=False, **kw)
    p.write_ini(pidfile=pid_file(p))
    p.start()
    p.baseline_fds = None
    p.firsts = [p.proc]
    wait_pid(p)
    group = p.proc.pid

    def kill_all():
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for proc in p.firsts:
            proc.wait()
    p.kill_self = kill_all
    return p


def wait_pid(p, not_this=None):
    def check():
        try:
            return pid_of(p) != not_this
        except (OSError, ValueError):
            return False
    procs.wait_for(check, 10, "the pid file")


def adopt(p, old):
    """The process that serves now is the pooler's."""
    wait_pid(p, old)
    p.proc = Adopted(pid_of(p))


def upgrade(p, how="command"):
    """Runs one; the old process's pid."""
    old = p.proc.pid
    if how == "console":
        with p.admin() as w:
            w.ok("UPGRADE")
    else:
        got = order(p)
        assert got.returncode == 0, got.stdout
    adopt(p, old)
    return old


def order(p, ini=None):
    return subprocess.run(
        procs.as_service([p.binary, "--upgrade", ini or p.ini]),
        cwd=p.folder, stdin=subprocess.DEVNULL, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_end(pid):
    procs.wait_for(lambda: not is_alive(pid), 20, "the old process's end")


@core
@pytest.mark.parametrize("how", ["command", "console"])
def test_idle_sessions_move(p, how):
    with p.wire() as w, p.wire(transport="unix") as u:
        w.ok("SET application_name TO 'mover'")
        old = upgrade(p, how)
        wait_end(old)
        assert w.value("SHOW application_name") == "mover"
        assert u.value("SELECT 1") == "1"
        with p.wire() as fresh:
            assert fresh.value("SELECT 2") == "2"


def pgbench(p, *args, **kw):
    return subprocess.Popen(
        [os.path.join(procs.find_pg_bin(), "pgbench"), "-n", "-h", p.host,
         "-p", str(p.port), "-U", "u_trust", *args, "db1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
        env={k: v for k, v in os.environ.items()
             if not k.startswith("PG")}, **kw)


class Watch:
    """The most connections that PostgreSQL has seen at once."""

    def __init__(self, cluster, dbname="db1"):
        self.most = 0
        self.is_over = False
        self.wire = cluster.wire("postgres", "postgres")
        self.sql = ("SELECT count(*) FROM pg_stat_activity WHERE "
                    "datname = '%s' AND backend_type = 'client backend'"
                    % dbname)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.is_over:
            self.most = max(self.most, int(self.wire.value(self.sql)))

    def end(self):
        self.is_over = True
        self.thread.join()
        self.wire.close()
        return self.most


def wait_active(cluster, text):
    procs.wait_for(lambda: cluster.sql(
        "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query ="
        " '%s'" % text), 10, "query in PostgreSQL")


def send_cancel(p, w, address=None):
    with (address or p).open() as c:
        c.send(cancel_request(w.pid, w.key))
        assert c.is_closed(10), "cancel connection stays open"


@core
def test_transaction_ends_where_it_began(p, cluster):
    with p.wire() as w:
        w.ok("BEGIN")
        w.ok("CREATE TEMP TABLE t (i int) ON COMMIT DROP")
        old = upgrade(p)
        w.ok("INSERT INTO t VALUES (1)")
        assert w.value("SELECT count(*) FROM t") == "1"
        assert is_alive(old)
        w.ok("COMMIT")
        wait_end(old)
        assert w.value("SELECT 1") == "1"


@core
def test_prepared_statements_move(p):
    """The client's names, and what is prepared on servers."""
    with p.wire() as w:
        w.send(parse("a", "SELECT $1::int + 1"), parse("b", "SELECT 5"),
               parse("", "SELECT 7"), sync())
        assert not w.read_ready().error
        old = upgrade(p)
        wait_end(old)
        w.send(bind("", "", []), execute(), sync())
        assert w.read_ready().value() == "7"
        w.send(bind("", "a", [b"41"]), execute(), sync())
        assert w.read_ready().value() == "42"
        w.send(bind("", "b", []), execute(), sync())
        assert w.read_ready().value() == "5"
        assert {r["prepared_statements"] for r in p.servers()} <= {"2", "3"}
        assert len(p.servers()) == 1
        for _ in range(3):
            wait_end(upgrade(p))
            w.send(bind("", "a", [b"41"]), execute(), sync())
            assert w.read_ready().value() == "42"


@core
def test_servers_move(p, cluster):
    with p.wire() as w:
        backend = w.value("SELECT pg_backend_pid()")
        wait_end(upgrade(p))
        assert w.value("SELECT pg_backend_pid()") == backend


@core
def test_held_request_moves_with_its_client(make_pooler, cluster):
    p = make_upgradable(make_pooler, {"default_pool_size": 1})
    with p.wire() as holder, p.wire() as waiter:
        holder.ok("BEGIN")
        waiter.send(query("SELECT 1"))
        p.wait_pool(cl_waiting=1)
        old = upgrade(p)
        p.wait_pool(cl_waiting=1)
        holder.ok("COMMIT")
        assert waiter.read_ready().value() == "1"
        wait_end(old)


@core
def test_cancel_of_the_old_process_client(p, cluster):
    """It comes to the new process, its client is still with the old one."""
    with p.wire() as w:
        w.send(query("SELECT pg_sleep(71)"))
        wait_active(cluster, "SELECT pg_sleep(71)")
        old = upgrade(p)
        send_cancel(p, w)
        assert w.read_ready().sqlstate() == "57014"
        wait_end(old)
        w.send(query("SELECT pg_sleep(72)"))
        wait_active(cluster, "SELECT pg_sleep(72)")
        send_cancel(p, w)
        assert w.read_ready().sqlstate() == "57014"


@core
def test_cancel_over_three_generations(p, cluster):
    with p.wire() as w, p.wire() as v:
        w.send(query("SELECT pg_sleep(73)"))
        wait_active(cluster, "SELECT pg_sleep(73)")
        first = upgrade(p)
        v.send(query("SELECT pg_sleep(74)"))
        wait_active(cluster, "SELECT pg_sleep(74)")
        second = upgrade(p)
        assert is_alive(first) and is_alive(second)
        send_cancel(p, v)
        assert v.read_ready().sqlstate() == "57014"
        send_cancel(p, w)
        assert w.read_ready().sqlstate() == "57014"
        wait_end(first)
        wait_end(second)


@core
def test_budget_over_generations(make_pooler, cluster):
    """Places that the old process holds are not there for the new one."""
    p = make_upgradable(make_pooler, {"default_pool_size": 2})
    with p.wire() as a, p.wire() as b, p.wire() as c:
        a.ok("BEGIN")
        b.ok("BEGIN")
        old = upgrade(p)
        c.send(query("SELECT 3"))
        p.wait_pool(cl_waiting=1)
        assert not c.has_data(0.3)
        a.ok("COMMIT")
        assert c.read_ready().value() == "3"
        c.ok("BEGIN")
        a.send(query("SELECT 1"))
        assert not a.has_data(0.3)
        b.ok("COMMIT")
        assert a.read_ready().value() == "1"
        wait_end(old)


@core
def test_a_bad_file_changes_nothing(p):
    bad = p.file("bad.ini", "[pgbouncer]\nnonsense = 1\n")
    with open(p.ini) as src:
        bad = p.file("bad.ini", src.read() + "\nnonsense = 1\n")
    with p.wire() as w:
        got = order(p, bad)
        assert got.returncode == 1 and "nonsense" in got.stdout
        p.write_ini(max_client_conn="many")
        with p.admin() as admin:
            with pytest.raises(AssertionError, match="max_client_conn"):
                admin.ok("UPGRADE")
        p.write_ini(max_client_conn=1000)
        assert w.value("SELECT 1") == "1"
        assert pid_of(p) == p.proc.pid
        upgrade(p)


def other_program(p, text):
    path = os.path.join(p.folder, "program")
    with open(path, "w") as out:
        out.write("#!/bin/sh\n" + text + "\n")
    os.chmod(path, 0o755)
    return path


@pytest.mark.parametrize("text", ["exit 3", "kill -9 $$"])
def test_a_bad_program_changes_nothing(p, text):
    """As the running process's own path leads to it."""
    link = os.path.join(p.folder, "pgbraid")
    good = p.binary
    os.symlink(good, link)
    p.stop()
    p.binary = link
    p.start()
    p.firsts.append(p.proc)
    p.baseline_fds = None
    wait_pid(p, p.firsts[0].pid)
    with p.wire() as w:
        os.unlink(link)
        os.symlink(other_program(p, text), link)
        with p.admin() as admin:
            with pytest.raises(AssertionError, match="ended before"):
                admin.ok("UPGRADE")
            os.unlink(link)
            with pytest.raises(AssertionError, match="cannot run"):
                admin.ok("UPGRADE")
        os.symlink(good, link)
        assert w.value("SELECT 1") == "1"
        wait_end(upgrade(p))
        assert w.value("SELECT 1") == "1"


@core
def test_new_process_killed(p):
    """The old one goes on in its place, with what it still has."""
    with p.wire() as w, p.wire() as idle:
        w.ok("BEGIN")
        old = upgrade(p)
        procs.wait_for(lambda: len(p.show("CLIENTS")) == 2, 10, "the move")
        os.kill(p.proc.pid, signal.SIGKILL)
        adopt(p, p.proc.pid)
        assert p.proc.pid == old
        assert w.value("SELECT 1") == "1"
        w.ok("COMMIT")
        with p.wire() as fresh:
            assert fresh.value("SELECT 2") == "2"
        with pytest.raises(WireClosed):
            idle.query("SELECT 1")
        wait_end(upgrade(p))
        assert w.value("SELECT 1") == "1"


@core
def test_old_process_killed(make_pooler):
    p = make_upgradable(make_pooler, {"default_pool_size": 1})
    w = p.wire()
    w.ok("BEGIN")
    with p.wire() as other:
        old = upgrade(p)
        other.send(query("SELECT 1"))
        p.wait_pool(cl_waiting=1)
        os.kill(old, signal.SIGKILL)
        assert other.read_ready().value() == "1"
    with pytest.raises(WireClosed):
        w.query("SELECT 1")
    w.abort()


@core
def test_stop_while_the_old_one_drains(p):
    w = p.wire()
    w.ok("BEGIN")
    old = upgrade(p)
    p.proc.send_signal(signal.SIGQUIT)
    p.proc.wait(10)
    wait_end(old)
    w.abort()


@core
@pytest.mark.parametrize("how", ["wait", "end"])
def test_tls_sessions(make_pooler, certs, how):
    import pooler as pooler_module
    p = make_upgradable(make_pooler, {"upgrade_tls": how},
                        transport=pooler_module.TRANSPORTS["tls"])
    with p.wire() as busy, p.wire() as idle:
        busy.ok("BEGIN")
        old = upgrade(p)
        assert busy.value("SELECT 1") == "1"
        if how == "wait":
            for i in range(3):
                assert idle.value("SELECT 1") == "1"
            busy.ok("COMMIT")
            busy.close()
            idle.close()
        else:
            assert idle.read_to_close()[-1].fields["C"] == "57P01"
            busy.send(query("COMMIT"))
            got = busy.read_to_close()
            assert got[-1].fields["C"] == "57P01"
            assert any(m.type == "C" for m in got)
        wait_end(old)
        with p.wire() as fresh:
            assert fresh.value("SELECT 1") == "1"


def test_upgrade_timeout(make_pooler):
    p = make_upgradable(make_pooler, {"upgrade_timeout": 1})
    with p.wire() as w:
        w.ok("BEGIN")
        old = upgrade(p)
        wait_end(old)
        assert w.read_to_close()[-1].fields["C"] == "57P01"


@core
def test_session_mode(make_pooler):
    """Who has a server stays with it; who has none moves."""
    p = make_upgradable(make_pooler, {"pool_mode": "session"})
    with p.wire() as w:
        w.ok("SET search_path TO pg_catalog")
        with p.wire() as idle:
            old = upgrade(p)
            procs.wait_for(lambda: len(p.show("CLIENTS")) == 2, 10,
                           "the move")
            assert idle.value("SELECT 1") == "1"
        assert w.value("SHOW search_path") == "pg_catalog"
        assert is_alive(old)
    wait_end(old)


@core
def test_supervisor(make_pooler):
    p = make_upgradable(make_pooler, {"supervisor": 1})
    with p.wire() as w:
        old = upgrade(p)
        wait_end(old)
        assert w.value("SELECT 1") == "1"
        child = procs.children(p.proc.pid)
        os.kill(child[-1], signal.SIGKILL)
        p.verify_log = lambda: None
        procs.wait_for(lambda: works(p), 10, "another serving process")
    wait_end(upgrade(p))


def works(p):
    try:
        with p.wire() as w:
            return w.value("SELECT 1") == "1"
    except (OSError, WireClosed):
        return False


@core
def test_no_connection_is_refused(make_pooler):
    p = make_upgradable(make_pooler, {"workers": 3})
    failures, counts = [], [0]
    is_over = threading.Event()

    def knock():
        while not is_over.is_set():
            try:
                with p.wire() as w:
                    assert w.value("SELECT 1") == "1"
                counts[0] += 1
            except Exception as exc:
                failures.append(exc)
    threads = [threading.Thread(target=knock) for _ in range(4)]
    for t in threads:
        t.start()
    for _ in range(3):
        upgrade(p)
    is_over.set()
    for t in threads:
        t.join()
    assert not failures, failures[:3]
    assert counts[0] > 3


@core
@pytest.mark.parametrize("before, after", [(1, 3), (3, 1), (2, 3)])
def test_other_number_of_workers(make_pooler, before, after):
    p = make_upgradable(make_pooler, {"workers": before})
    p.write_ini(workers=after)
    with p.wire() as w:
        wait_end(upgrade(p))
        assert w.value("SELECT 1") == "1"
        assert len(p.show("WORKERS")) == after
        for _ in range(12):
            with p.wire() as v:
                assert v.value("SELECT 1") == "1"


def test_other_addresses(make_pooler):
    """What the new file does not name any more refuses connections."""
    p = make_upgradable(make_pooler, {"listen_addr": "127.0.0.1,127.0.0.2"})
    socket.create_connection(("127.0.0.2", p.port)).close()
    p.write_ini(listen_addr="127.0.0.1,127.0.0.3")
    with p.wire() as w:
        w.ok("BEGIN")
        old = upgrade(p)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", p.port))
        socket.create_connection(("127.0.0.3", p.port)).close()
        w.ok("COMMIT")
        wait_end(old)


def test_pause_lasts(p):
    with p.wire() as w:
        p.console("PAUSE db1")
        upgrade(p)
        w.send(query("SELECT 1"))
        assert not w.has_data(0.3)
        p.console("RESUME db1")
        assert w.read_ready().value() == "1"


def test_statistics_go_on(p):
    with p.wire() as w:
        for _ in range(10):
            w.ok("SELECT 1")
        wait_end(upgrade(p))
        w.ok("SELECT 1")

    def count():
        rows = [r for r in p.show("STATS") if r["database"] == "db1"]
        return rows and int(rows[0]["total_query_count"]) == 11
    procs.wait_for(count, 10, "all queries in SHOW STATS")


def test_scram_keys_move(make_pooler, cluster):
    """What a login has proven opens servers in the new process, too."""
    p = make_upgradable(make_pooler, {"auth_type": "scram-sha-256"},
                        userlist={"u_scram": cluster.secret_of("u_scram")})
    with p.wire("u_scram") as w:
        assert w.value("SELECT 1") == "1"
        wait_end(upgrade(p))
        p.console("RECONNECT")
        assert w.value("SELECT 1") == "1"


def test_command_without_a_process(p):
    p.stop()
    got = order(p)
    assert got.returncode == 1 and "no pgbraid runs" in got.stdout


SCRIPT = "SELECT :client_id, pg_sleep(0.0005)\n"


@core
def test_under_load(make_pooler, cluster):
    """Sessions that work all the time, with statements prepared."""
    procs.wait_for(lambda: not cluster.sql(
        "SELECT 1 FROM pg_stat_activity WHERE datname = 'db1'"), 20,
        "end of what an earlier scenario has left")
    p = make_upgradable(make_pooler, {"default_pool_size": 20,
                                      "max_db_connections": 4})
    path = p.file("load.sql", SCRIPT)
    idle = [p.wire() for _ in range(20)]
    watch = Watch(cluster)
    load = pgbench(p, "-M", "prepared", "-c", "8", "-T", "6", "-f", path)
    ends = []
    for _ in range(3):
        time.sleep(1)
        ends.append(upgrade(p))
    out = load.communicate()[0]
    assert load.returncode == 0, out
    assert "aborted" not in out, out
    for w in idle:
        assert w.value("SELECT 1") == "1"
        w.close()
    for pid in ends:
        wait_end(pid)
    assert watch.end() <= 4


def needs_quic(binary):
    import pooler as pooler_module
    if not pooler_module.has_quic(binary):
        pytest.skip("this build has no QUIC")
    return pooler_module.TRANSPORTS["quic"]


@core
@pytest.mark.parametrize("how", ["wait", "end"])
def test_quic_sessions(make_pooler, binary, cluster, how):
    """Packets of the old process's connections find it through the new one;
    new sessions begin with the new process."""
    p = make_upgradable(make_pooler, {"upgrade_tls": how},
                        transport=needs_quic(binary))
    with p.wire() as busy, p.wire() as idle:
        busy.ok("BEGIN")
        old = upgrade(p)
        for i in range(5):
            assert busy.value("SELECT %d" % i) == str(i)
        with p.wire() as fresh:
            assert fresh.value("SELECT 1") == "1"
        if how == "wait":
            assert idle.value("SELECT repeat('x', 300000)") == "x" * 300000
            assert sum(int(r["quic_relayed"])
                       for r in p.show("WORKERS")) == 0
            second = upgrade(p)
            assert idle.value("SELECT 2") == "2"
            assert busy.value("SELECT 2") == "2"
            busy.ok("COMMIT")
            busy.close()
            idle.close()
            wait_end(second)
        else:
            assert idle.read_to_close()[-1].fields["C"] == "57P01"
            busy.send(query("COMMIT"))
            got = busy.read_to_close()
            assert got[-1].fields["C"] == "57P01"
            assert any(m.type == "C" for m in got)
        wait_end(old)
        with p.wire() as fresh:
            assert fresh.value("SELECT 1") == "1"


def test_quic_after_the_new_process_died(make_pooler, binary):
    p = make_upgradable(make_pooler, transport=needs_quic(binary))
    with p.wire() as w:
        w.ok("BEGIN")
        old = upgrade(p)
        os.kill(p.proc.pid, signal.SIGKILL)
        adopt(p, p.proc.pid)
        assert p.proc.pid == old
        assert w.value("SELECT 1") == "1"
        with p.wire() as fresh:
            assert fresh.value("SELECT 1") == "1"
        w.ok("COMMIT")


def test_quic_needs_as_many_workers(make_pooler, binary):
    p = make_upgradable(make_pooler, transport=needs_quic(binary))
    p.write_ini(workers=3)
    got = order(p)
    assert got.returncode == 1 and "workers = 2" in got.stdout
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
