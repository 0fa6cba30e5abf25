# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/run quic: many sessions over a long way, TCP beside QUIC."""
import os
import signal
import subprocess
import time

import pglib
import runlib
from runlib import LIMIT_MARK, Step, interleave, number, spread

FAR, PORT = "10.1.0.2", 6432
RTT_MS = 30.5
RAMP_RTT_MS = 150
SCALE = 10
ROW = "SELECT abalance FROM pgbench_accounts WHERE aid = {1-1000000}"
FRESH = "TCP + TLS + SCRAM, PostgreSQL"

INI = """
[databases]
postgres = host={host} port={port}
small = host={host} port={port} dbname=postgres pool_size=20
[pgbouncer]
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 30000
listen_port = {listen_port}
listen_addr = {listen}
unix_socket_dir = {folder}
log_connections = 0
log_disconnections = 0
log_stats = 0
"""
NEAR = """
[databases]
postgres = host={far} port={port} transport=quic
[pgbouncer]
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = 200
max_client_conn = 3000
listen_port = 6432
listen_addr =
unix_socket_dir = {folder}
server_tls_ca_file = {ca}
log_connections = 0
log_disconnections = 0
log_stats = 0
workers = 1
"""
TLS = """client_tls_sslmode = allow
client_tls_key_file = {key}
client_tls_cert_file = {cert}
"""
OURS = """workers = 1
quic_listen_addr = {listen}
quic_max_streams = 10000
"""


class Pooler:
    """pgbraid or pgbouncer, with a Unix socket in a folder of its own."""

    def __init__(self, section, name, program, listen, tls=True, quic=False,
                 space=None, pool_size=64):
        shop, cluster = section.shop, section.cluster
        self.folder = shop.make_dir(name)
        self.port = PORT if space else pglib.free_port()
        text = INI.format(
            host=cluster.socket_dir, port=cluster.port, users=section.users,
            listen_port=self.port, listen=listen, folder=self.folder,
            pool_size=pool_size)
        if tls:
            text += TLS.format(key=section.key, cert=section.cert)
        if quic:
            text += OURS.format(listen=listen)
        elif "pgbraid" in os.path.basename(program):
            text += "workers = 1\n"
        self.log = name + ".log"
        self.proc = shop.start([program, shop.write(name + ".ini", text)],
                               self.log, space=space)
        wait_path(f"{self.folder}/.s.PGSQL.{self.port}", self.proc,
                  shop.path(self.log))

    def pids(self):
        return pglib.process_tree(self.proc.pid)


def wait_path(path, proc, log, patience_s=10):
    deadline = time.monotonic() + patience_s
    while not os.path.exists(path):
        if proc.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("did not start: " + (pglib.tail(log) or path))
        time.sleep(0.05)


class Quic:
    name = "quic"

    def __init__(self, run):
        self.run, self.report = run, run.report
        self.shop = pglib.Workshop("quic")
        self.wan = None
        self.edges, self.local = {}, {}
        q = run.quick
        self.rounds = run.rounds or (1 if q else 3)
        self.seconds = run.seconds or (1.5 if q else 4)
        names = ("wall", "rates", "burst", "ramp", "loss", "rtt", "storm",
                 "copy", "transactions", "cpu", "memory", "first")
        self.samples = {n: run.report.samples("quic-" + n) for n in names}

    def close(self):
        if self.wan:
            self.wan.close()
        self.shop.close()

    # Setting up

    def set_up(self):
        shop, run = self.shop, self.run
        self.wan = runlib.wan_module.Wan(shop.dir, delay=RTT_MS / 2,
                                         duration=7200)
        self.key, self.cert = shop.make_certificate(
            "quic", ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            ("-addext", f"subjectAltName=IP:{FAR},IP:127.0.0.1,DNS:localhost"))
        self.cluster = pglib.Cluster(
            shop, 1000, {"listen_addresses": "'*'", "ssl": "on",
                        "ssl_cert_file": f"'{self.cert}'",
                        "ssl_key_file": f"'{self.key}'"},
            space=self.wan.far)
        shop.run([self.cluster.bindir + "/pgbench", "-i", "-q", "-s",
                  str(SCALE), "-h", self.cluster.socket_dir, "-p",
                  str(self.cluster.port), "-U", "postgres", "postgres"])
        self.cluster.psql("ALTER USER postgres PASSWORD 'pw'")
        with open(self.cluster.data + "/pg_hba.conf", "w",
                  encoding="ascii") as f:
            f.write("local all all trust\nhost all all all scram-sha-256\n")
        self.cluster.psql("SELECT pg_reload_conf()")
        secret = self.cluster.psql("SELECT rolpassword FROM pg_authid WHERE "
                                   "rolname = 'postgres'").strip()
        self.users = shop.write("users.txt", f'"postgres" "{secret}"\n')
        self.program = shop.bring(run.pgbraid, "pgbraid")
        self.load = runlib.Load(shop, run.load)
        self.far = Pooler(self, "far", self.program, "*", quic=True,
                          space=self.wan.far)

    def set_rtt(self, rtt_ms):
        self.wan.tell(f"delay {rtt_ms / 2:g}")

    def edge(self, connections=10, streams=200, to="quic"):
        """The folder of an edge on the near side."""
        key = (connections, streams, to)
        if key in self.edges:
            return self.edges[key]
        folder = self.shop.make_dir(f"e{len(self.edges)}")
        log = f"e{len(self.edges)}.log"
        proc = self.shop.start(
            [self.program, "edge", f"--listen={folder}",
             f"--to={to}://{FAR}:{PORT}", f"--ca={self.cert}",
             f"--quic_connections={connections}",
             f"--quic_streams_per_connection={streams}", "-q"], log,
            space=self.wan.near)
        wait_path(folder + "/.s.PGSQL.6432", proc, self.shop.path(log))
        self.edges[key] = (folder, proc)
        return self.edges[key]

    def near_pooler(self):
        """(folder, process) of a pgbraid on the near side, whose servers are
        streams to the far one."""
        if "near" not in self.edges:
            folder = self.shop.path("near")
            if not os.path.exists(folder):
                self.shop.make_dir("near")
            path = self.shop.write("near.ini", NEAR.format(
                far=FAR, port=PORT, users=self.users, folder=folder,
                ca=self.cert))
            check = subprocess.run([self.program, "--check", path], text=True,
                                   capture_output=True, check=False)
            if "transport" in check.stdout + check.stderr:
                raise RuntimeError("this pgbraid has no transport=quic")
            proc = self.shop.start([self.program, path], "near.log",
                                   space=self.wan.near)
            wait_path(folder + "/.s.PGSQL.6432", proc,
                      self.shop.path("near.log"))
            self.edges["near"] = (folder, proc)
        return self.edges["near"]

    # Arms: how bench/load reaches the pooler

    def over(self, kind, sessions, connections=0, host=FAR, port=PORT):
        out = ["--to", f"{kind}://{host}:{port}", "--sessions", sessions]
        if kind != "tcp":
            out += ["--ca", self.cert]
        if connections:
            out += ["--connections", connections]
        return out

    def over_edge(self, sessions, **kw):
        folder, _ = self.edge(**kw)
        return ["--to", folder, "--port", 6432, "--sessions", sessions]

    def watch(self, *edges):
        out = {"pooler": self.far.pids(), "wan": [self.wan.proc.pid],
               "postgres": pglib.process_tree(self.cluster.proc.pid)}
        for folder, proc in edges:
            out["edge"] = pglib.process_tree(proc.pid)
        return out

    def measure(self, name, arm, turn, args, more=(), edge=None, **keys):
        timing = ["--warmup", 1, "--duration", self.seconds, "--drain", 3]
        watch = self.watch(*([edge] if edge else []))
        got = self.load.run(args + timing + list(more), self.wan.near, watch)
        return self.samples[name].add(arm=arm, round=turn, **keys, **got)

    # The experiments, as steps

    def steps(self):
        yield Step("quic: PostgreSQL, poolers, an emulated WAN", 15,
                   self.set_up, always=True)
        for part in (self.wall_steps, self.burst_steps, self.ramp_steps,
                     self.loss_steps, self.rtt_steps, self.storm_steps,
                     self.copy_steps, self.transaction_steps,
                     self.first_steps, self.cpu_steps, self.memory_steps):
            yield from part()

    def each(self, title, arms, work, seconds, rounds=None):
        """A step for each arm and round."""
        for turn, arm in interleave(list(arms), rounds or self.rounds):
            yield Step(f"quic: {title}, {arm}, round {turn}", seconds,
                       lambda turn=turn, arm=arm: work(arm, turn))

    # A client pool over 30.5 ms

    RATE_ARMS = ("450 TCP connections", "10 QUIC connections",
                 "edge, 10 QUIC connections")

    def rates(self):
        return ((1000, 5000, 8000, 10000) if self.run.quick else
                (1000, 2500, 5000, 7500, 8750, 10000, 11250, 12500))

    def wall_steps(self):
        def wall(arm, turn):
            self.set_rtt(RTT_MS)
            self.measure("wall", arm, turn, self.over("tcp", 10))
        yield from self.each("a pool over 30.5 ms", ["10 TCP connections"],
                             wall, self.seconds + 2)
        for rate in self.rates():
            def work(arm, turn, rate=rate):
                self.set_rtt(RTT_MS)
                edge = None
                if arm.startswith("edge"):
                    edge = self.edge()
                    args = self.over_edge(500)
                elif "QUIC" in arm:
                    args = self.over("quic", 500, 10)
                else:
                    args = self.over("tcp", 450)
                self.measure("rates", arm, turn, args, ["--rate", rate], edge,
                             rate=rate)
            yield from self.each(f"{rate}/s at 30.5 ms", self.RATE_ARMS, work,
                                 self.seconds + 4)

    def write_wall(self):
        r, wall, rates = self.report, self.samples["wall"], \
            self.samples["rates"]
        r.heading("A client pool over 30.5 ms", 3)
        r.text("""A connection is busy for a whole round trip for each query,
            so that ten of them carry 10 / 0.0305 s = 328 queries/s, however
            fast the database is. Below, queries arrive at a rate (Poisson),
            latency counts from arrival.""")
        rows = [["10 TCP connections, closed loop", "-",
                 number(wall.median("per_second"), 0),
                 number(wall.median("mean_ms"), 1),
                 number(wall.median("p99_ms"), 1), "-",
                 number(wall.median("pooler_us"), 1), "-"]]
        for arm in self.RATE_ARMS:
            for rate in self.rates():
                m = {"arm": arm, "rate": rate}
                if not rates.of(**m):
                    continue
                mark = LIMIT_MARK if rates.was_limited(**m) else ""
                rows.append([arm, number(rate, 0),
                             number(rates.median("per_second", **m), 0) + mark]
                            + [number(rates.median(k, **m), 1) for k in
                               ("mean_ms", "p99_ms")]
                            + [number(rates.median("max_queue", **m), 0)]
                            + [number(rates.median(k, **m), 1) for k in
                               ("pooler_us", "edge_us")])
        r.table("quic-rates", ["clients", "offered /s", "answered /s",
                               "mean ms", "p99 ms", "longest queue",
                               "pooler CPU \u00b5s", "edge CPU \u00b5s"], rows)
        self.write_shares()
        best = []
        for arm in self.RATE_ARMS:
            good = [x for x in self.rates() if
                    (rates.median("mean_ms", arm=arm, rate=x) or 1e9) <= 40
                    and rates.median("per_second", arm=arm, rate=x) > 0.95 * x]
            if good:
                best.append([arm, number(max(good), 0), number(
                    rates.median("mean_ms", arm=arm, rate=max(good)), 1)])
            else:
                best.append([arm, "none of them", "-"])
        r.text("The highest of these rates at a mean latency of at most "
               "40 ms:")
        r.table("quic-best", ["clients", "offered /s", "mean ms"], best)

        def points(arm, key):
            return [(x, rates.median(key, arm=arm, rate=x))
                    for x in self.rates()]
        r.plot(r.plots.lines(
            "quic-rates", "Latency at 30.5 ms round trip, by arrival rate",
            [(a, points(a, "mean_ms")) for a in self.RATE_ARMS],
            "queries arriving per second", "mean latency, ms",
            "set logscale y\nset yrange [20:]"),
            "Mean latency over the arrival rate")

    SHARES = ("own_cpu", "edge", "wan", "pooler", "postgres")

    def write_shares(self):
        """Who needs the processors at the highest rate."""
        rates, rows = self.samples["rates"], []
        for arm in self.RATE_ARMS:
            m = {"arm": arm, "rate": max(self.rates())}
            parts = [rates.median(k + "_us", **m) for k in self.SHARES]
            speed = rates.median("per_second", **m)
            if speed:
                rows.append([arm, number(speed, 0)]
                            + [number(x, 0) for x in parts]
                            + [number(sum(filter(None, parts)) * speed / 1e6)])
        self.report.text("Where the processors' time goes at the highest rate, "
                         "in microseconds per query:")
        self.report.table("quic-shares", [
            "clients", "answered /s", "load generator", "edge",
            "emulated WAN", "pooler", "PostgreSQL", "processors in use"],
            rows)

    # A burst

    BURST_ARMS = ("10 TCP connections", "10 QUIC connections",
                  "edge, 10 QUIC connections")

    def burst_steps(self):
        def work(arm, turn):
            self.set_rtt(RTT_MS)
            args = {"10 TCP connections": self.over("tcp", 10),
                    "10 QUIC connections": self.over("quic", 500, 10)}.get(arm)
            args = args or self.over_edge(500)
            # The pool's servers are there when it comes.
            got = self.load.run(args + ["--burst", 500, "--duration", 10],
                                self.wan.near)
            self.samples["burst"].add(arm=arm, round=turn, **got)
        yield from self.each("500 queries at once", self.BURST_ARMS, work, 4,
                             self.rounds + 1)

    def write_burst(self):
        s = self.samples["burst"]
        self.report.heading("500 queries at once, at 30.5 ms", 3)
        rows = [[a] + [number(s.median(k, arm=a), d) for k, d in
                       (("mean_ms", 0), ("p50_ms", 0), ("max_ms", 0),
                        ("max_queue", 0))] for a in self.BURST_ARMS]
        self.report.table("quic-burst", ["clients", "mean ms", "p50 ms",
                                         "last one ms", "longest queue"], rows)

    # The ramp

    RAMP_ARMS = (("500 TCP connections", "tcp", 500, 0),
                 ("2,000 TCP connections", "tcp", 2000, 0),
                 ("50 QUIC connections x 40 streams", "quic", 2000, 50))

    def ramp_shape(self):
        return (500, 9000, 14) if self.run.quick else (500, 11000, 40)

    def ramp_steps(self):
        low, high, seconds = self.ramp_shape()

        def work(arm, turn):
            _, kind, n, conns = next(a for a in self.RAMP_ARMS if a[0] == arm)
            self.set_rtt(RAMP_RTT_MS)
            path = self.shop.path("ramp.csv")
            got = self.load.run(
                self.over(kind, n, conns) +
                ["--rate", f"{low}..{high}", "--warmup", 1, "--duration",
                 seconds, "--drain", 2, "--open-at-once", 300, "--csv", path],
                self.wan.near, self.watch(), patience=seconds + 120)
            for row in runlib.read_seconds(path)[:seconds]:
                self.samples["ramp"].add(arm=arm, round=turn,
                                         idle=got["idle"], **row)
        yield from self.each("the ramp at 150 ms",
                             [a[0] for a in self.RAMP_ARMS], work,
                             seconds + 10, 1)

    def write_ramp(self):
        s, r = self.samples["ramp"], self.report
        low, high, seconds = self.ramp_shape()
        arms = [a[0] for a in self.RAMP_ARMS if s.of(arm=a[0])]
        r.heading("The ramp, at 150 ms", 3)
        r.text(f"""Arrivals rise from {low:,} to {high:,} queries/s within
            {seconds} s. 500 TCP connections end at 500 / 0.15 s = 3,333/s, 2,000
            at 13,333/s, which this machine may not reach; 50 x 40 QUIC streams
            are as many sessions as the latter, on 50 UDP flows.""")

        def offered(row):
            return low + (high - low) * (row["second"] - 0.5) / seconds

        def points(arm, key, floor=None):
            return [(offered(row), max(row[key], floor)
                     if floor is not None else row[key])
                    for row in s.of(arm=arm)]
        r.plot(r.plots.stack("quic-ramp", [
            ("Answered per second", "queries/s",
             [(a, points(a, "completed")) for a in arms], ""),
            ("Mean latency, from arrival", "ms",
             [(a, points(a, "mean_ms", 1)) for a in arms],
             "set logscale y"),
            ("p99 latency", "ms",
             [(a, points(a, "p99_ms", 1)) for a in arms], "set logscale y"),
            ("Queries waiting for a connection", "queries",
             [(a, points(a, "queue", 0.8)) for a in arms],
             "set logscale y\nset yrange [0.8:]")],
            "queries arriving per second", (900, 1150)),
            "Throughput, latency and queue over the ramp")
        rows = []
        for arm in arms:
            rows_of = s.of(arm=arm)
            last = rows_of[-1]
            steady = [x for x in rows_of if x["queue"] <= 50]
            rows.append([
                arm, number(max(x["completed"] for x in rows_of), 0),
                number(max((offered(x) for x in steady), default=0), 0),
                number(last["mean_ms"], 0), number(last["p99_ms"], 0),
                number(last["queue"], 0)])
        r.table("quic-ramp", ["clients", "most answered /s",
                              "last rate without a queue /s",
                              "mean ms at the end", "p99 ms at the end",
                              "queue at the end"], rows)

    # Loss

    LOSS_ARMS = ("TCP, a connection per session", "QUIC, 4 connections",
                 "one TCP tunnel for all")
    LOSSES = (0, 0.1, 1, 3)

    def tunnel(self):
        if getattr(self, "tunnel_folder", None):
            return self.tunnel_folder
        folder = self.shop.make_dir("t")
        program = self.shop.bring(pglib.HERE + "/muxtunnel", "muxtunnel")
        self.shop.start([program, "far", FAR + ":7000",
                         f"{self.far.folder}/.s.PGSQL.{PORT}"], "tfar.log",
                        end_signal=signal.SIGINT, space=self.wan.far)
        time.sleep(0.5)
        path = folder + "/.s.PGSQL.6432"
        proc = self.shop.start([program, "near", path, FAR + ":7000"],
                               "tnear.log", end_signal=signal.SIGINT,
                               space=self.wan.near)
        wait_path(path, proc, self.shop.path("tnear.log"))
        self.tunnel_folder = folder
        return folder

    def loss_steps(self):
        for loss in self.LOSSES:
            def work(arm, turn, loss=loss):
                self.set_rtt(30)
                if arm.startswith("one"):
                    args = ["--to", self.tunnel(), "--port", 6432,
                            "--sessions", 200]
                elif arm.startswith("QUIC"):
                    args = self.over("quic", 200, 4)
                else:
                    args = self.over("tcp", 200)
                self.wan.tell(f"loss {loss:g}")
                try:
                    self.measure("loss", arm, turn, args, ["--rate", 500],
                                 loss=loss)
                finally:
                    self.wan.tell("loss 0")
            yield from self.each(f"{loss:g} % loss", self.LOSS_ARMS, work,
                                 self.seconds + 4)

    def write_loss(self):
        s, r = self.samples["loss"], self.report
        r.heading("Loss, at 30 ms", 3)
        r.text("""500 queries/s on 200 sessions. TCP with a connection for each
            session has too little under way on a socket to learn of a loss
            from later packets, so that it waits for a time-out. In one TCP
            tunnel a lost packet holds up all that was sent after it, whoever
            it belongs to (head-of-line blocking). QUIC has neither.""")
        rows = []
        for loss in self.LOSSES:
            for arm in self.LOSS_ARMS:
                m = {"arm": arm, "loss": loss}
                if s.of(**m):
                    rows.append([f"{loss:g} %", arm] + [
                        number(s.median(k, **m), 1) for k in
                        ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")])
        r.table("quic-loss", ["loss", "clients", "p50 ms", "p90 ms", "p99 ms",
                              "p99.9 ms", "max ms"], rows)
        r.plot(r.plots.bars(
            "quic-loss", "p99 latency under loss, 30 ms round trip",
            [f"{x:g} % loss" for x in self.LOSSES],
            [(a, [s.median("p99_ms", arm=a, loss=x) for x in self.LOSSES])
             for a in self.LOSS_ARMS], "p99, ms",
            "set logscale y\nset yrange [20:]"), "p99 latency under loss")

    # Round trip times

    RTT_ARMS = ("10 TCP connections", "10 QUIC connections")

    def rtts(self):
        return (1, 10, 50, 200) if self.run.quick else (1, 3, 10, 30, 100, 200)

    def rtt_steps(self):
        for rtt in self.rtts():
            def work(arm, turn, rtt=rtt):
                self.set_rtt(rtt)
                args = self.over("quic", 400, 10) if "QUIC" in arm else \
                    self.over("tcp", 10)
                self.measure("rtt", arm, turn, args, rtt=rtt)
            yield from self.each(f"round trip {rtt} ms", self.RTT_ARMS, work,
                                 self.seconds + 4)

    def write_rtt(self):
        s, r = self.samples["rtt"], self.report
        r.heading("Round trips from 1 to 200 ms", 3)
        r.text("""Closed loop, as fast as the connections allow: 10 TCP
            connections, and 10 QUIC connections with 400 sessions.""")
        rows = []
        for rtt in self.rtts():
            tcp, quic = ({"arm": a, "rtt": rtt} for a in self.RTT_ARMS)
            mark = LIMIT_MARK if s.was_limited(**quic) else ""
            rows.append([f"{rtt} ms", number(10000 / rtt, 0),
                         number(s.median("per_second", **tcp), 0),
                         number(s.median("per_second", **quic), 0) + mark,
                         spread(s.ratio("per_second", quic, tcp), 1)])
        r.table("quic-rtt", ["round trip", "10 / round trip",
                             "10 TCP connections /s", "10 QUIC connections /s",
                             "QUIC / TCP"], rows)
        r.plot(r.plots.lines(
            "quic-rtt", "Throughput of ten connections, by distance",
            [(a, [(x, s.median("per_second", arm=a, rtt=x))
                  for x in self.rtts()]) for a in self.RTT_ARMS],
            "round trip, ms", "queries/s", "set logscale xy"),
            "Throughput over the round trip")

    # Storms

    STORM_ARMS = ("TLS", "TCP", "QUIC", "edge over QUIC",
                  "pooler near, QUIC to the far one")

    def storm_steps(self):
        def work(arm, turn):
            self.set_rtt(RTT_MS)
            edge = None
            if arm.startswith("edge"):
                edge = self.edge()
                args = self.over_edge(200)
            elif arm.startswith("pooler"):
                edge = self.near_pooler()
                args = ["--to", edge[0], "--port", 6432, "--sessions", 200]
            else:
                args = self.over(arm.lower(), 200, 4)
            self.measure("storm", arm, turn, args,
                         ["--new-session", "--rate", 150], edge)
        yield from self.each("a session for each query", self.STORM_ARMS, work,
                             self.seconds + 3)

    def write_storm(self):
        s, r = self.samples["storm"], self.report
        r.heading("A new session for each query, at 30.5 ms", 3)
        r.text("""150 a second; each logs in with SCRAM, asks once and
            leaves.""")
        rows = [[a] + [number(s.median(k, arm=a), 1) for k in
                       ("p50_ms", "p99_ms")]
                + [number((s.median("p50_ms", arm=a) or 0) / RTT_MS, 1),
                   number(s.median("pooler_us", arm=a), 0),
                   number(s.median("errors", arm=a), 0)]
                for a in self.STORM_ARMS if s.of(arm=a)]
        r.table("quic-storm", ["clients", "p50 ms", "p99 ms", "round trips",
                               "pooler CPU \u00b5s a session", "errors"], rows)

    # COPY beside small queries

    COPY_ROWS = ("COPY (SELECT repeat('x', 10000){pace} FROM "
                 "generate_series(1, {n})) TO STDOUT")
    COPY_ARMS = ("nothing else", "a COPY of about 5 MB/s",
                 "a COPY as fast as it goes")

    def copy_steps(self):
        for where in ("30 ms", "loopback"):
            def work(arm, turn, where=where):
                self.copy_one(where, arm, turn)
            yield from self.each(f"COPY beside queries, {where}",
                                 self.COPY_ARMS, work, self.seconds + 4)

    def copy_one(self, where, arm, turn):
        bulk = []
        if arm.endswith("MB/s"):
            bulk = ["--bulk", 1, "--bulk-sql", self.COPY_ROWS.format(
                pace=" || pg_sleep(0.001)::text", n=500)]
        elif arm.startswith("a COPY"):
            bulk = ["--bulk", 1, "--bulk-sql", self.COPY_ROWS.format(
                pace="", n=10000)]
        more = ["--rate", 1000, *bulk]
        if where == "loopback":
            timing = ["--warmup", 1, "--duration", self.seconds, "--drain", 3]
            here = self.here("pgbraid quic")
            got = self.load.run(
                self.over("quic", 200, 1, "127.0.0.1", here.port) + timing +
                more, watch={"pooler": here.pids()})
            self.samples["copy"].add(arm=arm, round=turn, where=where, **got)
        else:
            self.set_rtt(30)
            self.measure("copy", arm, turn, self.over("quic", 200, 1), more,
                         where=where)

    def write_copy(self):
        s, r = self.samples["copy"], self.report
        r.heading("A COPY beside small queries, on one QUIC connection", 3)
        r.text("""1,000 small queries/s on 200 streams, and a transfer on
            another stream of the same connection.""")
        rows = []
        for where in ("30 ms", "loopback"):
            for arm in self.COPY_ARMS:
                m = {"arm": arm, "where": where}
                if not s.of(**m):
                    continue
                mark = LIMIT_MARK if s.was_limited(**m) else ""
                base = {"arm": self.COPY_ARMS[0], "where": where}
                rate = s.median("bulk_mb", **m) / s.median("seconds", **m)
                rows.append([where, arm, number(rate, 1) + mark]
                            + [number(s.median(k, **m), 2)
                               for k in ("p50_ms", "p99_ms")]
                            + [spread(s.ratio("p50_ms", m, base))])
        r.table("quic-copy", ["round trip", "beside them", "COPY MB/s",
                              "p50 ms", "p99 ms", "p50 / without"], rows)

    # Where QUIC cannot help

    TX_ARMS = ("100 TCP connections", "100 QUIC streams")

    def transaction_steps(self):
        sql = []
        for text in ("BEGIN", ROW, ROW, "COMMIT"):
            sql += ["--sql", text]

        def work(arm, turn):
            self.set_rtt(RTT_MS)
            args = self.over("quic", 100, 4) if "QUIC" in arm else \
                self.over("tcp", 100)
            self.measure("transactions", arm, turn,
                         args + ["--dbname", "small"], sql)
        yield from self.each("transactions of four statements", self.TX_ARMS,
                             work, self.seconds + 3)

    def write_transactions(self):
        s, r = self.samples["transactions"], self.report
        r.heading("Where QUIC cannot help", 3)
        r.text("""A transaction of four statements keeps its server for three
            round trips: 20 servers end at 20 / (3 x 0.0305 s) = 219
            transactions/s over either. Only fewer round trips help: pipelines,
            functions, a shorter way.""")
        rows = [[a] + [number(s.median(k, arm=a), d) for k, d in
                       (("per_second", 0), ("mean_ms", 0), ("p99_ms", 0))]
                for a in self.TX_ARMS if s.of(arm=a)]
        r.table("quic-transactions", ["clients, 20 servers",
                                      "transactions /s", "mean ms", "p99 ms"],
                rows)

    # The first query of a session

    FIRST_ARMS = (FRESH, "TCP + TLS + SCRAM, pgbraid",
                  "QUIC, new connection", "QUIC, resumed connection",
                  "edge, warm", "pooler near, warm, QUIC to the far one")
    FIRST_RTT_MS = 100

    def first_steps(self):
        def work(arm, turn):
            self.set_rtt(self.FIRST_RTT_MS)
            if arm.startswith("QUIC"):
                got = self.load.run(
                    self.over("quic", 5, 5) + ["--streams", 1,
                                               "--open-at-once", 1,
                                               "--burst", 1], self.wan.near)
                key = "open_first_ms" if "new" in arm else "open_p50_ms"
                ms = got[key] + self.FIRST_RTT_MS
            else:
                if arm.startswith("edge"):
                    self.load.run(self.over_edge(1) + ["--burst", 1],
                                  self.wan.near)
                    args = self.over_edge(1)
                elif arm.startswith("pooler"):
                    args = ["--to", self.near_pooler()[0], "--port", 6432,
                            "--sessions", 1]
                    self.load.run(args + ["--burst", 1], self.wan.near)
                else:
                    port = self.cluster.port if arm == FRESH else PORT
                    args = self.over("tls", 1, 0, FAR, port)
                got = self.load.run(args + ["--new-session", "--burst", 1],
                                    self.wan.near)
                ms = got["max_ms"]
            self.samples["first"].add(arm=arm, round=turn, ms=ms,
                                      trips=ms / self.FIRST_RTT_MS)
        yield from self.each("first query", self.FIRST_ARMS, work, 3)

    def write_first(self):
        s, r = self.samples["first"], self.report
        r.heading("The first query of a new session", 3)
        r.text(f"""From nothing to the first row, at {self.FIRST_RTT_MS} ms, in
            round trips. SCRAM alone takes three, the query one.""")
        r.table("quic-first", ["way", "ms", "round trips"],
                [[a, number(s.median("ms", arm=a), 0),
                  number(s.median("trips", arm=a), 1)]
                 for a in self.FIRST_ARMS if s.of(arm=a)])

    # CPU per transaction, on the loopback device

    CPU_ARMS = ("pgbraid quic", "pgbraid quic, edge", "pgbraid tcp",
                "pgbraid tls", "pgbouncer tcp", "pgbouncer tls")

    def here(self, name):
        """A pooler on this host's loopback device, started when first asked
        for."""
        if name not in self.local:
            self.local[name] = self.start_here(name)
        return self.local[name]

    def start_here(self, name, tag=""):
        """TLS and plain ones are different processes: a certificate in the
        configuration is not free for plain connections everywhere."""
        program = self.program
        if not name.startswith("pgbraid"):
            program = self.shop.path("pgbouncer")
        if not os.path.exists(program):
            self.shop.bring(self.run.need_bouncer(), "pgbouncer")
        return Pooler(self, name.replace(" ", "-") + tag, program,
                      "127.0.0.1", tls=not name.endswith("tcp"),
                      quic=name.endswith("quic"))

    def local_args(self, arm, sessions, connections):
        """The arguments of load, and whom to watch."""
        name = arm.split(",")[0]
        pooler, kind = self.here(name), name.split()[1]
        if arm.endswith("edge"):
            if not hasattr(self, "local_edge"):
                folder = self.shop.make_dir("le")
                proc = self.shop.start(
                    [self.program, "edge", f"--listen={folder}",
                     f"--to=quic://127.0.0.1:{pooler.port}",
                     f"--ca={self.cert}", "--quic_connections=4",
                     "--quic_streams_per_connection=10000", "-q"], "le.log")
                wait_path(folder + "/.s.PGSQL.6432", proc,
                          self.shop.path("le.log"))
                self.local_edge = (folder, proc)
            folder, proc = self.local_edge
            return (["--to", folder, "--port", 6432, "--sessions", sessions],
                    {"pooler": pooler.pids(),
                     "edge": pglib.process_tree(proc.pid)})
        args = self.over(kind, sessions, connections, "127.0.0.1",
                         pooler.port)
        return args, {"pooler": pooler.pids()}

    def cpu_steps(self):
        def work(arm, turn):
            args, watch = self.local_args(arm, 256, 4)
            got = self.load.run(
                args + ["--warmup", 1, "--duration", self.seconds, "--sql",
                        ROW], watch=watch)
            got["sum_us"] = got["pooler_us"] + got.get("edge_us", 0)
            self.samples["cpu"].add(arm=arm, round=turn, **got)
        yield from self.each("CPU per transaction", self.CPU_ARMS, work,
                             self.seconds + 3, self.rounds + 1)

    def write_cpu(self):
        s, r = self.samples["cpu"], self.report
        r.heading("CPU per transaction, 256 sessions, loopback", 3)
        r.text("""One worker against one process, closed loop, the same servers
            over a Unix socket. The kernel's work for a loopback packet is
            charged to its sender. The edge is a process of its own, on another
            machine in real use.""")
        rows = []
        for arm in self.CPU_ARMS:
            if not s.of(arm=arm):
                continue
            mine = {"arm": arm}
            rows.append([arm, number(s.median("per_second", **mine), 0)]
                        + [number(s.median(k, **mine), 2) for k in
                           ("pooler_us", "pooler_user_us", "edge_us",
                            "sum_us")]
                        + [spread(s.ratio("pooler_us", mine, {"arm": x}))
                           for x in ("pgbouncer tls", "pgbouncer tcp")])
        r.table("quic-cpu", ["clients", "/s", "pooler \u00b5s", "of it user",
                             "edge \u00b5s", "sum \u00b5s",
                             "pooler / pgbouncer tls",
                             "pooler / pgbouncer tcp"], rows)
        arms = [a for a in self.CPU_ARMS if s.of(arm=a)]
        r.plot(r.plots.bars(
            "quic-cpu", "Processor time per transaction, 256 sessions",
            [a.replace(", ", "|").replace(" ", "|", 1) for a in arms],
            [("pooler", [s.median("pooler_us", arm=a) for a in arms]),
             ("edge", [s.median("edge_us", arm=a) for a in arms])],
            "\u00b5s per transaction"),
            "CPU per transaction by kind of client")

    # Memory

    MEMORY_ARMS = ("pgbraid quic", "pgbraid tcp", "pgbraid tls",
                   "pgbouncer tcp", "pgbouncer tls")

    def memory_steps(self):
        n = 2000 if self.run.quick else 10000

        def work(arm, turn):
            # A new process: what another has freed would be used again.
            pooler, kind = self.start_here(arm, "-memory"), arm.split()[1]
            few, many = (self.over(kind, count, conns, "127.0.0.1",
                                   pooler.port)
                         for count, conns in ((10, 4), (n, n // 40)))
            self.load.run(few + ["--duration", 1])  # servers are there
            time.sleep(1)
            user = pglib.private_bytes(pooler.pids())
            kernel = runlib.slab_bytes()
            holder = self.load.hold(many + ["--open-at-once", 64])
            time.sleep(1)
            user = pglib.private_bytes(pooler.pids()) - user
            kernel = runlib.slab_bytes() - kernel
            holder.stdin.close()
            holder.stdout.read()
            self.shop.stop(holder)
            self.shop.stop(pooler.proc)
            self.samples["memory"].add(arm=arm, round=turn, sessions=n,
                                       user=user / n, kernel=kernel / n / 2)
        yield from self.each(f"memory of {n} idle sessions", self.MEMORY_ARMS,
                             work, 6 + n / 500, 1)

    def write_memory(self):
        s, r = self.samples["memory"], self.report
        r.heading("Memory of an idle session", 3)
        n = s.rows[0]["sessions"] if s.rows else 0
        r.text(f"""{n:,} sessions logged in, each asked once. User: growth of
            the pooler's anonymous memory. Kernel: growth of the machine's
            object memory (slab), halved, since both ends are here. QUIC: 40
            streams to a connection, the connection's memory included.""")
        r.table("quic-memory", ["clients", "user KiB", "kernel KiB",
                                "sum KiB"],
                [[a, number(s.median("user", arm=a) / 1024, 2),
                  number(s.median("kernel", arm=a) / 1024, 2),
                  number((s.median("user", arm=a) +
                          s.median("kernel", arm=a)) / 1024, 2)]
                 for a in self.MEMORY_ARMS if s.of(arm=a)])

    def write_summary(self):
        s, best = self.samples, None
        rates = s["rates"]
        arm = self.RATE_ARMS[2]
        for rate in self.rates():
            m = {"arm": arm, "rate": rate}
            if (rates.median("mean_ms", **m) or 1e9) <= 40:
                best = m
        ramp = {a[0]: s["ramp"].of(arm=a[0]) for a in self.RAMP_ARMS}
        tcp, quic = ramp[self.RAMP_ARMS[0][0]], ramp[self.RAMP_ARMS[2][0]]
        rows = [["10 TCP connections as a pool over 30.5 ms",
                 "333 queries/s at most (arithmetic at 30 ms)",
                 number(s["wall"].median("per_second"), 0) + " queries/s"]]
        if best:
            rows.append([
                "through QUIC connections", "9,718 queries/s at 246 ms (50)",
                f"{number(rates.median('per_second', **best), 0)} queries/s at "
                f"{number(rates.median('mean_ms', **best), 0)} ms (10, through "
                "an edge, the highest rate below 40 ms)"])
        if tcp and quic:
            rows.append([
                "the ramp's end, 500 TCP connections",
                "7,088 ms, more than 40,000 queries queued",
                f"{number(tcp[-1]['mean_ms'], 0)} ms, "
                f"{number(tcp[-1]['queue'], 0)} queued"])
            rows.append([
                "the ramp's end, 50 x 40 QUIC streams", "246 ms",
                f"{number(quic[-1]['mean_ms'], 0)} ms, "
                f"{number(quic[-1]['queue'], 0)} queued"])
        rows += [["CPU of the pooler per transaction, QUIC clients to "
                  + n.replace("pgbouncer", "PgBouncer's with")
                  + " clients", "not stated",
                  spread(s["cpu"].ratio("pooler_us", {"arm": "pgbraid quic"},
                                        {"arm": n}))]
                 for n in ("pgbouncer tls", "pgbouncer tcp")]
        self.report.summary("quic", rows)

    def write(self):
        self.report.heading("Thousands of sessions over a long way (quic)")
        self.write_summary()
        for name, part in (
                ("rates", self.write_wall), ("burst", self.write_burst),
                ("ramp", self.write_ramp), ("loss", self.write_loss),
                ("rtt", self.write_rtt), ("storm", self.write_storm),
                ("copy", self.write_copy),
                ("transactions", self.write_transactions),
                ("first", self.write_first), ("cpu", self.write_cpu),
                ("memory", self.write_memory)):
            if self.samples[name].rows:
                part()
