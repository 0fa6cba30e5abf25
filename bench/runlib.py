# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""What the sections of bench/run share: measurements and their ratios, plots,
progress, and load, which is run in a namespace or on this host.

Nothing here knows what is measured; that is in run_*.py.
"""
import csv
import datetime
import importlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import pglib



def import_wan():
    """The namespaces of the test suite. Its folder has a pgwire of its own,
    which must not take the place of ours."""
    folder = os.path.join(pglib.HERE, "..", "tests", "lib")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("wan")
    finally:
        sys.path.remove(folder)
        sys.modules.pop("pgwire", None)


wan_module = import_wan()

BUSY_IDLE_SHARE = 0.10  # of the processors idle: less, and they are the limit
LIMIT_MARK = " \u2020"
LIMIT_NOTE = (LIMIT_MARK.strip() + " less than 10 % of the processors' time "
              "was idle: the machine was the limit, not the program alone.")


def load_module(name):
    """A program of this folder as a module."""
    path = os.path.join(pglib.HERE, name)
    loader = importlib.machinery.SourceFileLoader("bench_" + name, path)
    spec = importlib.util.spec_from_loader("bench_" + name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- measurements -------------------------------------------------------------

TARGETS = ("PostgreSQL", "relay", "pgbraid", "pgbouncer", "odyssey", "haproxy")


def rank(name):
    """Order of targets in tables."""
    for i, target in enumerate(TARGETS):
        if str(name).startswith(target):
            return i, name
    return len(TARGETS), ""


class Samples:
    """Rows of one experiment, kept as CSV from the first one on."""

    def __init__(self, folder, name):
        self.path = os.path.join(folder, "csv", name + ".csv")
        self.rows = []

    def add(self, **row):
        self.rows.append(row)
        keys = list(dict.fromkeys(k for r in self.rows for k in r))
        with open(self.path, "w", newline="", encoding="utf-8") as f:
            writer = csv.DictWriter(f, keys)
            writer.writeheader()
            writer.writerows(self.rows)
        return row

    def of(self, **match):
        return [r for r in self.rows
                if all(r.get(k) == v for k, v in match.items())]

    def values(self, key):
        found = list(dict.fromkeys(r[key] for r in self.rows))
        return sorted(found, key=rank)

    def median(self, key, **match):
        found = [r[key] for r in self.of(**match) if r.get(key) is not None]
        return statistics.median(found) if found else None

    def ratio(self, key, mine, theirs):
        """Median, lowest and highest over rounds of mine to theirs."""
        base = {r["round"]: r.get(key) for r in self.of(**theirs)}
        found = [r[key] / base[r["round"]] for r in self.of(**mine)
                 if r.get(key) is not None and base.get(r["round"])]
        if not found:
            return None
        return statistics.median(found), min(found), max(found)

    def was_limited(self, **match):
        idle = self.median("idle", **match)
        return idle is not None and idle < BUSY_IDLE_SHARE


def typed(text):
    """A field of a CSV file as it was before."""
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def number(value, digits=2):
    if value is None:
        return "-"
    if digits == 0:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def spread(ratio, digits=2):
    if ratio is None:
        return "-"
    mid, low, high = ratio
    if low == high:
        return f"{mid:.{digits}f}"
    return f"{mid:.{digits}f} ({low:.{digits}f}\u2013{high:.{digits}f})"


def markdown(head, rows):
    """First column to the left, the others to the right."""
    lines = ["| " + " | ".join(head) + " |",
             "| --- " + "| ---: " * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(str(c) for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


class Processors:
    """How much of the processors' time was idle since it was made."""

    def __init__(self):
        self.before = self._read()

    @staticmethod
    def _read():
        with open("/proc/stat", encoding="ascii") as f:
            fields = [int(x) for x in f.readline().split()[1:9]]
        return fields[3] + fields[4], sum(fields)

    def idle(self):
        idle, total = self._read()
        spent = total - self.before[1]
        return (idle - self.before[0]) / spent if spent else 1.0


def slab_bytes():
    """Kernel memory of objects: sockets, files, epoll entries."""
    with open("/proc/meminfo", encoding="ascii") as f:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in f}
    return found["Slab"] + found.get("Percpu", 0)


# --- plots --------------------------------------------------------------------

COLOURS = ("#0b6e99", "#c8442d", "#d9931c", "#4c8a3f", "#7a4f9a", "#6b6b6b",
           "#2aa198", "#a0522d")

STYLE = """set terminal svg size %d,%d dynamic noenhanced font "Helvetica,14" \
background "#ffffff"
set output "%s"
set encoding utf8
set border 3 lc rgb "#555555"
set tics nomirror out textcolor rgb "#333333"
set grid ytics lc rgb "#dddddd" lw 1
set key outside top center horizontal spacing 1.2 samplen 2
set style fill solid 0.9 noborder
set lmargin 11
set rmargin 4
"""


class Plots:
    def __init__(self, folder):
        self.folder = folder
        self.program = shutil.which("gnuplot")
        self.missing = None
        if not self.program:
            self.missing = ("no plots: gnuplot is missing (package "
                            "gnuplot-nox; scripts/deps --bench)")

    def run(self, name, script, size, has_points):
        path = os.path.join(self.folder, name + ".svg")
        if not self.program or not has_points:
            return None
        text = STYLE % (*size, path) + script
        done = subprocess.run([self.program], input=text, text=True,
                              capture_output=True, check=False)
        if done.returncode or not os.path.exists(path):
            say(f"gnuplot, {name}: {done.stderr.strip()[:400]}")
            return None
        return name + ".svg"

    @staticmethod
    def block(name, points):
        """Inline data; points: rows of numbers or texts."""
        lines = [f"${name} << EOD"]
        for row in points:
            lines.append(" ".join(f'"{c}"' if isinstance(c, str) else
                                  ("NaN" if c is None else f"{c:.6g}")
                                  for c in row))
        return "\n".join(lines + ["EOD", ""])

    def lines(self, name, title, series, xlabel, ylabel, more="", marks=True,
              size=(900, 480)):
        """series: [(name, [(x, y), ...])]."""
        script, plots = "", []
        for i, (label, points) in enumerate(series):
            script += self.block(f"d{i}", points)
            style = "linespoints pt 7 ps 0.6" if marks else "lines"
            plots.append(f'$d{i} using 1:2 with {style} lw 2.5 lc rgb '
                         f'"{COLOURS[i % len(COLOURS)]}" title "{label}"')
        script += (f'set title "{title}" font ",16"\nset xlabel "{xlabel}"\n'
                   f'set ylabel "{ylabel}"\n{more}\nplot '
                   + ", \\\n ".join(plots) + "\n")
        return self.run(name, script, size, self.any_of(series))

    @staticmethod
    def any_of(series):
        return any(y is not None for _, points in series for _, y in points)

    def stack(self, name, panels, xlabel, size=(900, 900)):
        """Panels below each other with one x axis; panels: [(title, ylabel,
        series, more)]."""
        script = f"set multiplot layout {len(panels)},1\n"
        for p, (title, ylabel, series, more) in enumerate(panels):
            plots = []
            for i, (label, points) in enumerate(series):
                script += self.block(f"d{p}_{i}", points)
                plots.append(f'$d{p}_{i} using 1:2 with lines lw 2.5 lc rgb '
                             f'"{COLOURS[i % len(COLOURS)]}" title "{label}"')
            script += "unset logscale\nunset yrange\n"
            script += "unset key\n" if p else ""
            script += (f'set title "{title}" font ",15"\n'
                       f'set ylabel "{ylabel}"\nset format y "%.0s%c"\n'
                       f'{more}\n')
            if p == len(panels) - 1:
                script += f'set xlabel "{xlabel}"\n'
            script += "plot " + ", \\\n ".join(plots) + "\n"
        return self.run(name, script + "unset multiplot\n", size,
                        any(self.any_of(p[2]) for p in panels))

    def bars(self, name, title, labels, groups, ylabel, more="",
             size=(900, 480)):
        """labels: along x, "|" breaks the line; groups: [(name, [value or
        None, ...])]. The value stands above its bar."""
        rows = [[label.replace("|", "\\n")] + [v[i] for _, v in groups]
                for i, label in enumerate(labels)]
        many = len(labels) * len(groups)
        digits = "%.0f" if max((x for _, v in groups for x in v
                                if x is not None), default=0) >= 100 else \
            "%.1f"
        plots, texts = [], []
        for g, (label, _) in enumerate(groups):
            plots.append(f'$d using {g + 2}:xtic(1) lc rgb '
                         f'"{COLOURS[g % len(COLOURS)]}" title "{label}"')
            at = (g - (len(groups) - 1) / 2) / (len(groups) + 1)
            texts.append(f'$d using ($0 + {at:.4f}):{g + 2}:(sprintf('
                         f'"{digits}", ${g + 2})) with labels offset 0,0.6 '
                         f'font ",{11 if many < 16 else 9}" notitle')
        script = self.block("d", rows) + (
            "set style data histogram\nset style histogram clustered gap 1\n"
            "set boxwidth 0.92\nset yrange [0:*]\n"
            f"set xrange [-0.6:{len(labels) - 0.4}]\nset xtics scale 0\n"
            + ("set bmargin 5\n" if any("|" in x for x in labels) else "") +
            f'set title "{title}" font ",16"\nset ylabel "{ylabel}"\n{more}\n'
            "plot " + ", \\\n ".join(plots + texts) + "\n")
        return self.run(name, script, size, any(
            x is not None for _, v in groups for x in v))


# --- the report ---------------------------------------------------------------

class Report:
    """results/<date>: report.md and its parts, csv/, plots/."""

    def __init__(self, folder, is_again=False):
        self.folder, self.is_again = folder, is_again
        for name in ("csv", "plots", "tables"):
            os.makedirs(os.path.join(folder, name), exist_ok=True)
        self.plots = Plots(os.path.join(folder, "plots"))
        self.parts = []

    def samples(self, name):
        """Empty ones, or with --again those of the run before."""
        out = Samples(self.folder, name)
        if self.is_again and os.path.exists(out.path):
            out.rows = [{k: typed(v) for k, v in row.items()}
                        for row in read_rows(out.path)]
        return out

    def heading(self, text, level=2):
        self.parts.append("#" * level + " " + text + "\n")

    def text(self, text):
        self.parts.append(" ".join(text.split()) + "\n")

    def table(self, name, head, rows, note=None):
        """Also a file of its own, for docs/benchmarks.md."""
        if not rows:
            self.text("No row of this table could be measured.")
            return
        body = markdown(head, rows)
        if any(LIMIT_MARK in str(c) for row in rows for c in row):
            body += "\n" + LIMIT_NOTE + "\n"
        if note:
            body += "\n" + " ".join(note.split()) + "\n"
        with open(os.path.join(self.folder, "tables", name + ".md"), "w",
                  encoding="utf-8") as f:
            f.write(body)
        self.parts.append(body)

    def summary(self, name, rows):
        """rows: (what, published, here)"""
        self.text("Beside the published figures:")
        self.table("summary-" + name, ["", "published", "here"], rows)

    def plot(self, name, caption):
        if name:
            self.parts.append(f"![{caption}](plots/{name})\n")

    def write(self, head):
        with open(os.path.join(self.folder, "report.md"), "w",
                  encoding="utf-8") as f:
            f.write("\n".join([head] + self.parts))


def load_average():
    return f"{os.getloadavg()[0]:.2f} processes in the minute before"


def environment(programs):
    """What the numbers depend on; no name of the machine."""
    def first_line(argv):
        try:
            out = subprocess.run(argv, capture_output=True, text=True,
                                 check=False)
        except OSError:
            return None
        lines = (out.stdout + out.stderr).strip().splitlines()
        return lines[0] if lines else None

    def read(path):
        try:
            with open(path, encoding="ascii") as f:
                return f.read().strip()
        except OSError:
            return "unknown"

    cpu = re.search(r"model name\s*: (.*)", read("/proc/cpuinfo"))
    memory = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    system = re.search(r'PRETTY_NAME="(.*)"', read("/etc/os-release"))
    out = {
        "date": datetime.datetime.now().strftime("%Y-%m-%d"),
        "system": system.group(1) if system else "unknown",
        "kernel": platform.release(),
        "processors": f"{len(os.sched_getaffinity(0))} of "
                      f"{cpu.group(1) if cpu else platform.machine()}",
        "memory": f"{int(memory.group(1)) // 2 ** 20} GiB" if memory else "",
        "TCP congestion control":
            read("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load before the run": load_average(),
    }
    for name, argv in programs:
        out[name] = first_line(argv) or "not found"
    return out


# --- steps --------------------------------------------------------------------

class Step:
    def __init__(self, label, seconds, work, always=False):
        """always: others rest on it, or it ends them."""
        self.label, self.seconds, self.work = label, seconds, work
        self.always = always


class Progress:
    """Runs steps in their order and tells what is left, by what the steps so
    far took beside what was thought."""

    def __init__(self, steps):
        self.steps = steps
        self.total = sum(s.seconds for s in steps)

    def run(self):
        notes, done, start = [], 0.0, time.monotonic()
        for i, step in enumerate(self.steps):
            took = time.monotonic() - start
            factor = (took + 30) / (done + 30)
            left = (self.total - done) * factor
            say(f"[{i + 1}/{len(self.steps)}] {step.label}   "
                f"(about {max(1, round(left / 60))} min left)")
            try:
                step.work()
            except Exception as e:  # one experiment less, not the end
                why = str(e).strip().splitlines() or [type(e).__name__]
                notes.append(f"{step.label}: {why[-1][:300]}")
                say("  failed: " + notes[-1])
            done += step.seconds
        return notes


def interleave(arms, rounds):
    """(round, arm): all arms in each round, another one first each time."""
    for turn in range(1, rounds + 1):
        k = turn % len(arms)
        for arm in arms[k:] + arms[:k]:
            yield turn, arm


# --- bench/load ---------------------------------------------------------------

class Load:
    """Runs bench/load and watches the processor time of others meanwhile."""

    def __init__(self, shop, program):
        self.shop = shop
        self.program = shop.bring(program, "load")

    def argv(self, args, space=None):
        argv = [self.program, "--json", *[str(a) for a in args]]
        return self.shop.inside(space, argv) if space else argv

    def run(self, args, space=None, watch=None, patience=120, password="pw"):
        """watch: {name: pids}; adds NAME_us, processor time per query, and
        NAME_switches."""
        before = {k: pglib.Usage(p) for k, p in (watch or {}).items()}
        machine = Processors()
        as_account = {} if space else self.shop.as_account()
        done = subprocess.run(
            self.argv(args, space), capture_output=True, text=True,
            check=False, timeout=patience, cwd=self.shop.dir,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ, PGPASSWORD=password), **as_account)
        idle = machine.idle()
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError("load: " + (lines or ["failed"])[-1])
        out = json.loads(done.stdout)
        out["idle"] = idle
        queries = max(1, out["completed"])
        for name, usage in before.items():
            user, system, switches = pglib.Usage(watch[name]).since(usage)
            out[name + "_us"] = (user + system) / queries * 1e6
            out[name + "_user_us"] = user / queries * 1e6
            out[name + "_switches"] = switches / queries
        return out

    def hold(self, args, space=None):
        """Sessions that stay; close its stdin to end them."""
        p = self.shop.start(
            [self.program, "--hold", *[str(a) for a in args]], "hold.log",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            space=space, env=dict(os.environ, PGPASSWORD="pw"))
        line = p.stdout.readline().strip()
        if not line.startswith("ready"):
            raise RuntimeError("sessions did not come through: " +
                               pglib.tail(self.shop.path("hold.log"), 2))
        return p


def read_seconds(path):
    with open(path, encoding="ascii") as f:
        return [{k: float(v) for k, v in row.items()}
                for row in csv.DictReader(f)]


def run_tool(argv, patience):
    """Runs another program of this folder; its standard output. When we are
    interrupted it is too, and takes down what it has built."""
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True)
    try:
        out, err = p.communicate(timeout=patience)
    except BaseException:
        p.terminate()
        try:
            p.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
        raise
    if p.returncode:
        lines = (err.strip() or out.strip() or "failed").splitlines()
        raise RuntimeError(os.path.basename(argv[0]) + ": " + lines[-1])
    return out


def read_rows(path):
    with open(path, encoding="utf-8") as f:
        return list(csv.DictReader(f))
