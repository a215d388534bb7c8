"""How a process enters an epoch whose other members do not all come."""

from __future__ import annotations

import contextlib
import time
import types

import pytest

from jaxring.errors import JoinError
from jaxring.runtime import job as jobs
from jaxring.world import wire
from jaxring.world.membership import Membership
from tests.world.world_fakes import DirStore

FIRST, SECOND = Membership(0, 3, (0, 1, 2)), Membership(1, 3, (0, 1))


class World:
    """A world in which process 1 comes after it was looked for `looks` times; None: never."""

    def __init__(self, looks):
        self.looks, self.serves = looks, False

    def absent(self):
        if self.looks is not None:
            self.looks -= 1
        return [1] if self.looks is None or self.looks > 0 else []

    def close(self, _deadline=None):
        pass

    def serve(self):
        self.serves = True


def wishing(folder, process):
    """A store in which the process has called for the epoch after the second."""
    store = DirStore(folder)
    wish = {"kind": "rebuild", "token": "a start", "fresh": False, "gone": []}
    store.set(f"jaxring/ready/2/{process}", wire.encode(wish))
    return store


@pytest.fixture
def made(monkeypatch):
    """made(looks) -> a job that is in the first epoch, whose next world is such a one."""
    engine = types.SimpleNamespace(renew=lambda *_: True, resume=lambda: None, planning_waits_for=list)
    monkeypatch.setattr(jobs, "_native", engine)

    def make(looks):
        job = jobs.Job()
        job._membership = FIRST
        monkeypatch.setattr(job, "_make_world", lambda *_: World(looks))
        return job

    return make


def test_a_member_that_ended_after_it_agreed_is_not_waited_for_until_the_deadline(made, monkeypatch):
    monkeypatch.setattr(jobs, "_GRACE_S", 0.0)
    with pytest.raises(JoinError, match="Process 1 has ended while the job was formed anew: try again"):
        made(None).enter(SECOND, time.monotonic() + 5, lambda: [1, 2])


def test_a_member_that_was_reported_to_have_ended_may_come(made):
    job = made(3)
    job.enter(SECOND, float("inf"), lambda: [1, 2])
    assert job.membership() == job.agreed() == SECOND


def test_a_member_that_was_started_again_is_waited_for(made, monkeypatch):
    monkeypatch.setattr(jobs, "_GRACE_S", 0.0)
    job = made(3)
    job.enter(SECOND, float("inf"), lambda: [1, 2], (1,))
    assert job.membership() == SECOND


@pytest.mark.parametrize(("absent", "said"), [(True, "Process 2 has given up waiting for process 1"), (False, None)])
def test_an_epoch_that_a_member_has_given_up_is_not_waited_for(made, monkeypatch, tmp_path, absent, said):
    monkeypatch.setattr(jobs, "_SLICE_S", 0.0)
    job = made(None if absent else 1)
    job._store = wishing(tmp_path, 2)
    agreed = Membership(1, 3, (0, 1, 2))
    with pytest.raises(JoinError, match=f"{said}, .*: try again") if said else contextlib.nullcontext():
        job.enter(agreed, time.monotonic() + 5, list)
    assert job.agreed() == agreed


def test_a_member_that_was_started_again_has_ended_and_given_up_nothing(made, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "_SLICE_S", 0.0)
    job = made(None)
    job._store = wishing(tmp_path, 2)
    decision = {"members": {"0": "0", "1": "1", "2": "an earlier start"}, "error": "", "differ": False}
    job._store.set("jaxring/decision/1", wire.encode(decision))
    with pytest.raises(JoinError, match="Process 2 has ended while the job was formed anew: try again"):
        job.enter(Membership(1, 3, (0, 1, 2)), time.monotonic() + 5, list)


def test_a_process_that_waits_to_come_back_has_given_up_nothing(made, monkeypatch, tmp_path):
    monkeypatch.setattr(jobs, "_SLICE_S", 0.0)
    job = made(3)
    job._store = wishing(tmp_path, 2)
    job.enter(SECOND, float("inf"), lambda: [2])
    assert job.membership() == SECOND


def test_the_next_agreement_follows_the_one_that_could_not_be_entered(made):
    job = made(None)
    with pytest.raises(JoinError, match="has not come: try again"):
        job.enter(SECOND, 0.0, lambda: [2])
    assert (job.membership(), job.agreed()) == (FIRST, SECOND)


def test_the_world_is_closed_before_the_next_one_listens(made, monkeypatch):
    """They may have to listen on the same ports. Until then its connections can go over to other paths."""
    job, calls = made(1), []
    job._world = types.SimpleNamespace(leave=lambda _: calls.append("leave"), close=lambda _: calls.append("close"))
    make = job._make_world
    monkeypatch.setattr(job, "_make_world", lambda *arguments: calls.append("make") or make(*arguments))
    job.leave(0.0)
    job.enter(SECOND, float("inf"), list)
    assert calls == ["leave", "close", "make"]


def test_processes_that_refuse_connections_have_ended(made):
    job = made(1)
    jobs._native.gone = lambda: [2]
    assert job.gone() == [2]
    job._world = types.SimpleNamespace(refusing=lambda: {1, 2})
    assert job.gone() == [1, 2]


def test_communicators_of_the_next_job_are_counted_anew(made):
    # A process that joins has made none, and its peers' have to have the same names.
    job = made(1)
    assert [job.next_communicator() for _ in range(2)] == ["communicator 0.0", "communicator 0.1"]
    job.forget()
    job._membership = FIRST
    assert job.next_communicator() == "communicator 0.0"
