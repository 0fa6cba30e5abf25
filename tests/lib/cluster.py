# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A throwaway PostgreSQL for one test session."""
import os
import shutil
import signal
import subprocess
import tempfile

import pgwire
import procs

# user -> (password, how the secret is stored, pg_hba method)
USERS = {
    "u_trust": ("secret", "scram-sha-256", "trust"),
    "u_other": ("secret", "scram-sha-256", "trust"),
    "u_plain": ("plain word", "scram-sha-256", "password"),
    "u_md5": ("md5word", "md5", "md5"),
    "u_scram": ("scramword", "scram-sha-256", "scram-sha-256"),
    "u_utf8": ("p\u00e4ssw\u00f6rd\u2168", "scram-sha-256", "scram-sha-256"),
    "u_cert": ("certword", "scram-sha-256", "scram-sha-256"),
    "u_owner": ("ownerword", "scram-sha-256", "scram-sha-256"),
    "authuser": ("authword", "scram-sha-256", "scram-sha-256"),
}

HBA = """
local   all all                       %(method)s
"""

CONF = """
listen_addresses = '%(listen)s'
port = %(port)d
unix_socket_directories = '%(sockdir)s'
max_connections = 150
shared_buffers = 64MB
fsync = off
synchronous_commit = off
full_page_writes = off
max_prepared_transactions = 10
max_wal_senders = 8
wal_level = logical
ssl = on
ssl_cert_file = '%(cert)s'
ssl_key_file = '%(key)s'
ssl_ca_file = '%(ca)s'
log_min_messages = warning
logging_collector = off
autovacuum = off
jit = off
stats_fetch_consistency = none
"""


class Cluster:
    """initdb, start, restart, stop. The session fixture owns it."""

    def __init__(self, folder, certs, users=USERS, extra=""):
        self.bin = procs.find_pg_bin()
        if self.bin is None:
            raise RuntimeError("PostgreSQL's server programs are missing "
                               "(package postgresql)")
        self.folder = folder
        self.data = os.path.join(folder, "data")
        self.sockdir = folder
        self.users = users
        self.port = procs.free_port()
        self.proc = None
        self.log_path = os.path.join(folder, "postgres.log")
        self._initdb()
        self._configure(certs, extra)
        self.start()
        self._create_users()

    def run(self, *argv, **kw):
        return subprocess.run(procs.as_service(argv), check=True,
                              cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **kw)

    def _initdb(self):
        self.run(os.path.join(self.bin, "initdb"), "-D", self.data, "-U",
                 "postgres", "-A", "trust", "-E", "UTF8",
                 "--locale=C.UTF-8", "--no-sync", "--no-instructions")

    def _configure(self, certs, extra):
        key = os.path.join(self.data, "server.key")
        shutil.copy(certs.server[1], key)
        os.chmod(key, 0o600)
        procs.give(key)
        listen = "127.0.0.1,::1" if procs.has_ipv6() else "127.0.0.1"
        with open(os.path.join(self.data, "postgresql.conf"), "a") as out:
            out.write(CONF % {
                "listen": listen, "port": self.port,
                "sockdir": self.sockdir, "cert": certs.server[0],
                "key": key, "ca": certs.ca})
            out.write(extra)
        version = self.version_of_data()
        if version < 15:
            self._drop_setting("stats_fetch_consistency")
        with open(os.path.join(self.data, "pg_hba.conf"), "w") as out:
            out.write(self._hba())

    def _drop_setting(self, name):
        path = os.path.join(self.data, "postgresql.conf")
        with open(path) as src:
            lines = [l for l in src if not l.startswith(name)]
        with open(path, "w") as out:
            out.writelines(lines)

    def version_of_data(self):
        with open(os.path.join(self.data, "PG_VERSION")) as src:
            return float(src.read())

    def _hba(self):
        lines = ["hostssl certdb u_cert all cert"]
        for user, (_, _, method) in self.users.items():
            lines.append("local all %s %s" % (user, method))
            lines.append("host all %s all %s" % (user, method))
        lines.append("local all all trust")
        lines.append("host all all all trust")
        lines.append("local replication all trust")
        lines.append("host replication all all trust")
        return "\n".join(lines) + "\n"

    def start(self):
        out = open(self.log_path, "ab")
        self.proc = subprocess.Popen(
            procs.as_service([os.path.join(self.bin, "postgres"), "-D",
                              self.data]),
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
            stderr=out, start_new_session=True,
            preexec_fn=procs.die_with_parent)
        out.close()
        procs.wait_for(self._is_up, 30, "PostgreSQL")

    def _is_up(self):
        if self.proc.poll() is not None:
            raise RuntimeError("PostgreSQL did not start:\n" + self.log())
        try:
            with self.wire("postgres", "postgres") as wire:
                wire.value("SELECT 1")
            return True
        except (OSError, pgwire.WireClosed, pgwire.ServerError):
            return False

    def stop(self, how=signal.SIGINT):
        """SIGINT is PostgreSQL's fast shutdown, SIGQUIT a crash."""
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(how)
            try:
                self.proc.wait(30)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.proc = None

    def restart(self, how=signal.SIGINT):
        self.stop(how)
        self.start()

    def log(self):
        with open(self.log_path, errors="replace") as src:
            return src.read()

    def wire(self, user="postgres", database="postgres", password=None):
        """A raw connection straight to PostgreSQL."""
        import socket
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect("%s/.s.PGSQL.%d" % (self.sockdir, self.port))
        wire = pgwire.Wire(sock)
        try:
            wire.login(user, database, password)
        except BaseException:
            wire.abort()
            raise
        return wire

    def sql(self, sql, database="postgres"):
        """Runs SQL as the superuser; the rows as lists of text."""
        with self.wire("postgres", database) as wire:
            got = wire.ok(sql)
            return [[None if v is None else v.decode() for v in row]
                    for row in got.rows]

    def _create_users(self):
        for user, (password, stored, _) in self.users.items():
            self.sql("SET password_encryption = '%s'" % stored)
            with self.wire() as wire:
                wire.ok("SET password_encryption = '%s'" % stored)
                wire.ok("CREATE ROLE %s LOGIN PASSWORD '%s'" % (
                    user, password))
        for name in ("db1", "db2", "certdb"):
            self.sql("CREATE DATABASE %s" % name)
            self.sql("GRANT ALL ON SCHEMA public TO public", name)
        self.sql("CREATE EXTENSION IF NOT EXISTS pgcrypto", "db1")

    def secret_of(self, user):
        """The stored secret, as pg_authid has it."""
        return self.sql("SELECT rolpassword FROM pg_authid WHERE rolname"
                        " = '%s'" % user)[0][0]


def make_folder(prefix="pgbraid-t-"):
    """A short-named folder that the service account may use."""
    path = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    os.chmod(path, 0o755)
    procs.give(path)
    return path
