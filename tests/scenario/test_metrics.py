# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""GET /metrics and GET /healthz."""
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import prometheus
import procs
import pgwire

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
pytestmark = [pytest.mark.pooled, pytest.mark.transports("tcp", "quic")]


@pytest.fixture
def served(make_pooler, binary, target, transport):
    """Makes poolers with a metrics listener: make().metrics is its port."""
    if target != "pgbraid":
        pytest.skip("only pgbraid has metrics of its own")

    def make(options=None, **kw):
        port = procs.free_port()
        out = make_pooler({"metrics_listen_addr": "127.0.0.1",
                           "metrics_listen_port": port, **(options or {})},
                          transport=transport, start=False, **kw)
        status, text = out.check()
        if status and "libmicrohttpd" in text:
            pytest.skip("this build has no metrics (libmicrohttpd)")
        out.start()
        out.metrics = port
        return out
    return make


def stats(pooler, database="db1"):
    return {r["database"]: r for r in pooler.show("STATS")}[database]


SHOWN = {"total_query_count": "queries_total",
         "total_xact_count": "transactions_total",
         "total_server_assignment_count": "server_assignments_total",
         "total_received": "received_bytes_total",
         "total_sent": "sent_bytes_total",
         "total_client_parse_count": "client_parses_total",
         "total_server_parse_count": "server_parses_total",
         "total_bind_count": "binds_total",
         "total_client_login_count": "client_logins_total"}
TIMES = {"total_query_time": "query_duration_seconds_sum",
         "total_xact_time": "transaction_duration_seconds_sum",
         "total_wait_time": "wait_duration_seconds_sum"}


def only_sessions(pooler, n):
    page = prometheus.scrape(pooler.metrics)
    found = page.get("pgbraid_client_connections", state="session")
    return page if found == n else None


@pytest.mark.core
def test_same_as_the_console(served):
    pooler = served({"default_pool_size": 2})
    wires = [pooler.wire() for _ in range(4)]
    for i, wire in enumerate(wires * 5):
        wire.ok("SELECT %d" % i)
    wires[0].ok("BEGIN")
    pooler.wait_pool(sv_login=0)
    # The console's own session may take a moment to leave.
    row = stats(pooler)
    page = procs.wait_for(lambda: only_sessions(pooler, 4), 10,
                          "a page with four sessions")
    for column, name in SHOWN.items():
        got = page.get("pgbraid_database_" + name, database="db1")
        assert got == int(row[column]), column
    for column, name in TIMES.items():
        got = page.get("pgbraid_database_" + name, database="db1")
        assert round(got * 1e6) == int(row[column]), column
    pool = pooler.pool()
    for state in ("active", "idle", "used", "tested", "login"):
        assert page.get("pgbraid_pool_servers", database="db1",
                        user="u_trust", state=state) == pool["sv_" + state]
    for state in ("active", "waiting"):
        assert page.get("pgbraid_pool_clients", database="db1",
                        user="u_trust", state=state) == pool["cl_" + state]
    assert page.get("pgbraid_client_logins_total") >= 4
    assert page.get("pgbraid_server_logins_total") == \
        pool["sv_active"] + pool["sv_idle"]
    assert page.get("pgbraid_workers") == 2
    assert page.get("pgbraid_config_last_reload_successful") == 1
    for wire in wires:
        wire.close()


def check_histogram(page, name, database):
    bounds = sorted(
        (float(labels["le"].replace("+Inf", "inf")), value)
        for labels, value in page.all(name + "_bucket")
        if labels["database"] == database)
    counts = [n for _, n in bounds]
    assert bounds[-1][0] == float("inf") and counts == sorted(counts)
    assert counts[-1] == page.get(name + "_count", database=database)
    return dict(bounds)


@pytest.mark.core
def test_histograms(served):
    pooler = served({"default_pool_size": 1})
    with pooler.wire() as one, pooler.wire() as two:
        one.ok("SELECT pg_sleep(0.06)")
        one.ok("BEGIN")
        two.send(pgwire.query("SELECT 1"))
        pooler.wait_pool(cl_waiting=1)
        page = prometheus.scrape(pooler.metrics)
        assert page.get("pgbraid_pool_max_wait_seconds", database="db1",
                        user="u_trust") > 0
        one.ok("SELECT pg_sleep(0.3)")
        one.ok("COMMIT")
        two.read_ready()
    page = prometheus.scrape(pooler.metrics)
    query = check_histogram(
        page, "pgbraid_database_query_duration_seconds", "db1")
    assert query[0.05] == query[float("inf")] - 2
    assert query[0.025] >= 1
    xact = check_histogram(
        page, "pgbraid_database_transaction_duration_seconds", "db1")
    assert xact[0.25] <= xact[float("inf")] - 1
    wait = check_histogram(
        page, "pgbraid_database_wait_duration_seconds", "db1")
    assert wait[0.25] <= wait[float("inf")] - 1


@pytest.mark.core
def test_under_load(served, tool, run):
    """Scrapes beside pgbench: no counter goes back, nothing is lost."""
    pooler = served()
    pgbench = tool("pgbench", "postgresql-contrib")
    script = pooler.file("s.sql", "SELECT 1;\n")
    pages, done = [], threading.Event()

    def look():
        while not done.is_set():
            pages.append(prometheus.scrape(pooler.metrics))
    thread = threading.Thread(target=look)
    thread.start()
    try:
        run([pgbench, "-n", "-f", script, "-c", "4", "-t", "500"],
            env=pooler.url_env())
    finally:
        done.set()
        thread.join()
    pages.append(prometheus.scrape(pooler.metrics))
    assert len(pages) > 3
    name = "pgbraid_database_queries_total"
    counts = [p.get(name, database="db1") for p in pages]
    assert counts == sorted(counts)
    assert counts[-1] == int(stats(pooler)["total_query_count"]) >= 2000
    last = pages[-1]
    assert last.sum("pgbraid_worker_clients") == sum(
        v for _, v in last.all("pgbraid_client_connections"))
    for earlier, later in zip(pages, pages[1:]):
        for key, value in earlier.samples.items():
            if earlier.types.get(key[0]) == "counter":
                assert later.samples[key] >= value, key


@pytest.mark.core
def test_errors_are_counted(served):
    pooler = served({"auth_type": "md5", "query_timeout": "0.2"})
    with pytest.raises(pgwire.ServerError):
        pooler.wire("u_plain", password="wrong")
    with pytest.raises(pgwire.ServerError):
        pooler.wire("u_plain", "nowhere")
    with pooler.wire("u_plain") as wire:
        with pytest.raises((pgwire.ServerError, pgwire.WireClosed)):
            wire.ok("SELECT pg_sleep(20)")
    page = prometheus.scrape(pooler.metrics)
    name = "pgbraid_client_login_failures_total"
    assert page.get(name, sqlstate="28P01") == 1
    assert page.sum(name) == 2
    assert page.sum("pgbraid_client_errors_total") == 1


@pytest.mark.core
def test_names_of_any_kind(served):
    """Names that strangers choose neither break the page nor are lost."""
    names = ['a"b', "a\\b", "a\nb", "a{b}=,", "ü", "\u2028"]
    pooler = served({"auth_type": "any"}, databases={"*": "host=127.0.0.1 "
                    "port=1 user=u_trust"})
    for name in names:
        with pytest.raises((pgwire.ServerError, pgwire.WireClosed)):
            pooler.wire("u_trust", name)
    raw = pooler.open()
    raw.send(pgwire.startup({b"user": b"u_\xff\xc3",
                             b"database": b"d\xed\xa0\x80b"}))
    with pytest.raises((pgwire.ServerError, pgwire.WireClosed)):
        raw.finish_login("")
    raw.abort()
    page = prometheus.scrape(pooler.metrics)
    seen = {k["database"] for k, _ in page.all(
        "pgbraid_database_queries_total")}
    assert set(names) <= seen
    assert "d\\xed\\xa0\\x80b" in seen


@pytest.mark.core
def test_quic_is_counted(served, transport):
    if transport.name != "quic":
        pytest.skip("of QUIC only")
    pooler = served()
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
        page = prometheus.scrape(pooler.metrics)
    assert page.get("pgbraid_quic_connections", role="server") >= 1
    assert page.get("pgbraid_quic_streams", role="server") >= 1
    assert page.get("pgbraid_client_connections_accepted_total",
                    transport="quic") >= 1
    assert page.sum("pgbraid_quic_handshakes_total", outcome="full") >= 1
    assert page.get("pgbraid_quic_packets_total", direction="in") > 1
    before = page.get("pgbraid_quic_bytes_total", direction="in")
    for edge in pooler.own_edges.values():
        edge.stop()
    pooler.own_edges = {}
    procs.wait_for(lambda: prometheus.scrape(pooler.metrics).get(
        "pgbraid_quic_connections", role="server") == 0, 15,
        "the end of the connection")
    page = prometheus.scrape(pooler.metrics)
    assert page.get("pgbraid_quic_bytes_total", direction="in") >= before


@pytest.mark.transports("tcp")
def test_gone_pools_stay_counted(served, transport):
    pooler = served({"pool_idle_timeout": "0.2", "server_idle_timeout": "0.2"})
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
    name = "pgbraid_database_queries_total"
    before = prometheus.scrape(pooler.metrics).get(name, database="db1")
    procs.wait_for(lambda: pooler.pool() is None, 20, "the end of the pool")
    page = prometheus.scrape(pooler.metrics)
    assert page.get(name, database="db1") == before == 1
    assert not page.sum("pgbraid_pool_servers", database="db1")


@pytest.mark.transports("tcp")
def test_health(served, transport):
    pooler = served()
    assert prometheus.get(pooler.metrics, "/healthz")[::2] == (200, b"ok\n")
    pooler.console("PAUSE")
    assert prometheus.get(pooler.metrics, "/healthz")[::2] == \
        (200, b"paused\n")
    assert prometheus.scrape(pooler.metrics).get("pgbraid_paused") == 1
    pooler.console("RESUME")
    with pooler.wire() as wire:
        pooler.signal(signal.SIGTERM)
        procs.wait_for(
            lambda: prometheus.get(pooler.metrics, "/healthz")[0] == 503,
            10, "503 of a process that ends")
        page = prometheus.scrape(pooler.metrics)
        assert page.get("pgbraid_shutting_down") == 1
        wire.ok("SELECT 1")
    assert pooler.wait_exit() == 0


@pytest.mark.transports("tcp")
def test_failed_reload_is_told(served, transport):
    pooler = served()
    first = prometheus.scrape(pooler.metrics)
    name = "pgbraid_config_last_reload_success_timestamp_seconds"
    assert abs(first.get(name) - time.time()) < 60
    pooler.write_ini(pool_mode="nonsense")
    with pooler.admin() as wire:
        assert wire.query("RELOAD").errors
    page = prometheus.scrape(pooler.metrics)
    assert page.get("pgbraid_config_last_reload_successful") == 0
    assert page.get(name) == first.get(name)
    pooler.write_ini(pool_mode="transaction")
    pooler.reload()
    page = prometheus.scrape(pooler.metrics)
    assert page.get("pgbraid_config_last_reload_successful") == 1
    assert page.get(name) > first.get(name)


@pytest.mark.transports("tcp")
def test_no_other_requests(served, transport):
    pooler = served()
    assert prometheus.get(pooler.metrics, "/")[0] == 404
    assert prometheus.get(pooler.metrics, "/metrics/x")[0] == 404
    status, headers, _ = prometheus.get(pooler.metrics, method="POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    status, headers, body = prometheus.get(pooler.metrics, method="HEAD")
    assert status == 200 and body == b"" and int(headers["Content-Length"])
    assert prometheus.get(pooler.metrics, "/metrics?x=1")[0] == 200


@pytest.mark.transports("tcp")
def test_idle_http_clients_do_no_harm(served, transport):
    """They are few, and they are closed; scrapes and sessions go on."""
    pooler = served()
    idle = []
    for _ in range(40):
        sock = socket.create_connection(("127.0.0.1", pooler.metrics), 5)
        idle.append(sock)
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
    procs.wait_for(lambda: not has_all(idle), 20, "the end of idle ones")
    for sock in idle:
        sock.close()
    procs.wait_for(lambda: try_scrape(pooler), 20, "a scrape")


def has_all(socks):
    for sock in socks:
        sock.setblocking(False)
        try:
            if sock.recv(1) == b"":
                return False
        except BlockingIOError:
            pass
        except OSError:
            return False
    return True


def try_scrape(pooler):
    try:
        return prometheus.scrape(pooler.metrics)
    except OSError:
        return None


@pytest.mark.transports("tcp")
def test_hostile_requests(served, transport):
    pooler = served()
    for raw in (b"\0" * 100, b"GET /metrics\r\n\r\n", b"GET " + b"/" * 70000,
                b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 70000,
                b"POST /metrics HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n",
                b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", pooler.metrics)) as sock:
            sock.settimeout(5)
            try:
                sock.sendall(raw)
            except OSError:
                pass
    assert prometheus.get(pooler.metrics, "/healthz")[0] == 200


@pytest.mark.transports("tcp")
def test_no_secret_on_the_page(served, transport):
    pooler = served({"auth_type": "scram-sha-256"})
    pooler.wire("u_plain").close()
    _, _, body = prometheus.get(pooler.metrics)
    for password, _, secret in pooler.users.values():
        for word in (password, secret):
            assert not word or word.encode() not in body, word


@pytest.mark.transports("tcp")
def test_port_that_is_taken(served, make_pooler, transport):
    first = served()
    second = make_pooler({"metrics_listen_addr": "127.0.0.1",
                          "metrics_listen_port": first.metrics}, start=False)
    second.spawn()
    assert second.wait_exit() == 1
    assert "metrics_listen_addr: cannot listen on 127.0.0.1:%d" % \
        first.metrics in second.log()


@pytest.mark.transports("tcp")
def test_rolling_restart(served, make_pooler, transport):
    """Both have the port; the old one leaves it as soon as it ends."""
    first = served({"so_reuseport": 1})
    options = {k: first.options[k] for k in (
        "so_reuseport", "metrics_listen_addr", "metrics_listen_port")}
    with first.wire() as wire:
        wire.ok("SELECT 1")
        second = make_pooler(options)
        first.signal(signal.SIGTERM)
        first.wait_log("got SIGTERM")
        procs.wait_for(lambda: prometheus.get(first.metrics, "/healthz")[0]
                       == 200, 10, "the second one alone")
        for _ in range(8):
            page = prometheus.scrape(first.metrics)
            assert page.get("pgbraid_shutting_down") == 0
        assert second.alive()


@pytest.mark.transports("tcp")
def test_with_a_supervisor(served, transport):
    """The process that follows a crash answers on the same port."""
    pooler = served({"supervisor": 1})
    name = "process_start_time_seconds"
    before = prometheus.scrape(pooler.metrics)
    assert before.get(name)
    child = int(subprocess.run(["pgrep", "-P", str(pooler.pid)],
                               stdout=subprocess.PIPE).stdout.split()[0])
    os.kill(child, signal.SIGKILL)
    pooler.wait_log("process .* was ended by signal")
    procs.wait_for(lambda: try_scrape(pooler), 15, "metrics of the next one")


def find_promtool():
    return os.environ.get("PROMTOOL") or shutil.which("promtool")


@pytest.fixture
def promtool():
    path = find_promtool()
    if not path:
        pytest.skip("promtool is missing (package prometheus, or "
                    "scripts/deps; PROMTOOL names another place)")
    return path


@pytest.mark.core
def test_promtool_likes_it(served, promtool):
    pooler = served()
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
        _, _, body = prometheus.get(pooler.metrics)
    got = subprocess.run([promtool, "check", "metrics"], input=body,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (got.returncode, got.stdout) == (0, b""), got.stdout.decode()


def test_every_metric_is_on_the_page(served):
    """Each row of metric.def, under its name and type."""
    pooler = served()
    with pooler.wire() as wire:
        wire.ok("SELECT 1")
        page = prometheus.scrape(pooler.metrics)
    with open(os.path.join(ROOT, "src", "admin", "metric.def")) as src:
        rows = re.findall(
            r'^METRIC\(\w+, (\w+),\s+"(\w+)"', src.read(), re.MULTILINE)
    assert len(rows) > 60
    for kind, name in rows:
        assert page.types.get(name) == kind.lower(), name


def test_alerts_name_what_there_is(served, promtool):
    """The rules are good, and their metrics are on the page."""
    path = os.path.join(ROOT, "packaging", "prometheus", "pgbraid.rules.yml")
    got = subprocess.run([promtool, "check", "rules", path],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert got.returncode == 0, got.stdout.decode()
    pooler = served()
    page = prometheus.scrape(pooler.metrics)
    with open(path) as src:
        names = set(re.findall(r"\b(pgbraid_\w+|process_\w+)\b", src.read()))
    assert len(names) > 5 and names <= set(page.types)
