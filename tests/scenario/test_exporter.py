# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Debian's prometheus-pgbouncer-exporter, as it is, on our console.

Its release asks SHOW STATS for total_requests, which PgBouncer has not had
since 1.8, and SHOW DATABASES for reserve_pool, which later ones call
reserve_pool_size. So a page as a whole fails with PgBouncer, too; each of its
collectors is run by itself, and must do with us what it does with PgBouncer.
"""
import json
import os
import shutil
import subprocess
import sys

import pytest

import procs

pytestmark = [pytest.mark.pooled, pytest.mark.transports("tcp")]

# Runs the package's own code: connects as its program does, and prints what
# each collector yields.
PROBE = """
import json, sys
from prometheus_pgbouncer_exporter import collectors, utils
connection = utils.get_connection(sys.argv[1], sys.argv[2], sys.argv[3])
out = {}
for name in ("Stats", "Pools", "Databases", "Lists"):
    kind = getattr(collectors, name + "Collector")
    args = {"connection": connection}
    if name != "Lists":
        args["databases"] = None
    try:
        out[name] = [[m.name, s.labels, s.value]
                     for m in kind(**args).collect() for s in m.samples]
    except Exception as exc:
        out[name] = "%s: %s" % (type(exc).__name__, exc)
print(json.dumps(out))
"""


@pytest.fixture
def python():
    """An interpreter that has the package."""
    got = subprocess.run(
        [sys.executable, "-c", "import prometheus_pgbouncer_exporter, "
         "prometheus_client, psycopg2"], stderr=subprocess.PIPE)
    if got.returncode:
        pytest.skip("prometheus_pgbouncer_exporter is missing (package "
                    "prometheus-pgbouncer-exporter): %s" %
                    got.stderr.decode().strip().split("\n")[-1])
    return sys.executable


def probe(python, pooler):
    env = dict(os.environ, PGPASSWORD=pooler.password_of("admin"),
               PGSSLMODE="disable")
    got = subprocess.run([python, "-c", PROBE, "admin", str(pooler.port),
                          "127.0.0.1"], env=env, timeout=60,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert got.returncode == 0, got.stderr.decode()
    return json.loads(got.stdout)


def use(pooler):
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
    pooler.wait_pool(cl_active=0)


def names(samples):
    """What is told of which database and user; of a failure, its text."""
    if isinstance(samples, str):
        return samples
    return sorted((name, sorted(labels.items()))
                  for name, labels, _ in samples)


def test_collectors(make_pooler, python, target):
    pooler = make_pooler()
    use(pooler)
    got = probe(python, pooler)
    told = {(name, labels.get("database"), labels.get("user")): value
            for name, labels, value in got["Pools"]}
    for row in pooler.show("POOLS"):
        if row["database"] == "pgbouncer":
            continue
        key = row["database"], row["user"]
        assert told["pgbouncer_active_clients", *key] == \
            int(row["cl_active"])
        assert told["pgbouncer_waiting_clients", *key] == \
            int(row["cl_waiting"])
    lists = {r["list"]: int(r["items"]) for r in pooler.show("LISTS")}
    told = {name: value for name, _, value in got["Lists"]}
    for key in ("databases", "users", "pools", "free_servers",
                "used_servers", "dns_zones"):
        assert told["pgbouncer_" + key] == lists[key], key


def test_same_as_with_pgbouncer(make_pooler, python, target):
    path = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    if target != "pgbraid" or not os.path.exists(path):
        pytest.skip("pgbouncer is missing (package pgbouncer)")
    ours = make_pooler()
    theirs = make_pooler(program=("pgbouncer", path))
    for pooler in (ours, theirs):
        use(pooler)
    got, want = probe(python, ours), probe(python, theirs)
    for collector in ("Stats", "Pools", "Lists"):
        assert names(got[collector]) == names(want[collector]), collector
    # PgBouncer 1.18 still has the name that 1.26 has changed.
    assert got["Databases"] == "KeyError: 'reserve_pool'" or \
        names(got["Databases"]) == names(want["Databases"])


def test_program_runs(make_pooler, python, target):
    """As a service: it connects, listens, and asks at each scrape."""
    program = shutil.which("prometheus-pgbouncer-exporter")
    argv = [program] if program else [
        python, "-c", "from prometheus_pgbouncer_exporter.cli import main; "
        "main()"]
    pooler = make_pooler()
    port = procs.free_port()
    env = dict(os.environ, PGPASSWORD=pooler.password_of("admin"),
               PGSSLMODE="disable")
    log = os.path.join(pooler.folder, "exporter.log")
    with open(log, "wb") as out:
        proc = subprocess.Popen(
            argv + ["--host", "127.0.0.1", "--port", str(port),
                    "--pgbouncer-user", "admin", "--pgbouncer-host",
                    "127.0.0.1", "--pgbouncer-port", str(pooler.port)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
            preexec_fn=procs.die_with_parent)
    try:
        import prometheus

        def answers():
            try:
                return prometheus.get(port, "/metrics")
            except (OSError, ConnectionError):
                # The handler drops the connection when a column is missing.
                with open(log) as src:
                    return "KeyError: 'total_requests'" in src.read()
        procs.wait_for(answers, 20, "an answer of the exporter")
        assert [r for r in pooler.show("CLIENTS")
                if r["database"] == "pgbouncer"]
    finally:
        proc.terminate()
        proc.wait()
