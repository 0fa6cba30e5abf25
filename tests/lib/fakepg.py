# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A PostgreSQL that says what a scenario makes it say.

Each connection runs the script it was given in a thread of its own: a
function of a FakeConn. What the peer ends, ends the script.
"""
import socket
import struct
import threading

import pgwire
from pgwire import msg

AUTH_OK = msg("R", struct.pack("!I", 0))
KEY = msg("K", struct.pack("!II", 77, 4242))
READY = msg("Z", b"I")
DONE = msg("C", b"SELECT 0\0") + READY


def status(name, value):
    return msg("S", pgwire.cstr(name) + pgwire.cstr(value))


def error(severity="ERROR", code="XX000", text="boom"):
    body = b""
    for letter, value in zip("SVCM", (severity, severity, code, text)):
        body += letter.encode() + pgwire.cstr(value)
    return msg("E", body + b"\0")


SETTINGS = b"".join(status(*pair) for pair in {
    "server_version": "17.0", "server_encoding": "UTF8",
    "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC",
    "IntervalStyle": "postgres", "integer_datetimes": "on",
    "standard_conforming_strings": "on", "application_name": "",
    "is_superuser": "off", "session_authorization": "u_trust"}.items())
WELCOME = AUTH_OK + SETTINGS + KEY + READY


class FakeConn:
    def __init__(self, sock):
        self.sock = sock
        self.buf = b""

    def read_exact(self, size):
        while len(self.buf) < size:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError
            self.buf += data
        out, self.buf = self.buf[:size], self.buf[size:]
        return out

    def start(self):
        """Up to the StartupMessage; False: it is a CancelRequest."""
        while True:
            size, = struct.unpack("!I", self.read_exact(4))
            body = self.read_exact(size - 4)
            code, = struct.unpack("!I", body[:4])
            if code in (pgwire.SSL_REQUEST, pgwire.GSSENC_REQUEST):
                self.send(b"N")
                continue
            return code != pgwire.CANCEL_REQUEST

    def read(self):
        head = self.read_exact(5)
        size, = struct.unpack("!I", head[1:])
        return chr(head[0]), self.read_exact(size - 4)

    def send(self, *parts):
        self.sock.sendall(b"".join(parts))

    def swallow(self):
        """Reads until the peer goes away."""
        while self.sock.recv(65536):
            pass

    def serve(self, on_query, on_sync=None):
        """Logs in and answers; on_query(conn, text) sends the replies."""
        if not self.start():
            return
        self.send(WELCOME)
        while True:
            kind, body = self.read()
            if kind == "X":
                return
            if kind == "Q":
                own = body.startswith((b"SET ", b"DISCARD "))
                if own:
                    self.send(DONE)
                else:
                    on_query(self, body)
            elif kind == "S":
                self.send(on_sync() if on_sync else READY)


class FakeServer:
    """Listens; script may be replaced between connections."""

    def __init__(self, script):
        self.script = script
        self.n_accepted = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.socks = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.n_accepted += 1
            self.socks.append(sock)
            threading.Thread(target=self._run, args=(sock,),
                             daemon=True).start()

    def _run(self, sock):
        try:
            self.script(FakeConn(sock))
        except (EOFError, OSError):
            pass
        finally:
            sock.close()

    def database(self, **options):
        """A line of [databases]."""
        return "host=127.0.0.1 port=%d dbname=fake %s" % (
            self.port, " ".join("%s=%s" % kv for kv in options.items()))

    def close(self):
        for sock in (self.listener, *self.socks):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
