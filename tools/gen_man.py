#!/usr/bin/env python3
# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Writes docs/pgbraid.5, the manual page of the configuration file, from the
option tables of src/conf.

  tools/gen_man.py           writes the page
  tools/gen_man.py --check   fails when the page is not what it would write
"""

import re
import sys

import gen_docs

PAGE = gen_docs.ROOT / "docs" / "pgbraid.5"

INTRO = r"""
.\" Written by tools/gen_man.py from src/conf/*.def: change those instead.
.TH PGBRAID 5 "" "pgbraid @VERSION@" "pgbraid"
.SH NAME
pgbraid.ini \- configuration file of the pgbraid connection pooler
.SH DESCRIPTION
The file that
.BR pgbraid (1)
reads is PgBouncer's: the same sections, names, defaults and meanings.
What pgbraid adds is marked
.IR "pgbraid only" .
.B pgbraid \-\-check
.I FILE
names every mistake with its line and starts nothing.
.PP
.EX
[databases]
app = host=10.0.0.5 dbname=app pool_size=50
*   = host=/var/run/postgresql

[pgbouncer]
listen_addr = *
auth_file   = userlist.txt
pool_mode   = transaction
.EE
.PP
Lines that begin with
.B ;
or
.B #
are comments; elsewhere in a line these characters mean themselves.
.BI [ section ]
begins a section, which may come more than once;
.B [pgbouncer]
must be there.
In
.IB key " = " value
the value is the rest of the line without the blanks around it.
A name with other characters than letters, digits and
.B _.\-*
goes in double quotes, in which
.B \(dq\(dq
is one quote.
.BI %include " FILE"
reads another file in this place.
If a name stands twice in a section, the last line holds.
.PP
Lines of
.BR [databases] ,
.B [users]
and
.B [peers]
have
.IB key = value
pairs separated by blanks on their right-hand side.
A value with a blank in it goes in single quotes, and a quote in it is written
twice.
.PP
A
.I list
is words separated by commas or blanks; a
.I switch
is
.BR 0 ", " off ", " no ", " false
or
.BR 1 ", " on ", " yes ", " true ;
a
.I time
is seconds, with a fraction if need be; a
.I number
in
.B [pgbouncer]
may be octal (leading 0) or hexadecimal (leading 0x).
.PP
An option that is
.I fixed at start
keeps its value until the next start.
All others follow RELOAD and can be changed on the console with SET, until the
next reload.
An option that is
.I not in force yet
is accepted and has no effect.
""".lstrip()

OUTRO = r"""
.SH SEE ALSO
.BR pgbraid (1)
""".lstrip()


def version():
    text = (gen_docs.ROOT / "meson.build").read_text()
    return re.search(r"^  version: '([^']+)'", text, re.M).group(1)


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return text.replace("'", "\\(aq").replace("^", "\\(ha")


def roff(text):
    """`code` in bold, **words** in italics; nothing that begins a request."""
    out = []
    for piece in re.split(r"(`[^`]*`|\*\*[^*]*\*\*)", text):
        if piece.startswith("`"):
            out.append("\\fB%s\\fR" % escape(piece[1:-1]))
        elif piece.startswith("**"):
            out.append("\\fI%s\\fR" % escape(piece[2:-2]))
        else:
            out.append(escape(piece).replace("·", "\\(bu"))
    line = "".join(out)
    return "\\&" + line if line[:1] == "." else line


def entry(name, facts, text):
    return ".TP\n.B %s\n%s.\n.br\n%s\n" % (
        escape(name), roff("; ".join(facts)), roff(text))


def default_of(kind, default):
    if default == "NULL":
        return "default 0" if kind == "INT" else "default: not set"
    return "default `%s`" % default if default else "default: empty"


def options():
    out = [".SH SECTION [pgbouncer]\n"]
    table = gen_docs.rows("option.def", "OPT")
    for group, title in gen_docs.rows("group.def", "GROUP"):
        out.append(".SS %s\n" % escape(title))
        for kind, name, its, default, low, high, flags, text in table:
            if its != group:
                continue
            facts = [gen_docs.describe_type(kind, low, high),
                     default_of(kind, default)]
            out.append(entry(name, facts + gen_docs.marks(flags), text))
    return "".join(out)


def section(macro):
    name, intro = gen_docs.SECTIONS[macro]
    out = [".SH SECTION [%s]\n%s\n" % (name, roff(intro))]
    table = gen_docs.rows("section.def", macro)
    for kind, key, low, high, flags, unset, text in table:
        facts = [gen_docs.describe_type(kind, low, high),
                 "if not given: " + unset]
        out.append(entry(key, facts + gen_docs.marks(flags), text))
    return "".join(out)


def edge():
    out = [".SH THE FILE OF AN EDGE\n" + roff(
        "`pgbraid edge` reads a file with a section [edge], or with one "
        "section [edge NAME] for each of several; [edge] then holds what they "
        "have in common. The keys are also options of its command line, which "
        "beat the file.") + "\n"]
    for _, name, argument, default, text in gen_docs.rows("edge.def", "EDGE"):
        kind = "switch" if argument == "NULL" else "`%s`" % argument
        out.append(entry(name, [kind, "if not given: " + default], text))
    return "".join(out)


def main():
    gen_docs.check_groups()
    page = INTRO.replace("@VERSION@", version()) + options()
    page += "".join(section(m) for m in gen_docs.SECTIONS) + edge() + OUTRO
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != page:
            sys.exit("docs/pgbraid.5 is stale: run tools/gen_man.py")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
