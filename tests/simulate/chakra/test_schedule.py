"""Schedules as Chakra traces: what is written can be played by rules of its own, and takes what the simulator says."""

from __future__ import annotations

import pytest

from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Spec
from jaxring.simulate.chakra import nodes, schedule
from jaxring.simulate.model import Model
from jaxring.simulate.tile_sizes import cut
from tests.simulate.chakra import schema
from tests.simulate.support import LATENCY, SPEED, mesh, run

COMP, SEND, RECV = 4, 5, 6


def written(planned, nbytes: int, dtype: str, model: Model) -> list[list]:
    made = schedule.by_rank(planned, cut(planned, nbytes, dtype, model.tile_bytes), model.copy)
    return [schema.decode(nodes.write(each)) for each in made]


def finish(ranks: list[list]) -> float:
    """When the last node is done, where only data orders nodes, and messages have links of their own."""
    done: dict[tuple[int, int], float] = {}
    arrive: dict[tuple[int, int, int], list[float]] = {}
    taken: dict[tuple[int, int, int], int] = {}
    free: dict[tuple[int, int], float] = {}
    left = [(rank, node) for rank, made in enumerate(ranks) for node in made]
    while left:
        waiting = []
        for rank, node in left:
            given = schema.attributes(node)
            ends = (given.get("comm_src", 0), given.get("comm_dst", 0))
            key = (*ends, given.get("comm_tag", 0))
            number = taken.get(key, 0)
            if any((rank, other) not in done for other in node.data_deps) or (
                node.type == RECV and len(arrive.get(key, [])) <= number
            ):
                waiting.append((rank, node))
                continue
            begin = max((done[rank, other] for other in node.data_deps), default=0.0)
            done[rank, node.id] = begin + node.duration_micros
            if node.type == SEND:
                free[ends] = max(begin, free.get(ends, 0.0)) + given["comm_size"] / (SPEED * 1000)
                arrive.setdefault(key, []).append(free[ends] + LATENCY)
            elif node.type == RECV:
                taken[key] = number + 1
                done[rank, node.id] = max(begin, arrive[key][number])
        assert len(waiting) < len(left), "it deadlocks"
        left = waiting
    return max(done.values())


@pytest.mark.parametrize(("collective", "algorithm", "ranks"), [("all_reduce", "ring", 5), ("all_gather", "ring", 4)])
def test_takes_what_the_simulator_says(collective, algorithm, ranks):
    # A source of 4096 bytes is read in 1 us, so that each calculation takes whole us.
    model = Model(slots=64, tile_bytes=4096, copy=1 / 4096)
    planned = build(Spec(collective, ranks, algorithm))
    nbytes = 8192 * ranks
    played, _ = run(planned, nbytes, mesh(ranks), model)
    assert finish(written(planned, nbytes, "int32", model)) == pytest.approx(played.time_us)


@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling"])
def test_every_message_is_received_as_it_is_sent(algorithm):
    found = written(build(Spec("all_reduce", 6, algorithm)), 1 << 16, "float32", Model(tile_bytes=8192, copy=0.0001))
    both: dict[int, dict[tuple[int, ...], list[int]]] = {SEND: {}, RECV: {}}
    for rank, made in enumerate(found):
        for node in made:
            if node.type != COMP:
                given = schema.attributes(node)
                key = (given.get("comm_src", 0), given.get("comm_dst", 0), given.get("comm_tag", 0))
                assert rank == key[0 if node.type == SEND else 1]
                both[node.type].setdefault(key, []).append(given["comm_size"])
    assert both[SEND] == both[RECV]
    finish(found)


def test_short_calculations_add_up():
    """Those of less than 1 us are written when they have come to one."""
    model = Model(slots=64, tile_bytes=4096, copy=0.3 / 4096)
    planned = build(Spec("all_reduce", 4, "ring"))
    exact = sum(each.us for each in _calculations(planned, model))
    lanes = len({each.lane for each in _calculations(planned, model)})
    whole = [node.duration_micros for node in written(planned, 1 << 16, "int32", model)[0] if node.type == COMP]
    assert set(whole) == {1}
    assert exact - lanes < sum(whole) <= exact


def _calculations(planned, model: Model):
    from jaxring.simulate import operations

    rank = next(operations.by_rank(planned, cut(planned, 1 << 16, "int32", model.tile_bytes), model.copy, "Chakra"))
    return [each for each in rank if each.kind == "calc"]


def test_memory_cannot_be_written():
    planned = build(Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)))
    with pytest.raises(ValueError, match="which Chakra does not know"):
        written(planned, 1024, "float32", Model(tile_bytes=512))
