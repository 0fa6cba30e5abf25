# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Who gets in, by which method, and as whom at the server."""
import struct

import pytest

import pgwire
from cluster import USERS
from pgwire import ServerError, WireClosed, cstr, msg, startup

core = pytest.mark.core
REFUSED = (ServerError, WireClosed)


def secret(user, kind):
    password = USERS[user][0]
    return {"plain": password, "md5": pgwire.md5_secret(user, password),
            "scram": pgwire.scram_secret(password)}[kind]


@pytest.fixture
def auth(make_pooler, transport, cluster):
    """make(auth_type, kind of secret): u_trust and others as stored."""
    def make(auth_type, kind="plain", **options):
        users = ("u_trust", "u_other", "u_md5", "u_scram", "u_utf8")
        return make_pooler(dict(options, auth_type=auth_type),
                           transport=transport,
                           userlist={u: secret(u, kind) for u in users})
    return make


# method asked (code of the authentication request), or None: refused
MATRIX = [
    ("trust", "plain", 0), ("trust", "md5", 0), ("trust", "scram", 0),
    ("plain", "plain", 3), ("plain", "md5", 3), ("plain", "scram", 3),
    ("md5", "plain", 5), ("md5", "md5", 5), ("md5", "scram", 10),
    ("scram-sha-256", "plain", 10), ("scram-sha-256", "scram", 10),
    ("scram-sha-256", "md5", None),
]


@core
@pytest.mark.parametrize("auth_type,kind,code", MATRIX,
                         ids=["%s-%s" % m[:2] for m in MATRIX])
def test_matrix(auth, auth_type, kind, code):
    p = auth(auth_type, kind)
    if code is None:
        with pytest.raises(REFUSED):
            p.wire()
        return
    with p.wire() as w:
        assert w.auth_seen[0] == code
        assert w.value("SELECT current_user") == "u_trust"


@core
@pytest.mark.parametrize("auth_type,kind", [
    m[:2] for m in MATRIX if m[2]], ids=["%s-%s" % m[:2] for m in MATRIX
                                         if m[2]])
def test_wrong_password(auth, auth_type, kind):
    p = auth(auth_type, kind)
    for bad in ("wrong", "secret ", "Secret", "x" * 500):
        with pytest.raises(REFUSED):
            p.wire(password=bad)
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_unknown_user(auth, auth_type):
    p = auth(auth_type)
    with pytest.raises(REFUSED):
        p.wire("nobody_knows", password="x")


@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
def test_unknown_user_is_asked_like_a_known_one(auth, auth_type):
    """No telling users from strangers before a password was given."""
    p = auth(auth_type)
    first = []
    for user in ("u_trust", "nobody_knows"):
        w = p.open()
        w.send(startup({"user": user, "database": "db1"}))
        first.append(w.read())
        w.abort()
    assert first[0].type == first[1].type == "R"
    assert first[0].body[:4] == first[1].body[:4]


@pytest.mark.differs("has another SQLSTATE")
def test_wrong_password_has_postgresqls_sqlstate(auth):
    p = auth("scram-sha-256")
    with pytest.raises(ServerError) as info:
        p.wire(password="wrong")
    assert info.value.sqlstate == "28P01"
    assert "u_trust" in str(info.value)


@core
@pytest.mark.parametrize("auth_type", ["plain", "md5"])
def test_empty_password(auth, auth_type):
    p = auth(auth_type)
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    assert w.read().type == "R"
    w.send(msg("p", b"\0"))
    got = w.read_to_close()
    assert all(m.type == "E" for m in got)
    w.abort()


def test_any_takes_every_name(make_pooler, transport):
    p = make_pooler({"auth_type": "any"}, databases={},
                    transport=transport)
    p.databases["db1"] = (p.server() + " dbname=db1 user=u_trust"
                          " password=secret")
    p.write_ini()
    p.reload()
    with p.wire("whoever", password="x") as w:
        assert w.value("SELECT current_user") == "u_trust"


# --- SCRAM in detail -----------------------------------------------------------

@core
def test_saslprep(make_pooler, transport, cluster):
    """U+2168 (ROMAN NUMERAL NINE) is prepared to IX."""
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport,
                    userlist={"u_utf8": cluster.secret_of("u_utf8")})
    with p.wire("u_utf8") as w:
        assert w.value("SELECT current_user") == "u_utf8"
    with p.wire("u_utf8", password="p\u00e4ssw\u00f6rdIX") as w:
        assert w.value("SELECT 1") == "1"


def test_iterations_come_from_the_secret(make_pooler, transport):
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport,
                    userlist={"u_trust": pgwire.scram_secret(
                        "secret", 7777)})
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    w.read_type("R")
    scram = pgwire.Scram("secret")
    first = scram.first()
    w.send(msg("p", cstr("SCRAM-SHA-256") +
               struct.pack("!I", len(first)) + first))
    got = w.read_type("R")
    assert b",i=7777" in got.body
    w.send(msg("p", scram.final(got.body[4:])))
    scram.verify(w.read_type("R").body[4:])
    w.finish_login("u_trust")
    w.close()


@core
@pytest.mark.transports("tls")
@pytest.mark.differs("has no SCRAM-PLUS")
def test_channel_binding_over_tls(auth):
    p = auth("scram-sha-256", "scram")
    with p.wire(plus=True) as w:
        assert "SCRAM-SHA-256-PLUS" in w.mechanisms
        assert w.value("SELECT 1") == "1"
    with p.wire(plus=False) as w:
        assert w.value("SELECT 1") == "1"


@core
@pytest.mark.transports("tcp", "unix")
def test_no_channel_binding_without_tls(auth):
    p = auth("scram-sha-256", "scram")
    with p.wire() as w:
        assert w.mechanisms == ["SCRAM-SHA-256"]


@core
@pytest.mark.transports("tls")
@pytest.mark.differs("has no SCRAM-PLUS")
def test_wrong_channel_binding_is_refused(auth, monkeypatch):
    p = auth("scram-sha-256", "scram")
    monkeypatch.setattr(pgwire, "cert_hash", lambda der: b"\1" * 32)
    with pytest.raises(REFUSED):
        p.wire(plus=True)


@core
@pytest.mark.transports("tls")
@pytest.mark.differs("has no SCRAM-PLUS")
def test_downgrade_of_channel_binding_is_refused(auth, monkeypatch):
    """gs2 flag y: "I could, you seem not to" - but PLUS was offered."""
    p = auth("scram-sha-256", "scram")
    real = pgwire.Scram
    monkeypatch.setattr(pgwire, "Scram", lambda password, binding, _:
                        real(password, None, True))
    with pytest.raises(REFUSED):
        p.wire(plus=False)


@pytest.mark.transports("tls")
@pytest.mark.differs("has no SCRAM-PLUS")
def test_libpq_requires_channel_binding(auth):
    p = auth("scram-sha-256", "scram")
    with p.pg(channel_binding="require") as c:
        assert c.execute("SELECT 1").fetchone() == (1,)


@core
@pytest.mark.parametrize("data", [
    b"", b"\0", cstr("SCRAM-SHA-1") + struct.pack("!I", 0),
    cstr("SCRAM-SHA-256") + struct.pack("!I", 1000) + b"n,,n=,r=x",
    cstr("SCRAM-SHA-256") + struct.pack("!I", 3) + b"n,,",
    cstr("SCRAM-SHA-256") + struct.pack("!I", 9) + b"n,,n=,r=\0",
    cstr("SCRAM-SHA-256") + struct.pack("!I", 12) + b"x,,n=,r=abcd",
    cstr("SCRAM-SHA-256") + struct.pack("!I", 14) + b"n,a=x,n=,r=abc",
    b"SCRAM-SHA-256 without end", b"x" * 9000,
], ids=lambda d: "%d" % len(d))
@pytest.mark.differs("hangs, or logs too much")
def test_bad_sasl_messages(auth, data):
    p = auth("scram-sha-256", "scram")
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    w.read_type("R")
    w.send(msg("p", data))
    try:
        got = w.read_to_close()
        assert not [m for m in got if m.type == "Z"]
    finally:
        w.abort()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


@pytest.mark.differs("crashes")
def test_sasl_without_an_initial_response(auth):
    """Legal: PostgreSQL answers with an empty challenge."""
    p = auth("scram-sha-256", "scram")
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    w.read_type("R")
    w.send(msg("p", cstr("SCRAM-SHA-256") + b"\xff\xff\xff\xff"))
    got = w.read()
    assert got.type == "E" or got.body == struct.pack("!I", 11)
    w.abort()
    with p.wire() as w:
        assert w.value("SELECT 1") == "1"


def test_proof_of_another_exchange_is_refused(auth):
    p = auth("scram-sha-256", "scram")
    proofs = []
    for _ in range(2):
        w = p.open()
        w.send(startup({"user": "u_trust", "database": "db1"}))
        w.read_type("R")
        scram = pgwire.Scram("secret")
        first = scram.first()
        w.send(msg("p", cstr("SCRAM-SHA-256") +
                   struct.pack("!I", len(first)) + first))
        final = scram.final(w.read_type("R").body[4:])
        proofs.append(final)
        if len(proofs) == 2:
            stolen = proofs[0].split(b",p=")[1]
            w.send(msg("p", final.split(b",p=")[0] + b",p=" + stolen))
            got = w.read_to_close()
            assert [m.type for m in got] in (["E"], [])
        w.abort()


@core
@pytest.mark.parametrize("auth_type", ["plain", "md5", "scram-sha-256"])
@pytest.mark.differs("hangs, or logs too much")
def test_login_byte_by_byte(auth, auth_type):
    p = auth(auth_type)
    w = p.open(dribble=True)
    w.login("u_trust", "db1", "secret")
    assert w.value("SELECT 1") == "1"
    w.close()


def test_login_message_larger_than_any_password(auth):
    p = auth("plain")
    w = p.open()
    w.send(startup({"user": "u_trust", "database": "db1"}))
    w.read_type("R")
    try:
        w.send(msg("p", b"x" * 5000000))
        assert w.is_closed()
    except WireClosed:
        pass
    w.abort()


# --- auth_file -------------------------------------------------------------------

def test_quotes_in_auth_file(make_pooler, transport, cluster):
    cluster.sql("DROP ROLE IF EXISTS \"we\"\"ird\"")
    cluster.sql("CREATE ROLE \"we\"\"ird\" LOGIN PASSWORD 'a\"b'")
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport,
                    userlist={'we"ird': 'a"b'})
    with p.wire('we"ird', password='a"b') as w:
        assert w.value("SELECT current_user") == 'we"ird'


@core
def test_auth_file_is_read_again_on_reload(make_pooler, transport):
    p = make_pooler({"auth_type": "md5"}, transport=transport,
                    userlist={"u_trust": "secret"})
    with pytest.raises(REFUSED):
        p.wire("u_other")
    p.write_userlist({"u_trust": "secret", "u_other": "secret"})
    p.reload()
    with p.wire("u_other") as w:
        assert w.value("SELECT 1") == "1"


# --- auth_query -------------------------------------------------------------------

QUERY = "SELECT usename, passwd FROM pg_shadow WHERE usename=$1"


@pytest.fixture
def looked_up(make_pooler, transport, cluster):
    cluster.sql("ALTER ROLE authuser SUPERUSER")

    def make(auth_type="scram-sha-256", **kw):
        options = dict({"auth_type": auth_type, "auth_user": "authuser",
                        "auth_query": QUERY}, **kw)
        return make_pooler(options, transport=transport,
                           userlist={"authuser": "authword"})
    yield make
    cluster.sql("ALTER ROLE authuser NOSUPERUSER")


@core
@pytest.mark.parametrize("auth_type,user", [
    ("scram-sha-256", "u_scram"), ("md5", "u_md5"), ("md5", "u_scram")])
def test_auth_query(looked_up, auth_type, user):
    """The secret fetched also opens the server: pass-through."""
    p = looked_up(auth_type)
    with p.wire(user) as w:
        assert w.value("SELECT current_user") == user
    with pytest.raises(REFUSED):
        p.wire(user, password="wrong")


@core
def test_auth_query_unknown_user(looked_up):
    p = looked_up()
    with pytest.raises(REFUSED):
        p.wire("nobody_knows", password="x")
    with p.wire("u_scram") as w:
        assert w.value("SELECT 1") == "1"


def test_auth_query_null_secret(looked_up, cluster):
    cluster.sql("DROP ROLE IF EXISTS no_secret")
    cluster.sql("CREATE ROLE no_secret LOGIN")
    p = looked_up()
    with pytest.raises(REFUSED):
        p.wire("no_secret", password="")
    with pytest.raises(REFUSED):
        p.wire("no_secret", password="x")


def test_auth_query_that_fails(looked_up):
    p = looked_up(auth_query="SELECT 1/0, $1")
    with pytest.raises(REFUSED):
        p.wire("u_scram")


def test_auth_query_user_name_is_a_parameter(looked_up):
    p = looked_up()
    for name in ("x' OR '1'='1", "u_scram'--", "x\\"):
        with pytest.raises(REFUSED):
            p.wire(name, password="x")


def test_auth_query_is_asked_again_after_a_change(looked_up, cluster):
    p = looked_up()
    cluster.sql("DROP ROLE IF EXISTS changing")
    cluster.sql("CREATE ROLE changing LOGIN PASSWORD 'one'")
    with p.wire("changing", password="one") as w:
        w.ok("SELECT 1")
    cluster.sql("ALTER ROLE changing PASSWORD 'two'")
    with p.wire("changing", password="two") as w:
        assert w.value("SELECT 1") == "1"
    with pytest.raises(REFUSED):
        p.wire("changing", password="one")


@pytest.mark.differs("1.18 has no auth_dbname")
def test_auth_dbname(looked_up):
    p = looked_up(auth_dbname="db2")
    with p.wire("u_scram") as w:
        assert w.value("SELECT current_user") == "u_scram"
    assert [r for r in p.show("POOLS") if r["user"] == "authuser"
            and r["database"] == "db2"]


def test_many_logins_at_once_through_auth_query(looked_up):
    p = looked_up()
    wires = []
    for i in range(30):
        w = p.open()
        w.send(startup({"user": "u_scram", "database": "db1"}))
        wires.append(w)
    for w in wires:
        w.auth("u_scram", "scramword")
    for w in wires:
        w.read_ready()
        assert w.value("SELECT 1") == "1"
        w.close()


# --- towards the server -----------------------------------------------------------

@core
@pytest.mark.parametrize("user", ["u_plain", "u_md5", "u_scram", "u_utf8"])
def test_server_methods_with_a_plain_password(pooler, user):
    """pg_hba asks these users for password, md5 and scram-sha-256."""
    with pooler.wire(user) as w:
        assert w.value("SELECT current_user") == user


@core
def test_server_md5_with_an_md5_secret(make_pooler, transport):
    p = make_pooler({"auth_type": "md5"}, transport=transport,
                    userlist={"u_md5": secret("u_md5", "md5")})
    with p.wire("u_md5") as w:
        assert w.value("SELECT current_user") == "u_md5"


@core
def test_scram_pass_through(make_pooler, transport, cluster):
    """With the server's own secret in auth_file and no password at all,
    the client's keys open the server."""
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport,
                    userlist={"u_scram": cluster.secret_of("u_scram")})
    for _ in range(3):
        with p.wire("u_scram") as w:
            assert w.value("SELECT current_user") == "u_scram"


@pytest.mark.differs("1.18 refuses it")
def test_scram_pass_through_with_a_forced_user(make_pooler, transport,
                                               cluster):
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport,
                    userlist={"u_scram": cluster.secret_of("u_scram")})
    p.databases["forced"] = p.server() + " dbname=db1 user=u_scram"
    p.write_ini()
    p.reload()
    with p.wire("u_scram", "forced") as w:
        assert w.value("SELECT current_user") == "u_scram"


def test_scram_secret_that_is_not_the_servers(make_pooler, transport):
    """Another salt: the client gets in here but not there; it is told."""
    p = make_pooler({"auth_type": "scram-sha-256",
                     "query_wait_timeout": 3}, transport=transport,
                    userlist={"u_scram": secret("u_scram", "scram")})
    with pytest.raises(REFUSED):
        p.wire("u_scram").value("SELECT 1")


@core
@pytest.mark.unfit("pooled", "the pooler behind asks for none here")
def test_wrong_server_password_is_told(make_pooler, transport):
    p = make_pooler({"query_wait_timeout": 5}, transport=transport,
                    userlist={"u_scram": "wrong"})
    with pytest.raises(REFUSED) as info:
        p.wire("u_scram").value("SELECT 1")
    assert "u_scram" in str(info.value) or "login" in str(info.value) \
        or "closed" in str(info.value)
    assert "wrong" not in p.log()


@pytest.mark.differs("hangs, or logs too much")
def test_secrets_never_reach_the_log(make_pooler, transport):
    p = make_pooler({"auth_type": "scram-sha-256", "verbose": 3},
                    transport=transport)
    p.databases["forced"] = (p.server() + " dbname=db1 user=u_scram"
                             " password=scramword")
    p.write_ini()
    p.reload()
    with p.wire() as w:
        w.ok("SELECT 'q u e r y'")
    with p.wire(database="forced") as w:
        w.ok("SELECT 1")
    text = p.log()
    for word in ("scramword", "adminword", "q u e r y", "SCRAM-SHA-256$"):
        assert word not in text


def test_forced_user_with_password(make_pooler, transport):
    p = make_pooler({"auth_type": "md5"}, transport=transport,
                    userlist={"guest": "guestword"})
    p.databases["db1"] = (p.server() + " dbname=db1 user=u_scram"
                          " password=scramword")
    p.write_ini()
    p.reload()
    with p.wire("guest", password="guestword") as w:
        assert w.value("SELECT current_user") == "u_scram"


# --- the console's door -------------------------------------------------------------

@core
def test_console_needs_its_password(make_pooler, transport):
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport)
    with pytest.raises(REFUSED):
        p.wire("admin", "pgbouncer", password="wrong")
    with p.wire("admin", "pgbouncer") as w:
        assert w.ok("SHOW VERSION").rows


@core
def test_console_refuses_other_users(pooler):
    with pytest.raises(REFUSED):
        pooler.wire("u_trust", "pgbouncer")


@pytest.mark.transports("unix")
def test_console_for_the_own_system_user(pooler, tool, run):
    """User pgbouncer from the same uid needs no password."""
    import procs
    psql = tool("psql", "postgresql-client")
    got = run(procs.as_service([
        psql, "-XAtq", "-h", pooler.sockdir, "-p", str(pooler.port),
        "-U", "pgbouncer", "-d", "pgbouncer", "-c", "SHOW VERSION"]),
        cwd="/")
    assert got.strip()
