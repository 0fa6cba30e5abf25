# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A wire for UDP between clients and a server on loopback, which loses, repeats,
reorders and delays datagrams, and can change the addresses that the server
sees, as a NAT does."""
import heapq
import random
import selectors
import socket
import threading
import time


class UdpWire:
    def __init__(self, to, seed=1):
        self.to = to
        self.random = random.Random(seed)
        self.loss = self.dup = self.reorder = 0.0  # shares
        self.delay = 0.0    # seconds, one way
        self.mtu = 0        # bytes of a datagram; 0: no limit
        self.up_most = None # datagrams that get to the server; None: all
        self.passed = self.first_bytes = 0
        self.counts = {"up": 0, "down": 0, "lost": 0, "large": 0}
        self.bytes = {"up": 0, "down": 0}
        self.selector = selectors.DefaultSelector()
        self.near = self._socket(None)
        self.port = self.near.getsockname()[1]
        self.flows = {}     # a client's address: the socket it has at the far end
        self.waiting = []
        self.n = 0
        self.lock = threading.Lock()
        self.is_over = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _socket(self, client):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for name in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            out.setsockopt(socket.SOL_SOCKET, name, 4 << 20)
        out.bind(("127.0.0.1", 0))
        out.setblocking(False)
        self.selector.register(out, selectors.EVENT_READ, client)
        return out

    def _drop(self, sock):
        self.selector.unregister(sock)
        sock.close()

    def rebind(self):
        """From now on the server sees other ports; what it still sends to the
        old ones gets nowhere."""
        with self.lock:
            for client, old in list(self.flows.items()):
                self.flows[client] = self._socket(client)
                self._drop(old)

    def _run(self):
        while not self.is_over:
            wait = 0.05
            if self.waiting:
                wait = min(wait, max(0, self.waiting[0][0] - time.monotonic()))
            for key, _ in self.selector.select(wait):
                with self.lock:
                    self._read(key.fileobj, key.data)
            with self.lock:
                self._send_due()

    def _read(self, sock, client):
        for _ in range(64):
            try:
                data, addr = sock.recvfrom(65536)
            except OSError:
                return
            if client is None and addr not in self.flows:
                self.flows[addr] = self._socket(addr)
            self._take("down" if client else "up", client or addr, data)

    def _take(self, way, client, data):
        self.counts[way] += 1
        self.bytes[way] += len(data)
        if self.mtu and len(data) > self.mtu:
            self.counts["large"] += 1
            return
        if way == "up" and self.up_most is not None:
            if self.passed >= self.up_most:
                return
            self.passed += 1
            self.first_bytes += len(data)
        if self.random.random() < self.loss:
            self.counts["lost"] += 1
            return
        copies = 2 if self.random.random() < self.dup else 1
        for _ in range(copies):
            due = time.monotonic() + self.delay
            if self.random.random() < self.reorder:
                due += 0.005
            self.n += 1
            heapq.heappush(self.waiting, (due, self.n, way, client, data))

    def _send_due(self):
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            _, _, way, client, data = heapq.heappop(self.waiting)
            try:
                if way == "up":
                    self.flows[client].sendto(data, self.to)
                else:
                    self.near.sendto(data, client)
            except OSError:
                pass

    def close(self):
        self.is_over = True
        self.thread.join(5)
        for sock in [self.near] + list(self.flows.values()):
            sock.close()
        self.selector.close()
