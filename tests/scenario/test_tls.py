# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""TLS on both sides."""
import os
import shutil
import socket
import ssl
import threading

import pytest

import pgwire
import procs
from pgwire import (SSL_REQUEST, ServerError, Wire, WireClosed, bind,
                    execute, parse, query, special_request, startup, sync,
                    tls_context)

core = pytest.mark.core
REFUSED = (ServerError, WireClosed, ssl.SSLError, OSError)


@pytest.fixture
def serve(make_pooler, certs):
    """serve(sslmode, **options): a pooler with a certificate."""
    def make(mode, **options):
        out = {"client_tls_sslmode": mode,
               "client_tls_cert_file": certs.server[0],
               "client_tls_key_file": certs.server[1],
               "client_tls_ca_file": certs.ca}
        out.update(options)
        return make_pooler(out)
    return make


def connect(p, ctx=None, direct=False, user="u_trust", database="db1",
            name="localhost"):
    """A logged-in Wire over TLS."""
    sock = socket.create_connection((p.host, p.port), pgwire.TIMEOUT)
    if not direct:
        answer = pgwire.request_tls(sock)
        if answer != b"S":
            raise WireClosed("SSLRequest answered %r" % answer)
    sock = (ctx or tls_context(p.certs.ca)).wrap_socket(
        sock, server_hostname=name)
    w = Wire(sock)
    try:
        w.login(user, database, p.password_of(user))
    except BaseException:
        w.abort()
        raise
    return w


def plain(p):
    with p.wire(transport="tcp") as w:
        return w.value("SELECT 1") == "1"


# --- clients: sslmode ------------------------------------------------------------

@core
def test_disable(serve):
    p = serve("disable")
    assert plain(p)
    with pytest.raises(WireClosed):
        connect(p)


@core
@pytest.mark.parametrize("mode", ["allow", "prefer"])
def test_allow_and_prefer(serve, mode):
    p = serve(mode)
    assert plain(p)
    with connect(p) as w:
        assert w.value("SELECT 1") == "1"


@core
def test_require(serve):
    p = serve("require")
    with pytest.raises(REFUSED):
        plain(p)
    with connect(p) as w:
        assert w.value("SELECT 1") == "1"


def test_require_does_not_bind_unix_sockets(serve):
    p = serve("require")
    try:
        with p.wire(transport="unix") as w:
            assert w.value("SELECT 1") == "1"
    except ServerError as exc:
        assert "SSL" in str(exc) or "TLS" in str(exc)


@core
@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_client_certificates(serve, certs, mode):
    p = serve(mode)
    with pytest.raises(REFUSED):
        connect(p)
    with pytest.raises(REFUSED):
        connect(p, tls_context(certs.ca, *certs.stranger))
    user = "u_cert"
    with connect(p, tls_context(certs.ca, *certs.client), user=user) as w:
        assert w.value("SELECT 1") == "1"


@core
def test_auth_type_cert(serve, certs):
    p = serve("verify-full", auth_type="cert")
    ctx = tls_context(certs.ca, *certs.client)
    with connect(p, ctx, user="u_cert") as w:
        assert w.auth_seen == [0]
        assert w.value("SELECT current_user") == "u_cert"
    with pytest.raises(REFUSED):
        connect(p, ctx, user="u_trust")


@core
def test_libpq_verifies_the_name(serve, certs):
    import psycopg
    p = serve("require")
    info = p.conninfo(transport="tls")
    assert psycopg.connect(**info).execute("SELECT 1").fetchone()
    info["host"] = "elsewhere.test"
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**info)


# --- protocols and ciphers ----------------------------------------------------------

@core
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_both_versions(serve, certs, version):
    p = serve("require")
    ctx = tls_context(certs.ca)
    ctx.minimum_version = ctx.maximum_version = getattr(
        ssl.TLSVersion, version)
    with connect(p, ctx) as w:
        assert w.sock.version() == version.replace("_", ".")
        assert w.value("SELECT 1") == "1"


def test_protocols_option(serve, certs):
    p = serve("require", client_tls_protocols="tlsv1.3")
    ctx = tls_context(certs.ca)
    ctx.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(REFUSED):
        connect(p, ctx)
    with connect(p) as w:
        assert w.sock.version() == "TLSv1.3"


def test_old_protocols_are_off(serve, certs):
    p = serve("require")
    ctx = tls_context(certs.ca)
    ctx.set_ciphers("ALL:@SECLEVEL=0")
    ctx.minimum_version = ssl.TLSVersion.TLSv1
    ctx.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(REFUSED):
        connect(p, ctx)


def test_ciphers_option(serve, certs):
    p = serve("require",
              client_tls_ciphers="ECDHE-ECDSA-CHACHA20-POLY1305")
    ctx = tls_context(certs.ca)
    ctx.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(p, ctx) as w:
        assert w.sock.cipher()[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"


# --- direct TLS -----------------------------------------------------------------------

@core
@pytest.mark.differs("has no direct TLS")
def test_direct_tls(serve, certs):
    p = serve("require")
    ctx = tls_context(certs.ca, alpn="postgresql")
    with connect(p, ctx, direct=True) as w:
        assert w.sock.selected_alpn_protocol() == "postgresql"
        assert w.value("SELECT 1") == "1"


@core
def test_direct_tls_without_alpn_is_refused(serve, certs):
    p = serve("require")
    with pytest.raises(REFUSED):
        connect(p, tls_context(certs.ca), direct=True)
    with pytest.raises(REFUSED):
        connect(p, tls_context(certs.ca, alpn="http/1.1"), direct=True)


@pytest.mark.differs("has no ALPN")
def test_alpn_after_ssl_request(serve, certs):
    p = serve("require")
    ctx = tls_context(certs.ca, alpn="postgresql")
    with connect(p, ctx) as w:
        assert w.sock.selected_alpn_protocol() == "postgresql"


def test_direct_tls_is_refused_where_tls_is_off(serve, certs):
    p = serve("disable")
    ctx = tls_context(certs.ca, alpn="postgresql")
    with pytest.raises(REFUSED):
        connect(p, ctx, direct=True)
    assert plain(p)


# --- hostile handshakes ------------------------------------------------------------------

@core
def test_plain_bytes_before_the_handshake_are_refused(serve):
    """Nothing injected before TLS may count as said inside it."""
    p = serve("allow")
    with socket.create_connection((p.host, p.port), 10) as sock:
        sock.sendall(special_request(SSL_REQUEST) +
                     startup({"user": "u_trust", "database": "db1"}))
        w = Wire(sock)
        try:
            assert w.read_exact(1) in (b"S", b"E")
            got = w.read_to_close(5)
            assert not [m for m in got if m.type == "Z"]
        except (WireClosed, AssertionError):
            pass
    assert plain(p)


def test_ssl_request_inside_tls(serve):
    p = serve("require")
    sock = pgwire.tls_context(p.certs.ca).wrap_socket(
        upgraded(p), server_hostname="localhost")
    w = Wire(sock)
    w.send(special_request(SSL_REQUEST))
    try:
        assert w.read_exact(1, 5) != b"S"
    except WireClosed:
        pass
    w.abort()


def upgraded(p):
    """A socket whose SSLRequest was answered with S."""
    sock = socket.create_connection((p.host, p.port), pgwire.TIMEOUT)
    assert pgwire.request_tls(sock) == b"S"
    return sock


@core
def test_handshake_byte_by_byte(serve, certs):
    p = serve("require")
    sock = upgraded(p)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    obj = tls_context(certs.ca).wrap_bio(incoming, outgoing,
                                         server_hostname="localhost")

    def pump(action):
        while True:
            try:
                out = action()
                done = True
            except ssl.SSLWantReadError:
                done = False
            data = outgoing.read()
            for at in range(len(data)):
                sock.sendall(data[at:at + 1])
            if done:
                return out
            incoming.write(sock.recv(1))
    pump(obj.do_handshake)
    pump(lambda: obj.write(startup({"user": "u_trust",
                                    "database": "db1"})))
    data = b""
    while b"Z\0\0\0\5I" not in data:
        data += pump(lambda: obj.read(65536))
    sock.close()


@core
def test_client_leaves_during_the_handshake(serve, certs):
    p = serve("require")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    obj = tls_context(certs.ca).wrap_bio(incoming, outgoing,
                                         server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        obj.do_handshake()
    hello = outgoing.read()
    for at in range(0, len(hello), 11):
        sock = upgraded(p)
        sock.sendall(hello[:at])
        sock.close()
    with connect(p) as w:
        assert w.value("SELECT 1") == "1"


def test_garbage_instead_of_the_handshake(serve):
    p = serve("require")
    for data in (b"\0" * 50, b"GET / HTTP/1.0\r\n\r\n", os.urandom(200)):
        sock = upgraded(p)
        sock.sendall(data)
        sock.settimeout(10)
        try:
            while sock.recv(1000):
                pass
        except OSError:
            pass
        sock.close()
    with connect(p) as w:
        assert w.value("SELECT 1") == "1"


def test_handshake_that_never_ends(serve):
    p = serve("require", client_login_timeout=1)
    sock = upgraded(p)
    sock.settimeout(10)
    try:
        while sock.recv(1000):
            pass
    except ConnectionResetError:
        pass
    sock.close()


# --- bytes pending inside the library -------------------------------------------------

@core
@pytest.mark.transports("tls")
def test_many_messages_in_one_record(pooler):
    with pooler.wire() as w:
        batch = b"".join(query("SELECT %d" % i) for i in range(500))
        assert len(batch) < 16384
        w.send(batch)
        for i in range(500):
            assert w.read_ready().value() == str(i)


@core
@pytest.mark.transports("tls")
def test_one_message_over_many_records(pooler):
    with pooler.wire() as w:
        got = w.ok("SELECT length('%s')" % ("x" * 200000))
        assert got.value() == "200000"
        data = query("SELECT '%s'" % ("y" * 5000))
        for at in range(0, len(data), 37):
            w.send(data[at:at + 37])
        assert w.read_ready().value() == "y" * 5000


@core
@pytest.mark.transports("tls")
def test_record_boundary_anywhere(pooler):
    """Replies of every size around a record and a buffer."""
    with pooler.wire() as w:
        for size in list(range(16300, 16400)) + list(range(4000, 4110)):
            w.send(query("SELECT repeat('z', %d)" % size))
        for size in list(range(16300, 16400)) + list(range(4000, 4110)):
            assert len(w.read_ready().rows[0][0]) == size


@core
@pytest.mark.transports("tls")
def test_pipelines_over_tls_on_both_sides(pooler):
    with pooler.wire() as w:
        for _ in range(20):
            for i in range(50):
                w.send(parse("", "SELECT repeat('x', %d)" % (i * 50)),
                       bind(), execute(), sync())
            for i in range(50):
                assert len(w.read_ready().rows[0][0]) == i * 50


# --- certificates that change -----------------------------------------------------------

@core
def test_certificate_is_reloaded(make_pooler, certs):
    p = make_pooler(start=False)
    cert = os.path.join(p.folder, "tls.crt")
    key = os.path.join(p.folder, "tls.key")

    def use(pair):
        shutil.copy(pair[0], cert)
        shutil.copy(pair[1], key)
        procs.give(cert)
        procs.give(key)
    use(certs.server)
    p.write_ini(client_tls_sslmode="require", client_tls_cert_file=cert,
                client_tls_key_file=key)
    p.start()
    old = connect(p)
    first = old.sock.getpeercert(binary_form=True)
    use(certs.server2)
    with p.wire("admin", "pgbouncer", transport="tls") as w:
        w.ok("RELOAD")

    def changed():
        with connect(p) as w:
            return w.sock.getpeercert(binary_form=True) != first
    procs.wait_for(changed, 5, "the new certificate")
    assert old.value("SELECT 'still here'") == "still here"
    old.close()
    p.transport = __import__("pooler").TRANSPORTS["tls"]


@core
@pytest.mark.differs("1.18 starts or stops otherwise")
def test_bad_certificate_on_reload_changes_nothing(make_pooler, certs):
    p = make_pooler(start=False)
    cert = p.file("tls.crt", open(certs.server[0]).read())
    p.write_ini(client_tls_sslmode="allow", client_tls_cert_file=cert,
                client_tls_key_file=certs.server[1])
    p.start()
    with connect(p) as w:
        assert w.value("SELECT 1") == "1"
    p.file("tls.crt", "rubbish\n")
    with p.admin() as w:
        w.query("RELOAD")
    with connect(p) as w:
        assert w.value("SELECT 2") == "2"


# --- servers: sslmode -----------------------------------------------------------------------

SSL_USED = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


@core
@pytest.mark.parametrize("mode,want", [
    ("disable", "f"), ("allow", None), ("prefer", "t"), ("require", "t"),
    ("verify-ca", "t"), ("verify-full", "t")])
def test_server_sslmode(make_pooler, certs, cluster, mode, want):
    p = make_pooler({"server_tls_sslmode": mode,
                     "server_tls_ca_file": certs.ca},
                    {"db1": "host=localhost port=%d dbname=db1"
                     % cluster.port})
    with p.wire() as w:
        got = w.value(SSL_USED)
        assert want is None or got == want


@core
@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_server_of_another_ca_is_refused(make_pooler, certs, mode):
    p = make_pooler({"server_tls_sslmode": mode,
                     "server_tls_ca_file": certs.other_ca,
                     "query_wait_timeout": 3})
    with pytest.raises(REFUSED):
        p.wire().value("SELECT 1")


@core
@pytest.mark.parametrize("options", [{}, {"direct": True}],
                         ids=["request", "direct"])
def test_server_with_a_wrong_name(make_pooler, certs, cluster, options):
    front = TlsFront(cluster, certs.wrong_name, **options)
    with front:
        p = make_pooler({"server_tls_sslmode": "verify-full",
                         "server_tls_ca_file": certs.ca,
                         "query_wait_timeout": 3},
                        {"db1": "host=127.0.0.1 port=%d dbname=db1"
                         % front.port})
        with pytest.raises(REFUSED):
            p.wire().value("SELECT 1")


@core
def test_server_gets_our_certificate(make_pooler, certs, cluster):
    p = make_pooler({"server_tls_sslmode": "verify-full",
                     "server_tls_ca_file": certs.ca,
                     "server_tls_cert_file": certs.client[0],
                     "server_tls_key_file": certs.client[1]},
                    {"certdb": "host=127.0.0.1 port=%d dbname=certdb"
                     % cluster.port},
                    userlist={"u_cert": "not the password"})
    with p.wire("u_cert", "certdb") as w:
        assert w.value("SELECT current_user") == "u_cert"
        assert w.value("SELECT client_dn FROM pg_stat_ssl WHERE pid ="
                       " pg_backend_pid()") == "/CN=u_cert"


def test_require_fails_where_the_server_has_no_tls(make_pooler, cluster):
    with TlsFront(cluster, None) as front:
        p = make_pooler({"server_tls_sslmode": "require",
                         "query_wait_timeout": 3},
                        {"db1": "host=127.0.0.1 port=%d dbname=db1"
                         % front.port})
        with pytest.raises(REFUSED):
            p.wire().value("SELECT 1")


def test_prefer_falls_back_where_the_server_has_no_tls(make_pooler,
                                                       cluster):
    with TlsFront(cluster, None) as front:
        p = make_pooler({"server_tls_sslmode": "prefer"},
                        {"db1": "host=127.0.0.1 port=%d dbname=db1"
                         % front.port})
        with p.wire() as w:
            assert w.value("SELECT 1") == "1"


@core
@pytest.mark.differs("has no direct TLS")
def test_direct_tls_to_the_server(make_pooler, certs, cluster):
    with TlsFront(cluster, certs.server, direct=True) as front:
        p = make_pooler({"server_tls_sslmode": "verify-full",
                         "server_tls_ca_file": certs.ca},
                        {"db1": "host=localhost port=%d dbname=db1"
                         " sslnegotiation=direct" % front.port})
        with p.wire() as w:
            assert w.value("SELECT 1") == "1"
            assert front.alpn == "postgresql"


@pytest.mark.differs("1.18 has none on the line")
def test_sslmode_on_the_database_line(make_pooler, cluster):
    p = make_pooler({"server_tls_sslmode": "prefer"})
    base = "host=127.0.0.1 port=%d dbname=db1" % cluster.port
    p.databases["off"] = base + " sslmode=disable"
    p.databases["on"] = base + " sslmode=require"
    p.write_ini()
    p.reload()
    for name, want in (("off", "f"), ("on", "t")):
        with p.wire(database=name) as w:
            assert w.value(SSL_USED) == want


class TlsFront:
    """A PostgreSQL with another certificate, or none: ends the TLS and
    passes bytes on to the cluster's Unix socket."""

    def __init__(self, cluster, cert, direct=False):
        self.cluster = cluster
        self.cert = cert
        self.direct = direct
        self.alpn = None
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(20)
        self.port = self.sock.getsockname()[1]

    def __enter__(self):
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self.thread.join(5)

    def _accept(self):
        while True:
            try:
                peer, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,),
                             daemon=True).start()

    def _serve(self, peer):
        try:
            peer.settimeout(30)
            self._relay(self._upgrade(peer))
        except OSError:
            pass
        finally:
            peer.close()

    def _upgrade(self, peer):
        if not self.direct:
            head = peer.recv(8, socket.MSG_PEEK)
            if head != special_request(SSL_REQUEST):
                return peer
            peer.recv(8)
            peer.sendall(b"S" if self.cert else b"N")
        if not self.cert:
            return peer
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(*self.cert)
        ctx.set_alpn_protocols(["postgresql"])
        out = ctx.wrap_socket(peer, server_side=True)
        self.alpn = out.selected_alpn_protocol()
        return out

    def _relay(self, peer):
        back = socket.socket(socket.AF_UNIX)
        back.connect("%s/.s.PGSQL.%d" % (self.cluster.sockdir,
                                         self.cluster.port))
        both = threading.Thread(target=self._pass, args=(back, peer),
                                daemon=True)
        both.start()
        self._pass(peer, back)
        both.join(5)
        back.close()

    @staticmethod
    def _pass(source, sink):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass
