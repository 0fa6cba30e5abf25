# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/run poolers: one worker against one process of the other poolers."""
import argparse

import pglib
import runlib
from runlib import LIMIT_MARK, Step, interleave, number, spread

poolers = runlib.load_module("poolers")
bulk = runlib.load_module("bulk")

POOL = 32
ROW = "SELECT abalance FROM pgbench_accounts WHERE aid = {1-1000000}"


def bench_args(run, **kw):
    """What bench/poolers would have read from its command line."""
    values = {"clients": [POOL], "modes": ["simple"], "seconds": 2,
              "rounds": 2, "pool_size": POOL, "jobs": 2, "unix_server": False,
              "connect": False, "tls": True, "idle": 0, "targets": None,
              "pgbraid": run.pgbraid, "relay": run.relay,
              "idle_program": None, "extra_pgbouncer": None}
    values.update(kw)
    return argparse.Namespace(**values)


class Bench(poolers.Bench):
    """bench/poolers with the pgbouncer of this run, and more settings."""
    bouncer = None
    tpcb = False

    def bouncers(self):
        return [poolers.make_bouncer(self.bouncer)] if self.bouncer else []

    def pgbench_script(self):
        return [] if self.tpcb else super().pgbench_script()

    def measure_once(self, target, mode, clients, seconds, kind):
        dbname = target.dbname(mode, clients)
        if dbname is None:
            return None
        self.tpcb = kind == "tpcb"
        machine = runlib.Processors()
        got = self.pgbench(target, mode, clients, seconds, dbname,
                           "plain" if kind == "tpcb" else kind)
        if got:
            got["idle"] = machine.idle()
        return got


class PgbenchSection:
    """Cells of (kind, mode, clients) for all targets of a Bench."""

    def __init__(self, run):
        self.run, self.report = run, run.report
        self.shops = []
        self.failed = set()
        q = run.quick
        self.rounds = run.rounds or (1 if q else 3)
        self.seconds = run.seconds or (2 if q else 4)

    def close(self):
        for shop in self.shops:
            shop.close()

    def make_bench(self, cls, name, **kw):
        shop = pglib.Workshop(name)
        self.shops.append(shop)
        cls.bouncer = self.run.bouncer
        bench = cls(bench_args(self.run, **kw), shop)
        bench.launch_targets()
        self.run.notes += bench.notes
        bench.notes.clear()
        return bench

    def one(self, samples, bench, target, turn, cell, seconds=None):
        key = (id(samples), target.name, cell)
        if key in self.failed:
            return
        kind, mode, clients = cell
        got = bench.measure_once(target, mode, clients,
                                 seconds or self.seconds, kind)
        self.run.notes += bench.notes
        bench.notes.clear()
        if got is None:
            self.failed.add(key)
        elif turn > 0:
            samples.add(target=target.name, kind=kind, mode=mode,
                        clients=clients, round=turn, **got)

    def turns(self, samples, bench, turn, cell):
        """All targets once, another one first each time."""
        targets = bench.targets_of(cell[0])
        k = turn % len(targets) if targets else 0
        for target in targets[k:] + targets[:k]:
            self.one(samples, bench, target, turn, cell,
                     1 if turn == 0 else None)

    def cell_steps(self, title, samples, get_bench, cells, n_targets):
        for cell in cells:
            for turn in range(0, self.rounds + 1):
                seconds = (1 if turn == 0 else self.seconds) + 0.4
                yield Step(
                    f"{self.name}: {title}, {cell[0]} {cell[1]}, {cell[2]} "
                    f"clients, " + (f"round {turn}" if turn else "warming up"),
                    n_targets * seconds,
                    lambda turn=turn, cell=cell: self.turns(
                        samples, get_bench(), turn, cell))

    @staticmethod
    def bouncer_of(samples):
        found = [n for n in samples.values("target") if n.startswith("pgb") and
                 "bouncer" in n and "x" not in n.split()[-1]]
        return found[0] if found else None

    def table(self, name, samples, cells, note=None):
        reference = self.bouncer_of(samples)
        rows = []
        for kind, mode, clients in cells:
            for target in samples.values("target"):
                m = {"kind": kind, "mode": mode, "clients": clients,
                     "target": target}
                if not samples.of(**m):
                    continue
                mark = LIMIT_MARK if samples.was_limited(**m) else ""
                title = {"plain": mode, "tpcb": "TPC-B", "tls": mode + ", TLS",
                         "connect": "connection per transaction"}[kind]
                cpu = samples.median("cpu_us", **m)
                row = [f"{title}, {clients}", target,
                       number(samples.median("tps", **m), 0) + mark]
                row += [number(samples.median(k, **m)) for k in
                        ("lat_ms", "p99_ms")]
                row.append(number(cpu, 1) if cpu else "-")
                row.append(number(samples.median("switches", **m)) if cpu
                           else "-")
                for ref in (reference, "relay"):
                    row.append(spread(samples.ratio(
                        "cpu_us", m, dict(m, target=ref))) if cpu else "-")
                row.append(spread(samples.ratio(
                    "tps", m, dict(m, target=reference))))
                rows.append(row)
        self.report.table(name, ["pgbench, clients", "target", "tps",
                                 "mean ms", "p99 ms", "CPU \u00b5s",
                                 "switches", "CPU / pgbouncer", "CPU / relay",
                                 "tps / pgbouncer"], rows, note)


class Poolers(PgbenchSection):
    name = "poolers"

    def __init__(self, run):
        super().__init__(run)
        for name in ("tcp", "unix", "clients", "latency", "rows", "copy"):
            setattr(self, name, run.report.samples("poolers-" + name))
        self.benches = {}
        modes = [("plain", m, POOL) for m in poolers.MODES]
        self.tcp_cells = modes + [("tpcb", "simple", POOL),
                                  ("connect", "simple", 8),
                                  ("tls", "simple", POOL)]
        self.unix_cells = [modes[0], modes[2]]
        if not run.quick:
            self.tcp_cells += [("plain", "simple", 8), ("plain", "prepared", 8),
                               ("plain", "simple", 256),
                               ("tls", "prepared", POOL)]
            self.unix_cells += [("plain", "simple", 8),
                                ("plain", "prepared", 8)]

    def steps(self):
        yield Step("poolers: PostgreSQL and poolers over TCP", 10,
                   lambda: self.open("tcp"), always=True)
        yield from self.cell_steps("TCP", self.tcp, lambda:
                                   self.benches["tcp"], self.tcp_cells, 5)
        yield from self.load_steps()
        yield from self.copy_steps()
        yield Step("poolers: the same with PostgreSQL on its Unix socket", 10,
                   lambda: self.open("unix"), always=True)
        yield from self.cell_steps("Unix", self.unix, lambda:
                                   self.benches["unix"], self.unix_cells, 5)

    def open(self, kind):
        for shop in self.shops:
            shop.close()
        self.benches[kind] = self.make_bench(
            Bench, "poolers", tls=kind == "tcp", unix_server=kind == "unix",
            clients=[256])
        self.load = runlib.Load(self.shops[-1], self.run.load)

    # With bench/load: latency at low load, many clients, large rows

    def targets(self, pooling=False):
        return [t.name for t in self.benches["tcp"].targets
                if t.is_pooler or not pooling]

    def loaded(self, samples, name, turn, args, **keys):
        target = next(t for t in self.benches["tcp"].targets
                      if t.name == name)
        got = self.load.run(
            ["--to", f"tcp://127.0.0.1:{target.port}", *args],
            watch={"cpu": target.pids()})
        got["idle"] = got["idle"]
        samples.add(target=name, round=turn, **keys, **got)

    def load_counts(self):
        return (1, 100, 2000) if self.run.quick else (1, 10, 100, 1000, 10000)

    def latency_cells(self):
        return ((1, 100), (8, 400), (32, 800))

    def load_steps(self):
        """Which targets there are is known only when these run."""
        for turn in range(1, self.rounds + 1):
            for clients, rate in self.latency_cells():
                yield Step(f"poolers: latency at {rate}/s, round {turn}",
                           6 * (self.seconds + 1),
                           lambda turn=turn, clients=clients, rate=rate:
                           self.latency_turn(turn, clients, rate))
            for clients in self.load_counts():
                yield Step(f"poolers: {clients} clients, round {turn}",
                           2 * (self.seconds + 2 + clients / 2000),
                           lambda turn=turn, clients=clients:
                           self.clients_turn(turn, clients))
            yield Step(f"poolers: large rows, round {turn}",
                       6 * (self.seconds + 1),
                       lambda turn=turn: self.rows_turn(turn))

    def in_turn(self, names, turn):
        k = turn % len(names)
        return names[k:] + names[:k]

    def latency_turn(self, turn, clients, rate):
        for name in self.in_turn(self.targets(), turn):
            self.loaded(self.latency, name, turn,
                        ["--sessions", clients, "--rate", rate, "--warmup",
                         0.5, "--duration", self.seconds, "--sql", ROW],
                        clients=clients, rate=rate)

    def clients_turn(self, turn, clients):
        for name in self.in_turn(self.targets(True), turn):
            if name.startswith(("pgbraid", "pgbouncer")) and clients < 4000:
                self.loaded(self.clients, name, turn,
                            ["--sessions", clients, "--warmup", 0.5,
                             "--duration", self.seconds, "--sql", ROW],
                            clients=clients)
            elif name.startswith(("pgbraid", "pgbouncer")):
                self.many(name, turn, clients)

    def many(self, name, turn, clients):
        """More than the processes at hand let in: one of its own."""
        bench = self.benches["tcp"]
        target = bench.pgbraid() if name == "pgbraid" else bench.bouncers()[0]
        target.launch(bench, clients + 1000, file=f"{target.name}-{clients}-"
                                                  f"{turn}".replace(" ", "-"))
        bench.targets.append(target)
        target.name = name + " many"
        try:
            got = self.load.run(
                ["--to", f"tcp://127.0.0.1:{target.port}", "--sessions",
                 clients, "--warmup", 1, "--duration", self.seconds, "--sql",
                 ROW], watch={"cpu": target.pids()})
            self.clients.add(target=name, round=turn, clients=clients, **got)
        finally:
            bench.targets.remove(target)
            bench.shop.stop(target.proc)

    def rows_turn(self, turn):
        for name in self.in_turn(self.targets(), turn):
            self.loaded(self.rows, name, turn,
                        ["--sessions", 8, "--warmup", 0.5, "--duration",
                         self.seconds, "--sql",
                         "SELECT repeat('x', 100000)"])

    # COPY, with the code of bench/bulk

    def copy_steps(self):
        mb = 60 if self.run.quick else 400
        yield Step("poolers: COPY, warming up", 6, lambda: self.open_copy(mb),
                   always=True)
        for turn in range(1, self.rounds + 1):
            yield Step(f"poolers: COPY of {mb} MB out and in, round {turn}",
                       mb / 20, lambda turn=turn: self.copy_turn(turn, mb))

    def open_copy(self, mb):
        bench = self.benches["tcp"]
        bench.cluster.psql("CREATE UNLOGGED TABLE bulk (v text)")
        args = argparse.Namespace(pgbraid=self.run.pgbraid, extra_pgbraid=[])
        self.copiers = [t for t in bulk.find_targets(args)
                        if not t.name.startswith("pgbouncer")]
        if self.run.bouncer:
            self.copiers += [
                bulk.Target("pgbouncer", self.run.bouncer),
                bulk.Target("pgbouncer pkt_buf=65536", self.run.bouncer,
                            "pkt_buf = 65536\n")]
        for target in self.copiers:
            target.name = "copy " + target.name
            target.launch(bench.shop, bench.cluster, bench.users, "127.0.0.1")
            target.measure("out", 20000, 500)

    def copy_turn(self, turn, mb):
        for _, target in interleave(self.copiers, 1):
            for way in ("out", "in"):
                speed, cpu, user = target.measure(way, mb * 2000, 500)
                self.copy.add(target=target.name[5:], way=way, round=turn,
                              mb_s=speed, cpu_s_gb=cpu or None,
                              user_s_gb=user or None)

    # The report

    def write(self):
        r = self.report
        r.heading("One worker beside one process of other poolers (poolers)")
        r.text(f"""pgbench against a pool of {POOL} servers. CPU is the pooler's
            own processor time per transaction, switches its context switches.
            relay (bench/relay) is what no pooler can do without: two receives
            and two sends.""")
        self.write_summary()
        r.heading("PostgreSQL over TCP", 3)
        self.table("poolers-tcp", self.tcp, self.tcp_cells)
        self.plot_cpu()
        r.heading("PostgreSQL on its Unix socket", 3)
        self.table("poolers-unix", self.unix, self.unix_cells)
        self.write_latency()
        self.write_clients()
        self.write_rows()

    def write_summary(self):
        """What README shows."""
        rows = []
        for samples, way in ((self.tcp, "TCP"), (self.unix, "Unix socket")):
            reference = self.bouncer_of(samples) if samples.rows else None
            for kind, mode, clients in self.tcp_cells:
                m = {"kind": kind, "mode": mode, "clients": clients,
                     "target": "pgbraid"}
                theirs = dict(m, target=reference)
                if kind == "tpcb" or not samples.of(**m) or \
                        not samples.of(**theirs):
                    continue
                name = {"plain": mode, "tls": mode + ", TLS",
                        "connect": "a connection per query"}[kind]
                rows.append(
                    [f"{clients}, {name}", way,
                     number(samples.median("cpu_us", **m), 1) + " \u00b5s",
                     number(samples.median("cpu_us", **theirs), 1) +
                     " \u00b5s"]
                    + [spread(samples.ratio(key, m, dict(m, target=ref)))
                       for key, ref in (("cpu_us", reference),
                                        ("cpu_us", "relay"),
                                        ("tps", reference))])
        self.report.table("summary-poolers", [
            "clients, mode", "PostgreSQL by", "pgbraid", "PgBouncer",
            "CPU against PgBouncer", "CPU against a bare relay",
            "throughput against PgBouncer"], rows)

    def plot_cpu(self):
        s, r = self.tcp, self.report
        names = [n for n in s.values("target") if s.median("cpu_us", target=n)
                 ] if s.rows else []
        labels, cells = [], []
        for kind, mode, clients in self.tcp_cells:
            if clients == POOL and s.of(kind=kind, mode=mode,
                                        clients=clients) and kind != "tpcb":
                labels.append(mode + (", TLS" if kind == "tls" else ""))
                cells.append({"kind": kind, "mode": mode, "clients": clients})
        if labels:
            r.plot(r.plots.bars(
                "poolers-cpu", f"Pooler's CPU per transaction, {POOL} clients",
                labels, [(n, [s.median("cpu_us", target=n, **c)
                              for c in cells]) for n in names],
                "\u00b5s per transaction"), "CPU per transaction")

    def write_latency(self):
        s, r = self.latency, self.report
        r.heading("Latency added at low load", 3)
        r.text("""Arrivals at a rate that leaves the machine idle most of the
            time. Added: what the median of the rounds is above a direct
            connection's.""")
        rows, groups = [], {}
        for clients, rate in self.latency_cells():
            direct = {k: s.median(k, target="PostgreSQL", clients=clients)
                      for k in ("p50_ms", "p99_ms", "p999_ms")}
            for name in (s.values("target") if s.rows else []):
                m = {"target": name, "clients": clients}
                added = [None if s.median(k, **m) is None or v is None else
                         (s.median(k, **m) - v) * 1000
                         for k, v in direct.items()]
                groups.setdefault(name, []).append(added[1])
                rows.append([f"{clients} at {rate}/s", name]
                            + [number(s.median(k, **m), 3) for k in direct]
                            + [number(a, 0) for a in added])
        r.table("poolers-latency", ["clients", "target", "p50 ms", "p99 ms",
                                    "p99.9 ms", "p50 added \u00b5s",
                                    "p99 added \u00b5s",
                                    "p99.9 added \u00b5s"], rows)
        groups.pop("PostgreSQL", None)
        if groups:
            r.plot(r.plots.bars(
                "poolers-latency", "p99 latency added over a direct connection",
                [f"{c} clients, {x}/s" for c, x in self.latency_cells()],
                list(groups.items()), "\u00b5s", "set yrange [*:*]"),
                "Latency added at low load")

    def write_clients(self):
        s, r = self.clients, self.report
        if not s.rows:
            return
        r.heading("From one client to many", 3)
        r.text(f"""Closed loop over TCP, {POOL} servers. With many clients most
            of the latency is waiting for one of them.""")
        rows, series = [], []
        for name in s.values("target"):
            points = []
            for clients in self.load_counts():
                m = {"target": name, "clients": clients}
                if not s.of(**m):
                    continue
                mark = LIMIT_MARK if s.was_limited(**m) else ""
                points.append((clients, s.median("cpu_us", **m)))
                rows.append([f"{clients:,}", name,
                             number(s.median("per_second", **m), 0) + mark,
                             number(s.median("mean_ms", **m)),
                             number(s.median("p99_ms", **m)),
                             number(points[-1][1], 1)])
            series.append((name, points))
        r.table("poolers-clients", ["clients", "target", "/s", "mean ms",
                                    "p99 ms", "CPU \u00b5s"], rows)
        r.plot(r.plots.lines(
            "poolers-clients", "Pooler's CPU per query, by number of clients",
            series, "clients", "\u00b5s per query",
            "set logscale x\nset yrange [0:]"), "CPU over clients")

    def write_rows(self):
        s, c, r = self.rows, self.copy, self.report
        r.heading("Large rows and COPY", 3)
        if s.rows:
            r.text("One row of 100 kB per query, 8 clients, closed loop:")
            r.table("poolers-rows", ["target", "/s", "p99 ms", "CPU \u00b5s"],
                    [[n, number(s.median("per_second", target=n), 0)
                      + (LIMIT_MARK if s.was_limited(target=n) else ""),
                      number(s.median("p99_ms", target=n)),
                      number(s.median("cpu_us", target=n), 1)]
                     for n in s.values("target")])
        if not c.rows:
            return
        reference = [n for n in c.values("target") if n.startswith("pgbounc")]
        rows = []
        for way in ("out", "in"):
            best = min((n for n in reference), default=None, key=lambda n:
                       c.median("cpu_s_gb", target=n, way=way) or 1e9)
            for name in c.values("target"):
                m = {"target": name, "way": way}
                rows.append([f"COPY {way}", name,
                             number(c.median("mb_s", **m), 0),
                             number(c.median("cpu_s_gb", **m), 3),
                             spread(c.ratio("cpu_s_gb", m, dict(
                                 m, target=best))) if best else "-"])
        r.text("COPY of rows of 500 bytes:")
        r.table("poolers-copy", ["", "target", "MB/s", "CPU s/GB",
                                 "CPU / the better pgbouncer"], rows)
