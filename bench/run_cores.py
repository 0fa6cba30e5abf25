# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/run cores: one process with worker threads beside a fleet."""
import os
import tempfile
import threading
import time

import pglib
import pgwire
import runlib
from run_poolers import Bench, PgbenchSection, poolers
from runlib import LIMIT_MARK, Step, number, spread

POOL = 32
CANCELS = 40


class Fleet(poolers.Bouncer):
    """PgBouncers on one port, with peers for cancels, and the budget divided
    among them."""

    def __init__(self, program, n):
        super().__init__(f"pgbouncer x{n}", program,
                         "max_prepared_statements = 200\n")
        self.n, self.procs = n, []

    def launch(self, bench, max_clients=4000):
        shop, self.port = bench.shop, pglib.free_port()
        self.pool_size = max(1, bench.args.pool_size // self.n)
        folders = [shop.make_dir(f"f{i}") for i in range(self.n)]
        peers = "[peers]\n" + "".join(
            f"{i + 1} = host={f} port={self.port}\n"
            for i, f in enumerate(folders))
        program = shop.bring(self.program, "pgbouncer-fleet")
        for i, folder in enumerate(folders):
            text = self.CONFIG.format(
                host="127.0.0.1", server_port=bench.cluster.port,
                port=self.port, users=bench.users, pool_size=self.pool_size,
                max_clients=max_clients) + self.more
            text += (f"so_reuseport = 1\npeer_id = {i + 1}\n"
                     f"unix_socket_dir = {folder}\n") + peers
            log = f"fleet{i}.log"
            proc = shop.start([program, shop.write(f"fleet{i}.ini", text)],
                              log)
            self.procs.append(proc)
            pglib.wait_port(self.port, proc, shop.path(log))
        self.proc = self.procs[0]

    def pids(self):
        return [pid for p in self.procs for pid in pglib.process_tree(p.pid)]


class CoresBench(Bench):
    workers = (1, 2)
    n_fleet = 2

    def worker_target(self, n):
        more = f"max_prepared_statements = 200\nworkers = {n}\n"
        name = "pgbraid, 1 worker" if n == 1 else f"pgbraid, {n} workers"
        return poolers.Bouncer(name, os.path.abspath(self.args.pgbraid), more)

    def candidates(self):
        for n in self.workers:
            yield self.worker_target(n)
        if self.bouncer:
            yield poolers.Bouncer("pgbouncer", self.bouncer,
                                  "max_prepared_statements = 200\n")
            yield Fleet(self.bouncer, self.n_fleet)
        for found, cls, one, many in (
                (self.odyssey, poolers.Odyssey, "workers 1", "workers {}"),
                (self.haproxy, poolers.Haproxy, "nbthread 1", "nbthread {}")):
            if found:
                target = cls(f"{cls.__name__.lower()}, {self.n_fleet} threads")
                target.CONFIG = target.CONFIG.replace(
                    one, many.format(self.n_fleet))
                yield target

    def launch_targets(self):
        super().launch_targets()
        self.notes = [n for n in self.notes if not n.startswith("relay")]


class Cores(PgbenchSection):
    name = "cores"

    def __init__(self, run):
        super().__init__(run)
        n = run.args.workers or len(os.sched_getaffinity(0))
        self.n = max(2, n)
        self.select = run.report.samples("cores-select")
        self.switches = run.report.samples("cores-switches")
        self.waiting = run.report.samples("cores-waiting")
        self.cancels = run.report.samples("cores-cancels")
        counts = (8, 64, 256) if run.quick else (8, 32, 64, 128, 256)
        self.cells = [("plain", "simple", c) for c in counts]

    def steps(self):
        yield Step("cores: PostgreSQL and poolers", 10, self.open,
                   always=True)
        yield from self.cell_steps("SELECT", self.select, lambda: self.bench,
                                   self.cells, 5)
        yield from self.switch_steps()
        yield Step("cores: cancels through the fleet", 8, self.cancel_all)
        yield Step("cores: heavy and light clients",
                   25 if self.run.quick else 60, self.wait)

    def open(self):
        CoresBench.workers = (1, self.n)
        CoresBench.n_fleet = self.n
        self.bench = self.make_bench(CoresBench, "cores", tls=False,
                                     clients=[256], pool_size=POOL)

    # Wake-ups by number of workers

    def worker_counts(self):
        return (1, 2, 4, 8)

    def switch_steps(self):
        def start():
            self.by_workers = {}
            for n in self.worker_counts():
                target = self.bench.worker_target(n)
                target.name = f"{n} of 1-2-4-8"
                target.launch(self.bench)
                self.by_workers[n] = target
        yield Step("cores: 1, 2, 4 and 8 workers", 3, start,
                   always=True)
        for clients in (8, 64):
            for turn in range(1, self.rounds + 1):
                def work(turn=turn, clients=clients):
                    for n, target in self.by_workers.items():
                        got = self.bench.measure_once(
                            target, "simple", clients, self.seconds, "plain")
                        if got:
                            self.switches.add(workers=n, clients=clients,
                                              round=turn, **got)
                yield Step(f"cores: wake-ups, {clients} clients, round {turn}",
                           4 * (self.seconds + 0.5), work)

    # Cancels

    def cancel_all(self):
        for target in self.bench.targets:
            if target.name in ("pgbraid, 1 worker", "pgbouncer") or \
                    not target.is_pooler:
                continue
            self.cancels.add(target=target.name, **self.cancel(target.port))

    @staticmethod
    def cancel(port):
        """CANCELS times a query, and its cancel through another connection;
        how many of them ended by it."""
        deadline = time.monotonic() + 90
        hits, waits, sessions = 0, [], []
        for _ in range(8):
            c = pgwire.Connection(("127.0.0.1", port), deadline)
            c.login("postgres", "postgres")
            sessions.append(c)
        for i in range(CANCELS):
            c = sessions[i % len(sessions)]
            start = time.monotonic()
            c.send(pgwire.query("SELECT pg_sleep(1)"))
            timer = threading.Timer(0.02, c.cancel)
            timer.start()
            messages = c.receive_until_ready()
            timer.join()
            took = time.monotonic() - start - 0.02
            if any(m[0] in (b"E", "E") for m in messages):
                hits += 1
                waits.append(took * 1000)
        for c in sessions:
            c.quit()
        return {"sent": CANCELS, "hits": hits,
                "mean_ms": sum(waits) / len(waits) if waits else None}

    # Waiting, by bench/waiting

    def wait(self):
        with tempfile.TemporaryDirectory(prefix="pgbraid-run-") as folder:
            path = os.path.join(folder, "waiting.csv")
            argv = [os.path.join(pglib.HERE, "waiting"), "--pgbraid",
                    self.run.pgbraid, "--csv", path]
            if self.run.bouncer:
                argv += ["--pgbouncer", self.run.bouncer]
            if self.run.quick:
                argv += ["--rounds", "2", "--seconds", "2"]
            runlib.run_tool(argv, 900)
            for row in runlib.read_rows(path):
                self.waiting.add(**{k: self.value(v) for k, v in row.items()})

    @staticmethod
    def value(text):
        try:
            return float(text)
        except ValueError:
            return text

    # The report

    def write(self):
        r = self.report
        r.heading("Every core (cores)")
        r.text(f"""pgbench -S (simple) against {POOL} servers: one process of
            pgbraid with one and with {self.n} workers, one PgBouncer, and
            {self.n} PgBouncers on one port with so_reuseport, peers and a
            budget of {POOL // self.n} servers each. This machine has
            {len(os.sched_getaffinity(0))} processors, which pgbench and
            PostgreSQL use as well.""")
        self.write_summary()
        self.table("cores-select", self.select, self.cells)
        s = self.select
        if s.rows:
            counts = [c for _, _, c in self.cells]
            r.plot(r.plots.bars(
                "cores-tps", "pgbench -S by number of clients",
                [f"{c} clients" for c in counts],
                [(n, [s.median("tps", target=n, clients=c) for c in counts])
                 for n in s.values("target")], "transactions/s"),
                "Throughput by clients")
            r.plot(r.plots.bars(
                "cores-cpu", "Pooler's CPU per transaction",
                [f"{c} clients" for c in counts],
                [(n, [s.median("cpu_us", target=n, clients=c)
                      for c in counts])
                 for n in s.values("target")], "\u00b5s per transaction"),
                "CPU per transaction by clients")
        self.write_switches()
        self.write_waiting()
        r.heading("Cancels", 3)
        r.text(f"""{CANCELS} cancels, one after the other, each over a new
            connection, which the kernel gives to any process or worker.""")
        r.table("cores-cancels", ["target", "sent", "hit their query",
                                  "mean ms"],
                [[x["target"], x["sent"], x["hits"], number(x["mean_ms"], 1)]
                 for x in self.cancels.rows])

    def write_summary(self):
        s = self.select
        if not s.rows:
            return
        most = max(c for _, _, c in self.cells)
        names = {n: f"{n}" for n in s.values("target")}
        fleet = next((n for n in names if n.startswith("pgbouncer x")), None)

        def pair(ours, theirs, clients):
            m = {"target": ours, "clients": clients}
            return spread(s.ratio("tps", m, dict(m, target=theirs)))
        many = f"pgbraid, {self.n} workers"
        rows = [[f"{clients} clients: fleet to one PgBouncer", published,
                 pair(fleet, "pgbouncer", clients)]
                for clients, published in (
                    (8, "0.72 (6,450 to 8,910 tps), 16 processes"),
                    (most, "3.9 (336,000 to 87,000 tps), 16 processes"))]
        rows += [[f"{clients} clients: {self.n} workers to the fleet",
                  "not stated", pair(many, fleet, clients)]
                 for clients in (8, most)]
        rows += [[f"{clients} clients: {self.n} workers to one",
                  "not stated", pair(many, "pgbraid, 1 worker", clients)]
                 for clients in (8, most)]
        self.report.summary("cores", rows)

    def write_switches(self):
        s, r = self.switches, self.report
        r.heading("More workers than work", 3)
        rows = []
        for clients in (8, 64):
            for n in self.worker_counts():
                m = {"workers": n, "clients": clients}
                if not s.of(**m):
                    continue
                mark = LIMIT_MARK if s.was_limited(**m) else ""
                rows.append([str(clients), str(n),
                             number(s.median("tps", **m), 0) + mark]
                            + [number(s.median(k, **m)) for k in
                               ("cpu_us", "switches")]
                            + [spread(s.ratio("cpu_us", m,
                                              dict(m, workers=1)))])
        r.table("cores-workers", ["clients", "workers", "tps", "CPU \u00b5s",
                                  "switches per transaction",
                                  "CPU / 1 worker"], rows)

    def write_waiting(self):
        s, r = self.waiting, self.report
        r.heading("Heavy and light clients", 3)
        r.text("""bench/waiting: 200 clients share 4 servers, 10 of them with
            long queries; two workers with one budget, two PgBouncers with two
            servers each, one PgBouncer with four.""")
        if not s.rows:
            r.text("It could not be measured.")
            return
        keys = [k for k in s.rows[0] if isinstance(s.rows[0][k], float) and
                k not in ("round", "seed")]
        names = [k for k in s.rows[0] if k not in keys and
                 k not in ("round", "seed")]
        rows = []
        for labels in dict.fromkeys(tuple(x[n] for n in names)
                                    for x in s.rows):
            m = dict(zip(names, labels))
            rows.append(list(labels) + [number(s.median(k, **m), 1)
                                        for k in keys])
        r.table("cores-waiting", names + keys, rows)
