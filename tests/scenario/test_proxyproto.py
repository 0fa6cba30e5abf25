# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""PROXY headers of load balancers, by hand."""
import socket
import struct

import pytest

import pgwire
from pgwire import WireClosed

core = pytest.mark.core
pytestmark = [pytest.mark.pooled,
              pytest.mark.differs("1.18 has no PROXY protocol")]

BALANCER = "127.0.0.9"
V2_START = b"\r\n\r\n\0\r\nQUIT\n"


def v1(ip="192.0.2.7", port=4711):
    kind = b"TCP6" if ":" in ip else b"TCP4"
    return b"PROXY %s %s %s %d 6432\r\n" % (
        kind, ip.encode(), ip.encode(), port)


def v2(ip="192.0.2.7", port=4711, tlvs=b""):
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    body = socket.inet_pton(family, ip) * 2 + struct.pack("!HH", port, 6432)
    body += tlvs
    kind = 0x21 if ":" in ip else 0x11
    return V2_START + struct.pack("!BBH", 0x21, kind, len(body)) + body


LOCAL = V2_START + struct.pack("!BBH", 0x20, 0, 0)


def connect(node, header, source=BALANCER):
    """A Wire that comes from the balancer."""
    sock = socket.create_connection((node.host, node.port), pgwire.TIMEOUT,
                                    (source, 0))
    if header:
        sock.sendall(header)
    return pgwire.Wire(sock)


def login(node, header, user="u_trust", source=BALANCER):
    w = connect(node, header, source)
    w.login(user, "db1", node.password_of(user), None, pgwire.PROTOCOL_3_0,
            None)
    return w


def where(node, user="u_trust"):
    return [(r["addr"], r["port"]) for r in node.show("CLIENTS")
            if r["user"] == user]


@pytest.fixture
def node(make_pooler):
    return make_pooler({"proxy_protocol_from": BALANCER + ", 10.9.0.0/16",
                        "application_name_add_host": 1})


@core
@pytest.mark.parametrize("header", [v1, v2])
@pytest.mark.parametrize("ip", ["192.0.2.7", "2001:db8::7"])
def test_address_of_the_client(node, header, ip):
    with login(node, header(ip)) as w:
        assert where(node) == [(ip, "4711")]
        name = w.value("SHOW application_name")
        assert ip in name and "4711" in name
    node.wait_log(r"%s\]?:4711 login attempt" % ip.replace(".", r"\."))


@core
def test_mapped_address_and_extensions(node):
    tlvs = b"\x05\x00\x04abcd" + b"\x20\x00\x05\x01\0\0\0\0"
    with login(node, v2("::ffff:192.0.2.8", 99, tlvs)):
        assert where(node) == [("192.0.2.8", "99")]


@core
@pytest.mark.parametrize("header", [LOCAL, b"PROXY UNKNOWN\r\n"])
def test_header_without_address(node, header):
    with login(node, header):
        assert [a for a, _ in where(node)] == [BALANCER]


@core
@pytest.mark.parametrize("header", [v1(), v2()])
def test_byte_by_byte(node, header):
    w = connect(node, b"")
    w.dribble = True
    w.send(header)
    w.login("u_trust", "db1", None, None, pgwire.PROTOCOL_3_0, None)
    assert where(node) == [("192.0.2.7", "4711")]
    w.close()


@core
def test_header_and_startup_in_one_piece(node):
    with connect(node, v1() + pgwire.startup(
            {"user": "u_trust", "database": "db1"})) as w:
        w.read_until("Z")
        assert w.value("SELECT 1") == "1"


@core
def test_a_header_is_a_must(node):
    """Else a client could leave it out and be the balancer."""
    with pytest.raises((WireClosed, OSError)):
        login(node, b"")
    node.wait_log("no PROXY header")


def test_others_may_not_send_one(node):
    with pytest.raises((WireClosed, OSError, pgwire.ServerError)):
        login(node, v1(), source="127.0.0.8")
    with login(node, b"", source="127.0.0.8"):
        assert [a for a, _ in where(node)] == ["127.0.0.8"]


@pytest.mark.parametrize("header", [
    b"PROXY TCP4 1.2.3.4\r\n", b"PROXY " + b"x" * 200, V2_START + b"\x31\0\0\0",
    V2_START + b"\x21\x11\xff\xff" + b"x" * 4000, b"GET / HTTP/1.1\r\n\r\n"])
def test_malformed(node, header):
    w = connect(node, header)
    assert w.is_closed(5)
    w.abort()


def test_unix_sockets_have_none(node):
    with node.wire(transport="unix") as w:
        assert w.value("SELECT 1") == "1"


def test_leaves_inside_the_header(node):
    header = v2()
    for n in range(len(header)):
        connect(node, header[:n]).abort()
    with login(node, header) as w:
        assert w.value("SELECT 1") == "1"


@core
def test_limit_per_address_is_the_client_s(make_pooler):
    node = make_pooler({"proxy_protocol_from": BALANCER,
                        "max_connections_per_address": 2})
    held = [connect(node, v1("192.0.2.1", i)) for i in range(2)]
    for w in held:
        assert not w.is_closed(0.1)
    third = connect(node, v1("192.0.2.1", 3))
    assert third.is_closed(5)
    with login(node, v1("192.0.2.2")) as w:
        assert w.value("SELECT 1") == "1"
    for w in held + [third]:
        w.abort()


@core
def test_hba_sees_the_client(make_pooler, target):
    node = make_pooler({"proxy_protocol_from": BALANCER, "auth_type": "hba"},
                       start=False)
    node.write_ini(auth_hba_file=node.file("hba.conf", (
        "host all all 192.0.2.0/24 trust\n"
        "host all admin 127.0.0.1/32 trust\n")))
    node.start()
    with login(node, v2("192.0.2.77")) as w:
        assert w.value("SELECT 1") == "1"
    with pytest.raises(pgwire.ServerError):
        login(node, v2("198.51.100.1"))


@core
def test_tls_after_the_header(make_pooler, certs):
    import pooler as pooler_module
    node = make_pooler({"proxy_protocol_from": BALANCER},
                       transport=pooler_module.TRANSPORTS["tls"])
    w = connect(node, v2())
    assert pgwire.request_tls(w.sock) == b"S"
    sock = pgwire.tls_context(certs.ca).wrap_socket(
        w.sock, server_hostname="localhost")
    with pgwire.Wire(sock) as w:
        w.login("u_trust", "db1", None, None, pgwire.PROTOCOL_3_0, None)
        assert where(node) == [("192.0.2.7", "4711")]


def test_reload(node):
    node.write_ini(proxy_protocol_from="10.9.0.0/16")
    node.reload()
    with login(node, b"") as w:
        assert w.value("SELECT 1") == "1"


def test_mistake_in_the_list(node):
    node.write_ini(proxy_protocol_from="10.0.0.0/40")
    status, text = node.check()
    assert status == 1
    assert "proxy_protocol_from" in text and "10.1.0.0/16" in text
