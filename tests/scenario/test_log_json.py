# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""log_format = json: every line is an object, whatever strangers send."""
import datetime
import json
import os
import re

import pytest

import pgwire
import procs

pytestmark = [pytest.mark.pooled, pytest.mark.core,
              pytest.mark.transports("tcp", "unix")]

LEVELS = {"FATAL", "ERROR", "WARNING", "LOG", "DEBUG", "NOISE"}
HOSTILE = ['a"b', "a\\b", "{}", "x/y@z: w", "\u2028", "\x1f", "a\nLOG b",
           "\x1f: \x1fq\x1f/\x1fr\x1f", "%s%n", "l" * 300]


@pytest.fixture
def logged(make_pooler, transport, target):
    if target != "pgbraid":
        pytest.skip("only pgbraid has log_format")

    def make(options=None, **kw):
        out = make_pooler({"log_format": "json", "verbose": 1,
                           **(options or {})}, transport=transport,
                          start=False, **kw)
        path = os.path.join(out.folder, "log.json")
        out.options["logfile"] = path
        out.write_ini()
        out.start()
        out.json_path = path
        return out
    return make


def lines(pooler):
    """Each line, as strict as it gets."""
    def no(constant):
        raise AssertionError("no JSON: %s" % constant)
    with open(pooler.json_path, "rb") as src:
        raw = src.read()
    assert raw.endswith(b"\n")
    out = []
    for line in raw[:-1].split(b"\n"):
        got = json.loads(line.decode("utf-8", "strict"), parse_constant=no)
        assert list(got)[:3] == ["timestamp", "pid", "error_severity"]
        assert list(got)[-1] == "message"
        assert got["error_severity"] in LEVELS
        assert isinstance(got["pid"], int)
        at = datetime.datetime.fromisoformat(got["timestamp"])
        assert at.tzinfo is not None
        age = datetime.datetime.now(datetime.timezone.utc) - at
        assert abs(age.total_seconds()) < 300
        out.append(got)
    return out


def wait_line(pooler, **want):
    """Until a line has these values; message is a pattern."""
    pattern = want.pop("message", "")

    def find():
        for line in lines(pooler):
            if all(line.get(k) == v for k, v in want.items()) and \
                    re.search(pattern, line["message"]):
                return line
        return None
    return procs.wait_for(find, 10, "line %r %r" % (want, pattern))


def test_fields(logged, transport):
    pooler = logged()
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
        client = {r["ptr"] for r in pooler.show("CLIENTS")
                  if r["database"] == "db1"}
        server = {r["ptr"] for r in pooler.show("SERVERS")}
    line = wait_line(pooler, dbname="db1", message="^login attempt: db=db1")
    assert {line["client"]} == client and line["user"] == "u_trust"
    assert line["pid"] == pooler.pid
    if transport.name == "tcp":
        assert line["remote_host"] == "127.0.0.1"
        assert isinstance(line["remote_port"], int)
    else:
        assert line["remote_host"].startswith("unix")
    line = wait_line(pooler, dbname="db1", message="new connection to server")
    assert {line["server"]} == server
    if transport.name == "tcp":
        assert line["remote_port"] == pooler.cluster.port
    line = wait_line(pooler, message="^process up: pgbraid")
    assert "dbname" not in line and "client" not in line


def test_hostile_names(logged):
    pooler = logged({"auth_type": "any"}, databases={
        "*": "host=127.0.0.1 port=1 user=u_trust"})
    for name in HOSTILE:
        for user, database in ((name, "db1"), ("u_trust", name)):
            with pytest.raises((pgwire.ServerError, pgwire.WireClosed)):
                pooler.wire(user, database)
    raw = pooler.open()
    raw.send(pgwire.startup({b"user": b"u\xff\xfe\xc3", b"database":
                             b"\xed\xa0\x80\xf8", b"application_name":
                             b"\x80\xc0"}))
    raw.read_to_close()
    raw.abort()
    wait_line(pooler, user="u\\xff\\xfe\\xc3")
    wait_line(pooler, user='a"b')
    wait_line(pooler, dbname="x/y@z: w", user="u_trust")
    wait_line(pooler, dbname="a LOG b")
    for line in lines(pooler):
        assert line.get("dbname") != "q", line


def test_garbage_on_the_wire(logged):
    pooler = logged()
    for bytes_ in (b"\xff" * 64, b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n",
                   pgwire.startup({b"user": b"u_trust", b"database": b"db1",
                                   b"o\x1f\"\xff": b"\x01\xfe"})):
        raw = pooler.open()
        raw.send(bytes_)
        raw.read_to_close()
        raw.abort()
    wait_line(pooler, message="closing because")
    assert len(lines(pooler)) > 8


def test_change_by_reload(logged):
    pooler = logged()
    wait_line(pooler, message="process up")
    pooler.console("SET log_format = 'plain'")
    with pooler.wire() as wire:
        wire.ok("SELECT 1")

    def plain():
        with open(pooler.json_path) as src:
            return re.search(r"^\S+ \S+ \S+ \[%d\] LOG C-0x[0-9a-f]+: "
                             r"db1/u_trust@\S+ login attempt" % pooler.pid,
                             src.read(), re.MULTILINE)
    procs.wait_for(plain, 10, "a plain line")
    with open(pooler.json_path, "rb") as src:
        assert b"\x1f" not in src.read()
