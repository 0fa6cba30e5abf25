# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Reads Prometheus' text format, version 0.0.4, strictly: what this does not
understand fails."""
import re
import urllib.request

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
SAMPLE = re.compile(r"(%s)(?:\{(.*)\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)$" % NAME)


class Page:
    def __init__(self, text):
        self.types, self.help = {}, {}
        self.samples = {}   # (name, labels as a frozenset of pairs): value
        self.family = None
        self.closed = set()
        assert text.endswith("\n"), "the last line has no end"
        for line in text[:-1].split("\n"):
            self.read(line)

    def read(self, line):
        if line.startswith("# HELP "):
            name, text = line[7:].split(" ", 1)
            assert name not in self.help, "two families %s" % name
            self.help[name] = text
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert self.family not in self.closed
            self.closed.add(self.family)
            self.family = name
            self.types[name] = kind
        else:
            self.read_sample(line)

    def read_sample(self, line):
        found = SAMPLE.match(line)
        assert found, "no sample: %r" % line
        name, text, value = found.groups()
        base = name
        if self.types[self.family] == "histogram":
            base = re.sub("_(bucket|sum|count)$", "", name)
        assert base == self.family, "%s among %s" % (name, self.family)
        labels = LABEL.findall(text or "")
        assert ",".join('%s="%s"' % p for p in labels) == (text or "")
        unescape = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
        key = name, frozenset(
            (k, re.sub(r"\\.", lambda m: unescape[m.group()], v))
            for k, v in labels)
        assert key not in self.samples, "twice: %r" % line
        self.samples[key] = float(value)

    def get(self, name, **labels):
        return self.samples.get((name, frozenset(labels.items())))

    def all(self, name):
        """Labels as a dict, and value, of each sample."""
        return [(dict(k[1]), v) for k, v in self.samples.items()
                if k[0] == name]

    def sum(self, name, **labels):
        want = labels.items()
        return sum(v for k, v in self.all(name) if want <= k.items())


def get(port, path="/metrics", host="127.0.0.1", method="GET"):
    """(status, headers, body); also of an error's answer."""
    request = urllib.request.Request("http://%s:%d%s" % (host, port, path),
                                     method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=15) as got:
            return got.status, got.headers, got.read()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.headers, exc.read()


def scrape(port):
    status, headers, body = get(port)
    assert status == 200, (status, body)
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return Page(body.decode("utf-8"))
