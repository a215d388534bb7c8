"""Shared by the planners of all engines: schedules, their tables, descriptions and hashes."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np

from jaxring.plan import user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.algorithms.halves import build_half
from jaxring.plan.schedule import Schedule, Spec


@functools.lru_cache(maxsize=256)
def schedule(half: str, spec: Spec) -> Schedule:
    """The schedule of a collective, or of one half of a message."""
    if half != "both":
        return build_half(spec, half)
    return build(spec) if spec.algorithm in ALGORITHMS else user.build_user(spec)


def normalise(ids: list[Any]) -> tuple[int, ...]:
    """Numbers from 0 in the order of first appearance."""
    number: dict[Any, int] = {}
    return tuple(number.setdefault(i, len(number)) for i in ids)


def table(schedule: Schedule, rank: int) -> tuple[bytes, bytes, bytes]:
    """A rank's table in the engine's format."""
    table = schedule.table(rank)
    begin, peers = np.asarray(table.lane_begin, dtype="<u4"), np.asarray(table.peers, dtype="<i4")
    return table.steps.tobytes(), begin.tobytes(), peers.tobytes()


def number(text: str, size: int) -> int:
    """A number of ``size`` bytes from a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "little")
