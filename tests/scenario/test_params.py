# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Session parameters follow their client from server to server."""
import pytest

from pgwire import ServerError, WireClosed, bind, execute, parse, sync

core = pytest.mark.core

VALUES = [
    ("TimeZone", "Asia/Tokyo", "Europe/Rome"),
    ("DateStyle", "SQL, DMY", "German, DMY"),
    ("client_encoding", "LATIN1", "UTF8"),
    ("standard_conforming_strings", "off", "on"),
    ("application_name", "first", "second"),
]


@core
@pytest.mark.parametrize("name,one,two", VALUES, ids=[v[0] for v in VALUES])
def test_startup_value_stays_with_its_client(one_server, name, one, two):
    p = one_server
    with p.wire(params={name: one}) as a, p.wire(params={name: two}) as b:
        for _ in range(3):
            assert a.value("SHOW " + name) == one
            assert b.value("SHOW " + name) == two


@core
@pytest.mark.parametrize("name,one,two", VALUES, ids=[v[0] for v in VALUES])
def test_set_stays_with_its_client(one_server, name, one, two):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SET %s = '%s'" % (name, one))
        b.ok("SET %s = '%s'" % (name, two))
        for _ in range(3):
            assert a.value("SHOW " + name) == one
            assert b.value("SHOW " + name) == two


@core
def test_set_does_not_leak_to_a_new_client(one_server):
    with one_server.wire() as a:
        usual = a.value("SHOW TimeZone")
        a.ok("SET TimeZone = 'Asia/Tokyo'")
        with one_server.wire() as b:
            assert b.value("SHOW TimeZone") == usual
        assert a.value("SHOW TimeZone") == "Asia/Tokyo"


@core
def test_rolled_back_set_is_forgotten(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        usual = a.value("SHOW TimeZone")
        a.ok("BEGIN; SET TimeZone = 'Asia/Tokyo'")
        assert a.value("SHOW TimeZone") == "Asia/Tokyo"
        a.ok("ROLLBACK")
        b.ok("SET TimeZone = 'Europe/Rome'")
        assert a.value("SHOW TimeZone") == usual
        assert b.value("SHOW TimeZone") == "Europe/Rome"


def test_rollback_to_savepoint(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("BEGIN; SET TimeZone = 'Asia/Tokyo'; SAVEPOINT s;"
             "SET TimeZone = 'Asia/Seoul'; ROLLBACK TO s; COMMIT")
        b.ok("SET TimeZone = 'Europe/Rome'")
        assert a.value("SHOW TimeZone") == "Asia/Tokyo"


@core
def test_set_local_is_not_remembered(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        usual = a.value("SHOW DateStyle")
        a.ok("BEGIN; SET LOCAL DateStyle = 'German'; COMMIT")
        b.ok("SET DateStyle = 'SQL'")
        assert a.value("SHOW DateStyle") == usual


def test_client_that_dies_in_a_transaction_leaves_nothing(one_server):
    with one_server.wire() as b:
        usual = b.value("SHOW TimeZone")
        a = one_server.wire()
        a.ok("BEGIN; SET TimeZone = 'Asia/Tokyo'")
        a.reset()
        assert b.value("SHOW TimeZone") == usual


def test_reset_goes_back_to_the_default(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        usual = b.value("SHOW DateStyle")
        a.ok("SET DateStyle = 'German'")
        a.ok("RESET DateStyle")
        b.ok("SET DateStyle = 'SQL'")
        assert a.value("SHOW DateStyle") == usual


@core
def test_values_with_quotes_and_backslashes(one_server):
    for value in ("it's", 'say "x"', "a\\b", "x'; DROP TABLE t; --",
                  "\\'", "''"):
        with one_server.wire(params={"application_name": value}) as a, \
                one_server.wire(params={"application_name": "b"}) as b:
            b.ok("SELECT 1")
            assert a.value("SHOW application_name") == value


def test_quotes_with_standard_conforming_strings_off(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SET standard_conforming_strings = off")
        a.ok("SET application_name = E'a\\\\''b'")
        b.ok("SET application_name = 'b'")
        assert a.value("SHOW application_name") == "a\\'b"


def test_bad_startup_value_hurts_only_its_client(one_server):
    try:
        with one_server.wire(params={"client_encoding": "nonsense"}) as w:
            w.query("SELECT 1")
    except (ServerError, WireClosed):
        pass
    with one_server.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_bad_timezone_hurts_only_its_client(one_server):
    try:
        with one_server.wire(params={"TimeZone": "No/Where"}) as w:
            w.query("SELECT 1")
    except (ServerError, WireClosed):
        pass
    with one_server.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_names_of_parameters_in_any_case(one_server):
    with one_server.wire(params={"timezone": "Asia/Tokyo"}) as a, \
            one_server.wire(params={"DATESTYLE": "German"}) as b:
        assert a.value("SHOW TimeZone") == "Asia/Tokyo"
        assert b.value("SHOW DateStyle").startswith("German")


@core
@pytest.mark.differs("1.18 does not track it")
def test_interval_style_is_tracked_by_default(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SET IntervalStyle = 'iso_8601'")
        b.ok("SET IntervalStyle = 'sql_standard'")
        assert a.value("SELECT '1 day'::interval") == "P1D"
        assert b.value("SHOW IntervalStyle") == "sql_standard"


def test_parameter_set_in_a_function_call_of_sql(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SELECT set_config('TimeZone', 'Asia/Tokyo', false)")
        b.ok("SET TimeZone = 'Europe/Rome'")
        assert a.value("SHOW TimeZone") == "Asia/Tokyo"


def test_extended_protocol_gets_its_values_too(one_server):
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SET TimeZone = 'Asia/Tokyo'")
        b.ok("SET TimeZone = 'Europe/Rome'")
        a.send(parse("", "SHOW TimeZone"), bind(), execute(), sync())
        assert a.read_ready().value() == "Asia/Tokyo"


@pytest.mark.pooled
def test_replayed_values_are_not_echoed(one_server):
    """A client does not see the pooler's own SETs."""
    with one_server.wire() as a, one_server.wire() as b:
        a.ok("SET TimeZone = 'Asia/Tokyo'")
        b.ok("SET TimeZone = 'Europe/Rome'")
        got = a.ok("SELECT 1")
        assert got.types.replace("S", "") == "TDCZ"
        assert got.params.get("TimeZone") in (None, "Asia/Tokyo")


@pytest.mark.differs("it makes one literal of it, in whatever encoding")
@pytest.mark.parametrize("encoding,name", [
    ("SJIS", "\u30bd"),  # its second byte is a backslash
    ("BIG5", "\u529f"),
    ("GBK", "\u8a90"),
    ("UTF8", "\u00e4"),
])
def test_value_that_is_not_ascii(one_server, encoding, name):
    """It cannot end the literal that it is sent in, whatever its bytes mean;
    PostgreSQL shows what it does not keep as question marks."""
    raw = name.encode(encoding) + b"'; SET x.y = '1"
    with one_server.wire(params={"client_encoding": encoding,
                                 "application_name": raw}) as a:
        with one_server.wire() as b:
            b.ok("SELECT 1")
            got = a.ok("SHOW application_name").value()
            assert got.startswith("?") and got.endswith("'; SET x.y = '1")
            assert b.value("SELECT current_setting('x.y', true)") in (None, "")
