"""The tables of cases that every layout of ranks goes through: in pytest's process, and in jobs of several processes.

Each takes the ranks and a report to write failures and digests to. A table is few programs with many collectives, since
starting and compiling is what costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.plan import dtypes
from tests.collectives.cases.coll_algorithms import algorithms, choices
from tests.collectives.cases.coll_calls import (
    COLUMNS,
    EVERYWHERE,
    MOVING,
    REDUCING,
    blocks,
    call,
    check_reduced,
    has_blocks,
    moved,
    reduction_data,
    shift,
)
from tests.collectives.cases.coll_messages import barriers, point_to_point, ragged
from tests.collectives.cases.coll_oracle import Case, case, random_bits, served_pairs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.collectives.cases.coll_ranks import Ranks, Report


def reductions(ranks: Ranks, report: Report) -> None:
    """Every reducing collective x operation x dtype, twice."""
    n = ranks.n
    for collective in REDUCING:
        cases = {
            f"{collective} {op} {dtype}": (op, reduction_data(collective, op, dtype, n, COLUMNS))
            for op, dtype in served_pairs()
        }

        def program(x: Any, collective: str = collective, cases: Any = cases) -> Any:
            return {name: call(collective, x[name], op, root=n - 1) for name, (op, _) in cases.items()}

        got = ranks.run_twice(report, program, {name: blocks(collective, data) for name, (_, data) in cases.items()})
        for name, (op, data) in cases.items():
            check_reduced(report, name, collective, op, data, got[name], root=n - 1)


def movements(ranks: Ranks, report: Report) -> None:
    """Every other collective x dtype, of random bits, twice."""
    n, root, perm = ranks.n, ranks.n // 2, shift(ranks.n)
    rng = np.random.default_rng(n)
    data = {
        f"{collective} {dtype}": random_bits(rng, (n, n, 37) if has_blocks(collective) else (n, 37), dtype)
        for collective in MOVING
        for dtype in dtypes.DTYPES
    }

    def program(x: Any) -> Any:
        return {name: call(name.split()[0], value, root=root, perm=perm) for name, value in x.items()}

    for name, shards in ranks.run_twice(report, program, data).items():
        collective = name.split()[0]
        for rank, value in shards.items():
            report.expect_bits(f"{name} rank {rank}", value, moved(collective, data[name], rank, root, perm))
        if collective in EVERYWHERE:
            report.same_everywhere(name, shards)


SHAPES = {
    "float32": [(), (0,), (1,), (2,), (3,), (63,), (64,), (65,), (251,), (4099,), (3, 0, 2), (3, 5, 7), (2, 1, 3, 5)],
    "int8": [(), (0,), (1,), (7,), (63,), (65,), (127,), (129,), (1021,), (0, 4), (5, 13)],
    "bfloat16": [(), (1,), (33,), (1025,), (2, 3, 11)],
    "complex128": [(), (3,), (67,)],
}
LARGE = {"float32": (1000003,), "int8": (1000003,)}


def _sizes(ranks: Ranks, report: Report, shapes: list[tuple[str, tuple[int, ...]]], collectives: Any) -> None:
    n, root, perm = ranks.n, ranks.n - 1, shift(ranks.n)
    rng = np.random.default_rng(n)
    data, plain = {}, {}
    for collective in collectives:
        for dtype, shape in shapes:
            name = f"{collective} {dtype}{list(shape)}"
            block = (n, *shape) if has_blocks(collective) else shape
            if collective in REDUCING:
                columns = int(np.prod(block))
                data[name] = case("sum", dtype, n, max(columns, 64))
                data[name] = Case(data[name].x[:, -columns or 64 :], data[name].rounded[-columns or 64 :])
                plain[name] = data[name].x.reshape(n, *block)
            else:
                plain[name] = random_bits(rng, (n, *block), dtype)

    def program(x: Any) -> Any:
        return {name: call(name.split()[0], x[name], "sum", root=root, perm=perm) for name in x}

    for name, shards in ranks.run(program, plain).items():
        collective = name.split()[0]
        if collective in REDUCING:
            flat = {rank: value.reshape(-1) for rank, value in shards.items()}
            check_reduced(report, name, collective, "sum", data[name], flat, root)
        else:
            for rank, value in shards.items():
                report.expect_bits(f"{name} rank {rank}", value, moved(collective, plain[name], rank, root, perm))


def sizes(ranks: Ranks, report: Report) -> None:
    """Every collective with no, one, odd and prime numbers of elements, scalars and more dimensions."""
    shapes = [(d, shape) for d, shapes in SHAPES.items() for shape in shapes]
    # Apart: jaxlib 0.11.2 crashes on any shard_map that has an operand without elements beside one with some, as of
    # `lambda tree: jax.tree.map(lambda x: x + 1, tree)`.
    for empty in (True, False):
        _sizes(ranks, report, [case for case in shapes if (0 in case[1]) == empty], (*REDUCING, *MOVING))


def large_sizes(ranks: Ranks, report: Report) -> None:
    """A million and three elements: many tiles and slots, and a tail that is aligned to nothing."""
    for collectives in (("all_reduce", "reduce", "broadcast", "permute"), ("all_gather",), ("all_to_all",)):
        _sizes(ranks, report, list(LARGE.items()), collectives)
    for collectives in (("reduce_scatter",), ("gather", "scatter")):
        _sizes(ranks, report, [("float32", (300007,)), ("int8", (300007,))], collectives)


def roots(ranks: Ranks, report: Report) -> None:
    """Every root of the rooted collectives, by every algorithm."""
    n = ranks.n
    rng = np.random.default_rng(n)
    data = {"flat": random_bits(rng, (n, 19), "int32"), "blocks": random_bits(rng, (n, n, 19), "int32")}
    names = [
        (collective, root, algorithm)
        for collective in ("broadcast", "reduce", "gather", "scatter")
        for root in range(n)
        for algorithm in sorted({a for a, _ in choices(ranks, collective, 76, "int32") if a})
    ]

    def program(x: Any) -> Any:
        return {
            f"{c} {root} {a}": call(c, x["blocks" if c == "scatter" else "flat"], "sum", root=root, algorithm=a)
            for c, root, a in names
        }

    for name, shards in ranks.run(program, data).items():
        collective, root = name.split()[0], int(name.split()[1])
        for rank, value in shards.items():
            if collective == "reduce":
                total = data["flat"].sum(axis=0, dtype=np.int32)
                expected = total if rank == root else np.zeros_like(total)
            else:
                x = data["blocks" if collective == "scatter" else "flat"]
                expected = moved(collective, x, rank, root, ())
            report.expect_bits(f"{name} rank {rank}", value, expected)


TABLES: dict[str, Callable[[Ranks, Report], None]] = {
    "reductions": reductions,
    "movements": movements,
    "sizes": sizes,
    "large_sizes": large_sizes,
    "algorithms": algorithms,
    "roots": roots,
    "point_to_point": point_to_point,
    "barriers": barriers,
    "ragged": ragged,
}
