# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The v3 protocol passes through unharmed, message by message."""
import os
import struct
import threading

import pytest

import procs
from pgwire import (WireClosed, bind, close, copy_data, copy_done, copy_fail,
                    describe, execute, flush, function_call, msg, parse,
                    query, sync, terminate)

core = pytest.mark.core


def types(messages):
    return "".join(m.type for m in messages)


# --- simple query ---------------------------------------------------------

@core
def test_simple_query(pooler):
    with pooler.wire() as w:
        got = w.query("SELECT 1 AS a, NULL AS b, 'x'::text AS c")
        assert got.types == "TDCZ"
        assert got.rows == [[b"1", None, b"x"]]
        assert [c[0] for c in got.columns] == ["a", "b", "c"]
        assert got.tags == ["SELECT 1"]
        assert got.status == "I"


def test_empty_query(pooler):
    with pooler.wire() as w:
        assert w.query("").types == "IZ"
        assert w.query(" ; ;").types in ("IZ", "IIZ")
        assert w.value("SELECT 2") == "2"


def test_many_statements_in_one_query(pooler):
    with pooler.wire() as w:
        got = w.query("SELECT 1; SELECT 2; SELECT 3")
        assert got.types == "TDCTDCTDCZ"


def test_error_in_the_middle_of_a_multi_statement(pooler):
    with pooler.wire() as w:
        got = w.query("SELECT 1; SELECT 1/0; SELECT 3")
        assert got.types == "TDCEZ"
        assert got.sqlstate() == "22012"
        assert w.value("SELECT 4") == "4"


def test_pipelined_simple_queries(pooler):
    with pooler.wire() as w:
        w.send(*[query("SELECT %d" % i) for i in range(300)])
        for i in range(300):
            got = w.read_ready()
            assert got.value() == str(i)


@core
def test_transaction_status_is_reported(pooler):
    with pooler.wire() as w:
        assert w.query("BEGIN").status == "T"
        assert w.query("SELECT 1/0").status == "E"
        got = w.query("SELECT 1")
        assert got.sqlstate() == "25P02" and got.status == "E"
        assert w.query("ROLLBACK").status == "I"


def test_commit_and_begin_in_one_query(pooler):
    with pooler.wire() as w:
        w.ok("BEGIN")
        first = w.value("SELECT pg_backend_pid()")
        assert w.query("COMMIT; BEGIN").status == "T"
        assert w.value("SELECT pg_backend_pid()") == first
        w.ok("COMMIT")


def test_error_fields_arrive_complete(pooler):
    with pooler.wire() as w:
        got = w.query("DO $$BEGIN RAISE EXCEPTION 'm' USING DETAIL='d',"
                      " HINT='h', ERRCODE='P0042', SCHEMA='s', TABLE='t',"
                      " COLUMN='c', DATATYPE='y', CONSTRAINT='n'; END$$")
        want = {"M": "m", "D": "d", "H": "h", "C": "P0042", "s": "s",
                "t": "t", "c": "c", "d": "y", "n": "n"}
        assert want.items() <= got.error.items()


def test_notices_arrive_before_the_result(pooler):
    with pooler.wire() as w:
        got = w.query("DO $$BEGIN FOR i IN 1..50 LOOP RAISE NOTICE 'n %',"
                      " i; END LOOP; END$$")
        assert [n["M"] for n in got.notices] == [
            "n %d" % i for i in range(1, 51)]
        assert got.types == "N" * 50 + "CZ"


# --- extended query -------------------------------------------------------

@core
def test_extended_unnamed(pooler):
    with pooler.wire() as w:
        got = w.extended("SELECT $1::int + 1", ["41"])
        assert got.types == "12TDCZ"
        assert got.value() == "42"


def test_describe_statement_gives_parameter_types(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT $1::int, $2::text"), describe("S"), sync())
        got = w.read_ready()
        assert got.types == "1tTZ"
        t = [m for m in got.messages if m.type == "t"][0]
        assert struct.unpack("!HII", t.body) == (2, 23, 25)


def test_describe_statement_without_result(pooler):
    with pooler.wire() as w:
        w.send(parse("", "DO $$BEGIN END$$"), describe("S"), sync())
        assert w.read_ready().types == "1tnZ"


def test_parameter_types_given_by_the_client(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT $1", [1043]), describe("S"), sync())
        got = w.read_ready()
        assert got.columns[0][1] == 1043


def test_binary_parameters_and_results(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT $1::int8"),
               bind("", "", [struct.pack("!q", -7)], [1], [1]),
               execute(), sync())
        got = w.read_ready()
        assert got.rows == [[struct.pack("!q", -7)]]


def test_null_parameter(pooler):
    with pooler.wire() as w:
        assert w.extended("SELECT $1::text IS NULL", [None]).value() == "t"


def test_many_parameters(pooler):
    count = 5000
    sql = "SELECT cardinality(ARRAY[%s])" % ",".join(
        "$%d::int8" % i for i in range(1, count + 1))
    with pooler.wire() as w:
        got = w.extended(sql, ["1"] * count)
        assert got.value() == str(count)


@core
def test_portal_with_row_limit(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT generate_series(1, 10)"), bind(),
               execute("", 4), execute("", 4), execute("", 4), sync())
        got = w.read_ready()
        assert got.types == "12DDDDsDDDDsDDCZ"


def test_portal_is_fetched_step_by_step_with_flush(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT generate_series(1, 5)"), bind("p1"),
               flush())
        assert types(w.read_until("2")) == "12"
        rows = []
        for _ in range(3):
            w.send(execute("p1", 2), flush())
            rows += w.read_until("sC")
        assert types(rows) == "DDsDDsDC"
        w.send(sync())
        assert w.read_ready().types == "Z"


def test_named_portal_in_a_transaction(pooler):
    with pooler.wire() as w:
        w.ok("BEGIN")
        w.send(parse("", "SELECT generate_series(1, 6)"), bind("cur"),
               execute("cur", 2), sync())
        assert w.read_ready().types == "12DDsZ"
        assert w.value("SELECT 1") == "1"
        w.send(execute("cur", 2), describe("P", "cur"), sync())
        assert w.read_ready().types == "DDsTZ"
        w.send(close("P", "cur"), sync())
        assert w.read_ready().types == "3Z"
        w.send(execute("cur"), sync())
        assert w.read_ready().sqlstate() == "34000"
        w.ok("ROLLBACK")


@core
def test_flush_without_sync_keeps_the_server(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT pg_backend_pid()"), bind(), execute(),
               flush())
        first = [m for m in w.read_until("C") if m.type == "D"][0].row
        w.send(bind(), execute(), flush())
        again = [m for m in w.read_until("C") if m.type == "D"][0].row
        assert first == again
        w.send(sync())
        assert w.read_ready().types == "Z"


def test_flush_alone(pooler):
    with pooler.wire() as w:
        w.send(flush())
        assert w.value("SELECT 1") == "1"


def test_sync_alone(pooler):
    with pooler.wire() as w:
        w.send(sync(), sync(), sync())
        for _ in range(3):
            assert w.read_ready().types == "Z"
        assert w.value("SELECT 1") == "1"


@core
def test_error_skips_to_sync(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT 1/0"), bind(), execute(),
               parse("", "SELECT 1"), bind(), execute(), sync())
        got = w.read_ready()
        assert got.types in ("12EZ", "1EZ")
        assert w.value("SELECT 3") == "3"


def test_parse_error_skips_to_sync(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELEC"), bind(), describe("P"), execute(), sync())
        got = w.read_ready()
        assert got.types == "EZ" and got.sqlstate() == "42601"


@core
def test_pipeline_with_errors_in_the_middle(pooler):
    """Each Sync ends one batch; a failed one does not touch the next."""
    with pooler.wire() as w:
        for i in range(200):
            sql = "SELECT 1/0" if i % 7 == 3 else "SELECT %d" % i
            w.send(parse("", sql), bind(), execute(), sync())
        for i in range(200):
            got = w.read_ready()
            if i % 7 == 3:
                assert got.sqlstate() == "22012"
            else:
                assert got.value() == str(i)


def test_two_statements_before_one_sync(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT 1"), bind(), execute(),
               parse("", "SELECT 2"), bind(), execute(), sync())
        assert w.read_ready().types == "12DC12DCZ"


@core
def test_simple_query_in_an_unsynced_batch(pooler):
    with pooler.wire() as w:
        w.send(parse("", "SELECT 1"), bind(), execute(), query("SELECT 2"))
        got = w.read_ready()
        assert got.types == "12DCTDCZ"
        w.send(sync())
        assert w.read_ready().types == "Z"
        assert w.value("SELECT 3") == "3"


def test_simple_query_after_an_error_in_an_unsynced_batch(pooler):
    """PostgreSQL skips to Sync: the simple query is not run."""
    with pooler.wire() as w:
        w.send(parse("", "SELECT 1/0"), bind(), execute(),
               query("SELECT 2"), sync())
        got = w.read_ready()
        assert got.sqlstate() == "22012"
        assert b"2" not in [r[0] for r in got.rows]
        assert w.value("SELECT 3") == "3"


@pytest.mark.slow
def test_pipeline_larger_than_all_buffers(pooler):
    """Requests go on while nobody reads, then all replies come."""
    count = 20000
    with pooler.wire() as w:
        batch = b"".join([parse("", "SELECT repeat('x', 500)"), bind(),
                          execute(), sync()])
        sender = threading.Thread(target=w.sock.sendall,
                                  args=(batch * count,))
        if pooler.transport.name == "tls":
            # One SSL object must not be used by two threads.
            count = 300
            w.send(batch * count)
        else:
            sender.start()
        for _ in range(count):
            assert w.read_ready().types == "12DCZ"
        if sender.is_alive():
            sender.join(10)


def test_unknown_message_type_is_refused(pooler):
    w = pooler.wire()
    w.send(msg("y", b"what"))
    got = w.read_to_close()
    assert got == [] or got[0].type == "E"
    w.abort()
    with pooler.wire() as again:
        assert again.value("SELECT 1") == "1"


def test_bad_message_length_closes(pooler):
    w = pooler.wire()
    w.send(b"Q" + struct.pack("!I", 2))
    assert w.is_closed()
    w.abort()


def test_terminate_closes_without_a_word(pooler):
    w = pooler.wire()
    w.send(terminate())
    assert w.read_to_close() == []
    w.abort()


# --- COPY -----------------------------------------------------------------

def make_table(pooler, w):
    name = "t_%s_%d" % (pooler.transport.name, os.getpid())
    w.ok("DROP TABLE IF EXISTS %s" % name)
    w.ok("CREATE TABLE %s (a int, b text)" % name)
    return name


@core
def test_copy_out(pooler):
    with pooler.wire() as w:
        got = w.query("COPY (SELECT generate_series(1, 1000)) TO STDOUT")
        assert got.types == "H" + "d" * 1000 + "cCZ"
        assert got.tags == ["COPY 1000"]


@core
def test_copy_in(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(query("COPY %s FROM STDIN" % name))
        assert w.read().type == "G"
        for i in range(1000):
            w.send(copy_data(b"%d\tvalue\n" % i))
        w.send(copy_done())
        got = w.read_ready()
        assert got.tags == ["COPY 1000"]
        assert w.value("SELECT count(*) FROM %s" % name) == "1000"
        w.ok("DROP TABLE %s" % name)


@core
def test_copy_in_client_fails(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(query("COPY %s FROM STDIN" % name))
        assert w.read().type == "G"
        w.send(copy_data(b"1\tx\n"), copy_fail("changed my mind"))
        got = w.read_ready()
        assert got.sqlstate() == "57014"
        assert "changed my mind" in got.error["M"]
        assert w.value("SELECT count(*) FROM %s" % name) == "0"
        w.ok("DROP TABLE %s" % name)


@core
def test_copy_in_server_fails_early(pooler):
    """CopyData that is still on its way is dropped, then all is well."""
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(query("COPY %s FROM STDIN" % name))
        assert w.read().type == "G"
        w.send(copy_data(b"not a number\tx\n"))
        for _ in range(2000):
            w.send(copy_data(b"1\tx\n"))
        w.send(copy_done())
        got = w.read_ready()
        assert got.sqlstate() == "22P02" and got.status == "I"
        assert w.value("SELECT 5") == "5"
        w.ok("DROP TABLE %s" % name)


def test_copy_in_server_fails_at_the_end(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.ok("ALTER TABLE %s ADD UNIQUE (a)" % name)
        w.send(query("COPY %s FROM STDIN" % name), copy_data(b"1\tx\n"),
               copy_data(b"1\ty\n"), copy_done())
        got = w.read_ready()
        assert got.sqlstate() == "23505"
        w.ok("DROP TABLE %s" % name)


@pytest.mark.differs("loses the reply of what follows the COPY")
def test_copy_in_data_sent_before_the_reply(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(query("COPY %s FROM STDIN" % name), copy_data(b"1\tx\n"),
               copy_data(b"2\ty\n"), copy_done(), query("SELECT 7"))
        assert w.read_ready().tags == ["COPY 2"]
        assert w.read_ready().value() == "7"
        w.ok("DROP TABLE %s" % name)


def test_copy_refused_with_data_already_sent(pooler):
    """The COPY fails before it starts: its data is out of place."""
    with pooler.wire() as w:
        w.send(query("COPY no_such_table FROM STDIN"),
               copy_data(b"1\tx\n"), copy_done())
        got = w.read_ready()
        assert got.sqlstate() == "42P01"
        assert w.value("SELECT 6") == "6"


@core
def test_copy_in_extended(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(parse("", "COPY %s FROM STDIN" % name), bind(), execute(),
               sync())
        assert types(w.read_until("G")) == "12G"
        # Sync during COPY is ignored by the server; ours ends it.
        w.send(copy_data(b"1\tx\n"), copy_done(), sync())
        got = w.read_ready()
        assert got.tags == ["COPY 1"]
        assert w.value("SELECT count(*) FROM %s" % name) == "1"
        w.ok("DROP TABLE %s" % name)


def test_copy_in_extended_fails(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(parse("", "COPY %s FROM STDIN" % name), bind(), execute())
        w.send(flush())
        assert types(w.read_until("G")) == "12G"
        w.send(copy_data(b"wrong\tx\n"), copy_data(b"1\tx\n"),
               copy_done(), sync())
        got = w.read_ready()
        assert got.sqlstate() == "22P02"
        assert w.value("SELECT 8") == "8"
        w.ok("DROP TABLE %s" % name)


def test_copy_out_fails_in_the_middle(pooler):
    with pooler.wire() as w:
        got = w.query("COPY (SELECT 1/(500 - g) FROM "
                      "generate_series(1, 1000) g) TO STDOUT")
        assert got.sqlstate() == "22012"
        assert got.types.endswith("EZ")
        assert w.value("SELECT 9") == "9"


def test_copy_out_in_a_pipeline(pooler):
    with pooler.wire() as w:
        w.send(parse("", "COPY (SELECT 1) TO STDOUT"), bind(), execute(),
               parse("", "SELECT 2"), bind(), execute(), sync())
        assert w.read_ready().types == "12HdcC12DCZ"


def test_several_copies_in_one_simple_query(pooler):
    with pooler.wire() as w:
        name = make_table(pooler, w)
        w.send(query("COPY %s FROM STDIN; COPY %s FROM STDIN; SELECT 1"
                     % (name, name)))
        assert w.read().type == "G"
        w.send(copy_data(b"1\tx\n"), copy_done())
        assert types(w.read_until("G")) == "CG"
        w.send(copy_data(b"2\tx\n"), copy_done())
        assert w.read_ready().types == "CTDCZ"
        w.ok("DROP TABLE %s" % name)


def test_query_inside_copy_in_ends_the_session(pooler):
    """PostgreSQL: an error, then FATAL, synchronization was lost."""
    w = pooler.wire()
    w.ok("BEGIN; CREATE TEMP TABLE qi (a int) ON COMMIT DROP")
    w.send(query("COPY qi FROM STDIN"))
    w.read_until("G")
    w.send(copy_data(b"1\n"), query("SELECT 1"))
    got = [m for m in w.read_to_close() if m.type == "E"]
    assert got[0].fields["C"] == "08P01"
    w.abort()
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_client_dies_inside_copy_in(pooler, cluster):
    with pooler.wire() as w:
        name = make_table(pooler, w)
    w = pooler.wire()
    w.send(query("COPY %s FROM STDIN" % name))
    assert w.read().type == "G"
    w.send(copy_data(b"1\tx\n"))
    w.reset()
    procs.wait_for(lambda: cluster.sql(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY %s%%'"
        " AND state = 'active'" % name)[0] == ["0"], 10, "end of the COPY")
    with pooler.wire() as w:
        assert w.value("SELECT count(*) FROM %s" % name) == "0"
        w.ok("DROP TABLE %s" % name)


def test_client_dies_inside_copy_out(pooler):
    w = pooler.wire()
    w.send(query("COPY (SELECT repeat('x', 1000) FROM "
                 "generate_series(1, 200000)) TO STDOUT"))
    assert w.read().type == "H"
    w.reset()
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


# --- the rest -------------------------------------------------------------

@core
def test_function_call(pooler):
    with pooler.wire() as w:
        oid = int(w.value("SELECT 'int4pl'::regproc::oid"))
        w.send(function_call(oid, [b"40", b"2"]))
        got = w.read_ready()
        assert got.types == "VZ"
        assert got.messages[0].body == struct.pack("!I", 2) + b"42"


def test_function_call_error(pooler):
    with pooler.wire() as w:
        w.send(function_call(1, [b"1"]))
        got = w.read_ready()
        assert got.errors
        assert w.value("SELECT 1") == "1"


def test_function_call_in_a_pipeline(pooler):
    with pooler.wire() as w:
        oid = int(w.value("SELECT 'int4pl'::regproc::oid"))
        w.send(function_call(oid, [b"1", b"2"]), query("SELECT 2"),
               function_call(oid, [b"2", b"2"]))
        assert w.read_ready().types == "VZ"
        assert w.read_ready().value() == "2"
        assert w.read_ready().types == "VZ"


@pytest.mark.parametrize("pooler", [{"pool_mode": "session"}],
                         indirect=True)
def test_notify_while_idle(pooler):
    with pooler.wire() as w, pooler.wire() as other:
        w.ok("LISTEN ch")
        other.ok("NOTIFY ch, 'hello'")
        got = w.read_type("A")
        assert b"ch\0hello\0" in got.body


@pytest.mark.parametrize("pooler", [{"pool_mode": "session"}],
                         indirect=True)
def test_notify_of_itself_comes_before_ready(pooler):
    with pooler.wire() as w:
        w.ok("LISTEN ch")
        got = w.query("NOTIFY ch, 'me'")
        assert got.types == "CAZ"


def test_parameter_status_is_forwarded(pooler):
    with pooler.wire() as w:
        got = w.query("SET DateStyle = 'SQL, DMY'")
        assert got.params.get("DateStyle") == "SQL, DMY"
        got = w.query("BEGIN; SET TimeZone = 'Asia/Tokyo'")
        assert got.params.get("TimeZone") == "Asia/Tokyo"
        got = w.query("ROLLBACK")
        assert "TimeZone" in got.params


def test_login_reports_the_usual_parameters(pooler):
    with pooler.wire() as w:
        for name in ("server_version", "server_encoding",
                     "client_encoding", "DateStyle", "TimeZone",
                     "integer_datetimes", "standard_conforming_strings"):
            assert name in w.params, name


@core
@pytest.mark.pooled
@pytest.mark.unfit("pooled", "the pooler behind keeps its client")
def test_server_killed_while_idle_is_not_noticed(pooler, cluster):
    with pooler.wire() as w:
        pid = w.value("SELECT pg_backend_pid()")
        cluster.sql("SELECT pg_terminate_backend(%s)" % pid)
        procs.wait_for(lambda: not cluster.sql(
            "SELECT 1 FROM pg_stat_activity WHERE pid = %s" % pid), 5,
            "end of the backend")
        pooler.wait_pool(sv_idle=0)
        assert w.value("SELECT 1") == "1"


@pytest.mark.parametrize("pooler", [{"pool_mode": "session"}],
                         indirect=True)
def test_fatal_while_idle_in_session_mode(pooler, cluster):
    with pooler.wire() as w:
        pid = w.value("SELECT pg_backend_pid()")
        cluster.sql("SELECT pg_terminate_backend(%s)" % pid)
        got = w.read_to_close()
        assert got and got[-1].type == "E"
        assert got[-1].fields["S"] == "FATAL"


@core
def test_server_killed_inside_a_transaction(pooler, cluster):
    with pooler.wire() as w:
        w.ok("BEGIN")
        pid = w.value("SELECT pg_backend_pid()")
        cluster.sql("SELECT pg_terminate_backend(%s)" % pid)
        got = w.read_to_close()
        assert got[-1].type == "E" and got[-1].fields["S"] == "FATAL"
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_server_killed_during_a_query(pooler, cluster):
    with pooler.wire() as w:
        pid = w.value("SELECT pg_backend_pid()")
        w.send(query("SELECT pg_backend_pid() FROM pg_sleep(30)"))
        running = procs.wait_for(lambda: cluster.sql(
            "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND"
            " query LIKE 'SELECT pg_backend_pid() FROM pg_sleep%'"), 5,
            "the query (first backend %s)" % pid)
        cluster.sql("SELECT pg_terminate_backend(%s)" % running[0][0])
        got = w.read_to_close()
        assert got[-1].type == "E"


# --- sizes ----------------------------------------------------------------

def test_row_larger_than_buffers(pooler):
    with pooler.wire() as w:
        for size in (1, 4090, 4096, 8192, 16384, 65536, 1000000):
            got = w.ok("SELECT repeat('x', %d)" % size)
            assert got.rows == [[b"x" * size]]


@core
@pytest.mark.slow
def test_100_mb_row_is_streamed(pooler):
    with pooler.wire() as w:
        w.ok("SELECT 1")
        before = 0 if pooler.is_direct else procs.rss_kib(pooler.pid)
        got = w.query("SELECT repeat('x', 100000000)", 60)
        assert len(got.rows[0][0]) == 100000000
        if not pooler.is_direct:
            grown = procs.rss_kib(pooler.pid) - before
            assert grown < 64 * 1024, "%d KiB more memory" % grown
        assert w.value("SELECT 1") == "1"


@core
@pytest.mark.slow
def test_50_mb_query_is_streamed(pooler):
    text = "x" * 50000000
    with pooler.wire() as w:
        w.ok("SELECT 1")
        before = 0 if pooler.is_direct else procs.rss_kib(pooler.pid)
        got = w.query("SELECT length('%s')" % text, 60)
        assert got.value() == "50000000"
        if not pooler.is_direct:
            grown = procs.rss_kib(pooler.pid) - before
            assert grown < 64 * 1024, "%d KiB more memory" % grown


@pytest.mark.slow
def test_50_mb_parameter(pooler):
    with pooler.wire() as w:
        got = w.extended("SELECT length($1::text)", ["x" * 50000000])
        assert got.value() == "50000000"


@pytest.mark.slow
def test_slow_reader_of_a_large_result(pooler):
    """A client that reads slowly makes the server wait, not us swell."""
    with pooler.wire() as w:
        before = 0 if pooler.is_direct else procs.rss_kib(pooler.pid)
        w.send(query("SELECT repeat('x', 1000) FROM "
                     "generate_series(1, 60000)"))
        w.read()
        with pooler.wire() as other:
            for i in range(50):
                assert other.value("SELECT %d" % i) == str(i)
        if not pooler.is_direct:
            grown = procs.rss_kib(pooler.pid) - before
            assert grown < 20 * 1024, "%d KiB more memory" % grown
        got = w.read_ready()
        assert got.tags == ["SELECT 60000"]


@core
def test_every_message_byte_by_byte(pooler):
    with pooler.wire(dribble=True) as w:
        assert w.value("SELECT 1") == "1"
        got = w.extended("SELECT $1::text", ["x" * 300])
        assert got.value() == "x" * 300
        w.send(parse("s1", "SELECT $1::int"), describe("S", "s1"),
               bind("", "s1", ["5"]), execute(), close("S", "s1"), sync())
        got = w.read_ready()
        assert got.types == "1tT2DC3Z"


def test_psycopg_server_side_cursor(pooler):
    with pooler.pg(autocommit=False) as c:
        with c.cursor("cur") as cur:
            cur.execute("SELECT generate_series(1, 1000)")
            assert cur.fetchmany(10)[-1] == (10,)
            assert len(cur.fetchall()) == 990


def test_psycopg_pipeline(pooler):
    with pooler.pg() as c:
        with c.pipeline():
            curs = [c.execute("SELECT %s::int", (i,)) for i in range(500)]
        assert [cur.fetchone()[0] for cur in curs] == list(range(500))


def test_psycopg_pipeline_with_error(pooler):
    import psycopg
    with pooler.pg() as c:
        with pytest.raises(psycopg.errors.DivisionByZero):
            with c.pipeline():
                c.execute("SELECT 1")
                c.execute("SELECT 1/%s", (0,))
                c.execute("SELECT 2")
        assert c.execute("SELECT 3").fetchone() == (3,)


def test_psycopg_copy(pooler):
    with pooler.pg() as c:
        with c.transaction():
            c.execute("CREATE TEMP TABLE cp (a int, b text)"
                      " ON COMMIT DROP")
            with c.cursor().copy("COPY cp FROM STDIN") as cp:
                for i in range(5000):
                    cp.write_row((i, "x" * 100))
            got = c.execute("SELECT count(*), sum(a) FROM cp").fetchone()
            assert got == (5000, 12497500)


def test_closing_with_an_unread_result(pooler):
    w = pooler.wire()
    w.send(query("SELECT repeat('x', 1000) FROM generate_series(1, 5000)"),
           terminate())
    try:
        w.read_to_close()
    except WireClosed:
        pass
    w.abort()
    with pooler.wire() as again:
        assert again.value("SELECT 1") == "1"
