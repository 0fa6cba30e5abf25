# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Why a QUIC handshake failed: what a session is told, and what the logs of
both sides say; by an edge, and by a pool whose servers are streams. Unknown
ALPN words are in test_quic_foreign, blocked UDP is in test_pooled."""
import os
import re
import socket

import pytest

import certs as certs_module
import pgwire
import pooler as pooler_module
import procs
from pgwire import ServerError, Wire

core = pytest.mark.core


def signed(certs, name, alt="DNS:localhost", days=30, ca="ca"):
    pair = certs_module.make_cert(certs.folder, name, "localhost", ca, alt,
                                  days)
    for path in pair:
        procs.give(path)
    return pair


# name: certificate of the pooler behind, CA file of the near side, whether
# clients must show a certificate, what the near side says, what the far one.
CASES = {
    "untrusted CA": (
        lambda c: c.server, lambda c: c.other_ca, False,
        "issuer is unknown", "refused by the peer: TLS alert 4[28]"),
    "other name": (
        lambda c: c.wrong_name, lambda c: c.ca, False,
        "name in the certificate does not match",
        "refused by the peer: TLS alert 42"),
    "expired": (
        lambda c: signed(c, "expired", days=-1), lambda c: c.ca, False,
        "certificate chain uses expired certificate",
        "refused by the peer: TLS alert 4[25]"),
    "no certificate of ours": (
        lambda c: c.server, lambda c: c.ca, True,
        "refused by the peer: TLS alert 116",
        "QUIC handshake failed: .*(no certificate|[Cc]ertificate is required)"),
}


@pytest.fixture(params=sorted(CASES))
def case(request, make_pooler, target, binary, certs):
    """(far pooler, CA file, words of the near side, pattern of the far)."""
    if target != "pgbraid" or not pooler_module.has_quic(binary):
        pytest.skip("no QUIC")
    cert, ca, must_show, near, far = CASES[request.param]
    cert = cert(certs)
    options = {"quic_tls_cert_file": cert[0], "quic_tls_key_file": cert[1]}
    if must_show:
        options["client_tls_sslmode"] = "verify-ca"
    p = make_pooler(options, transport=pooler_module.TRANSPORTS["quic"],
                    start=False)
    # No console by the scenario's own edge, which would be refused as well.
    p.transport = pooler_module.TRANSPORTS["unix"]
    p.start()
    return p, ca(certs), near, far


@core
def test_edge(case, certs):
    p, ca, near, far = case
    folder = os.path.join(p.folder, "edge-r")
    edge = pooler_module.Edge(p.binary, folder,
                              "quic://localhost:%d" % p.port, certs,
                              ["--ca", ca, "--wait", "5"])
    try:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect(os.path.join(folder, ".s.PGSQL.6432"))
        w = Wire(sock, False, pgwire.TIMEOUT)
        with pytest.raises(ServerError) as exc:
            w.login("u_trust", "db1", None)
            # TLS 1.3: the client is up before the server has seen what it
            # shows.
            w.value("SELECT 1")
        w.abort()
        assert near in str(exc.value)
        edge.wait_log(re.escape(near))
        p.wait_log(far)
    finally:
        edge.stop()


@core
def test_pool(case, make_pooler):
    p, ca, near, far = case
    pool = make_pooler({"server_tls_ca_file": ca, "workers": 1},
                       {"db1": "host=localhost port=%d transport=quic" %
                        p.port})
    with pytest.raises(ServerError) as exc:
        pool.wire()
    assert near in str(exc.value)
    pool.wait_log(re.escape(near))
    p.wait_log(far)
