"""Connections that go back to their first path when it answers again."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world import failover, resumption
from tests.world.moves.two_paths import HOME, OTHER, away, linked

pytestmark = pytest.mark.usefixtures("two_interfaces")


def test_connections_go_back_when_their_first_address_answers(make_world, caplog, monkeypatch):
    monkeypatch.setattr(failover, "_RETURN_S", 0.1)
    native0, native1, data, _ = linked(make_world)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        native0.lose(data)
        there, back = native0.wait_for("path_resume", 2)
    assert (there[3:], back[3:]) == ((1, 0, True), (2, 0, False))
    native1.wait_for("path_resume", 2)
    assert native1.sockets[data, 2, False].getsockname()[0] == HOME
    until = time.monotonic() + 60
    while len(caplog.messages) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert caplog.messages[1].endswith(f"answers again at {HOME}; its connections go back to that.")


def test_one_pass_at_a_time_goes_back_and_only_with_what_lives(make_world, monkeypatch):
    monkeypatch.setattr(failover, "_RETURN_S", 0.0)
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    control, data = (name for _, name in native0.named("path"))
    dial, passes, meanwhile = zero._failover._dial, [], []
    first, more = threading.Event(), threading.Event()

    def dead(peer, addresses, deadline, each_s):
        if len(addresses) > 1:
            return dial(peer, addresses, deadline, each_s)
        passes.append(addresses)
        if len(passes) == 1:
            # Where a second thread began a pass, it would do so now.
            native0.wait_for("paths_lost", len(native0.named("paths_lost")) + 3)
            meanwhile.extend(passes[1:])
            first.set()
        elif first.is_set():
            more.set()
        raise JoinError("it does not answer")

    monkeypatch.setattr(zero._failover, "_dial", dead)
    native0.lose(data)
    native0.lose(control)
    native0.wait_for("path_resume", 2)
    assert more.wait(60)
    assert not meanwhile
    native0.gone.update({data, control})
    until = time.monotonic() + 60
    while zero._failover._connections and time.monotonic() < until:
        time.sleep(0.01)
    assert not zero._failover._connections


def test_a_connection_that_is_being_moved_is_not_moved_back(make_world, monkeypatch, caplog):
    """It would wait, while the peer gives up the connection that was made for it."""
    monkeypatch.setattr(failover, "_RETURN_S", 0.0)
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    data = native0.named("path")[1][1]
    moved, dial, dialled = zero._failover._connections[data], zero._failover._dial, []

    def held(peer, addresses, deadline, each_s):
        if len(addresses) == 1:
            dialled.append(addresses)
            if len(dialled) == 1:  # the pass has looked already
                assert moved.moving.acquire(timeout=60)
        return dial(peer, addresses, deadline, each_s)

    monkeypatch.setattr(zero._failover, "_dial", held)
    unasked = "process 0 closed a connection before it asked for anything."
    with caplog.at_level(logging.INFO, "jaxring.world"):
        native0.lose(data)
        until = time.monotonic() + 60
        while unasked not in caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        assert not native0.named("path_suspend")[1:]
        moved.moving.release()
        there, back = native0.wait_for("path_resume", 2)[:2]
    assert (there[-1], back[-1]) == (True, False)
    assert [record.levelname for record in caplog.records if record.message == unasked] == ["INFO"]
    assert not [said for said in caplog.messages if "no link from" in said]


def test_a_connection_that_has_not_to_go_back_is_not_dialled(make_world, monkeypatch):
    zero, (home, moved), _ = away(make_world)
    home.now, dialled = HOME, []
    monkeypatch.setattr(zero._failover, "_dial", lambda *arguments: dialled.append(arguments))
    with moved.moving:
        zero._failover._return([home, moved])
    assert not dialled


def test_an_address_at_which_a_connection_does_not_go_on_is_tried_after_the_others(make_world, monkeypatch):
    """Such as one that loses most packets: it may authenticate in time and be too slow for what follows."""
    monkeypatch.setattr(failover, "_RETURN_S", 0.1)
    native0, _, data, _ = linked(make_world)
    ask, refused = resumption.links.ask, []

    def late(sock, *arguments):
        if sock.getpeername()[0] == HOME:
            refused.append(HOME)
            raise TimeoutError("timed out")
        return ask(sock, *arguments)

    monkeypatch.setattr(resumption.links, "ask", late)
    native0.lose(data)
    # There, and there again after it has tried to go back.
    assert [call[-1] for call in native0.wait_for("path_resume", 2)][:2] == [True, True]
    assert refused


def test_an_address_at_which_a_connection_does_not_go_on_is_tried_less_and_less(make_world, monkeypatch, caplog):
    """Each time stops the connection until it goes on at the other address again."""
    monkeypatch.setattr(failover, "_RETURN_S", 0.1)
    (zero, native0), (_, native1) = (make_world(p, SHM_DISABLE="1") for p in (0, 1))
    zero.link(1, 0)
    native1.wait_for("path", 2)
    data = native0.named("path")[1][1]
    ask = resumption.links.ask

    def late(sock, *arguments):
        if sock.getpeername()[0] == HOME:
            raise TimeoutError("timed out")
        return ask(sock, *arguments)

    monkeypatch.setattr(resumption.links, "ask", late)
    with caplog.at_level(logging.INFO, "jaxring.world"):
        native0.lose(data)
        native0.wait_for("path_resume", 3)
    assert zero._failover._connections[data].return_s > 0.3
    assert [said for said in caplog.messages if said.endswith(f"its connection does not go back to {HOME}: timed out")]
    # No word against the address at which it does go on.
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert not [said for said in warnings if f"at {OTHER}" in said]


def test_a_connection_that_goes_back_in_a_later_attempt_has_come_back(make_world, monkeypatch, caplog):
    zero, (moved, _), native0 = away(make_world)
    zero._failover._note_failure(moved.peer, HOME, OTHER)
    ask, refused = resumption.links.ask, []

    def late(sock, *arguments):
        if len(refused) < 2:  # at its first address, and then at the other one
            refused.append(sock.getpeername()[0])
            raise TimeoutError("timed out")
        return ask(sock, *arguments)

    monkeypatch.setattr(resumption.links, "ask", late)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        zero._failover._return([moved])
        native0.wait_for("path_resume")
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
    assert refused == [HOME, OTHER]
    (said,) = caplog.messages
    assert said.endswith(f"answers again at {HOME}; its connections go back to that.")


def test_an_address_at_which_a_connection_does_not_go_on_is_left_alone_by_the_others(make_world, monkeypatch):
    zero, both, _ = away(make_world)
    tried, again = [], []

    def late(connection, sock, session):
        tried.append(connection)
        raise TimeoutError("timed out")

    monkeypatch.setattr(zero._failover, "_move", late)
    monkeypatch.setattr(zero._failover, "_start", lambda _, connection, *why: again.append(connection))
    other = both[1]
    other.return_s, before = 2.0, time.monotonic()
    zero._failover._return(both)
    assert tried == again == both[:1]
    assert other.return_s == 4
    assert other.return_at >= before + 4


def test_a_connection_that_has_gone_meanwhile_has_not_come_back(make_world, monkeypatch, caplog):
    zero, (moved, _), native0 = away(make_world)
    zero._failover._note_failure(moved.peer, HOME, OTHER)
    monkeypatch.setattr(native0, "path_lives", lambda _: True)
    native0.gone.add(moved.path)
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        zero._failover._return([moved])
    assert not caplog.messages
