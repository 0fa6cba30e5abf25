# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Start-up packets of every legal and illegal shape."""
import os
import struct

import pytest

import procs
from pgwire import (GSSENC_REQUEST, PROTOCOL_3_0, PROTOCOL_3_2, SSL_REQUEST,
                    ServerError, Wire, WireClosed, msg, query,
                    special_request, startup)

core = pytest.mark.core
PARAMS = {"user": "u_trust", "database": "db1"}


def refused(wire, timeout=10):
    """The ErrorResponse before the close, or None if it just closed."""
    got = wire.read_to_close(timeout)
    wire.abort()
    for m in got:
        assert m.type != "Z", "was let in: %r" % got
    errors = [m for m in got if m.type == "E"]
    return errors[0].fields if errors else None


def works(pooler):
    with pooler.wire() as w:
        assert w.value("SELECT 1") == "1"


@core
def test_login_sequence(pooler):
    w = pooler.open()
    w.send(startup(PARAMS))
    got = w.read_until("Z")
    types = "".join(m.type for m in got)
    assert types[0] == "R" and types.count("K") == 1
    assert types.index("K") > types.index("R")
    assert set(types) <= set("RSKZN")
    key = [m for m in got if m.type == "K"][0]
    assert len(key.body) == 8
    w.close()


@core
@pytest.mark.differs("wants whole start-up packets")
def test_startup_packet_byte_by_byte(pooler):
    w = pooler.open(dribble=True)
    w.login("u_trust", "db1")
    assert w.value("SELECT 1") == "1"
    w.close()


@pytest.mark.differs("wants whole start-up packets")
def test_startup_packet_split_at_every_place(pooler):
    data = startup(PARAMS)
    for at in range(1, len(data)):
        w = pooler.open()
        w.send(data[:at])
        w.send(data[at:])
        w.finish_login("u_trust")
        w.close()


@core
def test_query_sent_with_the_startup_packet(pooler):
    """A client may not wait for anything when the login is trust."""
    w = pooler.open()
    w.send(startup(PARAMS), query("SELECT 11"))
    w.finish_login("u_trust")
    assert w.read_ready().value() == "11"
    w.close()


def test_database_defaults_to_the_user_name(make_pooler, transport):
    p = make_pooler(transport=transport)
    p.databases["u_trust"] = p.server() + " dbname=db2"
    p.write_ini()
    p.reload()
    w = p.open()
    w.login("u_trust")
    assert w.value("SELECT current_database()") == "db2"
    w.close()


def test_parameters_in_any_order(pooler):
    w = pooler.open()
    w.send(startup({"application_name": "x", "database": "db1",
                    "user": "u_trust", "client_encoding": "UTF8"}))
    w.finish_login("u_trust")
    assert w.value("SHOW application_name") == "x"
    w.close()


@core
def test_no_user(pooler):
    w = pooler.open()
    w.send(startup({"database": "db1"}))
    assert refused(w)
    works(pooler)


def test_empty_user(pooler):
    w = pooler.open()
    w.send(startup({"user": "", "database": "db1"}))
    assert refused(w)


@pytest.mark.pooled
def test_unknown_database(pooler):
    w = pooler.open()
    w.send(startup({"user": "u_trust", "database": "nowhere"}))
    err = refused(w)
    assert err and "nowhere" in err["M"] or "no such database" in err["M"]


@pytest.mark.pooled
@pytest.mark.differs("has another SQLSTATE")
def test_unknown_database_has_postgresqls_sqlstate(pooler):
    w = pooler.open()
    w.send(startup({"user": "u_trust", "database": "nowhere"}))
    assert refused(w)["C"] == "3D000"


@core
@pytest.mark.pooled
def test_unknown_parameter_is_refused(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, strange_thing="1")))
    err = refused(w)
    assert "strange_thing" in err["M"]


def test_ignore_startup_parameters(make_pooler, transport):
    p = make_pooler({"ignore_startup_parameters":
                     "strange_thing, extra_float_digits"},
                    transport=transport)
    w = p.open()
    w.send(startup(dict(PARAMS, strange_thing="1", extra_float_digits="2")))
    w.finish_login("u_trust")
    assert w.value("SELECT 1") == "1"
    w.close()


@pytest.mark.differs("1.18 knows no options=")
def test_options_c(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, options="-c TimeZone=Asia/Tokyo "
                        "-cDateStyle=SQL")))
    w.finish_login("u_trust")
    assert w.value("SHOW TimeZone") == "Asia/Tokyo"
    assert w.value("SHOW DateStyle").startswith("SQL")
    w.close()


@pytest.mark.differs("1.18 knows no options=")
def test_options_long_form_with_escapes(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS,
                        options="--application_name=a\\ b\\\\c")))
    w.finish_login("u_trust")
    assert w.value("SHOW application_name") == "a b\\c"
    w.close()


@pytest.mark.pooled
def test_options_other_than_c_are_refused(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, options="-d 5")))
    assert refused(w)


@pytest.mark.pooled
def test_options_with_an_unknown_setting_is_refused(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, options="-c work_mem=1MB")))
    err = refused(w)
    assert err and "work_mem" in err["M"] or "options" in err["M"]


@pytest.mark.differs("1.18 knows no _pq_ options")
def test_unknown_protocol_option_is_negotiated(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, **{"_pq_.wonder": "1"})))
    got = w.read()
    while got.type != "v":
        assert got.type != "E", got.fields
        assert got.type != "Z", "no NegotiateProtocolVersion"
        got = w.read()
    minor, count = struct.unpack_from("!II", got.body)
    assert count == 1 and got.body[8:] == b"_pq_.wonder\0"
    w.finish_login("u_trust")
    assert w.value("SELECT 1") == "1"
    w.close()


@pytest.mark.pooled
@pytest.mark.differs("1.18 refuses it")
def test_protocol_3_2_gets_a_long_key(pooler):
    w = pooler.open()
    out = w.login("u_trust", "db1", version=PROTOCOL_3_2)
    assert not [m for m in out if m.type == "v"]
    assert 4 <= len(w.key) <= 256
    assert len(w.key) > 4, "a 3.2 client gets a long key"
    assert w.value("SELECT 1") == "1"
    w.close()


@core
@pytest.mark.differs("1.18 refuses it")
def test_protocol_3_9_is_negotiated_down(pooler):
    w = pooler.open()
    w.send(startup(PARAMS, (3 << 16) | 9))
    got = w.read_type("v")
    minor, count = struct.unpack_from("!II", got.body)
    assert minor in (0, 2, PROTOCOL_3_0, PROTOCOL_3_2) and count == 0
    w.finish_login("u_trust")
    assert w.value("SELECT 1") == "1"
    w.close()


@pytest.mark.pooled
@pytest.mark.differs("1.18 refuses it")
def test_negotiated_version_is_3_2(pooler):
    w = pooler.open()
    w.send(startup(PARAMS, (3 << 16) | 9))
    got = w.read_type("v")
    assert struct.unpack_from("!I", got.body)[0] in (2, PROTOCOL_3_2)
    w.abort()


@core
def test_protocol_2_is_refused(pooler):
    w = pooler.open()
    w.send(struct.pack("!II", 296, 2 << 16) + b"\0" * 288)
    # What comes is an error in one of the two formats, then the end.
    data = b""
    try:
        while True:
            data += w.read_exact(1, 10)
    except WireClosed:
        pass
    assert data[:1] in (b"E", b"")
    w.abort()
    works(pooler)


def test_protocol_4_is_refused(pooler):
    w = pooler.open()
    w.send(startup(PARAMS, 4 << 16))
    refused(w)
    works(pooler)


def test_packet_without_terminator(pooler):
    w = pooler.open()
    body = struct.pack("!I", PROTOCOL_3_0) + b"user\0u_trust\0database\0db1"
    w.send(struct.pack("!I", len(body) + 4) + body)
    refused(w)
    works(pooler)


def test_name_without_value(pooler):
    w = pooler.open()
    body = struct.pack("!I", PROTOCOL_3_0) + b"user\0u_trust\0database\0"
    w.send(struct.pack("!I", len(body) + 4) + body)
    refused(w)
    works(pooler)


@pytest.mark.parametrize("length", [0, 1, 4, 7, 10005, 0x7fffffff,
                                    0x80000000, 0xffffffff])
def test_illegal_length(pooler, length):
    w = pooler.open()
    w.send(struct.pack("!II", length, PROTOCOL_3_0) + b"user\0u\0\0")
    refused(w)
    works(pooler)


@core
@pytest.mark.pooled
def test_oversized_startup_packet(pooler):
    """PostgreSQL's limit is 10,000 bytes; nothing near is held."""
    w = pooler.open()
    try:
        w.send(startup(dict(PARAMS, application_name="x" * 200000)))
        refused(w)
    except WireClosed:
        w.abort()
    works(pooler)


def test_large_legal_startup_packet(pooler):
    w = pooler.open()
    w.send(startup(dict(PARAMS, application_name="x" * 1500)))
    w.finish_login("u_trust")
    assert w.value("SELECT 1") == "1"
    w.close()


@core
@pytest.mark.parametrize("garbage", [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\x05hello",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\0" * 64, b"\xff" * 64,
], ids=["http", "tls", "ssh", "zeros", "ones"])
def test_garbage(pooler, garbage):
    w = pooler.open()
    w.send(garbage)
    try:
        w.sock.shutdown(1)
    except OSError:
        pass
    refused(w)
    works(pooler)


@core
def test_random_bytes_never_hurt(pooler):
    for _ in range(50):
        w = pooler.open()
        try:
            w.send(os.urandom(100))
            w.sock.shutdown(1)
            w.is_closed()
        except (WireClosed, OSError):
            pass
        w.abort()
    works(pooler)


@core
def test_client_leaves_at_every_byte_of_the_startup(pooler):
    data = startup(PARAMS)
    for at in range(len(data) + 1):
        w = pooler.open()
        w.send(data[:at])
        w.abort()
    works(pooler)


def test_password_message_before_the_startup_packet(pooler):
    w = pooler.open()
    w.send(msg("p", b"secret\0"))
    refused(w)
    works(pooler)


def test_query_instead_of_a_password(make_pooler, transport):
    p = make_pooler({"auth_type": "scram-sha-256"}, transport=transport)
    w = p.open()
    w.send(startup(PARAMS))
    assert w.read().type == "R"
    w.send(query("SELECT 1"))
    refused(w)
    works(p)


# --- SSLRequest and GSSENCRequest on a plain socket ------------------------

plain = pytest.mark.transports("tcp", "unix")


@core
@plain
@pytest.mark.pooled
def test_ssl_request_is_answered_n(pooler):
    w = pooler.open()
    w.send(special_request(SSL_REQUEST))
    assert w.read_exact(1) == b"N"
    w.login("u_trust", "db1")
    assert w.value("SELECT 1") == "1"
    w.close()


@core
@plain
@pytest.mark.pooled
def test_gssenc_request_is_answered_n(pooler):
    w = pooler.open()
    w.send(special_request(GSSENC_REQUEST))
    assert w.read_exact(1) == b"N"
    w.login("u_trust", "db1")
    assert w.value("SELECT 1") == "1"
    w.close()


@plain
@pytest.mark.pooled
@pytest.mark.parametrize("first", [SSL_REQUEST, GSSENC_REQUEST])
def test_both_requests_in_either_order(pooler, first):
    second = SSL_REQUEST + GSSENC_REQUEST - first
    w = pooler.open()
    for code in (first, second):
        w.send(special_request(code))
        assert w.read_exact(1) == b"N"
    w.login("u_trust", "db1")
    assert w.value("SELECT 1") == "1"
    w.close()


@plain
@pytest.mark.pooled
def test_endless_requests_are_cut_off_or_answered(pooler):
    """Repeating a request is no way to stay for ever at no cost."""
    w = pooler.open()
    try:
        for _ in range(1000):
            w.send(special_request(GSSENC_REQUEST))
            if w.read_exact(1) != b"N":
                break
    except WireClosed:
        pass
    w.abort()
    works(pooler)


@plain
@pytest.mark.pooled
@pytest.mark.differs("wants whole start-up packets")
def test_ssl_request_byte_by_byte(pooler):
    w = pooler.open(dribble=True)
    w.send(special_request(GSSENC_REQUEST))
    assert w.read_exact(1) == b"N"
    w.login("u_trust", "db1")
    w.close()


@plain
def test_special_request_of_the_wrong_length(pooler):
    for code in (SSL_REQUEST, GSSENC_REQUEST):
        w = pooler.open()
        w.send(special_request(code, b"more"))
        w.sock.shutdown(1)
        refused(w)
    works(pooler)


@pytest.mark.pooled
@pytest.mark.transports("tcp")
@pytest.mark.differs("wants whole start-up packets")
def test_pipelined_ssl_request_and_startup(pooler):
    """Bytes after SSLRequest, sent before its answer, are taken as if
    they came later or end the connection; no TLS ever begins with them."""
    w = pooler.open()
    w.send(special_request(SSL_REQUEST), startup(PARAMS))
    assert w.read_exact(1) in (b"N", b"E")
    try:
        w.finish_login("u_trust")
        assert w.value("SELECT 1") == "1"
    except (WireClosed, ServerError):
        pass
    w.abort()


# --- limits before authentication -------------------------------------------

@core
@pytest.mark.transports("tcp", "tls", "unix")  # an edge waits itself
def test_login_timeout(make_pooler, transport):
    p = make_pooler({"client_login_timeout": 1}, transport=transport)
    w = p.open()
    err = refused(w, 10)
    assert err is None or "timeout" in err["M"]
    w = p.open()
    w.send(startup(PARAMS)[:6])
    refused(w, 10)
    works(p)


def test_max_client_conn(make_pooler, transport):
    p = make_pooler({"max_client_conn": 3}, transport=transport)
    held = [p.wire() for _ in range(3)]
    with pytest.raises((ServerError, WireClosed)) as info:
        p.wire()
    if isinstance(info.value, ServerError):
        assert info.value.sqlstate in ("53300", "08P01")
    held.pop().close()
    procs.wait_for(lambda: try_wire(p), 5, "room for a client")
    for w in held:
        w.close()


def try_wire(p):
    try:
        p.wire().close()
        return True
    except (ServerError, WireClosed):
        return False


@pytest.mark.differs("wants whole start-up packets")
def test_two_connections_do_not_share_bytes(pooler):
    """Interleaved start-ups, half a packet each at a time."""
    data = startup(PARAMS)
    wires = [pooler.open() for _ in range(10)]
    for at in range(0, len(data), 7):
        for w in wires:
            w.send(data[at:at + 7])
    for i, w in enumerate(wires):
        w.finish_login("u_trust")
        assert w.value("SELECT %d" % i) == str(i)
        w.close()


def test_wire_helper_itself():
    assert Wire and startup({"user": "x"})[:4] == b"\0\0\0\x10"
