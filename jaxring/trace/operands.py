"""Reads the operands of a failed operation, which ffi/engine/records/operands.cc saves: a header, texts, the operands.

A file may have been cut by a full disk or come from anywhere: every number is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

import numpy as np

from jaxring.errors import JaxringError
from jaxring.plan import dtypes
from jaxring.runtime.plan_spec import PlanSpec

if TYPE_CHECKING:
    import pathlib

SUFFIX = ".operands"
_MAGIC = b"JROPS002"
_HEADER = struct.Struct("<8s2Qq6I")
_MOST_OPERANDS, _MOST_TEXT, _MOST_ELEMENTS = 1 << 12, 1 << 20, 1 << 48


@dataclasses.dataclass
class Failure:
    """An operation that failed, for the reason ``why``: the ``operands`` of the ranks whose processes saved them.

    ``blocks``, of a ragged collective: four rows of uint64 for each of these ranks, a column for each peer, in
    elements: where its blocks begin in the operand, how long they are, and the same in the result.
    """

    what: str
    why: str
    time_ns: int
    plan_spec: PlanSpec
    names: list[str]
    operands: dict[int, bytes]
    blocks: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)


def failures(folder: pathlib.Path) -> list[Failure]:
    """All that are saved in a folder, the oldest first. Raises JaxringError where one cannot be read."""
    found: dict[int, Failure] = {}
    for path in sorted(folder.glob("*" + SUFFIX)):
        try:
            key, failure = parse(path.read_bytes())
        except OSError as error:
            raise JaxringError(f"Cannot read {path}: {error.strerror}.") from error
        except ValueError as error:
            raise JaxringError(f"{path} holds no operands of this version of jaxring: {error}.") from None
        known = found.setdefault(key, failure)
        if (known.plan_spec, known.names) != (failure.plan_spec, failure.names):
            raise JaxringError(f"{path} and another file disagree about {failure.what}: are they from the same job?")
        known.operands |= failure.operands
        known.blocks |= failure.blocks
        if failure.time_ns < known.time_ns:
            known.time_ns, known.why = failure.time_ns, failure.why
    return sorted(found.values(), key=lambda failure: failure.time_ns)


def parse(data: bytes) -> tuple[int, Failure]:
    """The operation's key, and what one process saved of it. Raises ValueError."""
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise ValueError("not an operand file (bad magic)")
    _, key, sequence, time_ns, count, peers, *texts, _ = _HEADER.unpack_from(data)
    if not 1 <= count <= _MOST_OPERANDS or peers > _MOST_OPERANDS or max(texts) > _MOST_TEXT:
        raise ValueError("counts or sizes in its header out of range")
    at = _HEADER.size
    entry = 8 * (2 + 4 * peers)
    if len(data) < at + count * entry:
        raise ValueError("its parts do not fit its length")
    table = np.frombuffer(data, "<u8", count * entry // 8, at).reshape(count, -1)
    ranks, sizes = [int(rank) for rank in table[:, 0]], [int(size) for size in table[:, 1]]
    at += count * entry
    if len(data) != at + sum(texts) + sum(sizes):
        raise ValueError("its parts do not fit its length")
    parts = []
    for length in (*texts, *sizes):
        parts.append(data[at : at + length])
        at += length
    plan_spec, names = PlanSpec.from_json(parts[0])
    if len(set(ranks)) != count or not all(rank < len(names) for rank in ranks):
        raise ValueError("ranks repeated or out of range")
    element = dtypes.element_bytes(plan_spec.dtype)
    if any(size % element for size in sizes):
        raise ValueError(f"an operand is no whole number of {plan_spec.dtype} elements")
    if peers and (peers != len(names) or (table[:, 2:] > _MOST_ELEMENTS).any()):
        raise ValueError("ragged blocks out of range")
    what, why = ("".join(c if c.isprintable() else "?" for c in raw.decode("utf-8", "replace")) for raw in parts[1:3])
    operands = dict(zip(ranks, parts[3:], strict=True))
    blocks = {rank: row[2:].reshape(4, peers) for rank, row in zip(ranks, table, strict=True)} if peers else {}
    return key, Failure(f"{what}, execution {sequence}", why, time_ns, plan_spec, names, operands, blocks)
