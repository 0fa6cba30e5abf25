# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/load: what it offers is what it counts, over every transport."""
import csv
import json
import os
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
# Through an edge or a pair of poolers it would be one of these again.
pytestmark = [pytest.mark.pooled,
              pytest.mark.transports("tcp", "tls", "unix", "quic")]


def find_load():
    build = os.path.dirname(os.environ.get("PGBRAID_BIN", ""))
    for path in (os.path.join(build, "bench", "load"),
                 os.path.join(build, "..", "..", "bench", "load"),
                 os.path.join(HERE, "..", "..", "build", "bench", "load")):
        if os.access(path, os.X_OK):
            return path
    pytest.skip("bench/load is not built")


@pytest.fixture
def load(pooler, tmp_path):
    def run(*args, user="u_scram", where=True):
        to = {"unix": ["--to", pooler.sockdir, "--port", str(pooler.port)]}
        url = "%s://127.0.0.1:%d" % (pooler.transport.name, pooler.port)
        argv = [find_load(), "--json", "--dbname", "db1", "--user", user,
                "--csv", str(tmp_path / "load.csv")]
        if where:
            argv += to.get(pooler.transport.name, ["--to", url, "--ca",
                                                   pooler.certs.ca])
        got = subprocess.run(
            argv + list(args), capture_output=True, text=True, timeout=60,
            stdin=subprocess.DEVNULL, check=False,
            env=dict(os.environ, PGPASSWORD=pooler.password_of(user) or ""))
        run.stderr = got.stderr
        if got.returncode:
            return got.returncode, None
        out = json.loads(got.stdout)
        with open(tmp_path / "load.csv", encoding="ascii") as f:
            rows = [{k: float(v) for k, v in row.items()}
                    for row in csv.DictReader(f)]
        for name in ("offered", "errors"):
            assert out[name] == sum(row[name] for row in rows)
        return out, rows
    return run


@pytest.mark.core
@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_open_loop(load, mode):
    out, rows = load("--rate", "400", "--duration", "1", "--sessions", "8",
                     "--mode", mode, "--sql", "SELECT {1-9}::int + 1")
    assert out["errors"] == 0 and out["unanswered"] == 0
    assert 280 < out["offered"] < 520
    assert sum(row["completed"] for row in rows) == out["offered"]
    assert 0 < out["p50_ms"] <= out["p99_ms"] <= out["max_ms"]


def test_a_queue_counts_from_the_arrival(load):
    """One session, a query of 10 ms, 20 of them at once."""
    out, rows = load("--burst", "20", "--sessions", "1", "--duration", "3",
                     "--sql", "SELECT pg_sleep(0.01)")
    assert out["completed"] == 20 and out["max_queue"] == 19
    assert out["max_ms"] > 190
    assert rows[-1]["queue"] == 0


def test_closed_loop_of_transactions(load):
    out, _ = load("--duration", "1", "--sessions", "4", "--sql", "BEGIN",
                  "--sql", "SELECT 1", "--sql", "COMMIT")
    assert out["errors"] == 0
    assert out["completed"] > 20


def test_a_session_for_each_query(load):
    out, _ = load("--duration", "1", "--sessions", "4", "--new-session",
                  "--rate", "40")
    assert out["errors"] == 0 and out["unanswered"] == 0
    assert out["completed"] > 10


def test_bulk_beside_it(load):
    out, _ = load("--duration", "1", "--sessions", "2", "--rate", "50",
                  "--bulk", "1", "--bulk-sql",
                  "COPY (SELECT repeat('x', 1000) FROM "
                  "generate_series(1, 1000)) TO STDOUT")
    assert out["errors"] == 0
    assert out["bulk_queries"] > 0 and out["bulk_mb"] > 1


def test_errors_are_counted(load):
    out, _ = load("--burst", "10", "--sessions", "2", "--sql", "SELECT 1/0")
    assert out["errors"] == 10 and out["completed"] == 0
    assert "division by zero" in load.stderr


@pytest.mark.transports("tcp")
def test_mistakes(load, pooler):
    assert load("--rate", "many")[0] == 2
    assert load("--to", "smtp://x", where=False)[0] == 2
    assert load(where=False)[0] == 2
