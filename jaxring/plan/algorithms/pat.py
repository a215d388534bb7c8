"""PAT, parallel aggregated trees: logarithmic depth for any number of ranks (Jeaugey, "PAT: a new algorithm for
all-gather and reduce-scatter operations at scale", arXiv 2506.20252, 2025).

Each block has a binomial tree whose root is the block's owner, and every rank sees the same tree, shifted: at rank v
the block of rank c has the relative number x = v - c (mod n). A block goes up from x to x less its highest bit, that is
to the rank so far below, and comes down the same way. Blocks are in the post-order of the tree, as in halving_doubling,
whose exchanges these are where n is a power of two; so a rank holds one partial result a lane, where a rank that took
all blocks of a distance together would hold n/2.

Messages hold one block. The original also puts several blocks in a message while these are small.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jaxring.plan import cost
from jaxring.plan.algorithms.common import fold, messages, out, read, receive
from jaxring.plan.algorithms.halving_doubling import MAX_CHANNELS, walk
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import Peer, Schedule, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxring.plan.algorithms.common import Source
    from jaxring.plan.collectives import PhaseKind


def _children(x: int, n: int) -> list[int]:
    """The distances to the children of x in the tree over 0..n-1, the farthest first."""
    d, found = 1 << x.bit_length(), []
    while x + d < n:
        found.append(d)
        d *= 2
    return found[::-1]


def _parent(x: int) -> int:
    """The distance to the parent of x."""
    return 1 << (x.bit_length() - 1)


def _reduce_scatter(n: int, rank: int, pieces: int) -> Iterator[tuple[int, list[Step]]]:
    for piece in range(pieces):
        for x in walk(n):
            chunk = (rank - x) % n * pieces + piece
            sources: list[Source] = [(Peer(rank), False)]
            # A leaf sends its operand as it is.
            sources += [(Peer((rank + d) % n), bool(_children(x + d, n))) for d in _children(x, n)]
            if x:
                yield chunk, fold(rank, chunk, sources, send=messages([(rank - _parent(x)) % n]))
            else:
                yield chunk, fold(rank, chunk, sources, out(piece), final=True)


@functools.lru_cache(maxsize=2)
def _downwards(n: int) -> list[tuple[int, tuple[int, ...]]]:
    """Each x in the order of an all-gather, with the distances to its children: the same for all ranks, and few sets of
    children differ."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    distances = ((x, tuple(_children(x, n))) for x in reversed(walk(n)))
    return [(x, known.setdefault(found, found)) for x, found in distances]


def _all_gather(n: int, rank: int, pieces: int) -> Iterator[tuple[int, list[Step]]]:
    sends: dict[tuple[int, ...], tuple[Peer, ...]] = {}
    for piece in range(pieces):
        for x, distances in _downwards(n):
            chunk = (rank - x) % n * pieces + piece
            send = sends.get(distances)
            if send is None:
                send = sends[distances] = messages((rank + d) % n for d in distances)
            if x:
                yield chunk, [receive((rank - _parent(x)) % n, chunk, send)]
            else:
                yield chunk, [read(rank, rank, piece, chunk, send)]


_CHUNKS: dict[str, Callable[[int, int, int], Iterator[tuple[int, list[Step]]]]] = {
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}


def build(spec: Spec) -> Schedule:
    """One lane per channel, with the blocks dealt to the lanes in turn."""
    n, count = spec.nranks, spec.channels
    pieces = -(-count // n)
    chunks = _CHUNKS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        result: list[list[Step]] = [[] for _ in range(count)]
        for chunk, steps in chunks(n, rank, pieces):
            result[chunk % count].extend(steps)
        return result

    return Schedule(spec, pieces, count, 0 if spec.collective == "all_gather" else 1, lanes)


def phase(call: cost.Call, phase: PhaseKind) -> cost.Phase:
    """A lane handles its blocks one after another. With a lane for each block the hops are the tree's depth."""
    n = call.count
    percent = 100 if call.cached else call.constants.read_back_percent
    across = call.total * call.outside // n * call.crossing * percent // 100
    return cost.Phase(call.depth(n), n - 1, across * call.widened(phase))


def shape(call: cost.Call) -> cost.Shape:
    """The cost of the phase that the collective has."""
    return call.sum_phases(phase)


def channels(n: int) -> int:
    """One for each block that can be in flight at once, up to MAX_CHANNELS."""
    return min(n, MAX_CHANNELS)


def differs(placement: tuple[int, ...]) -> bool:
    """Whether the number of ranks is no power of two; otherwise halving_doubling has the same exchanges."""
    n = len(placement)
    return n & (n - 1) != 0


ALGORITHMS = (
    Algorithm(
        name="pat",
        summary="a shifted binomial tree a block, log2(n) deep for any n",
        collectives=frozenset(_CHUNKS),
        build=build,
        shape=shape,
        preference=12,
        # On GPUs it was not measured.
        unasked=frozenset({"CPU"}),
        differs=differs,
        channels=channels,
    ),
)
