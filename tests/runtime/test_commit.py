"""The decision on a step: threads in the place of processes, over a store in a directory."""

from __future__ import annotations

import concurrent.futures
import random
import threading
import time

import pytest

from jaxring.errors import JaxringError, JoinError
from jaxring.runtime.commit import Commits
from jaxring.world.membership import Membership, first
from tests.world.world_fakes import DirStore


class KilledError(Exception):
    """Ends a thread that plays a process."""


class MortalStore(DirStore):
    """Kills its process after so many calls, before or after the last of them takes effect."""

    def __init__(self, path, calls, after):
        super().__init__(path)
        self._left, self._after = calls, after

    def _count(self, act, *arguments):
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            raise KilledError
        found = act(*arguments)
        if self._left == 0:
            raise KilledError
        return found

    def set(self, key, value):
        return self._count(super().set, key, value)

    def get(self, key, timeout_s):
        return self._count(super().get, key, timeout_s)

    def list(self, prefix):
        return self._count(super().list, prefix)


def nobody():
    return ()


def nothing():
    return ""


def run(votes):
    with concurrent.futures.ThreadPoolExecutor(len(votes)) as pool:
        return [call.result(60) for call in [pool.submit(vote) for vote in votes]]


def member(store, process, membership=None, token=""):
    return Commits(store, process, token or f"first start of {process}", membership or first(3))


def test_it_counts_where_all_agree_and_what_is_over_is_dropped(tmp_path):
    store = DirStore(tmp_path)
    members = [member(store, p) for p in range(3)]
    for step in range(12):
        refusals = ["", "", f"no {step}"] if step % 4 == 3 else ["", "", ""]
        votes = [
            lambda c=c, why=why: c.decide(why, 60.0, nobody, nothing) for c, why in zip(members, refusals, strict=True)
        ]
        assert run(votes) == [refusals[2]] * 3
        steps = {key.partition("/")[0] for key in store.list("jaxring/commit/0/")}
        assert steps == {str(step)} if step % 4 != 3 else {str(step - 1), str(step)}


@pytest.mark.parametrize("seed", range(40))
def test_a_kill_at_any_call_leaves_the_others_with_one_decision(tmp_path, seed):
    chance = random.Random(seed)
    victim, calls, after = chance.randrange(3), chance.randrange(2, 7), chance.random() < 0.5
    dead = threading.Event()
    knows = chance.sample([p for p in range(3) if p != victim], chance.randint(1, 2))

    def act(p):
        try:
            store = MortalStore(tmp_path, calls, after) if p == victim else DirStore(tmp_path)
            commits = member(store, p)
            ended = (lambda: [victim] if dead.is_set() else []) if p in knows else nobody
            return [commits.decide("", 60.0, ended, nothing) for _ in range(3)]
        except KilledError:
            dead.set()
            return None

    found = run([lambda p=p: act(p) for p in range(3)])
    survivors = [found[p] for p in range(3) if p != victim]
    assert survivors[0] == survivors[1]
    if found[victim] is None:
        voted = [any(DirStore(tmp_path).list(f"jaxring/commit/0/{n}/").get(f"vote/{victim}", b"")) for n in range(3)]
        lost = f"process {victim} has ended before it voted"
        # A step counts to which it has voted, and none after it.
        counts = [not why for why in survivors[0]]
        assert counts == sorted(counts, reverse=True)
        assert {why for why in survivors[0] if why} <= {lost}
        assert not any(vote and not count for vote, count in zip(voted, counts, strict=True)), (voted, counts)
    else:
        assert survivors[0] == found[victim] == ["", "", ""]


def test_who_comes_too_late_reads_the_decision(tmp_path):
    store = DirStore(tmp_path)
    zero, one, two = (member(store, p) for p in range(3))
    why = "process 1 did not call jaxring.commit() within 0.3 s"

    def zero_comes_after_two():
        deadline = time.monotonic() + 60
        while "vote/2" not in store.list("jaxring/commit/0/0/"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return zero.decide("", 0.3, nobody, nothing)

    assert run([zero_comes_after_two, lambda: two.decide("", 60.0, nobody, nothing)]) == [why] * 2
    assert one.decide("", 60.0, nobody, nothing) == why
    assert run([lambda c=c: c.decide("", 60.0, nobody, nothing) for c in (zero, one, two)]) == [""] * 3


def test_the_first_member_may_be_the_one_that_does_not_come(tmp_path):
    store = DirStore(tmp_path)
    one, two = (member(store, p) for p in (1, 2))
    found = run([lambda: one.decide("", 60.0, lambda: [0], nothing), lambda: two.decide("", 60.0, nobody, nothing)])
    assert found == ["process 0 has ended before it voted"] * 2


def test_an_abort_ends_the_wait(tmp_path):
    store = DirStore(tmp_path)
    reason = "process 1 called\njaxring.abort()"
    found = run([lambda: member(store, 2).decide("", 60.0, nobody, lambda: reason)])
    assert found == [" ".join(reason.split())]
    assert member(store, 0).decide("", 60.0, nobody, nothing) == found[0]


def test_another_start_of_a_process_does_not_vote(tmp_path):
    store = DirStore(tmp_path)
    member(store, 1)
    with pytest.raises(JaxringError, match=r"process 1 has been started again. Call jaxring.rebuild\(\) before"):
        member(store, 1, token="second start")
    alone = member(store, 1, Membership(1, 3, (1,)), token="second start")
    assert alone.decide("", 60.0, nobody, nothing) == ""


def test_a_lost_store_is_an_error(tmp_path):
    class Lost(DirStore):
        def get(self, key, timeout_s):
            raise JoinError("the store is lost")

    with pytest.raises(JoinError, match="the store is lost"):
        member(Lost(tmp_path), 0).decide("", 60.0, nobody, nothing)
