# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A bridge made of aioquic: each connection to a Unix socket becomes a stream
of one QUIC connection, bytes unchanged. As quic_bridge.go, which see."""
import asyncio
import os
import sys
import time

from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated

# Apart: the last update was acknowledged by then, and the peer has the keys of
# the next one (RFC 9001, 6.5).
KEY_UPDATE_READS = 50
KEY_UPDATE_S = 0.5
# Writers for good: the end of a forgotten one would be written to its stream.
kept = []


class Protocol(QuicConnectionProtocol):
    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated) and event.error_code:
            print("the connection ended: 0x%x %s" % (
                event.error_code, event.reason_phrase), file=sys.stderr)
        super().quic_event_received(event)


async def carry(conn, reader, writer, updates_keys):
    quic_reader, quic_writer = await conn.create_stream()
    kept.append(quic_writer)
    has_ended = []

    async def up():
        while True:
            data = await reader.read(65536)
            if not data:
                break
            quic_writer.write(data)
        # Behind the server's end the stream is forgotten: aioquic would begin
        # another of that number.
        if not has_ended:
            quic_writer.write_eof()

    async def down():
        reads, last = 0, time.monotonic()
        while True:
            data = await quic_reader.read(65536)
            if not data:
                has_ended.append(True)
                break
            reads += 1
            now = time.monotonic()
            if updates_keys and reads >= KEY_UPDATE_READS and \
                    now - last >= KEY_UPDATE_S:
                conn.request_key_update()
                reads, last = 0, now
            writer.write(data)
            await writer.drain()
        writer.close()
    try:
        await asyncio.gather(up(), down())
    except (ConnectionError, OSError):
        writer.close()


async def main(address, ca, alpn, path):
    host, port = address.rsplit(":", 1)
    conf = QuicConfiguration(
        is_client=True, server_name="localhost",
        alpn_protocols=None if alpn == "-" else [alpn])
    conf.load_verify_locations(ca)
    try:
        async with connect(host, int(port), configuration=conf,
                           create_protocol=Protocol) as conn:
            updates_keys = bool(os.environ.get("KEY_UPDATES"))
            await asyncio.start_unix_server(
                lambda r, w: carry(conn, r, w, updates_keys), path)
            print("ready", flush=True)
            await conn.wait_closed()
    except (ConnectionError, OSError) as exc:
        print("failed:", exc, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
