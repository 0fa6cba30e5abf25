# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/run: it cleans up when it is stopped, and its arithmetic."""
import glob
import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest

import wan as wan_module

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BENCH = os.path.join(ROOT, "bench")


def module(name, folder):
    sys.path.insert(0, folder)
    known = sys.modules.pop("pgwire", None)
    try:
        spec = importlib.util.spec_from_file_location(
            name, os.path.join(folder, name + ".py"))
        out = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(out)
        return out
    finally:
        sys.path.remove(folder)
        if known:
            sys.modules["pgwire"] = known


@pytest.fixture(scope="module")
def runlib():
    return module("runlib", BENCH)


def test_ratios_are_of_rounds(runlib, tmp_path):
    report = runlib.Report(str(tmp_path))
    s = report.samples("x")
    for turn, (a, b) in enumerate([(10, 5), (30, 10), (20, 5)], 1):
        s.add(arm="a", round=turn, us=a, idle=0.5)
        s.add(arm="b", round=turn, us=b, idle=0.05)
    assert s.ratio("us", {"arm": "a"}, {"arm": "b"}) == (3, 2, 4)
    assert s.ratio("us", {"arm": "a"}, {"arm": "c"}) is None
    assert s.median("us", arm="a") == 20
    assert s.was_limited(arm="b") and not s.was_limited(arm="a")
    assert (tmp_path / "csv" / "x.csv").read_text().startswith(
        "arm,round,us,idle\n")


def test_a_failed_step_is_noted_and_the_rest_goes_on(runlib):
    done = []

    def fail():
        raise RuntimeError("no such thing")
    notes = runlib.Progress([
        runlib.Step("one", 1, fail),
        runlib.Step("two", 1, lambda: done.append(2))]).run()
    assert notes == ["one: no such thing"] and done == [2]


def test_pages_take_their_tables_from_a_run(runlib, tmp_path):
    gen = module("gen_benchmarks", os.path.join(ROOT, "tools"))
    report = runlib.Report(str(tmp_path))
    report.table("t", ["a", "b"], [["x", 1]])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: t -->\nold\n<!-- end -->\nbetween\n"
                    "<!-- table: other -->\nkept\n<!-- end -->\n")
    for _ in range(2):  # a second time changes nothing
        text, known = gen.fill(str(page), str(tmp_path))
        assert known == ["t"]
        assert "| x | 1 |" in text and "old" not in text
        assert text.startswith("before\n") and "\nkept\n" in text


def mine(mark):
    """Processes that a run has left: all work in a folder of its own."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cwd"):
        try:
            if mark in os.readlink(path):
                found.append(path)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.alone
def test_stopped_in_the_middle_it_leaves_nothing(tmp_path):
    if wan_module.why_not():
        pytest.skip(wan_module.why_not())
    before = set(glob.glob("/tmp/pgbraid-quic-*"))
    p = subprocess.Popen(
        [os.path.join(BENCH, "run"), "quic", "--quick", "--seconds", "1",
         "--out", str(tmp_path / "out")], text=True,
        env=dict(os.environ, TMPDIR="/tmp"),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for line in p.stderr:
        if "10 TCP connections" in line:
            break
    time.sleep(0.5)
    made = set(glob.glob("/tmp/pgbraid-quic-*")) - before
    assert len(made) == 1 and mine(made.copy().pop())
    p.send_signal(signal.SIGTERM)
    p.stderr.read()
    assert p.wait(30) != 0
    assert set(glob.glob("/tmp/pgbraid-quic-*")) <= before
    assert not mine(made.pop())
