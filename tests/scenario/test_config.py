# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The ini file: what is taken, what is refused and how, RELOAD, signals."""
import os
import signal
import subprocess

import pytest

import pooler as pooler_module
import procs
from pgwire import ServerError, WireClosed, query

core = pytest.mark.core
PID = "SELECT pg_backend_pid()"


@pytest.fixture
def check(make_pooler, target):
    """check(text): runs --check on an ini of this text."""
    if target != "pgbraid":
        pytest.skip("--check is pgbraid's")
    p = make_pooler(start=False)

    def call(text, **files):
        for name, content in files.items():
            p.file(name, content)
        with open(p.ini, "w") as out:
            out.write(text.replace("@DIR@", p.folder))
        procs.give(p.ini)
        return p.check()
    return call


GOOD = """[databases]
db1 = host=127.0.0.1 port=5432
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = 6432
"""


@core
def test_check_of_a_good_file(check):
    status, text = check(GOOD)
    assert status == 0, text


def test_check_does_not_start(make_pooler, target):
    if target != "pgbraid":
        pytest.skip("--check is pgbraid's")
    p = make_pooler()
    status, text = p.check()
    assert status == 0, text
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


# text after [pgbouncer], line of the mistake, words the message must have
BAD = [
    ("no_such_option = 1", 6, ["no_such_option"]),
    ("default_pool_size = many", 6, ["default_pool_size", "many"]),
    ("default_pool_size = -5", 6, ["default_pool_size"]),
    ("pool_mode = sometimes", 6, ["pool_mode", "transaction"]),
    ("auth_type = magic", 6, ["auth_type", "scram-sha-256"]),
    ("listen_port = 70000", 6, ["listen_port"]),
    ("server_tls_sslmode = perhaps", 6, ["server_tls_sslmode",
                                         "verify-full"]),
    ("query_timeout = soon", 6, ["query_timeout"]),
    ("workers = -1", 6, ["workers"]),
    ("what is this", 6, []),
    ("[strange]", 6, ["strange"]),
]


@core
@pytest.mark.parametrize("line,number,words", BAD,
                         ids=[b[0].split(" ")[0] + str(i)
                              for i, b in enumerate(BAD)])
def test_bad_line_is_named(check, line, number, words):
    status, text = check(GOOD + line + "\n")
    assert status != 0
    assert "pgbouncer.ini:%d" % number in text or \
        "line %d" % number in text, text
    for word in words:
        assert word in text, text


@core
@pytest.mark.parametrize("line,words", [
    ("db1 = host=x nonsense=1", ["nonsense"]),
    ("db1 = host=x port=abc", ["port", "abc"]),
    ("db1 = host=x pool_mode=never", ["pool_mode"]),
    ("pgbouncer = host=x", ["pgbouncer"]),
    ("db1 = host='x", []),
])
def test_bad_database_line_is_named(check, line, words):
    status, text = check("[databases]\n" + line + "\n[pgbouncer]\n")
    assert status != 0
    assert "pgbouncer.ini:2" in text or "line 2" in text, text
    for word in words:
        assert word in text, text


@core
def test_every_mistake_is_listed(check):
    status, text = check(GOOD + "default_pool_size = x\npool_mode = y\n"
                         "no_such = 1\n")
    assert status != 0
    for word in ("default_pool_size", "pool_mode", "no_such"):
        assert word in text, text


TLS = "client_tls_sslmode = allow\n"
PAIR = "client_tls_cert_file = %(cert)s\nclient_tls_key_file = %(key)s\n"
LISTEN = "quic_listen_addr = 127.0.0.1\n"


@pytest.mark.parametrize("text, words", [
    (TLS + PAIR.replace("%(key)s", "/nonexistent/k"),
     ["client_tls_key_file", "/nonexistent/k"]),
    (TLS + PAIR.replace("%(key)s", "%(other)s"), ["client_tls_key_file"]),
    (TLS + PAIR + "client_tls_ca_file = /nonexistent/ca\n",
     ["client_tls_ca_file", "/nonexistent/ca"]),
    ("server_tls_sslmode = verify-ca\nserver_tls_ca_file = /nonexistent/s\n",
     ["server_tls_ca_file", "/nonexistent/s"]),
])
def test_check_reads_the_files_of_tls(check, certs, text, words):
    status, got = check(GOOD + text % files_of(certs))
    assert status != 0
    for word in words:
        assert word in got, got


def files_of(certs):
    return {"cert": certs.server[0], "key": certs.server[1],
            "other": certs.server2[1]}


QUIC_PAIR = PAIR.replace("client_tls", "quic_tls")


@pytest.mark.parametrize("text, words", [
    ("", ["quic_tls_cert_file", "quic_tls_key_file"]),
    (QUIC_PAIR.replace("%(cert)s", "/nonexistent/c"),
     ["quic_tls_cert_file", "/nonexistent/c"]),
    (QUIC_PAIR.replace("%(key)s", "/nonexistent/k"),
     ["quic_tls_key_file", "/nonexistent/k"]),
    (QUIC_PAIR.replace("%(key)s", "%(other)s"),
     ["quic_tls_cert_file", "quic_tls_key_file", "do not match"]),
    (QUIC_PAIR.replace("%(cert)s", "%(key)s"), ["quic_tls_cert_file"]),
    (QUIC_PAIR + "quic_tls_ca_file = /nonexistent/ca\n",
     ["quic_tls_ca_file", "/nonexistent/ca"]),
    (QUIC_PAIR + "client_tls_ca_file = /nonexistent/ca\n",
     ["client_tls_ca_file", "/nonexistent/ca"]),
])
def test_check_reads_the_files_of_quic(check, certs, binary, text, words):
    if not pooler_module.has_quic(binary):
        pytest.skip("no QUIC in this build")
    status, got = check(GOOD + LISTEN + text % files_of(certs))
    assert status != 0
    for word in words:
        assert word in got, got


def test_secrets_are_not_shown_by_check(check):
    _, text = check("[databases]\ndb1 = host=x password=hush user=u bad=1\n"
                    "[pgbouncer]\n")
    assert "hush" not in text


def test_missing_file(make_pooler, target):
    if target != "pgbraid":
        pytest.skip("--check is pgbraid's")
    p = make_pooler(start=False)
    os.unlink(p.ini)
    status, text = p.check()
    assert status != 0 and "pgbouncer.ini" in text


def test_start_with_a_bad_file_fails(make_pooler):
    p = make_pooler(start=False, extra="[pgbouncer]\nno_such_thing = 1\n")
    p.spawn()
    assert p.wait_exit() != 0
    assert "no_such_thing" in p.log()
    p.proc = None


@core
def test_include(check):
    status, text = check("%include @DIR@/more.ini\n" + GOOD,
                         **{"more.ini": "[pgbouncer]\npool_mode = session\n"
                            "[databases]\ndb9 = host=x\n"})
    assert status == 0, text


def test_mistake_in_an_included_file_is_named_there(check):
    status, text = check(GOOD + "%include @DIR@/more.ini\n",
                         **{"more.ini": "\n\nnonsense = 1\n"})
    assert status != 0
    assert "more.ini:3" in text or ("more.ini" in text and "line 3" in text)


def test_include_of_itself_ends(check):
    status, text = check(GOOD + "%include @DIR@/pgbouncer.ini\n")
    assert status != 0 and text


def test_included_databases_serve(make_pooler, transport):
    p = make_pooler(transport=transport, start=False)
    more = p.file("dbs.ini", "[databases]\nextra = %s dbname=db2\n"
                  % p.server())
    p.extra = "%%include %s\n" % more
    p.write_ini()
    p.start()
    with p.wire(database="extra") as w:
        assert w.value("SELECT current_database()") == "db2"


def test_comments_spaces_and_quotes(check):
    status, text = check(
        "; comment\n# another\n\n[databases]\n"
        "  db1   =   host='127.0.0.1'  port=5432  \n"
        "\"odd name\" = host=x\n"
        "db2 = password='a''b' user=x host=y\n"
        "[pgbouncer]\nlisten_port=6432\n")
    assert status == 0, text


EVERY_KEY = """
job_name = x
service_name = x
listen_backlog = 128
unix_socket_mode = 0777
unix_socket_group =
so_reuseport = 0
peer_id = 0
pidfile =
syslog = 0
syslog_ident = pgbouncer
syslog_facility = daemon
resolv_conf =
min_pool_size = 0
reserve_pool_size = 0
reserve_pool_timeout = 5
max_db_connections = 0
max_user_connections = 0
max_db_client_connections = 0
max_user_client_connections = 0
server_round_robin = 0
max_prepared_statements = 200
track_extra_parameters = IntervalStyle
ignore_startup_parameters = extra_float_digits
application_name_add_host = 0
disable_pqexec = 0
autodb_idle_timeout = 3600
pool_idle_timeout = 0
auth_type = md5
auth_hba_file =
auth_ident_file =
auth_user = x
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename=$1
auth_dbname =
auth_ldap_options =
scram_iterations = 4096
stats_users = a, b
client_tls_sslmode = disable
client_tls_protocols = secure
client_tls_ciphers = default
client_tls13_ciphers =
client_tls_ecdhcurve = auto
client_tls_dheparams = auto
server_tls_sslmode = prefer
server_tls_protocols = secure
server_tls_ciphers = default
server_tls13_ciphers =
server_reset_query = DISCARD ALL
server_reset_query_always = 0
server_check_query = <empty>
server_check_delay = 30
server_lifetime = 3600
server_idle_timeout = 600
server_connect_timeout = 15
server_login_retry = 15
server_fast_close = 0
query_wait_timeout = 120
query_wait_notify = 5
idle_transaction_timeout = 0
query_timeout = 0
transaction_timeout = 0
client_idle_timeout = 0
client_login_timeout = 60
cancel_wait_timeout = 10
suspend_timeout = 10
pkt_buf = 4096
max_packet_size = 2147483647
sbuf_loopcnt = 5
tcp_keepalive = 1
tcp_keepidle = 0
tcp_keepintvl = 0
tcp_keepcnt = 0
tcp_user_timeout = 0
tcp_defer_accept = 1
tcp_socket_buffer = 0
dns_max_ttl = 15
dns_nxdomain_ttl = 15
dns_zone_check_period = 0
log_connections = 1
log_disconnections = 1
log_pooler_errors = 1
log_stats = 1
stats_period = 60
verbose = 0
login_notify_message =
"""


@core
def test_every_key_of_pgbouncer_is_accepted(check):
    lines = [line for line in EVERY_KEY.split("\n") if line]
    for line in lines:
        status, text = check(GOOD + line + "\n")
        assert status == 0, "%s: %s" % (line, text)


DB_KEYS = ("host=a,b port=1 dbname=x user=u password=p auth_user=a"
           " auth_query='SELECT 1' auth_dbname=db pool_size=1"
           " min_pool_size=1 reserve_pool_size=1 pool_mode=session"
           " max_db_connections=1 max_db_client_connections=1"
           " server_lifetime=1 query_wait_timeout=1"
           " load_balance_hosts=round-robin connect_query='SELECT 1'"
           " client_encoding=UTF8 datestyle=ISO timezone=UTC"
           " application_name=x")


@core
def test_every_key_of_a_database_line_is_accepted(check):
    status, text = check("[databases]\ndb = " + DB_KEYS +
                         "\ndb2 = reserve_pool=1\n[pgbouncer]\n")
    assert status == 0, text


def test_every_key_of_a_user_line_is_accepted(check):
    status, text = check(GOOD + "[users]\nu = pool_size=1"
                         " reserve_pool_size=1 pool_mode=session"
                         " max_user_connections=1"
                         " max_user_client_connections=1 query_timeout=1"
                         " query_wait_timeout=1 idle_transaction_timeout=1"
                         " transaction_timeout=1 client_idle_timeout=1\n"
                         "[peers]\n2 = host=/tmp port=6433 pool_size=1\n")
    assert status == 0, text


# --- RELOAD ------------------------------------------------------------------

@core
@pytest.mark.parametrize("how", ["console", "signal"])
def test_reload_adds_a_database(make_pooler, transport, how):
    p = make_pooler(transport=transport)
    with pytest.raises((ServerError, WireClosed)):
        p.wire(database="added")
    p.databases["added"] = p.server() + " dbname=db2"
    p.write_ini()
    if how == "console":
        p.reload()
    else:
        p.signal(signal.SIGHUP)

    def served():
        try:
            with p.wire(database="added") as w:
                return w.value("SELECT current_database()") == "db2"
        except (ServerError, WireClosed):
            return False
    procs.wait_for(served, 5, "the new database")


@core
def test_reload_changes_pool_size_under_load(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1}, transport=transport)
    with p.wire() as a, p.wire() as b:
        a.ok("BEGIN")
        b.send(query("SELECT 1"))
        p.wait_pool(cl_waiting=1)
        p.write_ini(default_pool_size=2)
        p.reload()
        assert b.read_ready().value() == "1"
        a.ok("COMMIT")


def test_reload_removes_a_database(make_pooler, transport):
    p = make_pooler(transport=transport)
    with p.wire(database="db2") as w:
        w.ok("SELECT 1")
        del p.databases["db2"]
        p.write_ini()
        p.reload()
        with pytest.raises((ServerError, WireClosed)):
            p.wire(database="db2")


@core
@pytest.mark.differs("1.18 does otherwise")
def test_reload_of_a_bad_file_keeps_the_old_one(make_pooler, transport):
    p = make_pooler(transport=transport)
    p.write_ini(default_pool_size="nonsense")
    with p.admin() as w:
        got = w.query("RELOAD")
    if p.target == "pgbraid":
        assert got.errors
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"
    assert {r["key"]: r["value"] for r in p.show("CONFIG")}[
        "default_pool_size"] == "5"
    p.write_ini(default_pool_size=6)
    p.reload()
    assert {r["key"]: r["value"] for r in p.show("CONFIG")}[
        "default_pool_size"] == "6"


def test_reload_of_a_changed_server_address(make_pooler, transport,
                                            cluster):
    """Old servers are replaced once they are free."""
    p = make_pooler(transport=transport)
    with p.wire() as w:
        assert w.value("SELECT current_database()") == "db1"
        p.databases["db1"] = p.server() + " dbname=db2"
        p.write_ini()
        p.reload()
        procs.wait_for(lambda: w.value("SELECT current_database()")
                       == "db2", 5, "the new place")


def test_many_reloads_under_traffic(make_pooler, transport):
    p = make_pooler(transport=transport)
    with p.wire() as w:
        for i in range(30):
            p.write_ini(default_pool_size=3 + i % 3)
            p.signal(signal.SIGHUP)
            assert w.value("SELECT %d" % i) == str(i)


def test_options_that_need_a_restart_are_kept(make_pooler, transport):
    p = make_pooler(transport=transport)
    p.write_ini(listen_addr="127.0.0.2")
    p.reload()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


# --- signals and the end ----------------------------------------------------------

newer = pytest.mark.differs("1.18 has other signals")


@core
@newer
def test_term_waits_for_clients(make_pooler):
    p = make_pooler()
    w = p.wire()
    w.ok("SELECT 1")
    p.signal(signal.SIGTERM)
    p.wait_log("SIGTERM|shut")
    assert w.value("SELECT 2") == "2"
    assert p.alive()
    w.close()
    assert p.wait_exit() == 0


@newer
def test_term_twice_is_now(make_pooler):
    p = make_pooler()
    w = p.wire()
    w.ok("BEGIN")
    p.signal(signal.SIGTERM)
    p.wait_log("SIGTERM|shut")
    p.signal(signal.SIGTERM)
    assert p.wait_exit() == 0
    w.abort()


@core
@newer
def test_term_refuses_new_clients(make_pooler):
    p = make_pooler()
    with p.wire() as w:
        w.ok("SELECT 1")
        p.signal(signal.SIGTERM)
        p.wait_log("SIGTERM|shut")

        def refused():
            try:
                p.wire().close()
                return False
            except (ServerError, WireClosed, OSError):
                return True
        procs.wait_for(refused, 5, "refusal")
    assert p.wait_exit() == 0


@core
def test_int_waits_for_servers(make_pooler):
    p = make_pooler()
    a, idle = p.wire(), p.wire()
    idle.ok("SELECT 1")
    a.ok("BEGIN")
    p.signal(signal.SIGINT)
    p.wait_log("SIGINT|shut")
    assert a.value("SELECT 2") == "2"
    assert p.alive()
    a.query("COMMIT")
    assert p.wait_exit() in (0, 1)
    a.abort()
    idle.abort()


@core
@newer
def test_quit_is_now(make_pooler):
    p = make_pooler()
    w = p.wire()
    w.ok("BEGIN")
    p.signal(signal.SIGQUIT)
    assert p.wait_exit(5) == 0
    w.abort()


@core
@pytest.mark.differs("1.18 does otherwise")
def test_usr1_pauses_usr2_resumes(make_pooler, transport):
    p = make_pooler(transport=transport)
    with p.wire() as w:
        w.ok("SELECT 1")
        p.signal(signal.SIGUSR1)
        procs.wait_for(lambda: state(p, "paused") == "yes", 5, "pause")
        w.send(query("SELECT 2"))
        assert not w.has_data(0.2)
        p.signal(signal.SIGUSR2)
        assert w.read_ready().value() == "2"


def state(p, key):
    rows = p.show("STATE")
    return {r["key"]: r["value"] for r in rows}[key]


def test_socket_file_is_gone_after_the_end(make_pooler):
    p = make_pooler()
    path = "%s/.s.PGSQL.%d" % (p.folder, p.port)
    assert os.path.exists(path)
    assert p.stop() in (0, 1)
    procs.wait_for(lambda: not os.path.exists(path), 5, "unlink")


@core
def test_unix_socket_mode(make_pooler):
    p = make_pooler({"unix_socket_mode": "0700"})
    path = "%s/.s.PGSQL.%d" % (p.folder, p.port)
    assert os.stat(path).st_mode & 0o777 == 0o700


@core
def test_pidfile(make_pooler):
    p = make_pooler(start=False)
    path = os.path.join(p.folder, "pid")
    p.write_ini(pidfile=path)
    p.start()
    with open(path) as src:
        assert int(src.read()) in procs.children(p.pid)
    assert p.stop() in (0, 1)
    assert not os.path.exists(path)


def test_logfile_is_reopened(make_pooler):
    p = make_pooler(start=False)
    path = os.path.join(p.folder, "own.log")
    p.write_ini(logfile=path)
    p.start()
    with p.wire() as w:
        w.ok("SELECT 1")
    procs.wait_for(lambda: os.path.exists(path), 5, "log file")
    os.rename(path, path + ".1")
    p.reload()
    with p.wire() as w:
        w.ok("SELECT 1")
    procs.wait_for(lambda: os.path.exists(path) and os.path.getsize(path),
                   5, "new log file")


@pytest.mark.differs("1.18 does otherwise")
def test_port_taken_is_a_clear_error(make_pooler):
    p = make_pooler()
    other = make_pooler(start=False)
    other.write_ini(listen_port=p.port, so_reuseport=0)
    other.spawn()
    assert other.wait_exit() != 0
    assert str(p.port) in other.log()
    other.proc = None


def test_version_and_help(binary, target):
    if target == "direct":
        pytest.skip("needs a pooler")
    for flag, word in (("--version", "."), ("--help", "sage")):
        got = subprocess.run([binary, flag], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, timeout=20)
        assert got.returncode == 0
        assert word.encode() in got.stdout
