# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A bridge made of aioquic: each connection to a Unix socket becomes a stream
of one QUIC connection, bytes unchanged. As quic_bridge.go, which see."""
import asyncio
import os
import sys

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration

KEY_UPDATE_S = 0.2


async def carry(conn, reader, writer):
    quic_reader, quic_writer = await conn.create_stream()

    async def up():
        while True:
            data = await reader.read(65536)
            if not data:
                break
            quic_writer.write(data)
        quic_writer.write_eof()

    async def down():
        while True:
            data = await quic_reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.close()
    try:
        await asyncio.gather(up(), down())
    except (ConnectionError, OSError):
        writer.close()


async def update_keys(conn):
    while True:
        await asyncio.sleep(KEY_UPDATE_S)
        conn.request_key_update()


async def main(address, ca, alpn, path):
    host, port = address.rsplit(":", 1)
    conf = QuicConfiguration(
        is_client=True, server_name="localhost",
        alpn_protocols=None if alpn == "-" else [alpn])
    conf.load_verify_locations(ca)
    try:
        async with connect(host, int(port), configuration=conf) as conn:
            tasks = []
            if os.environ.get("KEY_UPDATES"):
                tasks.append(asyncio.ensure_future(update_keys(conn)))
            await asyncio.start_unix_server(
                lambda r, w: carry(conn, r, w), path)
            print("ready", flush=True)
            await conn.wait_closed()
    except (ConnectionError, OSError) as exc:
        print("failed:", exc, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
