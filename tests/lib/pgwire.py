# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A small raw client of the PostgreSQL v3 protocol.

Nothing here hides what goes over the wire: messages are built by functions,
replies come back one by one. Every read has a deadline. One Wire belongs to
one thread.
"""
import base64
import hashlib
import hmac
import os
import secrets
import select
import socket
import ssl
import struct
import time

PROTOCOL_3_0 = 196608
PROTOCOL_3_2 = 196610
SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102
TIMEOUT = 20.0


class WireClosed(Exception):
    """The peer closed, or reset, the connection."""


class WireTimeout(AssertionError):
    """Nothing came before the deadline."""


class ServerError(Exception):
    """An ErrorResponse where the caller wanted success."""

    def __init__(self, msg):
        self.fields = msg.fields
        self.sqlstate = self.fields.get("C")
        super().__init__("%s %s: %s" % (
            self.fields.get("S"), self.sqlstate, self.fields.get("M")))


# --- building messages -------------------------------------------------

def cstr(text):
    if isinstance(text, str):
        text = text.encode()
    return text + b"\0"


def msg(kind, body=b""):
    return kind.encode() + struct.pack("!I", len(body) + 4) + body


def startup(params, version=PROTOCOL_3_0):
    body = struct.pack("!I", version)
    for key, value in params.items():
        body += cstr(key) + cstr(value)
    body += b"\0"
    return struct.pack("!I", len(body) + 4) + body


def special_request(code, body=b""):
    return struct.pack("!II", 8 + len(body), code) + body


def cancel_request(pid, key):
    return special_request(CANCEL_REQUEST, struct.pack("!I", pid) + key)


def query(sql):
    return msg("Q", cstr(sql))


def parse(name, sql, types=()):
    return msg("P", cstr(name) + cstr(sql) + struct.pack("!H", len(types)) +
               b"".join(struct.pack("!I", t) for t in types))


def bind(portal="", name="", params=(), formats=(), result_formats=()):
    body = cstr(portal) + cstr(name)
    body += struct.pack("!H", len(formats))
    body += b"".join(struct.pack("!H", f) for f in formats)
    body += struct.pack("!H", len(params))
    for value in params:
        if value is None:
            body += struct.pack("!i", -1)
            continue
        if isinstance(value, str):
            value = value.encode()
        body += struct.pack("!i", len(value)) + value
    body += struct.pack("!H", len(result_formats))
    body += b"".join(struct.pack("!H", f) for f in result_formats)
    return msg("B", body)


def describe(what, name=""):
    return msg("D", what.encode() + cstr(name))


def execute(portal="", rows=0):
    return msg("E", cstr(portal) + struct.pack("!I", rows))


def close(what, name=""):
    return msg("C", what.encode() + cstr(name))


def sync():
    return msg("S")


def flush():
    return msg("H")


def terminate():
    return msg("X")


def copy_data(data):
    return msg("d", data)


def copy_done():
    return msg("c")


def copy_fail(why="no"):
    return msg("f", cstr(why))


def function_call(oid, args, formats=(), result_format=0):
    body = struct.pack("!I", oid) + struct.pack("!H", len(formats))
    body += b"".join(struct.pack("!H", f) for f in formats)
    body += struct.pack("!H", len(args))
    for value in args:
        body += struct.pack("!i", len(value)) + value
    return msg("F", body + struct.pack("!H", result_format))


# --- replies -------------------------------------------------------------

class Msg:
    """One message from the server: its type letter and body."""

    __slots__ = ("type", "body")

    def __init__(self, kind, body):
        self.type = kind
        self.body = body

    def __repr__(self):
        shown = self.body if len(self.body) < 200 else \
            self.body[:200] + b"...(%d)" % len(self.body)
        return "<%s %r>" % (self.type, shown)

    def __eq__(self, other):
        return (self.type, self.body) == (other.type, other.body)

    @property
    def fields(self):
        """Fields of ErrorResponse and NoticeResponse."""
        out = {}
        for part in self.body.rstrip(b"\0").split(b"\0"):
            if part:
                out[chr(part[0])] = part[1:].decode("utf-8", "replace")
        return out

    @property
    def row(self):
        """Values of a DataRow, as bytes or None."""
        count, = struct.unpack_from("!H", self.body)
        at, out = 2, []
        for _ in range(count):
            size, = struct.unpack_from("!i", self.body, at)
            at += 4
            if size < 0:
                out.append(None)
                continue
            out.append(self.body[at:at + size])
            at += size
        return out

    @property
    def columns(self):
        """(name, type oid) of each column of a RowDescription."""
        count, = struct.unpack_from("!H", self.body)
        at, out = 2, []
        for _ in range(count):
            end = self.body.index(b"\0", at)
            name = self.body[at:end].decode()
            oid, = struct.unpack_from("!I", self.body, end + 7)
            at = end + 19
            out.append((name, oid))
        return out

    @property
    def text(self):
        """The body's first C string."""
        return self.body.split(b"\0")[0].decode()

    @property
    def pair(self):
        """ParameterStatus: (name, value)."""
        name, value = self.body.split(b"\0")[:2]
        return name.decode(), value.decode(errors="replace")


class Result:
    """What a query gave, from the messages up to ReadyForQuery."""

    def __init__(self, messages):
        self.messages = messages
        self.types = "".join(m.type for m in messages)
        self.rows = [m.row for m in messages if m.type == "D"]
        self.tags = [m.text for m in messages if m.type == "C"]
        self.errors = [m.fields for m in messages if m.type == "E"]
        self.notices = [m.fields for m in messages if m.type == "N"]
        self.params = dict(m.pair for m in messages if m.type == "S")
        ready = [m for m in messages if m.type == "Z"]
        self.status = ready[-1].body.decode() if ready else None

    @property
    def error(self):
        return self.errors[0] if self.errors else None

    @property
    def columns(self):
        for m in self.messages:
            if m.type == "T":
                return m.columns
        return None

    def dicts(self):
        names = [c[0] for c in self.columns]
        return [dict(zip(names, [None if v is None else v.decode()
                                 for v in row])) for row in self.rows]

    def value(self):
        value = self.rows[0][0]
        return None if value is None else value.decode()

    def sqlstate(self):
        return self.errors[0].get("C") if self.errors else None


# --- SCRAM-SHA-256, the client's half ------------------------------------

def saslprep(text):
    """Good enough for tests: ASCII passes, else NFKC."""
    import unicodedata
    return unicodedata.normalize("NFKC", text)


class Scram:
    def __init__(self, password, binding=None, supports_plus=False):
        """binding: None, or ("tls-server-end-point", bytes)."""
        self.password = saslprep(password).encode()
        if binding:
            self.gs2 = "p=%s,," % binding[0]
            self.cbind = self.gs2.encode() + binding[1]
        else:
            self.gs2 = "y,," if supports_plus else "n,,"
            self.cbind = self.gs2.encode()
        self.nonce = base64.b64encode(secrets.token_bytes(18)).decode()

    def first(self):
        self.first_bare = "n=,r=" + self.nonce
        return (self.gs2 + self.first_bare).encode()

    def final(self, server_first):
        text = server_first.decode()
        parts = dict(p.split("=", 1) for p in text.split(","))
        assert parts["r"].startswith(self.nonce), "server's nonce"
        salted = hashlib.pbkdf2_hmac(
            "sha256", self.password, base64.b64decode(parts["s"]),
            int(parts["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        stored = hashlib.sha256(client_key).digest()
        bare = "c=%s,r=%s" % (base64.b64encode(self.cbind).decode(),
                              parts["r"])
        auth = ",".join([self.first_bare, text, bare]).encode()
        sign = hmac.digest(stored, auth, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, sign))
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        self.server_sign = hmac.digest(server_key, auth, "sha256")
        return (bare + ",p=" + base64.b64encode(proof).decode()).encode()

    def verify(self, server_final):
        got = dict(p.split("=", 1) for p in server_final.decode().split(","))
        assert base64.b64decode(got["v"]) == self.server_sign, \
            "server's signature"


def scram_secret(password, iterations=4096, salt=None):
    """A SCRAM-SHA-256$... secret as PostgreSQL stores it."""
    salt = salt or os.urandom(16)
    salted = hashlib.pbkdf2_hmac(
        "sha256", saslprep(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client_key).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    enc = lambda b: base64.b64encode(b).decode()
    return "SCRAM-SHA-256$%d:%s$%s:%s" % (
        iterations, enc(salt), enc(stored), enc(server_key))


def md5_secret(user, password):
    return "md5" + hashlib.md5((password + user).encode()).hexdigest()


def md5_answer(user, password, salt):
    inner = hashlib.md5((password + user).encode()).hexdigest()
    return "md5" + hashlib.md5(inner.encode() + salt).hexdigest()


def cert_hash(der):
    """tls-server-end-point of a certificate signed with SHA-256."""
    return hashlib.sha256(der).digest()


# --- the connection --------------------------------------------------------

class Wire:
    def __init__(self, sock, dribble=False, timeout=TIMEOUT):
        self.sock = sock
        self.dribble = dribble
        self.timeout = timeout
        self.buf = bytearray()
        self.params = {}
        self.pid = None
        self.key = None
        self.auth_seen = []
        sock.settimeout(timeout)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # sending

    def send(self, *parts):
        data = b"".join(parts)
        try:
            if not self.dribble:
                self.sock.sendall(data)
                return
            for at in range(len(data)):
                self.sock.sendall(data[at:at + 1])
        except (BrokenPipeError, ConnectionResetError,
                ssl.SSLEOFError) as exc:
            raise WireClosed(str(exc)) from exc

    # receiving

    def _recv(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise WireTimeout("no reply within %.1f s" % self.timeout)
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(262144)
        except (socket.timeout, TimeoutError) as exc:
            raise WireTimeout("no reply before the deadline") from exc
        except (ConnectionResetError, BrokenPipeError, ssl.SSLError) as exc:
            raise WireClosed(str(exc)) from exc
        if not data:
            raise WireClosed("end of stream")
        self.buf += data

    def read_exact(self, size, timeout=None):
        deadline = time.monotonic() + (timeout or self.timeout)
        while len(self.buf) < size:
            self._recv(deadline)
        out = bytes(self.buf[:size])
        del self.buf[:size]
        return out

    def read(self, timeout=None):
        """The next message, whatever it is."""
        deadline = time.monotonic() + (timeout or self.timeout)
        while len(self.buf) < 5:
            self._recv(deadline)
        size, = struct.unpack_from("!I", self.buf, 1)
        assert 4 <= size < 1 << 30, "bad length %d after %r" % (
            size, bytes(self.buf[:1]))
        if len(self.buf) < size + 1:
            chunks, have = [bytes(self.buf)], len(self.buf)
            while have < size + 1:
                self.buf.clear()
                self._recv(deadline)
                chunks.append(bytes(self.buf))
                have += len(self.buf)
            self.buf = bytearray(b"".join(chunks))
        out = Msg(chr(self.buf[0]), bytes(self.buf[5:size + 1]))
        del self.buf[:size + 1]
        if out.type == "S":
            name, value = out.pair
            self.params[name] = value
        return out

    def read_type(self, kind, timeout=None):
        """The next message, which must be of this type."""
        got = self.read(timeout)
        if got.type == "E" and kind != "E":
            raise ServerError(got)
        assert got.type == kind, "wanted %s, got %r" % (kind, got)
        return got

    def read_until(self, kinds="Z", timeout=None):
        """All messages up to and with one of these types."""
        out = []
        while not out or out[-1].type not in kinds:
            out.append(self.read(timeout))
        return out

    def read_ready(self, timeout=None):
        return Result(self.read_until("Z", timeout))

    def read_to_close(self, timeout=None):
        """All messages until the peer closes."""
        out = []
        try:
            while True:
                out.append(self.read(timeout))
        except WireClosed:
            return out

    def has_data(self, seconds=0.0):
        """Whether something arrives within so many seconds."""
        if self.buf:
            return True
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return True
        return bool(select.select([self.sock], [], [], seconds)[0])

    def is_closed(self, timeout=5.0):
        """Whether the peer closes in time; what comes before is dropped."""
        try:
            self.read_to_close(timeout)
        except WireTimeout:
            return False
        return True

    # dialogues

    def login(self, user, database=None, password=None, params=None,
              version=PROTOCOL_3_0, plus=None):
        """Start-up to the first ReadyForQuery; raises ServerError."""
        start = {"user": user}
        if database is not None:
            start["database"] = database
        start.update(params or {})
        self.send(startup(start, version))
        return self.finish_login(user, password, plus)

    def finish_login(self, user, password=None, plus=None):
        self.auth(user, password, plus)
        out = []
        while True:
            got = self.read()
            out.append(got)
            if got.type == "E":
                raise ServerError(got)
            if got.type == "K":
                self.pid, = struct.unpack_from("!I", got.body)
                self.key = got.body[4:]
            if got.type == "Z":
                return out

    def auth(self, user, password=None, plus=None):
        """Answers requests until AuthenticationOk."""
        while True:
            got = self.read()
            if got.type == "E":
                raise ServerError(got)
            if got.type in "vN":
                self.negotiated = got
                continue
            assert got.type == "R", got
            code, = struct.unpack_from("!I", got.body)
            self.auth_seen.append(code)
            if code == 0:
                return
            if code != 10 and password is None:
                raise AssertionError("asked for a password (%d)" % code)
            if code == 3:
                self.send(msg("p", cstr(password)))
            elif code == 5:
                self.send(msg("p", cstr(
                    md5_answer(user, password, got.body[4:8]))))
            elif code == 10:
                self._sasl(got, password, plus)
            else:
                raise AssertionError("unknown authentication %d" % code)

    def _sasl(self, got, password, plus):
        mechs = [m.decode() for m in got.body[4:].split(b"\0") if m]
        self.mechanisms = mechs
        if password is None:
            raise AssertionError("asked for SCRAM")
        tls = isinstance(self.sock, ssl.SSLSocket)
        use_plus = plus if plus is not None else (
            tls and "SCRAM-SHA-256-PLUS" in mechs)
        binding = None
        if use_plus:
            der = self.sock.getpeercert(binary_form=True)
            binding = ("tls-server-end-point", cert_hash(der))
        scram = Scram(password, binding, False)
        name = "SCRAM-SHA-256-PLUS" if use_plus else "SCRAM-SHA-256"
        first = scram.first()
        self.send(msg("p", cstr(name) + struct.pack("!I", len(first)) +
                      first))
        got = self.read_type("R")
        assert struct.unpack_from("!I", got.body)[0] == 11
        self.send(msg("p", scram.final(got.body[4:])))
        got = self.read_type("R")
        assert struct.unpack_from("!I", got.body)[0] == 12
        scram.verify(got.body[4:])

    def query(self, sql, timeout=None):
        """Simple query; the Result, with errors in it."""
        self.send(query(sql))
        return self.read_ready(timeout)

    def ok(self, sql, timeout=None):
        """Simple query that must succeed."""
        got = self.query(sql, timeout)
        assert not got.errors, got.errors
        return got

    def value(self, sql):
        return self.ok(sql).value()

    def extended(self, sql, params=(), name=""):
        """Parse, Bind, Describe, Execute, Sync."""
        self.send(parse(name, sql), bind("", name, params),
                  describe("P"), execute(), sync())
        return self.read_ready()

    def close(self):
        try:
            self.sock.sendall(terminate())
        except OSError:
            pass
        self.abort()

    def abort(self):
        """Close without a Terminate."""
        try:
            self.sock.close()
        except OSError:
            pass

    def reset(self):
        """Close with a RST where the transport has one."""
        raw = self.sock
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                           struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.abort()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def request_tls(sock, timeout=TIMEOUT):
    """SSLRequest; the byte that answers it."""
    sock.settimeout(timeout)
    sock.sendall(special_request(SSL_REQUEST))
    return sock.recv(1)


def tls_context(ca=None, cert=None, key=None, alpn=None):
    ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        ctx.load_verify_locations(ca)
    else:
        ctx.check_hostname = False
        ctx.verify_mode = ssl.CERT_NONE
    if cert:
        ctx.load_cert_chain(cert, key)
    if alpn:
        ctx.set_alpn_protocols([alpn])
    return ctx
