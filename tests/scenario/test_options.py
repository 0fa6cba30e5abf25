# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Options that no other scenario is about: each is seen at work."""
import grp
import os
import signal
import socket
import struct
import time

import pytest

import pgwire
import procs
from pgwire import ServerError, WireClosed, startup

core = pytest.mark.core
REFUSED = (ServerError, WireClosed)
PID = "SELECT pg_backend_pid()"


# --- pools that nobody uses -----------------------------------------------------------


def test_pool_idle_timeout(make_pooler):
    p = make_pooler({"pool_idle_timeout": 1, "server_idle_timeout": 1})
    p.wire().close()
    assert p.pool()
    procs.wait_for(lambda: not p.pool(), 15, "the pool's end")
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
        time.sleep(2.5)  # a client keeps it
        assert p.pool()


def test_autodb_idle_timeout(make_pooler, cluster):
    p = make_pooler({"autodb_idle_timeout": 1, "server_idle_timeout": 1},
                    databases={})
    p.databases["*"] = p.server()
    p.databases["db2"] = p.server()
    p.write_ini()
    p.reload()

    def names():
        return {row["name"] for row in p.show("DATABASES")}
    p.wire().close()
    p.wire(database="db2").close()
    assert {"db1", "db2"} <= names()
    procs.wait_for(lambda: "db1" not in names(), 15, "db1 to be forgotten")
    assert "db2" in names()
    with p.wire() as w:
        assert w.value("SELECT current_database()") == "db1"


# --- servers --------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [0, 1])
def test_server_fast_close(make_pooler, fast):
    p = make_pooler({"pool_mode": "session", "server_fast_close": fast})
    with p.wire() as idle, p.wire() as busy:
        first = idle.value(PID)
        busy.ok("BEGIN")
        p.console("RECONNECT")
        if not fast:
            time.sleep(1)
            assert idle.value(PID) == first
            busy.ok("COMMIT")
            return
        procs.wait_for(idle.is_closed, 5, "the idle session's end")
        assert busy.value("SELECT 1") == "1"
        busy.send(pgwire.query("COMMIT"))
        procs.wait_for(busy.is_closed, 5, "the end after the transaction")


def test_server_round_robin(make_pooler):
    def pids(round_robin):
        p = make_pooler({"server_round_robin": round_robin, "workers": 1,
                         "default_pool_size": 3})
        wires = [p.wire() for _ in range(3)]
        for w in wires:
            w.ok("BEGIN")
        for w in wires:
            w.ok("COMMIT")
        out = {wires[0].value(PID) for _ in range(6)}
        for w in wires:
            w.close()
        return out
    assert len(pids(0)) == 1
    assert len(pids(1)) == 3


# --- sizes ----------------------------------------------------------------------------


@core
def test_max_packet_size(make_pooler):
    p = make_pooler({"max_packet_size": 10000})
    with p.wire() as w:
        assert len(w.value("SELECT repeat('x', 9000)")) == 9000
        with pytest.raises(REFUSED):
            got = w.query("SELECT length('%s')" % ("x" * 10000))
            assert got.error and "max_packet_size" in got.error["M"]
            w.ok("SELECT 1")
    with p.wire() as w:
        with pytest.raises(REFUSED):
            w.ok("SELECT repeat('x', 20000)")
            w.ok("SELECT 1")
    p.wait_log("max_packet_size")
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_login_max_bytes(make_pooler):
    p = make_pooler({"auth_type": "plain", "login_max_bytes": 1024})
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    assert w.read().type == "R"
    w.send(pgwire.msg("p", b"x" * 2000 + b"\0"))
    assert w.is_closed()
    w.abort()
    p.wire("u_plain").close()


# --- limits of connections ------------------------------------------------------------


def test_max_connections_per_address(make_pooler):
    p = make_pooler({"max_connections_per_address": 2})
    held = [p.open() for _ in range(2)]
    time.sleep(0.3)
    third = p.open()
    assert third.is_closed()
    third.abort()
    p.wire(transport="unix").close()
    for w in held:
        w.abort()
    procs.wait_for(lambda: _comes_in(p), 5, "room again")


def _comes_in(p):
    try:
        p.wire().close()
        return True
    except REFUSED:
        return False


def test_max_db_and_user_client_connections(make_pooler):
    p = make_pooler({"max_db_client_connections": 2})
    with p.wire(), p.wire("u_other"):
        with pytest.raises(ServerError, match="max_db_client_connections"):
            p.wire()
        p.wire(database="db2").close()
    p = make_pooler({"max_user_client_connections": 1})
    with p.wire():
        with pytest.raises(ServerError, match="max_user_client_connections"):
            p.wire(database="db2")
        p.wire("u_other").close()


# --- words ----------------------------------------------------------------------------


def test_application_name_add_host(make_pooler):
    p = make_pooler({"application_name_add_host": 1})
    with p.wire(params={"application_name": "app"}) as w:
        name = w.value("SHOW application_name")
        assert name == "app - 127.0.0.1:%d" % w.sock.getsockname()[1]
    with p.wire(params={"application_name": "app"},
                transport="unix") as w:
        assert w.value("SHOW application_name").startswith("app - unix")


def test_login_notify_message(make_pooler):
    p = make_pooler({"login_notify_message": "hello there"})
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    seen = w.read_until("Z")
    notices = [m.fields for m in seen if m.type == "N"]
    assert [n["M"] for n in notices] == ["hello there"]
    assert notices[0]["S"] == "NOTICE"
    w.close()


def test_disable_pqexec(make_pooler):
    p = make_pooler({"disable_pqexec": 1})
    with p.wire() as w:
        assert w.extended("SELECT 1").value() == "1"
        with pytest.raises(REFUSED):
            w.ok("SELECT 1")


@pytest.mark.parametrize("ignore", ["", "search_path, geqo"])
def test_ignore_startup_parameters(make_pooler, ignore):
    p = make_pooler({"ignore_startup_parameters": ignore})
    if ignore:
        p.wire(params={"search_path": "x", "geqo": "on"}).close()
        return
    with pytest.raises(ServerError, match="search_path"):
        p.wire(params={"search_path": "x"})


def test_track_extra_parameters(make_pooler):
    p = make_pooler({"track_extra_parameters": "IntervalStyle, search_path",
                     "default_pool_size": 1})
    with p.wire() as a, p.wire() as b:
        a.ok("SET IntervalStyle = 'iso_8601'")
        assert b.value("SHOW IntervalStyle") == "postgres"
        assert a.value("SHOW IntervalStyle") == "iso_8601"


def test_stats_and_admin_users(make_pooler):
    p = make_pooler({"admin_users": "admin", "stats_users": "stats, u_other"})
    with p.admin("u_other") as w:
        assert w.ok("SHOW POOLS") and w.query("RELOAD").error
    with pytest.raises(REFUSED):
        p.admin("u_trust")
    p.console("SET admin_users = 'admin,u_trust'")
    with p.admin("u_trust") as w:
        w.ok("RELOAD")


# --- logs -----------------------------------------------------------------------------


def test_log_switches(make_pooler):
    p = make_pooler({"log_connections": 0, "log_disconnections": 0,
                     "log_pooler_errors": 0, "log_stats": 1,
                     "stats_period": 1})
    p.wire().close()
    with pytest.raises(REFUSED):
        p.wire(database="nowhere")
    p.wait_log(r"stats: \d+ xacts/s")
    for word in ("login attempt", "closing because: client", "pooler error",
                 "new connection to server"):
        assert word not in p.log(), word


def test_verbose(make_pooler):
    """The rule that a login met is told from verbose = 1 on."""
    p = make_pooler({"auth_type": "hba", "verbose": 0}, start=False)
    p.file("hba.conf", "host all all all trust\n")
    p.write_ini(auth_hba_file=os.path.join(p.folder, "hba.conf"))
    p.start()
    p.wire().close()
    assert " DEBUG " not in p.log()
    p.console("SET verbose = 1")
    p.wire().close()
    p.wait_log("DEBUG HBA line 1 fits db=db1 user=u_trust")


def test_logfile_is_reopened(make_pooler):
    p = make_pooler(start=False)
    path = os.path.join(p.folder, "own.log")
    p.write_ini(logfile=path)
    p.start()
    procs.wait_for(lambda: os.path.exists(path), 5, "the log file")
    os.rename(path, path + ".1")
    p.signal(signal.SIGHUP)
    procs.wait_for(lambda: os.path.exists(path), 5, "the new log file")


@pytest.fixture
def dev_log():
    """What goes to /dev/log, where nobody else listens."""
    if os.path.exists("/dev/log") or not os.access("/dev", os.W_OK):
        pytest.skip("/dev/log is not ours to listen on")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind("/dev/log")
    os.chmod("/dev/log", 0o666)
    sock.settimeout(10)
    yield sock
    sock.close()
    os.unlink("/dev/log")


def test_syslog(make_pooler, dev_log):
    make_pooler({"syslog": 1, "syslog_ident": "braid-test",
                 "syslog_facility": "local3"})
    while True:
        line = dev_log.recv(4096).decode()
        if "process up" in line:
            break
    assert "braid-test[" in line or "braid-test:" in line
    assert int(line[1:line.index(">")]) >> 3 == 19  # local3


# --- sockets --------------------------------------------------------------------------


def test_tcp_options_of_clients(make_pooler):
    """Seen from outside: keepalive's timer is set on the pooler's side."""
    p = make_pooler({"tcp_keepalive": 1, "tcp_keepidle": 77})
    with p.wire() as w:
        port = w.sock.getsockname()[1]
        assert _has_keepalive_timer(p.port, port)
    p = make_pooler({"tcp_keepalive": 0})
    with p.wire() as w:
        port = w.sock.getsockname()[1]
        assert not _has_keepalive_timer(p.port, port)


def _has_keepalive_timer(local, remote):
    with open("/proc/net/tcp") as src:
        for line in src.readlines()[1:]:
            f = line.split()
            if (int(f[1].split(":")[1], 16), int(f[2].split(":")[1], 16)) \
                    == (local, remote):
                return f[5].startswith("02:")
    raise AssertionError("the connection is not in /proc/net/tcp")


def test_unix_socket_mode(make_pooler):
    p = make_pooler({"unix_socket_mode": "0750"})
    path = os.path.join(p.folder, ".s.PGSQL.%d" % p.port)
    assert os.stat(path).st_mode & 0o777 == 0o750


def test_client_login_timeout(make_pooler):
    p = make_pooler({"client_login_timeout": 1})
    w = p.open()
    w.send(struct.pack("!I", 100))
    assert w.is_closed(5)
    w.abort()
    p.wait_log("client_login_timeout")


# --- the console's other tables and SUSPEND -------------------------------------------

CONNECTIONS = """type user database replication state addr port local_addr
    local_port connect_time request_time wait wait_us close_needed ptr link
    remote_pid tls application_name prepared_statements id""".split()
BUFFERS = """recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail
    send_avail""".split()


def test_show_sockets(make_pooler):
    p = make_pooler()
    with p.wire() as busy, p.wire("u_other") as idle:
        busy.ok("BEGIN")
        idle.ok("SELECT 1")
        every, active = p.show("SOCKETS"), p.show("ACTIVE_SOCKETS")
    want = CONNECTIONS + BUFFERS  # and then ours
    assert list(every[0])[:len(want)] == want == list(active[0])[:len(want)]
    assert {(r["type"], r["user"]) for r in every} >= {
        ("C", "u_trust"), ("S", "u_trust"), ("C", "u_other"),
        ("S", "u_other")}
    users = {(r["type"], r["user"]) for r in active}
    assert {("C", "u_trust"), ("S", "u_trust")} <= users
    assert ("S", "u_other") not in users


def test_show_fds(make_pooler):
    p = make_pooler()
    with p.wire():
        rows = p.show("FDS")
        open_fds = {int(n) for n in os.listdir("/proc/%d/fd" % p.pid)}
    assert list(rows[0])[:8] == ["fd", "task", "user", "database", "addr",
                                 "port", "cancel", "link"]
    assert {"client", "server"} <= {r["task"] for r in rows}
    assert {int(r["fd"]) for r in rows} <= open_fds
    assert all(r["password"] is None and r["cancel"] is None for r in rows)
    with p.admin("stats") as w:
        assert "admin access needed" in w.query("SHOW FDS").error["M"]


def test_show_dns_hosts(make_pooler, cluster):
    p = make_pooler(databases={"db1": "host=localhost port=%d" %
                               cluster.port})
    p.wire().close()
    rows = {r["hostname"]: r for r in p.show("DNS_HOSTS")}
    assert "127.0.0.1" in rows["localhost"]["addrs"].split(",")
    assert 0 <= int(rows["localhost"]["ttl"]) <= 15
    assert p.show("DNS_ZONES") == []


@core
def test_suspend(make_pooler):
    p = make_pooler()
    with p.wire() as w, p.admin() as a:
        w.ok("SELECT 1")
        a.ok("SUSPEND")
        state = {r["key"]: r["value"] for r in a.ok("SHOW STATE").dicts()}
        assert state == {"active": "no", "paused": "no", "suspended": "yes"}
        w.send(pgwire.query("SELECT 2"))
        assert not w.has_data(1)
        for again in ("SUSPEND", "PAUSE"):
            assert "already suspended" in a.query(again).error["M"]
        a.ok("RESUME")
        assert w.read_ready().value() == "2"
        assert p.show("STATE")[0]["value"] == "yes"


def test_suspend_timeout(make_pooler):
    """A client that does not read its reply is given up."""
    p = make_pooler({"suspend_timeout": 1})
    w = p.wire()
    w.send(pgwire.query("SELECT repeat('x', 1000) FROM"
                        " generate_series(1, 100000)"))
    time.sleep(1)
    start = time.monotonic()
    p.console("SUSPEND")
    assert 0.5 < time.monotonic() - start < 10
    p.wait_log("suspend_timeout")
    p.console("RESUME")
    w.abort()
    with p.wire() as other:
        assert other.value("SELECT 1") == "1"


def test_kill_client(make_pooler):
    p = make_pooler()
    with p.wire() as w, p.wire("u_other") as other:
        w.ok("BEGIN")
        row = [r for r in p.show("CLIENTS") if r["user"] == "u_trust"][0]
        p.console("KILL_CLIENT " + row["id"])
        assert w.is_closed()
        assert other.value("SELECT 1") == "1"
        with p.admin() as a:
            assert a.query("KILL_CLIENT 999999").error
            assert a.query("KILL_CLIENT x").error
    with p.admin("stats") as a:
        assert "admin access" in a.query("KILL_CLIENT 1").error["M"]


def test_disable_and_enable(make_pooler):
    p = make_pooler()
    with p.wire() as w:
        p.console("DISABLE db1")
        assert w.value("SELECT 1") == "1"
        with pytest.raises(ServerError, match="disabled"):
            p.wire()
        p.wire(database="db2").close()
    p.console("ENABLE db1")
    p.wire().close()


# --- lines of [databases] and [users] -------------------------------------------------


def test_min_pool_size_of_a_database(make_pooler):
    p = make_pooler(databases={})
    p.databases["db1"] = p.server() + " user=u_trust min_pool_size=3"
    p.write_ini()
    p.stop()
    p.start()
    p.wait_pool(sv_idle=3)


def test_reserve_pool_size(make_pooler):
    p = make_pooler({"default_pool_size": 1, "reserve_pool_timeout": 1},
                    databases={}, users={"u_other": "reserve_pool_size=1"})
    p.databases["db1"] = p.server() + " reserve_pool_size=1"
    p.databases["db2"] = p.server()
    p.write_ini()
    p.reload()
    for user, database in (("u_trust", "db1"), ("u_other", "db2")):
        with p.wire(user, database) as a, p.wire(user, database) as b:
            a.ok("BEGIN")
            start = time.monotonic()
            b.ok("BEGIN")
            assert time.monotonic() - start > 0.5


@pytest.mark.parametrize("limit", ["max_db_connections=1", "pool_size=1"])
def test_server_limits_of_a_database(make_pooler, limit):
    p = make_pooler(databases={})
    p.databases["db1"] = p.server() + " " + limit
    p.databases["db2"] = p.server()
    p.write_ini()
    p.reload()
    with p.wire() as a, p.wire() as b, p.wire(database="db2") as c:
        a.ok("BEGIN")
        b.send(pgwire.query("SELECT 1"))
        assert not b.has_data(0.5)
        assert c.value("SELECT 1") == "1"
        a.ok("COMMIT")
        assert b.read_ready().value() == "1"


def test_client_limits_of_a_line(make_pooler):
    p = make_pooler(databases={},
                    users={"u_other": "max_user_client_connections=1"})
    p.databases["db1"] = p.server() + " max_db_client_connections=1"
    p.databases["db2"] = p.server()
    p.write_ini()
    p.reload()
    with p.wire(), p.wire(database="db2"), p.wire("u_other", "db2"):
        with pytest.raises(ServerError, match="max_db_client_connections"):
            p.wire()
        with pytest.raises(ServerError, match="max_user_client_connections"):
            p.wire("u_other", "db2")


def test_server_lifetime_of_a_database(make_pooler):
    p = make_pooler(databases={})
    p.databases["db1"] = p.server() + " server_lifetime=1"
    p.databases["db2"] = p.server()
    p.write_ini()
    p.reload()
    with p.wire() as a, p.wire(database="db2") as b:
        first, other = a.value(PID), b.value(PID)
        procs.wait_for(lambda: not p.servers("db1"), 10, "its end of life")
        assert a.value(PID) != first
        assert b.value(PID) == other


@pytest.mark.parametrize("how,servers", [("round-robin", 2), ("disable", 1)])
def test_load_balance_hosts(make_pooler, cluster, how, servers):
    p = make_pooler({"workers": 1}, databases={})
    p.databases["db1"] = "host=127.0.0.1,localhost port=%d" \
        " load_balance_hosts=%s pool_mode=session" % (cluster.port, how)
    p.write_ini()
    p.reload()
    held = [p.wire() for _ in range(4)]
    for w in held:
        w.ok("SELECT 1")
    seen = {r["hostname"] for r in p.show("DNS_HOSTS")}
    assert ("localhost" in seen) == (servers == 2)
    assert p.show("POOLS") and any(
        r["load_balance_hosts"] == how for r in p.show("POOLS"))
    for w in held:
        w.close()


@pytest.mark.parametrize("key,value,show", [
    ("client_encoding", "LATIN1", "LATIN1"),
    ("datestyle", "'German, DMY'", "German, DMY"),
    ("timezone", "Asia/Tokyo", "Asia/Tokyo"),
    ("application_name", "fixed", "fixed")])
def test_settings_of_a_database(make_pooler, key, value, show):
    p = make_pooler(databases={})
    p.databases["db1"] = "%s %s=%s" % (p.server(), key, value)
    p.write_ini()
    p.reload()
    with p.wire() as w:
        assert w.value("SHOW " + key) == show


@pytest.mark.parametrize("key,sql", [
    ("idle_transaction_timeout", "BEGIN"),
    ("transaction_timeout", "BEGIN"),
    ("client_idle_timeout", "SELECT 1")])
def test_timeouts_of_a_user(make_pooler, key, sql):
    p = make_pooler(users={"u_other": key + "=1"})
    with p.wire() as free, p.wire("u_other") as bound:
        free.ok(sql)
        bound.ok(sql)
        assert bound.is_closed(10)
        assert free.value("SELECT 1") == "1"


def test_query_timeout_and_wait_timeout_of_a_user(make_pooler):
    p = make_pooler({"default_pool_size": 1},
                    users={"u_other": "query_timeout=1",
                           "u_md5": "query_wait_timeout=1"})
    with p.wire("u_other") as w:
        w.send(pgwire.query("SELECT pg_sleep(20)"))
        assert w.is_closed(10)
    with p.wire("u_md5") as a, p.wire("u_md5") as b:
        a.ok("BEGIN")
        b.send(pgwire.query("SELECT 1"))
        assert b.is_closed(10)
        a.ok("COMMIT")


def test_query_wait_notify(make_pooler):
    p = make_pooler({"default_pool_size": 1, "query_wait_notify": 1})
    with p.wire() as a, p.wire() as b:
        a.ok("BEGIN")
        b.send(pgwire.query("SELECT 1"))
        got = b.read(10)
        assert got.type == "N" and "No server connection" in got.fields["M"]
        a.ok("COMMIT")
        assert b.read_ready().value() == "1"


def test_certificates_of_a_database(make_pooler, certs, cluster):
    """PostgreSQL lets u_cert in to certdb by certificate alone."""
    p = make_pooler(databases={})
    p.databases["certdb"] = (
        "host=localhost port=%d user=u_cert sslmode=verify-full"
        " sslrootcert=%s sslcert=%s sslkey=%s" % (
            cluster.port, certs.ca, *certs.client))
    p.databases["db1"] = ("host=localhost port=%d sslmode=verify-full"
                          " sslrootcert=%s" % (cluster.port, certs.other_ca))
    p.write_ini()
    p.reload()
    with p.wire("u_trust", "certdb") as w:
        assert w.value("SELECT current_user") == "u_cert"
    with pytest.raises(REFUSED):
        p.wire()


def test_unix_socket_group(make_pooler):
    user = procs.service_user()
    gid = user.pw_gid if user else os.getgid()
    p = make_pooler({"unix_socket_group": grp.getgrgid(gid).gr_name,
                     "unix_socket_mode": "0770"})
    path = os.path.join(p.folder, ".s.PGSQL.%d" % p.port)
    assert os.stat(path).st_gid == gid
    p = make_pooler({"unix_socket_group": "no_such_group"}, start=False)
    p.spawn()
    assert p.wait_exit() != 0
    assert "no_such_group" in p.log()


# --- TLS words ------------------------------------------------------------------------


def test_server_tls_protocols(make_pooler, certs):
    p = make_pooler({"server_tls_sslmode": "require",
                     "server_tls_protocols": "tlsv1.2",
                     "server_tls_ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"})
    with p.wire() as w:
        w.ok("SELECT 1")
    assert [r["tls"] for r in p.servers()] == [
        "TLSv1.2/ECDHE-ECDSA-AES256-GCM-SHA384"]
    p.console("SET server_tls_protocols = 'tlsv1.3'")
    p.console("SET server_tls13_ciphers = 'TLS_CHACHA20_POLY1305_SHA256'")
    p.console("RECONNECT")
    procs.wait_for(lambda: not p.servers(), 5, "the old server's end")
    with p.wire() as w:
        w.ok("SELECT 1")
    assert [r["tls"] for r in p.servers()] == [
        "TLSv1.3/TLS_CHACHA20_POLY1305_SHA256"]


def test_client_tls13_ciphers_and_curve(make_pooler, certs):
    p = make_pooler({"client_tls_sslmode": "require",
                     "client_tls_cert_file": certs.server[0],
                     "client_tls_key_file": certs.server[1],
                     "client_tls13_ciphers": "TLS_AES_128_GCM_SHA256",
                     "client_tls_ecdhcurve": "secp384r1",
                     "client_tls_dheparams": "none"})
    sock = socket.create_connection((p.host, p.port), pgwire.TIMEOUT)
    assert pgwire.request_tls(sock) == b"S"
    tls = pgwire.tls_context(certs.ca).wrap_socket(
        sock, server_hostname="localhost")
    assert tls.cipher()[0] == "TLS_AES_128_GCM_SHA256"
    tls.close()
    sock = socket.create_connection((p.host, p.port), pgwire.TIMEOUT)
    assert pgwire.request_tls(sock) == b"S"
    ctx = pgwire.tls_context(certs.ca)
    ctx.set_ecdh_curve("prime256v1")  # not the one that is allowed
    with pytest.raises(OSError):
        ctx.wrap_socket(sock, server_hostname="localhost")
    sock.close()


# --- sockets, looked at from inside ---------------------------------------------------


def borrow(pid, fd):
    """The pooler's descriptor, as a socket of ours."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    got = libc.syscall(438, handle, fd, 0)  # pidfd_getfd
    os.close(handle)
    if got < 0:
        pytest.skip("pidfd_getfd is not allowed here")
    return socket.socket(fileno=got)


@pytest.mark.parametrize("task", ["client", "server"])
def test_tcp_options(make_pooler, task):
    p = make_pooler({"tcp_keepalive": 1, "tcp_keepidle": 61,
                     "tcp_keepintvl": 7, "tcp_keepcnt": 4,
                     "tcp_user_timeout": 12345,
                     "tcp_socket_buffer": 150000})
    with p.wire() as w:
        w.ok("BEGIN")
        row = [r for r in p.show("FDS") if r["task"] == task][0]
        sock = borrow(p.pid, int(row["fd"]))
    tcp = socket.IPPROTO_TCP
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(tcp, socket.TCP_KEEPIDLE) == 61
    assert sock.getsockopt(tcp, socket.TCP_KEEPINTVL) == 7
    assert sock.getsockopt(tcp, socket.TCP_KEEPCNT) == 4
    assert sock.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == 12345
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 150000
    sock.close()


@pytest.mark.parametrize("defer", [0, 1])
def test_listen_backlog_and_tcp_defer_accept(make_pooler, defer):
    p = make_pooler({"listen_backlog": 37, "tcp_defer_accept": defer})
    found = []
    for fd in os.listdir("/proc/%d/fd" % p.pid):
        try:
            if not os.readlink("/proc/%d/fd/%s" % (p.pid, fd)).startswith(
                    "socket:"):
                continue
        except OSError:
            continue
        sock = borrow(p.pid, int(fd))
        if sock.family == socket.AF_INET and sock.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            found.append((
                struct.unpack_from("I", info, 28)[0],  # tcpi_sacked: backlog
                sock.getsockopt(socket.IPPROTO_TCP,
                                socket.TCP_DEFER_ACCEPT) > 0))
        sock.close()
    assert found and set(found) == {(37, bool(defer))}


@pytest.fixture
def dns():
    import fakedns
    try:
        server = fakedns.FakeDns("db.zone.test", "127.0.0.1")
    except OSError as e:
        pytest.skip("no name server of our own on port 53: %s" % e)
    yield server
    server.close()


def test_dns_zone_check_period(make_pooler, dns, cluster):
    """A new serial has the zone's names looked up again, long before they
    expire; connections to an address that is gone go."""
    p = make_pooler({"dns_zone_check_period": 0.2, "dns_max_ttl": 3600},
                    databases={"db1": "host=db.zone.test port=%d" %
                               cluster.port}, start=False)
    p.write_ini(resolv_conf=p.file("resolv.conf",
                                   "nameserver %s\n" % dns.ip))
    p.start()
    with p.wire() as w:
        w.ok("SELECT 1")
        row, = [r for r in p.show("DNS_ZONES") if r["zonename"] == "zone.test"]
        assert row["count"] == "1"
        dns.asked.clear()
        assert dns.asked.wait(10)
        procs.wait_for(lambda: p.show("DNS_ZONES")[0]["serial"] == "1", 10,
                       "the serial")
        assert len(p.servers()) == 1
        dns.address = "127.0.0.9"
        dns.serial = 2
        p.wait_log(r"zone 'zone.test' serial changed: old=1 new=2")
        procs.wait_for(lambda: not p.servers(), 10, "the old address's end")
        row, = [r for r in p.show("DNS_HOSTS") if r["hostname"] == dns.host]
        assert row["addrs"] == "127.0.0.9"
        assert row["ttl"] and int(row["ttl"]) > 15
