"""Who looks at a job from another host: the key opens the records and nothing else; without it there is no answer."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
import zlib

import pytest

from jaxring.errors import JaxringError, JoinError
from jaxring.runtime.reporting import viewing
from jaxring.settings import load
from jaxring.world import World
from jaxring.world.connections import handshake
from tests.world.world_fakes import DirStore, FakeNative, black_hole, other_job

RECORDS = [b"record of 0" * 1000, b""]


def soon():
    return time.monotonic() + 60


def wait_for(there):
    deadline = soon()
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def worlds(tmp_path, request):
    """Two linked processes of a job that answer viewers, with the variables of the test's mark."""
    variables = getattr(request, "param", {})
    natives, settings = [FakeNative(), FakeNative()], load(variables)
    made = [
        World(
            DirStore(tmp_path),
            p,
            2,
            natives[p],
            60,
            settings=settings,
            viewer_service=viewing.FlightService(functools.partial(bytes, RECORDS[p]), "job", settings.tls),
        )
        for p in range(2)
    ]
    made[0].link(1, 0)
    yield made
    for world, native in zip(made, natives, strict=True):
        world.close()
        native.close()


def test_who_has_the_key_sees_members_and_records(worlds):
    access = viewing.shared([os.getpid()])
    assert sorted(access.processes) == [0, 1]
    assert viewing.decode(access.encode()) == access
    one = viewing.Access(access.job, access.key, {1: access.processes[1]})
    assert viewing.members(one, soon()) == access
    for process, record in enumerate(RECORDS):
        data, now = viewing.look(access, process, "record", soon())
        assert data == record
        assert abs(now - time.time_ns()) < 60e9
    # The key is not the secret, and goes with the world.
    assert access.key != worlds[0]._published.secret()
    for world in worlds:
        world.close()
    with pytest.raises(JaxringError, match="can be seen from here only"):
        viewing.shared([os.getpid()])
    with pytest.raises(JoinError, match=r"Process 0 of .* does not answer .*port"):
        viewing.look(access, 0, "record", soon())


@pytest.mark.usefixtures("worlds")
def test_without_the_key_there_is_no_answer():
    access = viewing.shared([os.getpid()])
    with pytest.raises(JoinError, match="does not hold this job's secret"):
        viewing.look(viewing.Access(access.job, b"x" * 32, access.processes), 0, "record", soon())


def test_the_key_does_not_make_a_process_of_the_job(worlds):
    access = viewing.shared([os.getpid()])
    (address, port), *_ = access.processes[0]
    # As process 1, which only the secret makes.
    with socket.create_connection((address, port), 60) as sock, pytest.raises(JoinError, match="does not hold"):
        handshake.authenticate(sock, access.key, 1, 0, soon())
    # As a viewer that asks for a link.
    wish = {"from": 1, "token": worlds[1].own.token, "channel": 0, "transport": "control"}
    with socket.create_connection((address, port), 60) as sock:
        session = handshake.authenticate(sock, access.key, handshake.VIEWER, 0, soon())
        session.send(sock, wish, soon())
        assert "view is not printable text" in session.receive(sock, soon())["error"]
    with pytest.raises(JoinError, match="Process 0 refuses: There is no view 'memory' of a job"):
        viewing.look(access, 0, "memory", soon())


@pytest.mark.parametrize("worlds", [{"JAXRING_NET": "TLS"}], indirect=True)
@pytest.mark.usefixtures("worlds")
def test_a_job_that_encrypts_refuses():
    with pytest.raises(JoinError, match=r"encrypts what it sends \(JAXRING_NET=TLS\)"):
        viewing.look(viewing.shared([os.getpid()]), 0, "record", soon())


def test_so_many_viewers_are_answered_at_a_time(worlds):
    access = viewing.shared([os.getpid()])
    busy, over = threading.Barrier(viewing._AT_ONCE + 1), threading.Event()

    def slow():
        busy.wait(60)
        over.wait(60)
        return b""

    worlds[0]._viewer_service._record = slow
    threads = [
        threading.Thread(target=viewing.look, args=(access, 0, "record", soon())) for _ in range(viewing._AT_ONCE)
    ]
    for thread in threads:
        thread.start()
    busy.wait(60)
    with pytest.raises(JoinError, match="4 viewers are being answered: look again"):
        viewing.look(access, 0, "record", soon())
    over.set()
    for thread in threads:
        thread.join()


def test_viewers_that_ask_nothing_are_counted_and_dropped(worlds, monkeypatch):
    access, slots = viewing.shared([os.getpid()]), worlds[0]._viewer_service._slots
    monkeypatch.setattr(viewing, "_REQUEST_S", 60.0)
    with contextlib.ExitStack() as silent:
        for _ in range(viewing._AT_ONCE):
            sock = silent.enter_context(socket.create_connection(access.processes[0][0], 60))
            handshake.authenticate(sock, access.key, handshake.VIEWER, 0, soon())
        wait_for(lambda: slots._value == 0)
        with pytest.raises(JoinError, match="4 viewers are being answered: look again"):
            viewing.look(access, 0, "record", soon())
    wait_for(lambda: slots._value == viewing._AT_ONCE)
    monkeypatch.setattr(viewing, "_REQUEST_S", 0.05)
    with socket.create_connection(access.processes[0][0], 60) as sock:
        session = handshake.authenticate(sock, access.key, handshake.VIEWER, 0, soon())
        assert "timed out" in session.receive(sock, soon())["error"]
    monkeypatch.setattr(viewing, "_REQUEST_S", 60.0)
    assert viewing.look(access, 0, "record", soon())[0] == RECORDS[0]


@pytest.mark.usefixtures("worlds")
def test_an_address_that_drops_packets_does_not_use_up_the_time_of_the_others(monkeypatch):
    monkeypatch.setattr(viewing, "_ADDRESS_S", 0.1)
    access = viewing.shared([os.getpid()])
    with black_hole() as nowhere:
        two = viewing.Access(access.job, access.key, {0: (nowhere, *access.processes[0])})
        assert viewing.look(two, 0, "record", time.monotonic() + 10)[0] == RECORDS[0]


@pytest.mark.usefixtures("worlds")
def test_another_job_at_an_address_that_hosts_share_is_passed_over(tmp_path):
    access = viewing.shared([os.getpid()])
    with other_job(tmp_path / "other", 0) as theirs:
        two = viewing.Access(access.job, access.key, {0: (theirs, *access.processes[0])})
        assert viewing.look(two, 0, "record", soon())[0] == RECORDS[0]


def test_no_more_is_decompressed_than_was_said():
    data = b"x" * 100_000
    assert viewing._decompressed(zlib.compress(data), len(data)) == data
    assert viewing._decompressed(zlib.compress(b""), 0) == b""
    for size in (0, len(data) - 1):
        with pytest.raises(ValueError, match=f"more bytes came instead of {size}"):
            viewing._decompressed(zlib.compress(data), size)
    with pytest.raises(ValueError, match="100000 bytes came instead of 100001"):
        viewing._decompressed(zlib.compress(data), len(data) + 1)


def test_a_process_that_has_ended_shares_nothing():
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    with pytest.raises(JaxringError, match="can be seen from here only"):
        viewing.shared([child])


def test_a_world_without_the_service_shows_nothing(tmp_path):
    natives = [FakeNative(), FakeNative()]
    zero, one = (World(DirStore(tmp_path), p, 2, natives[p], 60, settings=load({})) for p in range(2))
    zero.link(1, 0)
    key = handshake.viewing_key(zero._published.secret())
    where = {0: tuple((address, port) for _, address, port in zero.own.addresses)}
    with pytest.raises(JoinError, match="shows nothing to viewers"):
        viewing.look(viewing.Access("job", key, where), 0, "record", soon())
    for world, native in zip((zero, one), natives, strict=True):
        world.close()
        native.close()


@pytest.mark.parametrize(
    "text", ["", "{}", '{"job":"j","key":"00","processes":{}}', '{"job":1}', '{"job":"j","key":"zz","processes":{}}']
)
def test_a_file_that_is_none_is_told(text, tmp_path):
    with pytest.raises(ValueError, match=r"."):
        viewing.decode(text.encode())
    from jaxring.trace.remote import Remote

    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(JaxringError, match="was not written by `jaxring top --share`"):
        Remote(tmp_path / "file")
