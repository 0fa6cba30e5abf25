#!/usr/bin/env python3
# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Checks the direction of includes: a folder of src/ may include only itself
and what comes before it in LAYERS. The folders in PURE may not reach for
sockets or the clock either.

usage: tools/layers.py [SRC_FOLDER]     prints file:line: what is wrong
"""

import re
import sys
from pathlib import Path

LAYERS = ["base", "pg", "auth", "conf", "loop", "net", "pool", "worker",
          "admin", "edge", "main"]

# Bytes and time come in as arguments, so that tests and fuzzers can run them.
PURE = {"pg", "auth", "conf"}
IMPURE = {
    "base/clock.h": "reads the clock",
    "time.h": "reads the clock",
    "sys/time.h": "reads the clock",
    "sys/socket.h": "does socket I/O",
    "sys/epoll.h": "does socket I/O",
    "poll.h": "does socket I/O",
    "netdb.h": "does socket I/O",
}

# Made by the build, in no folder.
GENERATED = {"config.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def problem(layer, quote, name):
    """What is wrong with one include of a file in a layer, or None."""
    if layer in PURE and name in IMPURE:
        return f"{layer} is pure, <{name}> {IMPURE[name]}"
    if quote == "<" or name in GENERATED:
        return None
    folder = name.split("/")[0]
    if "/" not in name or folder not in LAYERS:
        return f'"{name}": include by folder, one of {" ".join(LAYERS)}'
    if LAYERS.index(folder) > LAYERS.index(layer):
        return f'{layer} may not include "{name}": {folder} is a higher layer'
    return None


def check_file(path, layer):
    found = []
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            what = problem(layer, *match.groups())
            if what:
                found.append(f"{path}:{number}: {what}")
    return found


def check_tree(src):
    found = []
    for path in sorted(src.rglob("*")):
        if path.suffix not in (".c", ".h", ".def"):
            continue
        layer = path.relative_to(src).parts[0]
        if layer in LAYERS:
            found += check_file(path, layer)
        else:
            found.append(f"{path}: not in a folder of a layer "
                         f"({' '.join(LAYERS)})")
    return found


def main():
    here = Path(__file__).resolve().parent.parent
    src = Path(sys.argv[1]) if len(sys.argv) > 1 else here / "src"
    if not src.is_dir():
        sys.exit(f"{src}: no such folder")
    found = check_tree(src)
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
