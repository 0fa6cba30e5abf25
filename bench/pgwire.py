# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A raw client of PostgreSQL's protocol 3.0, for tests that must see every
message and may cut one anywhere. Blocking socket, a deadline on every wait.
"""
import socket
import ssl
import struct
import time

SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


class Stuck(Exception):
    """The other side did not answer in time."""


class Gone(Exception):
    """The connection was closed or reset."""


class Refused(Exception):
    """The other side would not speak TLS."""


def message(kind, *parts):
    body = b"".join(parts)
    return kind + struct.pack("!i", len(body) + 4) + body


def cstr(text):
    return text.encode() + b"\0"


def query(sql):
    return message(b"Q", cstr(sql))


def parse(name, sql, types=()):
    return message(b"P", cstr(name), cstr(sql), struct.pack(
        f"!h{len(types)}i", len(types), *types))


def bind(portal, name, params):
    parts = [struct.pack("!hh", 0, len(params))]
    for value in params:
        if value is None:
            parts.append(struct.pack("!i", -1))
        else:
            raw = value if isinstance(value, bytes) else value.encode()
            parts += [struct.pack("!i", len(raw)), raw]
    return message(b"B", cstr(portal), cstr(name), *parts,
                   struct.pack("!h", 0))


def describe(kind, name):
    return message(b"D", kind, cstr(name))


def execute(portal="", limit=0):
    return message(b"E", cstr(portal), struct.pack("!i", limit))


def close(kind, name):
    return message(b"C", kind, cstr(name))


SYNC = message(b"S")
FLUSH = message(b"H")
TERMINATE = message(b"X")
COPY_DONE = message(b"c")


def copy_data(data):
    return message(b"d", data)


def copy_fail(why):
    return message(b"f", cstr(why))


def startup(user, dbname, **more):
    parts = [struct.pack("!i", 3 << 16)]
    for key, value in dict(user=user, database=dbname, **more).items():
        parts.append(cstr(key) + cstr(value))
    body = b"".join(parts) + b"\0"
    return struct.pack("!i", len(body) + 4) + body


def cancel_request(pid, secret):
    return struct.pack("!iii", 8 + 4 + len(secret), 80877102, pid) + secret


def columns(body):
    """The values of a DataRow."""
    (count,) = struct.unpack_from("!h", body)
    at, values = 2, []
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        values.append(None if size < 0 else body[at:at + size])
        at += max(size, 0)
    return values


def fields(body):
    """The fields of an ErrorResponse or NoticeResponse, by their letter."""
    return {part[:1].decode(): part[1:].decode(errors="replace")
            for part in body.split(b"\0") if part}


class Connection:
    """where: ("127.0.0.1", port), the same with "tls" behind (whose
    certificate is not verified), or the path of a Unix socket."""

    def __init__(self, where, deadline):
        self.where = where
        self.deadline = deadline
        self.buffer = bytearray()
        self.at = 0
        self.pid, self.secret = 0, b""
        self.parameters = {}
        self.status = None
        kind = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
        self.sock = socket.socket(kind, socket.SOCK_STREAM)
        try:
            self.arm()
            self.sock.connect(where if isinstance(where, str) else where[:2])
            if kind == socket.AF_INET:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY,
                                     1)
            if "tls" in where[2:]:
                self.start_tls()
        except OSError as e:
            self.sock.close()
            raise (Stuck("connect") if isinstance(e, TimeoutError)
                   else Gone(str(e))) from e

    def start_tls(self):
        self.sock.sendall(SSL_REQUEST)
        answer = self.sock.recv(1)
        if not answer:
            raise ConnectionError("closed")
        if answer != b"S":
            raise Refused(f"answer to SSLRequest: {answer!r}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.sock = context.wrap_socket(self.sock)

    def arm(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Stuck("deadline")
        self.sock.settimeout(left)

    def send(self, data):
        self.arm()
        try:
            self.sock.sendall(data)
        except TimeoutError as e:
            raise Stuck("send") from e
        except OSError as e:
            # What the other side said before it closed may still be read.
            if not isinstance(e, (BrokenPipeError, ConnectionResetError,
                                  ssl.SSLError)):
                raise Gone(str(e)) from e

    def fill(self, want):
        if self.at > 1 << 16:
            del self.buffer[:self.at]
            self.at = 0
        while len(self.buffer) - self.at < want:
            self.arm()
            try:
                data = self.sock.recv(1 << 16)
            except TimeoutError as e:
                raise Stuck("receive") from e
            except OSError as e:
                raise Gone(str(e)) from e
            if not data:
                raise Gone("closed")
            self.buffer += data

    def receive(self):
        """(kind, body) of the next message; asynchronous ones are kept."""
        while True:
            self.fill(5)
            kind = bytes(self.buffer[self.at:self.at + 1])
            (size,) = struct.unpack_from("!i", self.buffer, self.at + 1)
            self.fill(1 + size)
            body = bytes(self.buffer[self.at + 5:self.at + 1 + size])
            self.at += 1 + size
            if kind == b"S":
                name, value = body.split(b"\0")[:2]
                self.parameters[name.decode()] = value.decode()
            elif kind not in (b"N", b"A"):
                return kind, body

    def receive_until_ready(self):
        """All messages up to ReadyForQuery, without it."""
        found = []
        while True:
            kind, body = self.receive()
            if kind == b"Z":
                self.status = body
                return found
            found.append((kind, body))

    def login(self, user, dbname, **more):
        """Starts up without a password. None, or the fields of the error."""
        self.send(startup(user, dbname, **more))
        while True:
            kind, body = self.receive()
            if kind == b"K":
                self.pid = struct.unpack_from("!i", body)[0]
                self.secret = body[4:]
            elif kind == b"E":
                return fields(body)
            elif kind == b"Z":
                self.status = body
                return None

    def rows(self, sql):
        """A simple query's rows as text; an error raises Gone."""
        self.send(query(sql))
        out = []
        for kind, body in self.receive_until_ready():
            if kind == b"D":
                out.append([None if v is None else v.decode()
                            for v in columns(body)])
            elif kind == b"E":
                raise Gone(fields(body).get("M", "error"))
        return out

    def names_and_rows(self, sql):
        self.send(query(sql))
        names, out = [], []
        for kind, body in self.receive_until_ready():
            if kind == b"T":
                names = self.column_names(body)
            elif kind == b"D":
                out.append(dict(zip(names, [
                    None if v is None else v.decode()
                    for v in columns(body)])))
            elif kind == b"E":
                raise Gone(fields(body).get("M", "error"))
        return out

    @staticmethod
    def column_names(body):
        (count,) = struct.unpack_from("!h", body)
        at, names = 2, []
        for _ in range(count):
            end = body.index(b"\0", at)
            names.append(body[at:end].decode())
            at = end + 1 + 18
        return names

    def cancel(self):
        """Asks on a fresh connection, returns when that one is closed."""
        other = Connection(self.where, self.deadline)
        try:
            other.send(cancel_request(self.pid, self.secret))
            try:
                other.fill(1)
            except Gone:
                pass
        finally:
            other.drop()

    def drop(self, reset=False):
        if reset:
            try:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                     struct.pack("ii", 1, 0))
            except OSError:
                pass
        self.sock.close()

    def quit(self):
        try:
            self.send(TERMINATE)
        except (Gone, Stuck):
            pass
        self.drop()
