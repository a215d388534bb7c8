"""Outside of `jax.jit`: which arrays of a tree go by a program each, which in rounds, and which stay in a process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from typing import TYPE_CHECKING, Any

import jax

from jaxring.resharding import compiled, rounds, whole_shards, within_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.resharding.compiled import Program
    from jaxring.resharding.facts import Facts
    from jaxring.resharding.transfer_routes import Routes

# What rounds take beside the result, in round_bytes: two messages each way, and what the transport has of one.
_ROUNDS_TAKE = 5
# A program costs a call for each array, and rounds a little for each array beside a few calls. So of a tree of more
# arrays than this those of fewer bytes go in rounds.
_FEW_ARRAYS = 4
_LARGE_BYTES = 1 << 20
# To compile a program takes about as long as it saves on moving so many bytes. A smaller array than this saves as much.
_WORTH_A_PROGRAM = 64 << 20
_LEAST_WORTH = 8 << 20


@dataclasses.dataclass
class _Plan:
    """How these processes move a tree, and how often this one has been asked to.

    ``travels``: of each array whether a part of it goes from one process to another.
    """

    processes: list[int]
    travels: tuple[bool, ...]
    routes: Routes
    programs: tuple[Program | None, ...]
    digest: int
    calls: int = 0


@functools.lru_cache(maxsize=64)
def _plan(facts: tuple[Facts, ...], round_bytes: int, timeout: float | None) -> _Plan:
    routes = rounds.planned(facts, round_bytes)
    few = len(facts) <= _FEW_ARRAYS
    # A program has all processes of its array wait for each other, so none moves what stays in each of several.
    travel = {piece.leaf for stream in routes.streams.values() for piece in stream}
    programs = tuple(
        compiled.program(each, _ROUNDS_TAKE * round_bytes, timeout)
        if number in travel and (few or each.nbytes >= _LARGE_BYTES)
        else None
        for number, each in enumerate(facts)
    )
    # What any process decides by is in it. 62 bits, since they travel as two positive int32.
    text = repr((routes.means, [program and program.means for program in programs]))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 2
    processes = sorted({process for each in facts for process in each.processes})
    travels = tuple(number in travel for number in range(len(facts)))
    return _Plan(processes, travels, routes, programs, digest)


def move(
    facts: tuple[Facts, ...], arrays: Sequence[Any], round_bytes: int, timeout: float | None, may_alias: bool
) -> list[Any]:
    """The results. Every process that has a part of an array or of a result calls it."""
    plan = _plan(facts, round_bytes, timeout)
    plan.calls += 1
    # The least of all, since a process that has forgotten a plan counts from 1 again.
    calls = rounds.agree(plan.processes, plan.routes, plan.digest, plan.calls, timeout)
    programs = [
        program if calls * max(each.nbytes, _LEAST_WORTH) >= _WORTH_A_PROGRAM else None
        for each, program in zip(facts, plan.programs, strict=True)
    ]
    # A process without a part of an array has none of the result either, where a program moves it.
    results: list[Any] = [None] * len(facts)
    for number, program in enumerate(programs):
        if program is not None:
            here = facts[number].source.addressable_devices
            results[number] = program.run(arrays[number], may_alias) if here else facts[number].absent
    # What stays within the processes is each one's own affair.
    for number, (array, leaf) in enumerate(zip(facts, arrays, strict=True)):
        if programs[number] is None and not plan.travels[number]:
            moved_here = within_process.move(array, leaf, may_alias)
            results[number] = whole_shards.move(array, leaf, may_alias) if moved_here is None else moved_here
    # Of what travels all make the same rounds.
    for travels in (True, False):
        rest = [n for n, result in enumerate(results) if result is None and plan.travels[n] == travels]
        if rest:
            moved = rounds.move([facts[n] for n in rest], [arrays[n] for n in rest], round_bytes, timeout, may_alias)
            for number, result in zip(rest, moved, strict=True):
                results[number] = result
    return jax.block_until_ready(results)  # type: ignore[no-untyped-call, no-any-return]
