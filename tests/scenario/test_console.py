# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The console: PgBouncer's columns, their types and order; commands."""
import pytest

import procs
from pgwire import (ServerError, WireClosed, bind, describe, execute, parse,
                    query, startup, sync)

core = pytest.mark.core
pytestmark = pytest.mark.pooled
TEXT, INT4, INT8, NUMERIC = 25, 23, 20, 1700
PID = "SELECT pg_backend_pid()"


def columns(text):
    """"a b:i c:n" to [(name, oid)]; s is the default."""
    oids = {"s": TEXT, "i": INT4, "q": INT8, "n": NUMERIC, "t": TEXT}
    out = []
    for word in text.split():
        name, _, kind = word.partition(":")
        out.append((name, oids[kind or "s"]))
    return out


SOCKETS = ("type user database replication state addr port:i local_addr"
           " local_port:i connect_time:t request_time:t wait:i wait_us:i"
           " close_needed:i ptr link remote_pid:i tls application_name"
           " prepared_statements:i id:i")
SHOW = {
    "POOLS": "database user cl_active:i cl_waiting:i cl_active_cancel_req:i"
             " cl_waiting_cancel_req:i sv_active:i sv_active_cancel:i"
             " sv_being_canceled:i sv_idle:i sv_used:i sv_tested:i"
             " sv_login:i maxwait:i maxwait_us:i pool_mode"
             " load_balance_hosts",
    "CLIENTS": SOCKETS,
    "SERVERS": SOCKETS,
    "DATABASES": "name host port:i database force_user pool_size:i"
                 " min_pool_size:i reserve_pool_size:i server_lifetime"
                 " pool_mode load_balance_hosts max_connections:i"
                 " current_connections:i max_client_connections:i"
                 " current_client_connections:i paused:i disabled:i",
    "USERS": "name pool_size reserve_pool_size pool_mode"
             " max_user_connections:i current_connections:i"
             " max_user_client_connections:i current_client_connections:i",
    "LISTS": "list items:i",
    "CONFIG": "key value default changeable",
    "MEM": "name size:i used:i free:i memtotal:i",
    "STATE": "key value",
    "VERSION": "version",
    "STATS": "database total_server_assignment_count:n total_xact_count:n"
             " total_query_count:n total_received:n total_sent:n"
             " total_xact_time:n total_query_time:n total_wait_time:n"
             " total_client_parse_count:n total_server_parse_count:n"
             " total_bind_count:n total_client_login_count:n"
             " avg_server_assignment_count:n avg_xact_count:n"
             " avg_query_count:n avg_recv:n avg_sent:n avg_xact_time:n"
             " avg_query_time:n avg_wait_time:n avg_client_parse_count:n"
             " avg_server_parse_count:n avg_bind_count:n"
             " avg_client_login_count:n",
    "STATS_TOTALS": "database server_assignment_count:n xact_count:n"
                    " query_count:n bytes_received:n bytes_sent:n"
                    " xact_time:n query_time:n wait_time:n"
                    " client_parse_count:n server_parse_count:n"
                    " bind_count:n client_login_count:n",
    "STATS_AVERAGES": "database server_assignment_count:n xact_count:n"
                      " query_count:n bytes_received:n bytes_sent:n"
                      " xact_time:n query_time:n wait_time:n"
                      " avg_client_parse_count:n avg_server_parse_count:n"
                      " avg_bind_count:n avg_client_login_count:n",
}


@core
@pytest.mark.differs("has fewer columns")
@pytest.mark.parametrize("what", sorted(SHOW))
def test_columns(pooler, what):
    """PgBouncer's come first, in its order and with its types."""
    with pooler.wire() as w, pooler.admin() as a:
        w.ok("SELECT 1")
        got = a.ok("SHOW " + what)
        want = columns(SHOW[what])
        if what == "DATABASES":
            want = [(n, o) if n != "server_lifetime" else
                    got.columns[i] for i, (n, o) in enumerate(want)]
        assert got.columns[:len(want)] == want
        assert got.tags == ["SHOW"]


@core
def test_show_help_is_a_notice(pooler):
    with pooler.admin() as a:
        got = a.query("SHOW HELP")
        assert got.notices and "SHOW" in str(got.notices)
        assert not got.errors


def test_show_mem_counts_what_there_is(make_pooler, transport):
    p = make_pooler(transport=transport)
    with p.wire() as w, p.wire() as v, p.admin() as a:
        w.ok("BEGIN")
        v.ok("SELECT 1")
        rows = {r["name"]: r for r in a.ok("SHOW MEM").dicts()}
        assert rows["client_cache"]["used"] == "3"
        assert int(rows["server_cache"]["used"]) >= 1
        for row in rows.values():
            assert int(row["memtotal"]) >= int(row["used"])
        assert int(rows["iobuf_cache"]["used"]) < 1 << 20
        w.ok("COMMIT")


@core
def test_show_version(pooler):
    with pooler.admin() as a:
        got = a.query("SHOW VERSION")
        assert got.rows or got.notices


@core
def test_show_in_any_case_and_with_a_semicolon(pooler):
    with pooler.admin() as a:
        for sql in ("show pools", "SHOW POOLS;", "  Show   Pools ; ",
                    "SHOW pools; "):
            assert a.ok(sql).columns[0][0] == "database"


@core
def test_several_commands_on_one_connection(pooler):
    with pooler.admin() as a:
        for _ in range(20):
            for what in ("POOLS", "CLIENTS", "SERVERS", "LISTS"):
                assert a.ok("SHOW " + what).tags == ["SHOW"]


def test_pipelined_commands(pooler):
    with pooler.admin() as a:
        a.send(*[query("SHOW LISTS")] * 50)
        for _ in range(50):
            assert a.read_ready().rows


@core
@pytest.mark.differs("knows the simple protocol only")
def test_extended_protocol(pooler):
    with pooler.admin() as a:
        a.send(parse("", "SHOW POOLS"), bind(), describe("P"), execute(),
               sync())
        got = a.read_ready()
        assert not got.errors, got.errors
        assert got.columns[0][0] == "database"
        assert got.types.replace("D", "") == "12TCZ"


@pytest.mark.differs("knows the simple protocol only")
def test_extended_protocol_describe_statement(pooler):
    with pooler.admin() as a:
        a.send(parse("s", "SHOW LISTS"), describe("S", "s"), sync())
        got = a.read_ready()
        assert got.types == "1tTZ", got
        a.send(bind("", "s"), execute(), sync())
        got = a.read_ready()
        assert got.types.replace("D", "") == "2CZ" and got.rows


@pytest.mark.differs("knows the simple protocol only")
def test_psycopg_on_the_console(pooler):
    with pooler.pg("admin", "pgbouncer") as c:
        rows = c.execute("SHOW LISTS").fetchall()
        assert rows


@core
@pytest.mark.differs("has its own name")
def test_console_under_its_own_name(pooler):
    with pooler.admin(database="pgbraid") as a:
        assert a.ok("SHOW VERSION")


@core
def test_unknown_command(pooler):
    with pooler.admin() as a:
        for sql in ("NONSENSE", "SHOW NONSENSE", "SELECT 1 FROM x",
                    "DROP TABLE x", "'", "SHOW POOLS POOLS x"):
            got = a.query(sql)
            assert got.errors, sql
            assert got.status == "I"
        assert a.ok("SHOW LISTS").rows


def test_empty_command(pooler):
    with pooler.admin() as a:
        a.query("")
        assert a.ok("SHOW LISTS").rows


@core
def test_stats_user_reads_but_does_not_act(pooler):
    with pooler.admin("stats") as s:
        for what in ("POOLS", "STATS", "LISTS", "DATABASES"):
            assert s.ok("SHOW " + what)
        for sql in ("PAUSE", "RESUME", "RELOAD", "KILL db1", "SHUTDOWN",
                    "SET query_timeout = 5", "RECONNECT"):
            got = s.query(sql)
            assert got.errors, sql
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
def test_driver_settings_are_answered(pooler):
    with pooler.admin() as a:
        for name in ("client_encoding", "datestyle", "timezone",
                     "standard_conforming_strings",
                     "default_transaction_isolation"):
            assert a.ok("SHOW " + name).rows, name


# --- what the tables say ----------------------------------------------------------

@core
def test_pools_count_clients_and_servers(make_pooler, transport):
    p = make_pooler({"default_pool_size": 2}, transport=transport)
    with p.wire() as a, p.wire() as b, p.wire() as c:
        a.ok("BEGIN")
        b.ok("BEGIN")
        c.send(query("SELECT 1"))
        p.wait_pool(cl_active=2, cl_waiting=1, sv_active=2, sv_idle=0)
        a.ok("COMMIT")
        c.read_ready()
        p.wait_pool(cl_active=3, cl_waiting=0, sv_active=1, sv_idle=1)
        b.ok("COMMIT")
        p.wait_pool(cl_active=3, sv_active=0, sv_idle=2)
    p.wait_pool(cl_active=0, cl_waiting=0)


@core
@pytest.mark.unfit("pooled", "looks for PostgreSQL's process")
def test_clients_and_servers_are_linked(pooler, transport):
    with pooler.wire(params={"application_name": "finder"}) as w:
        w.ok("BEGIN")
        pid = w.value(PID)
        rows = [r for r in pooler.show("CLIENTS")
                if r["user"] == "u_trust"]
        assert len(rows) == 1
        row = rows[0]
        assert row["type"] == "C" and row["database"] == "db1"
        servers = [r for r in pooler.servers() if r["remote_pid"] == pid]
        assert len(servers) == 1 and servers[0]["state"] == "active"
        assert row["link"] == servers[0]["ptr"]
        assert servers[0]["link"] == row["ptr"]
        if transport.name == "tls":
            assert "TLS" in row["tls"] and "TLS" in servers[0]["tls"]
        w.ok("COMMIT")


@pytest.mark.differs("1.18 has no such column")
def test_clients_show_the_application_name(pooler):
    with pooler.wire(params={"application_name": "finder"}):
        rows = [r for r in pooler.show("CLIENTS")
                if r["user"] == "u_trust"]
        assert rows[0]["application_name"] == "finder"


@core
def test_all_workers_clients_are_shown(pooler):
    """One SHOW gathers from every worker."""
    wires = [pooler.wire() for _ in range(40)]
    for w in wires:
        w.ok("SELECT 1")
    rows = [r for r in pooler.show("CLIENTS") if r["user"] == "u_trust"]
    assert len(rows) == 40
    assert len({r["ptr"] for r in rows}) == 40
    assert pooler.pool()["cl_active"] == 40
    for w in wires:
        w.close()


@core
def test_stats_count(pooler):
    with pooler.wire() as w:
        for _ in range(25):
            w.ok("SELECT 1")
        w.ok("BEGIN")
        w.ok("SELECT 1")
        w.ok("COMMIT")

    def counted():
        row = [r for r in pooler.show("STATS_TOTALS")
               if r["database"] == "db1"][0]
        return (int(row["xact_count"]), int(row["query_count"])) == (26, 28)
    procs.wait_for(counted, 5, lambda: str(pooler.show("STATS_TOTALS")))


@core
@pytest.mark.differs("1.18 counts none")
def test_stats_count_parses_and_binds(make_pooler, transport):
    p = make_pooler({"default_pool_size": 1}, transport=transport)
    with p.wire() as w:
        for i in range(3):
            w.send(parse("s%d" % i, "SELECT 'same'"), sync())
            w.read_ready()
        for _ in range(7):
            w.send(bind("", "s0"), execute(), sync())
            w.read_ready()
    row = [r for r in p.show("STATS_TOTALS") if r["database"] == "db1"][0]
    assert int(row["client_parse_count"]) == 3
    assert int(row["server_parse_count"]) == 1
    assert int(row["bind_count"]) == 7


@core
def test_databases_hide_passwords(make_pooler):
    p = make_pooler()
    p.databases["forced"] = (p.server() + " dbname=db1 user=u_scram"
                             " password=scramword")
    p.write_ini()
    p.reload()
    for what in ("DATABASES", "CONFIG", "USERS", "CLIENTS", "SERVERS"):
        assert "scramword" not in str(p.show(what))
    row = [r for r in p.show("DATABASES") if r["name"] == "forced"][0]
    assert row["force_user"] == "u_scram" and row["database"] == "db1"
    assert row["host"] == "127.0.0.1"


@core
def test_config_lists_every_option(pooler):
    got = {r["key"]: r for r in pooler.show("CONFIG")}
    assert got["pool_mode"]["value"] == "transaction"
    assert got["pool_mode"]["changeable"] == "yes"
    assert got["listen_port"]["changeable"] == "no"
    assert got["default_pool_size"]["value"] == "5"
    assert got["default_pool_size"]["default"] == "20"
    for key in ("query_timeout", "server_lifetime", "client_tls_sslmode"):
        assert key in got


# --- commands -----------------------------------------------------------------------

@core
def test_pause_waits_for_transactions(one_server):
    p = one_server
    with p.wire() as w, p.admin() as a:
        w.ok("BEGIN")
        a.send(query("PAUSE"))
        assert not a.has_data(0.3)
        w.ok("COMMIT")
        assert a.read_ready().tags == ["PAUSE"]
        w.send(query("SELECT 2"))
        assert not w.has_data(0.3)
        assert a.ok("RESUME").tags == ["RESUME"]
        assert w.read_ready().value() == "2"


@core
@pytest.mark.unfit("pooled",
                   "PostgreSQL's processes stay with the pooler behind")
def test_pause_closes_idle_servers(pooler, cluster):
    with pooler.wire() as w, pooler.admin() as a:
        pid = w.value(PID)
        a.ok("PAUSE")
        procs.wait_for(lambda: not cluster.sql(
            "SELECT 1 FROM pg_stat_activity WHERE pid = " + pid), 5,
            "the server's end")
        a.ok("RESUME")
        assert w.value("SELECT 1") == "1"


@core
def test_pause_one_database(pooler):
    with pooler.wire() as w, pooler.wire(database="db2") as other, \
            pooler.admin() as a:
        a.ok("PAUSE db1")
        w.send(query("SELECT 1"))
        assert other.value("SELECT 2") == "2"
        assert not w.has_data(0.2)
        row = [r for r in pooler.show("DATABASES") if r["name"] == "db1"][0]
        assert row["paused"] == "1"
        a.ok("RESUME db1")
        assert w.read_ready().value() == "1"


def test_pause_while_clients_wait(one_server):
    p = one_server
    with p.wire() as w, p.wire() as waiter, p.admin() as a:
        w.ok("BEGIN")
        waiter.send(query("SELECT 'w'"))
        p.wait_pool(cl_waiting=1)
        a.send(query("PAUSE"))
        w.ok("COMMIT")
        assert a.read_ready().tags == ["PAUSE"]
        a.ok("RESUME")
        assert waiter.read_ready().value() == "w"


def test_resume_when_not_paused_is_an_error(pooler):
    with pooler.admin() as a:
        assert a.query("RESUME").errors
        assert a.query("RESUME db1").errors
        assert a.query("RESUME nowhere").errors


def test_pause_twice_is_an_error(pooler):
    with pooler.admin() as a:
        a.ok("PAUSE")
        assert a.query("PAUSE").errors
        a.ok("RESUME")


def test_admin_who_leaves_during_pause(one_server):
    p = one_server
    with p.wire() as w:
        w.ok("BEGIN")
        a = p.admin()
        a.send(query("PAUSE"))
        assert not a.has_data(0.2)
        a.reset()
        w.ok("COMMIT")
        with p.admin() as b:
            procs.wait_for(lambda: not b.query("RESUME").errors, 5,
                           "RESUME")
        assert w.value("SELECT 1") == "1"


@core
def test_new_clients_wait_while_paused(pooler):
    with pooler.admin() as a:
        a.ok("PAUSE")
        w = pooler.open()
        w.send(startup({"user": "u_trust", "database": "db1"}),
               query("SELECT 'let in'"))
        a.ok("RESUME")
        w.finish_login("u_trust")
        assert w.read_ready().value() == "let in"
        w.close()


@core
def test_kill_drops_everything(pooler, cluster):
    w, other = pooler.wire(), pooler.wire(database="db2")
    w.ok("BEGIN")
    with pooler.admin() as a:
        a.ok("KILL db1")
    assert w.is_closed()
    w.abort()
    assert other.value("SELECT 1") == "1"
    other.close()
    assert cluster.sql("SELECT count(*) FROM pg_stat_activity WHERE datname"
                       " = 'db1' AND state LIKE 'idle in%'") == [["0"]]
    with pooler.admin() as a:
        a.query("RESUME db1")
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
@pytest.mark.unfit("pooled",
                   "PostgreSQL's processes stay with the pooler behind")
def test_reconnect_replaces_servers(pooler):
    with pooler.wire() as w, pooler.admin() as a:
        w.ok("BEGIN")
        first = w.value(PID)
        a.ok("RECONNECT")
        assert w.value(PID) == first
        w.ok("COMMIT")
        procs.wait_for(lambda: w.value(PID) != first, 5, "a new server")


def test_reconnect_one_database(pooler):
    with pooler.wire() as w, pooler.admin() as a:
        first = w.value(PID)
        a.ok("RECONNECT db2")
        assert w.value(PID) == first
        a.ok("RECONNECT db1")
        procs.wait_for(lambda: w.value(PID) != first, 5, "a new server")


@core
def test_set_takes_effect(make_pooler, transport, cluster):
    p = make_pooler({"query_timeout": 0}, transport=transport)
    with p.admin() as a:
        a.ok("SET query_timeout = 1")
        got = {r["key"]: r["value"] for r in a.ok("SHOW CONFIG").dicts()}
        assert float(got["query_timeout"]) == 1
    w = p.wire()
    w.send(query("SELECT pg_sleep(20)"))
    assert any(m.type == "E" for m in w.read_to_close(10))
    w.abort()
    # PostgreSQL is told, else it would sleep on with its connection.
    procs.wait_for(lambda: cluster.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND"
        " query = 'SELECT pg_sleep(20)'") == [["0"]], 10, "the query's end")


def test_set_in_several_spellings(pooler):
    with pooler.admin() as a:
        for sql in ("SET default_pool_size = 7",
                    "SET default_pool_size='8'",
                    "set default_pool_size to 9"):
            a.ok(sql)
            want = sql.strip("'")[-1]
            got = {r["key"]: r["value"]
                   for r in a.ok("SHOW CONFIG").dicts()}
            assert got["default_pool_size"] == want


@core
@pytest.mark.differs("1.18 does otherwise")
def test_set_refuses_bad_values(pooler):
    with pooler.admin() as a:
        for sql in ("SET default_pool_size = x", "SET no_such = 1",
                    "SET listen_port = 1", "SET pool_mode = never"):
            assert a.query(sql).errors, sql
        assert a.ok("SHOW CONFIG").rows


@core
def test_shutdown(make_pooler):
    p = make_pooler()
    with p.wire() as w, p.admin() as a:
        w.ok("SELECT 1")
        a.send(query("SHUTDOWN"))
        assert p.wait_exit() == 0


@core
@pytest.mark.differs("1.18 has no such modes")
def test_shutdown_wait_for_clients(make_pooler):
    p = make_pooler()
    w, a = p.wire(), p.admin()
    w.ok("SELECT 1")
    a.send(query("SHUTDOWN WAIT_FOR_CLIENTS"))
    assert not w.has_data(0.2)
    assert w.value("SELECT 2") == "2"
    w.close()
    a.close()
    assert p.wait_exit() == 0


@pytest.mark.differs("1.18 has no such modes")
def test_shutdown_wait_for_servers(make_pooler):
    p = make_pooler()
    w, a = p.wire(), p.admin()
    w.ok("BEGIN")
    a.send(query("SHUTDOWN WAIT_FOR_SERVERS"))
    assert w.value("SELECT 2") == "2"
    w.query("COMMIT")
    w.abort()
    a.abort()
    assert p.wait_exit() == 0


@pytest.mark.differs("1.18 does otherwise")
def test_console_survives_large_and_odd_queries(pooler):
    with pooler.admin() as a:
        got = a.query("SHOW " + "x" * 5000)
        assert got.errors
    w = pooler.admin()
    try:
        w.send(query("y" * 3000000))
        w.read_until("ZE", 10)
    except (ServerError, WireClosed):
        pass
    w.abort()
    assert pooler.show("LISTS")


@core
def test_show_while_hundreds_of_clients_are_busy(make_pooler, transport):
    p = make_pooler({"default_pool_size": 10}, transport=transport)
    wires = [p.wire() for _ in range(200)]
    for w in wires:
        w.send(query("SELECT pg_sleep(0.01)"))
    for _ in range(10):
        for what in ("CLIENTS", "SERVERS", "POOLS", "STATS"):
            assert p.show(what)
    for w in wires:
        w.read_ready()
        w.close()
