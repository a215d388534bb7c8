"""Somebody in the middle: forwards connections to a port, and changes a byte when told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Between:
    """Listens on ``port`` from the start; carries bytes when it knows where to. Connections count from 0."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._known = threading.Event()
        self._lock = threading.Lock()
        self._alter: dict[tuple[int, bool], int] = {}
        self._passed: dict[tuple[int, bool], int] = {}
        self.altered = 0
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._known.set()
        with self._lock:
            for sock in [self._door, *self._socks]:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in [self._door, *self._socks]:
            sock.close()

    def forward_to(self, port: int) -> None:
        self._port = port
        self._known.set()

    def alter(self, connection: int, upward: bool, at: int | None = None) -> None:
        """Byte ``at`` of those that this connection carries (``upward``: to the port), or the next one to come."""
        with self._lock:
            self._alter[connection, upward] = self._passed.get((connection, upward), 0) if at is None else at

    def _begin(self, target, *arguments) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        number = 0
        with contextlib.suppress(OSError):  # closed
            while True:
                near = self._door.accept()[0]
                self._known.wait()
                far = socket.create_connection(("127.0.0.1", self._port))
                with self._lock:
                    self._socks += [near, far]
                self._begin(self._carry, near, far, (number, True))
                self._begin(self._carry, far, near, (number, False))
                number += 1

    def _carry(self, source: socket.socket, target: socket.socket, which: tuple[int, bool]) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                with self._lock:
                    begin = self._passed.get(which, 0)
                    self._passed[which] = begin + len(data)
                    place = self._alter.get(which, -1) - begin
                    if 0 <= place < len(data):
                        del self._alter[which]
                        data[place] ^= 1
                        self.altered += 1
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
