# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Byte scripts whose replies must not depend on who answers.

A script is a list of steps: bytes to send, or WAIT(n) to read n messages of
type Z, or UNTIL(types). After the last step a Sync is sent and everything
up to its ReadyForQuery is read. Add one whenever a conversation was ever
answered differently.
"""
from pgwire import (bind, close, copy_data, copy_done, copy_fail, describe,
                    execute, flush, function_call, parse, query, sync,
                    terminate)


class WAIT:
    """Read until so many ReadyForQuery have come."""

    def __init__(self, count=1):
        self.count = count


class UNTIL:
    """Read until a message of one of these types."""

    def __init__(self, kinds):
        self.kinds = kinds


class CLOSE:
    """Read until the peer closes; nothing follows."""


class Script:
    def __init__(self, name, *steps, differs=None):
        self.name = name
        self.steps = steps
        self.differs = differs


def normalise(messages):
    """Drops what may differ: pids, places in PostgreSQL's source, and
    the order of ParameterStatus between other messages."""
    out, status = [], []
    for m in messages:
        if m.type == "S":
            status.append(m.pair)
        elif m.type in "EN":
            fields = m.fields
            for key in "FLR":
                fields.pop(key, None)
            out.append((m.type, tuple(sorted(fields.items()))))
        elif m.type == "A":
            out.append((m.type, m.body[4:]))
        elif m.type == "T":
            out.append((m.type, m.columns))
        else:
            out.append((m.type, m.body))
    return out, sorted(set(status))


def play(address, script, dribble=False):
    wire = address.wire(dribble=dribble)
    wire.timeout = 6
    got = []
    try:
        for step in script.steps:
            if isinstance(step, bytes):
                wire.send(step)
            elif isinstance(step, WAIT):
                for _ in range(step.count):
                    got += wire.read_until("Z")
            elif isinstance(step, UNTIL):
                got += wire.read_until(step.kinds)
            elif step is CLOSE:
                try:
                    got += wire.read_to_close()
                finally:
                    wire.abort()
                return normalise(got)
        marker = "end of script"
        wire.dribble = False
        wire.send(sync(), query("SELECT '%s'" % marker))
        while not (got and got[-1].type == "Z" and any(
                m.type == "D" and m.row == [marker.encode()]
                for m in got[-4:])):
            got.append(wire.read())
        return normalise(got)
    finally:
        wire.close()


COPY118 = "1.18 loses count of what follows a COPY"
P, B, D, E, S = parse, bind, describe, execute, sync
SELECT_ONE = parse("", "SELECT 1") + bind() + execute()
FAILS = parse("", "SELECT 1/0") + bind() + execute()
SERIES = "SELECT generate_series(1, 5)"
TEMP = "BEGIN; CREATE TEMP TABLE c (a int) ON COMMIT DROP"

SCRIPTS = [
    Script("simple", query("SELECT 1")),
    Script("empty", query("")),
    Script("many", query("SELECT 1; SELECT 'x'; SELECT NULL")),
    Script("types", query("SELECT 1::int2, 2.5::float8, now() IS NULL,"
                          " '{1,2}'::int[], 'a'::bytea, true")),
    Script("syntax error", query("SELEC 1")),
    Script("error in the middle", query("SELECT 1; SELECT 1/0; SELECT 2")),
    Script("error position", query("SELECT nothing FROM nowhere")),
    Script("transaction", query("BEGIN"), WAIT(), query("SELECT 1"), WAIT(),
           query("COMMIT")),
    Script("failed transaction", query("BEGIN"), query("SELECT 1/0"),
           query("SELECT 1"), query("COMMIT")),
    Script("savepoints", query("BEGIN; SAVEPOINT a; SELECT 1/0"),
           query("ROLLBACK TO a"), query("SELECT 2"), query("COMMIT")),
    Script("commit and chain", query("BEGIN"), query("SELECT 1"),
           query("COMMIT AND CHAIN"), query("SELECT 2"), query("ROLLBACK")),
    Script("warning", query("COMMIT"), query("BEGIN"), query("BEGIN"),
           query("ROLLBACK")),
    Script("notices", query("DO $$BEGIN RAISE NOTICE 'a'; RAISE WARNING 'b'"
                            "; END$$")),
    Script("extended", SELECT_ONE, S()),
    Script("extended described", P("", "SELECT $1::int AS a") +
           D("S") + B("", "", ["7"]) + D("P") + E() + S()),
    Script("extended empty", P("", "") + D("S") + B() + D("P") + E() + S()),
    Script("extended without result", P("", "SET work_mem = '1MB'") +
           D("S") + B() + D("P") + E() + S() + query("RESET work_mem")),
    Script("binary", P("", "SELECT 1::int, 'x'::text") +
           B("", "", [], [], [1, 0]) + D("P") + E() + S()),
    Script("wrong parameter count", P("", "SELECT $1::int") + B() + E() +
           S()),
    Script("bad parameter", P("", "SELECT $1::int") +
           B("", "", ["x"]) + E() + S()),
    Script("two in a batch", SELECT_ONE, SELECT_ONE, S()),
    Script("error skips", SELECT_ONE, FAILS, SELECT_ONE, S(), SELECT_ONE,
           S()),
    Script("errors in a pipeline",
           *[(FAILS if i % 3 == 1 else SELECT_ONE) + S()
             for i in range(12)]),
    Script("row limit", P("", SERIES) + B() + E("", 2) + E("", 2) +
           E("", 2) + S()),
    Script("row limit exact", P("", SERIES) + B() + E("", 5) + E("", 5) +
           S()),
    Script("portal after its end", P("", SERIES) + B("p") + E("p") +
           E("p") + S()),
    Script("portal gone after sync", P("", SERIES) + B("p") + E("p", 1) +
           S() + E("p") + S()),
    Script("portal in a transaction", query("BEGIN"), P("", SERIES) +
           B("p") + E("p", 1) + S() + E("p", 2) + S() + E("p") + S(),
           query("COMMIT")),
    Script("portal closed", query("BEGIN"), P("", SERIES) + B("p") +
           close("P", "p") + E("p") + S(),
           query("ROLLBACK")),
    Script("portal twice", query("BEGIN"), P("", SERIES) + B("p") +
           B("p") + S(), query("ROLLBACK")),
    Script("unknown portal", E("nope") + S()),
    Script("unknown portal described", D("P", "nope") + S()),
    Script("close of what is not there", close("P", "nope") +
           close("S", "nope") + S()),
    Script("named", P("a", "SELECT 1") + B("", "a") + E() + S() +
           B("", "a") + E() + S() + close("S", "a") + S(),
           differs="1.18 has no prepared statements"),
    Script("named twice", P("a", "SELECT 1") + S() + P("a", "SELECT 2") +
           S() + close("S", "a") + S(),
           differs="1.18 has no prepared statements"),
    Script("named twice in one batch", P("a", "SELECT 1") +
           P("a", "SELECT 2") + S() + close("S", "a") + S()),
    Script("named, closed, named", P("a", "SELECT 1") + close("S", "a") +
           P("a", "SELECT 2") + B("", "a") + E() + close("S", "a") + S()),
    Script("named after an error", P("a", "SELECT 1/0 AS x") + B("", "a") +
           E() + S() + D("S", "a") + S() + close("S", "a") + S(),
           differs="1.18 has no prepared statements"),
    Script("named parse error", P("a", "SELEC") + S() + B("", "a") + E() +
           S()),
    Script("named parse skipped", FAILS, P("a", "SELECT 1") + S() +
           B("", "a") + E() + S()),
    Script("unknown statement", B("", "nope") + E() + S()),
    Script("unknown statement described", D("S", "nope") + S()),
    Script("unnamed persists over sync", P("", "SELECT 5") + S() + B() +
           E() + S(), differs="1.18 may change the server"),
    Script("unnamed replaced by simple query", P("", "SELECT 5") + S(),
           WAIT(), query("SELECT 6"), B() + E() + S()),
    Script("unnamed closed", P("", "SELECT 5") + close("S") + B() + E() +
           S()),
    Script("unnamed failed parse", P("", "SELECT 5") + S() +
           P("", "SELEC") + S() + B() + E() + S(),
           differs="1.18 may change the server"),
    Script("sync alone", S(), S(), S()),
    Script("flush alone", flush()),
    Script("flush then sync", SELECT_ONE, flush(), UNTIL("C"), S()),
    Script("flush after an error", FAILS, flush(), UNTIL("E"), SELECT_ONE,
           S()),
    Script("simple in an open batch", SELECT_ONE, query("SELECT 2"), S()),
    Script("simple in a failed batch", FAILS, query("SELECT 2"), S()),
    Script("simple between batches", SELECT_ONE, S(), query("SELECT 2"),
           SELECT_ONE, S()),
    Script("begin in a batch", P("", "BEGIN") + B() + E() + SELECT_ONE +
           S(), query("COMMIT")),
    Script("implicit transaction rolls back",
           P("", "CREATE TEMP TABLE x (a int)") + B() + E() + FAILS + S(),
           query("SELECT 'x'::regclass")),
    Script("pipelined transaction",
           *[P("", s) + B() + E() + S() for s in
             ("BEGIN", "SELECT 1", "SELECT 1/0", "SELECT 2", "ROLLBACK")]),
    Script("copy out", query("COPY (SELECT generate_series(1, 20)) TO"
                             " STDOUT"),
           differs=COPY118),
    Script("copy out binary", query("COPY (SELECT 1, 'x'::text) TO STDOUT"
                                    " (FORMAT binary)"),
           differs=COPY118),
    Script("copy out fails", query("COPY (SELECT 1/(3 - g) FROM"
                                   " generate_series(1, 9) g) TO STDOUT"),
           differs=COPY118),
    Script("copy in", query(TEMP), query("COPY c FROM STDIN"), UNTIL("G"),
           copy_data(b"1\n2\n"), copy_data(b"3\n"), copy_done(), WAIT(),
           query("SELECT sum(a) FROM c"), query("ROLLBACK")),
    Script("copy in ahead", query(TEMP), query("COPY c FROM STDIN"),
           copy_data(b"1\n2\n"), copy_done(),
           query("SELECT sum(a) FROM c"), query("ROLLBACK"),
           differs=COPY118),
    Script("copy in fails on the client", query(TEMP),
           query("COPY c FROM STDIN"), UNTIL("G"), copy_data(b"1\n"),
           copy_fail("enough"), query("ROLLBACK"),
           differs=COPY118),
    Script("copy in fails on the server", query(TEMP),
           query("COPY c FROM STDIN"), UNTIL("G"), copy_data(b"x\n"),
           copy_data(b"1\n") * 50, copy_done(), query("ROLLBACK"),
           differs=COPY118),
    Script("copy in row split", query(TEMP), query("COPY c FROM STDIN"),
           UNTIL("G"), copy_data(b"12"), copy_data(b"34\n5"),
           copy_data(b"6\n"), copy_done(),
           WAIT(), query("TABLE c"), query("ROLLBACK")),
    Script("copy refused", query("COPY nowhere FROM STDIN"),
           copy_data(b"1\n"), copy_done(), query("SELECT 1")),
    Script("copy in extended", query(TEMP), P("", "COPY c FROM STDIN") +
           B() + E() + S(), UNTIL("G"), copy_data(b"1\n"), copy_done(),
           S(), WAIT(), query("ROLLBACK")),
    Script("copy in extended without sync before", query(TEMP),
           P("", "COPY c FROM STDIN") + B() + E() + flush(), UNTIL("G"),
           copy_data(b"1\n"), copy_done(), S(), WAIT(), query("ROLLBACK")),
    Script("copy in extended fails", query(TEMP),
           P("", "COPY c FROM STDIN") + B() + E() + flush(), UNTIL("G"),
           copy_data(b"x\n"), copy_data(b"1\n"), copy_done(), S(), WAIT(),
           query("ROLLBACK")),
    Script("two copies in one query", query(TEMP),
           query("COPY c FROM STDIN; COPY c FROM STDIN"), UNTIL("G"),
           copy_data(b"1\n"), copy_done(), UNTIL("G"), copy_data(b"2\n"),
           copy_done(), WAIT(), query("TABLE c"), query("ROLLBACK")),
    Script("copy data out of place", copy_data(b"stray"), copy_done(),
           copy_fail("stray"), query("SELECT 1")),
    Script("function call", function_call(177, [b"40", b"2"]),
           query("SELECT 1")),
    Script("function call fails", function_call(1, [b"1"]),
           query("SELECT 1")),
    Script("function call in a failed transaction", query("BEGIN"),
           query("SELECT 1/0"), function_call(177, [b"1", b"2"]),
           query("ROLLBACK")),
    Script("parameter status", query("SET DateStyle = 'SQL'"),
           query("SELECT '2020-01-02'::date"),
           query("RESET DateStyle")),
    Script("parameter status rolled back",
           query("BEGIN; SET TimeZone = 'Asia/Tokyo'"), query("ROLLBACK")),
    Script("set local", query("BEGIN; SET LOCAL DateStyle = 'German'"),
           query("SELECT '2020-01-02'::date"), query("COMMIT")),
    Script("terminate", query("SELECT 1"), WAIT(), terminate(), CLOSE),
    Script("1000 rows", query("SELECT g, repeat('x', g) FROM"
                              " generate_series(1, 1000) g")),
    Script("wide row", query("SELECT " + ", ".join(
        "%d" % i for i in range(1500)))),
    Script("large row", query("SELECT repeat('y', 300000)")),
    Script("declare cursor", query("BEGIN; DECLARE k CURSOR FOR " + SERIES),
           query("FETCH 2 FROM k"), query("MOVE 1 IN k"),
           query("FETCH ALL FROM k"), query("COMMIT")),
    Script("sql prepare in one transaction", query("BEGIN; PREPARE zz AS"
           " SELECT $1::int; EXECUTE zz(3); DEALLOCATE zz; COMMIT")),
    Script("advisory lock", query("BEGIN; SELECT pg_advisory_xact_lock(1);"
                                  " COMMIT")),
    Script("two-phase", query("ROLLBACK PREPARED 'never'")),
]
