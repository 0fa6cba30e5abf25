# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Two network namespaces with an emulated WAN (bench/wanem) between them. They
have no names: they vanish with the processes that hold them."""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess

import pooler as pooler_module
import procs

CLONE_NEWNET = 0x40000000
HERE = os.path.dirname(os.path.abspath(__file__))


def why_not():
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for name in ("unshare", "nsenter", "ip", "setpriv"):
        if shutil.which(name) is None:
            return "%s is missing" % name
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is missing"
    if find_wanem() is None:
        return "bench/wanem is not built"
    return None


def find_wanem():
    build = os.path.dirname(os.environ.get("PGBRAID_BIN", ""))
    for path in (os.environ.get("WANEM_BIN", ""),
                 os.path.join(build, "bench", "wanem"),
                 os.path.join(build, "..", "..", "bench", "wanem"),
                 os.path.join(HERE, "..", "..", "build", "bench", "wanem")):
        if path and os.access(path, os.X_OK):
            return path
    return None


class Namespace:
    def __init__(self):
        self.proc = subprocess.Popen(
            ["unshare", "-n", "sleep", "3600"], stdin=subprocess.DEVNULL,
            preexec_fn=procs.die_with_parent)
        self.path = "/proc/%d/ns/net" % self.proc.pid
        ours = os.readlink("/proc/self/ns/net")
        procs.wait_for(lambda: os.readlink(self.path) != ours, 10,
                       "a network namespace")
        self.sysctl("net/ipv4/tcp_no_metrics_save", 1)

    def run(self, *argv, check=True):
        return subprocess.run(
            ["nsenter", "--net=" + self.path, *argv], check=check,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def sysctl(self, name, value):
        self.run("sh", "-c", "echo %s > /proc/sys/%s" % (value, name))

    def has_sysctl(self, name):
        return self.run("test", "-e", "/proc/sys/" + name,
                        check=False).returncode == 0

    def enter(self):
        """In a child before exec."""
        fd = os.open(self.path, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)

    def connect(self, host, port, proto=0, timeout=10):
        """A TCP connection made inside, for use outside."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            self.enter()
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, proto)
        finally:
            ctypes.CDLL(None).setns(home, CLONE_NEWNET)
            os.close(home)
        sock.settimeout(timeout)
        sock.connect((host, port))
        return sock

    def close(self):
        self.proc.kill()
        self.proc.wait()


class Wan:
    """near and far, each with these addresses of 10.1.0.0/24 on wan0."""

    def __init__(self, folder, near=(1,), far=(2,), **settings):
        self.control = os.path.join(folder, "wan.sock")
        self.proc = None
        self.spaces = []
        try:
            self.near, self.far = self._make(), self._make()
            self._start(near, far, settings)
        except BaseException:
            self.close()
            raise

    def _make(self):
        self.spaces.append(Namespace())
        return self.spaces[-1]

    @staticmethod
    def _side(space, hosts):
        return ",".join(["pid:%d" % space.proc.pid, "wan0"] +
                        ["10.1.0.%d/24" % h for h in hosts])

    def _start(self, near, far, settings):
        argv = [find_wanem(), "-A", self._side(self.near, near), "-B",
                self._side(self.far, far), "--control", self.control,
                "--duration", "600", "--die-with-parent"]
        for name, value in settings.items():
            argv += ["--" + name.replace("_", "-"), str(value)]
        self.proc = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        if self.proc.stdout.readline() != "ready\n":
            raise RuntimeError(self.proc.stderr.read())

    def tell(self, line):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(self.control)
            sock.sendall(line.encode() + b"\n")
            got = b""
            while not got.endswith(b"\n"):
                got += sock.recv(65536)
        assert got != b"error\n", line
        return got.decode()

    def stats(self):
        return json.loads(self.tell("stats"))

    def close(self):
        if self.proc:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.communicate()
        for space in self.spaces:
            space.close()


def put_inside(pooler, space, with_net_admin=False):
    """Makes a pooler that was not started yet run in a namespace. It is then
    reached by its Unix socket, and listens on the port of its options."""
    unix = pooler_module.TRANSPORTS["unix"]
    pooler.port = pooler.options["listen_port"]

    def prepare():
        procs.die_with_parent()
        space.enter()

    def spawn():
        argv = procs.as_service([pooler.binary, pooler.ini])
        if with_net_admin:
            argv[1:1] = ["--inh-caps", "+net_admin", "--ambient-caps",
                         "+net_admin"]
        with open(pooler.log_path, "ab") as log:
            pooler.proc = subprocess.Popen(
                argv, cwd=pooler.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
                preexec_fn=prepare)

    def is_up():
        if pooler.proc.poll() is not None:
            raise RuntimeError("the pooler ended with %d:\n%s" % (
                pooler.proc.returncode, pooler.log()))
        try:
            unix.connect(pooler).close()
            return True
        except OSError:
            return False

    pooler.spawn, pooler.is_up = spawn, is_up
