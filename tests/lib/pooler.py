# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Starts the program under test with an ini file and talks to it.

The program is pgbraid, PgBouncer (to check the scenarios themselves) or
nothing at all ("direct": the scenario meets PostgreSQL itself).
"""
import os
import re
import shutil
import signal
import socket
import subprocess

import pgwire
import procs

ADMIN = ("admin", "adminword")
STATS = ("stats", "statsword")

# What PgBouncer 1.18 does not know yet.
TOO_NEW = {
    "workers", "max_prepared_statements", "track_extra_parameters",
    "peer_id", "transaction_timeout", "max_db_client_connections",
    "max_user_client_connections", "auth_ident_file", "scram_iterations",
    "server_tls13_ciphers", "client_tls13_ciphers", "query_wait_notify",
    "login_notify_message", "pool_idle_timeout", "cancel_wait_timeout",
    "auth_dbname", "reserve_pool_size_db", "load_balance_hosts",
}

BAD_LOG = re.compile(
    r"ERROR: (Address|Thread|Leak|Memory)Sanitizer|WARNING: ThreadSanitizer"
    r"|runtime error:|AddressSanitizer:DEADLYSIGNAL|\bmust\(|SIGSEGV"
    r"|SIGABRT|Assertion .* failed")


class Transport:
    """How clients reach the pooler, and the pooler its servers."""

    name = None

    def options(self, pooler):
        """Ini options of the [pgbouncer] section."""
        return {}

    def server(self, cluster):
        """host= and port= of a [databases] line."""
        return "host=127.0.0.1 port=%d" % cluster.port

    def connect(self, address):
        raise NotImplementedError

    def conninfo(self, address):
        raise NotImplementedError


class Tcp(Transport):
    name = "tcp"

    def connect(self, address):
        return socket.create_connection((address.host, address.port),
                                        pgwire.TIMEOUT)

    def conninfo(self, address):
        return {"host": address.host, "port": address.port,
                "sslmode": "disable"}


class Tls(Tcp):
    name = "tls"

    def options(self, certs):
        return {"client_tls_sslmode": "require",
                "client_tls_cert_file": certs.server[0],
                "client_tls_key_file": certs.server[1],
                "client_tls_ca_file": certs.ca,
                "server_tls_sslmode": "verify-ca",
                "server_tls_ca_file": certs.ca}

    def connect(self, address):
        sock = Tcp.connect(self, address)
        answer = pgwire.request_tls(sock)
        if answer != b"S":
            raise pgwire.WireClosed("SSLRequest answered %r" % answer)
        ctx = pgwire.tls_context(address.certs.ca)
        return ctx.wrap_socket(sock, server_hostname="localhost")

    def conninfo(self, address):
        return {"host": "localhost", "hostaddr": address.host,
                "port": address.port, "sslmode": "verify-full",
                "sslrootcert": address.certs.ca, "sslcert": "/nonexistent",
                "sslkey": "/nonexistent", "gssencmode": "disable"}


class Unix(Transport):
    name = "unix"

    def server(self, cluster):
        return "host=%s port=%d" % (cluster.sockdir, cluster.port)

    def connect(self, address):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect("%s/.s.PGSQL.%d" % (address.sockdir, address.port))
        return sock

    def conninfo(self, address):
        return {"host": address.sockdir, "port": address.port}


class Quic(Tls):
    """Through an edge of the scenario's own, which speaks QUIC."""
    name = "quic"
    scheme = "quic"

    def options(self, certs):
        return {"client_tls_sslmode": "prefer",
                "client_tls_cert_file": certs.server[0],
                "client_tls_key_file": certs.server[1],
                "client_tls_ca_file": certs.ca,
                "quic_listen_addr": "127.0.0.1"}

    def connect(self, address):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(pgwire.TIMEOUT)
        sock.connect("%s/.s.PGSQL.6432" % address.edge().folder)
        return sock

    def conninfo(self, address):
        return {"host": address.edge().folder, "port": 6432}


class EdgeTcp(Quic):
    """The same, by the edge's TCP port."""
    name = "edge"

    def connect(self, address):
        return socket.create_connection(
            (address.host, address.edge("tcp").port), pgwire.TIMEOUT)

    def conninfo(self, address):
        return {"host": address.host, "port": address.edge("tcp").port,
                "sslmode": "disable"}


class Pooled(Unix):
    """A pooler whose servers are streams to another pooler of the scenario's
    own, which is the one beside PostgreSQL."""
    name = "pooled"

    def options(self, certs):
        return {"server_tls_ca_file": certs.ca}


class Mptcp(Quic):
    """The same over Multipath TCP. Few scenarios run over it: behind the edge's
    connect() it is TCP."""
    name = "mptcp"
    scheme = "mptcp"

    def options(self, certs):
        return {"listen_mptcp": 1}


TRANSPORTS = {t.name: t for t in (Tcp(), Tls(), Unix(), Quic(), EdgeTcp(),
                                  Pooled(), Mptcp())}


def has_quic(binary):
    got = subprocess.run([binary, "--version"], stdout=subprocess.PIPE)
    return b"QUIC: ngtcp2" in got.stdout


class Edge:
    """A local socket that leads to a pooler; in the namespace space (wan.py),
    where with_net_admin lets it open subflows."""

    def __init__(self, binary, folder, url, certs, args=(), space=None,
                 with_net_admin=False, listen=None):
        """listen: a folder, or the number of a TCP port."""
        self.folder = folder
        self.port = listen if isinstance(listen, int) else None
        listen = str(listen or folder)
        self.log_path = os.path.join(folder, "edge.log")
        os.mkdir(folder)
        procs.give(folder)
        argv = [binary, "edge", "-v", "--listen", listen, "--to", url,
                "--ca", certs.ca, *args]
        argv = procs.as_service(argv)
        if with_net_admin:
            argv[1:1] = ["--inh-caps", "+net_admin", "--ambient-caps",
                         "+net_admin"]

        def prepare():
            procs.die_with_parent()
            if space:
                space.enter()

        with open(self.log_path, "ab") as out:
            self.proc = subprocess.Popen(
                argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True, preexec_fn=prepare)
        procs.wait_for(self.is_up, 20,
                       lambda: "start of the edge:\n" + self.log())

    def is_up(self):
        if self.proc.poll() is not None:
            raise RuntimeError("the edge ended with %d:\n%s" % (
                self.proc.returncode, self.log()))
        try:
            if self.port:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return True
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(os.path.join(self.folder, ".s.PGSQL.6432"))
            return True
        except OSError:
            return False

    def log(self):
        with open(self.log_path, errors="replace") as src:
            return src.read()

    def wait_log(self, pattern, timeout=10):
        return procs.wait_for(lambda: re.search(pattern, self.log()),
                              timeout, "edge's log line %r" % pattern)

    def stop(self):
        """Ends it; says what is wrong with how it went."""
        if self.proc.poll() is None:
            self.proc.terminate()
        try:
            code = self.proc.wait(15)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            raise AssertionError("the edge did not end:\n" + self.log())
        assert code == 0, "the edge ended with %d:\n%s" % (
            code, self.log()[-4000:])
        bad = BAD_LOG.search(self.log())
        assert not bad, "in the edge's log:\n" + self.log()[-6000:]


class Address:
    """Where something listens; makes clients for it."""

    def __init__(self, host, port, sockdir, transport, certs, users):
        self.host = host
        self.port = port
        self.sockdir = sockdir
        self.transport = transport
        self.certs = certs
        self.users = users

    def password_of(self, user):
        found = self.users.get(user)
        return found[0] if found else None

    def socket(self, transport=None):
        """A connected socket with nothing said on it yet but TLS."""
        kind = TRANSPORTS[transport] if transport else self.transport
        return kind.connect(self)

    def open(self, dribble=False, transport=None, timeout=pgwire.TIMEOUT):
        """A Wire before its start-up packet."""
        return pgwire.Wire(self.socket(transport), dribble, timeout)

    def wire(self, user="u_trust", database="db1", password=None,
             params=None, version=pgwire.PROTOCOL_3_0, dribble=False,
             transport=None, plus=None):
        """A Wire that has logged in."""
        out = self.open(False, transport)
        try:
            if password is None:
                password = self.password_of(user)
            out.login(user, database, password, params, version, plus)
        except BaseException:
            out.abort()
            raise
        out.dribble = dribble
        return out

    def conninfo(self, user="u_trust", dbname="db1", transport=None, **kw):
        kind = TRANSPORTS[transport] if transport else self.transport
        out = dict(kind.conninfo(self), user=user, dbname=dbname,
                   connect_timeout=20)
        if self.password_of(user):
            out["password"] = self.password_of(user)
        out.update(kw)
        return out

    def pg(self, user="u_trust", dbname="db1", transport=None,
           prepare_threshold=None, autocommit=True, **kw):
        """A psycopg 3 connection."""
        import psycopg
        info = self.conninfo(user, dbname, transport, **kw)
        return psycopg.connect(**info, autocommit=autocommit,
                               prepare_threshold=prepare_threshold)

    def url_env(self, user="u_trust", dbname="db1", transport=None):
        """PG* variables for psql and its kin."""
        info = self.conninfo(user, dbname, transport)
        names = {"host": "PGHOST", "hostaddr": "PGHOSTADDR",
                 "port": "PGPORT", "user": "PGUSER",
                 "dbname": "PGDATABASE", "password": "PGPASSWORD",
                 "sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT",
                 "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY"}
        env = {k: v for k, v in os.environ.items()
               if not k.startswith("PG")}
        env.update({names[k]: str(v) for k, v in info.items()
                    if k in names})
        return env


class Pooler(Address):
    is_direct = False

    def __init__(self, target, binary, folder, cluster, certs, transport,
                 options=None, databases=None, users=None, peers=None,
                 userlist=None, extra="", start=True, args=()):
        super().__init__("127.0.0.1", procs.free_port(), folder, transport,
                         certs, dict(cluster.users))
        self.target = target
        self.binary = binary
        self.folder = folder
        self.cluster = cluster
        self.ini = os.path.join(folder, "pgbouncer.ini")
        self.log_path = os.path.join(folder, "pooler.log")
        self.userlist_path = os.path.join(folder, "userlist.txt")
        self.users[ADMIN[0]] = (ADMIN[1], "plain", None)
        self.users[STATS[0]] = (STATS[1], "plain", None)
        self.args = list(args)
        self.proc = None
        self.own_edges = {}
        self.far = None
        self.options = self._default_options()
        self.options.update(options or {})
        self.databases = databases if databases is not None else \
            self.default_databases()
        self.user_section = users or {}
        self.peers = peers or {}
        self.extra = extra
        self.write_userlist(userlist)
        self.write_ini()
        self.baseline_fds = None
        if start:
            self.start()

    def edge(self, kind="unix"):
        """The edge in front of it, started when first asked for."""
        url = "%s://localhost:%d" % (
            getattr(self.transport, "scheme", "quic"), self.port)
        for attempt in range(3):
            if kind in self.own_edges:
                break
            folder = "%s/edge-%s-%d" % (self.folder, kind, attempt)
            try:
                self.own_edges[kind] = Edge(
                    self.binary, folder, url, self.certs,
                    listen=procs.free_port() if kind == "tcp" else None)
            except RuntimeError as exc:
                # Another test session took the port meanwhile.
                if attempt == 2 or "in use" not in str(exc):
                    raise
        return self.own_edges[kind]

    def far_databases(self):
        server = TRANSPORTS["tcp"].server(self.cluster)
        return {"*": server, "db1": server, "db2": server}

    def behind(self):
        """The pooler that it reaches by QUIC, started when first asked for."""
        if self.far is None:
            folder = os.path.join(self.folder, "far")
            os.mkdir(folder)
            procs.give(folder)
            self.far = Pooler(
                self.target, self.binary, folder, self.cluster, self.certs,
                TRANSPORTS["quic"],
                {"default_pool_size": 50, "workers": 1},
                dict(self.far_databases()))
        return self.far

    # configuration

    def _default_options(self):
        out = {
            "listen_addr": self.host,
            "listen_port": self.port,
            "unix_socket_dir": self.folder,
            "auth_type": "trust",
            "auth_file": self.userlist_path,
            "admin_users": ADMIN[0],
            "stats_users": STATS[0],
            "pool_mode": "transaction",
            "default_pool_size": 5,
            "max_client_conn": 1000,
            "server_login_retry": 1,
            "workers": 2,
            "max_prepared_statements": 200,
        }
        out.update(self.transport.options(self.certs))
        return out

    def server(self):
        """host= and port= that lead to the cluster."""
        if self.transport.name == "pooled":
            return "host=localhost port=%d transport=quic" % \
                self.behind().port
        return self.transport.server(self.cluster)

    def default_databases(self):
        return {name: "%s dbname=%s" % (self.server(), name)
                for name in ("db1", "db2")}

    def write_userlist(self, entries=None):
        """entries: user -> secret; default: every plain password."""
        if entries is None:
            entries = {u: p[0] for u, p in self.users.items()}
        else:
            entries = dict(entries)
            entries.setdefault(*ADMIN)
            entries.setdefault(*STATS)
        with open(self.userlist_path, "w") as out:
            for user, secret in entries.items():
                out.write('"%s" "%s"\n' % (user.replace('"', '""'),
                                           secret.replace('"', '""')))
        procs.give(self.userlist_path)

    def write_ini(self, **changes):
        """Writes the file anew, with changes of [pgbouncer] options."""
        self.options.update(changes)
        lines = ["[databases]"]
        lines += ["%s = %s" % kv for kv in self.databases.items()]
        lines.append("[pgbouncer]")
        for key, value in self.options.items():
            if value is None:
                continue
            if self.target == "pgbouncer" and key in TOO_NEW:
                continue
            lines.append("%s = %s" % (key, value))
        for section, rows in (("users", self.user_section),
                              ("peers", self.peers)):
            if rows:
                lines.append("[%s]" % section)
                lines += ["%s = %s" % kv for kv in rows.items()]
        with open(self.ini, "w") as out:
            out.write("\n".join(lines) + "\n" + self.extra)
        procs.give(self.ini)

    def file(self, name, text):
        """A file beside the ini; its path."""
        path = os.path.join(self.folder, name)
        with open(path, "w") as out:
            out.write(text)
        procs.give(path)
        return path

    # life

    def spawn(self):
        env = dict(os.environ)
        # A small quarantine, so that memory can be judged there too.
        env.setdefault("ASAN_OPTIONS",
                       "detect_leaks=1:quarantine_size_mb=4")
        env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        env.setdefault("TSAN_OPTIONS", "second_deadlock_stack=1")
        with open(self.log_path, "ab") as out:
            self.proc = subprocess.Popen(
                procs.as_service([self.binary, *self.args, self.ini]),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, start_new_session=True, env=env,
                preexec_fn=procs.die_with_parent)

    def start(self):
        self.spawn()
        procs.wait_for(self.is_up, 20,
                       lambda: "start of the pooler:\n" + self.log())
        try:
            # SHOW asks every worker: all of them are up then.
            self.show("LISTS")
            self.baseline_fds = procs.count_fds(self.proc.pid)
        except (OSError, pgwire.WireClosed, pgwire.ServerError,
                AssertionError):
            # Clients cannot log in as usual here: nothing to compare.
            self.baseline_fds = None

    def is_up(self):
        """Whether its sockets accept, and its process lives."""
        if self.proc.poll() is not None:
            raise RuntimeError("the pooler ended with %d:\n%s" % (
                self.proc.returncode, self.log()))
        try:
            if self.options.get("unix_socket_dir"):
                Unix.connect(self.transport, self).close()
            if self.options.get("listen_addr"):
                Tcp.connect(self.transport, self).close()
            return True
        except OSError:
            return False

    @property
    def pid(self):
        return self.proc.pid

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def signal(self, number):
        self.proc.send_signal(number)

    def stop(self, number=None, timeout=15):
        """Ends the program; its exit status."""
        if self.proc is None:
            return None
        if number is None:
            number = signal.SIGTERM if self.target == "pgbouncer" \
                else signal.SIGQUIT
        if self.proc.poll() is None:
            self.proc.send_signal(number)
        return self.wait_exit(timeout)

    def wait_exit(self, timeout=15):
        try:
            return self.proc.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the pooler did not end:\n" + self.log())

    def kill(self):
        for each in self.own_edges.values():
            if each.proc.poll() is None:
                each.proc.kill()
                each.proc.wait()
        self.kill_self()
        if self.far:
            self.far.kill()

    def kill_self(self):
        if self.proc is None:
            return
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.proc.wait()

    def check(self, *args):
        """Runs the program with --check; (status, its output)."""
        got = subprocess.run(
            procs.as_service([self.binary, "--check", *args, self.ini]),
            cwd=self.folder, stdin=subprocess.DEVNULL, timeout=30,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return got.returncode, got.stdout.decode("utf-8", "replace")

    def reload(self):
        with self.admin() as wire:
            wire.ok("RELOAD")

    def log(self):
        try:
            with open(self.log_path, errors="replace") as src:
                return src.read()
        except FileNotFoundError:
            return ""

    def wait_log(self, pattern, timeout=10):
        return procs.wait_for(lambda: re.search(pattern, self.log()),
                              timeout, "log line %r" % pattern)

    # console

    def admin(self, user=ADMIN[0], database="pgbouncer"):
        return self.wire(user, database)

    def console(self, sql):
        with self.admin() as wire:
            return wire.ok(sql)

    def show(self, what):
        """SHOW what, as a list of dicts."""
        return self.console("SHOW " + what).dicts()

    def pool(self, database="db1", user="u_trust"):
        """The row of SHOW POOLS, numbers as int."""
        for row in self.show("POOLS"):
            if (row["database"], row["user"]) == (database, user):
                return {k: int(v) if v and v.isdigit() else v
                        for k, v in row.items()}
        return None

    def wait_pool(self, timeout=10, database="db1", user="u_trust",
                  **want):
        """Until the pool's row has these values."""
        last = {}

        def check():
            row = self.pool(database, user) or {}
            last.update(row)
            return all(row.get(k) == v for k, v in want.items())
        procs.wait_for(check, timeout,
                       lambda: "pool %r, now %r;" % (want, last))

    def servers(self, database="db1"):
        return [r for r in self.show("SERVERS")
                if r["database"] == database]

    # judgement at the end of a scenario

    def verify(self):
        """No crash, no leak, no sanitizer report; a clean end."""
        if self.proc is None:
            return
        try:
            self.verify_self()
        finally:
            for each in self.own_edges.values():
                each.stop()
            if self.far:
                self.far.verify()

    def verify_self(self):
        try:
            if self.proc.poll() is None:
                if self.baseline_fds is not None:
                    self._verify_fds()
                code = self.stop()
                # PgBouncer 1.18 ends with 1 on SIGTERM.
                good = (0, 1) if self.target == "pgbouncer" else (0,)
                assert code in good, "exit status %d:\n%s" % (
                    code, self.log()[-4000:])
            elif self.proc.returncode < 0 or self.proc.returncode == 66:
                raise AssertionError("the pooler died with %d:\n%s" % (
                    self.proc.returncode, self.log()[-4000:]))
        finally:
            self.kill_self()
            self.verify_log()

    def verify_log(self):
        bad = BAD_LOG.search(self.log())
        if bad:
            at = max(0, bad.start() - 200)
            raise AssertionError("in the log:\n" +
                                 self.log()[at:bad.start() + 6000])

    def _verify_fds(self):
        last = [0, 0]

        def settled():
            try:
                servers = len(self.show("SERVERS"))
                if self.target == "pgbraid":
                    # Those to servers stay when no session is on them.
                    servers += len([r for r in self.show("QUIC")
                                    if r["role"] == "client"])
            except (OSError, pgwire.WireClosed, pgwire.ServerError,
                    AssertionError):
                return True
            last[:] = procs.count_fds(self.proc.pid), servers
            return last[0] <= self.baseline_fds + servers + 2
        procs.wait_for(settled, 5, lambda: (
            "descriptor leak: %d open, %d of them servers, %d at start;" %
            (*last, self.baseline_fds)))

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Direct(Address):
    """PostgreSQL itself in the pooler's place."""

    is_direct = True
    target = "direct"

    def __init__(self, cluster, certs, transport):
        if transport.name in ("quic", "edge", "pooled"):
            transport = TRANSPORTS["tcp"]  # which PostgreSQL does not speak
        super().__init__("127.0.0.1", cluster.port, cluster.sockdir,
                         transport, certs, cluster.users)
        self.cluster = cluster

    def verify(self):
        pass

    def kill(self):
        pass

    def remove(self):
        pass
