# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Other QUIC implementations, as bridges from a Unix socket to streams of one
connection: quic-go (Debian 12) and aioquic (from Debian 13 on)."""
import fcntl
import glob
import hashlib
import os
import subprocess
import sys
import tempfile

import procs

HERE = os.path.dirname(os.path.abspath(__file__))
GO_SOURCE = os.path.join(HERE, "quic_bridge.go")
GO_PACKAGE = "/usr/share/gocode/src/github.com/lucas-clemente/quic-go"
NAMES = ["quic-go", "aioquic"]


def find_go():
    """A compiler that the archive's quic-go knows; it refuses newer ones."""
    found = glob.glob("/usr/lib/go-1.1[89]/bin/go")
    return found[-1] if found and os.path.isdir(GO_PACKAGE) else None


def why_not(name):
    if name == "quic-go":
        return None if find_go() else \
            "golang-go or golang-github-lucas-clemente-quic-go-dev is missing"
    got = subprocess.run([sys.executable, "-c", "import aioquic"],
                         stderr=subprocess.DEVNULL)
    return None if got.returncode == 0 else "python3-aioquic is missing"


def build_go(binary):
    """Compiles beside the build, once for each version of the source."""
    folder = os.path.dirname(os.path.abspath(binary))
    if not os.access(folder, os.W_OK):
        folder = tempfile.gettempdir()
    with open(GO_SOURCE, "rb") as src:
        mark = hashlib.sha256(src.read()).hexdigest()[:12]
    out = os.path.join(folder, "quic_bridge-" + mark)
    with open(out + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(out):
            env = dict(os.environ, GO111MODULE="off", GOFLAGS="",
                       GOPATH="/usr/share/gocode",
                       GOCACHE=os.path.join(folder, "quic_bridge.cache"))
            subprocess.run([find_go(), "build", "-o", out, GO_SOURCE],
                           env=env, check=True, cwd=HERE)
    return out


class Bridge:
    """ready, or failed with what it said."""

    def __init__(self, name, binary, address, ca, folder, alpn="pgsql/3",
                 key_updates=False):
        argv = [build_go(binary)] if name == "quic-go" else \
            [sys.executable, os.path.join(HERE, "quic_bridge_aio.py")]
        self.folder = folder
        self.path = os.path.join(folder, ".s.PGSQL.6432")
        env = dict(os.environ)
        if key_updates:
            env["KEY_UPDATES"] = "1"
        self.proc = subprocess.Popen(
            [*argv, address, ca, alpn, self.path], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            preexec_fn=procs.die_with_parent)
        self.said = self.proc.stdout.readline().strip()

    def close(self):
        self.proc.terminate()
        self.proc.wait(10)
        self.proc.stdout.close()
