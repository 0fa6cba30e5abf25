# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Much data both ways at once: neither way waits for the other, and what is
held in between stays small."""
import select
import socket
import ssl
import struct
import threading
import time

import pytest

import pgwire
import procs

MB = 1 << 20
WAIT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Pump:
    """Sends from an iterator and counts what comes back, on one socket that
    may be TLS, without ever waiting for one way alone."""

    def __init__(self, sock, pieces):
        self.sock = sock
        self.pieces = iter(pieces)
        self.left = memoryview(b"")
        self.sent = self.got = 0
        self.tail = b""
        self.is_sent = False
        sock.setblocking(False)

    def send(self):
        """False when nothing could be sent now."""
        if not self.left:
            piece = next(self.pieces, None)
            self.is_sent = piece is None
            if self.is_sent:
                return False
            self.left = memoryview(piece)
        try:
            n = self.sock.send(self.left[:65536])
        except WAIT:
            return False
        self.sent += n
        self.left = self.left[n:]
        return True

    def read(self):
        try:
            data = self.sock.recv(256 * 1024)
        except WAIT:
            return False
        if not data:
            raise pgwire.WireClosed("closed after %d bytes" % self.got)
        self.got += len(data)
        self.tail = (self.tail + data)[-64:]
        return True

    def send_until_stuck(self, seconds):
        """Sends without reading until nothing moves for so long."""
        last = time.monotonic()
        while not self.is_sent and time.monotonic() - last < seconds:
            if self.send():
                last = time.monotonic()
            else:
                select.select([], [self.sock], [], 0.1)

    def run(self, size, timeout=120):
        """Both ways until so much has come."""
        deadline = time.monotonic() + timeout
        while self.got < size or not self.is_sent:
            assert time.monotonic() < deadline, (
                "stuck: %d sent, %d of %d came" % (self.sent, self.got, size))
            moved = self.read()
            moved = (not self.is_sent and self.send()) or moved
            if not moved:
                out = [] if self.is_sent else [self.sock]
                select.select([self.sock], out, [], 0.1)


def echo_requests(count, text):
    for _ in range(count):
        yield (pgwire.parse("", "SELECT $1::text") +
               pgwire.bind("", "", [text]) + pgwire.execute() +
               pgwire.sync())


# ParseComplete, BindComplete, DataRow of one column, CommandComplete, Ready
def echo_size(count, text):
    return count * (5 + 5 + (5 + 2 + 4 + len(text)) + (5 + 9) + 6)


@pytest.mark.slow
def test_both_ways(pooler):
    """Pipelined queries whose parameters are as large as their results. The
    client reads nothing until nothing can be sent any more."""
    text, count = b"y" * MB, 60
    wire = pooler.wire()
    before = procs.rss_kib(pooler.pid) if not pooler.is_direct else 0
    pump = Pump(wire.sock, echo_requests(count, text))
    pump.send_until_stuck(1)
    assert not pump.is_sent
    if not pooler.is_direct:
        assert procs.rss_kib(pooler.pid) - before < 32 * 1024
    pump.run(echo_size(count, text))
    assert pump.got == echo_size(count, text)
    assert pump.tail.endswith(b"Z\0\0\0\5I")
    wire.sock.setblocking(True)
    wire.sock.settimeout(pgwire.TIMEOUT)
    assert wire.value("SELECT 1") == "1"
    wire.close()


@pytest.mark.slow
@pytest.mark.pooled
def test_own_replies_have_a_bound(make_pooler, target):
    """Replies that the pooler makes itself, to a client that never reads."""
    if target != "pgbraid":
        pytest.skip("for our own sake")
    pooler = make_pooler()
    wire = pooler.wire()
    before = procs.rss_kib(pooler.pid)
    count = 3 << 20
    pump = Pump(wire.sock, [pgwire.sync() * (count // 64)] * 64)
    pump.send_until_stuck(1)
    assert not pump.is_sent
    assert procs.rss_kib(pooler.pid) - before < 16 * 1024
    pump.run(6 * count)
    assert pump.got == 6 * count
    wire.abort()


class Talker:
    """A stand-in for PostgreSQL that talks while it listens, which the real
    one does not: to a query it answers CopyInResponse and sends `size` bytes
    of notices while it takes CopyData."""

    def __init__(self, size):
        self.size = size
        self.copied = 0
        self.errors = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        try:
            self.sock, _ = self.listener.accept()
            self.sock.settimeout(60)
            self._talk(self.sock, self.sock.makefile("rb", MB))
        except Exception as exc:  # told by the test's thread
            self.errors.append(exc)

    @staticmethod
    def _read(src):
        head = src.read(5)
        if len(head) < 5:
            raise EOFError("the pooler closed the connection")
        return head[:1], src.read(struct.unpack("!I", head[1:])[0] - 4)

    def _talk(self, sock, src):
        src.read(struct.unpack("!I", src.read(4))[0] - 4)
        sock.sendall(pgwire.msg("R", struct.pack("!I", 0)) +
                     pgwire.msg("K", struct.pack("!II", 1, 2)) +
                     pgwire.msg("Z", b"I"))
        while True:
            kind, _ = self._read(src)
            if kind == b"X":
                return
            assert kind == b"Q", kind
            sock.sendall(pgwire.msg("G", struct.pack("!bH", 0, 0)))
            other = threading.Thread(target=self._notify, args=(sock,))
            other.start()
            while True:
                kind, body = self._read(src)
                if kind == b"c":
                    break
                assert kind == b"d", kind
                self.copied += len(body)
            other.join()
            sock.sendall(pgwire.msg("C", b"COPY 1\0") +
                         pgwire.msg("Z", b"I"))

    def _notify(self, sock):
        notice = pgwire.msg("N", b"SNOTICE\0C00000\0M" + b"n" * 8000 +
                            b"\0\0")
        try:
            for _ in range(self.size // len(notice)):
                sock.sendall(notice)
        except OSError as exc:
            self.errors.append(exc)

    def close(self):
        errors = list(self.errors)
        self.listener.close()
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        assert not errors, errors


@pytest.mark.slow
@pytest.mark.pooled
def test_sends_all_before_it_reads(make_pooler, transport, target):
    """100 MB from a client that reads nothing, and 100 MB from a server that
    does not wait for it."""
    if target != "pgbraid":
        pytest.skip("for our own sake")
    server = Talker(100 * MB)
    pooler = make_pooler({"server_tls_sslmode": "disable"},
                         {"db1": "host=127.0.0.1 port=%d" % server.port},
                         transport=transport)
    wire = pooler.wire()
    before = procs.rss_kib(pooler.pid)
    wire.send(pgwire.query("COPY t FROM STDIN"))
    wire.read_type("G")
    block = pgwire.copy_data(b"z" * (MB - 5))
    pump = Pump(wire.sock, [block] * 100 + [pgwire.copy_done()])
    pump.send_until_stuck(20)
    assert pump.is_sent, "%d MB sent" % (pump.sent // MB)
    assert procs.rss_kib(pooler.pid) - before < 32 * 1024
    wire.sock.setblocking(True)
    wire.sock.settimeout(pgwire.TIMEOUT)
    while wire.read().type != "Z":
        pass
    wire.close()
    server.close()
    assert server.copied == 100 * (MB - 5)
