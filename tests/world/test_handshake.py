"""Mutual authentication: both sides know the secret, and messages are bounded and bound to their connection."""

from __future__ import annotations

import concurrent.futures
import socket
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world.connections import handshake
from jaxring.world.connections.handshake import MAX_MESSAGE_BYTES, Acceptance, authenticate

SECRET = b"s" * 32


def soon(seconds=30):
    return time.monotonic() + seconds


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def accept(sock, secret=SECRET, index=1, count=4):
    acceptance = Acceptance(secret, index, count)
    while acceptance.session is None:
        sock.sendall(acceptance.feed(handshake.receive_exactly(sock, acceptance.needed, soon())))
    return acceptance.session


def sessions(pair, **kwargs):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        acceptor = pool.submit(accept, pair[1], **kwargs)
        try:
            return authenticate(pair[0], SECRET, 3, 1, soon()), acceptor.result()
        except JoinError:
            pair[0].close()
            raise


def test_both_sides_agree_and_exchange_one_message_each(pair):
    dialler, acceptor = sessions(pair)
    assert (dialler.peer, acceptor.peer) == (1, 3)
    dialler.send(pair[0], {"a": 1}, soon())
    assert acceptor.receive(pair[1], soon()) == {"a": 1}
    acceptor.send(pair[1], {"ok": True}, soon())
    assert dialler.receive(pair[0], soon()) == {"ok": True}


def test_a_dialler_refuses_an_acceptor_without_the_secret(pair):
    with pytest.raises(JoinError, match="process 1 does not hold this job's secret"):
        sessions(pair, secret=b"x" * 32)


def test_an_acceptor_refuses_a_dialler_without_the_secret():
    acceptance = Acceptance(SECRET, 1, 4)
    hello = handshake._HELLO.pack(handshake.MAGIC, 3, 1, b"n" * 32)
    answer = acceptance.feed(hello)
    with pytest.raises(ValueError, match="secret"):
        acceptance.feed(handshake._proof(b"x" * 32, b"dialler\0", hello, answer[:32]))
    assert acceptance.session is None


def test_a_captured_handshake_is_of_no_use():
    first, again = Acceptance(SECRET, 1, 4), Acceptance(SECRET, 1, 4)
    hello = handshake._HELLO.pack(handshake.MAGIC, 3, 1, b"n" * 32)
    proof = handshake._proof(SECRET, b"dialler\0", hello, first.feed(hello)[:32])
    first.feed(proof)
    assert first.session is not None
    again.feed(hello)
    with pytest.raises(ValueError, match="secret"):
        again.feed(proof)
    assert again.session is None


def test_a_proof_cannot_be_reflected():
    acceptance = Acceptance(SECRET, 1, 4)
    answer = acceptance.feed(handshake._HELLO.pack(handshake.MAGIC, 3, 1, b"n" * 32))
    with pytest.raises(ValueError, match="secret"):
        acceptance.feed(answer[32:])


@pytest.mark.parametrize(
    "fields",
    [(b"HTTP/1.1", 3, 1), (handshake.MAGIC, 3, 2), (handshake.MAGIC, 4, 1), (handshake.MAGIC, 1, 1)],
)
def test_a_hello_for_somebody_else_is_refused(fields):
    with pytest.raises(ValueError):
        Acceptance(SECRET, 1, 4).feed(handshake._HELLO.pack(*fields, b"n" * 32))


def test_oversize_messages_are_refused_by_both_sides(pair):
    dialler, acceptor = sessions(pair)
    with pytest.raises(ValueError, match="exceeds"):
        dialler.send(pair[0], {"a": "x" * MAX_MESSAGE_BYTES}, soon())
    pair[0].sendall(handshake._LENGTH.pack(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ValueError, match="exceeds"):
        acceptor.receive(pair[1], soon())


def test_an_altered_message_is_refused(pair):
    dialler, acceptor = sessions(pair)
    inner, outer = socket.socketpair()
    with inner, outer:
        dialler.send(inner, {"a": 1}, soon())
        data = bytearray(outer.recv(4096))
    data[-2] ^= 1
    pair[0].sendall(data)
    with pytest.raises(ValueError, match="tag"):
        acceptor.receive(pair[1], soon())


def test_a_message_cannot_be_sent_back(pair):
    dialler, _ = sessions(pair)
    dialler.send(pair[0], {"a": 1}, soon())
    data = pair[1].recv(4096)
    pair[1].sendall(data)
    with pytest.raises(ValueError, match="tag"):
        dialler.receive(pair[0], soon())


def test_a_late_or_gone_peer_raises(pair):
    with pytest.raises(TimeoutError):
        authenticate(pair[0], SECRET, 3, 1, soon(0.05))
    pair[1].close()
    with pytest.raises(OSError):
        authenticate(pair[0], SECRET, 3, 1, soon())
