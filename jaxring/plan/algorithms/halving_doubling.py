"""Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005), for any number of ranks.

Let p be the largest power of two that is at most n. Each chunk is owned by one of the ranks below p. At rank v the
chunk of owner c has the relative number x = c ^ v. Halving folds in what rank v receives from v ^ d, for every power of
two d > x, and sends chunk x to v ^ (highest bit of x): each chunk moves up a binomial tree to its owner, all chunks at
once. Doubling sends the results down the same trees. An extra rank p + i first sends its data to rank i, and gets the
result from it.

The chunks are in the post-order of the binomial tree. Then the message over distance d that is folded at position x
was sent at position x + d, with no other message over that distance in between, so FIFOs of depth two suffice for any
number of ranks. Chunks are dealt to the lanes in turn, so with more channels more of a rank's log2(p) exchanges are in
flight.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from jaxring.plan import cost
from jaxring.plan.algorithms.common import Source, fold, inp, messages, out, read, receive
from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.collectives import PhaseKind
from jaxring.plan.schedule import Kind, Peer, Schedule, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAX_CHANNELS = 8


@functools.lru_cache(maxsize=8)
def walk(n: int) -> tuple[int, ...]:
    """The post-order of the binomial tree over 0..n-1 in which x has the children x + d for powers of two d > x."""
    order: list[int] = []

    def visit(x: int) -> None:
        d = 1 << x.bit_length()
        while x + d < n:
            visit(x + d)
            d *= 2
        order.append(x)

    visit(0)
    return tuple(order)


class _Cube:
    """One of the p ranks with its place in the hypercube, and its extra rank if it has one."""

    def __init__(self, n: int, rank: int) -> None:
        self.p = 1 << (n.bit_length() - 1)
        self.extras = n - self.p
        self.rank = rank
        self.v = rank % self.p  # an extra rank has its partner's place
        self.is_extra = rank >= self.p
        self.extra = (self.v + self.p,) if self.v < self.extras and not self.is_extra else ()

    def toward(self, x: int) -> int:
        return self.v ^ (1 << (x.bit_length() - 1))

    def away(self, x: int) -> list[int]:
        """The ranks from which chunk x is folded in and to which its result goes, farthest first."""
        d, ranks = self.p // 2, []
        while d > x:
            ranks.append(self.v ^ d)
            d //= 2
        return ranks

    def sources(self, x: int) -> list[Source]:
        sources: list[Source] = [(Peer(self.rank), False)]
        sources += [(Peer(e), False) for e in self.extra]
        for q in self.away(x):
            # The farthest exchange is the first, so its values are raw unless its sender has an extra rank.
            sources.append((Peer(q), (q ^ self.v) != self.p // 2 or q < self.extras))
        return sources


def _all_reduce(cube: _Cube, pieces: int) -> Iterator[tuple[int, list[Step]]]:
    p, v = cube.p, cube.v
    for group in range(0, pieces, p):
        for x in walk(p):
            piece = group + (x ^ v)
            if cube.is_extra:
                yield piece, [Step(Kind.MOVE, inp(piece), send=messages([v]))]
            elif x:
                yield piece, fold(cube.rank, piece, cube.sources(x), send=messages([cube.toward(x)]))
            else:
                send = messages((*cube.away(0), *cube.extra))
                yield piece, fold(cube.rank, piece, cube.sources(0), out(piece), send, final=True)
        for x in reversed(walk(p)):
            piece = group + (x ^ v)
            if cube.is_extra:
                yield piece, [receive(v, piece)]
            elif x:
                yield piece, [receive(cube.toward(x), piece, messages((*cube.away(x), *cube.extra)))]


def _blocks(cube: _Cube, order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(x, block) of the blocks that the p ranks own, and then of those that they handle for the extra ranks."""
    for x in order:
        yield x, x ^ cube.v
    for x in order:
        if x ^ cube.v < cube.extras:
            yield x, (x ^ cube.v) + cube.p


def _reduce_scatter(cube: _Cube, pieces: int) -> Iterator[tuple[int, list[Step]]]:
    for piece in range(pieces):
        for x, block in _blocks(cube, walk(cube.p)):
            chunk = block * pieces + piece
            if cube.is_extra:
                yield chunk, [Step(Kind.MOVE, inp(chunk), send=messages([cube.v]))]
            elif x:
                yield chunk, fold(cube.rank, chunk, cube.sources(x), send=messages([cube.toward(x)]))
            elif block < cube.p:
                yield chunk, fold(cube.rank, chunk, cube.sources(0), out(piece), final=True)
            else:
                yield chunk, fold(cube.rank, chunk, cube.sources(0), send=messages([block]), final=True)
        if cube.is_extra:
            yield cube.rank * pieces + piece, [receive(cube.v, piece)]


def _all_gather(cube: _Cube, pieces: int) -> Iterator[tuple[int, list[Step]]]:
    rank = cube.rank
    for piece in range(pieces):
        if cube.is_extra:
            mine = rank * pieces + piece
            yield mine, [read(rank, rank, piece, mine, messages([cube.v]))]
        for x, block in _blocks(cube, tuple(reversed(walk(cube.p)))):
            chunk = block * pieces + piece
            send = messages((*cube.away(x), *(e for e in cube.extra if e != block)))
            if cube.is_extra:
                if block != rank:
                    yield chunk, [receive(cube.v, chunk)]
            elif x:
                yield chunk, [receive(cube.toward(x), chunk, send)]
            elif block == rank:
                yield chunk, [read(rank, rank, piece, chunk, send)]
            else:
                yield chunk, [receive(block, chunk, send)]


_CHUNKS: dict[str, Callable[[_Cube, int], Iterator[tuple[int, list[Step]]]]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}


def build(spec: Spec) -> Schedule:
    """One lane per channel, with the chunks dealt to the lanes in turn. More channels, up to p, reduce the latency."""
    n, channels = spec.nranks, spec.channels
    if spec.collective == "all_reduce":
        p = 1 << (n.bit_length() - 1)
        pieces = p * -(-channels // p)
    else:
        pieces = -(-channels // n)
    chunks = _CHUNKS[spec.collective]

    def lanes(rank: int) -> list[list[Step]]:
        result: list[list[Step]] = [[] for _ in range(channels)]
        for chunk, steps in chunks(_Cube(n, rank), pieces):
            result[chunk % channels] += steps
        return result

    return Schedule(spec, pieces, channels, 0 if spec.collective == "all_gather" else 1, lanes)


def phase(call: cost.Call, phase: PhaseKind) -> cost.Phase:
    """A lane handles its chunks one after another. With a lane for each chunk the hops are the tree's depth."""
    n = call.count
    p = 1 << (n.bit_length() - 1)
    extra = n > p
    hops = call.depth(p) + extra
    percent = 100 if call.cached else call.constants.read_back_percent
    across = call.total * call.outside // n * call.crossing * percent // 100
    return cost.Phase(hops, p - 1 + extra * p, (across + extra * call.total) * call.widened(phase))


def shape(call: cost.Call) -> cost.Shape:
    """The cost of both phases, or of the one that the collective has."""
    return call.sum_phases(phase)


def channels(n: int) -> int:
    """One for each chunk that can be in flight at once, up to MAX_CHANNELS."""
    return min(1 << (n.bit_length() - 1), MAX_CHANNELS)


ALGORITHMS = (
    Algorithm(
        name="halving_doubling",
        summary="hypercube, log2(n) exchanges",
        collectives=frozenset(_CHUNKS),
        build=build,
        shape=shape,
        preference=4,
        channels=channels,
        # Ranks beyond a power of two hand their data to others, who hand them their results.
        keeps=lambda n: n & (n - 1) == 0,
    ),
)
