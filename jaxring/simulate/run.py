"""Simulates one collective on a cluster: from its description to its time, bandwidth and use of links."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from typing import TYPE_CHECKING

from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.epilogue import with_epilogue
from jaxring.plan.gpu import nvls
from jaxring.plan.schedule import Schedule, Spec
from jaxring.plan.user import build_user
from jaxring.plan.user import find as find_user
from jaxring.simulate import symmetry
from jaxring.simulate.cluster import ClusterNetwork, Folded
from jaxring.simulate.groups import check, joined, within
from jaxring.simulate.history import Record
from jaxring.simulate.links import multicast_slices
from jaxring.simulate.outcome import Played
from jaxring.simulate.play import play
from jaxring.simulate.program import compile_lanes
from jaxring.simulate.tile_sizes import cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jaxring.simulate.clusters import AnyCluster
    from jaxring.simulate.faults import Faults
    from jaxring.simulate.groups import Groups
    from jaxring.simulate.links.network import Network
    from jaxring.simulate.links.routes import Ways

# Runs of more messages keep no record of each.
RECORDED = 200_000
# Channels for each rail of a hierarchical algorithm: enough that memory and network are busy together.
_OF_RAILS = 4


@dataclasses.dataclass(frozen=True)
class Run:
    """A simulated collective. ``ranks``: of a group. ``algorithm_gbs``, ``bus_gbs``: as nccl-tests define them.
    ``used``: the share of the time for which each kind of link was busy, mean and most. ``how``: which ranks were
    played. ``cpu_s``: the CPU time that it took."""

    cluster: str
    hosts: int
    ranks: int
    collective: str
    algorithm: str
    protocol: str
    channels: int
    nbytes: int
    time_us: float
    algorithm_gbs: float
    bus_gbs: float
    used: Mapping[str, tuple[float, float]]
    messages: int
    events: int
    how: str
    cpu_s: float
    record: Record | None = dataclasses.field(repr=False, compare=False)


def spec_of(
    collective: str,
    placement: tuple[int, ...],
    algorithm: str,
    channels: int,
    perm: tuple[tuple[int, int], ...] = (),
) -> Spec:
    """What is planned; a permute without ``perm`` sends each rank's data to the next one."""
    if COLLECTIVES[collective].pairs and not perm:
        perm = tuple((rank, (rank + 1) % len(placement)) for rank in range(len(placement)))
    return Spec(collective, len(placement), algorithm, channels=channels, placement=placement, perm=perm)


def schedule_of(spec: Spec) -> Schedule:
    """The schedule by the algorithm's name: one of ours, or one that was registered or imported."""
    return build_user(spec) if find_user(spec.algorithm) is not None else build(spec)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """No cycles of objects arise here, and each collection would look at millions of steps."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_without_collections()
def simulate(
    cluster: AnyCluster,
    hosts: int,
    collective: str,
    nbytes: int,
    algorithm: str,
    *,
    protocol: str = "simple",
    channels: int = 0,
    dtype: str = "float32",
    symmetric: bool | None = None,
    recorded: bool = True,
    faults: Faults | None = None,
    groups: Groups = (),
    perm: tuple[tuple[int, int], ...] = (),
    result: str = "",
    times: int = 1,
) -> Run:
    """Plays ``collective`` of ``nbytes`` of input per rank on ``hosts`` hosts.

    ``groups``: the ranks of each group, where it is one of groups, all at once; without them all ranks are one group.
    ``perm``: a permute's pairs, by places in the group. ``result``: the dtype that an epilogue casts to, of
    reductions only. ``times``: how often it is made, one after another; the time is then that of one in the later half.

    ``algorithm``: the name of one of ours, of a registered one, or nvls: the table of direct, with switches that reduce
    and copy. ``symmetric``: None takes a symmetry where there is one and nothing goes wrong; False plays every rank;
    True demands one. Under a symmetry all pieces have the length of the longest. Raises ValueError for what the cluster
    has not or the algorithm does not serve, ScheduleError where the schedule cannot end.
    """
    begun = time.process_time()
    if min(hosts, nbytes, times) < 1:
        raise ValueError(f"there must be a host, a byte and a time at least, not {hosts}, {nbytes} and {times}")
    if protocol not in cluster.models:
        raise ValueError(f"{cluster.name} has no protocol {protocol!r}; there are {', '.join(cluster.models)}")
    if collective not in COLLECTIVES:
        raise ValueError(f"there is no collective {collective!r}; there are {', '.join(COLLECTIVES)}")
    if result and not COLLECTIVES[collective].reduces:
        raise ValueError(f"result={result!r} is for reductions, whose epilogue casts; {collective} reduces nothing")
    nranks = hosts * cluster.ranks
    channels = channels or _channels(cluster, algorithm)
    placement = cluster.placement(hosts)
    model = cluster.models[protocol]
    table = algorithm
    if algorithm == nvls.NAME:
        if not cluster.multicast or hosts > 1 or collective not in nvls.SERVED:
            raise ValueError(f"nvls serves {' and '.join(nvls.SERVED)} on one host whose switches reduce and copy")
        model, table = dataclasses.replace(model, multicast=cluster.multicast, launch=cluster.multicast_us), "direct"
    check(groups, nranks)
    placements = [within(placement, group) for group in groups] or [placement]
    schedules = [schedule_of(spec_of(collective, each, table, channels, perm)) for each in placements]
    if result:
        schedules = [with_epilogue(each) for each in schedules]
    one = schedules[0]
    schedule = joined(schedules, groups, nranks) if groups else one
    network = cluster.build(hosts, protocol)
    sizes = cut(one, nbytes, dtype, model.tile_bytes, equal=True, result=result)
    found = None
    if symmetric is not False and faults is None:
        found = symmetry.find(schedule, sizes, cluster.ranks, cluster.leaf)
        if symmetric and found is None:
            raise ValueError(f"{algorithm} {collective} has no symmetry on {hosts} hosts of {cluster.name}")
    if found is None:
        sizes = cut(one, nbytes, dtype, model.tile_bytes, result=result)
    sizes = dataclasses.replace(sizes, times=times)
    program = compile_lanes(schedule, sizes, found)
    messages = times * sizes.tiles * sum(len(op.send) for lane in program.lanes for op in lane.ops)
    record = Record(program) if recorded and messages <= RECORDED else None
    ways: Ways = network
    if found is not None:
        assert isinstance(network, ClusterNetwork), "only these have hosts that are alike"
        ways = Folded(network, found)
    moved = COLLECTIVES[collective].total(one.spec.nranks, nbytes)
    if algorithm == nvls.NAME:
        first = play(program, ways, model, None, None)
        shares = _used(network, first, ways.speed, model.wire)
        switches_us = max((most for _, most in shares.values()), default=0.0) * first.round_us
        copying_us = multicast_slices.copying_us(
            collective, moved, cluster.multicast_channels, one.spec.nranks, switches_us
        )
        model = dataclasses.replace(model, launch=model.launch + copying_us)
    played = play(program, ways, model, record, faults.on(network, nranks) if faults else None)
    rate = moved / played.round_us / 1000 if played.round_us else 0.0
    return Run(
        cluster.name,
        hosts,
        one.spec.nranks,
        collective,
        algorithm,
        protocol,
        channels,
        nbytes,
        played.round_us,
        rate,
        rate * COLLECTIVES[collective].bus_factor(one.spec.nranks),
        _used(network, played, ways.speed, model.wire),
        played.messages,
        played.events,
        str(found) if found else "every rank is played",
        time.process_time() - begun,
        record,
    )


def _channels(cluster: AnyCluster, algorithm: str) -> int:
    """The channels of a call that does not say: a hierarchical algorithm has a rail for each rank besides."""
    hierarchical = algorithm in ALGORITHMS and ALGORITHMS[algorithm].hierarchical
    return min(_OF_RAILS, cluster.channels) if hierarchical else cluster.channels


def _used(network: Network, played: Played, speeds: list[float], wire: float) -> dict[str, tuple[float, float]]:
    """The mean and the largest share of the time that links of each kind were busy, of those that carried anything."""
    shares: dict[str, list[float]] = {}
    for link, amount in played.moved.items():
        if played.time_us and speeds[link]:
            share = amount * wire / speeds[link] / played.time_us
            shares.setdefault(network.fabric.links[link].kind, []).append(share)
    return {kind: (sum(each) / len(each), max(each)) for kind, each in shares.items()}
