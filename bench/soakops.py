# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""The clients of bench/soak: what they ask, and what the reply must be.

Each operation carries a token that no other uses, and checks every message
of its reply. Three things may happen to it:

  Wrong    the reply is not this query's: a violation, always
  Stuck    no reply in time: a violation, always
  Harmed   the chaos got it (a server was ended, PostgreSQL is away): this
           client connects again; a violation only in a run without chaos
"""
import random
import threading
import time

import pgwire
from pgwire import (Connection, Gone, Stuck, SYNC, bind, columns, copy_data,
                    describe, execute, fields, parse, query)

DEADLINE_S = 40
LOGIN_DEADLINE_S = 40

# What ended servers and an absent PostgreSQL may look like to a client.
HARM = {"57P01", "57P02", "57P03", "08P01", "08000", "08001", "08003",
        "08004", "08006", "53300"}

DIVISION_BY_ZERO = "22012"
BAD_TEXT = "22P02"
QUERY_CANCELED = "57014"


class Wrong(Exception):
    pass


class Harmed(Exception):
    pass


def row(*values):
    wanted = [v.encode() if isinstance(v, str) else v for v in values]
    return (b"D", lambda body: columns(body) == wanted)


def some(kinds):
    return [(kinds[i:i + 1], None) for i in range(len(kinds))]


def error(code, text=""):
    return (b"E", lambda body: fields(body).get("C") == code
            and text in fields(body).get("M", ""))


class Client(threading.Thread):
    """One client after another, each with some operations."""

    def __init__(self, plan, number, report):
        super().__init__(daemon=True)
        self.plan = plan
        self.report = report
        self.number = number
        self.random = random.Random(f"{plan.seed}/{number}")
        self.role = plan.roles[number % len(plan.roles)]
        self.counts = {}
        self.count = 0
        self.doing = "start"
        self.conn = None
        self.statements = {}
        self.app_name = ""

    def run(self):
        while time.monotonic() < self.plan.end:
            try:
                self.session()
            except Wrong as e:
                self.violation(f"wrong reply: {e}")
            except Stuck as e:
                self.violation(f"stuck: {e}")
            except (Harmed, Gone) as e:
                self.count_op("harmed")
                if not self.plan.has_chaos:
                    self.violation(f"harmed without chaos: {e}")
                time.sleep(self.random.uniform(0.01, 0.3))
            except Exception as e:  # a thread must not end silently
                self.violation(f"{type(e).__name__}: {e}")
            if self.conn:
                self.conn.drop()
                self.conn = None
        self.report("counts", self.counts)

    def violation(self, text):
        self.report("violation", f"client {self.number} "
                    f"({self.role.dbname}), {self.doing}: {text}"[:600])
        time.sleep(0.2)

    def count_op(self, name):
        self.counts[name] = self.counts.get(name, 0) + 1

    def token(self):
        self.count += 1
        return (f"t{self.number}.{self.count}."
                f"{self.random.getrandbits(40):x}")

    # One connection

    def connect(self):
        self.doing = "login"
        where = self.random.choice(self.plan.addresses)
        self.conn = Connection(where, time.monotonic() + LOGIN_DEADLINE_S)
        self.statements = {}
        self.app_name = self.token()
        failed = self.conn.login(self.role.user, self.role.dbname,
                                 application_name=self.app_name)
        if failed:
            if failed.get("C") in HARM:
                raise Harmed(failed.get("M"))
            raise Wrong(f"login: {failed}")

    def session(self):
        rnd = self.random
        if self.plan.has_chaos and rnd.random() < 0.05:
            self.doing = "kill in start-up"
            self.kill_starting()
            return
        self.connect()
        for _ in range(rnd.randint(1, self.role.most_ops)):
            if time.monotonic() >= self.plan.end:
                break
            if self.plan.has_chaos and rnd.random() < 0.03:
                self.doing = "kill"
                self.kill()
                return
            name = rnd.choice(self.role.ops)
            self.doing = name
            self.conn.deadline = time.monotonic() + DEADLINE_S
            getattr(self, "op_" + name)()
            self.count_op(name)
        if rnd.random() < 0.7:
            self.conn.quit()
        else:
            self.conn.drop(reset=rnd.random() < 0.5)
        self.conn = None

    # Checking replies

    def take_one(self, wanted, check=None):
        kind, body = self.conn.receive()
        if kind == b"E" and wanted != b"E":
            self.take_error(fields(body))
        if kind == b"E" and not check(body):
            self.take_error(fields(body))
        if kind != wanted or (check and not check(body)):
            raise Wrong(f"wanted {wanted.decode()}, got {kind.decode()} "
                        f"{body[:120]!r}")
        return body

    @staticmethod
    def take_error(found):
        """F names PostgreSQL's source file: a protocol error that has one
        is PostgreSQL's complaint of what the pooler sent it."""
        code = found.get("C")
        if code in HARM and not (code == "08P01" and "F" in found):
            raise Harmed(found.get("M"))
        raise Wrong(f"error {code} {found.get('M')}")

    def take(self, wanted, ready=b"I"):
        for kind, check in wanted:
            self.take_one(kind, check)
        if ready:
            body = self.take_one(b"Z")
            if body != ready:
                raise Wrong(f"status {body!r}, not {ready!r}")

    def ask(self, sql, wanted, ready=b"I"):
        self.conn.send(query(sql))
        self.take(wanted, ready)

    # Operations

    def op_simple(self):
        tokens = [self.token() for _ in range(self.random.randint(1, 3))]
        wanted = []
        for t in tokens:
            wanted += [(b"T", None), row(t), (b"C", None)]
        self.ask("; ".join(f"SELECT '{t}'" for t in tokens), wanted)

    def op_empty(self):
        self.ask("", some(b"I"))

    def op_error(self):
        t = self.token()
        self.ask(f"SELECT '{t}'::int", [error(BAD_TEXT, t)])

    def op_pipeline(self):
        """Batches of unnamed statements, an error in some of them, and
        Flush or Sync at places of their own."""
        rnd = self.random
        n = rnd.randint(1, 8)
        bad = rnd.randrange(n) if rnd.random() < 0.3 else -1
        syncs_all = rnd.random() < 0.5
        out, wanted = [], []
        is_skipping = False
        for i in range(n):
            t = self.token()
            if i == bad:
                # random() keeps the planner from failing at Bind already.
                out += [parse("", "SELECT 1/($1::int + random()::int * 0)"),
                        bind("", "", ["0"]), execute()]
                wanted += some(b"12") + [error(DIVISION_BY_ZERO)]
                is_skipping = True
            else:
                out += [parse("", f"SELECT $1::text || '-{i}'"),
                        bind("", "", [t]), describe(b"P", ""), execute()]
                if not is_skipping:
                    wanted += (some(b"12T") + [row(f"{t}-{i}")]
                               + some(b"C"))
                    if rnd.random() < 0.1:
                        self.conn.send(b"".join(out) + pgwire.FLUSH)
                        self.take(wanted, None)
                        out, wanted = [], []
            if syncs_all or i == n - 1:
                out.append(SYNC)
                wanted.append((b"Z", lambda body: body == b"I"))
                is_skipping = False
        self.conn.send(b"".join(out))
        self.take(wanted, None)

    def op_portal(self):
        """Rows fetched a few at a time."""
        t = self.token()
        self.conn.send(
            parse("", "SELECT $1::text || g FROM generate_series(1, 5) g")
            + bind("p", "", [t]) + execute("p", 2) + execute("p", 2)
            + execute("p", 2) + SYNC)
        self.take(some(b"12") + [row(t + "1"), row(t + "2")] + some(b"s")
                  + [row(t + "3"), row(t + "4")] + some(b"s")
                  + [row(t + "5")] + some(b"C"))

    def op_named(self):
        """Names that all clients use, each for texts of its own choice."""
        rnd = self.random
        name = f"s{rnd.randrange(6)}"
        out, wanted = [], []
        if name not in self.statements:
            k = rnd.randrange(30)
            out.append(parse(name, f"SELECT $1::text || ':{k}'"))
            wanted += some(b"1")
            self.statements[name] = k
            if rnd.random() < 0.4:
                out.append(SYNC)
                wanted.append((b"Z", lambda body: body == b"I"))
        if rnd.random() < 0.3:
            out.append(describe(b"S", name))
            wanted += some(b"tT")
        for _ in range(rnd.randint(1, 3)):
            t = self.token()
            out += [bind("", name, [t]), execute()]
            wanted += (some(b"2") + [row(f"{t}:{self.statements[name]}")]
                       + some(b"C"))
        if rnd.random() < 0.2:
            out.append(pgwire.close(b"S", name))
            wanted += some(b"3")
            del self.statements[name]
        self.conn.send(b"".join(out) + SYNC)
        self.take(wanted)

    def op_unnamed(self):
        """The unnamed statement must outlast its transaction."""
        t, mark = self.token(), self.token()
        self.conn.send(parse("", f"SELECT '{mark}', $1::text") + SYNC)
        self.take(some(b"1"))
        if self.random.random() < 0.5:
            time.sleep(self.random.uniform(0, 0.02))
        self.conn.send(bind("", "", [t]) + execute() + SYNC)
        self.take(some(b"2") + [row(mark, t)] + some(b"C"))

    def op_transaction(self):
        t = self.token()
        get = "SELECT coalesce(current_setting('soak.token', true), '')"
        self.ask("BEGIN", some(b"C"), b"T")
        self.ask(get, some(b"T") + [row("")] + some(b"C"), b"T")
        self.ask(f"SELECT set_config('soak.token', '{t}', true)",
                 some(b"T") + [row(t)] + some(b"C"), b"T")
        for _ in range(self.random.randint(0, 3)):
            if self.random.random() < 0.3:
                time.sleep(self.random.uniform(0, 0.03))
            self.ask(get, some(b"T") + [row(t)] + some(b"C"), b"T")
        if self.random.random() < 0.3:
            self.ask("SELECT 1/0", [error(DIVISION_BY_ZERO)], b"E")
            self.ask("COMMIT", some(b"C"))
        else:
            self.ask(self.random.choice(["COMMIT", "ROLLBACK"]), some(b"C"))

    def op_parameter(self):
        rnd = self.random
        if rnd.random() < 0.5:
            t = self.token()
            self.ask(f"SET application_name TO '{t}'", some(b"C"))
            self.app_name = t
        elif "transaction" in self.role.ops and rnd.random() < 0.5:
            self.ask("BEGIN", some(b"C"), b"T")
            self.ask(f"SET application_name TO '{self.token()}'", some(b"C"),
                     b"T")
            self.ask("ROLLBACK", some(b"C"))
        self.ask("SHOW application_name",
                 some(b"T") + [row(self.app_name)] + some(b"C"))

    def op_big(self):
        t = self.token()
        n = self.random.choice([1000, 70000, 300000, 2000000])
        self.conn.send(query(f"SELECT '{t}' || repeat('x', {n})"))
        if self.random.random() < 0.3:
            time.sleep(self.random.uniform(0, 0.1))
        self.take(some(b"T") + [row(t + "x" * n)] + some(b"C"))

    def op_big_parameter(self):
        t = self.token()
        n = self.random.choice([1000, 70000, 600000])
        self.conn.send(
            parse("", "SELECT $1::text || length($2::text)")
            + bind("", "", [t, "y" * n]) + execute() + SYNC)
        self.take(some(b"12") + [row(f"{t}{n}")] + some(b"C"))

    def op_copy_out(self):
        t = self.token()
        n = self.random.choice([0, 1, 50, 2000])
        self.conn.send(query(f"COPY (SELECT '{t}-' || g FROM "
                             f"generate_series(1, {n}) g) TO STDOUT"))
        self.take(some(b"H"), None)
        for i in range(1, n + 1):
            self.take_one(b"d", lambda body, i=i:
                          body == f"{t}-{i}\n".encode())
        self.take(some(b"cC"))

    def op_copy_in(self):
        t = self.token()
        n = self.random.choice([0, 1, 40, 1500])
        fails = self.random.random() < 0.3
        self.ask("BEGIN; CREATE TEMP TABLE soak_in (t text) ON COMMIT DROP",
                 some(b"CC"), b"T")
        self.ask("COPY soak_in FROM STDIN", some(b"G"), None)
        self.conn.send(b"".join(copy_data(f"{t}-{i}\n".encode())
                                for i in range(n)))
        if fails:
            self.conn.send(pgwire.copy_fail(t))
            self.take([error(QUERY_CANCELED, t)], b"E")
        else:
            self.conn.send(pgwire.COPY_DONE)
            self.take([(b"C", lambda body: body == f"COPY {n}\0".encode())],
                      b"T")
            self.ask(f"SELECT count(*) FROM soak_in WHERE t LIKE '{t}-%'",
                     some(b"T") + [row(str(n))] + some(b"C"), b"T")
        self.ask("ROLLBACK", some(b"C"))

    def op_cancel(self):
        """Asked again each second: one that came while the query was still
        waiting for a server may have been void."""
        t = self.token()
        self.conn.send(query(f"SELECT '{t}', pg_sleep(100)"))
        time.sleep(self.random.uniform(0, 0.1))
        deadline = self.conn.deadline
        wanted = [error(QUERY_CANCELED)]
        while True:
            self.conn.cancel()
            self.conn.deadline = min(deadline, time.monotonic() + 1)
            try:
                self.conn.fill(1)
                break
            except Stuck:
                if time.monotonic() >= deadline:
                    raise
            finally:
                self.conn.deadline = deadline
        if self.conn.buffer[self.conn.at:self.conn.at + 1] == b"T":
            self.take_one(b"T")
        self.take(wanted)
        self.op_simple()

    def op_late_cancel(self):
        """One that comes about when the query ends: either may win, but the
        next query must not suffer."""
        t = self.token()
        self.conn.send(query(f"SELECT '{t}'"))
        self.conn.cancel()
        kind, body = self.conn.receive()
        if kind == b"E":
            if fields(body).get("C") != QUERY_CANCELED:
                self.take_error(fields(body))
            self.take([])
        elif kind == b"T":
            kind, body = self.conn.receive()
            if kind == b"E" and fields(body).get("C") == QUERY_CANCELED:
                self.take([])
            elif kind == b"D" and columns(body) == [t.encode()]:
                self.take(some(b"C"))
            else:
                raise Wrong(f"got {kind!r} {body[:120]!r}")
        else:
            raise Wrong(f"got {kind!r} {body[:120]!r}")
        self.op_simple()

    # Clients that die

    def kill_starting(self):
        where = self.random.choice(self.plan.addresses)
        conn = Connection(where, time.monotonic() + LOGIN_DEADLINE_S)
        data = self.random.choice([
            pgwire.startup(self.role.user, self.role.dbname),
            pgwire.SSL_REQUEST,
            pgwire.cancel_request(self.random.getrandbits(31), b"abcd"),
            pgwire.startup("nobody", "nowhere") + query("SELECT 1"),
        ])
        conn.send(data[:self.random.randint(0, len(data))])
        time.sleep(self.random.choice([0, 0, 0.01]))
        conn.drop(reset=self.random.random() < 0.5)
        self.count_op("kill_starting")

    def kill(self):
        """Sends up to some byte of some dialogue, reads some, is gone."""
        rnd = self.random
        self.conn.deadline = time.monotonic() + DEADLINE_S
        in_transaction = rnd.random() < 0.3 and "copy_in" in self.role.ops
        if in_transaction:
            self.ask("BEGIN; CREATE TEMP TABLE soak_in (t text) "
                     "ON COMMIT DROP", some(b"CC"), b"T")
        data = rnd.choice([
            query(f"SELECT '{self.token()}'"),
            query("SELECT repeat('z', 3000000)"),
            query("SELECT pg_sleep(0.3)"),
            query(f"SET application_name TO '{self.token()}'"),
            parse("s0", "SELECT $1::text") + bind("", "s0", ["a" * 9000])
            + describe(b"P", "") + execute() + SYNC,
            parse("", "SELECT $1::text") + bind("", "", ["b" * 200000])
            + execute() + pgwire.FLUSH,
            query("COPY (SELECT repeat('q', 100) FROM "
                  "generate_series(1, 20000)) TO STDOUT"),
        ] + ([query("COPY soak_in FROM STDIN") + copy_data(b"row\n") * 500]
             if in_transaction else []))
        cut = rnd.choice([len(data), rnd.randint(0, len(data)),
                          rnd.randint(0, min(12, len(data)))])
        self.conn.send(data[:cut])
        if cut == len(data) and rnd.random() < 0.5:
            try:
                self.conn.deadline = time.monotonic() + 0.05
                self.conn.fill(rnd.randint(1, 200000))
            except (Stuck, Gone):
                pass
        self.conn.drop(reset=rnd.random() < 0.5)
        self.conn = None
        self.count_op("kill")
