"""RDMA links whose ports fail: over which others they go on, what both ends tell each other, and when they go back."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world import failover
from jaxring.world.connections.handshake import Session
from jaxring.world.connections.named import Named
from tests.world.test_rdma import port

HOST = [port("rxe0"), port("rxe1")]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    # Nothing goes back unless a test asks for it, and nothing is late on a busy machine.
    monkeypatch.setattr(failover, "_RETURN_S", 1000.0)
    monkeypatch.setattr(failover, "_EACH_S", 60.0)
    monkeypatch.setattr(failover, "_ROUND_S", 60.0)
    monkeypatch.setattr(failover.port_pairs, "_ATTEMPT_S", 60.0)


def linked_worlds(make_world, here=HOST, there=HOST, channel=0):
    """Two worlds, the first with a link on that channel to the second; their engines; and the link's name."""
    (zero, native0), (one, native1) = make_world(0, HOSTID="a", rdma=here), make_world(1, HOSTID="b", rdma=there)
    zero.link(1, channel)
    native1.wait_for("verbs_finish")
    (path,) = (path for _, path in native0.named("path") if path)
    # Two threads answer for the control connection and the link.
    assert ("path", path) in native1.wait_for("path", 2)
    return (zero, one), native0, native1, path


def linked(make_world, here=HOST, there=HOST, channel=0):
    """The engines of `linked_worlds`, and the link's name."""
    return linked_worlds(make_world, here, there, channel)[1:]


def steps(native):
    return [call for call in native.calls if str(call[0]).startswith("link_")]


def said(caplog, count=1):
    """At least so many lines of the log of moves; a thread of another test may still have something else to say."""

    def moves():
        return [message for message in caplog.messages if "its connections go" in message]

    until = time.monotonic() + 60
    while len(moves()) < count and time.monotonic() < until:
        time.sleep(0.01)
    return moves()


def test_a_link_goes_on_over_the_next_ports_of_both_ends(make_world, caplog):
    native0, native1, path = linked(make_world)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(path)
        native0.wait_for("link_take_over")
        native1.wait_for("link_take_over")
        (line,) = said(caplog)
    assert steps(native0) == [
        ("link_offer", path, True, 1, "rxe1"),
        ("link_prepare", path, True, 1, "offer of rxe1"),
        ("link_try", path, 1),
        ("link_switch", path, True, 1, "5 3 0 0 0"),
        ("link_take_over", path, True, 1, True),
    ]
    assert steps(native1) == [
        ("link_offer", path, False, 1, "rxe1"),
        ("link_prepare", path, False, 1, "offer of rxe1"),
        ("link_switch", path, False, 1, ""),
        ("link_take_over", path, False, 1, False),
    ]
    assert line.startswith("process 1 (pid")
    assert line.endswith(
        "has acknowledged nothing for 0.3 s at RDMA port rxe0:1 (from rxe0:1); "
        "its connections go on over RDMA port rxe1:1 (from rxe1:1)."
    )
    # Both ends have the new connection beside the link.
    native0.sockets[path, 1, True].sendall(b"c")
    assert native1.sockets[path, 1, False].recv(1) == b"c"


def test_ports_that_do_not_work_are_passed_over(make_world):
    native0, native1, path = linked(make_world, here=[port("rxe0")], there=[port(f"rxe{i}") for i in range(3)])
    native1.down.add("rxe1")
    native0.lose(path)
    native0.wait_for("link_take_over")
    assert native0.named("link_switch") == [("link_switch", path, True, 2, "5 3 0 0 0")]
    assert native1.named("link_offer") == [("link_offer", path, False, 2, "rxe2")]


def test_the_receiving_end_is_not_stopped_before_the_new_ports_work(make_world, monkeypatch):
    native0, native1, path = linked(make_world)
    broken = [RuntimeError("the peer's port does not answer")]
    answer = native0.link_try

    def silent(*arguments):
        if broken:
            raise broken.pop()
        answer(*arguments)

    monkeypatch.setattr(native0, "link_try", silent)
    native0.lose(path)
    native0.wait_for("link_take_over")
    # Then the ports that it has are tried, since they may have come back.
    assert native0.named("link_offer")[1] == ("link_offer", path, True, 2, "rxe0")
    assert native1.named("link_switch") == [("link_switch", path, False, 2, "")]


def test_a_switch_that_the_receiving_end_refuses_is_told_of(make_world, caplog, monkeypatch):
    native0, native1, path = linked(make_world)
    broken = [RuntimeError("the device has been removed")]
    switch = native1.link_switch

    def removed(*arguments):
        if broken:
            raise broken.pop()
        return switch(*arguments)

    monkeypatch.setattr(native1, "link_switch", removed)
    with caplog.at_level(logging.INFO, "jaxring.world"):
        native0.lose(path)
        native0.wait_for("link_take_over")
    assert any("refuses to switch to other ports: the device has been removed" in each for each in caplog.messages)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_a_link_that_ends_as_it_switches_says_why_on_the_new_connection(make_world, monkeypatch, kind):
    native0, native1, path = linked(make_world)

    def ends(*arguments):
        native0.gone.add(path)
        raise kind("the peer has received other messages")

    monkeypatch.setattr(native0, "link_switch", ends)
    native0.lose(path)
    native1.wait_for("link_take_over")
    assert native0.wait_for("link_take_over") == [("link_take_over", path, True, 1, True)]


def test_the_receiving_end_switches_only_where_the_new_ports_work(make_world, caplog, monkeypatch):
    native0, native1, path = linked(make_world)
    send, told = Session.send, []

    def otherwise(session, sock, message, deadline):
        if "works" in message and not told:
            told.append(message)
            message = {"works": "perhaps"}
        send(session, sock, message, deadline)

    monkeypatch.setattr(Session, "send", otherwise)
    with caplog.at_level(logging.INFO, "jaxring.world"):
        native0.lose(path)
        native0.wait_for("link_take_over")
    assert native1.named("link_switch") == [("link_switch", path, False, 2, "")]
    assert any("does not say that the new ports work" in each for each in caplog.messages)


def test_ports_that_stay_down_are_tried_less_and_less_often(make_world, monkeypatch):
    monkeypatch.setattr(failover, "_RETURN_S", 0.1)
    watched, tries = [], []
    monkeypatch.setattr(failover, "Named", lambda *fields: watched.append(Named(*fields)) or watched[-1])
    native0, _, path = linked(make_world, channel=1)
    (connection,) = (each for each in watched if each.path == path)
    offer = native0.link_offer

    def down(path, dialled, attempt, place):
        if place["device"] != "rxe1":
            return offer(path, dialled, attempt, place)
        tries.append(connection.return_s)
        raise RuntimeError("rxe1: the port is not active")

    monkeypatch.setattr(native0, "link_offer", down)
    native0.lose(path)
    native0.wait_for("link_take_over")
    until = time.monotonic() + 60
    while len(tries) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert tries[:3] == [0.1, 0.2, 0.4]


def test_the_ports_that_are_down_are_tried_by_one_of_their_links_at_a_time(make_world, monkeypatch):
    watched, tries = [], []
    monkeypatch.setattr(failover, "Named", lambda *fields: watched.append(Named(*fields)) or watched[-1])
    (zero, _), native0, _, first = linked_worlds(make_world, channel=1)
    zero.link(1, 3)
    second = next(path for _, path in native0.named("path") if path not in ("", first))
    for count, path in enumerate((first, second), 1):
        native0.lose(path)
        native0.wait_for("link_take_over", count)
    until = time.monotonic() + 60
    links = [each for each in watched if each.path in (first, second)]
    while any(each.moving.locked() or each.now == each.home for each in links) and time.monotonic() < until:
        time.sleep(0.01)

    def down(path, *arguments):
        tries.append(path)
        raise RuntimeError("rxe1: the port is not active")

    monkeypatch.setattr(native0, "link_offer", down)
    zero._failover._return(links)
    assert tries == [first]
    assert [each.return_s for each in links] == [failover._RETURN_MOST_S] * 2


def test_a_link_that_is_gone_is_left_alone(make_world, monkeypatch):
    (zero, _), native0, native1, path = linked_worlds(make_world)
    offers = []

    def gone(*arguments):
        offers.append(arguments)
        native0.gone.add(path)
        raise ValueError("there is no such link any more")

    monkeypatch.setattr(native0, "link_offer", gone)
    native0.lose(path)
    until = time.monotonic() + 60
    while path in zero._failover._connections and time.monotonic() < until:
        time.sleep(0.01)
    assert path not in zero._failover._connections
    assert len(offers) == 1
    assert steps(native1) == []


@pytest.mark.parametrize("which", [0, 1])
def test_a_link_of_a_world_that_was_left_goes_on_until_it_is_closed(make_world, which):
    """Its process waits in rebuild() or shrink() for others, which may need what it has sent."""
    worlds, native0, native1, path = linked_worlds(make_world)
    worlds[which].leave(time.monotonic() + 60)
    native0.lose(path)
    native0.wait_for("link_take_over")
    native1.wait_for("link_take_over")
    worlds[which].close(time.monotonic() + 60)
    with pytest.raises(JoinError, match="rebuilt since"):
        worlds[which]._native.link_offer(path, True, 2, {})


def test_a_link_that_goes_back_at_once_is_reported_as_it_was_when_it_had_moved(make_world, caplog, monkeypatch):
    watched = []
    monkeypatch.setattr(failover, "Named", lambda *fields: watched.append(Named(*fields)) or watched[-1])
    native0, _, path = linked(make_world)
    (connection,) = (each for each in watched if each.path == path)
    moving = connection.moving

    class Returns:
        """The lock of its moves, between which it goes back."""

        def __enter__(self):
            moving.acquire()

        def __exit__(self, *_):
            moving.release()
            connection.now = connection.home

    connection.moving = Returns()
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(path)
        (line,) = said(caplog)
    assert "at RDMA port rxe0:1 (from rxe0:1); its connections go on over RDMA port rxe1:1" in line


def test_links_go_back_when_their_first_ports_work(make_world, caplog, monkeypatch):
    monkeypatch.setattr(failover, "_RETURN_S", 0.1)
    native0, native1, path = linked(make_world, channel=1)
    native0.down.add("rxe1")
    tried, offer = threading.Event(), native0.link_offer

    def offered(path, dialled, attempt, place):
        if place["device"] in native0.down:
            tried.set()
        return offer(path, dialled, attempt, place)

    monkeypatch.setattr(native0, "link_offer", offered)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(path)
        assert native0.wait_for("link_take_over")[0] == ("link_take_over", path, True, 1, True)
        said(caplog)
        assert tried.wait(60)
        assert len(native0.named("link_take_over")) == 1
        native0.down.clear()
        assert native0.wait_for("link_take_over", 2)[1][4] is False
        assert native1.wait_for("link_offer", 2)[1][4] == "rxe1"
        assert said(caplog, 2)[1].endswith(
            "answers again at RDMA port rxe1:1 (from rxe1:1); its connections go back to that."
        )


@pytest.mark.parametrize(
    "ports", [[port("rxe0")], [port(f"siw{i}", "iWARP", interface="lo") for i in range(2)]], ids=["one", "iWARP"]
)
def test_a_link_without_other_ports_has_no_name(make_world, ports):
    (zero, native0), _ = (make_world(p, HOSTID=str(p), rdma=ports) for p in range(2))
    zero.link(1, 0)
    assert {path for _, path in native0.wait_for("path", 2)} == {""}
