"""Shared by the planners of all engines: schedules, their tables, descriptions and hashes."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from jaxring.plan import user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.algorithms.halves import build_half
from jaxring.plan.epilogue import with_epilogue
from jaxring.plan.schedule import Results, Schedule, Spec


@functools.lru_cache(maxsize=256)
def schedule(half: str, spec: Spec, results: Results = Results.VALUES) -> Schedule:
    """The schedule of a collective, with an epilogue where ``results`` are not plain values; or of half a message."""
    if half != "both":
        return build_half(spec, half)
    built = build(spec) if spec.algorithm in ALGORITHMS else user.build_user(spec)
    return built if results is Results.VALUES else with_epilogue(built, results)


def normalise(ids: list[Any]) -> tuple[int, ...]:
    """Numbers from 0 in the order of first appearance."""
    number: dict[Any, int] = {}
    return tuple(number.setdefault(i, len(number)) for i in ids)


def domains(processes: list[int], by_messages: bool) -> tuple[int, ...]:
    """The memory domain of each rank, of which ``processes`` has the process. ``by_messages``: each its own."""
    return tuple(range(len(processes))) if by_messages else normalise(processes)


def table(schedule: Schedule, rank: int) -> tuple[bytes, bytes, bytes]:
    """A rank's table in the engine's format."""
    table = schedule.table(rank)
    begin, peers = np.asarray(table.lane_begin, dtype="<u4"), np.asarray(table.peers, dtype="<i4")
    return table.steps.tobytes(), begin.tobytes(), peers.tobytes()


def number(text: str, size: int) -> int:
    """A number of ``size`` bytes from a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
