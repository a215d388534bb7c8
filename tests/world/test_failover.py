"""Connections whose path fails: who dials where, what both ends tell each other, and when they go back."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.topology.interfaces import Address
from jaxring.world import failover, job_world
from jaxring.world.connections import dialling, handshake
from tests.world.moves.two_paths import HOME, OTHER, linked

pytestmark = pytest.mark.usefixtures("two_interfaces")


def test_both_ends_of_each_connection_know_it_by_one_name(make_world):
    native0, native1, data, control = linked(make_world)
    assert native0.named("path") == native1.named("path")
    assert data
    assert control
    assert data != control


def test_a_connection_between_hosts_with_one_path_has_no_name(make_world, monkeypatch):
    monkeypatch.setattr(job_world.interfaces, "choose", lambda *_: [Address("a", HOME)])
    _, _, data, control = linked(make_world)
    assert (data, control) == ("", "")


@pytest.mark.parametrize("net", ["Socket", "TLS"])
@pytest.mark.parametrize("kind", ["data", "control"])
def test_a_lost_connection_goes_on_at_the_other_address(make_world, caplog, net, kind):
    native0, native1, data, control = linked(make_world, NET=net)
    path = {"data": data, "control": control}[kind]
    native0.received[path], native1.received[path] = 7, 1 << 40
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(path)
        native0.wait_for("path_resume")
        native1.wait_for("path_resume")
    # Nobody writes any more before the other one drains, and each goes on from what the other one has.
    assert native0.named("path_suspend") == [("path_suspend", path, True, 1)]
    assert native0.named("path_resume") == [("path_resume", path, True, 1, 1 << 40, True)]
    assert native1.named("path_resume") == [("path_resume", path, False, 1, 7, False)]
    for native in (native0, native1):
        order = [call[0] for call in native.calls if call[0].startswith("path_")]
        assert order == ["path_suspend", "path_drain", "path_resume"]
    (key,), (theirs,) = native0.named("key of the path"), native1.named("key of the path")
    assert key == theirs
    assert len(key[1]) == (32 if net == "TLS" else 0)
    native0.sockets[path, 1, True].sendall(b"data")
    sock = native1.sockets[path, 1, False]
    assert sock.recv(4) == b"data"
    assert sock.getsockname()[0] == OTHER
    until = time.monotonic() + 60
    while not caplog.messages and time.monotonic() < until:
        time.sleep(0.01)
    (said,) = caplog.messages
    assert said.startswith("process 1 (pid")
    assert said.endswith(f"has acknowledged nothing for 0.3 s at {HOME}; its connections go on over {OTHER}.")


def test_an_attempt_that_fails_is_made_again(make_world, monkeypatch, caplog):
    native0, native1, data, _ = linked(make_world)
    drain, refusals = native1.path_drain, [ValueError("another attempt has begun"), OSError("no")]

    def refuse(*arguments):
        if refusals:
            raise refusals.pop()
        return drain(*arguments)

    monkeypatch.setattr(native1, "path_drain", refuse)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(data)
        assert native0.wait_for("path_resume") == [("path_resume", data, True, 3, 0, True)]
        assert native1.wait_for("path_resume") == [("path_resume", data, False, 3, 0, False)]
    assert not refusals
    # The log says nothing but that it goes on.
    assert all("go on over" in said for said in caplog.messages)


def test_an_attempt_that_fails_after_its_answer_says_nothing_more_on_the_connection(make_world, monkeypatch):
    """The other end may have gone on with it, and would take what comes for data."""
    native0, native1, data, _ = linked(make_world)
    receive = handshake.Session.receive

    def late(session, sock, deadline):
        answer = receive(session, sock, deadline)
        if set(answer) != {"received"}:
            return answer
        native0.wait_for("path_resume")
        raise TimeoutError("timed out")

    monkeypatch.setattr(handshake.Session, "receive", late)
    native0.lose(data)
    native0.wait_for("path_resume")
    assert native0.sockets[data, 1, True].recv(1) == b""
    assert not native1.named("path_resume")


def test_a_connection_that_is_gone_is_left_alone(make_world):
    native0, native1, data, control = linked(make_world)
    native0.gone.add(data)
    native0.lose(data)
    native0.lose(control)
    native0.wait_for("path_resume")
    assert {call[1] for call in native0.named("path_resume")} == {control}
    assert not native1.named("path_suspend")[1:]


def test_a_connection_that_the_engine_gives_up_is_tried_no_more(make_world):
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    data = native0.named("path")[1][1]
    moved = zero._failover._connections[data]
    native1.gone.add(data)
    native0.lose(data)
    native0.wait_for("path_suspend", 3)  # it is tried again and again
    native0.gone.add(data)
    # It is held for as long as somebody tries.
    assert moved.moving.acquire(timeout=60)
    assert not native0.named("path_resume")


def test_a_connection_is_not_stopped_before_the_peer_has_answered(make_world, monkeypatch):
    """The path may come back by itself, also where the peer's Python cannot answer for long."""
    native0, native1, data, _ = linked(make_world)
    tried = threading.Event()
    monkeypatch.setattr(failover, "_ROUND_S", 0.2)
    monkeypatch.setattr(native1, "path_suspend", lambda *_: tried.set())
    authenticate = dialling.handshake.authenticate

    def silent(sock, secret, own, peer, limit):
        tried.set()
        raise TimeoutError("timed out")

    monkeypatch.setattr(dialling.handshake, "authenticate", silent)
    native0.lose(data)
    assert tried.wait(60)
    time.sleep(0.3)
    assert not native0.named("path_suspend")
    monkeypatch.setattr(dialling.handshake, "authenticate", authenticate)
    assert native0.wait_for("path_suspend")


def test_a_process_that_does_not_listen_any_more_has_ended(make_world, monkeypatch):
    (zero, native0), (one, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    data = native0.named("path")[1][1]

    def refused(*_, **__):
        raise JoinError("it does not listen") from ConnectionRefusedError()

    monkeypatch.setattr(job_world, "connect", refused)
    native0.lose(data)
    (_, first, port), (_, second, other_port) = one.own.addresses
    why = f"its process does not listen any more at {first} port {port}, {second} port {other_port}, so it has ended"
    assert native0.wait_for("path_fail") == [("path_fail", data, why)]
    assert not native0.named("path_suspend")


def test_the_other_interface_is_tried_before_another_address_of_the_same(make_world, monkeypatch):
    addresses = [Address("a", HOME), Address("a", "127.0.0.3"), Address("b", OTHER)]
    monkeypatch.setattr(job_world.interfaces, "choose", lambda *_: addresses)
    native0, native1, data, _ = linked(make_world)
    native0.lose(data)
    native1.wait_for("path_resume")
    assert native1.sockets[data, 1, False].getsockname()[0] == OTHER


@pytest.mark.parametrize("which", [0, 1])
def test_connections_of_a_world_that_was_left_go_on_until_it_is_closed(make_world, which):
    """Its process waits in rebuild() or shrink() for others, which may need what it has sent."""
    worlds = [make_world(p, SHM_DISABLE="1") for p in (0, 1)]
    (zero, native0), (_, native1) = worlds
    zero.link(1, 0)
    native1.wait_for("path", 2)
    data = native0.named("path")[1][1]
    for _ in range(2):  # as a second call of rebuild() does after the first one has failed
        worlds[which][0].leave(time.monotonic() + 60)
    native0.lose(data)
    native0.wait_for("path_resume")
    native1.wait_for("path_resume")
    finished = len(native0.named("tcp_finish"))
    with pytest.raises(JoinError, match=r"This World is closed|makes no links any more: it is forming the job anew"):
        zero.link(1, 1)
    assert len(native0.named("tcp_finish")) == finished
    for _ in range(2):
        worlds[which][0].close(time.monotonic() + 60)
    worlds[which][0].leave(time.monotonic() + 60)
    with pytest.raises(JoinError, match="rebuilt since"):
        worlds[which][0]._native.path_lives(data)


def test_nothing_is_said_of_threads_that_find_the_world_closed(make_world, monkeypatch):
    native0, _, data, _ = linked(make_world)
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def refused(*_, **__):
        raise JoinError("it does not listen") from ConnectionRefusedError()

    def closed(path, why):
        native0._record("path_fail", path, why)
        raise JoinError("This World is closed.")

    monkeypatch.setattr(job_world, "connect", refused)
    monkeypatch.setattr(native0, "path_fail", closed)
    native0.lose(data)
    native0.wait_for("path_fail")
    until = time.monotonic() + 60
    while sum("failover" in thread.name for thread in threading.enumerate()) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert not raised


def test_a_second_failure_of_an_address_is_told_again(make_world, caplog):
    native0, _, data, _ = linked(make_world)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        for count in range(1, 5):
            native0.lose(data)
            until = time.monotonic() + 60
            while len(caplog.messages) < count and time.monotonic() < until:
                time.sleep(0.01)
    places = [(HOME, OTHER), (OTHER, HOME)] * 2
    assert len(caplog.messages) == len(places)
    for said, (old, new) in zip(caplog.messages, places, strict=True):
        assert said.endswith(f"at {old}; its connections go on over {new}.")


def test_a_connection_that_fails_while_it_is_made_goes_on(make_world, monkeypatch):
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    finish = native0.connector_finish

    def lose_at_once(*arguments, path, **named):
        words = finish(*arguments, path=path, **named)
        native0.lose(path)
        native0.wait_for("path_resume")
        return words

    monkeypatch.setattr(native0, "connector_finish", lose_at_once)
    zero.link(1, 0)
    assert native1.wait_for("path_resume")
