"""Unauthenticated peers of a World: none gets in, none blocks a member, and the number served at a time is bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world.connections import allowance, handshake, listener
from jaxring.world.connections.handshake import authenticate
from tests.world.world_fakes import other_job


def test_a_dialler_with_another_secret_is_refused(make_world):
    (zero, _), (_, native1) = make_world(0), make_world(1)
    zero._published._secret = b"x" * 32
    with pytest.raises(JoinError, match="process 1 does not hold this job's secret"):
        zero.link(1, 0)
    assert not native1.named("shm_finish")


def test_another_job_at_an_address_that_hosts_share_is_passed_over(make_world, tmp_path):
    (zero, _), (one, native1) = make_world(0), make_world(1)
    with other_job(tmp_path / "other", 1) as theirs:
        shared = ("bridge", *theirs)
        zero._published._infos[1] = dataclasses.replace(one.own, addresses=(shared, *one.own.addresses))
        assert zero.link(1, 0) == "shm"
        assert len(native1.wait_for("shm_finish")) == 1
        zero._published._infos[1] = dataclasses.replace(one.own, addresses=(shared,) * 2)
        with pytest.raises(JoinError, match="process 1 does not hold this job's secret"):
            zero.link(1, 1)


def test_unauthenticated_peers_neither_block_nor_enter(make_world, monkeypatch):
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED", 8)
    (zero, _), (one, native1) = make_world(0), make_world(1)
    _, address, port = one.own.addresses[0]
    peers = [socket.create_connection((address, port), 60) for _ in range(40)]
    try:
        for number, sock in enumerate(peers):
            with contextlib.suppress(OSError):  # where it was dropped already
                if number % 4 == 1:
                    sock.sendall(b"GET / HTTP/1.1\r\n" * 20)
                elif number % 4 == 2:
                    sock.sendall(handshake.MAGIC)
                elif number % 4 == 3:
                    who = handshake.VIEWER if number % 8 == 3 else 0
                    sock.sendall(handshake._HELLO.pack(handshake.MAGIC, who, 1, b"n" * 32) + b"p" * 32)
        assert zero.link(1, 0) == "shm"
        assert len(native1.wait_for("shm_finish")) == 1
    finally:
        for sock in peers:
            sock.close()


def test_links_are_made_during_a_flood(make_world):
    (zero, _), (one, native1) = make_world(0, SHM_DISABLE="1"), make_world(1, SHM_DISABLE="1")
    _, address, port = one.own.addresses[0]
    over, flooded = threading.Event(), threading.Event()

    def flood(number):
        kept = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                sock = socket.create_connection((address, port), 60)
                who = handshake.VIEWER if number % 2 else 0
                sock.sendall(handshake._HELLO.pack(handshake.MAGIC, who, 1, b"n" * 32) + b"p" * number)
                kept.append(sock)
            while len(kept) > 30:
                flooded.set()
                kept.pop(0).close()
        for sock in kept:
            sock.close()

    threads = [threading.Thread(target=flood, args=(number,)) for number in (0, 40)]
    for thread in threads:
        thread.start()
    try:
        assert flooded.wait(60)
        one.expect(0, 8)
        assert [zero.link(1, channel) for channel in range(8)] == ["tcp"] * 8
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert len(native1.wait_for("tcp_finish", 8)) == 8


def test_unauthenticated_peers_wait_unless_a_link_is_expected(make_world, monkeypatch):
    """However many there are: those whom nobody has accepted cost nothing."""
    monkeypatch.setattr(allowance, "BURST", 20)
    monkeypatch.setattr(listener, "Allowance", lambda: allowance.Allowance(lambda: 0.0))
    (zero, _), (one, _) = make_world(0), make_world(1)
    _, address, port = one.own.addresses[0]
    deadline = time.monotonic() + 60
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection((address, port), 60)).sendall(b"nonsense" * 6)
        while one.connections()[1] < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert one.connections() == (20, 20)
        one.expect(0, 1)
        assert zero.link(1, 0) == "shm"
        assert one.connections() == (52, 50)  # the link's two connections came behind all others


def test_an_allowance_is_spent_given_back_and_refilled():
    now = [0.0]
    granted = allowance.Allowance(lambda: now[0])
    for _ in range(allowance.BURST + 5):
        granted.spend()
    assert granted.left() == 0
    assert granted.wait() == allowance.BURST_REFILL / allowance.RATE
    granted.give_back()
    assert granted.left() == 1
    now[0] += 0.1
    assert granted.left() == 1 + allowance.RATE // 10
    assert granted.wait() == 0
    now[0] += 1e6
    assert granted.left() == allowance.BURST


def test_a_silent_peer_is_dropped_at_its_deadline(make_world, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
    zero, _ = make_world(0)
    _, address, port = zero.own.addresses[0]
    with socket.create_connection((address, port), 60) as sock:
        assert sock.recv(1) == b""


def test_an_authenticated_peer_that_says_nothing_blocks_nobody(make_world):
    (zero, _), (one, _) = make_world(0), make_world(1)
    _, address, port = one.own.addresses[0]
    with socket.create_connection((address, port), 60) as sock:
        authenticate(sock, zero._published.secret(), 0, 1, time.monotonic() + 60)
        assert zero.link(1, 0) == "shm"
