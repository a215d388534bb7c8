"""A schedule in GOAL, the text that LogGOPSim and ATLAHS read (Hoefler, Siebert, Lumsdaine: Group Operation Assembly
Language, ICPP 2009): for each rank its sends, receives and calculations, and which requires which.

Times are whole nanoseconds, sizes bytes, and tags lanes. GOAL knows neither slots nor memory that ranks share.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from jaxring.simulate.program import compile_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.plan.schedule import Schedule
    from jaxring.simulate.program import Lane, Program
    from jaxring.simulate.sizes import Sizes


def text(schedule: Schedule, sizes: Sizes, copy: float = 0.0) -> str:
    """The whole file. ``copy``: us for each byte that a step reads, which becomes its calculation.

    Raises ValueError for a schedule that goes by memory.
    """
    program = compile_lanes(schedule, sizes)
    if program.memory:
        raise ValueError(
            f"{schedule.spec.algorithm} goes by memory that ranks share, which GOAL does not know; export a flat "
            "algorithm such as ring"
        )
    by_rank: dict[int, list[Lane]] = {rank: [] for rank in range(schedule.spec.nranks)}
    for lane in program.lanes:
        by_rank[lane.rank].append(lane)
    sent = _sent(program)
    lines = [f"num_ranks {schedule.spec.nranks}"]
    for rank, lanes in by_rank.items():
        lines += ["", f"rank {rank} {{", *_rank(program, lanes, sent, copy), "}"]
    return "\n".join(lines) + "\n"


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


def _rank(program: Program, lanes: list[Lane], sent: dict[int, deque[int]], copy: float) -> Iterator[str]:
    elements = program.sizes.elements()
    label = 0
    for lane in lanes:
        before = ""  # what the lane's next line requires

        def line(what: str, *requires: str) -> Iterator[str]:
            nonlocal label
            label += 1
            yield f"l{label}: {what}"
            yield from (f"l{label} requires {other}" for other in requires if other)

        for tile in range(program.sizes.tiles):
            for op in lane.ops:
                count = elements[op.length][tile]
                if not count:
                    continue
                got = []
                for connection in op.recv:
                    source = program.connections[connection][0]
                    yield from line(f"recv {sent[connection].popleft()}b from {source} tag {lane.number}", before)
                    got.append(f"l{label}")
                yield from line(f"calc {round(count * op.read_width * copy * 1000)}", before, *got)
                before = f"l{label}"
                for connection in op.send:
                    target = program.connections[connection][1]
                    yield from line(f"send {count * op.send_width}b to {target} tag {lane.number}", before)
                    before = f"l{label}"
