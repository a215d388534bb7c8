"""The price of a table: that of the formula where an algorithm has one, and near to the simulator's time."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from jaxring.plan import cost, table_cost, user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.candidate import Asked, Formula
from jaxring.plan.cost import Shape
from jaxring.plan.profile_file import COMMODITY
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Schedule, Spec, Step
from jaxring.plan.table_cost import traffic
from jaxring.plan.tuner import choose
from jaxring.simulate.model import Model
from tests.simulate.support import run, star

CONSTANTS = COMMODITY.constants
IN, OUT = Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, 0)
SIZES = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20)
RANKS = range(2, 17)
# The least and the most that the table's price may be of the formula's, from 1 KiB to 64 MiB among 2 to 16 ranks. The
# formulas take no latency for the tiles that follow in one lane. That of tree counts a hop more in each phase, which is
# much among 2 ranks, and takes its links as busy all the time, which among 16 they are not.
AGREES = {
    "ring": (0.99, 1.5),
    "direct": (0.79, 1.4),
    "halving_doubling": (0.6, 1.5),
    "tree": (0.4, 2.5),
    "hier_ring": (0.7, 1.1),
    "hier_tree": (0.65, 1.05),
    "hier_direct": (0.7, 1.05),
}


@functools.cache
def moved(
    collective: str, name: str, channels: int, where: tuple[int, ...], hosts: tuple[int, ...]
) -> table_cost.Traffic:
    return traffic(build(Spec(collective, len(where), name, channels=channels, placement=where)), hosts)


def prices(
    collective: str, name: str, where: tuple[int, ...], hosts: tuple[int, ...], nbytes: int, network: str = "tcp"
) -> tuple[float, float, int]:
    """By the table, by the formula, and with how many channels."""
    topology = cost.Topology.of(where, hosts, 0, network)
    formula = Formula(Asked(collective, where, hosts, topology, nbytes, "float32", CONSTANTS, 1, 1.0, 0, ()), name)
    channels = formula.channels(ll=False)
    table = moved(collective, name, channels, where, hosts).shape(collective, topology, nbytes, 4, CONSTANTS)
    both = (cost.price(shape, topology, "simple").us for shape in (table, formula.shape(channels)))
    return (*both, channels)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "tree"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.sampled(5)
def test_the_table_of_a_built_in_algorithm_costs_what_its_formula_says(collective: str, name: str) -> None:
    if collective not in ALGORITHMS[name].collectives:
        return
    least, most = AGREES[name]
    for n in RANKS:
        apart = tuple(range(n))
        for hosts, network in (((0,) * n, "tcp"), (apart, "tcp"), (apart, "rdma")):
            for nbytes in SIZES:
                table, formula, _ = prices(collective, name, apart, hosts, nbytes, network)
                assert least <= table / formula <= most, (n, hosts, network, nbytes)


@pytest.mark.parametrize("name", ["hier_ring", "hier_tree", "hier_direct"])
def test_memory_and_messages_together_cost_what_the_formula_says(name: str) -> None:
    where, (least, most) = (0, 0, 1, 1, 2, 2, 3, 3), AGREES[name]
    for collective in ALGORITHMS[name].collectives & {"all_reduce", "all_gather", "reduce_scatter"}:
        for hosts in ((0,) * 8, (0, 0, 0, 0, 1, 1, 1, 1), where):
            for nbytes in SIZES:
                table, formula, _ = prices(collective, name, where, hosts, nbytes)
                assert least <= table / formula <= most, (collective, hosts, nbytes)


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "tree"])
def test_the_simulator_takes_about_as_long(name: str) -> None:
    """Around a switch whose links cost what the profile says. It knows no crowds, and lanes share links there."""
    for n in (2, 4, 8):
        for kind, hosts in (("shm", (0,) * n), ("tcp", tuple(range(n)))):
            link = COMMODITY.link(kind)
            half = link.overhead / 2
            model = Model(send_overhead=half, recv_overhead=half, tile_bytes=CONSTANTS.tile_bytes)
            network = star(n, 1 / (1000 * link.beta), link.alpha / 2)
            for nbytes in (1 << 10, 256 << 10, 4 << 20):
                table, _, channels = prices("all_reduce", name, tuple(range(n)), hosts, nbytes)
                played, _ = run(Spec("all_reduce", n, name, channels=channels), nbytes, network, model)
                assert 0.6 <= table / played.time_us <= 1.35, (n, kind, nbytes)


def chain(spec: Spec, rank: int) -> list[list[Step]]:
    """Up from rank 0 to the last one, and back: messages that all wait for each other."""
    below, above, last = Peer(rank - 1), Peer(rank + 1), rank == spec.nranks - 1
    partial = Flag.RECV_PARTIAL if rank > 1 else Flag.NONE
    if rank == 0:
        return [[Step(Kind.MOVE, IN, send=(above,)), Step(Kind.MOVE, dst=OUT, recv=(above,))]]
    if last:
        return [[Step(Kind.REDUCE, IN, OUT, recv=(below, Peer(rank)), send=(below,), flags=partial | Flag.FINAL)]]
    up = Step(Kind.REDUCE, IN, recv=(below, Peer(rank)), send=(above,), flags=partial | Flag.SEND_PARTIAL)
    return [[up, Step(Kind.MOVE, dst=OUT, recv=(above,), send=(below,))]]


def exchange(spec: Spec, rank: int) -> list[list[Step]]:
    """Each of two ranks sends the other one all it has."""
    fold = Step(Kind.REDUCE, IN, OUT, recv=(Peer(0), Peer(1)), flags=Flag.FINAL)
    return [[Step(Kind.MOVE, IN, send=(Peer(1 - rank),)), fold]]


user.register_algorithm("test_priced_chain", "all_reduce", chain)
user.register_algorithm("test_exchange", "all_reduce", exchange)


def schedule_of(name: str, n: int, placement: Sequence[int] = ()) -> Schedule:
    return user.build_user(Spec("all_reduce", n, name, placement=tuple(placement)))


def test_the_shape_of_a_chain() -> None:
    topology = cost.Topology.of(range(4), range(4))
    found = traffic(schedule_of("test_priced_chain", 4), range(4))
    assert found.shape("all_reduce", topology, 4096, 4, CONSTANTS) == Shape(6, 2, 6 * 4096, 0)
    # A tile goes up when the one before has come down.
    tiles = 8
    assert found.shape("all_reduce", topology, tiles * CONSTANTS.tile_bytes, 4, CONSTANTS).hops == 6 * tiles
    # Two of the three messages upwards are partial results, which are as long as two values of bfloat16.
    wide = traffic(schedule_of("test_priced_chain", 4), range(4), widening=2)
    assert wide.shape("all_reduce", topology, 4096, 2, CONSTANTS).wire_bytes == 8 * 4096
    assert wide.longest_bytes("all_reduce", 4, 4096, 2) == 2 * 4096
    # Between two hosts of two ranks each goes one message up and one down.
    hosts = (0, 0, 1, 1)
    paired = traffic(schedule_of("test_priced_chain", 4), hosts)
    assert paired.shape("all_reduce", cost.Topology.of(range(4), hosts), 4096, 4, CONSTANTS).wire_bytes == 2 * 4096


def test_what_goes_by_memory() -> None:
    one = (0,) * 4
    found = traffic(build(Spec("all_reduce", 4, "direct", placement=one)), one)
    assert found.silent
    # Each rank reads its quarter of four inputs, and writes it to four outputs.
    assert found.shape("all_reduce", cost.Topology.of(one, one), 4096, 4, CONSTANTS) == Shape(0, 0, 0, 2 * 4096)


def test_the_choice_takes_a_user_s_algorithm_where_it_may_and_it_is_cheapest() -> None:
    pick = functools.partial(choose, "all_reduce", (0, 1), (0, 0), 1024, "float32", unwanted=("oneshot",))
    free = pick()
    assert not any(name.startswith("test_") for name, _ in free.candidates)
    both = pick(also=("test_exchange", "test_priced_chain"))
    assert (both.algorithm, both.protocol, both.channels) == ("test_exchange", "ll", 1)
    assert {name for name, _ in both.candidates} > {"test_priced_chain/ll", "test_priced_chain/simple", "ring/simple"}
    # What is registered for another collective is none of its candidates.
    gather = functools.partial(choose, "all_gather", (0, 1), (0, 0), 1024, "float32")
    assert gather(also=("test_exchange",)) == gather()
    # The same where a call asks for it. The settings' least number of channels does not multiply its lanes.
    asked = pick(algorithm="test_exchange", channels=(4, 8))
    assert (asked.algorithm, asked.channels) == ("test_exchange", 1)
    assert asked.reason.startswith("algorithm 'test_exchange' asked for; test_exchange by ll is the cheapest of 2")
    assert pick(algorithm="test_exchange", protocol="simple").protocol == "simple"
    for wrong, said in (
        ({"nbytes": 1 << 20, "protocol": "ll"}, "test_exchange all_reduce sends 1048576; use protocol 'simple'"),
        ({"protocol": "memory"}, "test_exchange over 2 domain.s. sends messages"),
        ({"placement": (0, 1, 2), "hosts": (0, 0, 0)}, "test_exchange all_reduce of 3 ranks"),
    ):
        arguments = {"placement": (0, 1), "hosts": (0, 0), "nbytes": 1024, **wrong}
        with pytest.raises(ValueError, match=said):
            choose("all_reduce", dtype="float32", algorithm="test_exchange", **arguments)  # type: ignore[arg-type]


def test_no_table_is_priced_where_no_algorithm_of_a_user_s_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def priced(*_: object) -> None:
        raise AssertionError("priced")

    monkeypatch.setattr(table_cost, "of_user", priced)
    for where in ((0, 1), (0, 0), (0, 0, 1, 1)):
        choose("all_reduce", where, (0,) * len(where), 1 << 20, "float32")
    with pytest.raises(AssertionError, match="priced"):
        choose("all_reduce", (0, 1), (0, 0), 1 << 20, "float32", algorithm="test_exchange")
