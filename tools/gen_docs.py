#!/usr/bin/env python3
# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Writes docs/configuration.md from the option tables of src/conf, and
docs/metrics.md from src/admin/metric.def.

  tools/gen_docs.py           writes the pages
  tools/gen_docs.py --check   fails when a page is not what it would write
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONF = ROOT / "src" / "conf"
PAGE = ROOT / "docs" / "configuration.md"
ADMIN = ROOT / "src" / "admin"
METRICS_PAGE = ROOT / "docs" / "metrics.md"

INTRO = """\
# Configuration

<!-- Written by tools/gen_docs.py from src/conf/*.def: change those instead. -->

pgbraid reads PgBouncer's configuration file: the same sections, names,
defaults and meanings. What it adds is marked **pgbraid only**.
`pgbraid --check FILE` reads a file, names every mistake with its line, and
starts nothing.

    [databases]
    app = host=10.0.0.5 dbname=app pool_size=50
    *   = host=/var/run/postgresql

    [pgbouncer]
    listen_addr = *
    auth_file   = userlist.txt
    pool_mode   = transaction

## The file

- Lines that begin with `;` or `#` are comments. Elsewhere in a line these
  characters mean themselves.
- `[section]` begins a section: `[pgbouncer]` (which must be there),
  `[databases]`, `[users]` or `[peers]`. A section may come more than once.
- `key = value`: the value is the rest of the line without the blanks around it.
- A name with other characters than letters, digits and `_.-*` goes in quotes:
  `"my db" = ...`. Inside double quotes, `""` is one quote.
- `%include FILE` reads another file in this place. A relative name is taken
  from the working directory of the process.
- If a name stands twice in a section, the last line holds.

Lines of `[databases]`, `[users]` and `[peers]` have `key=value` pairs separated
by blanks on their right-hand side. A value with a blank in it goes in single
quotes, and a quote in it is written twice: `password='it''s me'`.

## Types

| type | is |
| --- | --- |
| text | anything |
| list | words separated by commas or blanks |
| number | a whole number; in `[pgbouncer]` a leading `0x` is hexadecimal and a leading `0` octal |
| switch | `0` or `1`; also `off`, `no`, `false`, `on`, `yes`, `true` |
| time | seconds, with a fraction if need be: `30`, `0.5` |
| choice | one of the words listed |

An option that is **fixed at start** keeps its value until the next start; a
reload names those that the file has changed. All others follow `RELOAD` and
can be changed on the console with `SET`, until the next reload. An option that
is **not in force yet** is accepted and has no effect; one warning at start
names all of them.
"""

METRICS_INTRO = """\
# Metrics

<!-- Written by tools/gen_docs.py from src/admin/metric.def: change that, or the
text in the script, instead. -->

    [pgbouncer]
    metrics_listen_addr = 127.0.0.1
    metrics_listen_port = 9632

    # prometheus.yml
    scrape_configs:
      - job_name: pgbraid
        static_configs:
          - targets: [pooler.example.com:9632]

- `GET /metrics` is the page for Prometheus (text format 0.0.4).
- `GET /healthz` is `200 ok`, or `200 paused` after PAUSE, when every worker has
  answered; `503` once the process has begun to end. It does not look at the
  servers.

Nothing is served unless `metrics_listen_addr` is set, and there is no password:
the page names databases and users, and tells how much they do, but no address,
statement or secret. Bind it to this machine or to a network that you trust. Both
options are fixed at start. What reaches the listener cannot hold the pooler up:
it has a thread of its own, at most 32 connections, 16 from one address, and
closes idle ones after ten seconds. A scrape goes from worker to worker as one
message, as SHOW POOLS does.

After a rolling restart with `so_reuseport = 1` both processes have the port for
a while; the old one leaves it as soon as it waits for its end.

Counters begin at 0 with the process. Those of a database go on when its pools
are forgotten (`pool_idle_timeout`); a database that came by the `*` line goes,
with its counters, after `autodb_idle_timeout`.

[packaging/prometheus/pgbraid.rules.yml](../packaging/prometheus/pgbraid.rules.yml)
has alerts to begin with; [operations.md](operations.md#monitoring) says which
metric answers which question. Exporters for PgBouncer work, too, since the
console is PgBouncer's.

## All of them

A histogram has `_bucket` (by `le`, from 0.0001 to 60 seconds), `_sum` and
`_count`. QUIC's are there when it is built in. A byte of a name that is no UTF-8
is shown as `\\x` and two digits.

| metric | type | labels | is |
| --- | --- | --- | --- |
"""

SECTIONS = {
    "DB_KEY": (
        "databases",
        "One line for each database that clients may ask for: its name, `=`, "
        "and where it is. The line `*` stands for all names that have no line "
        "of their own. `pgbouncer` and `pgbraid` are the console and cannot be "
        "used. Values of `[users]` beat those here, which beat the options "
        "above.",
    ),
    "USER_KEY": (
        "users",
        "Values for one user; they beat those of databases and options. A user "
        "needs no line here to log in.",
    ),
    "PEER_KEY": (
        "peers",
        "The other nodes behind the same address, so that a cancel request "
        "that reaches the wrong one finds its session. A line is the node's "
        "`peer_id`, `=`, and where it is. The node's own line is ignored, so "
        "that all nodes can have the same section.",
    ),
}

EDGE_INTRO = """
## The file of an edge

`pgbraid edge FILE` reads a file of its own, in the same format without
`%include`. Section `[edge]` is the edge; or it holds what several have in
common, each of which has a section `[edge NAME]`:

    [edge]
    to = quic://db.example
    ca = /etc/pgbraid/ca.crt

    [edge orders]
    listen = /run/pgbraid-edge/orders
    cert = /etc/pgbraid/orders.crt
    key = /etc/pgbraid/orders.key

    [edge reports]
    listen = 127.0.0.1:6433
    to = quic://replica.example

An edge that says nothing of a key has that of `[edge]`. The keys are the
options of the command line, which beat the file there; `-` and `_` in their
names are the same. A switch is `1` or `0`. `pgbraid edge --check FILE` says what
is wrong with it. A changed file counts after a restart.
"""

TYPES = {
    "STR": "text",
    "LIST": "list",
    "INT": "number",
    "BOOL": "switch",
    "TIME": "time",
    "WORKERS": "number or `auto`",
    "HOSTS": "list with commas",
    "PORTS": "list with commas",
}


def split_args(text):
    """The arguments of one macro call; text begins after its parenthesis."""
    args, start, i = [], 0, 0
    while True:
        c = text[i]
        if c == '"':
            i += 1
            while text[i] != '"':
                i += 2 if text[i] == "\\" else 1
        elif c in ",)":
            args.append(text[start:i].strip())
            start = i + 1
            if c == ")":
                return args
        i += 1


def value(arg):
    """C strings, which may be in pieces, to text; other things as they are."""
    if not arg.startswith('"'):
        return arg
    pieces = re.findall(r'"(?:[^"\\]|\\.)*"', arg, re.S)
    return "".join(ast.literal_eval(p) for p in pieces)


def rows(file, macro, folder=CONF):
    text = (folder / file).read_text()
    found = re.finditer(r"^%s\(" % macro, text, re.M)
    return [[value(a) for a in split_args(text[m.end():])] for m in found]


def words(kind):
    return [w for t, w, _ in rows("enum.def", "ENUM") if t == kind]


def describe_type(kind, low, high):
    if kind in TYPES:
        name = TYPES[kind]
        if kind in ("INT", "WORKERS", "PORTS"):
            name += ", %s to %s" % (low, high)
        elif kind == "TIME" and int(low) > 0:
            name += ", at least %d" % (int(low) // 1000000)
        return name
    return "choice: " + ", ".join("`%s`" % w for w in words(kind))


def fill(text, indent=""):
    """Wraps at 80 columns and leaves `code` in one piece."""
    lines, line = [], ""
    for word in re.findall(r"(?:`[^`]*`|\S)+", text):
        if line and len(indent) + len(line) + 1 + len(word) > 80:
            lines.append(line)
            line = word
        else:
            line = line + " " + word if line else word
    lines.append(line)
    return "\n".join(indent + s for s in lines)


def marks(flags):
    out = []
    if re.search(r"(OPT|KEY)_OURS", flags):
        out.append("**pgbraid only**")
    if "OPT_NR" in flags:
        out.append("**fixed at start**")
    if re.search(r"(OPT|KEY)_LATER", flags):
        out.append("**not in force yet**")
    return out


def entry(level, name, facts, text):
    head = " · ".join(facts)
    return "\n%s %s\n\n%s\n\n%s\n" % (level, name, fill(head), fill(text))


def options():
    out = ["\n## Section [pgbouncer]\n"]
    table = rows("option.def", "OPT")
    for group, title in rows("group.def", "GROUP"):
        out.append("\n### %s\n" % title)
        for kind, name, its, default, low, high, flags, text in table:
            if its != group:
                continue
            if default == "NULL":
                default = "0" if kind == "INT" else "not set"
            elif default == "":
                default = "empty"
            else:
                default = "`%s`" % default
            facts = [describe_type(kind, low, high), "default " + default]
            out.append(entry("####", name, facts + marks(flags), text))
    return "".join(out)


def section(macro):
    name, intro = SECTIONS[macro]
    out = ["\n## Section [%s]\n\n%s\n" % (name, fill(intro))]
    for kind, key, low, high, flags, unset, text in rows("section.def", macro):
        facts = [describe_type(kind, low, high), "if not given: " + unset]
        out.append(entry("###", key, facts + marks(flags), text))
    return "".join(out)


def metrics():
    out = []
    for _, kind, name, labels, text in rows("metric.def", "METRIC", ADMIN):
        labels = ", ".join("`%s`" % w for w in labels.split(", ") if w)
        out.append("| `%s` | %s | %s | %s |\n" % (
            name, kind.lower(), labels, text))
    return METRICS_INTRO + "".join(out)


def edge():
    out = [EDGE_INTRO]
    for _, name, argument, default, text in rows("edge.def", "EDGE"):
        kind = "switch" if argument == "NULL" else "`%s`" % argument
        given = default if re.search(r"[a-z] ", default) else "`%s`" % default
        out.append(entry("###", name, [kind, "if not given: " + given], text))
    return "".join(out)


def check_groups():
    known = {g for g, _ in rows("group.def", "GROUP")}
    for row in rows("option.def", "OPT"):
        if row[2] not in known:
            sys.exit("option.def: %s: unknown group %s" % (row[1], row[2]))


def main():
    check_groups()
    pages = {PAGE: INTRO + options() + "".join(map(section, SECTIONS)) +
             edge(),
             METRICS_PAGE: metrics()}
    if sys.argv[1:] == ["--check"]:
        for path, page in pages.items():
            if not path.exists() or path.read_text() != page:
                sys.exit("docs/%s is stale: run tools/gen_docs.py" % path.name)
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.parent.mkdir(exist_ok=True)
    for path, page in pages.items():
        path.write_text(page)


if __name__ == "__main__":
    main()
