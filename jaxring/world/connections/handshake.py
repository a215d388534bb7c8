"""Mutual authentication of two processes over the job's secret, and the one request that follows.

The dialler sends HELLO (both indices and its nonce), the acceptor answers with its nonce and a proof, the dialler
answers with its proof. A proof is HMAC-SHA256 of the secret over role, HELLO and the acceptor's nonce, so it holds for
these two processes, this direction and this connection only. The request and its answer carry a tag under a key that
is made from the same values, so they cannot be altered or moved to another connection.

A viewer, such as `jaxring top` on another host, is authenticated in the same way by a key that is made of the secret:
who holds that key can look at the job and nothing else. It says VIEWER for its index.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.world import wire

if TYPE_CHECKING:
    import socket

MAGIC = b"jaxring\x01"
SECRET_BYTES = 32
# Stands for the dialler's index where that is no process of the job, but looks at it.
VIEWER = 0xFFFFFFFF
MAX_BULK_BYTES = 64 << 20
MAX_MESSAGE_BYTES = 8192
_NONCE = 32
_TAG = 32
_HELLO = struct.Struct(f">8sII{_NONCE}s")
_LENGTH = struct.Struct(">I")


class Session:
    """An authenticated connection: one tagged JSON message goes each way."""

    def __init__(self, peer: int, key: bytes, dialled: bool) -> None:
        self.peer = peer
        self._key = key
        self._labels = (b"request\0", b"answer\0") if dialled else (b"answer\0", b"request\0")

    def send(self, sock: socket.socket, message: dict[str, Any], deadline: float) -> None:
        """Send `message`. Raises ValueError beyond MAX_MESSAGE_BYTES, OSError where the peer is gone or late."""
        payload = wire.encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(payload)} bytes exceeds {MAX_MESSAGE_BYTES}")
        send_all(sock, _LENGTH.pack(len(payload)) + self._tag(self._labels[0], payload) + payload, deadline)

    def receive(self, sock: socket.socket, deadline: float) -> dict[str, Any]:
        """The peer's message. Raises ValueError for a bad one, OSError where the peer is gone or late."""
        (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size, deadline))
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length} bytes exceeds {MAX_MESSAGE_BYTES}")
        tag = receive_exactly(sock, _TAG, deadline)
        payload = receive_exactly(sock, length, deadline)
        if not hmac.compare_digest(tag, self._tag(self._labels[1], payload)):
            raise ValueError("a message's tag is wrong: it was altered on the network")
        return wire.decode(payload, MAX_MESSAGE_BYTES)

    def send_bulk(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        """Send bytes that are no message, after the answer. Raises OSError where the peer is gone or late."""
        send_all(sock, _LENGTH.pack(len(data)) + self._tag(b"bulk\0", data) + data, deadline)

    def receive_bulk(self, sock: socket.socket, deadline: float) -> bytes:
        """What `send_bulk` sends. Raises ValueError for other bytes, OSError where the peer is gone or late."""
        (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size, deadline))
        if length > MAX_BULK_BYTES:
            raise ValueError(f"{length} bytes exceed {MAX_BULK_BYTES}")
        tag = receive_exactly(sock, _TAG, deadline)
        data = receive_exactly(sock, length, deadline)
        if not hmac.compare_digest(tag, self._tag(b"bulk\0", data)):
            raise ValueError("the tag of what came is wrong: it was altered on the network")
        return data

    def stream_key(self) -> bytes:
        """32 bytes that only the two ends of this connection have. They are the pre-shared key of TLS."""
        return hmac.digest(self._key, b"tls\0", hashlib.sha256)

    def _tag(self, label: bytes, payload: bytes) -> bytes:
        return hmac.digest(self._key, label + payload, hashlib.sha256)


class Acceptance:
    """The acceptor's half, without I/O: feed it exactly `needed` bytes at a time until `session` is there."""

    def __init__(self, secret: bytes, index: int, count: int) -> None:
        self.needed = _HELLO.size
        self.session: Session | None = None
        self._secret, self._index, self._count = secret, index, count
        self._hello = b""
        self._nonce = b""

    def feed(self, data: bytes) -> bytes:
        """Take `needed` bytes, return the answer. Raises ValueError for a peer that must be dropped."""
        if self._hello:
            peer = int(_HELLO.unpack(self._hello)[1])
            secret = self._key(peer)
            if not hmac.compare_digest(data, _proof(secret, b"dialler\0", self._hello, self._nonce)):
                raise ValueError("it does not hold this job's secret")
            self.session = Session(peer, _proof(secret, b"session\0", self._hello, self._nonce), dialled=False)
            return b""
        magic, dialler, acceptor, _ = _HELLO.unpack(data)
        if magic != MAGIC:
            raise ValueError("it does not speak jaxring's protocol")
        process = dialler < self._count and dialler != self._index
        if acceptor != self._index or not (process or dialler == VIEWER):
            raise ValueError(f"it dials process {acceptor} as process {dialler} of {self._count}")
        self._hello = data
        self._nonce = secrets.token_bytes(_NONCE)
        self.needed = _TAG
        return self._nonce + _proof(self._key(dialler), b"acceptor\0", data, self._nonce)

    def _key(self, dialler: int) -> bytes:
        return viewing_key(self._secret) if dialler == VIEWER else self._secret


def viewing_key(secret: bytes) -> bytes:
    """What a viewer is authenticated by. The secret cannot be found from it."""
    return hmac.digest(secret, b"viewer\0", hashlib.sha256)


def authenticate(sock: socket.socket, secret: bytes, index: int, peer: int, deadline: float) -> Session:
    """The dialler's half. Raises OSError where the peer is gone or late, JoinError where it lacks the secret."""
    hello = _HELLO.pack(MAGIC, index, peer, secrets.token_bytes(_NONCE))
    send_all(sock, hello, deadline)
    answer = receive_exactly(sock, _NONCE + _TAG, deadline)
    nonce, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, _proof(secret, b"acceptor\0", hello, nonce)):
        raise JoinError(f"The program that listens at the address of process {peer} does not hold this job's secret.")
    send_all(sock, _proof(secret, b"dialler\0", hello, nonce), deadline)
    return Session(peer, _proof(secret, b"session\0", hello, nonce), dialled=True)


def _proof(secret: bytes, role: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + hello + nonce, hashlib.sha256)


def send_all(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Send all of `data` before `deadline` (time.monotonic seconds). Raises OSError, TimeoutError among them."""
    sock.settimeout(_left(deadline))
    sock.sendall(data)


def receive_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Read `size` bytes and no more, because what follows may be data. Raises OSError, TimeoutError among them."""
    parts = bytearray()
    while len(parts) < size:
        sock.settimeout(_left(deadline))
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the peer closed the connection")
        parts += part
    return bytes(parts)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
