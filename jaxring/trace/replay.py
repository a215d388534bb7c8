"""Runs a failed operation again, in this process, and reports what is wrong with its operands or its result.

Its schedule, protocol and arithmetic are those of the job; only its messages stay in this process. The result is
compared with NumPy's result from the same operands in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

import jaxring._native as _native
from jaxring.plan import user
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.collectives import COLLECTIVES, Arguments, Folded, Root, Source
from jaxring.plan.dtypes import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.runtime.plan_spec import PlanSpec
    from jaxring.trace.operands import Failure

Blocks = dict[int, np.ndarray]
_TIMEOUT_S = 60.0
_FOLDS = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def explain(failure: Failure) -> Iterator[str]:
    """Sentences about one operation."""
    spec, names = failure.plan_spec, failure.names
    yield f"{failure.what} failed: {failure.why}"
    dtype = numpy_dtype(spec.dtype)
    operands = {rank: np.frombuffer(raw, dtype) for rank, raw in sorted(failure.operands.items())}
    wrong = False
    for rank, operand in operands.items():
        bad = np.flatnonzero(~_finite(operand))
        if bad.size:
            wrong = True
            kind = "NaN" if np.isnan(_wide(operand[bad[:1]]))[0] else "infinity"
            yield f"The operand of {names[rank]} holds {kind}, first at element {bad[0]}; {bad.size} are not finite."
    missing = [name for rank, name in enumerate(names) if rank not in operands]
    if missing:
        yield f"It cannot be played: nothing is saved of {', '.join(missing)}. Gather the files of all processes."
        return
    if spec.algorithm not in ALGORITHMS and user.find(spec.algorithm) is None:
        yield f"It cannot be played: its algorithm {spec.algorithm!r} is the job's own; --import what registers it."
        return
    how = f"Played again by {spec.algorithm}, protocol {spec.protocol}, {spec.channels} channel(s)"
    try:
        results = play(spec, list(operands.values()), failure.blocks)
    except (RuntimeError, ValueError, MemoryError) as error:
        yield f"{how}, it fails here too: {error}"
        return
    differences = list(_compare(spec, names, operands, results, failure.blocks))
    yield from (f"{how}: {text}" for text in differences)
    if not differences and not wrong:
        yield (
            f"{how}, all results are what float64 gives: operands and arithmetic are well, and what failed lies "
            "between the processes."
        )
    elif not differences:
        yield f"{how}, all results are what float64 gives of these operands."


def play(spec: PlanSpec, operands: list[np.ndarray], blocks: Blocks | None = None) -> list[np.ndarray]:
    """The results of all ranks, 0 where nothing is written. RuntimeError or ValueError where it cannot be run.

    ``blocks``, of a ragged collective: as in `Failure`.
    """
    blocks = blocks or {}
    if blocks and len(blocks) != len(operands):
        raise ValueError("the blocks of some ranks are not known")
    if not blocks and any(operand.size != spec.block * spec.schedule().in_blocks for operand in operands):
        raise ValueError("the operands are not of its shape")
    plan = _native.PlanBuilder()
    plan.set_identity("replay", 1, 0, 0, _TIMEOUT_S, 0, 0)
    spec.shape(plan, 1)
    ranks = range(len(operands))
    for rank in ranks:
        plan.add_rank(0, rank, f"rank {rank}")
    spec.add_tables(plan, ((rank, rank) for rank in ranks))
    length = spec.block * spec.schedule().out_blocks
    lengths = [int((blocks[rank][2] + blocks[rank][3]).max()) if blocks else length for rank in ranks]
    results = [np.zeros(lengths[rank], operands[rank].dtype) for rank in ranks]
    plan.play(
        [each.view(np.uint8) for each in operands],
        [each.view(np.uint8) for each in results],
        [np.ascontiguousarray(blocks[rank]).view(np.uint8) for rank in ranks] if blocks else [],
    )
    return results


def expected(
    spec: PlanSpec, operands: list[np.ndarray], ragged: Blocks | None = None
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """The reference result of each rank and its tolerance. Ranks whose results are undefined are left out."""
    n = len(operands)
    rows = [_wide(operand) for operand in operands]
    if ragged:
        return {r: (_ragged(rows, ragged, r), np.zeros(1)) for r in range(n)}
    facts = COLLECTIVES[spec.collective]

    def in_blocks(vector: np.ndarray) -> np.ndarray:
        return vector.reshape(facts.in_blocks(n), -1)

    blocks = [in_blocks(row) for row in rows]
    total, room = map(in_blocks, _fold(spec, operands, rows)) if facts.reduces else (np.zeros(0), np.zeros(0))

    def value(source: Source) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(source, Folded):
            return total[source.block], room[source.block]
        exactly = np.zeros_like(blocks[0][0]) if source is None else blocks[source.rank][source.block]
        return exactly, np.zeros(exactly.shape)

    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for rank in [spec.root] if facts.root is Root.TARGET else range(n):
        sources = facts.results(Arguments(n, spec.root, spec.perm), rank)
        values, rooms = zip(*map(value, sources), strict=True)
        found[rank] = np.concatenate(values), np.concatenate(rooms)
    return found


def _ragged(rows: list[np.ndarray], blocks: Blocks, rank: int) -> np.ndarray:
    _, _, offsets, lengths = blocks[rank].astype(np.int64)
    result = np.zeros(int((offsets + lengths).max()), rows[rank].dtype)
    for source, row in enumerate(rows):
        begin, length = (int(number) for number in blocks[source][:2, rank])
        to = int(offsets[source])
        result[to : to + length] = row[begin : begin + length]
    return result


def _fold(spec: PlanSpec, operands: list[np.ndarray], rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    fold = _FOLDS[spec.op or "sum"]
    total, size = rows[0], np.abs(rows[0])
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            total = fold(total, row)
            size = size * np.abs(row) if spec.op == "prod" else size + np.abs(row)
        if spec.op == "mean":
            total, size = total / len(rows), size / len(rows)
        if not _inexact(operands[0].dtype):
            # Whole numbers wrap around, as the engine's do.
            return total.astype(operands[0].dtype), np.zeros(total.shape)
        exact = spec.op in ("min", "max")
        room = size * 0 if exact else 4 * (len(rows) + 1) * _epsilon(operands[0].dtype) * size
    return total, room


def _compare(
    spec: PlanSpec, names: list[str], operands: dict[int, np.ndarray], results: list[np.ndarray], blocks: Blocks
) -> Iterator[str]:
    for rank, (reference, room) in expected(spec, list(operands.values()), blocks).items():
        got = _wide(results[rank])
        apart = got != reference
        if _inexact(got.dtype):
            with np.errstate(all="ignore"):
                apart &= ~((np.abs(got - reference) <= room) | (np.isnan(got) & np.isnan(reference)))
        bad = np.flatnonzero(apart)
        if not bad.size:
            continue
        first = bad[0]
        text = f"the result of {names[rank]} is {got[first]} at element {first}, and float64 gives {reference[first]}"
        over = _inexact(got.dtype) and not np.isfinite(got[first]) and np.isfinite(reference[first])
        yield f"{text}: {spec.dtype} overflows." if over else f"{text}; {bad.size} elements differ."


def _inexact(dtype: np.dtype) -> bool:
    return dtype.name.startswith(("float", "bfloat", "complex"))


def _wide(values: np.ndarray) -> np.ndarray:
    """Floating and complex numbers as float64 and complex128; others as they are."""
    if not _inexact(values.dtype):
        return values
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.isfinite(_wide(values)) if _inexact(values.dtype) else np.ones(values.shape, bool)


def _epsilon(dtype: np.dtype) -> float:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)
