"""The tables of cases that every layout of ranks goes through: in pytest's process, and in jobs of several processes.

Each takes the ranks and a report to write failures and digests to. A table is few programs with many collectives, since
starting and compiling is what costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from coll_oracle import Case, bounds, case, random_bits, served_pairs, wrong

import jaxring
from jaxring.plan import dtypes, tuner
from jaxring.plan.algorithms import serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from coll_ranks import Ranks, Report

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


def choices(ranks: Ranks, collective: str, nbytes: int, dtype: str) -> list[tuple[str | None, str | None]]:
    """(algorithm, protocol) pairs that can serve these ranks, by the tuner's own word."""
    placement = tuple(d.process_index for d in ranks.mesh.devices.flat)
    found: list[tuple[str | None, str | None]] = [(None, None)]
    for algorithm in serving(collective):
        for protocol in (None, *tuner.PROTOCOLS):
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


def point_to_point(ranks: Ranks, report: Report) -> None:
    """Chains of send and recv with several tags, against the order of the tags, and in scan."""
    n = ranks.n
    x = np.arange(n * 5, dtype=np.float32).reshape(n, 5)
    right, left = [(i, (i + 1) % n) for i in range(n)], [(i, (i - 1) % n) for i in range(n)]
    some = [(i, i + 1) for i in range(n - 1)]

    def program(tree: Any) -> Any:
        x = tree["x"]
        like = jax.ShapeDtypeStruct(x.shape, x.dtype)
        token = jaxring.send(x, "x", right, tag=1)
        token = jaxring.send(x * 10, "x", right, token, tag=2)
        token = jaxring.send(x * 100, "x", left, token, tag=3)
        token = jaxring.send(x * 1000, "x", right, token, tag=1)
        out = {}
        out["tag2"], token = jaxring.recv(like, "x", right, token, tag=2)
        out["left"], token = jaxring.recv(like, "x", left, token, tag=3)
        out["first"], token = jaxring.recv(like, "x", right, token, tag=1)
        out["second"], token = jaxring.recv(like, "x", right, token, tag=1)
        token = jaxring.send((x * 3).astype(jnp.bfloat16), "x", some, token)
        out["some"], token = jaxring.recv(jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), "x", some, token)

        def step(carry: Any, k: Any) -> Any:
            value, token = carry
            token = jaxring.send(value + k, "x", right, token, tag=7)
            value, token = jaxring.recv(like, "x", right, token, tag=7)
            return (value, token), value.sum()

        (out["scan"], token), out["sums"] = jax.lax.scan(step, (x, token), jnp.arange(12, dtype=x.dtype))
        return out

    got = ranks.run_twice(report, program, {"x": x}, check_vma=False)
    scanned, sums = x.copy(), []
    for k in range(12):
        scanned = np.roll(scanned + np.float32(k), 1, axis=0)
        sums.append(scanned.sum(axis=1))
    for rank in ranks.local:
        before, after = x[(rank - 1) % n], x[(rank + 1) % n]
        some_expected = (before * 3 if rank else before * 0).astype(jnp.bfloat16)
        expected = {
            "tag2": before * 10, "left": after * 100, "first": before, "second": before * 1000,
            "some": some_expected, "scan": scanned[rank], "sums": np.array([s[rank] for s in sums]),
        }  # fmt: skip
        for name, value in expected.items():
            report.expect_bits(f"send/recv {name} rank {rank}", got[name][rank], value)


def barriers(ranks: Ranks, report: Report) -> None:
    """A barrier gives zero, in a loop too."""

    def program(tree: Any) -> Any:
        def step(total: Any, _: Any) -> Any:
            return total + jaxring.barrier("x"), None

        total, _ = jax.lax.scan(step, jnp.zeros((), jnp.uint32), None, length=20)
        return {"y": tree["x"] + total}

    for rank, value in ranks.run(program, {"x": np.ones((ranks.n, 3), np.uint32)}, check_vma=False)["y"].items():
        report.expect_bits(f"barrier rank {rank}", value, np.ones(3, np.uint32))


def ragged_case(rng: np.random.Generator, n: int, most: int) -> dict[str, np.ndarray]:
    """Arguments of ragged_all_to_all of all ranks: parts of 0 to ``most`` rows, in a random order, with gaps."""
    sizes = rng.integers(0, most + 1, (n, n)).astype(np.int32)
    rows_in, rows_out = int(sizes.sum(axis=1).max()) + n + 3, int(sizes.sum(axis=0).max()) + n + 2
    inputs, outputs = np.zeros((n, n), np.int32), np.zeros((n, n), np.int32)
    for rank in range(n):
        at = 1
        for j in rng.permutation(n):
            inputs[rank, j] = at
            at += sizes[rank, j] + (at < n)
        at = 0
        for i in rng.permutation(n):
            outputs[i, rank] = at
            at += sizes[i, rank] + (at < n)
    return {
        "operand": rng.normal(size=(n, rows_in, 3)),
        "output": rng.normal(size=(n, rows_out, 3)),
        "inputs": inputs,
        "sizes": sizes,
        "outputs": outputs,
        "comes": np.ascontiguousarray(sizes.T),
    }


def ragged_expected(case: dict[str, np.ndarray]) -> np.ndarray:
    """What ragged_all_to_all gives, by its definition."""
    y = case["output"].copy()
    for i in range(len(y)):
        for j in range(len(y)):
            count, source, target = case["sizes"][i, j], case["inputs"][i, j], case["outputs"][i, j]
            y[j, target : target + count] = case["operand"][i, source : source + count]
    return y


def ragged(ranks: Ranks, report: Report) -> None:
    """ragged_all_to_all against its definition: several dtypes and index types, empty parts, several tiles."""
    rng = np.random.default_rng(ranks.n)
    n = ranks.n
    for dtype, index, most in (("float32", "int32", 9), ("int8", "int64", 40), ("bfloat16", "int32", 6000)):
        cases = [ragged_case(rng, n, m) for m in (most, 0)]
        trees = {
            str(k): {
                name: value.astype(dtype if name in ("operand", "output") else index) for name, value in one.items()
            }
            for k, one in enumerate(cases)
        }

        def program(tree: Any) -> Any:
            return {
                name: jaxring.ragged_all_to_all(
                    t["operand"], t["output"], t["inputs"], t["sizes"], t["outputs"], t["comes"], axis_name="x"
                )
                for name, t in tree.items()
            }

        for name, shards in ranks.run_twice(report, program, trees).items():
            expected = ragged_expected(trees[name])
            for rank, value in shards.items():
                report.expect_bits(f"ragged {dtype} {name} rank {rank}", value, expected[rank])


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
