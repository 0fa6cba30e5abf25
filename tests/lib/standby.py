# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A streaming standby of a throwaway PostgreSQL, whose primary_conninfo is
whatever the test wants to see replication go through."""
import os
import signal
import socket
import subprocess

import pgwire
import procs


class Standby:
    """Made by pg_basebackup over the same way; runs until stop()."""

    def __init__(self, cluster, conninfo, folder, env):
        self.cluster, self.folder = cluster, folder
        self.data = os.path.join(folder, "data")
        self.port = procs.free_port()
        self.log_path = os.path.join(folder, "standby.log")
        self._copy(env)
        self._configure(conninfo)
        with open(self.log_path, "ab") as log:
            self.proc = subprocess.Popen(
                procs.as_service([os.path.join(cluster.bin, "postgres"), "-D",
                                  self.data]),
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=procs.die_with_parent)

    def _copy(self, env):
        procs.give(self.folder)
        got = subprocess.run(
            procs.as_service([os.path.join(self.cluster.bin, "pg_basebackup"),
                              "-D", self.data, "-X", "stream", "-c", "fast",
                              "--no-sync"]),
            cwd=self.folder, env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if got.returncode:
            raise RuntimeError("pg_basebackup: " + got.stderr.decode())

    def _configure(self, conninfo):
        with open(os.path.join(self.data, "postgresql.auto.conf"), "a") as out:
            out.write("primary_conninfo = '%s application_name=standby'\n"
                      "port = %d\nunix_socket_directories = '%s'\n"
                      "wal_receiver_status_interval = 1\n"
                      "wal_retrieve_retry_interval = 200\n"
                      "log_min_messages = info\n"
                      "listen_addresses = ''\nssl = off\n" % (
                          conninfo, self.port, self.folder))
        signal_file = os.path.join(self.data, "standby.signal")
        open(signal_file, "w").close()
        procs.give(signal_file)

    def log(self):
        with open(self.log_path, errors="replace") as src:
            return src.read()

    def wire(self, database="db1"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect("%s/.s.PGSQL.%d" % (self.folder, self.port))
        wire = pgwire.Wire(sock)
        wire.login("postgres", database)
        return wire

    def value(self, sql, database="db1"):
        """None while it cannot answer."""
        try:
            with self.wire(database) as wire:
                return wire.value(sql)
        except (AssertionError, OSError, pgwire.WireClosed,
                pgwire.ServerError):
            return None

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGINT)
            try:
                self.proc.wait(20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
