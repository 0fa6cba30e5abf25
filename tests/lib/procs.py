# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Processes, ports and patience for tests."""
import os
import pwd
import random
import shutil
import socket
import time


def service_user():
    """The account that servers run as: None unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no unprivileged account to run PostgreSQL as")


def as_service(argv):
    """The command line that runs argv as the service account."""
    user = service_user()
    if user is None:
        return list(argv)
    return ["setpriv", "--pdeathsig", "INT", "--reuid", str(user.pw_uid), "--regid",
            str(user.pw_gid), "--clear-groups", *argv]


def die_with_parent():
    """In a child before exec: SIGINT when the parent is gone."""
    import ctypes
    ctypes.CDLL(None).prctl(1, 2, 0, 0, 0)


def give(path):
    """Hands a file or folder to the service account."""
    user = service_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def free_port():
    """A TCP port that is free. It lies below those that the kernel hands
    to outgoing connections, or one of these could take it in between; the
    start is random, for test sessions that run side by side."""
    while True:
        port = random.randrange(10000, 32000)
        if port in _given:
            continue
        try:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        _given.add(port)
        return port


_given = set()


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
        return True
    except OSError:
        return False


def wait_for(check, timeout=10.0, what="the condition"):
    """Asks again and again until check() is true; its value."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError("%s did not come true within %.1f s" % (
                what if isinstance(what, str) else what(), timeout))
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def children(pid):
    """pid and all its descendants that live."""
    out = [pid]
    for each in out:
        try:
            for task in os.listdir("/proc/%d/task" % each):
                path = "/proc/%d/task/%s/children" % (each, task)
                with open(path) as src:
                    out += [int(p) for p in src.read().split()
                            if int(p) not in out]
        except OSError:
            continue
    return out


def count_fds(pid):
    """Open descriptors of a process and its descendants."""
    total = 0
    for each in children(pid):
        try:
            total += len(os.listdir("/proc/%d/fd" % each))
        except OSError:
            continue
    return total


def rss_kib(pid):
    total = 0
    for each in children(pid):
        try:
            with open("/proc/%d/status" % each) as src:
                for line in src:
                    if line.startswith("VmRSS:"):
                        total += int(line.split()[1])
        except OSError:
            continue
    return total


def find_pg_bin():
    """The folder with initdb and postgres, newest version first."""
    found = os.environ.get("PG_BIN")
    if found:
        return found
    base = "/usr/lib/postgresql"
    if os.path.isdir(base):
        versions = sorted((v for v in os.listdir(base) if os.path.exists(
            os.path.join(base, v, "bin", "postgres"))), key=float)
        if versions:
            return os.path.join(base, versions[-1], "bin")
    path = shutil.which("postgres")
    return os.path.dirname(path) if path else None
