# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Certificates for one test session, made with the openssl program."""
import os
import subprocess


def _openssl(*args, **kw):
    subprocess.run(["openssl", *args], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **kw)


def make_ca(folder, name="ca", subject="/CN=pgbraid test CA"):
    cert, key = _paths(folder, name)
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-sha256",
             "-days", "30", "-subj", subject, "-keyout", key, "-out", cert)
    return cert, key


def make_cert(folder, name, common_name, ca="ca",
              alt="DNS:localhost,IP:127.0.0.1,IP:::1", days=30):
    """A certificate signed by the CA of this folder."""
    cert, key = _paths(folder, name)
    ca_cert, ca_key = _paths(folder, ca)
    csr = os.path.join(folder, name + ".csr")
    ext = os.path.join(folder, name + ".ext")
    with open(ext, "w") as out:
        out.write("basicConstraints=CA:FALSE\n")
        if alt:
            out.write("subjectAltName=%s\n" % alt)
    _openssl("req", "-new", "-newkey", "ec", "-pkeyopt",
             "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
             "/CN=" + common_name, "-keyout", key, "-out", csr)
    _openssl("x509", "-req", "-sha256", "-in", csr, "-CA", ca_cert,
             "-CAkey", ca_key, "-CAcreateserial", "-days", str(days),
             "-extfile", ext, "-out", cert)
    return cert, key


def _paths(folder, name):
    return (os.path.join(folder, name + ".crt"),
            os.path.join(folder, name + ".key"))


class Certs:
    """ca, other_ca, server (localhost), wrong_name, and client certs."""

    def __init__(self, folder):
        self.folder = folder
        self.ca, _ = make_ca(folder)
        self.other_ca, _ = make_ca(folder, "other_ca", "/CN=other CA")
        self.server = make_cert(folder, "server", "localhost")
        self.server2 = make_cert(folder, "server2", "localhost")
        self.wrong_name = make_cert(folder, "wrong", "elsewhere.test",
                                    alt="DNS:elsewhere.test")
        self.client = make_cert(folder, "client", "u_cert", alt=None)
        self.stranger = make_cert(folder, "stranger", "u_cert",
                                  ca="other_ca", alt=None)
