# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The programs and drivers that people use."""
import asyncio
import os
import re
import shutil
import ssl
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
core = pytest.mark.core
pytestmark = pytest.mark.pooled


# --- psql ---------------------------------------------------------------------

@core
def test_psql(pooler, tool, run):
    psql = tool("psql", "postgresql-client")
    got = run([psql, "-XAtq", "-c", "SELECT 40 + 2"],
              env=pooler.url_env())
    assert got.strip() == "42"


def test_psql_reads_a_script(pooler, tool, run, tmp_path):
    psql = tool("psql", "postgresql-client")
    script = tmp_path / "s.sql"
    script.write_text("BEGIN;\nCREATE TEMP TABLE t (a int) ON COMMIT DROP;\n"
                      "COPY t FROM STDIN;\n1\n2\n\\.\n"
                      "SELECT sum(a) FROM t;\nCOMMIT;\n\\d pg_class\n"
                      "SELECT 1 \\gdesc\n\\l\n")
    got = run([psql, "-XAtq", "-v", "ON_ERROR_STOP=1", "-f", str(script)],
              env=pooler.url_env())
    assert got.startswith("3\n") and "relname" in got


@core
def test_psql_on_the_console(pooler, tool, run):
    psql = tool("psql", "postgresql-client")
    got = run([psql, "-XAtq", "-c", "SHOW POOLS", "-c", "SHOW HELP"],
              env=pooler.url_env("admin", "pgbouncer"))
    assert "pgbouncer|pgbouncer" in got and "SHOW" in got


def test_psql_service_of_url(pooler, tool, run):
    psql = tool("psql", "postgresql-client")
    if pooler.transport.name != "tcp":
        return
    got = run([psql, "-XAtq", "postgresql://u_trust@127.0.0.1:%d/db1"
               "?application_name=x&sslmode=disable" % pooler.port,
               "-c", "SHOW application_name"])
    assert got.strip() == "x"


# --- pgbench --------------------------------------------------------------------

@core
@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench(pooler, tool, run, cluster, mode, request, target):
    if target == "pgbouncer" and mode == "prepared":
        pytest.xfail("1.18 has no prepared statements")
    pgbench = tool("pgbench", "postgresql-contrib")
    cluster_bench(cluster, pgbench, run)
    # pgbench prepares with a call that blocks its thread: clients of one
    # thread that wait for each other's servers would wait for ever.
    for what in (["-S", "-j", "2"], ["-s", "1", "-j", "20"]):
        got = run([pgbench, "-n", "-c", "20", "-t", "60", "-M", mode,
                   *what], env=pooler.url_env())
        assert "transactions actually processed: 1200/1200" in got
        failed = re.search(r"failed transactions: (\d+)", got)
        assert failed is None or failed.group(1) == "0"


def cluster_bench(cluster, pgbench, run):
    if cluster.sql("SELECT to_regclass('pgbench_accounts')", "db1")[0][0]:
        return
    run([pgbench, "-i", "-q", "-s", "1", "-h", cluster.sockdir, "-p",
         str(cluster.port), "-U", "postgres", "db1"])
    cluster.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO public", "db1")


@core
def test_pgbench_keeps_its_sums(pooler, tool, run, cluster):
    pgbench = tool("pgbench", "postgresql-contrib")
    cluster_bench(cluster, pgbench, run)
    run([pgbench, "-n", "-c", "10", "-j", "2", "-t", "40", "-s", "1"],
        env=pooler.url_env())
    sums = cluster.sql(
        "SELECT (SELECT sum(abalance) FROM pgbench_accounts) ="
        " (SELECT sum(tbalance) FROM pgbench_tellers) AND"
        " (SELECT sum(tbalance) FROM pgbench_tellers) ="
        " (SELECT sum(bbalance) FROM pgbench_branches)", "db1")
    assert sums == [["t"]]


def test_pgbench_reconnects(pooler, tool, run, cluster):
    pgbench = tool("pgbench", "postgresql-contrib")
    cluster_bench(cluster, pgbench, run)
    got = run([pgbench, "-n", "-S", "-C", "-c", "8", "-j", "2", "-t", "25"],
              env=pooler.url_env())
    assert "number of transactions actually processed: 200/200" in got


def test_pgbench_pipeline(pooler, tool, run, tmp_path, target):
    if target == "pgbouncer":
        pytest.xfail("1.18 has no prepared statements")
    pgbench = tool("pgbench", "postgresql-contrib")
    script = tmp_path / "p.sql"
    script.write_text("\\startpipeline\nSELECT 1;\nSELECT 2;\nBEGIN;\n"
                      "SELECT 3;\nCOMMIT;\n\\endpipeline\n")
    for mode in ("extended", "prepared"):
        got = run([pgbench, "-n", "-c", "10", "-j", "2", "-t", "50", "-M",
                   mode, "-f", str(script)], env=pooler.url_env())
        assert "actually processed: 500/500" in got


# --- pg_dump and pg_restore --------------------------------------------------------

@core
def test_dump_and_restore(make_pooler, transport, tool, run, cluster,
                          tmp_path):
    p = make_pooler({"pool_mode": "session",
                     "ignore_startup_parameters": "options"},
                    transport=transport)
    pg_dump = tool("pg_dump", "postgresql-client")
    pg_restore = tool("pg_restore", "postgresql-client")
    for name in ("dump_from", "dump_to"):
        cluster.sql("DROP DATABASE IF EXISTS %s" % name)
        cluster.sql("CREATE DATABASE %s OWNER u_owner" % name)
        cluster.sql("GRANT ALL ON SCHEMA public TO public", name)
        p.databases[name] = p.server() + " dbname=" + name
    p.write_ini()
    p.reload()
    with p.wire("u_owner", "dump_from") as w:
        w.ok("CREATE TABLE one (id int PRIMARY KEY, body text);"
             "INSERT INTO one SELECT g, repeat(md5(g::text), 10)"
             " FROM generate_series(1, 20000) g;"
             "CREATE TABLE two (id int REFERENCES one);"
             "INSERT INTO two SELECT id FROM one;"
             "CREATE INDEX ON one (body);"
             "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    dump = str(tmp_path / "d")
    run([pg_dump, "-Fc", "-f", dump],
        env=p.url_env("u_owner", "dump_from"))
    run([pg_restore, "-d", "dump_to", "--no-owner", dump],
        env=p.url_env("u_owner", "dump_to"))
    ask = ("SELECT count(*), md5(string_agg(body, ',' ORDER BY id))"
           " FROM one")
    assert cluster.sql(ask, "dump_from") == cluster.sql(ask, "dump_to")
    assert cluster.sql("SELECT count(*) FROM two", "dump_to") == [["20000"]]


# --- asyncpg -----------------------------------------------------------------------

@core
def test_asyncpg(make_pooler, transport, certs, target):
    asyncpg = pytest.importorskip(
        "asyncpg", reason="asyncpg is missing (package python3-asyncpg)")
    p = make_pooler({"ignore_startup_parameters": "extra_float_digits"},
                    transport=transport)
    if target == "pgbouncer":
        pytest.xfail("1.18 has no prepared statements")
    info = p.conninfo()
    where = {"host": info["host"], "port": info["port"],
             "user": "u_trust", "database": "db1", "password": "secret"}
    if transport.name == "tls":
        where["ssl"] = ssl.create_default_context(cafile=certs.ca)
    else:
        where["ssl"] = False

    async def one(pool, i):
        async with pool.acquire() as c:
            assert await c.fetchval("SELECT $1::int * 2", i) == 2 * i
            async with c.transaction():
                rows = await c.fetch(
                    "SELECT g FROM generate_series(1, $1::int) g", i % 50)
                assert len(rows) == i % 50

    async def main():
        pool = await asyncpg.create_pool(min_size=1, max_size=12, **where)
        await asyncio.gather(*[one(pool, i) for i in range(200)])
        async with pool.acquire() as c:
            with pytest.raises(asyncpg.DivisionByZeroError):
                await c.fetchval("SELECT 1 / $1::int", 0)
            async with c.transaction():
                seen = [r["g"] async for r in c.cursor(
                    "SELECT g FROM generate_series(1, 500) g",
                    prefetch=50)]
            assert len(seen) == 500
        await pool.close()
    asyncio.run(asyncio.wait_for(main(), 60))


# --- node-postgres ---------------------------------------------------------------------

@pytest.fixture(scope="session")
def node_modules(tmp_path_factory):
    """pg from the npm registry, cached outside the source tree."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            pytest.skip("%s is missing (packages nodejs, npm)" % name)
    cache = os.environ.get("PGBRAID_NODE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME",
                       os.path.expanduser("~/.cache")), "pgbraid", "node")
    if not os.path.isdir(os.path.join(cache, "node_modules", "pg")):
        os.makedirs(cache, exist_ok=True)
        try:
            got = subprocess.run(
                ["npm", "install", "--prefix", cache, "--no-audit",
                 "--no-fund", "--ignore-scripts", "pg@8"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=120)
        except subprocess.TimeoutExpired:
            pytest.skip("the npm registry does not answer: package pg")
        if got.returncode != 0:
            pytest.skip("npm cannot install pg: " +
                        got.stdout.decode("utf-8", "replace")[-300:])
    return os.path.join(cache, "node_modules")


@core
def test_node_postgres(pooler, node_modules, run, target):
    if target == "pgbouncer":
        pytest.xfail("1.18 has no prepared statements")
    env = pooler.url_env()
    env["NODE_PATH"] = node_modules
    if pooler.transport.name != "tls":
        env.pop("PGSSLROOTCERT", None)
    for name in ("PGSSLMODE", "PGSSLCERT", "PGSSLKEY"):
        env.pop(name, None)
    got = run(["node", os.path.join(HERE, "node_client.js")], env=env)
    assert got.strip().endswith("ok")


# --- libpq's pipeline mode ------------------------------------------------------------------

@pytest.fixture(scope="session")
def pipeline_program(tmp_path_factory):
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("no C compiler (package gcc)")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "libpq"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if flags.returncode != 0:
        pytest.skip("libpq's headers are missing (package libpq-dev)")
    out = str(tmp_path_factory.mktemp("libpq") / "pipeline")
    subprocess.run([cc, "-Wall", "-Werror", "-o", out,
                    os.path.join(HERE, "libpq_pipeline.c"),
                    *flags.stdout.decode().split()], check=True)
    return out


@core
def test_libpq_pipeline(pooler, pipeline_program, run, target):
    if target == "pgbouncer":
        pytest.xfail("1.18 has no prepared statements")
    got = run([pipeline_program], env=pooler.url_env())
    assert got.strip() == "ok"


def test_libpq_pipeline_many_at_once(pooler, pipeline_program, target):
    if target == "pgbouncer":
        pytest.xfail("1.18 has no prepared statements")
    procs = [subprocess.Popen([pipeline_program], env=pooler.url_env(),
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
             for _ in range(12)]
    for p in procs:
        out, _ = p.communicate(timeout=90)
        assert p.returncode == 0, out
