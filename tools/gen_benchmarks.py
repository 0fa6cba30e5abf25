#!/usr/bin/env python3
# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Puts the tables and plots of a bench/run into docs/benchmarks.md and README.

    tools/gen_benchmarks.py bench/results/DATE

What stands between `<!-- table: NAME -->` and `<!-- end -->` is replaced by
tables/NAME.md of the run; what the run did not measure stays as it is. The plots
that docs/benchmarks.md shows are copied to docs/plots.
"""
import os
import re
import shutil
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
PLOT = re.compile(r"\]\((?:docs/)?plots/([\w-]+\.svg)\)")


def fill(path, results):
    """The text of a page with new tables; how many were new."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    known = []

    def replace(match):
        table = os.path.join(results, "tables", match.group(2) + ".md")
        if not os.path.exists(table):
            return match.group(0)
        known.append(match.group(2))
        with open(table, encoding="utf-8") as f:
            return match.group(1) + "\n" + f.read() + "\n" + match.group(3)
    text = BLOCK.sub(replace, text)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    return text, known


def copy_plots(text, results):
    target = os.path.join(ROOT, "docs", "plots")
    os.makedirs(target, exist_ok=True)
    for name in dict.fromkeys(PLOT.findall(text)):
        plot = os.path.join(results, "plots", name)
        if os.path.exists(plot):
            shutil.copy(plot, os.path.join(target, name))
        elif not os.path.exists(os.path.join(target, name)):
            print(f"{name} is in no run yet", file=sys.stderr)


def main():
    if len(sys.argv) != 2 or not os.path.isdir(
            os.path.join(sys.argv[1], "tables")):
        sys.exit(__doc__)
    results = sys.argv[1]
    for name in ("docs/benchmarks.md", "README.md"):
        text, known = fill(os.path.join(ROOT, name), results)
        print(f"{name}: {len(known)} tables: {', '.join(known)}")
        copy_plots(text, results)


if __name__ == "__main__":
    main()
