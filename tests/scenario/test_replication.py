# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Replication connections: one server each, from login to end."""
import os
import shutil
import signal
import subprocess

import pytest

import pooler as pooler_module
import procs
import standby as standby_module
from pgwire import query, startup

core = pytest.mark.core
USER = "u_trust"


@pytest.fixture
def replicating(make_pooler, transport, cluster):
    cluster.sql("ALTER ROLE u_trust REPLICATION")
    where = transport.server(cluster)
    return make_pooler(
        {"default_pool_size": 3, "auth_type": "trust"},
        {"db1": where + " dbname=db1",
         "replication": where + " dbname=db1"},
        transport=transport)


def physical(p):
    return p.wire(USER, "replication", params={"replication": "true"})


@core
def test_identify_system(replicating, cluster):
    with physical(replicating) as w:
        got = w.ok("IDENTIFY_SYSTEM").rows[0]
        direct = cluster.sql("SELECT system_identifier FROM"
                             " pg_control_system()")[0][0]
        assert got[0].decode() == direct


@core
def test_each_has_a_server_of_its_own(replicating):
    a, b = physical(replicating), physical(replicating)
    row = replicating.pool("replication", USER)
    assert row["sv_active"] == 2 and row["cl_active"] == 2
    kinds = {r["replication"] for r in replicating.show("CLIENTS")
             if r["database"] == "replication"}
    assert kinds == {"physical"}
    a.abort()
    replicating.wait_pool(database="replication", user=USER, sv_active=1,
                          sv_idle=0)
    b.ok("IDENTIFY_SYSTEM")
    b.abort()


@core
def test_they_count_in_the_pool(replicating):
    some = [physical(replicating) for _ in range(3)]
    late = replicating.open()
    late.send(startup({"user": USER, "database": "replication",
                       "replication": "true"}))
    replicating.wait_pool(database="replication", user=USER, cl_waiting=1)
    some.pop().abort()
    late.read_until("Z")
    late.ok("IDENTIFY_SYSTEM")
    for w in some + [late]:
        w.abort()


def test_settings_of_the_client_reach_the_server(replicating):
    w = replicating.wire(USER, "db1", params={
        "replication": "database", "options": "-c statement_timeout=4321"})
    assert w.value("SHOW statement_timeout") == "4321ms"
    w.abort()


def test_pause_does_not_wait_for_it(replicating):
    w = physical(replicating)
    with replicating.admin() as a:
        a.ok("PAUSE")
        w.ok("IDENTIFY_SYSTEM")
        a.ok("RESUME")
    w.abort()


def test_server_that_refuses_is_told(make_pooler, transport, cluster):
    where = transport.server(cluster)
    p = make_pooler({"auth_type": "trust"},
                    {"db1": where + " dbname=db1"}, transport=transport)
    with pytest.raises(Exception) as exc:
        p.wire("u_scram", "db1", params={"replication": "database"})
    assert "replication" in str(exc.value) or "WAL" in str(exc.value)
    with p.wire() as w:  # others of the pool are not disturbed
        assert w.value("SELECT 1") == "1"


@core
def test_basebackup(replicating, tool, run, tmp_path):
    program = tool("pg_basebackup", "postgresql-client")
    env = replicating.url_env(USER, "replication")
    out = str(tmp_path / "backup")
    run([program, "-D", out, "-X", "stream", "-c", "fast"], env=env)
    assert os.path.exists(os.path.join(out, "PG_VERSION"))


def test_receivewal(replicating, tool, tmp_path, cluster):
    program = tool("pg_receivewal", "postgresql-client")
    env = replicating.url_env(USER, "replication")
    proc = subprocess.Popen([program, "-D", str(tmp_path), "-s", "1"],
                            env=env, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        replicating.wait_pool(database="replication", user=USER, sv_active=1)
        cluster.sql("SELECT pg_switch_wal()")
        procs.wait_for(lambda: [n for n in os.listdir(tmp_path)
                                if not n.endswith(".partial")], 30,
                       "a whole segment")
    finally:
        proc.send_signal(signal.SIGINT)
        proc.communicate(timeout=30)
    assert proc.returncode == 0


def test_streaming_goes_both_ways(replicating, cluster):
    """START_REPLICATION: WAL comes, status goes, CopyDone ends it."""
    w = physical(replicating)
    at = w.ok("IDENTIFY_SYSTEM").rows[0][2].decode()
    w.send(query("START_REPLICATION PHYSICAL %s" % at))
    assert w.read_until("W")
    cluster.sql("CREATE TABLE IF NOT EXISTS streamed (a int)", "db1")
    assert w.read_until("d")
    w.send(b"c\0\0\0\4")
    w.read_until("Z")
    assert w.ok("IDENTIFY_SYSTEM").rows
    w.abort()


# Whole programs, over every way

WAYS = ["tcp", "tls", "unix", "quic", "mptcp"]
# Each of them would end a session that is not a replication.
SHORT = {"query_timeout": 1, "transaction_timeout": 1, "server_lifetime": 1,
         "server_idle_timeout": 1, "idle_transaction_timeout": 1,
         "client_idle_timeout": 1, "query_wait_timeout": 1}


@pytest.fixture(params=WAYS)
def by_any_way(request, make_pooler, cluster, target, binary):
    """A pooler whose time-outs are short, reached by each way."""
    if request.param == "quic" and not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    if request.param in ("quic", "mptcp") and target != "pgbraid":
        pytest.skip("no edge")
    cluster.sql("ALTER ROLE u_trust REPLICATION")
    transport = pooler_module.TRANSPORTS[request.param]
    where = transport.server(cluster)
    options = {"default_pool_size": 4, "auth_type": "trust"}
    if target == "pgbraid":
        options.update(SHORT)
    return make_pooler(options, {"db1": where + " dbname=db1",
                                 "replication": where + " dbname=db1"},
                       transport=transport)


def conninfo(pooler, dbname):
    parts = pooler.conninfo(USER, dbname)
    return " ".join("%s=%s" % kv for kv in parts.items() if kv[1] != "")


def walsenders(cluster, name):
    return [r[0] for r in cluster.sql(
        "SELECT pid FROM pg_stat_replication WHERE application_name = '%s' "
        "AND state = 'streaming'" % name)]


def same_sender_later(cluster, name):
    """Time-outs of one second do not end it."""
    pid, = procs.wait_for(lambda: walsenders(cluster, name), 30, "a sender")
    cluster.sql("SELECT pg_sleep(2.2)")
    assert walsenders(cluster, name) == [pid]


@pytest.fixture
def standby(by_any_way, cluster, session_folder, tool):
    tool("pg_basebackup", "postgresql-client")
    folder = os.path.join(session_folder, "standby")
    os.mkdir(folder)
    os.chmod(folder, 0o700)
    made = None
    try:
        made = standby_module.Standby(
            cluster, conninfo(by_any_way, "replication"), folder,
            by_any_way.url_env(USER, "replication"))
        yield made
    finally:
        if made:
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def checkpoint_of(cluster, data):
    got = cluster.run(os.path.join(cluster.bin, "pg_controldata"), data,
                      env=dict(os.environ, LC_ALL="C")).stdout.decode()
    lines = dict(l.split(":", 1) for l in got.splitlines() if ":" in l)
    return lines["Latest checkpoint location"].strip()


@pytest.mark.slow
def test_standby(standby, cluster):
    """It follows, outlives every time-out, and gets all of the WAL of a server
    that shuts down, up to the last record."""
    cluster.sql("DROP TABLE IF EXISTS followed; CREATE TABLE followed AS "
                "SELECT g FROM generate_series(1, 20000) g", "db1")
    count = "SELECT sum(g) FROM followed"
    want = cluster.sql(count, "db1")[0][0]
    procs.wait_for(lambda: standby.value(count) == want, 30, "the copy")
    same_sender_later(cluster, "standby")
    cluster.sql("INSERT INTO followed SELECT 1 FROM generate_series(1, 50000)",
                "db1")
    cluster.stop()
    try:
        end = checkpoint_of(cluster, cluster.data)
        # It is flushed there; replay may come behind, but nothing new comes.
        replayed = "SELECT pg_last_wal_replay_lsn() > '%s'" % end
        procs.wait_for(lambda: standby.value(replayed) == "t", 20,
                       "the shutdown checkpoint at %s" % end)
        assert standby.value(count) == str(int(want) + 50000)
    finally:
        cluster.start()
    # A walsender of the new server, through the same pooler.
    cluster.sql("INSERT INTO followed VALUES (7)", "db1")
    procs.wait_for(lambda: standby.value(count) == str(int(want) + 50007), 30,
                   "the standby to come back")


@pytest.mark.slow
def test_subscription(by_any_way, cluster):
    """db2 subscribes to db1 of the same cluster, through the pooler."""
    name = "sub_" + by_any_way.transport.name
    for db in ("db1", "db2"):
        cluster.sql("DROP TABLE IF EXISTS published; CREATE TABLE published "
                    "(id int PRIMARY KEY, t text)", db)
    cluster.sql("INSERT INTO published SELECT g, repeat('x', 300) FROM "
                "generate_series(1, 3000) g", "db1")
    cluster.sql("GRANT SELECT ON published TO u_trust", "db1")
    cluster.sql("DROP PUBLICATION IF EXISTS pub; CREATE PUBLICATION pub FOR "
                "TABLE published", "db1")
    cluster.sql("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')"
                % name, "db1")
    try:
        cluster.sql("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION pub "
                    "WITH (create_slot = false, slot_name = '%s')" % (
                        name, conninfo(by_any_way, "db1"), name), "db2")
        state = "SELECT md5(string_agg(p::text, ',' ORDER BY id)) FROM " \
                "published p"

        def is_same():
            return cluster.sql(state, "db1") == cluster.sql(state, "db2")
        procs.wait_for(is_same, 30, "the first copy")
        same_sender_later(cluster, name)
        cluster.sql("UPDATE published SET t = t || id WHERE id % 3 = 0; "
                    "DELETE FROM published WHERE id % 7 = 0; "
                    "INSERT INTO published VALUES (100000, 'last')", "db1")
        procs.wait_for(is_same, 30, "the changes")
    finally:
        if cluster.sql("SELECT 1 FROM pg_subscription", "db2"):
            cluster.sql("ALTER SUBSCRIPTION %s DISABLE" % name, "db2")
            cluster.sql("ALTER SUBSCRIPTION %s SET (slot_name = NONE)" % name,
                        "db2")
            cluster.sql("DROP SUBSCRIPTION %s" % name, "db2")
        procs.wait_for(lambda: not cluster.sql(
            "SELECT 1 FROM pg_replication_slots WHERE active"), 20,
            "the slot's release")
        cluster.sql("SELECT pg_drop_replication_slot('%s')" % name)


@pytest.mark.slow
def test_receive_programs(by_any_way, cluster, tool, tmp_path):
    """pg_receivewal and pg_recvlogical at once, beside a base backup."""
    logical = tool("pg_recvlogical", "postgresql-client")
    wal = tool("pg_receivewal", "postgresql-client")
    env = by_any_way.url_env(USER, "replication")
    log_env = by_any_way.url_env(USER, "db1")
    out = str(tmp_path / "changes")
    cluster.sql("DROP PUBLICATION IF EXISTS all_of_it; CREATE PUBLICATION "
                "all_of_it FOR ALL TABLES; DROP TABLE IF EXISTS logged; "
                "CREATE TABLE logged (t text)", "db1")
    opts = ["-d", "db1", "--slot", "received"]
    subprocess.run([logical, *opts, "--create-slot", "-P", "pgoutput"],
                   env=log_env, check=True)
    started = []
    try:
        started.append(subprocess.Popen(
            [logical, *opts, "--start", "-f", out, "-s", "1", "-F", "1", "-o",
             "proto_version=1", "-o", "publication_names=all_of_it"],
            env=log_env, stdin=subprocess.DEVNULL))
        started.append(subprocess.Popen(
            [wal, "-D", str(tmp_path), "-s", "1"], env=env,
            stdin=subprocess.DEVNULL))
        for name in ("pg_recvlogical", "pg_receivewal"):
            procs.wait_for(lambda n=name: walsenders(cluster, n), 20, name)
        cluster.sql("INSERT INTO logged SELECT 'seen ' || g FROM "
                    "generate_series(1, 5000) g", "db1")
        subprocess.run([tool("pg_basebackup", "postgresql-client"), "-D",
                        str(tmp_path / "backup"), "-X", "none", "-c", "fast",
                        "--no-sync"], env=env, check=True,
                       stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        same_sender_later(cluster, "pg_recvlogical")
        cluster.sql("INSERT INTO logged VALUES ('the last one'); SELECT "
                    "pg_switch_wal()", "db1")

        def has_all():
            with open(out, "rb") as src:
                return b"the last one" in src.read()
        procs.wait_for(has_all, 20, "all changes")
        with open(out, "rb") as src:
            assert src.read().count(b"seen ") == 5000
        procs.wait_for(lambda: [n for n in os.listdir(tmp_path)
                                if len(n) == 24], 20, "a whole segment")
        for proc in started:
            assert proc.poll() is None
    finally:
        for proc in started:
            proc.send_signal(signal.SIGINT)
        codes = [proc.wait(20) for proc in started]
        procs.wait_for(lambda: not cluster.sql(
            "SELECT 1 FROM pg_replication_slots WHERE active"), 20,
            "the slot's release")
        cluster.sql("SELECT pg_drop_replication_slot('received')")
        cluster.sql("DROP PUBLICATION all_of_it", "db1")
    assert codes == [0, 0]


# Shutdown: as PostgreSQL's, which does not wait for streaming either

@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_does_not_wait_for_streaming(replicating, cluster, target,
                                              number):
    if target != "pgbraid":
        pytest.skip("PgBouncer waits until all clients have left")
    w = physical(replicating)
    at = w.ok("IDENTIFY_SYSTEM").rows[0][2].decode()
    w.send(query("START_REPLICATION PHYSICAL %s" % at))
    w.read_until("W")
    session = replicating.wire()
    session.ok("BEGIN")
    replicating.signal(number)
    replicating.wait_log("waiting for the ")
    cluster.sql("CREATE TABLE IF NOT EXISTS streamed2 (a int)", "db1")
    assert w.read_until("d")  # it goes on while others are waited for
    session.ok("COMMIT")
    session.close()
    assert replicating.wait_exit() == 0
    w.read_until("E")
    w.abort()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_waits_for_a_backup(replicating, target, tool, tmp_path,
                                     number):
    if target != "pgbraid":
        pytest.skip("how PgBouncer ends is not asked here")
    proc = subprocess.Popen(
        [tool("pg_basebackup", "postgresql-client"), "-D",
         str(tmp_path / "backup"), "-X", "none", "-c", "fast", "-r", "20M",
         "--no-sync"], env=replicating.url_env(USER, "replication"),
        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        procs.wait_for(lambda: (tmp_path / "backup" / "base").exists(), 20,
                       "the first files")
        replicating.signal(number)
        assert proc.wait(30) == 0
    finally:
        proc.kill()
        proc.wait()
    assert replicating.wait_exit() == 0


def test_a_replication_is_not_the_first_server(replicating):
    """Whom it came first for does not keep others of the pool waiting."""
    w = replicating.wire(USER, "db1", params={"replication": "database"})
    with replicating.wire(USER, "db1") as other:
        assert other.value("SELECT 1") == "1"
    w.abort()
