"""An unauthenticated client that floods a job's listeners with connections.

    python unauthenticated.py [--rate N] [--held N] ADDRESS:PORT [ADDRESS:PORT ...] < REPLAY

Connects to all addresses in turn until it is interrupted, `--rate` times a second (default: without a limit), with
`--held` connections open at a time. The connections take turns in what they send: nothing, garbage, the beginning of a
handshake, or a replay of the handshake that standard input holds in hex, which a process of the job once sent. At the
end it prints one line of JSON that counts how the connections ended.

It needs nothing but Python, so it runs on hosts without jaxring.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time

# A handshake as jaxring/world/connections/handshake.py has it: greeting, answer (nonce and proof), proof.
_GREETING, _ANSWER = 48, 64
_KINDS = ("silent", "garbage", "begun", "replayed")


class Client:
    """Connections of all kinds. ``counts``: made, closed by the other side, and led on beyond its question."""

    def __init__(self, targets: list[tuple[str, int]], held: int, replay: bytes) -> None:
        self.counts = {"made": 0, "refused": 0, "welcomed": 0}
        self._targets, self._held, self._replay = targets, held, replay
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._open: collections.OrderedDict[socket.socket, tuple[str, int]] = collections.OrderedDict()

    def connect(self) -> None:
        """Open one more connection."""
        self._number += 1
        kind = _KINDS[self._number % len(_KINDS)]
        while len(self._open) >= self._held:
            self._close(next(iter(self._open)))
        address = self._targets[self._number // len(_KINDS) % len(self._targets)]
        sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        sock.setblocking(False)
        if sock.connect_ex(address) not in (0, errno.EINPROGRESS):
            sock.close()
            return
        self._open[sock] = (kind, 0)
        self._selector.register(sock, selectors.EVENT_WRITE)

    def listen(self, seconds: float) -> None:
        """Handle the answers that have come, and those of the next ``seconds``."""
        for key, events in self._selector.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    self._greet(sock)
                else:
                    self._hear(sock)
            except OSError:
                self.counts["refused"] += 1
                self._close(sock)

    def _greet(self, sock: socket.socket) -> None:
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self.counts["made"] += 1
        kind = self._open[sock][0]
        if kind == "garbage":
            sock.send(os.urandom(200))
        elif kind != "silent":
            sock.send(self._replay[:_GREETING])
        self._selector.modify(sock, selectors.EVENT_READ)

    def _hear(self, sock: socket.socket) -> None:
        data = sock.recv(4096)
        if not data:
            raise ConnectionResetError
        kind, before = self._open[sock]
        heard = before + len(data)
        self._open[sock] = (kind, heard)
        if heard > _ANSWER:
            self.counts["welcomed"] += 1
        if kind == "replayed" and before < _ANSWER <= heard:
            sock.send(self._replay[_GREETING:])

    def _close(self, sock: socket.socket) -> None:
        del self._open[sock]
        with contextlib.suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()


def main() -> None:
    """Connect until interrupted, then print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rate", type=float, default=0.0, help="connections a second (default: as fast as it goes)")
    parser.add_argument("--held", type=int, default=600, help="connections that are open at a time (default: 600)")
    parser.add_argument("targets", nargs="+", metavar="ADDRESS:PORT")
    arguments = parser.parse_args()
    targets = [(name.rpartition(":")[0].strip("[]"), int(name.rpartition(":")[2])) for name in arguments.targets]
    # A process that a shell starts in the background has no handler of SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    client = Client(targets, arguments.held, bytes.fromhex(sys.stdin.read()))
    with contextlib.suppress(KeyboardInterrupt):
        begun = time.monotonic()
        for number in itertools.count(1):
            client.connect()
            ahead = number / arguments.rate - (time.monotonic() - begun) if arguments.rate else 0.0
            client.listen(max(0.0, ahead))
    print(json.dumps(client.counts))


if __name__ == "__main__":
    main()
