# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Protocol-level prepared statements while servers change underneath."""
import random
import select

import pytest

import procs
from pgwire import bind, close, describe, execute, flush, parse, query, sync

core = pytest.mark.core
pytestmark = pytest.mark.differs("1.18 has no prepared statements")
PID = "SELECT pg_backend_pid()"


@pytest.fixture
def two(make_pooler, transport):
    """A pooler with two servers and a client that can hold one."""
    return make_pooler({"default_pool_size": 2}, transport=transport)


def prepare(w, name, sql, types=()):
    w.send(parse(name, sql, types), sync())
    got = w.read_ready()
    assert not got.errors, got.errors
    assert got.types == "1Z"


def run(w, name, *params):
    w.send(bind("", name, params), execute(), sync())
    return w.read_ready()


def drop(w, name):
    w.send(close("S", name), sync())
    assert w.read_ready().types == "3Z"


class Held:
    """Keeps the server of a given pid busy, so others get another one."""

    def __init__(self, pooler, pid=None):
        self.wire = pooler.wire()
        self.wire.ok("BEGIN")
        self.pid = self.wire.value(PID)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.wire.ok("COMMIT")
        self.wire.close()


@core
def test_statement_follows_its_client(two):
    with two.wire() as a:
        prepare(a, "s", "SELECT pg_backend_pid(), $1::int")
        first = run(a, "s", "1").rows[0]
        with two.wire() as b:
            b.ok("BEGIN")
            # b has the server on which s was prepared, or a will move.
            pid = b.value(PID)
            got = run(a, "s", "2").rows[0]
            assert got[1] == b"2" and got[0] != pid.encode()
            b.ok("COMMIT")
        got = run(a, "s", "3").rows[0]
        assert got[1] == b"3" and first[1] == b"1"


@core
def test_same_name_in_two_clients(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        prepare(a, "s", "SELECT 'a'")
        prepare(b, "s", "SELECT 'b'")
        for _ in range(3):
            assert run(a, "s").value() == "a"
            assert run(b, "s").value() == "b"


@core
def test_text_is_shared_on_the_server(one_server):
    wires = [one_server.wire() for _ in range(5)]
    for i, w in enumerate(wires):
        prepare(w, "name%d" % i, "SELECT 'shared', $1::int")
        assert run(w, "name%d" % i, "5").rows == [[b"shared", b"5"]]
    got = wires[0].value("SELECT count(*) FROM pg_prepared_statements"
                         " WHERE statement LIKE 'SELECT ''shared''%'")
    assert got == "1"
    for w in wires:
        w.close()


def test_same_text_with_other_types_is_another_statement(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        prepare(a, "s", "SELECT pg_typeof($1)", [23])
        prepare(b, "s", "SELECT pg_typeof($1)", [25])
        assert run(a, "s", "1").value() == "integer"
        assert run(b, "s", "1").value() == "text"


@core
def test_name_twice_is_an_error(one_server):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT 1")
        a.send(parse("s", "SELECT 2"), sync())
        assert a.read_ready().sqlstate() == "42P05"
        assert run(a, "s").value() == "1"


@core
def test_close_frees_the_name(one_server):
    with one_server.wire() as a:
        for i in range(5):
            prepare(a, "s", "SELECT %d" % i)
            assert run(a, "s").value() == str(i)
            drop(a, "s")
        assert run(a, "s").sqlstate() == "26000"


def test_close_of_one_client_leaves_the_other(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        prepare(a, "s", "SELECT 1")
        prepare(b, "s", "SELECT 1")
        drop(a, "s")
        assert run(b, "s").value() == "1"
        assert run(a, "s").sqlstate() == "26000"


def test_close_of_an_unknown_name_is_no_error(one_server):
    with one_server.wire() as a:
        drop(a, "never")


@core
def test_unknown_statement(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        prepare(b, "theirs", "SELECT 1")
        assert run(a, "theirs").sqlstate() == "26000"
        a.send(describe("S", "theirs"), sync())
        assert a.read_ready().sqlstate() == "26000"
        assert a.value("SELECT 1") == "1"


@core
def test_describe_on_another_server(two):
    with two.wire() as a:
        prepare(a, "s", "SELECT $1::int8 AS col")
        with Held(two), two.wire():
            a.send(describe("S", "s"), sync())
            got = a.read_ready()
            assert got.types == "tTZ"
            assert got.columns[0] == ("col", 20)


@core
def test_everything_in_one_batch(two):
    with two.wire() as a:
        for i in range(30):
            a.send(parse("s%d" % i, "SELECT %d + $1::int" % i),
                   describe("S", "s%d" % i), bind("", "s%d" % i, ["1"]),
                   execute(), close("S", "s%d" % i), sync())
        for i in range(30):
            got = a.read_ready()
            assert got.types == "1tT2DC3Z", got.errors
            assert got.value() == str(i + 1)


def test_batch_over_many_statements_with_one_sync(two):
    with two.wire() as a:
        for i in range(10):
            prepare(a, "s%d" % i, "SELECT %d" % i)
        with Held(two):
            for i in range(10):
                a.send(bind("", "s%d" % i), execute())
            a.send(sync())
            got = a.read_ready()
            assert [r[0] for r in got.rows] == [
                b"%d" % i for i in range(10)]
            assert got.types == "2DC" * 10 + "Z"


@core
def test_parse_error_is_not_remembered(one_server):
    with one_server.wire() as a:
        a.send(parse("s", "SELEC"), sync())
        assert a.read_ready().sqlstate() == "42601"
        assert run(a, "s").sqlstate() == "26000"
        prepare(a, "s", "SELECT 1")
        assert run(a, "s").value() == "1"


@core
def test_parse_skipped_after_an_error_is_not_remembered(one_server):
    with one_server.wire() as a:
        a.send(parse("", "SELECT 1/0"), bind(), execute(),
               parse("s", "SELECT 1"), sync())
        assert a.read_ready().sqlstate() == "22012"
        assert run(a, "s").sqlstate() == "26000"
        prepare(a, "s", "SELECT 2")
        assert run(a, "s").value() == "2"


def test_close_skipped_after_an_error_is_not_done(one_server):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT 1")
        a.send(parse("", "SELECT 1/0"), bind(), execute(),
               close("S", "s"), sync())
        assert a.read_ready().sqlstate() == "22012"
        assert run(a, "s").value() == "1"


def test_parse_of_a_table_that_appears_later(one_server):
    with one_server.wire() as a:
        a.ok("DROP TABLE IF EXISTS later")
        a.send(parse("s", "SELECT count(*) FROM later"), sync())
        assert a.read_ready().sqlstate() == "42P01"
        a.ok("CREATE TABLE later (a int)")
        prepare(a, "s", "SELECT count(*) FROM later")
        assert run(a, "s").value() == "0"
        a.ok("DROP TABLE later")


def test_parse_error_of_one_client_is_not_anothers(one_server):
    """The text is known to fail; it may not fail next time."""
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("DROP TABLE IF EXISTS soon")
        a.send(parse("s", "SELECT 5 FROM soon"), sync())
        assert a.read_ready().errors
        a.ok("CREATE TABLE soon AS SELECT 1")
        prepare(b, "s", "SELECT 5 FROM soon")
        assert run(b, "s").value() == "5"
        a.ok("DROP TABLE soon")


@core
def test_statement_outlives_a_rolled_back_transaction(one_server):
    """PostgreSQL keeps statements prepared in a failed transaction."""
    with one_server.wire() as a:
        a.ok("BEGIN")
        prepare(a, "s", "SELECT 1")
        a.ok("ROLLBACK")
        assert run(a, "s").value() == "1"


# --- DEALLOCATE and DISCARD -------------------------------------------------

@core
@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL",
                                 "deallocate all;", " DISCARD  ALL "])
def test_all_statements_go(one_server, sql):
    with one_server.wire() as a, one_server.wire() as b:
        prepare(a, "s", "SELECT 1")
        prepare(b, "s", "SELECT 2")
        a.ok(sql)
        assert run(a, "s").sqlstate() == "26000"
        assert run(b, "s").value() == "2"
        prepare(a, "s", "SELECT 3")
        assert run(a, "s").value() == "3"
        assert run(b, "s").value() == "2"


@core
@pytest.mark.parametrize("sql", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_all_statements_go_inside_a_pipeline(two, sql):
    with two.wire() as a:
        prepare(a, "s", "SELECT 1")
        a.send(bind("", "s"), execute(), sync(),
               parse("", sql), bind(), execute(), sync(),
               bind("", "s"), execute(), sync(),
               parse("s", "SELECT 2"), bind("", "s"), execute(), sync())
        assert a.read_ready().value() == "1"
        assert not a.read_ready().errors
        assert a.read_ready().sqlstate() == "26000"
        assert a.read_ready().value() == "2"


def test_deallocate_all_in_one_batch_with_what_follows(one_server):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT 1")
        a.send(parse("", "DEALLOCATE ALL"), bind(), execute(),
               parse("s", "SELECT 2"), bind("", "s"), execute(), sync())
        got = a.read_ready()
        assert not got.errors, got.errors
        assert got.value() == "2"


@core
def test_deallocate_all_that_only_the_server_knows_of(one_server):
    """The later Parse is skipped, so the Bind meets the earlier one; sent in
    one go, nobody before the server knows."""
    with one_server.wire() as a:
        a.send(parse("", "DEALLOCATE ALL"), sync())
        assert a.read_ready().types == "1Z"
        a.send(execute("nothing"), parse("", "SELECT 1"), sync(),
               bind(), execute(), sync(),
               parse("s", "SELECT 2"), sync(), parse("s", "SELECT 3"), sync())
        assert a.read_ready().sqlstate() == "34000"
        assert a.read_ready().types == "2CZ"
        assert a.read_ready().types == "1Z"
        assert a.read_ready().sqlstate() == "42P05"
        assert run(a, "s").value() == "2"


def test_failed_deallocate_all_forgets_nothing(one_server):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT 1")
        a.send(parse("", "SELECT 1/0"), bind(), execute(),
               parse("", "DEALLOCATE ALL"), bind(), execute(), sync())
        assert a.read_ready().errors
        assert run(a, "s").value() == "1"


# --- the LRU and replacement of servers -----------------------------------------

@core
@pytest.mark.unfit("pooled", "counts what the pooler behind prepared")
def test_lru_per_server(make_pooler, transport):
    p = make_pooler({"max_prepared_statements": 5, "default_pool_size": 1},
                    transport=transport)
    with p.wire() as a:
        for i in range(50):
            prepare(a, "s%d" % i, "SELECT %d" % i)
        for i in random.Random(7).choices(range(50), k=200):
            assert run(a, "s%d" % i).value() == str(i)
        held = int(a.value("SELECT count(*) FROM pg_prepared_statements"))
        assert held <= 6


def test_more_statements_in_one_batch_than_the_lru(make_pooler, transport):
    p = make_pooler({"max_prepared_statements": 2, "default_pool_size": 1},
                    transport=transport)
    with p.wire() as a:
        for i in range(20):
            prepare(a, "s%d" % i, "SELECT %d" % i)
        for i in range(20):
            a.send(bind("p%d" % i, "s%d" % i), execute("p%d" % i))
        a.send(sync())
        got = a.read_ready()
        assert not got.errors, got.errors
        assert [int(r[0]) for r in got.rows] == list(range(20))


def test_zero_turns_tracking_off(make_pooler, transport):
    """Statements are the server's own, as with an old PgBouncer."""
    p = make_pooler({"max_prepared_statements": 0, "default_pool_size": 1,
                     "pool_mode": "session"}, transport=transport)
    with p.wire() as a:
        prepare(a, "s", "SELECT 1")
        assert run(a, "s").value() == "1"
        assert a.value("SELECT count(*) FROM pg_prepared_statements"
                       " WHERE name = 's'") == "1"


@core
@pytest.mark.unfit("pooled", "the pooler behind keeps its client")
def test_reprepared_after_the_server_is_replaced(one_server, cluster):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT $1::int * 2")
        for i in range(3):
            pid = a.value(PID)
            cluster.sql("SELECT pg_terminate_backend(%s)" % pid)
            one_server.wait_pool(sv_idle=0, sv_active=0)
            assert run(a, "s", str(i)).value() == str(2 * i)


@pytest.mark.unfit("pooled",
                   "PostgreSQL's processes stay with the pooler behind")
def test_reprepared_after_reconnect(one_server):
    with one_server.wire() as a:
        prepare(a, "s", "SELECT 4")
        pid = a.value(PID)
        one_server.console("RECONNECT")
        procs.wait_for(lambda: a.value(PID) != pid, 5, "another server")
        assert run(a, "s").value() == "4"


@core
def test_cached_plan_must_not_change_result_type(one_server):
    """It may fail once, as PostgreSQL does, but never for ever."""
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("DROP TABLE IF EXISTS shape; CREATE TABLE shape AS SELECT 1 a")
        for w in (a, b):
            prepare(w, "s", "SELECT * FROM shape")
            assert run(w, "s").rows == [[b"1"]]
        a.ok("ALTER TABLE shape ADD b int DEFAULT 2")
        for w in (a, b):
            got = run(w, "s")
            if got.errors:
                assert got.sqlstate() == "0A000"
                got = run(w, "s")
            assert got.rows == [[b"1", b"2"]], got.errors
        a.ok("DROP TABLE shape")


def test_dropped_and_recreated_table(two):
    with two.wire() as a:
        a.ok("DROP TABLE IF EXISTS again; CREATE TABLE again AS SELECT 1 a")
        prepare(a, "s", "SELECT a FROM again")
        assert run(a, "s").value() == "1"
        a.ok("DROP TABLE again; CREATE TABLE again AS SELECT 2 a")
        assert run(a, "s").value() == "2"
        a.ok("DROP TABLE again")


# --- the unnamed statement --------------------------------------------------------

@core
def test_unnamed_is_never_anothers(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.send(parse("", "SELECT 'a'"), sync())
        a.read_ready()
        b.send(parse("", "SELECT 'b'"), sync())
        b.read_ready()
        for _ in range(3):
            assert run(a, "").value() == "a"
            assert run(b, "").value() == "b"


@core
def test_unnamed_follows_its_client(two):
    with two.wire() as a:
        a.send(parse("", "SELECT $1::text"), sync())
        a.read_ready()
        with Held(two):
            assert run(a, "", "x").value() == "x"
        with Held(two), two.wire():
            a.send(describe("S"), sync())
            assert a.read_ready().types == "tTZ"


@core
def test_unnamed_is_gone_after_a_simple_query(one_server):
    with one_server.wire() as a:
        a.send(parse("", "SELECT 1"), sync())
        a.read_ready()
        a.ok("SELECT 2")
        assert run(a, "").sqlstate() == "26000"


def test_unnamed_with_a_failed_parse(one_server):
    with one_server.wire() as a:
        a.send(parse("", "SELECT 1"), sync())
        a.read_ready()
        a.send(parse("", "SELEC"), sync())
        assert a.read_ready().errors
        assert run(a, "").sqlstate() == "26000"


def test_unnamed_of_a_new_client_does_not_exist(one_server):
    with one_server.wire() as a:
        a.send(parse("", "SELECT 'secret of a'"), sync())
        a.read_ready()
        with one_server.wire() as b:
            assert run(b, "").sqlstate() == "26000"


def test_unnamed_large(one_server):
    """A large Parse is remembered, or at least never another's."""
    text = "SELECT length('%s')" % ("x" * 300000)
    with one_server.wire() as a, one_server.wire() as b:
        a.send(parse("", text), sync())
        assert a.read_ready().types == "1Z"
        b.send(parse("", "SELECT 'b'"), sync())
        b.read_ready()
        got = run(a, "")
        assert got.errors or got.value() == "300000"
        assert run(b, "").value() == "b"


# --- many clients at once -----------------------------------------------------------

@core
def test_random_walk(two, request):
    """Many clients, few servers, random actions; every reply is its own."""
    rng = random.Random(11)
    wires = [two.wire() for _ in range(8)]
    names = [{} for _ in wires]
    for step in range(1200):
        i = rng.randrange(len(wires))
        w, mine = wires[i], names[i]
        what = rng.random()
        if what < 0.3 or not mine:
            name = "n%d" % rng.randrange(12)
            if name in mine:
                drop(w, name)
            mine[name] = "%d/%d" % (i, rng.randrange(6))
            prepare(w, name, "SELECT '%s', $1::int" % mine[name])
        elif what < 0.9:
            name = rng.choice(sorted(mine))
            got = run(w, name, str(step))
            assert got.rows == [[mine[name].encode(),
                                 str(step).encode()]], got.errors
        elif what < 0.95:
            name = rng.choice(sorted(mine))
            drop(w, name)
            del mine[name]
        elif what < 0.97:
            w.ok("DEALLOCATE ALL")
            mine.clear()
        else:
            w.close()
            wires[i] = two.wire()
            mine.clear()
    for w in wires:
        w.close()


def test_prepared_inside_a_transaction(two):
    with two.wire() as a, two.wire() as b:
        prepare(a, "s", "SELECT 1")
        b.ok("BEGIN")
        a.ok("BEGIN")
        assert run(a, "s").value() == "1"
        prepare(a, "t", "SELECT 2")
        assert run(a, "t").value() == "2"
        a.ok("COMMIT")
        b.ok("COMMIT")
        assert run(a, "t").value() == "2"


def test_unknown_statement_fails_the_transaction(one_server):
    """An answer of our own must leave the status PostgreSQL would."""
    with one_server.wire() as a:
        a.ok("BEGIN")
        got = run(a, "nope")
        assert got.sqlstate() == "26000"
        assert got.status == "E"
        assert a.query("SELECT 1").sqlstate() == "25P02"
        a.ok("ROLLBACK")


def test_flush_after_parse_and_close(one_server):
    with one_server.wire() as a:
        a.send(parse("s", "SELECT 1"), flush())
        assert a.read_until("1")[-1].type == "1"
        a.send(close("S", "s"), flush())
        assert a.read_until("3")[-1].type == "3"
        a.send(parse("s", "SELECT 2"), describe("S", "s"), flush())
        a.read_until("T")
        a.send(sync())
        assert a.read_ready().types == "Z"


def test_psycopg_prepares_everything(two):
    with two.pg(prepare_threshold=0) as a, two.pg(prepare_threshold=0) as b:
        for i in range(200):
            for c in (a, b):
                got = c.execute("SELECT %s::int, " + "'%d'" % (i % 30),
                                (i,)).fetchone()
                assert got == (i, str(i % 30))


def test_sql_level_prepare_still_works_in_a_transaction(one_server):
    with one_server.wire() as a:
        got = a.query("BEGIN; PREPARE q AS SELECT 1; EXECUTE q;"
                      " DEALLOCATE q; COMMIT")
        assert not got.errors


def test_simple_query_between_parse_and_sync(one_server):
    with one_server.wire() as a:
        a.send(parse("s", "SELECT 1"), query("SELECT 2"),
               bind("", "s"), execute(), sync())
        assert a.read_ready().value() == "2"
        assert a.read_ready().value() == "1"


def in_failed_transaction(w):
    w.send(query("BEGIN"))
    w.read_ready()
    assert w.query("SELECT 1/0").error["C"] == "22012"


def test_parse_in_a_failed_transaction(one_server):
    """Also of a text that the server has already."""
    with one_server.wire() as a, one_server.wire() as b:
        prepare(b, "known", "SELECT 7")
        in_failed_transaction(a)
        a.send(parse("s", "SELECT 7"), sync())
        got = a.read_ready()
        assert got.error["C"] == "25P02" and got.types == "EZ"
        a.send(parse("r", "ROLLBACK"), bind("", "r"), execute(), sync())
        assert a.read_ready().types == "12CZ"
        a.send(parse("r", "SELECT 7"), sync())
        assert a.read_ready().error["C"] == "42P05"
        prepare(a, "s", "SELECT 7")
        assert run(a, "s").value() == "7"
        assert run(b, "known").value() == "7"


def test_parse_behind_what_may_fail(one_server):
    """The transaction fails while the Parse is on its way."""
    with one_server.wire() as a:
        prepare(a, "known", "SELECT 7")
        a.send(query("BEGIN; SELECT 1/0"), parse("s", "SELECT 7"), sync(),
               query("ROLLBACK"))
        a.read_ready()
        assert a.read_ready().error["C"] == "25P02"
        a.read_ready()
        a.send(parse("b", "BEGIN"), bind("", "b"), execute(), sync(),
               parse("", "SELECT 1/0"), bind(), execute(), sync(),
               parse("t", "SELECT 7"), sync(), query("ROLLBACK"))
        assert a.read_ready().types == "12CZ"
        assert a.read_ready().error["C"] == "22012"
        assert a.read_ready().error["C"] == "25P02"
        assert a.read_ready().types == "CZ"
        assert run(a, "known").value() == "7"


def test_statement_max_bytes(make_pooler):
    p = make_pooler({"statement_max_bytes": 1 << 20, "default_pool_size": 3})
    big = "SELECT '%s'" % ("x" * 400000)
    with p.wire() as a, p.wire() as b, p.wire() as c:
        prepare(a, "s", big)
        prepare(b, "s", big)  # the same text
        prepare(c, "s", big.replace("x", "y"))
        c.send(parse("t", big.replace("x", "z")), sync())
        assert c.read_to_close()[-1].fields["C"] == "53200"
        assert run(a, "s").value() == "x" * 400000


def test_unfinished_statements_are_counted(make_pooler):
    p = make_pooler({"statement_max_bytes": 1 << 20, "default_pool_size": 3})
    message = parse("s", "SELECT '%s'" % ("x" * 900000))
    with p.wire() as a, p.wire() as b:
        for w in a, b:
            w.send(message[:600000])
        ended, = select.select([a.sock, b.sock], [], [], 10)[0]
        lost, other = (a, b) if ended is a.sock else (b, a)
        assert lost.read_to_close()[-1].fields["C"] == "53200"
        other.send(message[600000:], sync())
        assert other.read_ready().types == "1Z"
