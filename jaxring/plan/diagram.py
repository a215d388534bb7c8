"""Schedules as drawings (SVG): a row per rank, time to the right, a box per step, an arrow per message.

A step stands behind the one before it in its lane and behind those whose messages it takes: times are numbers of steps.
"""

from __future__ import annotations

import collections
import dataclasses
from html import escape
from typing import TYPE_CHECKING

from jaxring.plan.schedule import Flag, Kind, Schedule, Step
from jaxring.plan.show import header, show_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_RANKS = 64
_LEFT, _TOP, _ACROSS, _DOWN, _BOX = 74, 58, 56, 36, 18
_FILL = {Kind.MOVE: "#d6e6fa", Kind.REDUCE: "#d7f0d7", Kind.GATHER: "#fbe9c6", Kind.SPREAD: "#fbe9c6"}
_DONE, _EDGE, _MESSAGE, _MEMORY = "#1f7a1f", "#5d6b78", "#0b6bcb", "#9a5b13"
# The key of boxes: what they mean, how they are filled, and their edge's colour and width.
_KEY = [
    ("move", _FILL[Kind.MOVE], _EDGE, 1),
    ("fold", _FILL[Kind.REDUCE], _EDGE, 1),
    ("the value is complete", "white", _DONE, 2),
]
_PACKS = ("gather or spread", _FILL[Kind.GATHER], _EDGE, 1)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Where each step of a lane stands: by rank and number, its time; and the messages between them."""

    times: dict[tuple[int, int], int]
    messages: list[tuple[tuple[int, int], tuple[int, int]]]


def svg(schedule: Schedule, lanes: Sequence[int] = ()) -> str:
    """One tile's steps on all ranks, of these lanes (none: of all), one below the other.

    Raises ValueError for more than MAX_RANKS ranks and for a lane that the schedule does not have.
    """
    n = schedule.spec.nranks
    if n > MAX_RANKS:
        raise ValueError(f"a drawing has at most {MAX_RANKS} ranks, and the schedule has {n}")
    programs = [schedule.lanes(rank) for rank in range(n)]
    shapes: list[str] = []
    kinds = {step.kind for program in programs for lane in program for step in lane}
    more = [_PACKS] if kinds & {Kind.GATHER, Kind.SPREAD} else []
    right, top = (760 if any(map(schedule.uses_memory, range(n))) else 560) + sum(map(_wide, more)), _TOP
    for lane in lanes or range(schedule.nlanes):
        if not 0 <= lane < schedule.nlanes:
            raise ValueError(f"lane {lane} is none of the schedule's, which are 0 to {schedule.nlanes - 1}")
        steps = [program[lane] for program in programs]
        drawn = _place(steps)
        shapes.append(f'<text x="8" y="{top}" font-weight="bold">lane {lane}</text>')
        shapes += _lane(steps, drawn, top + 12)
        right = max(right, _LEFT + _ACROSS * (1 + max(drawn.times.values(), default=0)) + 20)
        top += 12 + n * _DOWN + 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{top}" viewBox="0 0 {right} {top}" '
        f'font-family="sans-serif" font-size="11">'
    )
    ground = f'<rect width="{right}" height="{top}" fill="white"/>'
    return "\n".join([head, ground, *_legend(schedule, [*_KEY, *more]), *shapes, "</svg>"]) + "\n"


def _place(steps: Sequence[Sequence[Step]]) -> _Drawn:
    """Plays a lane: the k-th message from one rank to another is the k-th that the other takes from it."""
    times: dict[tuple[int, int], int] = {}
    messages: list[tuple[tuple[int, int], tuple[int, int]]] = []
    sent: dict[tuple[int, int], collections.deque[tuple[int, int]]] = collections.defaultdict(collections.deque)
    at = [0] * len(steps)
    moved = True
    while moved:
        moved = False
        for rank, lane in enumerate(steps):
            while at[rank] < len(lane):
                step, here = lane[at[rank]], (rank, at[rank])
                sources = [peer.rank for peer in step.recv if not peer.memory and peer.rank != rank]
                if any(not sent[source, rank] for source in sources):
                    break
                taken = [sent[source, rank].popleft() for source in sources]
                before = [times[rank, at[rank] - 1]] if at[rank] else []
                times[here] = max([*before, *(times[where] for where in taken)], default=-1) + 1
                messages += [(where, here) for where in taken]
                for peer in step.send:
                    if not peer.memory:
                        sent[rank, peer.rank].append(here)
                at[rank] += 1
                moved = True
    return _Drawn(times, messages)


def _lane(steps: Sequence[Sequence[Step]], drawn: _Drawn, top: int) -> Iterator[str]:
    def middle(place: tuple[int, int]) -> tuple[int, int]:
        return _LEFT + _BOX + _ACROSS * drawn.times[place], top + _DOWN * place[0] + _DOWN // 2

    right = _LEFT + _ACROSS * (1 + max(drawn.times.values(), default=0))
    for rank in range(len(steps)):
        y = top + _DOWN * rank + _DOWN // 2
        yield f'<text x="16" y="{y + 4}">rank {rank}</text>'
        yield f'<path d="M{_LEFT - 8} {y} H{right}" stroke="#e2e6ea"/>'
    for source, target in drawn.messages:
        (x1, y1), (x2, y2) = middle(source), middle(target)
        yield _arrow(x1 + _BOX, y1, x2 - _BOX, y2, _MESSAGE)
    for rank, lane in enumerate(steps):
        for number, step in enumerate(lane):
            if (rank, number) not in drawn.times:
                continue
            x, y = middle((rank, number))
            for other in {peer.rank for peer in (*step.recv, *step.send) if peer.memory and peer.rank != rank}:
                yield _dashed(x, y, top + _DOWN * other + _DOWN // 2)
            yield _box(rank, step, x, y)


def _box(rank: int, step: Step, x: int, y: int) -> str:
    chunk = step.dst or step.src
    edge, width = (_DONE, 2) if step.flags & Flag.FINAL else (_EDGE, 1)
    fill = _FILL[step.kind]
    return (
        f'<g><title>{escape(show_step(rank, step))}</title><rect x="{x - _BOX}" y="{y - 9}" width="{2 * _BOX}" '
        f'height="18" rx="3" fill="{fill}" stroke="{edge}" stroke-width="{width}"/>'
        f'<text x="{x}" y="{y + 4}" text-anchor="middle">{chunk.index if chunk else ""}</text></g>'
    )


def _arrow(x1: int, y1: int, x2: int, y2: int, colour: str) -> str:
    down = 4 if y2 > y1 else -4
    head = f"M{x2 - 6} {y2 - down // 4 - 4} L{x2} {y2} L{x2 - 6} {y2 + 4 - down // 4}"
    return f'<path d="M{x1} {y1} L{x2} {y2} {head}" stroke="{colour}" fill="none"/>'


def _dashed(x: int, y1: int, y2: int) -> str:
    return f'<path d="M{x} {y1} V{y2}" stroke="{_MEMORY}" stroke-dasharray="3 3" fill="none"/>'


def _wide(entry: tuple[str, str, str, int]) -> int:
    return 34 + 6 * len(entry[0])


def _legend(schedule: Schedule, key: Sequence[tuple[str, str, str, int]]) -> Iterator[str]:
    yield f'<text x="8" y="18">{escape(header(schedule))}</text>'
    x = 8
    for entry in key:
        text, fill, edge, width = entry
        frame = f'fill="{fill}" stroke="{edge}" stroke-width="{width}"'
        yield f'<rect x="{x}" y="26" width="14" height="10" rx="2" {frame}/>'
        yield f'<text x="{x + 19}" y="35">{text}</text>'
        x += _wide(entry)
    yield _arrow(x, 31, x + 22, 31, _MESSAGE)
    yield f'<text x="{x + 27}" y="35">message; the number is the chunk</text>'
    if any(map(schedule.uses_memory, range(schedule.spec.nranks))):
        yield f'<path d="M{x + 240} 24 V38" stroke="{_MEMORY}" stroke-dasharray="3 3"/>'
        yield f'<text x="{x + 248}" y="35">memory of another rank, read or written</text>'
