"""Collectives as the tables call them, and what each rank is to get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import jaxring
from tests.collectives.cases.coll_oracle import Case, bounds, case, wrong

if TYPE_CHECKING:
    from tests.collectives.cases.coll_ranks import Report

COLUMNS = 96
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
MOVING = ("all_gather", "all_to_all", "broadcast", "gather", "scatter", "permute")
EVERYWHERE = ("all_reduce", "all_gather", "broadcast")


def call(
    collective: str, x: Any, op: str | None = None, root: int = 0, perm: Any = (), axis: Any = "x", **options: Any
) -> Any:
    """A collective over an axis, with blocks on the leading axis where it takes or gives blocks."""
    if collective in ("all_reduce", "reduce_scatter"):
        return getattr(jaxring, collective)(x, axis, op, **options)
    if collective == "reduce":
        return jaxring.reduce(x, axis, op, root, **options)
    if collective == "all_gather":
        return jaxring.all_gather(x, axis, **options)
    if collective == "all_to_all":
        return jaxring.all_to_all(x, axis, 0, 0, **options)
    if collective == "permute":
        return jaxring.permute(x, axis, perm, **options)
    return getattr(jaxring, collective)(x, axis, root, **options)


def shift(n: int) -> list[tuple[int, int]]:
    """A ring's permutation, of which the last rank's message is left out where there are more than two."""
    return [(i, (i + 1) % n) for i in range(n - (n > 2))]


def moved(collective: str, x: np.ndarray, rank: int, root: int, perm: Any) -> np.ndarray:
    """What ``rank`` gets of all ranks' blocks ``x``."""
    if collective == "all_gather" or (collective == "gather" and rank == root):
        return x
    if collective == "gather":
        return np.zeros_like(x)
    if collective == "all_to_all":
        return x[:, rank]
    if collective == "broadcast":
        return x[root]
    if collective == "scatter":
        return x[root, rank]
    assert collective == "permute"
    source = {t: s for s, t in perm}
    return x[source[rank]] if rank in source else np.zeros_like(x[0])


def has_blocks(collective: str) -> bool:
    """Whether a collective's operand has a leading axis with an entry per rank."""
    return collective in ("reduce_scatter", "all_to_all", "scatter")


def check_reduced(
    report: Report, name: str, collective: str, op: str, data: Case, shards: dict[int, np.ndarray], root: int = 0
) -> None:
    """Compares what each rank got of a reduction with NumPy."""
    low, high = bounds(op, data)
    for rank, value in shards.items():
        at = (low, high)
        if collective == "reduce_scatter":
            at = (low.reshape(len(data.x), -1)[rank], high.reshape(len(data.x), -1)[rank])
        elif collective == "reduce" and rank != root:
            at = (np.zeros_like(low), np.zeros_like(low))
        report.check(f"{name} rank {rank}", wrong(value, at))
    if collective == "all_reduce":
        report.same_everywhere(name, shards)


def reduction_data(collective: str, op: str, dtype: str, n: int, columns: int, seed: int = 0) -> Case:
    """A reduction's operands: ``columns`` of each rank, and as many for each block."""
    data = case(op, dtype, n, columns, seed)
    if collective != "reduce_scatter":
        return data
    # Every block gets the special values: repeat, and shift the values among the ranks.
    x = np.concatenate([np.roll(data.x, block, axis=0) for block in range(n)], axis=1)
    return Case(x, np.tile(data.rounded, n))


def blocks(collective: str, data: Case) -> np.ndarray:
    """The operands as the collective takes them."""
    n = len(data.x)
    return data.x.reshape(n, n, -1) if collective == "reduce_scatter" else data.x
