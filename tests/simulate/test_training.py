"""Training steps: what communication adds to computation."""

from __future__ import annotations

import types

import pytest

from jaxring.simulate.training import Collective, Compute, Message, from_records, play, read

AR = Collective("all_reduce", 1 << 20)


def taking(us: float, asked: list | None = None):
    def simulated(collective: Collective):
        if asked is not None:
            asked.append(collective)
        return types.SimpleNamespace(time_us=us)

    return simulated


def test_hidden_and_exposed():
    # Two layers' gradients: the first is reduced behind the second layer's computation.
    step = [Compute(100.0), AR, Compute(100.0), AR, Compute(10.0, (1, 3))]
    asked: list = []
    found = play(step, taking(60.0, asked))
    assert found.spans == ((0.0, 100.0), (100.0, 160.0), (100.0, 200.0), (200.0, 260.0), (260.0, 270.0))
    assert (found.step, found.compute, found.communication, found.exposed) == (270.0, 210.0, 120.0, 60.0)
    assert asked == [AR]


def test_collectives_take_turns():
    assert play([AR, AR, Compute(5.0)], taking(7.0)).step == 14.0


def test_read():
    text = '[{"compute_us": 5}, {"collective": "all_reduce", "bytes": 1048576}, {"compute_us": 1, "needs": [1]}]'
    assert read(text) == [Compute(5.0), AR, Compute(1.0, (1,))]
    text = '[{"collective": "all_reduce", "bytes": 8, "groups": [[0, 1], [2, 3]]}, {"message": [3, 1], "bytes": 4}]'
    assert read(text) == [Collective("all_reduce", 8, groups=((0, 1), (2, 3))), Message(4, 3, 1)]


def test_a_message_follows_the_computation_before_it_and_goes_beside_collectives():
    step = [Compute(10.0), Message(4, 0, 1), AR, Message(4, 0, 2), Compute(1.0), Compute(1.0, (3,))]
    spans = ((0.0, 10.0), (10.0, 15.0), (10.0, 15.0), (15.0, 20.0), (10.0, 11.0), (20.0, 21.0))
    assert play(step, taking(5.0)).spans == spans


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ('{"compute_us": -1}', "entry 0 of the step: compute_us is -1"),
        ('{"compute_us": 1, "needs": [0]}', "needs names entries before it"),
        ('{"collective": "all_reduce"}', "it has collective, not"),
        ('{"collective": "sum", "bytes": 4}', "there is no collective 'sum'"),
        ('{"collective": "all_reduce", "bytes": 0}', "bytes is a number from 1"),
        ('{"collective": "all_reduce", "bytes": 4, "groups": [[0], []]}', "groups is a list of lists of ranks"),
        ('{"message": [1, 1], "bytes": 4}', "message names the rank that sends and the one that receives"),
        ("7", "it is no object"),
    ],
)
def test_what_is_no_step(entry, why):
    with pytest.raises(ValueError, match=why):
        read(f"[{entry}]")


def test_records_give_back_the_step_that_made_them():
    step = [AR, Compute(100.0), AR, Compute(30.0, (0, 2)), AR]
    spans = play(step, taking(60.0)).spans
    records = [(begin, end, "all_reduce", 1 << 20) for (begin, end), e in zip(spans, step, strict=True) if e == AR]
    again = play(from_records(records), taking(60.0))
    assert again.step == play(step, taking(60.0)).step
    assert [e for e in from_records(records) if isinstance(e, Compute)][-1].us == 30.0
