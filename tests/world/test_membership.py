"""How processes agree on who takes part: threads in their place, over a store in a directory."""

from __future__ import annotations

import concurrent.futures

import pytest

from jaxring.errors import JoinError
from jaxring.world import membership
from jaxring.world.membership import REBUILD, SHRINK, Membership
from tests.world.world_fakes import DirStore


@pytest.fixture
def call(tmp_path):
    """call(process, kind, ...) -> future of what `agree` returns or raises. All are over when the test is."""
    store = DirStore(tmp_path)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:

        def begin(process, kind, *, current=None, count=3, timeout_s=60.0, gone=(), token="", fresh=False):
            current = membership.first(count) if current is None else current
            token = token or f"first start of {process}"
            return pool.submit(
                membership.agree, store, process, token, fresh, current, kind, timeout_s, lambda: list(gone)
            )

        begin.store = store
        yield begin


def test_everybody_comes(call):
    calls = [call(p, REBUILD) for p in (2, 0, 1)]
    assert [c.result(60) for c in calls] == [Membership(1, 3, (0, 1, 2))] * 3
    assert membership.has_begun(call.store, 1)


def test_who_ended_is_not_waited_for_even_if_only_one_knows(call):
    # Process 0 decides; only process 1 was linked with the one that ended.
    zero, one = call(0, SHRINK), call(1, SHRINK, gone=[2])
    expected = Membership(1, 3, (0, 1))
    assert zero.result(60) == one.result(60) == expected
    assert expected.lost == (2,)


def test_the_first_that_lives_decides(call):
    calls = [call(p, SHRINK, gone=[0]) for p in (1, 2)]
    assert [c.result(60).processes for c in calls] == [(1, 2)] * 2


def test_who_does_not_come_is_left_out_and_told(call):
    zero, one = call(0, SHRINK, timeout_s=0.5), call(1, SHRINK)
    assert zero.result(60).processes == one.result(60).processes == (0, 1)
    with pytest.raises(JoinError, match=r"gone on without process 2 .*processes 0, 1.*rebuild\(\)"):
        call(2, SHRINK).result(60)


def test_who_was_lost_comes_back_and_is_seen_waiting(call):
    for c in [call(p, SHRINK, gone=[2]) for p in (0, 1)]:
        c.result(60)
    small = Membership(1, 3, (0, 1))
    assert membership.waiting(call.store, small) == ()
    back = call(2, REBUILD, token="second start", fresh=True)
    while not (waits := membership.waiting(call.store, small)):
        assert not back.done()
    assert waits == (2,)
    calls = [call(p, REBUILD, current=small) for p in (0, 1)]
    assert [c.result(60) for c in [*calls, back]] == [Membership(2, 3, (0, 1, 2))] * 3


def test_a_restarted_process_that_is_early_waits_until_the_others_have_shrunk(call):
    back = call(2, REBUILD, token="second start", fresh=True)
    calls = [call(p, SHRINK, gone=[2]) for p in (0, 1)]
    assert [c.result(60).processes for c in calls] == [(0, 1)] * 2
    calls = [call(p, REBUILD, current=Membership(1, 3, (0, 1))) for p in (0, 1)]
    assert [c.result(60) for c in [*calls, back]] == [Membership(2, 3, (0, 1, 2))] * 3


def test_who_shrinks_does_not_wait_for_a_restarted_member_that_rebuilds_again(call):
    # The agreement on epoch 1 took process 2 in, but could not be entered, since process 1 was lost.
    agreed = Membership(1, 3, (0, 1, 2))
    back = call(2, REBUILD, current=agreed, token="second start", fresh=True)
    zero = call(0, SHRINK, current=agreed, gone=[1], timeout_s=90.0)
    assert zero.result(60) == Membership(2, 3, (0,))
    lost = call(1, REBUILD, current=agreed, token="third start", fresh=True)
    zero = call(0, REBUILD, current=Membership(2, 3, (0,)))
    assert [c.result(60) for c in [zero, lost, back]] == [Membership(3, 3, (0, 1, 2))] * 3


def test_a_decision_for_an_earlier_start_is_not_for_this_one(call):
    for c in [call(p, REBUILD) for p in range(3)]:
        c.result(60)
    calls = [call(p, REBUILD, current=Membership(1, 3, (0, 1, 2))) for p in (0, 1)]
    back = call(2, REBUILD, token="second start", fresh=True)
    assert [c.result(60).epoch for c in [*calls, back]] == [2] * 3


def test_nobody_comes_back(call):
    calls = [call(p, REBUILD, timeout_s=0.5) for p in (0, 1)]
    for c in calls:
        with pytest.raises(JoinError, match=r"Process 2 did not call rebuild\(\)"):
            c.result(60)
    # That epoch is over; the next attempt has one of its own.
    calls = [call(p, SHRINK, gone=[2]) for p in (0, 1)]
    assert [c.result(60) for c in calls] == [Membership(2, 3, (0, 1))] * 2


def test_calls_that_differ_are_told(call):
    calls = [call(0, SHRINK), call(1, REBUILD), call(2, SHRINK)]
    for c in calls:
        with pytest.raises(JoinError, match=r"Process 1 called rebuild\(\) where others called shrink\(\)"):
            c.result(60)


def test_who_calls_after_calls_that_differed_is_told_so_once(call):
    expected = r"Process 1 called rebuild\(\) where others called shrink\(\)"
    for c in [call(0, SHRINK), call(1, REBUILD)]:
        with pytest.raises(JoinError, match=expected):
            c.result(60)
    with pytest.raises(JoinError, match=expected):
        call(2, SHRINK, timeout_s=600).result(60)
    calls = [call(p, SHRINK) for p in range(3)]
    assert [c.result(60) for c in calls] == [Membership(2, 3, (0, 1, 2))] * 3


def test_a_new_start_has_no_part_in_what_differed_before(call):
    for c in [call(0, SHRINK), call(1, REBUILD)]:
        with pytest.raises(JoinError, match="Process 1 called"):
            c.result(60)
    back = call(2, REBUILD, token="second start", fresh=True)
    calls = [call(p, REBUILD) for p in range(2)]
    assert [c.result(60) for c in [*calls, back]] == [Membership(2, 3, (0, 1, 2))] * 3


def test_a_lost_decider_is_not_waited_for_without_end(call, monkeypatch):
    monkeypatch.setattr(membership, "_SLACK_S", 0.2)
    with pytest.raises(JoinError, match="No process has decided on the members of epoch 1"):
        call(1, REBUILD, timeout_s=0.3).result(60)


def test_nonsense_in_the_store_is_no_decision(call):
    call.store.set("jaxring/decision/1", b'{"members": {"0": 7}, "error": ""}')
    with pytest.raises(JoinError, match="cannot be read"):
        call(0, REBUILD).result(60)


def test_the_former_name_of_an_epoch_warns():
    with pytest.warns(DeprecationWarning, match=r"use Membership\.epoch"):
        assert Membership(3, 1, (0,)).generation == 3
