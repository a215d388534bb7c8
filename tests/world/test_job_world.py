"""Worlds in one process over real sockets: links and refusals."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import logging
import socket
import struct
import threading
import time

import pytest

from jaxring.errors import JoinError
from jaxring.world import job_world
from jaxring.world.connections import dialling
from jaxring.world.connections.handshake import authenticate
from tests.world.world_fakes import DirStore


def test_same_host_links_by_shared_memory_once(make_world):
    (zero, native0), (one, native1) = make_world(0), make_world(1)
    assert [zero.link(1, 0), zero.link(1, 0), zero.link(1, 5), one.link(0, 0)] == ["shm"] * 4
    native0.wait_for("shm_finish", 3)
    for step in ("offer", "finish"):
        calls = [call for call in native0.named(f"shm_{step}") if call[3]]
        assert calls == [(f"shm_{step}", 1, 0, True), (f"shm_{step}", 1, 5, True)]
    assert len(native1.wait_for("shm_finish", 3)) == 3
    assert ("shm_prepare", 0, 5, False, "ring to 1 on 5") in native1.calls
    assert native0.wait_for("control", 2) == [("control", 1)] * 2  # each side dials one
    assert native1.wait_for("control", 2) == [("control", 0)] * 2


@pytest.mark.parametrize("shm_disable", ["0", "1"])
def test_the_control_connection_ends_with_the_peer(make_world, shm_disable):
    (zero, native0), (_, native1) = make_world(0, SHM_DISABLE=shm_disable), make_world(1, SHM_DISABLE=shm_disable)
    zero.link(1, 0)
    native1.wait_for("control")
    (kept,) = native1.controls
    (own,) = native0.controls
    own.sendall(b"sign")
    assert kept.recv(4, socket.MSG_WAITALL) == b"sign"
    native0.close()
    assert kept.recv(1) == b""


def test_tcp_hands_over_the_very_socket(make_world):
    (zero, native0), (_, native1) = make_world(0, SHM_DISABLE="1"), make_world(1, SHM_DISABLE="1")
    assert zero.link(1, 3) == "tcp"
    native1.wait_for("tcp_finish")
    native0.sockets[1, 3, True].sendall(b"data")
    assert native1.sockets[0, 3, False].recv(4, socket.MSG_WAITALL) == b"data"


def test_different_host_ids_link_over_tcp(make_world):
    (zero, _), _ = make_world(0, HOSTID="a"), make_world(1, HOSTID="b")
    assert zero.link(1, 0) == "tcp"


def test_threads_that_want_one_link_make_one(make_world):
    (zero, native0), (_, native1) = make_world(0), make_world(1)
    start = threading.Barrier(8)

    def want(_):
        start.wait()
        return zero.link(1, 0)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(want, range(8))) == ["shm"] * 8
    assert len(native0.named("shm_finish")) == len(native1.wait_for("shm_finish")) == 1


def test_a_world_waits_for_nobody_and_a_link_waits_for_its_peer(make_world):
    one, _ = make_world(1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        link = pool.submit(one.link, 0, 0)
        make_world(0)
        assert link.result(60) == "shm"


def test_an_absent_peer_is_an_error_in_time_and_may_come_later(make_world):
    zero, _ = make_world(0, timeout_s=0.1)
    with pytest.raises(JoinError, match=r"Process 1 of 2 has not joined: .*within 0\.1 s"):
        zero.link(1, 0)
    make_world(1)
    assert zero.info(1).index == 1


def test_a_closed_peer_is_unreachable_with_its_name_and_address(make_world):
    (zero, native0), (one, _) = make_world(0, timeout_s=0.5), make_world(1)
    zero.link(1, 5)
    one.close()
    pattern = r"Process 0 cannot reach process 1 \(pid .*within 0.5 s \(JAXRING_JOIN_TIMEOUT\)\. 127\.0\.0\.1 port"
    for _ in range(2):
        with pytest.raises(JoinError, match=pattern):
            zero.link(1, 0)
    assert native0.named("shm_offer") == [("shm_offer", 1, 5, True)]


def test_a_peer_that_ended_before_it_was_dialled_is_not_waited_for(make_world, monkeypatch):
    monkeypatch.setattr(dialling, "_REFUSED_S", 0.2)
    (zero, _), (one, _) = make_world(0, timeout_s=100), make_world(1)
    one.close()
    with pytest.raises(JoinError, match=r"process 1 \(pid .* does not listen any more, so it has ended") as caught:
        zero.link(1, 0)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize(("p", "channel"), [(0, 0), (2, 0), (-1, 0), (1, -1), (1, 1 << 20)])
def test_impossible_links_are_refused(make_world, p, channel):
    zero, _ = make_world(0)
    with pytest.raises(JoinError):
        zero.link(p, channel)


def test_different_settings_show_both_sides(make_world):
    (zero, _), _ = make_world(0, ALGO="ring"), make_world(1, ALGO="tree")
    with pytest.raises(JoinError, match=r"settings differ\. process 1 .*ALGO=tree.* process 0 .*ALGO=ring"):
        zero.link(1, 0)


def test_different_versions_show_both_sides(make_world, monkeypatch):
    zero, _ = make_world(0)
    monkeypatch.setattr(job_world.identity, "version", lambda: "9.9")
    make_world(1)
    with pytest.raises(JoinError, match=r"versions differ\. process 1 .*: 9\.9\. process 0 "):
        zero.link(1, 0)


def test_what_is_not_an_info_is_refused(make_world, tmp_path):
    zero, _ = make_world(0)
    DirStore(tmp_path).set("jaxring/world/0/process/1", b"{" * 20000)
    with pytest.raises(JoinError, match=r"process 1 published cannot be read .*20000 bytes"):
        zero.link(1, 0)


def test_the_acceptors_failure_reaches_the_dialler(make_world):
    (zero, native0), (_, native1) = make_world(0), make_world(1)
    native1.fail_shm = "no room\nfor this ring"
    refusal = (
        r"process 1 .*refuses the link on channel 0: The shared memory link .* failed: no room for this ring\. Run"
    )
    with pytest.raises(JoinError, match=refusal):
        zero.link(1, 0)
    assert native0.named("connector_forget") == [("connector_forget", 1, 0, True)]
    native1.fail_shm = ""
    assert zero.link(1, 0) == "shm"


def test_memory_of_another_pid_namespace_says_how_to_mend_it(make_world):
    (zero, _), (one, _) = make_world(0), make_world(1)
    one._published._infos[0] = dataclasses.replace(one.info(0), pid_namespace=7)
    with pytest.raises(JoinError, match=r"another pid namespace\..*JAXRING_SHM_DISABLE=1"):
        zero.link(1, 0)


@pytest.fixture
def dial(make_world):
    """dial(request) -> answer of process 1 to an authenticated request of process 0."""
    (zero, native0), (one, _) = make_world(0), make_world(1)

    def send(change=None, raw=None):
        offered = dict(zip(("pid", "doorbell_fd", "ring_fd", "blocks_fd"), native0.shared(1, 0).split(), strict=True))
        request = {"from": 0, "token": zero.own.token, "channel": 0, "transport": "shm"} | (change or {})
        request["offer"] = " ".join(str(request.pop(name, value)) for name, value in offered.items())
        deadline = time.monotonic() + 60
        _, address, port = one.own.addresses[0]
        with socket.create_connection((address, port), 60) as sock:
            session = authenticate(sock, zero._published.secret(), 0, 1, deadline)
            if raw is None:
                session.send(sock, request, deadline)
            else:
                sock.sendall(raw)
            return session.receive(sock, deadline)

    return send


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"pid": 1}, "not the one it published"),
        ({"pid": "one"}, "names no process and descriptors"),
        ({"ring_fd": 0}, "not shared memory"),
        ({"ring_fd": 1 << 20}, "opening /proc/.*JAXRING_SHM_DISABLE=1"),
        ({"ring_fd": -1}, "names no process and descriptors"),
        ({"blocks_fd": 0}, "not shared memory"),
        ({"doorbell_fd": 1 << 31}, "descriptor is not an integer"),
        ({"from": 1}, "from is not an integer from 0 to 0"),
        ({"token": "old"}, "has been restarted"),
        ({"channel": 1 << 30}, "channel is not"),
        ({"transport": "pigeon"}, "none of shm, plugin, verbs, tcp, control, resume"),
    ],
)
def test_a_bad_request_is_answered_with_an_error(dial, change, answer):
    with pytest.raises(AssertionError, match=answer):
        raise AssertionError(dial(change)["error"])
    assert dial()["ok"] is True


def test_a_link_that_exists_is_not_made_again(dial):
    assert dial()["ok"] is True
    assert "already" in dial()["error"]
    assert "already" in dial()["error"]


def test_an_oversize_request_is_answered_with_an_error(dial):
    assert "exceeds" in dial(raw=struct.pack(">I", 1 << 31))["error"]
    deep = json.dumps({"from": "x" * 9000}).encode()
    assert "exceeds" in dial(raw=struct.pack(">I", len(deep)) + b"t" * 32 + deep)["error"]


def test_a_request_that_breaks_off_is_a_warning(make_world, caplog):
    (zero, _), (one, _) = make_world(0), make_world(1)
    _, address, port = one.own.addresses[0]
    with caplog.at_level(logging.WARNING, "jaxring.world"):
        with socket.create_connection((address, port), 60) as sock:
            authenticate(sock, zero._published.secret(), 0, 1, time.monotonic() + 60)
            sock.sendall(b"\0")
        until = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
    assert caplog.messages == ["no link from process 0: the peer closed the connection"]


@pytest.mark.slow
def test_a_busy_acceptor_is_dialled_again(make_world):
    (zero, _), (one, _) = make_world(0), make_world(1)
    with socket.create_server(("127.0.0.1", 0)) as door:
        real = one.own.addresses[0]
        info = dataclasses.replace(zero.info(1), addresses=(("lo", "127.0.0.1", door.getsockname()[1]), real))
        zero._published._infos[1] = info
        hang_up = threading.Thread(target=lambda: door.accept()[0].close())
        hang_up.start()
        assert zero.link(1, 0) == "shm"
        hang_up.join()


def test_a_world_of_one_needs_nobody(make_world):
    zero, _ = make_world(0, count=1)
    assert zero.info(0) is zero.own


def test_a_closed_world_stops_listening(make_world):
    zero, _ = make_world(0)
    _, address, port = zero.own.addresses[0]
    zero.close()
    zero.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, port), 60)


def test_a_later_epoch_is_a_world_of_its_own(tmp_path, make_world):
    zero, native = make_world(0)
    again = job_world.World(DirStore(tmp_path), 0, 1, native, 5, epoch=1, settings=zero._settings)
    again.close()
    with pytest.raises(JoinError, match=r"has taken part in this job before.*jaxring.rebuild\(\)"):
        job_world.World(DirStore(tmp_path), 0, 1, native, 5, epoch=1, settings=zero._settings)


def test_a_wait_for_a_peer_is_told_and_can_be_ended(make_world):
    zero, _ = make_world(0)
    told, began = [], threading.Event()

    def tell(words):
        told.append(words)
        began.set()

    zero._waits._tell = tell
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        info = pool.submit(zero.info, 1)
        assert began.wait(60)
        zero._waits.end("process 0 was interrupted by SIGINT")
        with pytest.raises(JoinError, match="has not joined: process 0 was interrupted by SIGINT"):
            info.result(60)
    assert told == ["process 1 to join: it has not reached its first collective yet", ""]
    make_world(1)
    assert zero.info(1).index == 1


def test_a_process_that_refuses_connections_is_known_to_have_ended(make_world, monkeypatch):
    monkeypatch.setattr(dialling, "_REFUSED_S", 0.1)
    (zero, _), (one, _) = (make_world(p) for p in (0, 1))
    assert zero.refusing() == set()
    one.close()
    with pytest.raises(JoinError, match="does not listen any more, so it has ended"):
        zero.link(1, 0)
    assert zero.refusing() == {1}


def test_who_dials_a_process_that_refuses_learns_that_its_world_is_closed(make_world, monkeypatch):
    (zero, _), _ = (make_world(p) for p in (0, 1))

    def refused(*_):
        zero.close()
        raise ConnectionRefusedError

    zero.info(1)
    monkeypatch.setattr(dialling, "_dial", refused)
    with pytest.raises(JoinError, match="This World is closed"):
        zero.link(1, 0)
