"""Tables of cases about which ranks take part: meshes, subsets of axes in both orders, groups, device orders."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tests.collectives.cases.coll_calls import MOVING, REDUCING, call, has_blocks, moved, shift
from tests.collectives.cases.coll_ranks import Ranks, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRIDS = ((("a", 2), ("b", 4)), (("a", 4), ("b", 2)), (("a", 2), ("b", 2), ("c", 2)))


def members(axes: Sequence[tuple[str, int]], over: Any, groups: Any = None) -> dict[int, list[int]]:
    """The ranks that each rank's collective over ``over`` joins, in order; ranks are row-major over ``axes``."""
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    over = (over,) if isinstance(over, str) else over
    found = {}
    for rank, place in enumerate(itertools.product(*map(range, sizes))):
        line = []
        for at in itertools.product(*(range(sizes[names.index(name)]) for name in over)):
            other = list(place)
            for name, value in zip(over, at, strict=True):
                other[names.index(name)] = value
            line.append(int(np.ravel_multi_index(other, sizes)))
        if groups is not None:
            (line,) = ([line[i] for i in group] for group in groups if rank in [line[i] for i in group])
        found[rank] = line
    return found


def line_program(n: int, over: Any, **options: Any) -> Callable[[Any], Any]:
    """Every collective over the axes ``over``, which have n ranks."""

    def program(tree: Any) -> Any:
        got = {}
        for collective in (*REDUCING, *MOVING):
            if collective == "permute" and "axis_index_groups" in options:
                continue  # takes none
            x = tree["blocks" if has_blocks(collective) else "flat"]
            got[collective] = call(collective, x, "sum", root=n - 1, perm=shift(n), axis=over, **options)
        return got

    return program


def line_data(total: int, n: int) -> dict[str, np.ndarray]:
    """Operands of ``line_program`` for ``total`` ranks."""
    rng = np.random.default_rng(total * n)
    return {
        "flat": rng.integers(-(2**31), 2**31, (total, 13), dtype=np.int32),
        "blocks": rng.integers(-(2**31), 2**31, (total, n, 5), dtype=np.int32),
    }


def line_expected(collective: str, data: dict[str, np.ndarray], line: list[int], at: int) -> np.ndarray:
    """What the ``at``-th rank of a line gets."""
    n = len(line)
    x = data["blocks" if has_blocks(collective) else "flat"][line]
    if collective not in REDUCING:
        return moved(collective, x, at, n - 1, shift(n))
    total = x.sum(axis=0, dtype=np.int32)
    if collective == "reduce_scatter":
        return total[at]
    return total if collective == "all_reduce" or at == n - 1 else np.zeros_like(total)


def check_lines(
    report: Report, what: str, got: dict[str, dict[int, np.ndarray]], data: Any, lines: dict[int, list[int]]
) -> None:
    """Compares what ``line_program`` gave every rank."""
    for collective, shards in got.items():
        for rank, value in shards.items():
            line = lines[rank]
            expected = line_expected(collective, data, line, line.index(rank))
            report.expect_bits(f"{what} {collective} rank {rank}", value, expected)


def run_lines(ranks: Ranks, report: Report, what: str, axes: Any, over: Any, **options: Any) -> None:
    """``line_program`` over some axes of a mesh."""
    lines = members(axes, over)
    n = len(lines[0])
    data = line_data(ranks.n, n)
    check_lines(report, f"{what} over {over}", ranks.run(line_program(n, over), data, **options), data, lines)


def overs(axes: Any) -> list[Any]:
    """Single axes, and tuples of two and of all in different orders."""
    names = [name for name, _ in axes]
    return [*names, *itertools.permutations(names, 2), *([tuple(names), tuple(names[::-1])] if len(names) > 2 else [])]


def grids(ranks: Ranks, report: Report) -> None:
    """2-D and 3-D meshes: each axis, and tuples of axes in every order."""
    for axes in GRIDS:
        grid = Ranks(list(ranks.mesh.devices.flat), axes)
        for i, over in enumerate(overs(axes)):
            run_lines(grid, report, str(axes), axes, over, check_vma=bool(i % 2))


def orders(ranks: Ranks, report: Report) -> None:
    """Meshes whose devices are in another order than their numbers."""
    devices = list(ranks.mesh.devices.flat)
    for name, order in (("reversed", range(7, -1, -1)), ("shuffled", (3, 0, 6, 5, 1, 7, 2, 4))):
        for axes in ((("a", 8),), GRIDS[0]):
            grid = Ranks([devices[i] for i in order], axes)
            for over in overs(axes)[-2:]:
                run_lines(grid, report, f"{name} {axes}", axes, over)


def abstract(ranks: Ranks, report: Report) -> None:
    """One jitted function over an abstract mesh, run on devices in three orders."""
    devices = list(ranks.mesh.devices.flat)
    for axes, over in (((("a", 8),), "a"), (GRIDS[0], "b"), (GRIDS[0], ("b", "a"))):
        lines = members(axes, over)
        n = len(lines[0])
        data = line_data(8, n)
        straight = Ranks(devices, axes)
        compiled = straight.compile(line_program(n, over), mesh=straight.mesh.abstract_mesh)
        for order in (range(8), (3, 0, 6, 5, 1, 7, 2, 4), range(7, -1, -1), range(8)):
            grid = Ranks([devices[i] for i in order], axes)
            got = grid.values(compiled(jax.tree.map(grid.put, data)))
            check_lines(report, f"abstract {axes} over {over} on {list(order)}", got, data, lines)


GROUPS = (
    [[0, 1, 2, 3], [4, 5, 6, 7]],
    [[0, 4], [1, 5], [2, 6], [3, 7]],
    [[7, 2], [0, 5], [6, 1], [3, 4]],
    [[5, 1, 3, 7], [0, 2, 4, 6]],
    [[i] for i in range(8)],
    [[4, 0, 7, 1, 6, 2, 5, 3]],
)


def groups(ranks: Ranks, report: Report) -> None:
    """axis_index_groups, in any order, on one axis and on an axis of a 2-D mesh."""
    devices = list(ranks.mesh.devices.flat)
    cases = [((("a", 8),), "a", g) for g in GROUPS]
    cases += [(GRIDS[0], "b", [[0, 3], [2, 1]]), (GRIDS[0], ("b", "a"), GROUPS[2])]
    for axes, over, chosen in cases:
        for check_vma in (False, True) if over == "a" and len(chosen) == 4 else (False,):
            grid = Ranks(devices, axes)
            lines = members(axes, over, chosen)
            n = len(chosen[0])
            data = line_data(8, n)
            program = line_program(n, over, axis_index_groups=chosen)
            got = grid.run(program, data, check_vma=check_vma)
            check_lines(report, f"groups {chosen} of {over}", got, data, lines)


TABLES: dict[str, Callable[[Ranks, Report], None]] = {
    "grids": grids,
    "orders": orders,
    "abstract": abstract,
    "groups": groups,
}
