"""Reductions of parts, and then of the parts, are one reduction where nothing else sees the parts."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.plan.foreign.nested import joined
from jaxring.plan.foreign.places import Action

S = [("s", number) for number in range(5)]
OPERAND, RESULT = ("i", 0), ("o", 0)


def fold(sources, target, rank=0):
    return Action(rank, 0, tuple(sources), ((rank, target),))


def test_parts_in_a_row_and_side_by_side():
    actions = [
        fold([S[0], S[1]], S[0]),
        fold([S[2], OPERAND], S[3]),
        fold([S[0], S[4]], S[0]),
        fold([S[0], S[3]], RESULT),
    ]
    assert joined(actions) == [fold([S[0], S[1], S[4], S[2], OPERAND], RESULT)]


def test_what_is_not_joined():
    part, whole = fold([S[0], S[1]], S[2]), fold([S[2], OPERAND], RESULT)
    copy = Action(0, 0, (S[2],), ((0, S[3]),))
    sent = Action(1, 0, (OPERAND,), ((0, S[0]),))
    for actions in (
        [part, copy, whole],  # something else reads the part
        [part, whole, copy],  # and later
        [part, sent, whole],  # what the part was made of is written again
        [fold([S[0], S[1]], RESULT), fold([RESULT, OPERAND], S[2])],  # the part is a result
        [part, fold([S[2], S[1]], RESULT)],  # a chunk would count twice in one reduction
        [part, fold([S[2], OPERAND], RESULT, rank=1)],  # another rank's place of that name
        [part, Action(0, 0, (S[2],), ((1, S[0]),))],  # it is sent
    ):
        assert joined(actions) == actions


def outcome(actions):
    """What lies in the results in the end, and what ranks get from each other, as counts of what it is made of."""
    held = collections.defaultdict(collections.Counter)
    for rank in range(2):
        for place in (OPERAND, RESULT, *S):
            held[rank, place][rank, place] = 1
    sent = []
    for action in actions:
        made = sum((held[action.rank, place] for place in action.sources), collections.Counter())
        for target in action.targets:
            held[target] = made
            if target[0] != action.rank:
                sent.append((target, made))
    return [held[rank, place] for rank in range(2) for place in (OPERAND, RESULT)], sent


places = st.sampled_from((OPERAND, RESULT, *S))
made = st.builds(
    lambda rank, sources, targets: Action(rank, 0, tuple(sources), tuple(targets)),
    st.integers(0, 1),
    st.lists(places, min_size=1, max_size=3, unique=True),
    st.lists(st.tuples(st.integers(0, 1), places), min_size=1, max_size=2, unique=True),
)


@settings(deadline=None)
@given(st.lists(made, max_size=12))
def test_results_and_messages_stay_the_same(actions):
    assert outcome(joined(actions)) == outcome(actions)
