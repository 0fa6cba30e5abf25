# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Another QUIC implementation (aioquic) speaks to the listener, without an
edge: what docs/quic-protocol.md says is enough to log in and run queries."""
import asyncio
import struct

import pytest

import pooler as pooler_module

pytest.importorskip("aioquic", reason="aioquic is missing")

from aioquic.asyncio import connect  # noqa: E402
from aioquic.quic.configuration import QuicConfiguration  # noqa: E402

QUIC = pooler_module.TRANSPORTS["quic"]


@pytest.fixture
def p(make_pooler, target, binary):
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    return make_pooler({}, transport=QUIC)


def configuration(p, alpn=("pgsql/3",)):
    out = QuicConfiguration(is_client=True, alpn_protocols=list(alpn),
                            server_name="localhost")
    out.load_verify_locations(p.certs.ca)
    return out


def startup(user="u_trust", database="db1"):
    body = struct.pack("!I", 196608) + b"".join(
        s.encode() + b"\0" for s in ("user", user, "database", database))
    return struct.pack("!I", len(body) + 5) + body + b"\0"


def query(sql):
    body = sql.encode() + b"\0"
    return b"Q" + struct.pack("!I", len(body) + 4) + body


async def messages(reader, until=b"Z"):
    """Types and bodies up to a message of that type."""
    out = []
    while not out or out[-1][0] != until:
        head = await asyncio.wait_for(reader.readexactly(5), 10)
        size = struct.unpack("!I", head[1:])[0]
        out.append((head[:1], await reader.readexactly(size - 4)))
    return out


async def session(conn):
    reader, writer = await conn.create_stream()
    writer.write(startup())
    got = await messages(reader)
    key = next(body for kind, body in got if kind == b"K")
    return reader, writer, key


async def value(reader, writer, sql):
    writer.write(query(sql))
    got = await messages(reader)
    row = next(body for kind, body in got if kind == b"D")
    return row[6:].decode()


async def dial(p, body, **kw):
    async with connect("127.0.0.1", p.port,
                       configuration=configuration(p, **kw)) as conn:
        await body(conn)


def run(p, body, **kw):
    asyncio.run(asyncio.wait_for(dial(p, body, **kw), 60))


@pytest.mark.parametrize("alpn", ["pgsql/3", "postgresql", "pgbraid/1"])
def test_sessions(p, alpn):
    async def body(conn):
        both = [await session(conn) for _ in range(2)]
        for i, (reader, writer, _) in enumerate(both):
            assert await value(reader, writer, "SELECT %d" % i) == str(i)
        for reader, writer, _ in both:
            writer.write(b"X" + struct.pack("!I", 4))
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 10) == b""
    run(p, body, alpn=(alpn,))


def test_large_result(p):
    async def body(conn):
        reader, writer, _ = await session(conn)
        writer.write(query("SELECT repeat('x', 1000) FROM "
                           "generate_series(1, 2000)"))
        got = await messages(reader)
        assert sum(kind == b"D" for kind, _ in got) == 2000
    run(p, body)


def test_cancel_on_a_fresh_stream(p):
    async def body(conn):
        reader, writer, key = await session(conn)
        writer.write(query("SELECT pg_sleep(60)"))
        await asyncio.sleep(0.5)
        _, other = await conn.create_stream()
        other.write(struct.pack("!II", len(key) + 8, 80877102) + key)
        got = await messages(reader)
        error = next(body for kind, body in got if kind == b"E")
        assert b"57014" in error
    run(p, body)


def test_ssl_request_is_refused(p):
    async def body(conn):
        reader, writer = await conn.create_stream()
        writer.write(struct.pack("!II", 8, 80877103))
        got = await messages(reader, b"E")
        assert b"FATAL" in got[-1][1]
        assert await asyncio.wait_for(reader.read(), 10) == b""
    run(p, body)


def test_unknown_alpn_is_refused(p):
    async def body(conn):
        raise AssertionError("it was let in")
    with pytest.raises(ConnectionError):
        run(p, body, alpn=("h3",))
