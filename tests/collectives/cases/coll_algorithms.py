"""The table of every algorithm and protocol, for every collective that they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jaxring.plan import protocols, tuner
from jaxring.plan.algorithms import serving
from tests.collectives.cases.coll_calls import (
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
from tests.collectives.cases.coll_oracle import random_bits

if TYPE_CHECKING:
    from tests.collectives.cases.coll_ranks import Ranks, Report


def choices(ranks: Ranks, collective: str, nbytes: int, dtype: str) -> list[tuple[str | None, str | None]]:
    """(algorithm, protocol) pairs that can serve these ranks, by the tuner's own word."""
    placement = tuple(d.process_index for d in ranks.mesh.devices.flat)
    found: list[tuple[str | None, str | None]] = [(None, None)]
    for algorithm in serving(collective):
        for protocol in (None, *protocols.CPU):
            try:
                tuner.choose(collective, placement, (0,) * ranks.n, nbytes, dtype, algorithm, protocol)
            except ValueError:
                continue
            found.append((algorithm, protocol))
    return found


ALGORITHM_CASES = (("sum", "float32"), ("sum", "bfloat16"), ("mean", "float16"), ("prod", "int32"), ("sum", "float64"))


def algorithms(ranks: Ranks, report: Report) -> None:
    """Every algorithm by every protocol for every collective it serves: small (by flags) and large messages, twice."""
    for columns in (75, 50021):
        reducing = ALGORITHM_CASES if columns < 1000 else ALGORITHM_CASES[:2]
        for collective in (*REDUCING, *MOVING):
            if collective in REDUCING:
                _algorithms_reducing(ranks, report, collective, columns, reducing)
            else:
                _algorithms_moving(ranks, report, collective, columns)


def _algorithms_reducing(ranks: Ranks, report: Report, collective: str, columns: int, pairs: Any) -> None:
    n, root = ranks.n, ranks.n // 3
    per_block = columns if collective != "reduce_scatter" or columns < 1000 else columns // n
    cases = {}
    for op, dtype in pairs:
        data = reduction_data(collective, op, dtype, n, per_block, seed=1)
        for algorithm, protocol in choices(ranks, collective, data.x[0].nbytes, dtype):
            name = f"{collective} {op} {dtype}[{columns}] {algorithm}/{protocol}"
            cases[name] = (op, f"{op} {dtype}", data, {"algorithm": algorithm, "protocol": protocol})

    def program(x: Any) -> Any:
        return {
            name: call(collective, x[key], op, root=root, **options) for name, (op, key, _, options) in cases.items()
        }

    operands = {key: blocks(collective, data) for _, key, data, _ in cases.values()}
    by_algorithm: dict[str, dict[int, np.ndarray]] = {}
    for name, shards in ranks.run_twice(report, program, operands).items():
        op, key, data, options = cases[name]
        check_reduced(report, name, collective, op, data, shards, root)
        if options["algorithm"] == "deterministic":
            same = by_algorithm.setdefault(key, shards)
            for rank, value in shards.items():
                report.expect_bits(f"{name} rank {rank}, by another protocol", value, same[rank])
                report.digest(f"deterministic {collective} {key}[{columns}]", rank, value)


def _algorithms_moving(ranks: Ranks, report: Report, collective: str, columns: int) -> None:
    n, root, perm = ranks.n, ranks.n // 3, shift(ranks.n)
    rng = np.random.default_rng(n)
    dtype = "uint16"
    x = random_bits(rng, (n, n, columns) if has_blocks(collective) else (n, columns), dtype)
    pairs = choices(ranks, collective, x[0].nbytes, dtype)

    def program(x: Any) -> Any:
        return {
            f"{collective} [{columns}] {algorithm}/{protocol}": call(
                collective, x["x"], root=root, perm=perm, algorithm=algorithm, protocol=protocol
            )
            for algorithm, protocol in pairs
        }

    for name, shards in ranks.run_twice(report, program, {"x": x}).items():
        for rank, value in shards.items():
            report.expect_bits(f"{name} rank {rank}", value, moved(collective, x, rank, root, perm))
