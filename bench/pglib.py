# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What the runners of this folder share: a throwaway PostgreSQL, child
processes that do not outlive the runner, and their CPU, memory, descriptors.

Everything a runner starts lives in one Workshop: a temporary folder and the
processes that were started in it, all gone when the Workshop closes.
"""
import ctypes
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TICK = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def find_program(name, *more):
    for path in [p for p in more if p] + [shutil.which(name) or ""]:
        if path and os.access(path, os.X_OK):
            return path
    for folder in ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin"):
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


def find_pg_bindir():
    """The newest PostgreSQL server of the machine."""
    def version(path):
        part = path.split("/")[-2]
        return int(part) if part.isdigit() else 0

    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=version)
    for folder in reversed(found):
        if os.access(folder + "/initdb", os.X_OK):
            return folder
    out = subprocess.run(["pg_config", "--bindir"], capture_output=True,
                         text=True, check=False)
    if out.returncode == 0 and os.path.exists(out.stdout.strip() + "/initdb"):
        return out.stdout.strip()
    sys.exit("no PostgreSQL server programs found (initdb)")


def interrupt_on_signals():
    """TERM and HUP end a runner the way Ctrl-C does: through its cleanup."""
    def stop(signum, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


class Workshop:
    """A temporary folder, and the children that work in it."""

    def __init__(self, name):
        self.account = None
        if os.geteuid() == 0:
            self.account = pwd.getpwnam("postgres")
        self.dir = tempfile.mkdtemp(prefix=f"pgbraid-{name}-")
        self.children = []
        if self.account:
            os.chown(self.dir, self.account.pw_uid, self.account.pw_gid)
        os.chmod(self.dir, 0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        self.own(path)
        return path

    def own(self, path):
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def make_dir(self, name):
        os.mkdir(self.path(name))
        self.own(self.path(name))
        return self.path(name)

    def bring(self, program, name):
        """A copy of a program that the unprivileged account can reach, and
        that a build going on meanwhile does not change."""
        copy = self.path(name)
        shutil.copy(program, copy)
        os.chmod(copy, 0o755)
        return copy

    def make_certificate(self, name="tls", kind=("rsa:2048",), more=()):
        """(key, certificate) of localhost, signed by itself; more: options
        of openssl req."""
        key, cert = self.path(name + ".key"), self.path(name + ".crt")
        self.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes",
                  "-days", "2", "-subj", "/CN=localhost", "-keyout", key,
                  "-out", cert, *more])
        os.chmod(key, 0o600)
        return key, cert

    def as_account(self):
        if not self.account:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid,
                "extra_groups": []}

    def run(self, argv, **kw):
        return subprocess.run(argv, check=True, capture_output=True,
                              text=True, cwd=self.dir, **self.as_account(),
                              **kw)

    def start(self, argv, log, end_signal=signal.SIGTERM, space=None, **kw):
        """Starts a child; the kernel ends it should the runner be killed.
        space: a network namespace that it runs in."""
        def child():
            LIBC.prctl(PR_SET_PDEATHSIG, int(end_signal), 0, 0, 0)
        if space:
            argv = self.inside(space, argv)
        else:
            kw.update(self.as_account())
        with open(self.path(log), "ab") as out:
            kw.setdefault("stdout", out)
            p = subprocess.Popen(argv, stderr=out, cwd=self.dir,
                                 stdin=kw.pop("stdin", subprocess.DEVNULL),
                                 preexec_fn=child, start_new_session=True,
                                 **kw)
        p.end_signal = end_signal
        self.children.append(p)
        return p

    def inside(self, space, argv):
        """The command that runs argv in a network namespace, as the account.
        """
        out = ["nsenter", "--net=" + space.path]
        if self.account:
            out += ["setpriv", "--pdeathsig", "TERM", "--reuid",
                    str(self.account.pw_uid), "--regid",
                    str(self.account.pw_gid), "--clear-groups"]
        return out + list(argv)

    def stop(self, p, patience_s=10):
        if p in self.children:
            self.children.remove(p)
        tree = process_tree(p.pid)
        if p.poll() is None:
            p.send_signal(p.end_signal)
            try:
                p.wait(patience_s)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
        for pid in tree:
            if pid != p.pid:
                end_orphan(pid, os.path.basename(self.dir))

    def close(self):
        """Nothing interrupts this; another Workshop may follow."""
        before = {sig: signal.signal(sig, signal.SIG_IGN) for sig in
                  (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        for p in reversed(list(self.children)):
            self.stop(p, 2)
        shutil.rmtree(self.dir, ignore_errors=True)
        for sig, handler in before.items():
            signal.signal(sig, handler)


def end_orphan(pid, mark):
    """Ends what a killed child left running; mark: its folder, to be sure
    that the number has not passed to somebody else's process."""
    try:
        if mark in os.readlink(f"/proc/{pid}/cwd"):
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


class Cluster:
    """A PostgreSQL of our own: trust, no fsync, TCP and a Unix socket."""

    def __init__(self, shop, max_connections=300, settings=None, space=None):
        self.shop = shop
        self.space = space  # the network namespace of its TCP port
        self.bindir = find_pg_bindir()
        self.port = free_port()
        self.socket_dir = shop.make_dir("s")
        self.data = shop.path("data")
        self.proc = None
        shop.run([self.bindir + "/initdb", "-D", self.data, "-A", "trust",
                  "-U", "postgres", "-N", "-E", "UTF8", "--locale=C"])
        lines = {
            "port": self.port, "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self.socket_dir}'",
            "shared_buffers": "'256MB'", "fsync": "off",
            "synchronous_commit": "off", "full_page_writes": "off",
            "max_connections": max_connections, "max_wal_size": "'2GB'",
            "autovacuum": "off", "log_min_messages": "fatal",
        }
        lines.update(settings or {})
        with open(self.data + "/postgresql.conf", "a", encoding="ascii") as f:
            f.writelines(f"{k} = {v}\n" for k, v in lines.items())
        self.start()

    @property
    def socket_path(self):
        return f"{self.socket_dir}/.s.PGSQL.{self.port}"

    def start(self, patience_s=60):
        self.proc = self.shop.start(
            [self.bindir + "/postgres", "-D", self.data], "postgres.log",
            end_signal=signal.SIGINT, space=self.space)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            done = subprocess.run(
                [self.bindir + "/pg_isready", "-q", "-h", self.socket_dir,
                 "-p", str(self.port)], check=False)
            if done.returncode == 0:
                return
            if self.proc.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError("PostgreSQL did not start: "
                           + tail(self.shop.path("postgres.log")))

    def stop(self, how=signal.SIGINT):
        """how: SIGINT is a fast shutdown, SIGQUIT an immediate one."""
        self.proc.send_signal(how)
        try:
            self.proc.wait(60)
        except subprocess.TimeoutExpired:
            self.shop.stop(self.proc, 0)
        if self.proc in self.shop.children:
            self.shop.children.remove(self.proc)

    def psql(self, sql, dbname="postgres"):
        return self.shop.run(
            [self.bindir + "/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h",
             self.socket_dir, "-p", str(self.port), "-U", "postgres", "-c",
             sql, dbname]).stdout


def tail(path, lines=8):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:]).strip()
    except OSError:
        return ""


def wait_port(port, proc, log, patience_s=10):
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with socket.socket() as s:
            s.settimeout(1)
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        if proc.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError("did not start: " + (tail(log) or "(no message)"))


# Processes

def process_tree(pid):
    """pid and all that descends from it."""
    children = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                text = f.read()
        except OSError:
            continue
        parent = int(text.rsplit(")", 1)[1].split()[1])
        children.setdefault(parent, []).append(int(path.split("/")[2]))
    tree, todo = [], [pid]
    while todo:
        one = todo.pop()
        if os.path.exists(f"/proc/{one}"):
            tree.append(one)
        todo += children.get(one, [])
    return tree


class Usage:
    """CPU seconds and context switches of processes, summed over threads.

    The total comes from the scheduler's nanoseconds; the kernel counts user
    and system time in ticks only, so these give the proportion."""

    def __init__(self, pids):
        self.total = self.user = self.system = 0.0
        self.switches = 0
        for pid in pids:
            self.add(pid)

    def add(self, pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            self.user += int(fields[11]) / TICK
            self.system += int(fields[12]) / TICK
            for task in glob.glob(f"/proc/{pid}/task/*"):
                with open(task + "/schedstat", encoding="utf-8") as f:
                    self.total += int(f.read().split()[0]) / 1e9
                with open(task + "/status", encoding="utf-8") as f:
                    self.switches += sum(int(line.split()[1]) for line in f
                                         if "ctxt_switches" in line)
        except (OSError, IndexError):
            pass

    def since(self, before):
        """(user, system, switches), seconds scaled to the exact total."""
        user = self.user - before.user
        system = self.system - before.system
        total = self.total - before.total
        share = user / (user + system) if user + system > 0 else 0.0
        return (total * share, total * (1 - share),
                self.switches - before.switches)


def private_bytes(pids):
    """User memory that these processes alone hold (anonymous pages)."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
                for line in f:
                    if line.startswith("Anonymous:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            pass
    return total


def rss_bytes(pids):
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", encoding="utf-8") as f:
                total += int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except OSError:
            pass
    return total


def fd_count(pids):
    total = 0
    for pid in pids:
        try:
            total += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            pass
    return total
