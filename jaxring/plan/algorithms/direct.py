"""Direct: every rank exchanges data with every other one, through memory in its domain and by messages elsewhere.

all_reduce is the two-shot form: the owner of a chunk folds all ranks' contributions and returns the value. Reductions
fold in rank order 0..n-1 in a single step, so the bits are the same for every placement. Each rank sends and receives
at most n-1 messages per phase, in staggered order (r+1, r+2, ...), so that ranks do not all send to the same one first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxring.plan import cost
from jaxring.plan.algorithms.common import fold, inp, messages, others, out, read, receive, zero
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.collectives import COLLECTIVES, PhaseKind
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step


class _View:
    """One rank's view of the others: the members of its domain, and the remote ranks in staggered order."""

    def __init__(self, spec: Spec, rank: int) -> None:
        n, where = spec.nranks, spec.placement
        self.rank = rank
        self.members = [r for r in range(n) if where[r] == where[rank]]
        self.after = [(rank + s) % n for s in range(1, n) if where[(rank + s) % n] != where[rank]]
        self.before = [(rank - s) % n for s in range(1, n) if where[(rank - s) % n] != where[rank]]
        self.local = others(rank, self.members)
        self.remote = messages(self.after)

    def all_ranks(self, spec: Spec) -> list[tuple[Peer, bool]]:
        where = spec.placement
        return [(Peer(r, r != self.rank and where[r] == where[self.rank]), False) for r in range(spec.nranks)]


LaneFn = Callable[[Spec, _View, int], list[Step]]


def _send(chunk: int, target: int) -> Step:
    return Step(Kind.MOVE, inp(chunk), send=(Peer(target),))


def _all_reduce(spec: Spec, view: _View, channel: int) -> list[Step]:
    def of(owner: int) -> int:
        return owner * spec.channels + channel

    mine = of(view.rank)
    steps = [_send(of(owner), owner) for owner in view.after]
    steps += fold(view.rank, mine, view.all_ranks(spec), out(mine), view.local + view.remote, final=True)
    return steps + [receive(owner, of(owner)) for owner in view.before]


def _all_gather(spec: Spec, view: _View, piece: int) -> list[Step]:
    channels = spec.channels
    steps = [read(view.rank, view.rank, piece, view.rank * channels + piece, view.local + view.remote)]
    return steps + [receive(r, r * channels + piece) for r in view.before]


def _reduce_scatter(spec: Spec, view: _View, piece: int) -> list[Step]:
    channels = spec.channels
    steps = [_send(r * channels + piece, r) for r in view.after]
    return steps + fold(view.rank, view.rank * channels + piece, view.all_ranks(spec), out(piece), final=True)


def _all_to_all(spec: Spec, view: _View, piece: int) -> list[Step]:
    channels, rank = spec.channels, view.rank
    steps = [_send(r * channels + piece, r) for r in view.after]
    # Local copies come first, while the first messages are in flight.
    turn = [r for r in view.members if r >= rank] + [r for r in view.members if r < rank]
    steps += [read(rank, r, rank * channels + piece, r * channels + piece) for r in turn]
    return steps + [receive(r, r * channels + piece) for r in view.before]


def _broadcast(spec: Spec, view: _View, piece: int) -> list[Step]:
    if view.rank == spec.root:
        return [Step(Kind.MOVE, inp(piece), out(piece), send=view.remote)]
    if spec.root in view.members:
        return [read(view.rank, spec.root, piece, piece)]
    return [receive(spec.root, piece)]


def _broadcast_shared(spec: Spec, view: _View, channel: int) -> list[Step]:
    # Within one domain every rank copies its share of the root's buffer to all ranks: it is read once, by all cores.
    piece = channel * spec.nranks + view.rank
    return [read(view.rank, spec.root, piece, piece, view.local)]


def _reduce(spec: Spec, view: _View, piece: int) -> list[Step]:
    if view.rank == spec.root:
        return fold(view.rank, piece, view.all_ranks(spec), out(piece), final=True)
    return ([] if spec.root in view.members else [_send(piece, spec.root)]) + [zero(piece)]


def _gather(spec: Spec, view: _View, piece: int) -> list[Step]:
    channels = spec.channels
    if view.rank == spec.root:
        steps = [read(view.rank, r, piece, r * channels + piece) for r in view.members]
        return steps + [receive(r, r * channels + piece) for r in view.after]
    steps = [] if spec.root in view.members else [_send(piece, spec.root)]
    return steps + [zero(block * channels + piece) for block in range(spec.nranks)]


def _scatter(spec: Spec, view: _View, piece: int) -> list[Step]:
    source = view.rank * spec.channels + piece
    if view.rank == spec.root:
        return [_send(r * spec.channels + piece, r) for r in view.after] + [read(view.rank, view.rank, source, piece)]
    if spec.root in view.members:
        return [read(view.rank, spec.root, source, piece)]
    return [receive(spec.root, piece)]


def _permute(spec: Spec, view: _View, piece: int) -> list[Step]:
    steps = [_send(piece, target) for source, target in spec.perm if source == view.rank and target in view.after]
    sources = [source for source, target in spec.perm if target == view.rank]
    if not sources:
        return [*steps, zero(piece)]
    source = sources[0]
    return [*steps, read(view.rank, source, piece, piece) if source in view.members else receive(source, piece)]


_LANES: dict[str, LaneFn] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "permute": _permute,
}


def build(spec: Spec) -> Schedule:
    """One lane per channel; a channel has one piece, or one per rank where ranks own chunks (all_reduce).

    The chunks that a rank owns lie next to each other.
    """
    lane = _LANES[spec.collective]
    shared = spec.collective == "broadcast" and len(set(spec.placement)) == 1
    if shared:
        lane = _broadcast_shared
    pieces = spec.channels * (spec.nranks if shared or spec.collective == "all_reduce" else 1)

    def lanes(rank: int) -> list[list[Step]]:
        view = _View(spec, rank)
        return [lane(spec, view, channel) for channel in range(spec.channels)]

    return Schedule(spec, pieces, spec.channels, 0, lanes)


def phase(call: cost.Call, _: PhaseKind) -> cost.Phase:
    """One hop: a message to every other participant, of raw or final values."""
    if call.collective == "permute":
        return cost.Phase(1, 1, call.total * call.crossing)
    if call.rooted:
        wire = call.total * call.outside
    elif call.collective in ("gather", "scatter"):
        wire = call.total * call.outside // call.count
    else:
        wire = call.total * call.outside // call.count * call.crossing
    few = call.topology.hosts == 1 and (call.cached or call.count <= call.constants.close_ranks)
    if call.count > 2 and not few:
        wire = wire * call.constants.crowd_percent // 100
    return cost.Phase(1, call.count - 1, wire)


def shape(call: cost.Call) -> cost.Shape:
    """The cost of messages between memory domains."""
    return call.sum_phases(phase)


DIRECT = Algorithm(
    name="direct",
    summary="every pair of ranks; folds in rank order",
    collectives=frozenset(_LANES),
    build=build,
    shape=shape,
    preference=0,
    memory=True,
    partials=False,
)
ALGORITHMS = (
    DIRECT,
    dataclasses.replace(
        DIRECT,
        name="deterministic",
        summary="direct, with the promise to fold in rank order",
        preference=10,
        unasked=frozenset(),  # the tuner chooses `direct` itself
    ),
    dataclasses.replace(
        DIRECT,
        name="reproducible",
        summary="direct, with sums that are exact and rounded once",
        collectives=frozenset(name for name in _LANES if COLLECTIVES[name].reduces),
        preference=11,
        exact=True,
        engines=frozenset({"CPU"}),
        unasked=frozenset(),
    ),
)
