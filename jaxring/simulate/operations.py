"""A schedule as the sends, receives and calculations of each rank, and which of them wait for which: what formats of
other simulators have. None of them knows slots, or memory that ranks share.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from jaxring.simulate.program import compile_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.plan.schedule import Schedule
    from jaxring.simulate.program import Lane, Program
    from jaxring.simulate.tile_sizes import Sizes


class Operation(NamedTuple):
    """``kind``: "send", "recv" or "calc". ``peer``: the rank at the other end. ``us``: what a calculation takes.

    ``after``: positions in the rank's list of what has to end before.
    """

    kind: str
    nbytes: int
    peer: int
    lane: int
    us: float
    after: tuple[int, ...]


def by_rank(schedule: Schedule, sizes: Sizes, copy: float, format_: str) -> Iterator[list[Operation]]:
    """The operations of rank 0, of rank 1, and so on.

    ``copy``: us for each byte that a step reads, which becomes its calculation. ``format_``: named in errors. Raises
    ValueError for a schedule that goes by memory.
    """
    program = compile_lanes(schedule, sizes)
    if program.memory:
        raise ValueError(
            f"{schedule.spec.algorithm} goes by memory that ranks share, which {format_} does not know; export a flat "
            "algorithm such as ring"
        )
    lanes: list[list[Lane]] = [[] for _ in range(schedule.spec.nranks)]
    for lane in program.lanes:
        lanes[lane.rank].append(lane)
    sent = _sent(program)
    return (_rank(program, each, sent, copy) for each in lanes)


def _sent(program: Program) -> dict[int, deque[int]]:
    """The bytes of each connection's messages, in their order."""
    elements = program.sizes.elements()
    sent: dict[int, deque[int]] = {number: deque() for number in range(len(program.connections))}
    for lane in program.lanes:
        for tile in range(program.sizes.tiles):
            for op in lane.ops:
                if nbytes := elements[op.length][tile] * op.send_width:
                    for connection in op.send:
                        sent[connection].append(nbytes)
    return sent


def _rank(program: Program, lanes: list[Lane], sent: dict[int, deque[int]], copy: float) -> list[Operation]:
    elements = program.sizes.elements()
    made: list[Operation] = []
    for lane in lanes:
        before: tuple[int, ...] = ()  # what the lane's next operation waits for
        for tile in range(program.sizes.tiles):
            for op in lane.ops:
                count = elements[op.length][tile]
                if not count:
                    continue
                first = len(made)
                for connection in op.recv:
                    source = program.connections[connection][0]
                    made.append(Operation("recv", sent[connection].popleft(), source, lane.number, 0.0, before))
                waits = (*before, *range(first, len(made)))
                made.append(Operation("calc", 0, -1, lane.number, count * op.read_width * copy, waits))
                before = (len(made) - 1,)
                for connection in op.send:
                    target = program.connections[connection][1]
                    made.append(Operation("send", count * op.send_width, target, lane.number, 0.0, before))
                    before = (len(made) - 1,)
    return made
