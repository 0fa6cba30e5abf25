# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""Many clients in one thread, each with one query under way at a time."""
import selectors
import threading
import time

from pgwire import query


class Sampler:
    """Counts server connections in PostgreSQL while something runs."""

    def __init__(self, cluster, where):
        self.cluster = cluster
        self.sql = ("SELECT count(*) FROM pg_stat_activity WHERE "
                    "backend_type = 'client backend' AND " + where)
        self.most = 0
        self.samples = 0
        self._stop = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        with self.cluster.wire() as wire:
            while not self._stop.is_set():
                self.most = max(self.most, int(wire.value(self.sql)))
                self.samples += 1

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()


def hammer(wires, rounds, text="SELECT %d", deadline=60):
    """Each wire runs its queries one after the other, each checked to be
    its own; the longest time that one of them took, in seconds."""
    sel = selectors.DefaultSelector()
    state = {}
    for number, wire in enumerate(wires):
        state[wire] = [0, number, 0.0]
        sel.register(wire.sock, selectors.EVENT_READ, wire)
    longest, open_wires = 0.0, len(wires)
    end = time.monotonic() + deadline

    def ask(wire):
        one = state[wire]
        one[2] = time.monotonic()
        wire.send(query(text % (one[1] * 100000 + one[0])))
    for wire in wires:
        ask(wire)
    while open_wires:
        if time.monotonic() > end:
            raise AssertionError("%d of %d clients are stuck" % (
                open_wires, len(wires)))
        for key, _ in sel.select(1):
            wire = key.data
            one = state[wire]
            got = wire.read_ready()
            longest = max(longest, time.monotonic() - one[2])
            want = str(one[1] * 100000 + one[0]).encode()
            assert not got.errors, got.errors
            assert got.rows[0][0] == want, (got.rows, want)
            one[0] += 1
            if one[0] == rounds:
                sel.unregister(wire.sock)
                open_wires -= 1
            else:
                ask(wire)
    sel.close()
    return longest
