#!/usr/bin/env python3
# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Writes docs/compatibility.md: what of PgBouncer's surface is there.

  tools/gen_compat.py           writes the page
  tools/gen_compat.py --check   fails when a row is missing or has another
                                status than the tables say

Options, keys, commands and columns come from the tables of src/conf and
src/admin, the proving tests from a search of tests/scenario for the name; what
no table knows (signals, switches, files, the reasons for differences) stands
below.
"""

import ast
import pathlib
import re
import sys

import gen_docs

ROOT = gen_docs.ROOT
PAGE = ROOT / "docs" / "compatibility.md"
SCENARIOS = ROOT / "tests" / "scenario"
ADMIN = ROOT / "src" / "admin"

INTRO = """\
# Compatibility with PgBouncer

<!-- Written by tools/gen_compat.py from the tables of src/conf and src/admin:
change those, or the notes in the script, instead. -->

The measure is PgBouncer 1.26: its ini file, userlist, HBA and ident files, its
console, signals and switches. Status:

- **same**: as in PgBouncer;
- **differs**: there, with the difference that its row explains;
- **no effect**: accepted, so that the file loads; there is nothing to set here;
- **not yet**: accepted and named in a warning at start, or answered with an
  error that says so;
- **ours**: PgBouncer does not know it.

A test is named as `file: function`, from tests/scenario, or as `unit/file`; it is the one that is
most about the row. Where there is none the row says so.
"""

# Options and keys that are accepted for the sake of the file.
NO_EFFECT = {
    "job_name": "A label that nothing reads; PgBouncer uses it on Windows.",
    "pkt_buf": "A worker reads into one buffer of its own.",
    "sbuf_loopcnt": "Work for one connection is bounded in bytes per turn.",
}

# Deliberate differences, each with its reason.
DIFFERS = {
    "auth_hba_file":
        "A broken line is skipped with a warning, but one that says `reject` "
        "makes the load fail: skipping it would let in whom it was written "
        "against. A file that has become unreadable leaves the old rules in "
        "force at a reload (PgBouncer then has none). In the user column "
        "`sameuser` and `replication` are names, as in PostgreSQL. Of an "
        "address with bits beyond its mask only `reject` lines take the whole "
        "network; other lines fit nobody, as in PgBouncer. More than "
        "PgBouncer: `pam`, `hostquic`, names as `/regular expression`, lines "
        "joined by a backslash.",
    "auth_ident_file":
        "More than PgBouncer: system names as `/regular expression` with `\\1` "
        "in the role, as in PostgreSQL.",
    "auth_ldap_options":
        "`ldapserver` or `ldapurl` must be given: servers are not looked for "
        "in DNS. SHOW CONFIG hides the value, which may hold a password.",
    "auth_type":
        "`md5`, `scram-sha-256` and `plain` never tell an unknown user from a "
        "wrong password. Slow checks (PBKDF2, PAM, LDAP) run on helper "
        "threads, several at once.",
    "max_client_conn":
        "An administrator still reaches the console when it is used up.",
    "default_pool_size":
        "Holds over all workers together, exactly.",
    "track_extra_parameters":
        "The default is that of PgBouncer up to 1.25.",
    "so_reuseport":
        "Workers share the port in any case.",
    "auth_query":
        "An answer may be kept: see `auth_query_cache_ttl`.",
    "verbose":
        "Lines about single queries are never written.",
}

COMMAND_NOTES = {
    "suspend":
        "Clients are not read; servers are, so that what runs ends. The "
        "process goes on to accept, and what is accepted waits.",
    "show sockets":
        "What could not be sent yet is in send_avail; PgBouncer's buffer "
        "positions are 0: an idle connection has no buffer.",
    "show active_sockets":
        "Connections that are not idle, or hold output.",
    "show version": "The name is pgbraid's.",
    "show fds":
        "Descriptors are not handed over, and cancel keys and passwords are "
        "null: both served PgBouncer's `-R`, which is deprecated there.",
    "show mem": "The rows are those of this program's memory.",
    "show lists": "free_clients is always 0: memory goes back to the heap.",
}

# Where the search finds less than there is.
PROVEN = {
    "dns_max_ttl": "unit/resolve_test",
    "dns_nxdomain_ttl": "unit/resolve_test",
    "resolv_conf": "unit/resolve_test",
    "quic_retry_threshold": "unit/quic_test",
    "quic_idle_timeout": "unit/quic_test",
    "quic_stream_window": "unit/quic_test",
    "quic_max_stream_window":
        "test_quic_weather: test_windows_grow_to_fill_the_path",
    "quic_connection_window": "unit/quic_test",
    "quic_max_connection_window":
        "test_quic_weather: test_windows_grow_to_fill_the_path",
    "show totals": "unit/admin_console_test",
    "show mptcp": "unit/admin_console_test",
}

# Where the name alone says too much.
KEY_PATTERNS = {
    "transport": r"transport=quic",
    "mptcp": r"\bmptcp ?= ?(on|require)",
}

SIGNALS = [
    ("SIGHUP", "same", "test_config", "reads the files anew"),
    ("SIGTERM", "same", "test_shutdown",
     "waits for the clients to leave; a second one ends at once"),
    ("SIGINT", "same", "test_shutdown",
     "waits for the servers in use; a second one ends at once"),
    ("SIGQUIT", "same", "test_shutdown", "ends at once"),
    ("SIGUSR1", "same", "test_shutdown", "PAUSE"),
    ("SIGUSR2", "same", "test_shutdown", "RESUME"),
]

SWITCHES = [
    ("-d, --daemon", "same", "test_switches: test_daemon",
     "runs in the background; needs `pidfile` and a log"),
    ("-u, --user", "same", "test_switches: test_user", "changes the account"),
    ("-v, --verbose", "same", "test_options: test_verbose",
     "more log lines, once for each"),
    ("-q, --quiet", "same", "test_switches: test_quiet",
     "nothing on standard error"),
    ("-V, --version", "same", "test_switches: test_exit_status",
     "the version"),
    ("-h, --help", "same", "test_switches: test_exit_status",
     "the switches, on one screen"),
    ("-R, --reboot", "differs", "test_upgrade",
     "an upgrade, in which sessions move, too; it does not go by the console"),
    ("--upgrade", "ours", "test_upgrade",
     "the running process starts this program with this file, which takes over "
     "with the sessions that can move"),
    ("--check", "ours", "test_config: test_secrets_are_not_shown_by_check",
     "reads a file, names every mistake, starts nothing"),
]

FILES = [
    ("ini file", "same", "test_config",
     "An unknown key, a bad value, a section that is none: refused with file "
     "and line, as PgBouncer refuses it."),
    ("userlist (`auth_file`)", "same", "test_auth",
     "Read again when it changes, without a reload."),
    ("HBA file", "differs", "test_hba", "See `auth_hba_file`."),
    ("ident file", "differs", "test_hba", "See `auth_ident_file`."),
    ("pid file", "same", "test_startup", ""),
]


def words_of(text):
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text))


def source_of(node, lines):
    first = min([node.lineno]
                + [d.lineno for d in getattr(node, "decorator_list", [])])
    return "\n".join(lines[first - 1:node.end_lineno])


def names_of(node):
    """What a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    return []


def load_tests():
    """(file, function, own text, text with what it uses of its file)."""
    out = []
    for path in sorted(SCENARIOS.glob("test_*.py")):
        lines = path.read_text().splitlines()
        body = ast.parse(path.read_text()).body
        helpers = {name: source_of(node, lines) for node in body
                   for name in names_of(node)
                   if not name.startswith("test_")}
        for node in body:
            if isinstance(node, ast.FunctionDef) \
                    and node.name.startswith("test_"):
                own = source_of(node, lines)
                used = [helpers[w] for w in sorted(words_of(own))
                        if w in helpers]
                out.append((path.stem, node.name, own,
                            "\n".join([own] + used)))
    return out


class Finder:
    def __init__(self, names):
        self.names = names
        self.tests = load_tests()

    def unit_test(self, pattern):
        for path in sorted((ROOT / "tests" / "unit").glob("*_test.c")):
            if re.search(pattern, path.read_text(), re.I):
                return "unit/" + path.stem
        return ""

    def best(self, name, pattern=None):
        """The test most about name: named after it, else the one that says it
        itself and speaks of the fewest other things."""
        pattern = pattern or r"\b%s\b" % name
        found = []
        for file, function, own, all_of_it in self.tests:
            if not re.search(pattern, all_of_it, re.I):
                continue
            others = len(self.names & words_of(own))
            if others > 12:
                continue
            rank = 0 if name in function \
                else 1 if re.search(pattern, own, re.I) else 2
            found.append((rank, others, len(own), file, function))
        if not found:
            return self.unit_test(pattern)
        return "%s: %s" % min(found)[3:]


def cell(text):
    return text.replace("|", "\\|")


def table(head, rows):
    out = ["| " + " | ".join(head) + " |",
           "| " + " | ".join("---" for _ in head) + " |"]
    out += ["| " + " | ".join(cell(c) for c in row) + " |" for row in rows]
    return "\n".join(out) + "\n"


def status_of(name, flags):
    if re.search(r"(OPT|KEY)_LATER", flags):
        return "not yet"
    if re.search(r"(OPT|KEY)_OURS", flags):
        return "ours"
    if name in NO_EFFECT:
        return "no effect"
    return "differs" if name in DIFFERS else "same"


def note_of(name):
    return NO_EFFECT.get(name) or DIFFERS.get(name, "")


def proof(test):
    if not test:
        return "none"
    if test.endswith("_is_accepted"):
        return "only that it is read: `%s`" % test
    return "`%s`" % test


def options(find):
    rows = []
    for row in gen_docs.rows("option.def", "OPT"):
        name, flags = row[1], row[6]
        rows.append(("`%s`" % name, status_of(name, flags),
                     proof(PROVEN.get(name) or find.best(name)),
                     note_of(name)))
    return "\n## Options of [pgbouncer]\n\n" + table(
        ("option", "status", "test", "note"), rows)


def keys(find):
    out = []
    for macro, (section, _) in gen_docs.SECTIONS.items():
        rows = []
        for row in gen_docs.rows("section.def", macro):
            name, flags = row[1], row[4]
            status = status_of("", flags)
            test = find.best(name, KEY_PATTERNS.get(
                name, r"\b%s( ?=|\")" % name))
            rows.append(("`%s`" % name, status, proof(test), ""))
        out.append("\n## Keys of [%s]\n\n" % section + table(
            ("key", "status", "test", "note"), rows))
    return "".join(out)


def admin_rows(file, macro):
    text = (ADMIN / file).read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found = re.finditer(r"^%s\(" % macro, text, re.M)
    return [[gen_docs.value(a) for a in gen_docs.split_args(text[m.end():])]
            for m in found]


def commands(find):
    rows = []
    for row in admin_rows("command.def", "CMD"):
        verb, obj, handler = row[0], row[1], row[5]
        name = verb if obj == "NULL" else "%s %s" % (verb, obj)
        if handler == "cmd_unsupported":
            status = "not yet"
        elif name == "show workers" or name.startswith("show mptcp") \
                or name.startswith("show quic"):
            status = "ours"
        else:
            status = "differs" if name in COMMAND_NOTES else "same"
        short = obj if obj != "NULL" else verb
        pattern = r"show\(\W*%s\b|\b%s\b|[\"']%s[\"']" % (
            short, name, short) \
            if obj != "NULL" else r"\b%s\b" % verb.upper()
        rows.append(("`%s`" % name.upper(), status,
                     proof(PROVEN.get(name) or find.best(short, pattern)),
                     COMMAND_NOTES.get(name, "")))
    return "\n## Console\n\n" + table(
        ("command", "status", "test", "note"), rows)


def columns():
    text = (ADMIN / "column.def").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    rows, at = [], None
    for m in re.finditer(r"^TABLE\((\w+)\)|^COL\((\w+), \"(\w+)\"\)", text,
                         re.M):
        if m.group(1):
            at = [m.group(1).lower(), []]
            rows.append(at)
        else:
            at[1].append("%s %s" % (m.group(3), m.group(2).lower()))
    ours = ("workers", "quic", "mptcp")
    out = [("`%s`" % name, "ours" if name.startswith(ours) else "same",
            ", ".join(cols)) for name, cols in rows]
    return ("\n## Columns\n\nNames, types and order. "
            "`test_differential: test_same_as_pgbouncer` and `test_console` "
            "compare them with the PgBouncer that the machine has.\n\n"
            + table(("table", "status", "columns"), out))


def others():
    signals = [("`%s`" % s, status, proof(test), what)
               for s, status, test, what in SIGNALS]
    switches = [("`%s`" % s, status, proof(test), what)
                for s, status, test, what in SWITCHES]
    files = [(f, status, proof(test), what)
             for f, status, test, what in FILES]
    return ("\n## Signals\n\n"
            + table(("signal", "status", "tests", "does"), signals)
            + "\n## Switches\n\n"
            + table(("switch", "status", "test", "does"), switches)
            + "\n## Files\n\n"
            + table(("file", "status", "tests", "note"), files))


def known_names():
    names = {row[1] for row in gen_docs.rows("option.def", "OPT")}
    return names


def page():
    find = Finder(known_names())
    return INTRO + options(find) + keys(find) + commands(find) + columns() \
        + others()


def rows_of(text):
    """Section, name and status of each row: what --check compares."""
    out, section = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line
        elif line.startswith("| ") and not line.startswith("| ---"):
            cells = line.split(" | ")
            out.append((section, cells[0], cells[1]))
    return out


def main():
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or rows_of(PAGE.read_text()) != rows_of(page()):
            sys.exit("docs/compatibility.md is stale: run "
                     "tools/gen_compat.py")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
