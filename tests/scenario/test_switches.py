# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The command line as a unit file uses it: switches, long and short, and exit
statuses."""
import os
import signal
import subprocess

import pytest

import procs

pytestmark = pytest.mark.pooled


def call(pooler, *argv, as_root=False):
    command = [pooler.binary, *argv]
    if not as_root:
        command = procs.as_service(command)
    return subprocess.run(command, cwd=pooler.folder, timeout=30,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


@pytest.fixture
def prepared(make_pooler):
    """A file with all that a daemon needs; not started."""
    p = make_pooler(start=False)
    p.write_ini(pidfile=os.path.join(p.folder, "pid"),
                logfile=os.path.join(p.folder, "log"))
    return p


def read_pid(p):
    try:
        with open(os.path.join(p.folder, "pid")) as f:
            return f.read().strip()
    except FileNotFoundError:
        return ""


def pid_of(p):
    """PgBouncer writes it a moment after the call has returned."""
    procs.wait_for(lambda: read_pid(p), 10, "the pid file")
    return int(read_pid(p))


def is_gone(pid):
    """A zombie is; nobody may wait for it where there is no init."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def end(p):
    pid = pid_of(p)
    os.kill(pid, signal.SIGINT)
    procs.wait_for(lambda: is_gone(pid), 15, "the daemon's end")
    assert not os.path.exists(os.path.join(p.folder, "pid"))


@pytest.mark.parametrize("switch", ["-d", "--daemon"])
def test_daemon(prepared, switch):
    """Where the call returns, connections are accepted."""
    got = call(prepared, switch, prepared.ini)
    assert got.returncode == 0, got.stderr
    try:
        pid = pid_of(prepared)
        with prepared.wire() as w:
            assert w.value("SELECT 1") == "1"
        assert os.getpgid(pid) != os.getpgid(0)
    finally:
        end(prepared)


def test_daemon_needs_a_pid_file(prepared):
    prepared.write_ini(pidfile=None)
    got = call(prepared, "-d", prepared.ini)
    assert got.returncode == 1 and "pidfile" in got.stderr


def test_second_one_is_refused(prepared):
    assert call(prepared, "-d", prepared.ini).returncode == 0
    try:
        pid = pid_of(prepared)
        assert call(prepared, "-d", prepared.ini).returncode == 1
        assert pid_of(prepared) == pid
    finally:
        end(prepared)


@pytest.mark.parametrize("switch", ["-u", "--user="])
def test_user(prepared, switch):
    user = procs.service_user()
    if user is None:
        pytest.skip("needs root to change the account")
    argv = [switch + user.pw_name] if switch.endswith("=") \
        else [switch, user.pw_name]
    got = call(prepared, "-d", *argv, prepared.ini, as_root=True)
    assert got.returncode == 0, got.stderr
    try:
        with open("/proc/%d/status" % pid_of(prepared)) as f:
            ids = [line.split()[1:] for line in f
                   if line.startswith(("Uid:", "Gid:"))]
        assert ids == [[str(user.pw_uid)] * 4, [str(user.pw_gid)] * 4]
    finally:
        end(prepared)


@pytest.mark.differs("1.18 ends a SIGTERM with status 1")
@pytest.mark.parametrize("switch", ["-q", "--quiet"])
def test_quiet(prepared, switch):
    p = prepared
    p.args = [switch]
    p.start()
    p.wire().close()
    assert p.stop() == 0
    with open(p.log_path) as f:
        assert f.read() == ""
    with open(os.path.join(p.folder, "log")) as f:
        assert "login attempt" in f.read()


@pytest.mark.parametrize("argv,status,words", [
    (["-V"], 0, ""), (["--version"], 0, ""),
    (["-h"], 0, "--daemon"), (["--help"], 0, "--daemon"),
    ([], 1, ""), (["--no-such-switch", "x.ini"], 1, ""),
    (["/nonexistent.ini"], 1, "/nonexistent.ini"),
])
def test_exit_status(prepared, argv, status, words):
    got = call(prepared, *argv)
    assert got.returncode == status
    assert words in got.stdout + got.stderr
    assert bool(got.stdout) == (status == 0) or words.startswith("/")


@pytest.mark.differs("1.18 ends otherwise by TERM and QUIT")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM,
                                    signal.SIGQUIT])
def test_exit_status_of_signals(prepared, number):
    prepared.start()
    assert prepared.stop(number) == 0
