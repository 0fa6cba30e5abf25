# SPDX-License-Identifier: ISC
# Copyright (c) 2026 The pgbraid authors
"""A name server for one zone, on port 53 of a loopback address."""
import socket
import struct
import threading

A, SOA = 1, 6


class FakeDns:
    """Answers A for one host and SOA for its zone. PermissionError or OSError
    where port 53 cannot be had."""

    def __init__(self, host, address, ip="127.0.0.77"):
        self.host = host
        self.zone = host.split(".", 1)[1]
        self.address = address
        self.serial = 1
        self.ip = ip
        self.asked = threading.Event()  # for the SOA
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.sock.bind((ip, 53))
        except OSError:
            self.sock.close()
            raise
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self):
        self.sock.sendto(b"end", (self.ip, 53))
        self.thread.join()
        self.sock.close()

    def _serve(self):
        while True:
            packet, peer = self.sock.recvfrom(4096)
            if packet == b"end":
                return
            self.sock.sendto(self._answer(packet), peer)

    def _answer(self, packet):
        at, labels = 12, []
        while packet[at]:
            labels.append(packet[at + 1:at + 1 + packet[at]].decode())
            at += packet[at] + 1
        kind, = struct.unpack_from("!H", packet, at + 1)
        name, data = ".".join(labels).lower(), b""
        if name == self.host and kind == A:
            data = socket.inet_aton(self.address)
        elif name == self.zone and kind == SOA:
            data = b"\0\0" + struct.pack("!5I", self.serial, 1, 1, 1, 1)
            self.asked.set()
        head = packet[:2] + struct.pack("!5H", 0x8480, 1, bool(data), 0, 0)
        question = packet[12:at + 5]
        if not data:
            return head + question
        return head + question + struct.pack(
            "!HHHIH", 0xc00c, kind, 1, 60, len(data)) + data
