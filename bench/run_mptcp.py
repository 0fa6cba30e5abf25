# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""bench/run mptcp: what extra subflows give where each flow is capped."""
import os
import tempfile

import pglib
import runlib
from runlib import Step, number

WAYS = {"ip mptcp": "endpoints of ip mptcp", "own": "mptcp_subflows"}
TOOLS = {"copy": "\\copy", "pg_basebackup": "pg_basebackup"}


class Mptcp:
    name = "mptcp"

    def __init__(self, run):
        self.run, self.report = run, run.report
        self.samples = run.report.samples("mptcp")

    def close(self):
        pass

    def steps(self):
        seconds = 30 if self.run.quick else 180
        for turn in range(1, (self.run.rounds or 1) + 1):
            for extra in (1, 2, 4, 8):
                yield Step(f"mptcp: {extra} extra subflows, round {turn}",
                           seconds,
                           lambda turn=turn, extra=extra: self.one(turn,
                                                                   extra))

    def one(self, turn, extra):
        with tempfile.TemporaryDirectory(prefix="pgbraid-run-") as folder:
            path = os.path.join(folder, "mptcp.csv")
            argv = [os.path.join(pglib.HERE, "mptcp"), "--pgbraid",
                    self.run.pgbraid, "--extra", str(extra), "--csv", path,
                    "--delays", "15"]
            if self.run.quick:
                argv.append("--quick")
            runlib.run_tool(argv, 900)
            for row in runlib.read_rows(path):
                for key in ("seconds", "speedup", "longest_stall_s"):
                    row[key] = float(row[key]) if row.get(key) else None
                self.samples.add(round=turn, **dict(row, extra=extra))

    def write_summary(self):
        s, rows = self.samples, []
        published = {"copy": "42.1 s to 14.4 s: 2.9 times",
                     "pg_basebackup": "86.8 s to 30.5 s: 2.8 times"}
        for tool, name in TOOLS.items():
            for way, way_name in WAYS.items():
                m = {"way": way, "tool": tool, "extra": 4}
                if s.of(**m):
                    one = s.median("seconds", way="TCP", tool=tool, extra=4)
                    rows.append([
                        f"{name}, four extra subflows by {way_name}",
                        published[tool] if way == "ip mptcp" else "not there",
                        f"{number(one, 1)} s to "
                        f"{number(s.median('seconds', **m), 1)} s: "
                        f"{number(s.median('speedup', **m), 1)} times"])
        self.report.summary("mptcp", rows)

    def write(self):
        s, r = self.samples, self.report
        r.heading("Multipath TCP where each flow is capped (mptcp)")
        r.text("""Unpatched psql and pg_basebackup, through a pgbraid on each
            side of a WAN of 30 ms with 10 Mbit/s for each flow. Subflows are
            announced by endpoints of `ip mptcp` on the server's side, or opened
            by pgbraid itself (`mptcp_subflows`).""")
        self.write_summary()
        counts = (1, 2, 4, 8)
        rows, series = [], []
        for tool, tool_name in TOOLS.items():
            base = s.median("seconds", way="TCP", tool=tool)
            if base is None:
                continue
            rows.append([tool_name, "one TCP flow", "0", number(base, 1),
                         "1.00"])
            for way, way_name in WAYS.items():
                points = [(0, 1.0)]
                for extra in counts:
                    m = {"way": way, "tool": tool, "extra": extra}
                    speed = s.median("speedup", **m)
                    if speed is None:
                        continue
                    points.append((extra, speed))
                    rows.append([tool_name, way_name, str(extra),
                                 number(s.median("seconds", **m), 1),
                                 number(speed)])
                series.append((f"{tool_name.strip(chr(92))}, {way_name}",
                               points))
        r.table("mptcp-speedup", ["tool", "way", "extra subflows", "seconds",
                                  "times as fast"], rows)
        series.append(("as many times as flows",
                       [(n, n + 1) for n in (0, *counts)]))
        r.plot(r.plots.lines(
            "mptcp", "Speed-up over a single TCP flow, 10 Mbit/s per flow",
            series, "extra subflows", "times as fast",
            "set xrange [-0.2:8.2]\nset yrange [0:]\nset xtics (0,1,2,4,8)"),
            "Speed-up over subflows")
        cuts = [x for x in s.of(way="cut") if x["longest_stall_s"] is not None]
        if cuts:
            worst = max(x["longest_stall_s"] for x in cuts)
            r.table("mptcp-failure", ["path failure in a pg_basebackup",
                                      "runs", "finished", "longest stall s"],
                    [["one of two paths cut in the middle", len(cuts),
                      len(cuts), number(worst)]])
        else:
            r.text("The path failure in the middle of a pg_basebackup is part "
                   "of the full run only.")
