# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The same file for PgBouncer and for pgbraid, and the same questions to both.

The PgBouncer of the machine is the measure, and the one that PGBOUNCER_BIN
names.
"""
import os
import shutil

import pytest

import procs
from pgwire import ServerError, WireClosed, bind, describe, execute, parse, sync

pytestmark = pytest.mark.pooled

TABLES = ["POOLS", "CLIENTS", "SERVERS", "SOCKETS", "ACTIVE_SOCKETS", "FDS",
          "DATABASES", "USERS", "STATS", "STATS_TOTALS", "STATS_AVERAGES",
          "TOTALS", "LISTS", "CONFIG", "MEM", "DNS_HOSTS", "DNS_ZONES",
          "STATE", "VERSION", "PEERS", "PEER_POOLS"]

# Console commands that fail, or succeed, in the same words.
COMMANDS = ["SHOW NOTHING", "SHOW", "PAUSE nodb", "RESUME nodb", "RESUME",
            "DISABLE nodb", "ENABLE nodb", "KILL nodb", "RECONNECT nodb",
            "WAIT_CLOSE nodb", "SET", "SET nothing = 1", "SELECT 1",
            "PAUSE db1", "PAUSE db1", "RESUME db1", "DISABLE db1",
            "ENABLE db1", "RELOAD", "RECONNECT", "SET query_timeout = 7",
            "SET pool_mode = 'nonsense'", "DISABLE", "ENABLE", "PAUSE pgbouncer",
            "DISABLE pgbouncer", "KILL pgbouncer"]

# Columns that have another name or type in newer versions.
CHANGED = {"server_lifetime", "reserve_pool"}

# Not compared, and why.
OTHER_DEFAULTS = {
    "conffile", "logfile", "pidfile", "unix_socket_dir",  # of the build
    "resolv_conf", "user",
    # Changed in later versions than 1.18.
    "client_tls_ciphers", "server_tls_ciphers", "server_tls_sslmode",
    "server_check_query",
}


def programs():
    out = [("installed", shutil.which("pgbouncer") or "/usr/sbin/pgbouncer")]
    return out + [("named", os.environ.get("PGBOUNCER_BIN", ""))]


@pytest.fixture(params=programs(), ids=[p[0] for p in programs()])
def both(request, make_pooler, target, session_folder):
    """Two poolers with the same file: PgBouncer's and ours."""
    if target != "pgbraid":
        pytest.skip("compares pgbraid with it")
    path = request.param[1]
    if not path or not os.path.exists(path):
        pytest.skip("no pgbouncer: package pgbouncer, or PGBOUNCER_BIN")
    copy = os.path.join(session_folder, "pgbouncer-" + request.param[0])
    shutil.copy(path, copy)
    os.chmod(copy, 0o755)
    return make_pooler(program=("pgbouncer", copy)), make_pooler()


def is_within(some, all_of):
    """In this order, others perhaps between them."""
    rest = iter(all_of)
    return all(any(x == y for y in rest) for x in some)


def ask(pooler, sql):
    """What there is of it: (columns, tag, SQLSTATE, text)."""
    with pooler.admin() as a:
        try:
            got = a.query(sql)
        except WireClosed:
            return None, None, None, "closed"
        fields = got.error or {}
        return (got.columns, got.tags, fields.get("C"), fields.get("M"))


@pytest.mark.parametrize("what", TABLES)
def test_columns(both, what):
    theirs, ours = both
    with theirs.wire() as a, ours.wire() as b:
        a.ok("SELECT 1")
        b.ok("SELECT 1")
        want = ask(theirs, "SHOW " + what)
        if want[2]:
            pytest.skip("it has no SHOW " + what)
        got = ask(ours, "SHOW " + what)
        assert is_within([c for c in want[0] if c[0] not in CHANGED], got[0])
        assert got[1] == want[1]


def test_words_of_the_console(both):
    theirs, ours = both
    differ = []
    for sql in COMMANDS:
        want, got = ask(theirs, sql), ask(ours, sql)
        if want[1:] != got[1:]:
            differ.append((sql, want[1:], got[1:]))
    assert not differ, "\n".join("%r: %s, here %s" % d for d in differ)


def test_config(both):
    """Each of its options is here, with its default, fixed at start or not as
    there."""
    theirs, ours = both
    want = {r["key"]: r for r in theirs.show("CONFIG")}
    got = {r["key"]: r for r in ours.show("CONFIG")}
    assert set(want) <= set(got)
    default = {k: (want[k]["default"], got[k]["default"]) for k in want
               if want[k]["default"] != got[k]["default"] and
               k not in OTHER_DEFAULTS}
    change = {k: (want[k]["changeable"], got[k]["changeable"]) for k in want
              if want[k]["changeable"] != got[k]["changeable"]}
    assert default == {} and change == {}


# The SQLSTATE is PostgreSQL's here and 08P01 there: docs/migration.md.
LOGINS = [
    ("u_trust", "nowhere", None),
    ("nobody", "db1", None),
    ("u_trust", "pgbouncer", None),
]


@pytest.mark.parametrize("user,database,password", LOGINS)
def test_words_of_a_login(both, user, database, password):
    said = []
    for pooler in both:
        try:
            pooler.wire(user, database, password=password).close()
            said.append(None)
        except ServerError as e:
            said.append(str(e).split(": ", 1)[1])
    assert said[0] == said[1]


def test_extended_protocol_of_the_console(both):
    """New enough ones answer it, as drivers ask."""
    said = []
    for pooler in both:
        with pooler.admin() as a:
            a.send(parse("", "SHOW VERSION"), bind(), describe("P"), execute(),
                   sync())
            try:
                got = a.read_ready()
                said.append(got.columns)
            except WireClosed:
                said.append(None)
    if not said[0]:
        pytest.skip("1.18 has no extended protocol there")
    assert said[0] == said[1]


# What is added to a good file; loaded or refused by both.
TEXTS = [
    "[pgbouncer]\npool_mode = nonsense",
    "[pgbouncer]\npool_mode = Session",
    "[pgbouncer]\nquery_timeout = 1.5",
    "[pgbouncer]\nquery_timeout = 5s",
    "[pgbouncer]\nquery_timeout = abc",
    "[pgbouncer]\nquery_timeout = -1",
    "[pgbouncer]\nmax_client_conn = abc",
    "[pgbouncer]\nmax_client_conn = 10x",
    "[pgbouncer]\nno_such_key = 1",
    "[pgbouncer]\nno equals sign",
    "[pgbouncer]\nauth_type = nonsense",
    "[pgbouncer]\nauth_type = TRUST",
    "[pgbouncer]\nsyslog_facility = nonsense",
    "[pgbouncer]\nclient_tls_sslmode = nonsense",
    "[pgbouncer]\nserver_tls_protocols = nonsense",
    "[pgbouncer]\nlog_connections = yes",
    "[pgbouncer]\nlog_connections = maybe",
    "[pgbouncer]\nlog_connections = ON",
    "[pgbouncer]\nunix_socket_mode = 0888",
    "[pgbouncer]\nignore_startup_parameters = a, ,b",
    "[pgbouncer]\nserver_check_query =",
    "[pgbouncer]\n; a comment\n# another\n\n   # a third",
    "[pgbouncer]\n  query_timeout   =   3   ",
    "[pgbouncer]\nadmin_users = *",
    "[nothing]\na = 1",
    "[databases\na = host=x",
    "[databases]\nx = host=a",
    "[databases]\nx =",
    "[databases]\nx = host",
    "[databases]\nx = host=a unknown=1",
    "[databases]\nx = host=a port=abc",
    "[databases]\nx = host=a,b,c port=5432,5433,5434",
    "[databases]\nx = host='a b'",
    "[databases]\nx = host=a password='it''s'",
    "[databases]\nx = host=a password='open",
    "[databases]\nx = host=a pool_size=abc",
    "[databases]\nx = host=a pool_mode=nonsense",
    "[databases]\nx = host=a connect_query='select ''a'''",
    "[databases]\n\"a b\" = host=a",
    "[databases]\n* = host=a",
    "[databases]\npgbouncer = host=a",
    "[databases]\nx = host=/tmp",
    "[users]\nu = pool_mode=nonsense",
    "[users]\nu = unknown=1",
    "[users]\nu = max_user_connections=5",
    "%include /nonexistent.ini",
]


# docs/migration.md says why.
DELIBERATE = {
    "[pgbouncer]\nsyslog_facility = nonsense": "a mistake that it overlooks",
    "[databases]\nx = host=a pool_size=abc": "a mistake that it overlooks",
    "[pgbouncer]\nserver_tls_protocols = nonsense": "1.18 overlooks it",
    "[pgbouncer]\nlog_connections = yes": "a number there",
    "[pgbouncer]\nlog_connections = ON": "a number there",
    "[databases]\n\"a b\" = host=a": "no such names there",
}


def loads(make_pooler, program, text):
    p = make_pooler(program=program, start=False, extra=text + "\n")
    p.spawn()
    procs.wait_for(lambda: p.proc.poll() is not None or
                   "process up" in p.log(), 20, "an end or a beginning")
    if p.proc.poll() is None:
        p.stop()
        return True
    p.wait_exit()
    return False


@pytest.mark.slow
def test_same_files_load(both, make_pooler):
    theirs, ours = both
    program = ("pgbouncer", theirs.binary)
    differ = []
    for text in TEXTS:
        got = loads(make_pooler, program, text), loads(make_pooler, None, text)
        if got[0] != got[1] and text not in DELIBERATE:
            differ.append((text, "loads" if got[0] else "is refused"))
    assert not differ, "\n".join("%r: %s there, not here" % d for d in differ)
